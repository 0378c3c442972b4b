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
import os
from types import TracebackType

from penstock.fsq.constants import number_of
from penstock.fsq.owners import Owner

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class Disk:
    """The real one."""

    def create(self, path: str, mode: int) -> int:
        """Make a file that must not be there yet, and give its descriptor; the umask applies."""
        return os.open(path, CREATE, mode)

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
        """Let go of a file."""
        os.close(fd)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name, which must not be there yet."""
        os.link(source, target, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        """Take a name away."""
        os.unlink(path)

    def rename(self, source: str, target: str) -> None:
        """Change a file's name; a file that has the new name is replaced."""
        os.rename(source, target)

    def make_directory(self, path: str, mode: int) -> None:
        """Make a directory that must not be there yet, with exactly this mode."""
        os.mkdir(path, 0o700)
        os.chmod(path, mode)

    def remove_directory(self, path: str) -> None:
        """Remove a directory that is empty."""
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        """Return when the names in a directory are on the disk."""
        if not number_of("FSQ_SYNC"):
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


disk = Disk()


def own(fd: int, owner: Owner) -> None:
    """Change a file's owner where one is asked for."""
    if owner.is_set:
        os.fchown(fd, owner.uid, owner.gid)


def remove_if_there(path: str) -> bool:
    """Take a name away; tell whether it was there."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return False
    return True


def identity(path: str) -> tuple[int, int] | None:
    """Tell which file a path leads to, links not followed; nothing if to none."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


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
