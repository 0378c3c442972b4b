"""Files of ours beside a queue: locks, and small files that are replaced whole."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock.fsq import files

OURS_MODE = 0o660  # the directory, which is like the queue's others, decides who gets there


@contextmanager
def locked(where: str) -> Iterator[None]:
    """Wait for a lock of ours; it goes with the process that has it."""
    fd = files.open_own(where, os.O_RDWR | os.O_CREAT, OURS_MODE).fd
    try:
        _open_to_group(fd)
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _open_to_group(fd: int) -> None:
    """Let all users of the group use the file, whatever their umask is."""
    with suppress(PermissionError):
        os.fchmod(fd, OURS_MODE)


def write_whole(where: str, data: bytes, is_safe: bool) -> None:
    """Write a file of ours, at once: whoever reads it finds the old or the new content."""
    draft = f"{where}.{os.urandom(4).hex()}"
    fd = files.disk.create(draft, OURS_MODE)
    try:
        _open_to_group(fd)
        files.disk.write(fd, data)
        if is_safe:
            files.disk.sync(fd)
    except BaseException:
        files.remove_if_there(draft)
        raise
    finally:
        files.disk.close(fd)
    files.disk.rename(draft, where)
