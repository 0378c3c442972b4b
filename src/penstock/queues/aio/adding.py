"""Jobs into a queue."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock.job import NewJob
from penstock.queues.aio.coalescing import Coalescer
from penstock.queues.aio.queue_base import QueueBase
from penstock.queues.capabilities import Capability
from penstock.queues.push import Duration, Push, new_job


class Adding(QueueBase):
    """`push` and its kin."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._pushes: Coalescer[NewJob, str] = Coalescer(self._push_now, self.store.driver.batch_max)

    async def push(
        self,
        payload: Any,
        *,
        delay: Duration = 0,
        mature: float | datetime | None = None,
        tries: int = 0,
        headers: Mapping[str, Any] | None = None,
        ttl: Duration | None = None,
        retry: Duration | None = None,
        replicate: int | None = None,
        unique: str | None = None,
        unique_for: Duration = 0,
        connection: Any = None,
    ) -> str:
        """Store a job; gives its id.

        Times are seconds or timedeltas; `mature` is a unix time, or a datetime that has a time zone.
        With `unique`, the id of the job that already has the key, if there is one, or was within `unique_for` seconds.
        With `connection`, within the transaction that is open there.
        """
        self._check_not_drained()
        job = self._new(Push(payload, delay, mature, tries, headers, ttl, retry, replicate, unique, unique_for))
        if connection is not None:
            return (await self._push_within(connection, [job]))[0]
        return await self._pushes.add(job)

    async def push_many(self, payloads: Iterable[Any], *, connection: Any = None, **options: Any) -> list[str]:
        """Store many jobs, 1,000 a round trip; gives their ids. A payload with options of its own is a `Push`."""
        self._check_not_drained()
        items = list(payloads)
        is_short = connection is None and not options and self.store.driver.takes_bodies
        if is_short and set(map(type, items)) <= {bytes}:
            return await self._push_bodies(items)
        jobs = [self._new(item if isinstance(item, Push) else Push(item, **options)) for item in items]
        if connection is not None:
            return await self._push_within(connection, jobs)
        ids: list[str] = []
        for begin in range(0, len(jobs), self._driver.batch_max):
            ids += await self._push_now(jobs[begin : begin + self._driver.batch_max])
        return ids

    async def _push_bodies(self, bodies: Sequence[bytes]) -> list[str]:
        """Without an object for each: that would cost more than all else."""
        ids: list[str] = []
        for begin in range(0, len(bodies), self._driver.batch_max):
            await self._register()
            added = await self._driver.push_bodies(self.name, bodies[begin : begin + self._driver.batch_max])
            self.store._counting_of(self.name).count(self.name, "put", len(added))
            await self._tell(0)
            ids += added
        return ids

    def _new(self, push: Push) -> NewJob:
        driver = self.store.driver
        job = new_job(push, self.codec, driver.capabilities, self.store.url)
        driver.prepare(job)
        return job

    async def _push_now(self, jobs: Sequence[NewJob]) -> list[str]:
        await self._register()
        ids = await self._driver.push(self.name, jobs, self._channel_of_store)
        added = _added(jobs, ids)
        self.store._counting_of(self.name).count(self.name, "put", len(added))
        if added and self._channel_of_store is None:
            await self._tell(min(job.delay_ms for job in added), [job.mature_ms for job in added])
        return ids

    async def _push_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[str]:
        # The caller's transaction may hold a lock that the store's own connection would wait for, so that one writes
        # nothing now: the queue is made known by its next user. What the store counts by itself is counted within the
        # transaction. Statistics elsewhere count the push although it may be rolled back: nobody tells them.
        self._require(Capability.TRANSACTION)
        ids = await self._driver.push_within(connection, self.name, jobs)
        self.store._counting_of(self.name).count(self.name, "put", len(_added(jobs, ids)))
        return ids


def _added(jobs: Sequence[NewJob], ids: Sequence[str]) -> list[NewJob]:
    """The jobs that are new: others found their unique key taken."""
    return [job for job, job_id in zip(jobs, ids, strict=True) if job.unique is None or job.id == job_id]
