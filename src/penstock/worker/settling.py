"""Tells the store what became of jobs, and keeps the leases of those that are still in hand.

There is one settler for each queue. It makes one call at a time, with everything that has come together since the one
before: the slower the store, the larger the batches. Since calls follow one another, a lease is never made longer,
which changes its token, while an ack with the old token is on its way.

A try is counted when a handler begins. Of jobs that were taken ahead the store hears it with the next acks or extends.
Where that would be too late (`must_begin_first`), it is told before the handler begins, in a call of its own.

What can't be told because the store is away is told again until it is back: the token keeps a late ack from doing harm.
What can't be told because of a mistake in code is left to its lease after a few attempts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.errors import CallerError, LeaseLost
from penstock.queues.aio import Queue
from penstock.queues.capabilities import Capability
from penstock.queues.dead_letter import described
from penstock.worker.choices import Kind, Verdict
from penstock.worker.events import say
from penstock.worker.held import Held
from penstock.worker.trouble import Trouble

LOOKS_A_LEASE = 6  # leases are looked at so often in their time,
EXTEND_AFTER = 1 / 3  # and made longer once this share of it has passed: two attempts may fail
# An outage ends, a mistake in code doesn't. But clients of servers raise such things, too, when a connection goes.
MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
TELLINGS_MAX = 3


class Settler:
    """The end of the jobs of one queue."""

    def __init__(
        self,
        queue: Queue,
        lease: float,
        told: Callable[[Sequence[Held], Sequence[bool | None]], None],
        lost: Callable[[Held], None],
        begun: Callable[[Held], None],
    ) -> None:
        self.queue = queue
        self.lease = lease
        self.in_hand: set[Held] = set()  # waiting or running: their leases are kept
        self._told = told  # called with True, with False where the lease was gone, with None where nobody knows
        self._lost = lost
        self._begun = begun  # called when the store knows of a job that it must know of first
        self._beginning: list[Held] = []  # those
        # Jobs whose handlers have begun and that the store doesn't know of yet. Runners add to it, in any thread.
        self.begun_since: deque[Held] = deque()
        self._waiting: list[Held] = []
        self._bell = asyncio.Event()
        self._is_due = False
        self._can_extend = Capability.EXTEND in queue.store.capabilities
        self._timer: asyncio.TimerHandle | None = None
        what = f"jobs of {queue.name!r} in {queue.store.url}"
        self._starting = Trouble(f"Beginning {what}", lease / LOOKS_A_LEASE)
        self._ending = Trouble(f"Ending {what}", lease / LOOKS_A_LEASE)
        self._keeping = Trouble(f"Keeping {what}")
        self._tellers = {
            Kind.ACK: self._ack,
            Kind.NACK: self._nack,
            Kind.FAIL: self._fail,
            Kind.RELEASE: self._release,
        }

    def settle(self, held: Held) -> None:
        """A job has its verdict: the store is told, soon."""
        self.in_hand.discard(held)
        self._waiting.append(held)
        self._bell.set()

    def must_begin_first(self, held: Held) -> bool:
        """Whether the store must know that a job begins before its handler is called.

        So for a job that comes back from a worker that died: should it be the one that kills them, each such death
        counts. And for a job on its last try: it must not run once more than it may.
        """
        job = held.job
        return not job.has_begun and self._can_extend and (job.stored.is_back or self.queue.is_last_try(job.tries))

    def begin(self, held: Held) -> None:
        """Tell the store that a job begins; then `begun` is called, or `lost`."""
        self._beginning.append(held)
        self._bell.set()

    async def run(self) -> None:
        """Tell and keep, until cancelled."""
        self._look_later()
        try:
            while True:
                await self._bell.wait()
                self._bell.clear()
                if self._is_due:
                    self._is_due = False
                    await self._extend()
                if self._waiting:
                    await self._tell()
                if self._beginning:  # last: what is done is told before a job begins that may kill this process
                    await self._begin()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.lease / LOOKS_A_LEASE, self._look)

    def _look(self) -> None:
        self._is_due = self._can_extend
        self._bell.set()
        self._look_later()

    async def _begin(self) -> None:
        batch, self._beginning = self._beginning, []
        now = asyncio.get_running_loop().time()
        jobs = [held.job for held in batch]
        try:
            kept = await self.queue.extend_many(jobs, self.lease, begun=jobs)
        except Exception as problem:  # whatever a store's driver raises: they wait, or are lost with their leases
            waiting = [held for held in batch if not held.is_lost]
            for held in waiting:
                held.tellings += 1
                if _is_hopeless(held, problem):
                    self._begun(held)  # a mistake in code must not keep it from running
            self._beginning += [held for held in waiting if not _is_hopeless(held, problem)]
            await self._starting.wait_out(problem)
            self._bell.set()
            return
        self._starting.over()
        for held, is_kept in zip(batch, kept, strict=True):
            held.tellings = 0
            held.leased = now
            if held.verdict is not None:
                continue
            if is_kept:
                self._begun(held)
            else:
                self._lost(held)

    def _told_as_begun(self) -> list[Held]:
        """Jobs that the next call tells the store of: their handlers have begun, and have not ended yet."""
        begun = []
        with suppress(IndexError):
            while True:
                held = self.begun_since.popleft()
                if held.verdict is None and not held.job.has_begun and not held.job.ended:
                    begun.append(held)
        return begun

    async def _extend(self) -> None:
        now = asyncio.get_running_loop().time()
        # Also of those that are done and can't be told: the store may have its reasons for the one and not the other.
        kept_so_far = [*self.in_hand, *self._waiting]
        due = [held for held in kept_so_far if now - held.leased >= self.lease * EXTEND_AFTER]
        begun = self._told_as_begun()
        due += set(begun).difference(due)
        if not due:
            return
        try:
            jobs = [held.job for held in due]
            kept = await self.queue.extend_many(jobs, self.lease, [held.job for held in due if held.began is not None])
        except Exception as problem:  # whatever a store's driver raises, jobs in hand go on
            self.begun_since.extend(begun)
            self._keeping.met(problem)  # the next look tries again
            return
        self._keeping.over()
        for held, is_kept in zip(due, kept, strict=True):
            if is_kept:
                held.leased = now
            elif held.verdict is None:
                self._lost(held)
            # One that was finished meanwhile learns it from its own answer.

    async def _tell(self) -> None:
        batch, self._waiting = self._waiting, []
        by_kind: dict[Kind, list[Held]] = {}
        for held in batch:
            by_kind.setdefault(_verdict(held).kind, []).append(held)
        for kind, group in by_kind.items():
            await self._tell_group(kind, group)
        if self._waiting:
            self._bell.set()

    async def _tell_group(self, kind: Kind, group: list[Held]) -> None:
        try:
            answers = await self._tellers[kind](group)
        except Exception as problem:  # the same
            for held in group:
                held.tellings += 1
            self._leave([held for held in group if _is_hopeless(held, problem)], problem)
            again = [held for held in group if not _is_hopeless(held, problem)]
            if again:
                self._waiting += again
                await self._ending.wait_out(problem)
            return
        self._ending.over()
        self._told(group, [_believed(held, answer) for held, answer in zip(group, answers, strict=True)])

    def _leave(self, group: list[Held], problem: Exception) -> None:
        """Telling it again would not help: the jobs come back when their leases end."""
        if group:
            text = described(problem)
            say("trouble", f"{len(group)} jobs can't be ended: {text}", queue=self.queue.name, error=text)
            self._told(group, [False] * len(group))

    async def _ack(self, group: list[Held]) -> Sequence[bool | None]:
        begun = self._told_as_begun()
        try:
            return await self.queue.ack_many([held.job for held in group], [held.job for held in begun])
        except BaseException:
            self.begun_since.extend(begun)
            raise

    async def _nack(self, group: list[Held]) -> Sequence[bool | None]:
        # Single calls of one turn go to the store as one.
        calls = [self.queue.nack(held.job, _verdict(held).delay, _verdict(held).error) for held in group]
        answers: list[bool | None] = []
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if answer is not None and not isinstance(answer, LeaseLost):
                raise answer
            answers.append(answer is None)
        return answers

    async def _fail(self, group: list[Held]) -> Sequence[bool | None]:
        return await self.queue.fail_many([held.job for held in group], [_verdict(held).failure for held in group])

    async def _release(self, group: list[Held]) -> Sequence[bool | None]:
        await self.queue.release_many([held.job for held in group])
        return [True] * len(group)


def _verdict(held: Held) -> Verdict:
    assert held.verdict is not None
    return held.verdict


def _is_hopeless(held: Held, problem: Exception) -> bool:
    return isinstance(problem, CallerError) or (isinstance(problem, MISTAKES) and held.tellings >= TELLINGS_MAX)


def _believed(held: Held, answer: bool | None) -> bool | None:
    # A no after an answer that got lost: most likely the first time did it.
    return None if answer is False and held.tellings else answer
