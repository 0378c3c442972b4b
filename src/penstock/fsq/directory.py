"""Directories by descriptor: a user who may write into a queue can't lead others out of it.

A queue's directory is writable to its group. At any moment a member of the group may replace `done`, or anything else
below, by a link to a directory that only others may change. So a path is opened name by name from the root on, each
with O_NOFOLLOW and relative to the directory before it. Files are then reached by the descriptor of their directory
and their name (`dir_fd`), never by their path. What is accepted:

    FSQ_ROOT                             any directory, through links as well: it is the administrator's
    FSQ_ROOT/QUEUE                       a directory; or a link that belongs to root, to the owner of FSQ_ROOT or to us
    in it: tmp, queue, done, fail, hosts a directory that belongs to the owner of QUEUE, to root or to us
    hosts/HOST                           a directory; the row above holds for what is in it
    attempts, .penstock, and below       a directory: workers of any user of the group make these

An open directory is kept for the next call. Before it is used again, its path is looked up: a directory that was
removed, renamed or replaced since is opened again. Within a `Session` that is done once for each directory.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.fsq.constants import text_of
from penstock.fsq.errors import FSQPathError, UnsafeFile

KEPT_MAX = 128  # open directories: a queue has about ten, and a process may open 1024 files by default
# A descriptor to work in, which needs no right to list; where the system has none of this kind, one that does.
_PATH = getattr(os, "O_PATH", os.O_RDONLY)
_FOLLOW = _PATH | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN = _FOLLOW | os.O_NOFOLLOW
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Made by workers, who may be any user of the queue's group.
SIDE = ".penstock"
ATTEMPTS = "attempts"
_ANY_OWNER = frozenset({SIDE, ATTEMPTS})


class Directory:
    """An open directory. It is closed with the last reference to it, so nobody closes what another thread uses."""

    __slots__ = ("_close", "device", "fd", "inode", "is_base", "owner")

    def __init__(self, fd: int, is_base: bool) -> None:
        self.fd = fd
        self._close: Callable[[int], None] = os.close  # also when the interpreter ends
        status = os.fstat(fd)
        self.device, self.inode, self.owner = status.st_dev, status.st_ino, status.st_uid
        self.is_base = is_base  # the directory of a queue or of a host

    def __del__(self) -> None:
        self._close(self.fd)


_kept: dict[str, Directory] = {}


class _Local(threading.local):
    """What the session of this thread has looked up; None outside of one."""

    seen: dict[str, Directory] | None = None


_local = _Local()


class DirectorySession:
    """A block of one short operation, in which no directory is looked up twice. One within another is part of it."""

    __slots__ = ("_is_outer",)

    def __enter__(self) -> None:
        self._is_outer = _local.seen is None
        if self._is_outer:
            _local.seen = {}

    def __exit__(self, *problem: object) -> None:
        if self._is_outer:
            _local.seen = None


def directory(path: str) -> Directory:
    """Return a directory at or below FSQ_ROOT, open. OSError if it isn't there, Refused if it isn't acceptable."""
    seen = _local.seen
    return (None if seen is None else seen.get(path)) or current(path)


def current(path: str) -> Directory:
    """Return a directory as `directory` does, looked up in any case."""
    found = _kept.get(path)
    if found is None or not _is_at(found, path):
        changed(path)
        found = _opened(path)
    if _local.seen is not None:
        _local.seen[path] = found
    return found


def _is_at(found: Directory, path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False  # opening it says what is wrong
    if status.st_ino != found.inode or status.st_dev != found.device:
        return False
    found.owner = status.st_uid
    return True


def changed(path: str) -> None:
    """Look a directory up again, also in this session: another one, or none, may be there now."""
    if _local.seen is not None:
        _local.seen.pop(path, None)


def renamed(source: str, target: str) -> None:
    """Keep a directory under its new name; it is looked up there before it is used."""
    changed(source)
    changed(target)
    found = _kept.pop(source, None)
    if found is not None:
        _kept[target] = found


def parent(path: str) -> tuple[Directory, str]:
    """Return the directory of a path, open, and the last name of the path."""
    above, _, name = path.rpartition("/")
    return directory(above), name


def _opened(path: str) -> Directory:
    root = text_of("FSQ_ROOT").rstrip("/")
    if path.rstrip("/") == root:
        return _keep(path, Directory(os.open(path or "/", _FOLLOW), is_base=False))
    if not path.startswith(f"{root}/"):
        raise FSQPathError(errno.EINVAL, f"a directory of a queue must be below FSQ_ROOT ({root}), got {path}")
    names = path[len(root) :].strip("/").split("/")
    if ".." in names or "." in names:
        raise FSQPathError(errno.EINVAL, f"a path in a queue can't have . or .. in it, got {path}")
    above = directory(path.rpartition("/")[0])
    if len(names) == 1:
        return _keep(path, Directory(_open_queue(above, names[0], path), is_base=True))
    is_host = len(names) == 3 and names[1] == text_of("FSQ_HOSTS")
    found = Directory(_open_below(above, names[-1], path), is_base=is_host)
    if above.is_base and names[-1] not in _ANY_OWNER and found.owner not in (above.owner, 0, os.geteuid()):
        raise UnsafeFile(
            errno.EPERM, f"{path} must belong to the owner of the queue (uid {above.owner}), got uid {found.owner}"
        )
    return _keep(path, found)


def _open_below(above: Directory, name: str, path: str) -> int:
    try:
        return os.open(name, _OPEN, dir_fd=above.fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(above, name):
            raise UnsafeFile(errno.ELOOP, f"{path} must be a directory, got a link") from error
        error.filename = path
        raise


def _is_link(above: Directory, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=above.fd, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _open_queue(root: Directory, name: str, path: str) -> int:
    """Open the directory of a queue. A link is read by a descriptor of its own, so it can't be another one by then."""
    try:
        return _open_below(root, name, path)
    except OSError as error:
        if error.errno != errno.ELOOP or not hasattr(os, "O_PATH"):
            raise
    link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root.fd)
    try:
        owner = os.fstat(link).st_uid
        if owner not in (0, root.owner, os.geteuid()):
            raise UnsafeFile(errno.ELOOP, f"{path} must be a directory, or a link of root, got a link of uid {owner}")
        target = os.readlink("", dir_fd=link)
    finally:
        os.close(link)
    return os.open(target, _FOLLOW, dir_fd=root.fd)


def _keep(path: str, found: Directory) -> Directory:
    # Several threads may do this: each line is one step of the interpreter, and a path that is missing is opened again.
    if len(_kept) >= KEPT_MAX:
        for old in list(_kept)[: KEPT_MAX // 2]:
            _kept.pop(old, None)
    _kept[path] = found
    return found


def forget() -> None:
    """Close all directories that are kept and not in use."""
    _kept.clear()


# A child of fork may close every descriptor that it doesn't know.
os.register_at_fork(after_in_child=forget)


@contextmanager
def listing_of(path: str) -> Iterator[int]:
    """Open a directory for listing and syncing, with a position of its own."""
    fd = os.open(".", _LIST, dir_fd=directory(path).fd)
    try:
        yield fd
    finally:
        os.close(fd)
