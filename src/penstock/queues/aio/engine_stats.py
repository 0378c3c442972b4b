"""Statistics that a store without a server keeps beside its jobs."""

from collections.abc import Mapping
from typing import Any

from penstock.queues.aio.stats.base import COUNTERS, Stats
from penstock.queues.aio.threaded import EngineDriver
from penstock.queues.stores.engine import Statistics


class EngineStats(Stats):
    """Each call goes to where the engine's calls go."""

    def __init__(self, driver: EngineDriver, statistics: Statistics) -> None:
        self._driver = driver
        self._statistics = statistics

    async def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        await self._driver.run(self._statistics.add, counts)

    async def counters(self, queue: str) -> dict[str, int]:
        return {**dict.fromkeys(COUNTERS, 0), **await self._driver.run(self._statistics.counters, queue)}

    async def register(self, queue: str, options: Mapping[str, Any]) -> None:
        await self._driver.run(self._statistics.register, queue, options)

    async def options(self, queue: str) -> dict[str, Any]:
        return await self._driver.run(self._statistics.options, queue)

    async def queues(self) -> list[str]:
        return await self._driver.run(self._statistics.queues)

    async def paused(self, queue: str) -> bool:
        return await self._driver.run(self._statistics.paused, queue)

    async def set_paused(self, queue: str, paused: bool) -> None:
        await self._driver.run(self._statistics.set_paused, queue, paused)
