# Written by scripts/blocking from ../aio/engine_stats.py: change that, then run `make blocking`.
"""Statistics that a store without a server keeps beside its jobs."""

from collections.abc import Mapping
from typing import Any

from penstock.queues.blocking.stats.base import COUNTERS, Stats
from penstock.queues.blocking.threaded import EngineDriver
from penstock.queues.stores.engine import Statistics


class EngineStats(Stats):
    """Each call goes to where the engine's calls go."""

    def __init__(self, driver: EngineDriver, statistics: Statistics) -> None:
        self._driver = driver
        self._statistics = statistics

    def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        self._driver.run(self._statistics.add, counts)

    def counters(self, queue: str) -> dict[str, int]:
        return {**dict.fromkeys(COUNTERS, 0), **self._driver.run(self._statistics.counters, queue)}

    def register(self, queue: str, options: Mapping[str, Any]) -> None:
        self._driver.run(self._statistics.register, queue, options)

    def options(self, queue: str) -> dict[str, Any]:
        return self._driver.run(self._statistics.options, queue)

    def queues(self) -> list[str]:
        return self._driver.run(self._statistics.queues)

    def paused(self, queue: str) -> bool:
        return self._driver.run(self._statistics.paused, queue)

    def set_paused(self, queue: str, paused: bool) -> None:
        self._driver.run(self._statistics.set_paused, queue, paused)
