# Written by scripts/blocking from ../aio/stats/memory.py: change that, then run `make blocking`.
"""Statistics within this process: stores of the same place and namespace share them."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.queues.blocking.stats.base import COUNTERS, Stats
from penstock.queues.shelf import Shelf, shelf


class MemoryStats(Stats):
    """Counters in a dict."""

    is_local: ClassVar[bool] = True

    def __init__(self, place: str, namespace: str) -> None:
        self._shelf: Shelf = shelf(place, namespace)

    def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        for queue, counters in counts.items():
            for counter, much in counters.items():
                self.count(queue, counter, much)

    def count(self, queue: str, counter: str, much: int) -> None:
        with self._shelf.lock:
            self._shelf.counters.setdefault(queue, Counter())[counter] += much

    def counters(self, queue: str) -> dict[str, int]:
        return {**dict.fromkeys(COUNTERS, 0), **self._shelf.counters.get(queue, {})}

    def register(self, queue: str, options: Mapping[str, Any]) -> None:
        if options or queue not in self._shelf.options:
            self._shelf.options[queue] = dict(options)

    def options(self, queue: str) -> dict[str, Any]:
        return dict(self._shelf.options.get(queue, {}))

    def queues(self) -> list[str]:
        return sorted(self._shelf.options)

    def paused(self, queue: str) -> bool:
        return queue in self._shelf.paused

    def set_paused(self, queue: str, paused: bool) -> None:
        (self._shelf.paused.add if paused else self._shelf.paused.discard)(queue)
