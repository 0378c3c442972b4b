"""Counters are summed here, and go to the statistics in one call every 100 ms, as Keuss does it."""

import asyncio

from penstock.errors import PenstockError
from penstock.queues.aio.stats.base import Stats

FLUSH_S = 0.1


class Counting:
    """The sums of one store that are not yet written."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._sums: dict[str, dict[str, int]] = {}
        self._flushing: asyncio.Task[None] | None = None

    def count(self, queue: str, counter: str, much: int = 1) -> None:
        """Add to a counter, soon."""
        if not much:
            return
        self.note(queue, counter, much)
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush_later())

    def note(self, queue: str, counter: str, much: int = 1) -> None:
        """Add to a counter when others are written."""
        sums = self._sums.setdefault(queue, {})
        sums[counter] = sums.get(counter, 0) + much

    async def _flush_later(self) -> None:
        await asyncio.sleep(FLUSH_S)
        self._flushing = None
        await self.flush()

    async def flush(self) -> None:
        """Write what there is. Counters that can't be written are kept for the next time: jobs matter more."""
        sums, self._sums = self._sums, {}
        if not sums:
            return
        try:
            await self._stats.add(sums)
        except (PenstockError, OSError):
            for queue, counters in sums.items():
                mine = self._sums.setdefault(queue, {})
                for counter, much in counters.items():
                    mine[counter] = mine.get(counter, 0) + much

    async def close(self) -> None:
        """Write the rest."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        await self.flush()
