"""Takes jobs out of a queue for its fetchers, unless it is paused, and returns those that no caller was given.

The limit on tries is checked here: a job whose worker died during its last try goes to the dead letters instead of to a
worker.
"""

import time
from typing import TYPE_CHECKING

from penstock.errors import ConnectionLost
from penstock.job import Lease, StoredJob
from penstock.queues.aio.counters import Counters
from penstock.queues.aio.dead_letters import DeadLetters
from penstock.queues.aio.driver import Driver
from penstock.queues.aio.services import Channel, Services
from penstock.queues.aio.signal import SignalListener

if TYPE_CHECKING:
    from penstock.queues.aio.store import Store

UNHEARD_S = 0.5  # how long a pause may go unnoticed by a caller that takes jobs without listening to signals


class Pause:
    """Whether a queue is paused: as its signals say, or as it was read within the last poll interval."""

    def __init__(self, driver: Driver, services: Services, queue: str, listener: SignalListener, poll_s: float) -> None:
        self._driver = driver
        self._services = services
        self._queue = queue
        self._listener = listener
        self._poll_s = poll_s
        self._known: bool | None = None  # None: not known
        self._known_since = 0.0
        self._known_last: bool | None = None  # what was known last, whether it still holds or not

    def know(self, paused: bool | None) -> None:
        """Take what was heard or read; None: something may have been missed."""
        self._known = paused
        if paused is not None:
            self._known_last = paused
            self._known_since = time.monotonic()

    async def read(self) -> bool:
        """Whether the queue is paused, read from the store."""
        if self._driver.pauses_itself:
            return await self._driver.paused(self._queue)
        await self._services.open()
        paused = await self._services.stats.paused(self._queue)
        self.know(paused)
        return paused

    async def holds_back(self) -> bool:
        """Whether no job may be taken now; False where the store itself holds back the jobs of a paused queue."""
        if self._driver.pauses_itself:
            return False
        if self._known is not None:
            age_s = time.monotonic() - self._known_since
            if age_s < min(self._poll_s, UNHEARD_S) or (age_s < self._poll_s and self._listener.is_listening):
                return self._known
        try:
            return await self.read()
        except ConnectionLost:
            # Statistics on another server that is away don't hold up jobs: what was known last holds.
            if self._services.stats_are_own or self._known_last is None:
                raise
            self.know(self._known_last)
            return self._known_last


class Taker:
    """Takes jobs of one queue. `lease_ms` None pops, any other value reserves."""

    def __init__(
        self,
        store: "Store",
        queue: str,
        counters: Counters,
        channel: Channel,
        pause: Pause,
        dead_letters: DeadLetters,
    ) -> None:
        self._store = store
        self.driver = store._driver  # for what is known of it without a call
        self.pause = pause
        self._queue = queue
        self._counters = counters
        self._channel = channel
        self._dead_letters = dead_letters

    async def take(self, lease_ms: int | None, count: int, wait_ms: int, begin: int | None) -> list[StoredJob]:
        """Return up to `count` jobs; a store that can wait on the server does so for `wait_ms`."""
        if lease_ms is None:
            jobs = await self._store._open_driver.pop(self._queue, count, wait_ms)
            self._counters.count(self._queue, "get", len(jobs))
            return jobs
        kept: list[StoredJob] = []
        while True:
            rest = None if begin is None else max(0, begin - len(kept))
            jobs = await self._store._open_driver.reserve(self._queue, count - len(kept), lease_ms, wait_ms, rest)
            self._counters.count(self._queue, "reserve", len(jobs))
            if self._dead_letters.limit is None:
                return jobs
            able = await self._dead_letters.reject_exhausted(jobs)
            kept += able
            # Jobs that were rejected must not hide those behind them from a caller that has no time.
            if len(able) == len(jobs) or len(kept) >= count:
                return kept
            wait_ms = 0 if kept else wait_ms

    async def return_unseen(self, lease_ms: int | None, jobs: list[StoredJob]) -> None:
        """Undo `take` for jobs that no caller has seen: no try is counted."""
        if lease_ms is None:
            await self._store._open_driver.put_back(self._queue, jobs)
            self._counters.count(self._queue, "get", -len(jobs))
        else:
            await self._store._open_driver.release(self._queue, [Lease(job.id, job.token) for job in jobs])
            self._counters.count(self._queue, "reserve", -len(jobs))
        await self._channel.announce()

    async def seconds_to_next(self) -> float | None:
        """Return how long it takes until the next job is ready; None if none is, or the queue is paused."""
        # A store that pauses by itself returns nothing now, whatever is ready.
        if await (self.pause.read() if self.driver.pauses_itself else self.pause.holds_back()):
            return None
        next_ms = await self.driver.next_mature_ms(self._queue)
        return None if next_ms is None else max(0.0, (next_ms - await self.driver.now_ms()) / 1000)
