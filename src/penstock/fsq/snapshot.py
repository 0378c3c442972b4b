"""The names of a queue, oldest first, in little memory.

One pass over the directory collects the names in sorted runs. A run is packed: a million names take some ten
megabytes so, where a list of them takes more than a hundred. Walking through the snapshot merges the runs.

Rows are compared as text: `time/entropy/name/host`, the entropy with leading zeros, so that a process's tenth item of
a second comes after its second one. None of the parts can hold a `/`, and no name a NUL.
"""

from __future__ import annotations

import heapq
import os
import zlib
from collections.abc import Iterable, Iterator

RUN_ROWS = 32_768  # rows sorted at a time: few enough to be small, many enough that there are few runs to merge
BLOCK_ROWS = 512  # rows unpacked at a time, of each run
ENTROPY_DIGITS = 10
PACK_LEVEL = 1  # names are alike, so the fastest packs them well enough


def row(name: str, host: str = "") -> str:
    """Make a text that sorts as the item should be run."""
    fields = name[1:].split(name[0], 2) if name else [""]
    entropy = fields[1] if len(fields) > 1 else ""
    return f"{fields[0]}/{entropy.rjust(ENTROPY_DIGITS, '0')}/{name}/{host}"


def parts(text: str) -> tuple[str, str]:
    """Give the name and the host of a row."""
    _, _, name, host = text.split("/")
    return name, host


class Snapshot:
    """The items that are there now. Iterating gives (name, host); the host is empty for the queue's own items."""

    def __init__(self, directories: Iterable[tuple[str, str]]) -> None:
        """Read the names of directories, each given as (path, host)."""
        self.count = 0
        self._runs: list[list[bytes]] = []
        rows: list[str] = []
        for where, host in directories:
            with os.scandir(where) as entries:
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
        self._runs.append(
            [
                zlib.compress("\0".join(rows[at : at + BLOCK_ROWS]).encode("utf-8", "surrogateescape"), PACK_LEVEL)
                for at in range(0, len(rows), BLOCK_ROWS)
            ]
        )

    def __iter__(self) -> Iterator[tuple[str, str]]:
        if not self._runs:
            return map(parts, self._last)
        return map(parts, heapq.merge(*map(_unpacked, self._runs), self._last))


def _unpacked(blocks: list[bytes]) -> Iterator[str]:
    for block in blocks:
        yield from zlib.decompress(block).decode("utf-8", "surrogateescape").split("\0")
