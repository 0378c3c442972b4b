"""Directories that are read again only when it pays: the waiting names of a queue must not be listed for each job.

A listing is trusted as long as the directory's time of change is the same, and was some time ago when it was listed (a
change right after might have the same time). A listing that can't be trusted is still used for a while: fifty times as
long as it took to make, so that listing costs no more than a fiftieth of the time. Only a caller that would
otherwise get nothing makes sure.
"""

import heapq
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.fsq.directory import directory
from penstock.fsq.reserved import listed
from penstock.fsq.snapshot import ItemSnapshot, parts, row

SETTLED_NS = 2_000_000_000  # some file systems keep whole seconds
TRUST_S = 10.0  # at most: a file server whose clock is behind may hide a change
WORTH = 50  # a listing is used for this many times the time that it took to make


class Freshness:
    """Whether a directory must be listed again."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._seen: int | None = None  # the time of change that can be trusted
        self._made_s = float("-inf")
        self._cost_s = 0.0

    def is_over(self, must_know: bool) -> bool:
        """Whether it is time to list."""
        age_s = time.monotonic() - self._made_s
        is_worth = age_s >= WORTH * self._cost_s
        if not must_know and not is_worth:
            return False
        return self._seen is None or self._seen != self._changed() or (is_worth and age_s >= TRUST_S)

    def _changed(self) -> int:
        try:
            return os.fstat(directory(self._directory).fd).st_mtime_ns
        except FileNotFoundError:
            return -1

    @contextmanager
    def listing(self) -> Iterator[None]:
        """Within this, the directory is listed."""
        changed, now, began_s = self._changed(), time.time_ns(), time.monotonic()
        yield
        self._made_s = time.monotonic()
        self._cost_s = self._made_s - began_s
        self._seen = changed if changed + SETTLED_NS < now else None


class Listing:
    """The names in a directory that is not very large."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._freshness = Freshness(directory)
        self._names: list[str] = []

    def names(self, must_know: bool) -> list[str]:
        """The names that are there; some may be gone, and unless it must be known, new ones may be missing."""
        if self._freshness.is_over(must_know):
            with self._freshness.listing():
                self._names = listed(self.directory)
        return self._names


class ReadyNames:
    """The names of waiting items, oldest first. Each is given once, until the directory is listed again.

    Names that this process has put back are known without that, so that they come in their turn.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._freshness = Freshness(directory)
        self._names: Iterator[str] = iter(())
        self._next: str | None = None  # the row of the next name of the listing
        self._back: list[str] = []  # rows, a heap
        self.locked: set[str] = set()  # names that somebody else worked on

    def begin(self) -> None:
        """List again if that is worth it."""
        if self._freshness.is_over(must_know=False):
            self._list()

    def renew(self) -> None:
        """The names are used up: list again if there may be others."""
        if self._freshness.is_over(must_know=True):
            self._list()

    def _list(self) -> None:
        try:
            with self._freshness.listing():
                snapshot = ItemSnapshot([(self._directory, "")])
        except FileNotFoundError:
            self._names, self._next = iter(()), None
        else:
            self._names = (name for name, _ in snapshot)
            self._step()
        self._back.clear()

    def _step(self) -> None:
        name = next(self._names, None)
        self._next = None if name is None else row(name)

    def put(self, name: str) -> None:
        """An item came back."""
        heapq.heappush(self._back, row(name))

    def first_free(self) -> str | None:
        """The next name that nobody was seen to work on; it stays the next."""
        passed = []
        while (name := self.pop()) is not None:
            passed.append(name)
            if name not in self.locked:
                break
        for one in passed:
            self.put(one)
        return name

    def pop(self) -> str | None:
        """The next name."""
        if self._back and (self._next is None or self._back[0] < self._next):
            return parts(heapq.heappop(self._back))[0]
        if self._next is None:
            return None
        name = parts(self._next)[0]
        self._step()
        return name
