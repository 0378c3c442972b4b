"""Empty directories of leases, kept for the next lease: to rename one costs far less than to remove and make one.

Only the process that filled a directory knows when it is empty, since no other one puts items into it. Items that were
ended elsewhere or brought back are not counted here: their directory is removed by whoever brings back what is due.
"""

import os
from contextlib import suppress

from penstock.fsq import files
from penstock.fsq.directory import parent
from penstock.fsq.reserved import ReservedArea

EMPTY_MAX = 256  # kept at most
FILLED_MAX = 10_000  # whose number of items is known; that of older ones is forgotten


class LeaseDirPool:
    """The directories of leases that this process has filled."""

    def __init__(self, area: ReservedArea) -> None:
        self._area = area
        self._left: dict[str, int] = {}
        self._empty: list[str] = []

    def make(self, lease: str) -> None:
        """Make the directory of a lease."""
        while self._empty:
            with suppress(OSError):  # its time was over, and another process has removed it
                files.disk.rename(self._empty.pop(), lease)
                return
        self._area.make(lease, is_safe=False)

    def filled(self, lease: str, count: int) -> None:
        """Note the number of items in a directory."""
        self._left[lease] = count
        while len(self._left) > FILLED_MAX:
            del self._left[next(iter(self._left))]

    def add(self, lease: str) -> None:
        """Make the directory unless it exists, and count one item more."""
        if lease in self._empty:
            self._empty.remove(lease)  # it must not be renamed for another lease now
        if not files.is_directory(lease):
            self.make(lease)
        self._left[lease] = self._left.get(lease, 0) + 1

    def emptied(self, lease: str) -> bool:
        """Count one item less; return whether the directory is one of ours, and need not be removed."""
        left = self._left.get(lease)
        if left is None:
            return False
        self._left[lease] = left - 1
        if left == 1:
            del self._left[lease]
            if len(self._empty) >= EMPTY_MAX:
                return False
            self._empty.append(lease)
        return True

    def close(self) -> None:
        """Remove what is kept."""
        for lease in self._empty:
            with suppress(OSError):
                where, name = parent(lease)
                os.rmdir(name, dir_fd=where.fd)
        self._empty.clear()
