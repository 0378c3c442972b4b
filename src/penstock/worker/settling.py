"""Tells the store what became of jobs, and extends the leases of those that are still in flight.

There is one settler for each queue. It makes one call at a time, with everything that was collected during the one
before: the slower the store, the larger the batches. Since calls follow one another, a lease is never extended, which
changes its token, while an ack with the old token is on its way.

A try is counted when a handler begins. For jobs that were taken ahead, the next acks or extends tell the store of it.
Where that would be too late (`must_begin_first`), it is told before the handler begins, in a call of its own.

While the store is unreachable, calls are repeated: the token makes sure that a late ack does no harm. After a bug in
code, such as a TypeError out of a driver, they are repeated a few times; then the job is left to its lease.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock import Capability
from penstock.errors import CallerError, LeaseLost
from penstock.queues.aio import Queue
from penstock.queues.dead_letter import described
from penstock.worker.outcomes import Action, InFlightJob, Outcome
from penstock.worker.reporting import Outage, log_event

LEASE_CHECKS = 6  # leases are checked this often in their time,
EXTEND_AFTER = 1 / 3  # and extended once this share of it has passed: two attempts may fail
# An outage ends, a bug doesn't. But clients of servers raise these, too, when a connection breaks.
BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
ATTEMPTS_MAX = 3


class Settler:
    """Acks, nacks and extends the jobs of one queue."""

    def __init__(
        self,
        queue: Queue,
        lease: float,
        on_settled: Callable[[Sequence[InFlightJob], Sequence[bool | None]], None],
        on_lost: Callable[[InFlightJob], None],
        on_begun: Callable[[InFlightJob], None],
    ) -> None:
        self.queue = queue
        self.lease = lease
        self.in_flight: set[InFlightJob] = set()  # waiting or running: their leases are extended
        self._on_settled = on_settled  # called with True, with False if the lease was gone, with None if it is unknown
        self._on_lost = on_lost
        self._on_begun = on_begun  # called when the store knows of a job that it must know of first
        self._beginning: list[InFlightJob] = []  # jobs that it must know of first
        # Jobs whose handlers have begun and that the store doesn't know of yet. Runners add to it, in any thread.
        self.begun_since: deque[InFlightJob] = deque()
        self._waiting: list[InFlightJob] = []
        self._wake = asyncio.Event()
        self._is_check_due = False
        self._can_extend = Capability.EXTEND in queue.store.capabilities
        self._timer: asyncio.TimerHandle | None = None
        what = f"jobs of {queue.name!r} in {queue.store.url}"
        self._starting = Outage(f"Starting {what}", lease / LEASE_CHECKS)
        self._ending = Outage(f"Settling {what}", lease / LEASE_CHECKS)
        self._keeping = Outage(f"Extending the leases of {what}")
        self._calls = {
            Action.ACK: self._ack,
            Action.NACK: self._nack,
            Action.FAIL: self._fail,
            Action.RELEASE: self._release,
        }

    def settle(self, entry: InFlightJob) -> None:
        """Tell the store soon what became of a job."""
        self.in_flight.discard(entry)
        self._waiting.append(entry)
        self._wake.set()

    def must_begin_first(self, entry: InFlightJob) -> bool:
        """Whether the store must know that a job begins before its handler is called.

        This holds for a job that is redelivered from a worker that crashed: if the job is the cause, each crash must
        count as a try. It also holds for a job on its last try, which must not run more often than allowed.
        """
        job = entry.job
        return not job.has_begun and self._can_extend and (job.stored.is_back or self.queue.is_last_try(job.tries))

    def begin(self, entry: InFlightJob) -> None:
        """Tell the store that a job begins; then `on_begun` is called, or `on_lost`."""
        self._beginning.append(entry)
        self._wake.set()

    async def run(self) -> None:
        """Settle jobs and extend leases, until cancelled."""
        self._check_later()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._is_check_due:
                    self._is_check_due = False
                    await self._extend()
                if self._waiting:
                    await self._settle_all()
                if self._beginning:  # last: finished jobs are settled before one begins that may kill this process
                    await self._begin()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.lease / LEASE_CHECKS, self._check_leases)

    def _check_leases(self) -> None:
        self._is_check_due = self._can_extend
        self._wake.set()
        self._check_later()

    async def _begin(self) -> None:
        batch, self._beginning = self._beginning, []
        now = asyncio.get_running_loop().time()
        jobs = [entry.job for entry in batch]
        try:
            kept = await self.queue.extend_many(jobs, self.lease, begun=jobs)
        except Exception as problem:  # whatever a store's driver raises: they wait, or lose their leases
            waiting = [entry for entry in batch if not entry.is_lost]
            for entry in waiting:
                entry.attempts += 1
                if _is_permanent(entry, problem):
                    self._on_begun(entry)  # a bug must not keep it from running
            self._beginning += [entry for entry in waiting if not _is_permanent(entry, problem)]
            await self._starting.wait_out(problem)
            self._wake.set()
            return
        self._starting.recovered()
        for entry, is_kept in zip(batch, kept, strict=True):
            entry.attempts = 0
            entry.leased_at = now
            if entry.outcome is not None:
                continue
            if is_kept:
                self._on_begun(entry)
            else:
                self._on_lost(entry)

    def _take_begun(self) -> list[InFlightJob]:
        """Take the jobs whose handlers have begun, and not ended yet, for the next call to the store."""
        begun = []
        with suppress(IndexError):
            while True:
                entry = self.begun_since.popleft()
                if entry.outcome is None and not entry.job.has_begun and not entry.job.ended:
                    begun.append(entry)
        return begun

    async def _extend(self) -> None:
        now = asyncio.get_running_loop().time()
        # Also of finished jobs that could not be settled: the store may refuse the one call and not the other.
        candidates = [*self.in_flight, *self._waiting]
        due = [entry for entry in candidates if now - entry.leased_at >= self.lease * EXTEND_AFTER]
        begun = self._take_begun()
        due += set(begun).difference(due)
        if not due:
            return
        try:
            jobs = [entry.job for entry in due]
            kept = await self.queue.extend_many(
                jobs, self.lease, [entry.job for entry in due if entry.began is not None]
            )
        except Exception as problem:  # whatever a store's driver raises, jobs in hand go on
            self.begun_since.extend(begun)
            self._keeping.failed(problem)  # the next check tries again
            return
        self._keeping.recovered()
        for entry, is_kept in zip(due, kept, strict=True):
            if is_kept:
                entry.leased_at = now
            elif entry.outcome is None:
                self._on_lost(entry)
            # One that has finished meanwhile is reported by its own call.

    async def _settle_all(self) -> None:
        batch, self._waiting = self._waiting, []
        by_action: dict[Action, list[InFlightJob]] = {}
        for entry in batch:
            by_action.setdefault(_outcome(entry).action, []).append(entry)
        for action, group in by_action.items():
            await self._settle_group(action, group)
        if self._waiting:
            self._wake.set()

    async def _settle_group(self, action: Action, group: list[InFlightJob]) -> None:
        try:
            answers = await self._calls[action](group)
        except Exception as problem:  # whatever a store's driver raises
            for entry in group:
                entry.attempts += 1
            self._give_up([entry for entry in group if _is_permanent(entry, problem)], problem)
            again = [entry for entry in group if not _is_permanent(entry, problem)]
            if again:
                self._waiting += again
                await self._ending.wait_out(problem)
            return
        self._ending.recovered()
        self._on_settled(group, [_confirmed(entry, answer) for entry, answer in zip(group, answers, strict=True)])

    def _give_up(self, group: list[InFlightJob], problem: Exception) -> None:
        """Stop repeating a call that can't succeed: the jobs come back when their leases end."""
        if group:
            text = described(problem)
            log_event(
                "trouble",
                f"{len(group)} jobs can't be settled, and come back when their leases end: {text}",
                queue=self.queue.name,
                error=text,
            )
            self._on_settled(group, [False] * len(group))

    async def _ack(self, group: list[InFlightJob]) -> Sequence[bool | None]:
        begun = self._take_begun()
        try:
            return await self.queue.ack_many([entry.job for entry in group], [entry.job for entry in begun])
        except BaseException:
            self.begun_since.extend(begun)
            raise

    async def _nack(self, group: list[InFlightJob]) -> Sequence[bool | None]:
        # Single calls of one turn go to the store as one.
        calls = [self.queue.nack(entry.job, _outcome(entry).delay, _outcome(entry).error) for entry in group]
        answers: list[bool | None] = []
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if answer is not None and not isinstance(answer, LeaseLost):
                raise answer
            answers.append(answer is None)
        return answers

    async def _fail(self, group: list[InFlightJob]) -> Sequence[bool | None]:
        return await self.queue.fail_many([entry.job for entry in group], [_outcome(entry).failure for entry in group])

    async def _release(self, group: list[InFlightJob]) -> Sequence[bool | None]:
        await self.queue.release_many([entry.job for entry in group])
        return [True] * len(group)


def _outcome(entry: InFlightJob) -> Outcome:
    assert entry.outcome is not None
    return entry.outcome


def _is_permanent(entry: InFlightJob, problem: Exception) -> bool:
    return isinstance(problem, CallerError) or (isinstance(problem, BUGS) and entry.attempts >= ATTEMPTS_MAX)


def _confirmed(entry: InFlightJob, answer: bool | None) -> bool | None:
    # A refusal after a lost answer: most likely the first call did it.
    return None if answer is False and entry.attempts else answer
