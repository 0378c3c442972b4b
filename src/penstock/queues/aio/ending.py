"""How reserved jobs end, or go on."""

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.codec import encode
from penstock.errors import CallerError, LeaseLost
from penstock.job import Lease, Move, StoredJob
from penstock.queues.aio.coalescing import Coalescer
from penstock.queues.aio.job import Job
from penstock.queues.aio.queue_base import QueueBase
from penstock.queues.capabilities import Capability
from penstock.queues.dead_letters import DeadLetter, to_dead_letters
from penstock.queues.options import checked_lease
from penstock.queues.pushing import milliseconds


class Ending(QueueBase):
    """`ack`, `nack`, `extend`, `fail` and their kin."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        batch_max = self.store.driver.batch_max
        self._acks: Coalescer[Lease, bool] = Coalescer(self._ack_now, batch_max)
        self._nacks: Coalescer[tuple[Lease, int], bool] = Coalescer(self._nack_now, batch_max)
        self._extends: Coalescer[tuple[Lease, int, bool], str | None] = Coalescer(self._extend_now, batch_max)

    async def ack(self, job: Job) -> None:
        """End a job that was reserved."""
        self._require(Capability.RESERVE)
        if not await self._acks.add(job.as_lease):
            raise _lost(job, "acked")

    async def ack_many(self, jobs: Iterable[Job], begun: Iterable[Job] = ()) -> list[bool]:
        """End many jobs; return for each whether it was still this worker's.

        `begun` are other jobs, reserved with `begin`, on which work has begun since.
        """
        self._require(Capability.RESERVE)
        begun = list(begun)
        ended = await self._ack_now([job.as_lease for job in jobs], [job.as_lease for job in begun])
        for job in begun:
            job.stored.has_begun = True
        return ended

    async def _ack_now(self, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        ended: list[bool] = []
        for begin in range(0, len(leases), self._driver.batch_max):
            ended += await self._driver.ack(self.name, leases[begin : begin + self._driver.batch_max], begun)
            begun = ()
        self.store.counting.count(self.name, "commit", sum(ended))
        return ended

    async def nack(self, job: Job, delay: float | None = None, error: str = "") -> None:
        """Give a job back, or up: after its last try it goes to the dead letters."""
        self._require(Capability.RESERVE)
        if self._limit is not None and self._limit.is_last(job.tries):
            done = (await self._bury([job.stored], [error], self._limit))[0]
        else:
            done = await self._nacks.add((job.as_lease, self._delay_ms(job.tries, delay)))
        if not done:
            raise _lost(job, "given back")

    async def nack_many(self, jobs: Iterable[Job], delay: float | None = None, error: str = "") -> list[bool]:
        """Give many jobs back, or up; gives for each whether it was still this worker's."""
        self._require(Capability.RESERVE)
        jobs = list(jobs)
        limit = self._limit
        last = [job for job in jobs if limit is not None and limit.is_last(job.tries)]
        others = [job for job in jobs if limit is None or not limit.is_last(job.tries)]
        outcome: dict[Job, bool] = {}
        if last and limit is not None:
            outcome.update(
                zip(last, await self._bury([j.stored for j in last], [error] * len(last), limit), strict=True)
            )
        items = [(job.as_lease, self._delay_ms(job.tries, delay)) for job in others]
        for begin in range(0, len(items), self._driver.batch_max):
            batch = items[begin : begin + self._driver.batch_max]
            outcome.update(zip(others[begin : begin + len(batch)], await self._nack_now(batch), strict=True))
        return [outcome[job] for job in jobs]

    async def _nack_now(self, items: Sequence[tuple[Lease, int]]) -> list[bool]:
        delays = [delay for _, delay in items]
        done = await self._driver.nack(self.name, [lease for lease, _ in items], delays, self._channel_of_store)
        self.store.counting.count(self.name, "rollback", sum(done))
        if any(done) and self._channel_of_store is None:
            await self._tell(min(delays))
        return done

    def _delay_ms(self, tries: int, delay: float | None) -> int:
        if delay is None:
            delay = 0 if self.backoff is None else self.backoff(tries)
        return max(0, milliseconds("delay", delay))

    async def extend(self, job: Job, lease: float | None = None) -> None:
        """Keep a job for so many seconds from now."""
        self._require(Capability.EXTEND)
        seconds = checked_lease(lease if lease is not None else job.lease or self.lease)
        token = await self._extends.add((job.as_lease, milliseconds("lease", seconds), job.has_begun))
        if token is None:
            raise _lost(job, "kept")
        job.stored.token = token

    async def extend_many(
        self, jobs: Iterable[Job], lease: float | None = None, begun: Iterable[Job] = ()
    ) -> list[bool]:
        """Keep many jobs; return for each whether it was still this worker's.

        `begun` are those of them, reserved with `begin`, on which work has begun since.
        """
        self._require(Capability.EXTEND)
        jobs, begun = list(jobs), set(begun)
        items = [
            (
                job.as_lease,
                milliseconds("lease", checked_lease(lease if lease is not None else job.lease or self.lease)),
                job.has_begun or job in begun,
            )
            for job in jobs
        ]
        tokens: list[str | None] = []
        for begin in range(0, len(items), self._driver.batch_max):
            tokens += await self._extend_now(items[begin : begin + self._driver.batch_max])
        for job, token in zip(jobs, tokens, strict=True):
            if token is not None:
                job.stored.token = token
                job.stored.has_begun = job.has_begun or job in begun
        return [token is not None for token in tokens]

    async def _extend_now(self, items: Sequence[tuple[Lease, int, bool]]) -> list[str | None]:
        leases, leases_ms, begun = zip(*items, strict=True)
        return await self._driver.extend(self.name, leases, leases_ms, begun)

    async def fail(self, job: Job, error: str = "") -> None:
        """Give a job up: it goes to the dead letters."""
        self._require(Capability.RESERVE)
        if not (await self._bury([job.stored], [error], self.dead_letter or DeadLetter()))[0]:
            raise _lost(job, "given up")

    async def fail_many(self, jobs: Iterable[Job], errors: Iterable[str]) -> list[bool]:
        """Give many jobs up; gives for each whether it was still this worker's."""
        self._require(Capability.RESERVE)
        return await self._bury([job.stored for job in jobs], list(errors), self.dead_letter or DeadLetter())

    async def _bury_spent(self, jobs: list[StoredJob]) -> list[StoredJob]:
        """Give up those jobs that had all their tries, since a worker died in the last one; return the others.

        So are jobs given up whose workers died again and again before work on them began.
        """
        limit = self._limit
        if limit is None:
            return jobs
        errors = [limit.error_of(job) for job in jobs]
        if not any(errors):
            return jobs
        spent = [(job, error) for job, error in zip(jobs, errors, strict=True) if error]
        for job, _ in spent:
            # Here the last delivery is among the tries; `x-dl-tries` are those before the last one.
            job.tries = max(0, job.tries - 1)
        await self._bury([job for job, _ in spent], [error for _, error in spent], limit)
        return [job for job, error in zip(jobs, errors, strict=True) if not error]

    async def _bury(self, jobs: Sequence[StoredJob], errors: Sequence[str], limit: DeadLetter) -> list[bool]:
        if limit.queue == self.name:
            raise CallerError(f"{self.name!r} is the queue of dead letters itself: remove the job, or redrive it")
        now_ms = await self._driver.now_ms()
        moves = [
            to_dead_letters(job, stored_body(job), self.name, error, now_ms)
            for job, error in zip(jobs, errors, strict=True)
        ]
        return await self._move(limit.queue, moves, "deadletter")

    async def _move(self, to: str, moves: Sequence[Move], counter: str | None) -> list[bool]:
        for move in moves:
            self._driver.prepare(move.job)
        channel = f"keuss:signal:{self.store.namespace}:{to}"
        moved: list[bool] = []
        for begin in range(0, len(moves), self._driver.batch_max):
            batch = moves[begin : begin + self._driver.batch_max]
            moved += await self._driver.move(self.name, to, batch, channel if self.store.signals_itself else None)
        if counter is not None:
            self.store.counting.count(self.name, counter, sum(moved))
        self.store.counting.count(to, "put", sum(moved))
        if any(moved) and not self.store.signals_itself:
            await self.store.signal.send(channel, str(await self._driver.now_ms()))
        return moved


def stored_body(job: StoredJob) -> bytes:
    """The body of a job that a store gave."""
    return job.body if job.body is not None else encode(job.payload)


def _lost(job: Job, done: str) -> LeaseLost:
    return LeaseLost(
        f"job {job.id} of {job.queue.name!r} can't be {done}: its lease is over, or another ended it. "
        "Nothing was changed. Give longer leases, or extend them while the job runs."
    )
