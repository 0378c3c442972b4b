"""Jobs out of a queue.

Callers that wait are served by a pump for each way of taking (`fetching`). The limit on tries is looked at here, too: a
job whose worker died during its last try goes to the dead letters instead of to a worker.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import overload

from penstock.errors import CallerError
from penstock.job import Consumer, Lease, StoredJob
from penstock.queues.aio.ending import Ending
from penstock.queues.aio.fetching import Fetcher
from penstock.queues.aio.job import Job
from penstock.queues.capabilities import Capability
from penstock.queues.options import checked_lease
from penstock.queues.push import Duration, is_number, milliseconds, plain_seconds


class Taking(Ending):
    """`pop`, `reserve` and their kin."""

    @overload
    async def pop(self, timeout: None = None, *, waiter: object = None, consumer: str | None = None) -> Job: ...
    @overload
    async def pop(self, timeout: Duration, *, waiter: object = None, consumer: str | None = None) -> Job | None: ...
    async def pop(
        self, timeout: Duration | None = None, *, waiter: object = None, consumer: str | None = None
    ) -> Job | None:
        """Take a job out of the store: at most once. None when the time (seconds; None for ever) is over."""
        jobs = await self.pop_many(1, timeout, waiter=waiter, consumer=consumer)
        return jobs[0] if jobs else None

    async def pop_many(
        self,
        count: int,
        timeout: Duration | None = 0,
        *,
        waiter: object = None,
        consumer: str | None = None,
    ) -> list[Job]:
        """Take one to `count` jobs; none when the time is over."""
        return [Job(self, stored) for stored in await self._fetch(None, count, timeout, waiter, consumer)]

    @overload
    async def reserve(
        self,
        timeout: None = None,
        *,
        lease: Duration | None = None,
        waiter: object = None,
        consumer: str | None = None,
    ) -> Job: ...
    @overload
    async def reserve(
        self,
        timeout: Duration,
        *,
        lease: Duration | None = None,
        waiter: object = None,
        consumer: str | None = None,
    ) -> Job | None: ...
    async def reserve(
        self,
        timeout: Duration | None = None,
        *,
        lease: Duration | None = None,
        waiter: object = None,
        consumer: str | None = None,
    ) -> Job | None:
        """Lease a job: it comes back when the lease ends before `ack`. None when the time is over."""
        jobs = await self.reserve_many(1, timeout, lease=lease, waiter=waiter, consumer=consumer)
        return jobs[0] if jobs else None

    async def reserve_many(
        self,
        count: int,
        timeout: Duration | None = 0,
        *,
        lease: Duration | None = None,
        waiter: object = None,
        consumer: str | None = None,
        begin: int | None = None,
    ) -> list[Job]:
        """Lease one to `count` jobs; none when the time is over.

        Each is a try: the delivery counts, also if the lease runs out. With `begin`, only the first ones count from now
        on, and of these only jobs that don't come back from a lease that ran out: `job.has_begun` says which. The
        others count from when `extend_many` or `ack_many` says that work on them has begun.
        """
        self._require(Capability.RESERVE)
        seconds = self.lease if lease is None else checked_lease(lease)
        stored = await self._fetch(milliseconds("lease", seconds), count, timeout, waiter, consumer, begin)
        return [Job(self, one, seconds) for one in stored]

    @asynccontextmanager
    async def reserving(
        self,
        timeout: Duration | None = None,
        *,
        lease: Duration | None = None,
    ) -> AsyncIterator[Job | None]:
        """Reserve a job for a block: acked when it ends, given back when it raises. None when the time is over."""
        job = await self.reserve(timeout, lease=lease)
        if job is None:
            yield None
            return
        async with job:
            yield job

    async def _fetch(
        self,
        lease_ms: int | None,
        count: int,
        timeout: Duration | None,
        waiter: object,
        consumer: str | None,
        begin: int | None = None,
    ) -> list[StoredJob]:
        if count < 1:
            raise CallerError(f"count={count}: ask for at least one job")
        wait_s = None if timeout is None else _wait_seconds(timeout)
        self._check_not_drained()
        await self._register()
        way = lease_ms, begin is None
        fetcher = self._fetchers.get(way)
        if fetcher is None:
            fetcher = self._fetchers[way] = Fetcher(_Way(self, lease_ms), self._ear)
        return await fetcher.get(count, wait_s, waiter, consumer, begin)

    async def _take(self, lease_ms: int | None, count: int, wait_ms: int, begin: int | None) -> list[StoredJob]:
        if lease_ms is None:
            jobs = await self._driver.pop(self.name, count, wait_ms)
            self.store._counting_of(self.name).count(self.name, "get", len(jobs))
            return jobs
        kept: list[StoredJob] = []
        while True:
            rest = None if begin is None else max(0, begin - len(kept))
            jobs = await self._driver.reserve(self.name, count - len(kept), lease_ms, wait_ms, rest)
            self.store._counting_of(self.name).count(self.name, "reserve", len(jobs))
            able = await self._bury_spent(jobs)
            kept += able
            # Jobs that were given up must not hide those behind them from a caller that has no time.
            if len(able) == len(jobs) or len(kept) >= count:
                return kept
            wait_ms = 0 if kept else wait_ms

    async def _untake(self, lease_ms: int | None, jobs: list[StoredJob]) -> None:
        """Give back what nobody was given."""
        if lease_ms is None:
            await self._driver.put_back(self.name, jobs)
            self.store._counting_of(self.name).count(self.name, "get", -len(jobs))
        else:
            await self._driver.release(self.name, [Lease(job.id, job.token) for job in jobs])
            self.store._counting_of(self.name).count(self.name, "reserve", -len(jobs))
        await self._tell(0)

    async def release_many(self, jobs: Iterable[Job]) -> None:
        """Give back jobs that were reserved and not begun: they are ready at once, and no try is counted."""
        self._require(Capability.RESERVE)
        stored = [job.stored for job in jobs]
        for begin in range(0, len(stored), self._driver.batch_max):
            await self._untake(0, stored[begin : begin + self._driver.batch_max])

    @property
    def waiters(self) -> int:
        """How many callers wait for jobs of this object."""
        return sum(fetcher.waiting for fetcher in self._fetchers.values())

    def consumers(self) -> list[Consumer]:
        """The callers that wait for jobs of this object, each with the `consumer` label that it gave."""
        return [
            consumer
            for (lease_ms, _), fetcher in self._fetchers.items()
            for consumer in fetcher.consumers(lease_ms is not None)
        ]

    def cancel(self, waiter: object = None) -> int:
        """End waits with WaitCancelled: those that were given this `waiter`, or all. Gives how many."""
        return sum(fetcher.cancel(waiter) for fetcher in self._fetchers.values())


def _wait_seconds(timeout: Duration) -> float:
    value = plain_seconds(timeout)
    if not is_number(value) or not value >= 0:
        raise CallerError(f"timeout must be 0 or more seconds, or None to wait without limit, got {timeout!r}")
    return value


class _Way:
    """One way of taking jobs out of a queue, as a fetcher needs it."""

    def __init__(self, queue: Taking, lease_ms: int | None) -> None:
        self._queue = queue
        self._lease_ms = lease_ms
        driver = queue.store.driver
        self.batch_max = driver.batch_max
        self.can_wait = driver.can_wait
        self.poll_s = queue.poll_s
        self.watch_s = driver.watch_s
        self._version: int | None = None

    async def fetch(self, count: int, wait_ms: int, begin: int | None) -> list[StoredJob]:
        return await self._queue._take(self._lease_ms, count, wait_ms, begin)

    async def give_back(self, jobs: list[StoredJob]) -> None:
        await self._queue._untake(self._lease_ms, jobs)

    async def seconds_to_next(self) -> float | None:
        driver = self._queue.store.driver
        # A store that pauses by itself gives nothing now, however ready it is.
        if await (self._queue.paused() if driver.pauses_itself else self._queue._is_paused()):
            return None
        next_ms = await driver.next_mature_ms(self._queue.name)
        return None if next_ms is None else max(0.0, (next_ms - await driver.now_ms()) / 1000)

    async def has_news(self) -> bool:
        version = await self._queue.store.driver.version()
        is_new, self._version = version != self._version, version
        if is_new:
            self._queue._heard("")
        return is_new

    async def is_paused(self) -> bool:
        return await self._queue._is_paused()
