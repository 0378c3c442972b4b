"""Counters that the store doesn't write by itself are summed here, and written in one call every 100 ms.

A store that keeps its own statistics where its jobs are writes a counter along with what it counts (`Driver.counts`):
then nothing is done here, and the counters are exact. Otherwise (statistics on another server or in another slot of a
Redis Cluster, directories) a process that is killed loses what it counted within the last 100 ms. `close` writes the
rest.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from penstock.errors import PenstockError
from penstock.queues.aio.stats import Stats

FLUSH_S = 0.1
RETRY_S_MAX = 5.0  # between two attempts while the statistics can't be reached


class Counters:
    """The sums of one store that are not yet written."""

    def __init__(self, stats: Stats, counts: Callable[[str], bool] = lambda queue: False) -> None:
        """`counts` is whether the store itself counts what happens in a queue."""
        self._stats = stats
        self._counts = counts
        self.observer: Callable[[str, str, int], None] | None = None  # hears of all that is counted in this process
        self._sums: dict[str, dict[str, int]] = {}
        self._writer: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def count(self, queue: str, counter: str, by: int = 1) -> None:
        """Add to a counter, unless the store has done so by itself."""
        if self.observer is not None:
            self.observer(queue, counter, by)
        if not by or self._counts(queue):
            return
        if self._stats.is_local:
            self._stats.count(queue, counter, by)
            return
        self._add(queue, counter, by)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write())

    def _add(self, queue: str, counter: str, by: int) -> None:
        sums = self._sums.setdefault(queue, {})
        sums[counter] = sums.get(counter, 0) + by

    async def _write(self) -> None:
        """Write every 100 ms while there is something, and less often while the statistics can't be reached."""
        pause_s = FLUSH_S
        try:
            while self._sums and not self._closing.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._closing.wait()
                pause_s = FLUSH_S if await self._flush() else min(2 * pause_s, RETRY_S_MAX)
        finally:
            self._writer = None

    async def flush(self) -> None:
        """Write what there is."""
        await self._flush()

    async def _flush(self) -> bool:
        """Whether all was written. What can't be is kept for the next time: jobs matter more."""
        sums, self._sums = self._sums, {}
        if not sums:
            return True
        try:
            await self._stats.add(sums)
        except BaseException as problem:
            for queue, counters in sums.items():
                for counter, by in counters.items():
                    self._add(queue, counter, by)
            if not isinstance(problem, PenstockError | OSError):
                raise
            return False
        return True

    async def close(self) -> None:
        """Wait for what is being written, and write the rest."""
        self._closing.set()
        if self._writer is not None:
            await asyncio.wait([self._writer])
        await self.flush()
