"""Two books, held against each other: the orders that were acknowledged to producers, and the rows at the other end.

Nothing is lost if each acknowledged order has a row. It may have several, since everything on the way is done at least
once; how a duplicate came about can be read from the rows themselves, by which of their ids differ.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

# What differs between the rows of one order -> how that came about.
CAUSES = {
    "pushed again": "the answer to a push was lost with the node, so its producer pushed once more",
    "worked again": "a worker's result or its ack was cut off with the node, so the order was worked on once more",
    "written again": "a result was delivered once more by another node, since the dead one could not say who had it",
}


class Row(NamedTuple):
    """What arrived for an order."""

    order: int
    job: str  # the id of the order's job
    result: str  # the id of the job that its worker made


class Balance(NamedTuple):
    """What the books say."""

    lost: list[int]  # acknowledged, and no row
    unknown: list[int]  # a row, and no producer knows of it
    orders: int  # that have a row
    duplicates: dict[str, int]  # by cause

    @property
    def is_good(self) -> bool:
        """Whether everything is there, and nothing else."""
        return not self.lost and not self.unknown


def balance(acknowledged: Collection[int], pushed: Collection[int], rows: Iterable[Row]) -> Balance:
    """Hold rows against what producers know."""
    jobs: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        jobs[row.order][row.job].append(row.result)
    results = [ids for by_job in jobs.values() for ids in by_job.values()]
    duplicates = {
        "pushed again": sum(len(by_job) - 1 for by_job in jobs.values()),
        "worked again": sum(len(set(ids)) - 1 for ids in results),
        "written again": sum(len(ids) - len(set(ids)) for ids in results),
    }
    lost = sorted(order for order in acknowledged if order not in jobs)
    return Balance(lost, sorted(jobs.keys() - set(pushed)), len(jobs), duplicates)


class Meter:
    """How fast something grows, from when it was last nothing until it last grew."""

    def __init__(self) -> None:
        self.count = 0
        self._began = self._grown = time.monotonic()

    def note(self, count: int) -> None:
        """The count as it is now."""
        now = time.monotonic()
        if not count:
            self._began = now
        if count != self.count:
            self._grown = now
        self.count = count

    @property
    def seconds(self) -> float:
        """How long it has grown."""
        return max(0.0, self._grown - self._began)

    @property
    def rate(self) -> float:
        """A second."""
        return self.count / self.seconds if self.seconds else 0.0
