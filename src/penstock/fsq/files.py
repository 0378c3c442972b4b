"""The file port: every system call that changes a queue is made here, and nowhere else.

So a test can put another disk in its place, write down what was called and build each directory that a power failure
could leave behind. What must be on the disk before something is said to be done:

    an item's content                 before its name appears in `queue`       sync
    its name in `queue`               before enqueue returns                   sync_directory
    its name in `done` or `fail`      before its absence from `queue`, and both before the completion returns
    its next name in `queue`          before fail_tmp returns
    a name in a directory of ours     before its absence elsewhere, and both before the step is said to be done

With FSQ_SYNC=0 nothing is synced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

from penstock.fsq.constants import number_of
from penstock.fsq.directory import changed, current, listing_of, parent, renamed
from penstock.fsq.directory import directory as directory_at
from penstock.fsq.errors import UnsafeFile
from penstock.fsq.owners import Owner

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
# Never follow a link out of a queue, and never wait for the other end of a FIFO that lies there.
_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
NOTE_BYTES_MAX = 1 << 20  # of a file of ours: counters, a key, a number
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFREG: "a regular file",
}


class FileSystem:
    """The real one. Each path is opened by its directory (directory.py), so links in it are refused.

    The system's errors know the last name only, so they are given the whole path.
    """

    def create(self, path: str, mode: int) -> int:
        """Make a file that must not be there yet, and return its descriptor; the umask applies."""
        where, name = parent(path)
        try:
            return os.open(name, CREATE, mode, dir_fd=where.fd)
        except OSError as error:
            error.filename = path
            raise

    def write(self, fd: int, data: bytes | memoryview) -> None:
        """Append all of the data."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]

    def sync(self, fd: int) -> None:
        """Return when the file's content is on the disk."""
        if number_of("FSQ_SYNC"):
            os.fsync(fd)

    def close(self, fd: int) -> None:
        """Close a file."""
        os.close(fd)

    def link(self, source: str, target: str) -> None:
        """Add a second name of a file, which must not be there yet."""
        above, name = parent(source)
        to, new_name = parent(target)
        try:
            os.link(name, new_name, src_dir_fd=above.fd, dst_dir_fd=to.fd, follow_symlinks=False)
        except OSError as error:
            error.filename, error.filename2 = source, target
            raise

    def unlink(self, path: str) -> None:
        """Remove a name."""
        where, name = parent(path)
        try:
            os.unlink(name, dir_fd=where.fd)
        except OSError as error:
            error.filename = path
            raise

    def rename(self, source: str, target: str) -> None:
        """Change a file's name; a file that has the new name is replaced."""
        above, name = parent(source)
        to, new_name = parent(target)
        try:
            os.rename(name, new_name, src_dir_fd=above.fd, dst_dir_fd=to.fd)
            renamed(source, target)
        except OSError as error:
            error.filename, error.filename2 = source, target
            raise

    def make_directory(self, path: str, mode: int) -> None:
        """Make a directory that must not be there yet, with exactly this mode."""
        where, name = parent(path)
        try:
            os.mkdir(name, 0o700, dir_fd=where.fd)
            changed(path)
        except OSError as error:
            error.filename = path
            raise
        with listing_of(path) as fd:
            os.fchmod(fd, mode)

    def remove_directory(self, path: str) -> None:
        """Remove a directory that is empty."""
        where, name = parent(path)
        try:
            os.rmdir(name, dir_fd=where.fd)
            changed(path)
        except OSError as error:
            error.filename = path
            raise

    def sync_directory(self, path: str) -> None:
        """Return when the names in a directory are on the disk."""
        if number_of("FSQ_SYNC"):
            with listing_of(path) as fd:
                os.fsync(fd)


disk = FileSystem()


def own(fd: int, owner: Owner) -> None:
    """Change a file's owner where one is asked for."""
    if owner.is_set:
        os.fchown(fd, owner.uid, owner.gid)


def remove_if_there(path: str) -> bool:
    """Remove a name; return whether it was there."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return False
    return True


def status(path: str) -> os.stat_result:
    """Return what a path leads to; a link as itself."""
    where, name = parent(path)
    return os.stat(name, dir_fd=where.fd, follow_symlinks=False)


def identity(path: str) -> tuple[int, int] | None:
    """Return which file a path leads to, links not followed; None if there is no file."""
    try:
        found = status(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def exists(path: str) -> bool:
    """Whether there is something at a path, a link that leads nowhere included."""
    try:
        status(path)
    except UnsafeFile:
        raise
    except OSError:
        return False
    return True


def is_directory(path: str) -> bool:
    """Whether a directory is there. Refused if it is a link, or of another owner than the queue."""
    try:
        current(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def mode_of_directory(path: str) -> int:
    """Return the mode of a directory."""
    return stat.S_IMODE(os.fstat(directory_at(path).fd).st_mode)


def names(path: str) -> list[str]:
    """Return the names in a directory."""
    with listing_of(path) as fd:
        return os.listdir(fd)


@contextlib.contextmanager
def entries(path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
    """Go through a directory; the entries know their names only."""
    with listing_of(path) as fd, os.scandir(fd) as found:
        yield found


class OpenFile(NamedTuple):
    """An open file, and what it was when it was opened."""

    fd: int
    status: os.stat_result


def open_file(path: str, flags: int, mode: int = 0) -> OpenFile:
    """Open a file that others may have put there; Refused if it isn't a regular file."""
    fd = open_unchecked(path, flags, mode)
    found = os.fstat(fd)
    try:
        check_regular(path, found)
    except UnsafeFile:
        os.close(fd)
        raise
    return OpenFile(fd, found)


