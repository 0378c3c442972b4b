"""Empty directories of leases, kept for the next lease: to remove one and make one costs far more than to rename one.

Only who filled a directory knows when it is empty: nobody else puts items into it, and those that were ended elsewhere
or brought back are never counted off here; such a directory is removed by whoever looks after its time.
"""

import os
from contextlib import suppress

from penstock.fsq import files
from penstock.fsq.directory import parent
from penstock.fsq.reserved import ReservedArea

EMPTY_MAX = 256  # kept at most
FILLED_MAX = 10_000  # of which we know how many items are left; of those before it is forgotten


class Drawers:
    """The directories of leases that one process has filled."""

    def __init__(self, aside: ReservedArea) -> None:
        self._aside = aside
        self._left: dict[str, int] = {}
        self._empty: list[str] = []

    def make(self, lease: str) -> None:
        """Make the directory of a lease."""
        while self._empty:
            with suppress(OSError):  # it was over, and somebody has removed it
                files.disk.rename(self._empty.pop(), lease)
                return
        self._aside.make(lease, is_safe=False)

    def filled(self, lease: str, count: int) -> None:
        """So many items are in it now."""
        self._left[lease] = count
        while len(self._left) > FILLED_MAX:
            del self._left[next(iter(self._left))]

    def add(self, lease: str) -> None:
        """Make sure of a directory that is there or not, for one item more."""
        if lease in self._empty:
            self._empty.remove(lease)  # it must not be renamed for another lease now
        if not files.is_directory(lease):
            self.make(lease)
        self._left[lease] = self._left.get(lease, 0) + 1

    def emptied(self, lease: str) -> bool:
        """An item has gone from a directory; whether it is one of ours, and need not be removed."""
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
