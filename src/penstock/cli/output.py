"""Standard output that can't be written: a full disk, or a reader that has had enough (`| head`)."""

from __future__ import annotations

import errno
import os
import sys

# Of a write. Files that we write ourselves have handlers of their own.
UNWRITABLE = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def give_up(error: OSError) -> str:
    """Print nothing any more; gives what to say about it, nothing to a reader who has gone.

    Raises the error again if it is another.
    """
    if error.errno not in UNWRITABLE or error.filename is not None:
        raise error
    # Python would complain once more when it closes stdout.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return "" if isinstance(error, BrokenPipeError) else f"can't write the output: {error.strerror}"
