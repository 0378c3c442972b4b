"""A disk that is soon full: a real one of a megabyte where one can be mounted, and the usual one that says so."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.fsq import directory, files
from penstock.fsq.files import FileSystem

BYTES = 1 << 20
FILES = 200
KINDS = ("mounted", "injected")


class SmallDisk(FileSystem):
    """Has room for a number of bytes and files."""

    def __init__(self) -> None:
        self._bytes = BYTES
        self._files = FILES

    def create(self, path: str, mode: int) -> int:
        if not self._files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        fd = super().create(path, mode)
        self._files -= 1
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> None:
        room = min(self._bytes, len(data))
        super().write(fd, memoryview(data)[:room])
        self._bytes -= room
        if room < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def unlink(self, path: str) -> None:
        status = os.lstat(path)
        super().unlink(path)
        if status.st_nlink == 1:
            self._files += 1
            self._bytes += status.st_size


@contextmanager
def mounted(where: Path) -> Iterator[None]:
    """A real file system; the test is skipped where none can be mounted."""
    words = ["mount", "-t", "tmpfs", "-o", f"size={BYTES},nr_inodes={FILES}", "tmpfs", str(where)]
    done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a small disk: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        directory.forget()
        subprocess.run(["umount", str(where)], check=True)


@contextmanager
def small_root(root: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory on a disk of a megabyte."""
    where = root / "small"
    where.mkdir()
    if kind == "injected":
        monkeypatch.setattr(files, "disk", SmallDisk())
        yield where
    else:
        with mounted(where):
            yield where
