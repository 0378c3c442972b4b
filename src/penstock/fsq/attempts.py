"""Begun attempts, beside the items: so that a worker that was killed counts as a try.

An item's name says how often it failed, and it must not change before the outcome of a try is known. So a worker that
begins with an item adds a byte to the file `attempts/ID`, and removes that file with the outcome. A file that is still
there when the next one gets the lock says how many tries had no outcome: their workers were killed.

The file is not synced: it counts killed processes, while after a power failure a try may go uncounted. Original
scanners neither see nor need it. Where it can't be written (a directory that isn't ours), killed workers don't count.
"""

from __future__ import annotations

import contextlib
import errno
import os

from penstock.fsq import files, path
from penstock.fsq.constants import number_of

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_RECORD_MODE = 0o660  # the directory, which is like the queue's others, decides who gets there
# What keeps us from taking notes, but should keep nobody from working.
_BEARABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.ENOTDIR})
# Something else lies where the note should be: a link, a FIFO, a directory, a file with other names.
_BEARABLE |= {errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.EMLINK}


def begin(queue: str, item_id: str, host: str | None) -> int:
    """Note that a try begins; return how many before it had no outcome. The caller holds the item's lock."""
    try:
        return _begin(queue, item_id, host)
    except OSError as error:
        if error.errno in _BEARABLE:
            return 0
        raise


def _begin(queue: str, item_id: str, host: str | None) -> int:
    record = f"{path.attempts(queue, host)}/{path.valid_name(item_id)}"
    try:
        fd, status = files.open_own(record, _APPEND, number_of("FSQ_ITEM_MODE"))
    except FileNotFoundError:
        _make_directory(path.attempts(queue, host), path.base(queue, host))
        fd, status = files.open_own(record, _APPEND, number_of("FSQ_ITEM_MODE"))
    try:
        lost = status.st_size
        if not lost:
            # Scanners of one group may be several users, and each must be able to count on.
            with contextlib.suppress(PermissionError):
                os.fchmod(fd, _RECORD_MODE)
        os.write(fd, b".")
    finally:
        os.close(fd)
    return lost


def _make_directory(directory: str, parent: str) -> None:
    """Make it like the queue's own directories."""
    with contextlib.suppress(FileExistsError):
        files.disk.make_directory(directory, files.mode_of_directory(parent))


def end(queue: str, item_id: str, host: str | None, lost: int = 0) -> None:
    """Forget the try that was begun; `lost` ones before it still count, if the item was put down without an outcome."""
    record = f"{path.attempts(queue, host)}/{path.valid_name(item_id)}"
    with contextlib.suppress(OSError):
        if lost:
            fd = files.open_own(record, os.O_WRONLY).fd
            try:
                os.ftruncate(fd, lost)
            finally:
                os.close(fd)
        else:
            files.remove_if_there(record)


def lost(queue: str, item_id: str, host: str | None = None) -> int:
    """Return how many tries of an item have no outcome; one that is under way is among them."""
    try:
        return files.status(f"{path.attempts(queue, host)}/{path.valid_name(item_id)}").st_size
    except OSError:
        return 0
