"""The names of a queue, oldest first, in little memory.

One pass over the directory collects the names in sorted runs. A run is packed: a million names take some ten megabytes
so, where a list of them takes more than a hundred. Names that can't be packed well, with long arguments or random ones,
go into a file without a name. Walking through the snapshot merges the runs.

Rows are compared as text: `time/entropy/name/host`, the entropy with leading zeros, so that a process's tenth item of
a second comes after its second one. None of the parts can hold a `/`, and no name a NUL.
"""

from __future__ import annotations

import heapq
import os
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.fsq import files

RUN_ROWS = 16_384  # rows sorted at a time: few enough to be small, many enough that there are few runs to merge
BLOCK_ROWS = 256  # rows unpacked at a time, of each run
ENTROPY_DIGITS = 10
PACK_LEVEL = 1  # names are alike, so the fastest packs them well enough
HELD_BYTES_MAX = 12 << 20  # packed names in memory: with the interpreter and a run, far below 50 MB


def row(name: str, host: str = "") -> str:
    """Make a text that sorts as the item should be run."""
    fields = name[1:].split(name[0], 2) if name else [""]
    entropy = fields[1] if len(fields) > 1 else ""
    return f"{fields[0]}/{entropy.rjust(ENTROPY_DIGITS, '0')}/{name}/{host}"


def parts(text: str) -> tuple[str, str]:
    """Return the name and the host of a row."""
    _, _, name, host = text.split("/")
    return name, host


class _Extent(NamedTuple):
    """Where a block is in the file."""

    at: int
    length: int


class _Blocks:
    """Packed rows: the first ones in memory, the others in a file that nobody else can open."""

    def __init__(self) -> None:
        self._room = HELD_BYTES_MAX
        self._fd: int | None = None
        self._end = 0

    def put(self, rows: list[str]) -> bytes | _Extent:
        """Pack some rows; return what `get` takes."""
        block = zlib.compress("\0".join(rows).encode("utf-8", "surrogateescape"), PACK_LEVEL)
        if len(block) > self._room:
            try:
                return self._written(block)
            except OSError:
                pass  # there is no room for it elsewhere either
        self._room -= len(block)
        return block

    def _written(self, block: bytes) -> _Extent:
        if self._fd is None:
            self._fd, path = tempfile.mkstemp()
            weakref.finalize(self, os.close, self._fd)
            os.unlink(path)
        if os.pwrite(self._fd, block, self._end) < len(block):
            raise OSError("the disk is full")
        place = _Extent(self._end, len(block))
        self._end += len(block)
        return place

    def get(self, block: bytes | _Extent) -> list[str]:
        """Return the rows again."""
        if isinstance(block, _Extent):
            assert self._fd is not None
            block = os.pread(self._fd, block.length, block.at)
        return zlib.decompress(block).decode("utf-8", "surrogateescape").split("\0")

    def rows(self, run: list[bytes | _Extent]) -> Iterator[str]:
        """Return the rows of many blocks."""
        for block in run:
            yield from self.get(block)


class ItemSnapshot:
    """The items that are there now. Iterating yields (name, host); the host is empty for the queue's own items."""

    def __init__(self, directories: Iterable[tuple[str, str]]) -> None:
        """Read the names of directories, each given as (path, host)."""
        self.count = 0
        self._blocks = _Blocks()
        self._runs: list[list[bytes | _Extent]] = []
        rows: list[str] = []
        for where, host in directories:
            with files.entries(where) as entries:
                for entry in entries:
                    rows.append(row(entry.name, host))
                    if len(rows) == RUN_ROWS:
                        self._keep(rows)
                        rows = []
        self.count += len(rows)
        rows.sort()
        self._last = rows

    def _keep(self, rows: list[str]) -> None:
        self.count += len(rows)
        rows.sort()
        pieces = (rows[at : at + BLOCK_ROWS] for at in range(0, len(rows), BLOCK_ROWS))
        self._runs.append([self._blocks.put(piece) for piece in pieces])

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return map(parts, heapq.merge(*map(self._blocks.rows, self._runs), self._last))