def open_unchecked(path: str, flags: int, mode: int = 0) -> int:
    """Open a file as `open_file` does; the caller checks that it is a regular one, with `check_regular`."""
    where, name = parent(path)
    try:
        return os.open(name, flags | _SAFE, mode, dir_fd=where.fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a FIFO that nobody reads, a socket
            raise _not_regular(path, status(path)) from error
        error.filename = path
        raise


def check_regular(path: str, found: os.stat_result) -> None:
    """Raise Refused for anything but a regular file."""
    if not stat.S_ISREG(found.st_mode):
        raise _not_regular(path, found)


def _not_regular(path: str, found: os.stat_result) -> UnsafeFile:
    number = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
    return UnsafeFile(number, f"{path} must be a regular file, got {kind_of(found)}")


def kind_of(found: os.stat_result) -> str:
    """Return what something is, for a message."""
    return _KINDS.get(stat.S_IFMT(found.st_mode), "a device")


def open_own(path: str, flags: int, mode: int = 0) -> OpenFile:
    """Open a regular file in order to change it: one with a second name may be somebody else's, and is refused."""
    opened = open_file(path, flags, mode)
    try:
        _check_single(path, opened.status)
    except OSError:
        os.close(opened.fd)
        raise
    return opened


def _check_single(path: str, found: os.stat_result) -> None:
    if found.st_nlink > 1:
        raise UnsafeFile(errno.EMLINK, f"{path} must be a file with one name, got one with {found.st_nlink}")


def read_note(path: str) -> bytes:
    """Return the content of a small file of ours."""
    fd, found = open_file(path, os.O_RDONLY)
    try:
        return os.read(fd, min(found.st_size, NOTE_BYTES_MAX))
    finally:
        os.close(fd)


def set_mode(path: str, mode: int, owner: Owner | None = None) -> None:
    """Change the mode, and the owner, of a regular file, a FIFO or a directory, and of nothing that has other names."""
    where, name = parent(path)
    fd = os.open(name, getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | _SAFE, dir_fd=where.fd)
    try:
        found = os.fstat(fd)
        if stat.S_IFMT(found.st_mode) not in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFDIR):
            raise UnsafeFile(errno.EINVAL, f"{path} must be a file of the queue, got {kind_of(found)}")
        if not stat.S_ISDIR(found.st_mode):
            _check_single(path, found)
        if owner is not None and owner.is_set:
            os.chown(_by_descriptor(fd), owner.uid, owner.gid)
        os.chmod(_by_descriptor(fd), mode)
    finally:
        os.close(fd)


def _by_descriptor(fd: int) -> int | str:
    """Return what chmod and chown take for a descriptor that was opened without the right to read."""
    return f"/proc/self/fd/{fd}" if hasattr(os, "O_PATH") else fd


def temporary_name() -> str:
    """Make a name for `tmp` that nobody else has; scanners never look there."""
    return f".{os.urandom(12).hex()}"


def move(source: str, target: str) -> None:
    """Rename, also where both names lead to one file already, which the system takes for nothing to do."""
    there = identity(target)
    if there is not None and there == identity(source):
        disk.unlink(source)
    else:
        disk.rename(source, target)


class Steps:
    """Changes of names that belong together: what they touched is synced once, at the end of the block.

    Targets go before sources, so that a name is never gone from the one before it is in the other, as far as this
    process decides it. Directories that the changes emptied are removed.
    """

    def __init__(self) -> None:
        # Dicts for their order.
        self._targets: dict[str, None] = {}
        self._sources: dict[str, None] = {}
        self._others: dict[str, None] = {}
        self._emptied: dict[str, None] = {}

    def move(self, source: str, target: str) -> None:
        """Rename between two directories."""
        disk.rename(source, target)
        self._targets[os.path.dirname(target)] = None
        self._sources[os.path.dirname(source)] = None

    def remove(self, path: str) -> None:
        """Take a name away."""
        disk.unlink(path)
        self._sources[os.path.dirname(path)] = None

    def lead(self, directory: str) -> None:
        """Sync this one with the targets: a directory in it, which is one of them, may be new."""
        self._targets[directory] = None

    def touch(self, directory: str) -> None:
        """Sync this one, too: an earlier change in it must be on the disk with these."""
        self._others[directory] = None

    def empty(self, directory: str) -> None:
        """Remove this one at the end, if nothing is left in it."""
        self._emptied[directory] = None

    def __enter__(self) -> Steps:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What was passed through, into it and out again, goes with the sources.
        ends = [directory for directory in self._targets if directory not in self._sources]
        for directory in dict.fromkeys((*ends, *self._sources, *self._others)):
            _sync_or_parent(directory)
        for directory in self._emptied:
            with contextlib.suppress(OSError):
                disk.remove_directory(directory)


def _sync_or_parent(directory: str) -> None:
    """Sync a directory; of one that somebody has removed since, being empty, that it is gone."""
    try:
        disk.sync_directory(directory)
    except FileNotFoundError:
        disk.sync_directory(os.path.dirname(directory))
