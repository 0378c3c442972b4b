"""The file port: what the journal needs of a disk, and the real disk behind it.

The simulator puts another one under the same journal code (`penstock.sim.disk`), which loses or tears what was not
synced. A name is a file in one directory.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from penstock.errors import JournalError

READ_BYTES = 16 * 1024  # the journal's parser copies the rest of a piece repeatedly: small pieces are faster
BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")


class File(Protocol):
    """An append-only file."""

    size: int

    def write(self, data: bytes) -> int:
        """Append; return how many bytes were written, or raise OSError if none were."""

    def sync(self) -> None:
        """Return when all that was written is on the disk."""

    def begin_sync(self) -> None:
        """Start a sync in the background."""

    def sync_done(self) -> bool:
        """Whether no background sync is under way; raise its error, once, if it failed."""

    def close(self) -> None:
        """Let go of the file."""


class Disk(Protocol):
    """One directory."""

    def read(self, name: str) -> Iterator[bytes]:
        """Return a file's bytes in pieces; FileNotFoundError if there is none."""

    def append(self, name: str, fresh: bool = False) -> File:
        """Open a file at its end; `fresh` empties it first."""

    def truncate(self, name: str, size: int) -> None:
        """Cut a file, and sync it."""

    def replace(self, name: str, by: str) -> None:
        """Put one file in the place of another, atomically and durably."""

    def remove(self, name: str) -> None:
        """Delete a file if it is there, durably."""

    def boot_id(self) -> bytes:
        """Name this run of the machine: while it stays the same, what was written can be read."""


class RealFile:
    """A file on a real disk. Background syncs run in a thread of their own: they can take seconds."""

    def __init__(self, path: Path, fresh: bool, syncer: ThreadPoolExecutor) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_TRUNC if fresh else 0)
        self._fd = os.open(path, flags, 0o644)
        self._syncer = syncer
        self._syncing: Future[None] | None = None
        self.size = os.fstat(self._fd).st_size

    def write(self, data: bytes) -> int:
        """Append; give how many bytes were taken."""
        written = os.write(self._fd, data)
        self.size += written
        return written

    def sync(self) -> None:
        """Return when all that was written is on the disk."""
        os.fdatasync(self._fd)

    def begin_sync(self) -> None:
        """Start a sync in the background."""
        if self._syncing is None:
            self._syncing = self._syncer.submit(os.fdatasync, self._fd)

    def sync_done(self) -> bool:
        """Whether no background sync is under way; raise its error if it failed."""
        if self._syncing is None:
            return True
        if not self._syncing.done():
            return False
        error = self._syncing.exception()
        self._syncing = None
        if error is not None:
            raise error
        return True

    def close(self) -> None:
        """Let go of the file, after a sync that is still under way."""
        if self._syncing is not None:
            self._syncing.exception()
        os.close(self._fd)


class RealDisk:
    """A real directory."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._syncer = ThreadPoolExecutor(1, "journal-sync")

    def read(self, name: str) -> Iterator[bytes]:
        """Return a file's bytes in pieces."""
        with (self._directory / name).open("rb") as file:
            while data := file.read(READ_BYTES):
                yield data

    def append(self, name: str, fresh: bool = False) -> RealFile:
        """Open a file at its end."""
        existed = (self._directory / name).exists()
        file = RealFile(self._directory / name, fresh, self._syncer)
        if not existed:
            self._sync_directory()
        return file

    def truncate(self, name: str, size: int) -> None:
        """Cut a file, and sync it."""
        with (self._directory / name).open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())

    def replace(self, name: str, by: str) -> None:
        """Put one file in the place of another."""
        (self._directory / by).replace(self._directory / name)
        self._sync_directory()

    def remove(self, name: str) -> None:
        """Delete a file if it is there."""
        (self._directory / name).unlink(missing_ok=True)
        self._sync_directory()

    def boot_id(self) -> bytes:
        """Name this run of the machine; empty where the system doesn't tell, which never equals another."""
        try:
            return BOOT_ID_PATH.read_bytes().strip()
        except OSError:
            return b""

    def _sync_directory(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def lock(path: str) -> int:
    """Take the lock of a journal for as long as this process lives; give the open file."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(fd, 32).decode("ascii", "replace").strip()
        os.close(fd)
        raise JournalError(
            f"{path} is locked by another node (process {owner or 'unknown'}). "
            "One directory serves one node: stop that one, or give this one its own --dir"
        ) from None
    os.ftruncate(fd, 0)
    os.write(fd, b"%d\n" % os.getpid())
    return fd
