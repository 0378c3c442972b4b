"""How reserved jobs end, or go on."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from penstock.codec import encode
from penstock.errors import CallerError, LeaseLost
from penstock.job import Lease, Move, StoredJob
from penstock.queues.aio.coalescing import Coalescer
from penstock.queues.aio.job import Job
from penstock.queues.aio.queue_base import QueueBase
from penstock.queues.capabilities import Capability
from penstock.queues.dead_letter import DeadLetter, Error, to_dead_letters
from penstock.queues.options import checked_lease
from penstock.queues.push import Duration, milliseconds, point_ms


class Ending(QueueBase):
    """`ack`, `nack`, `extend`, `fail` and their kin."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        batch_max = self.store.driver.batch_max
        self._acks: Coalescer[Lease, bool] = Coalescer(self._ack_now, batch_max)
        self._nacks: Coalescer[tuple[Lease, int], bool] = Coalescer(self._nack_now, batch_max)
        self._extends: Coalescer[tuple[Lease, int, bool], str | None] = Coalescer(self._extend_now, batch_max)

    async def ack(self, job: Job | str) -> None:
        """Acknowledge a reserved job: it is done, and goes.

        By id alone this is unfenced: the job is ended whoever has it reserved, also if the lease that you had is over
        and another worker runs the job by now. LeaseLost is raised if nobody has it reserved.
        """
        self._require(Capability.RESERVE)
        if isinstance(job, str):
            job = await self._reserved_job(job)
        if not await self._acks.add(_leases([job], "ack")[0]):
            raise _lost(job.id, self.name, "acked")

    async def _reserved_job(self, job_id: str) -> Job:
        """The job that has this id, as whoever reserved it has it."""
        (stored,) = await self._driver.reserved(self.name, [job_id])
        if stored is None:
            raise LeaseLost(f"job {job_id!r} of {self.name!r} is not reserved by anybody. Nothing was changed.")
        return Job(self, stored)

    async def ack_many(self, jobs: Iterable[Job], begun: Iterable[Job] = ()) -> list[bool]:
        """End many jobs; return for each whether it was still this worker's.

        `begun` are other jobs, reserved with `begin`, on which work has begun since.
        """
        self._require(Capability.RESERVE)
        begun = list(begun)
        ended = await self._ack_now(_leases(list(jobs), "ack_many"), _leases(begun, "ack_many"))
        for job in begun:
            job.stored.has_begun = True
        return ended

    async def _ack_now(self, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        ended: list[bool] = []
        batch_max = self._driver.batch_max
        for at in range(0, max(len(leases), len(begun)), batch_max):
            ended += await self._driver.ack(self.name, leases[at : at + batch_max], begun[at : at + batch_max])
        self.store._counting_of(self.name).count(self.name, "commit", sum(ended))
        return ended

    async def ack_by_token(self, job_id: str, token: str) -> None:
        """Acknowledge a job that somebody reserved, by its id and the token of its lease."""
        self._require(Capability.RESERVE)
        if not await self._acks.add(Lease(job_id, token)):
            raise _lost(job_id, self.name, "acked")

    async def nack(
        self, job: Job | str, delay: Duration | None = None, error: Error = "", *, at: float | datetime | None = None
    ) -> None:
        """Return a reserved job to its queue, or, after its last try, move it to the dead letters.

        It is ready after `delay` seconds (by default those of the back-off), or at the time `at`. By id alone this is
        unfenced, as `ack` is. `error` is a text or an exception.
        """
        self._require(Capability.RESERVE)
        delay = await self._delay_until(delay, at)
        if isinstance(job, str):
            if not self._driver.delays_by_id:
                if delay:
                    raise CallerError(f"nack by id alone takes no delay on {self.store.url}: give the reserved job")
                delay = 0
            job = await self._reserved_job(job)
        _leases([job], "nack")
        if self._limit is not None and self._limit.is_last(job.tries):
            done = (await self._bury([job.stored], [error], self._limit))[0]
        else:
            done = await self._nacks.add((job.as_lease, self._delay_ms(job.tries, delay)))
        if not done:
            raise _lost(job.id, self.name, "given back")

    async def nack_by_token(self, job_id: str, token: str, delay: Duration | None = None, error: Error = "") -> None:
        """Return a job that somebody reserved to its queue, or, after its last try, move it to the dead letters.

        By its id and the token of its lease, for programs that have no job object.
        """
        self._require(Capability.RESERVE)
        if self._limit is not None or (delay is None and self.backoff is not None):
            # How often it was delivered decides about what becomes of it.
            (found,) = await self._driver.reserved(self.name, [job_id])
            if found is not None:
                found.token = token
                await self.nack(Job(self, found), delay, error)
                return
        if not await self._nacks.add((Lease(job_id, token), self._delay_ms(0, delay))):
            raise _lost(job_id, self.name, "given back")

    async def nack_many(
        self,
        jobs: Iterable[Job],
        delay: Duration | None = None,
        error: Error = "",
        *,
        at: float | datetime | None = None,
    ) -> list[bool]:
        """Return many jobs to their queue; gives for each whether it was still this worker's."""
        self._require(Capability.RESERVE)
        jobs = list(jobs)
        _leases(jobs, "nack_many")
        delay = await self._delay_until(delay, at)
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
        self.store._counting_of(self.name).count(self.name, "rollback", sum(done))
        if any(done) and self._channel_of_store is None:
            await self._tell(min(delays))
        return done

    async def _delay_until(self, delay: Duration | None, at: float | datetime | None) -> Duration | None:
        """The delay that lasts until a point in time, by the store's clock."""
        if at is None:
            return delay
        if delay is not None:
            raise CallerError("give delay or at, not both")
        return max(0, point_ms("at", at) - await self._driver.now_ms()) / 1000

    def _delay_ms(self, tries: int, delay: Duration | None) -> int:
        if delay is None:
            delay = 0 if self.backoff is None else self.backoff(tries)
        return milliseconds("delay", delay) if delay else 0

    async def extend(self, job: Job, lease: Duration | None = None) -> None:
        """Keep a job for so many seconds from now."""
        self._require(Capability.EXTEND)
        _leases([job], "extend")
        seconds = checked_lease(lease if lease is not None else job.lease or self.lease)
        token = await self._extends.add((job.as_lease, milliseconds("lease", seconds), job.has_begun))
        if token is None:
            raise _lost(job.id, self.name, "kept")
        job.stored.token = token

    async def extend_many(
        self, jobs: Iterable[Job], lease: Duration | None = None, begun: Iterable[Job] = ()
    ) -> list[bool]:
        """Keep many jobs; return for each whether it was still this worker's.

        `begun` are those of them, reserved with `begin`, on which work has begun since.
        """
        self._require(Capability.EXTEND)
        jobs, begun = list(jobs), set(begun)
        items = [
            (
                held,
                milliseconds("lease", checked_lease(lease if lease is not None else job.lease or self.lease)),
                job.has_begun or job in begun,
            )
            for held, job in zip(_leases(jobs, "extend_many"), jobs, strict=True)
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

    async def fail(self, job: Job, error: Error = "") -> None:
        """Move a reserved job to the dead letters, with the text or exception."""
        self._require(Capability.RESERVE)
        _leases([job], "fail")
        if not (await self._bury([job.stored], [error], self.dead_letter or DeadLetter()))[0]:
            raise _lost(job.id, self.name, "given up")

    async def fail_many(self, jobs: Iterable[Job], errors: Iterable[Error]) -> list[bool]:
        """Give many jobs up; gives for each whether it was still this worker's."""
        self._require(Capability.RESERVE)
        jobs = list(jobs)
        _leases(jobs, "fail_many")
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

    async def _bury(self, jobs: Sequence[StoredJob], errors: Sequence[Error], limit: DeadLetter) -> list[bool]:
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
        target = self.store._services_of(to)
        await target.try_open()
        moved: list[bool] = []
        for begin in range(0, len(moves), self._driver.batch_max):
            batch = moves[begin : begin + self._driver.batch_max]
            own_channel = channel if target.signals_itself else None
            moved += await self._driver.move(self.name, to, batch, own_channel, counter)
        if counter is not None:
            self.store._counting_of(self.name).count(self.name, counter, sum(moved))
        self.store._counting_of(to).count(to, "put", sum(moved))
        if any(moved) and not target.signals_itself and target.open.is_done:
            await target.signal.send(channel, str(await self._driver.now_ms()))
        return moved


def stored_body(job: StoredJob) -> bytes:
    """The body of a job that a store gave."""
    return job.body if job.body is not None else encode(job.payload)


def _leases(jobs: Sequence[Job], call: str) -> list[Lease]:
    """The leases of what must be reserved jobs."""
    try:
        return [job.as_lease for job in jobs]
    except AttributeError:
        or_id = ", or its id as text" if call in {"ack", "nack"} else ""
        wrong = next((job for job in jobs if not hasattr(job, "as_lease")), None)
        raise CallerError(f"{call} takes a reserved job{or_id}, got {wrong!r}") from None


def _lost(job_id: str, queue: str, done: str) -> LeaseLost:
    return LeaseLost(
        f"job {job_id} of {queue!r} can't be {done}: its lease is over, or another ended it. "
        "Nothing was changed. Give longer leases, or extend them while the job runs."
    )
