"""Statistics: counters, the pause flag and the options of every queue in one namespace; also the list of known queues.

This is the contract, and the statistics within this process. Stores may keep their own beside the jobs.

Counters are stored under Keuss' names, so that Node and Python share them; people see the verbs of the API:

| stored     | shown       | counts jobs that                                                            |
|------------|-------------|-----------------------------------------------------------------------------|
| put        | push        | came into the queue: pushed, given up elsewhere, or redriven                |
| get        | pop         | were popped                                                                 |
| reserve    | reserve     | were leased, each delivery once                                             |
| commit     | ack         | were acknowledged                                                           |
| rollback   | nack        | went back to the queue                                                      |
| deadletter | dead_letter | went to the dead letters                                                    |
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.queues.process_stats import ProcessStats, process_stats

SHOWN = {
    "put": "push",
    "get": "pop",
    "reserve": "reserve",
    "commit": "ack",
    "rollback": "nack",
    "deadletter": "dead_letter",
}
COUNTERS = tuple(SHOWN)


def shown(counters: Mapping[str, int]) -> dict[str, int]:
    """Return counters under the names that people see. Counters of other programs keep their names."""
    return {SHOWN.get(name, name): value for name, value in counters.items()}


class Stats:
    """The contract."""

    # The counters are in this process, so that `count` adds to them at once.
    is_local: ClassVar[bool] = False

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """Disconnect."""

    async def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Add to counters: queue -> counter -> how much. One round trip for all of them."""
        raise NotImplementedError

    def count(self, queue: str, counter: str, much: int) -> None:
        """Add to one counter; only for statistics of this process."""
        raise NotImplementedError

    async def counters(self, queue: str) -> dict[str, int]:
        """Return the counters of a queue; those that were never used may be missing."""
        raise NotImplementedError

    async def register(self, queue: str, options: Mapping[str, Any]) -> None:
        """Make a queue known. Empty options leave those alone that are there."""
        raise NotImplementedError

    async def options(self, queue: str) -> dict[str, Any]:
        """Return the options that the queue was made known with."""
        raise NotImplementedError

    async def queues(self) -> list[str]:
        """Return the queues that are known in this namespace."""
        raise NotImplementedError

    async def paused(self, queue: str) -> bool:
        """Whether the queue is paused."""
        raise NotImplementedError

    async def set_paused(self, queue: str, paused: bool) -> None:
        """Pause or resume."""
        raise NotImplementedError


class MemoryStats(Stats):
    """Statistics within this process: stores of the same place and namespace share them."""

    is_local: ClassVar[bool] = True

    def __init__(self, place: str, namespace: str) -> None:
        self._kept: ProcessStats = process_stats(place, namespace)

    async def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        for queue, counters in counts.items():
            for counter, much in counters.items():
                self.count(queue, counter, much)

    def count(self, queue: str, counter: str, much: int) -> None:
        with self._kept.lock:
            self._kept.counters.setdefault(queue, Counter())[counter] += much

    async def counters(self, queue: str) -> dict[str, int]:
        return {**dict.fromkeys(COUNTERS, 0), **self._kept.counters.get(queue, {})}

    async def register(self, queue: str, options: Mapping[str, Any]) -> None:
        if options or queue not in self._kept.options:
            self._kept.options[queue] = dict(options)

    async def options(self, queue: str) -> dict[str, Any]:
        return dict(self._kept.options.get(queue, {}))

    async def queues(self) -> list[str]:
        return sorted(self._kept.options)

    async def paused(self, queue: str) -> bool:
        return queue in self._kept.paused

    async def set_paused(self, queue: str, paused: bool) -> None:
        (self._kept.paused.add if paused else self._kept.paused.discard)(queue)
