"""Sends the outcome of jobs to the store, and extends the leases of those that are still in flight.

There is one settler for each queue. It makes one call at a time, with everything that was collected during the one
before: the slower the store, the larger the batches. Since calls follow one another, a lease is never extended, which
changes its token, while an ack with the old token is on its way.

A try is counted when a handler begins. For jobs that were taken ahead, the next acks or extends report it.
Where that would be too late (`must_begin_first`), it is reported before the handler begins, in a call of its own.

While the store is unreachable, calls are repeated: the token makes sure that a late ack does no harm. After a bug in
code, such as a TypeError out of a driver, they are repeated a few times; then the job is left to its lease.

Of a claim's jobs, whoever made the claim extends the leases, and on most stores that changes their tokens. What is
refused for an old token is asked again with the new one, if the job is still under the claim.
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
RENEWALS_MAX = 5  # of tokens, for one call: leases are extended far less often than calls are made


class Settler:
    """Acks, nacks and extends the jobs of one queue."""

    def __init__(
        self,
        queue: Queue,
        lease: float,
        on_settled: Callable[[Sequence[InFlightJob], Sequence[bool | None]], None],
        on_lost: Callable[[InFlightJob], None],
        on_begun: Callable[[InFlightJob], None],
        on_kept: Callable[[InFlightJob], None] = lambda entry: None,
        claim: str | None = None,
        counts_late: bool = False,
    ) -> None:
        self.queue = queue
        self.lease = lease
        self._claim = claim  # the key under which another process holds the jobs, and extends their leases
        self.in_flight: set[InFlightJob] = set()  # waiting or running: their leases are extended
        self._on_settled = on_settled  # called with True, with False if the lease was gone, with None if it is unknown
        self._on_lost = on_lost
        self._on_kept = on_kept  # called after the lease of a job was extended
        self._on_begun = on_begun  # called when the store knows of a job that it must know of first
        self._beginning: list[InFlightJob] = []  # jobs that it must know of first
        # Jobs whose handlers have begun and that the store doesn't know of yet. Runners add to it, in any thread.
        self.begun_since: deque[InFlightJob] = deque()
        self._waiting: list[InFlightJob] = []
        self._wake = asyncio.Event()
        self._is_check_due = False
        self._can_extend = claim is None and Capability.EXTEND in queue.store.capabilities
        # Whether the reserve counts a try for jobs for which there are free slots. It must not where such a job may
        # have to wait all the same.
        self.counts_at_reserve = not (self._can_extend and counts_late)
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
            Action.MOVE: self._move,
        }

    def settle(self, entry: InFlightJob) -> None:
        """Send the outcome of a job to the store soon."""
        self.in_flight.discard(entry)
        self._waiting.append(entry)
        self._wake.set()

    def must_begin_first(self, entry: InFlightJob) -> bool:
        """Whether the store must know that a job begins before its handler is called.

        This holds for a job that is redelivered from a worker that crashed: if the job is the cause, each crash must
        count as a try. It also holds for a job on its last try, which must not run more often than allowed.
        """
        job = entry.job
        return not job.has_begun and self._can_extend and (job.stored.is_back or self.is_last_try(entry))

    def is_last_try(self, entry: InFlightJob) -> bool:
        """Whether a job goes to the dead letters if this delivery fails."""
        tries = entry.job.tries
        return self.queue.is_last_try(tries) if entry.route is None else entry.route.limit.is_last(tries)

    def begin(self, entry: InFlightJob) -> None:
        """Report to the store that a job begins; then `on_begun` is called, or `on_lost`."""
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
                if entry.outcome is None:
                    self._on_kept(entry)
            elif entry.outcome is None:
                self._on_lost(entry)
            # One that has finished meanwhile is reported by its own call.

    async def _settle_all(self) -> None:
        batch, self._waiting = self._waiting, []
        by_call: dict[tuple[Action, str | None], list[InFlightJob]] = {}
        for entry in batch:
            target = None if entry.transfer is None else entry.transfer.to
            by_call.setdefault((_outcome(entry).action, target), []).append(entry)
        for (action, _), group in by_call.items():
            await self._settle_group(action, group)
        if self._waiting:
            self._wake.set()

    async def _settle_group(self, action: Action, group: list[InFlightJob]) -> None:
        try:
            answers = await self._calls[action](group)
            if self._claim is not None and False in answers:
                answers = await self._ask_again(self._claim, action, group, list(answers))
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

    async def _ask_again(
        self, claim: str, action: Action, group: list[InFlightJob], answers: list[bool | None]
    ) -> Sequence[bool | None]:
        """Repeat what was refused, with new tokens, for the jobs that are still under the claim."""
        for _ in range(RENEWALS_MAX):
            held = await self._renew_tokens(claim, group)
            again = [at for at, answer in enumerate(answers) if answer is False and group[at].job.id in held]
            if not again:
                break
            for at, answer in zip(again, await self._calls[action]([group[at] for at in again]), strict=True):
                answers[at] = answer
        return answers

    async def _renew_tokens(self, claim: str, group: Sequence[InFlightJob]) -> set[str]:
        """Let all jobs have the tokens that their leases have now; return the ids of those under the claim."""
        tokens = {job.id: job.stored.token for job in await self.queue.claim(claim, 0, lease=self.lease)}
        for entry in (*group, *self._waiting, *self.in_flight):
            if entry.job.id in tokens:
                entry.job.stored.token = tokens[entry.job.id]
        for entry in [entry for entry in self.in_flight if entry.job.id not in tokens]:
            self._on_lost(entry)
        return set(tokens)

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

    async def _move(self, group: list[InFlightJob]) -> Sequence[bool | None]:
        # All of a group have the same target: a call that fails is repeated, and must not repeat one that succeeded.
        return await self.queue.move_many([entry.transfer for entry in group if entry.transfer is not None])

    async def _release(self, group: list[InFlightJob]) -> Sequence[bool | None]:
        if self._claim is not None:  # a release with an old token is not refused, and does nothing
            await self._renew_tokens(self._claim, group)
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
