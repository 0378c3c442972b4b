"""Extends the leases of the jobs of one queue that are in flight, and reports to the store which of them have begun.

The settler calls it between its own calls: since calls follow one another, a lease is never extended, which changes its
token, while an ack with the old token is on its way.

A try is counted when a handler begins. For jobs that were taken ahead, the next acks or extends report it.
Where that would be too late (`must_begin_first`), it is reported before the handler begins, in a call of its own.

Of a claim's jobs, whoever made the claim extends the leases.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock import Capability
from penstock.errors import CallerError
from penstock.queues.aio import Queue
from penstock.worker.outcomes import InFlightJob
from penstock.worker.reporting import Outage

CHECKS = 6  # leases are checked this often in their time,
EXTEND_AFTER = 1 / 3  # and extended once this share of it has passed: two attempts may fail
# An outage ends, a bug doesn't. But clients of servers raise these, too, when a connection breaks.
BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
ATTEMPTS_MAX = 3


class LeaseExtender:
    """The leases of the jobs of one queue, from their reservation until they are settled."""

    def __init__(
        self,
        queue: Queue,
        lease: float,
        wake: Callable[[], None],
        on_lost: Callable[[InFlightJob], None],
        on_begun: Callable[[InFlightJob], None],
        on_kept: Callable[[InFlightJob], None],
        *,
        is_claim: bool,
        counts_late: bool,
    ) -> None:
        """With `is_claim`, another process extends the leases."""
        self.queue = queue
        self.lease = lease
        self.in_flight: set[InFlightJob] = set()  # waiting or running
        # Jobs whose handlers have begun and that the store doesn't know of yet. Runners add to it, in any thread.
        self.begun_since: deque[InFlightJob] = deque()
        self._wake = wake  # called when there is something to do
        self._on_lost = on_lost
        self._on_begun = on_begun  # called when the store knows of a job that it must know of first
        self._on_kept = on_kept  # called after the lease of a job was extended
        self._beginning: list[InFlightJob] = []  # jobs that the store must know of first
        self._can_extend = not is_claim and Capability.EXTEND in queue.store.capabilities
        # Whether the reserve counts a try for jobs for which there are free slots. It must not where such a job may
        # have to wait all the same.
        self.counts_at_reserve = not (self._can_extend and counts_late)
        self._is_check_due = False
        self._timer: asyncio.TimerHandle | None = None
        what = f"jobs of {queue.name!r} in {queue.store.url}"
        self._starting = Outage(f"Starting {what}", lease / CHECKS)
        self._keeping = Outage(f"Extending the leases of {what}")

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
        self._wake()

    def start(self) -> None:
        """Begin to check the leases."""
        self._timer = asyncio.get_running_loop().call_later(self.lease / CHECKS, self._check)

    def stop(self) -> None:
        """Check them no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._is_check_due = self._can_extend
        self._wake()
        self.start()

    def take_begun(self) -> list[InFlightJob]:
        """Take the jobs whose handlers have begun, and not ended yet, for the next call to the store."""
        begun = []
        with suppress(IndexError):
            while True:
                entry = self.begun_since.popleft()
                if entry.outcome is None and not entry.job.has_begun and not entry.job.ended:
                    begun.append(entry)
        return begun

    async def extend_due(self, finished: Sequence[InFlightJob]) -> None:
        """Extend the leases that need it, if it is time for a look at them.

        Also of finished jobs that could not be settled: the store may refuse the one call and not the other.
        """
        if not self._is_check_due:
            return
        self._is_check_due = False
        now = asyncio.get_running_loop().time()
        candidates = [*self.in_flight, *finished]
        due = [entry for entry in candidates if now - entry.leased_at >= self.lease * EXTEND_AFTER]
        begun = self.take_begun()
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

    async def report_beginning(self) -> None:
        """Report the jobs that must be reported before they begin."""
        if not self._beginning:
            return
        batch, self._beginning = self._beginning, []
        now = asyncio.get_running_loop().time()
        jobs = [entry.job for entry in batch]
        try:
            kept = await self.queue.extend_many(jobs, self.lease, begun=jobs)
        except Exception as problem:  # whatever a store's driver raises: they wait, or lose their leases
            waiting = [entry for entry in batch if not entry.is_lost]
            for entry in waiting:
                entry.attempts += 1
                if is_permanent(entry, problem):
                    self._on_begun(entry)  # a bug must not keep it from running
            self._beginning += [entry for entry in waiting if not is_permanent(entry, problem)]
            await self._starting.wait_out(problem)
            self._wake()
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


def is_permanent(entry: InFlightJob, problem: Exception) -> bool:
    """Whether a call about a job that failed would fail for ever."""
    return isinstance(problem, CallerError) or (isinstance(problem, BUGS) and entry.attempts >= ATTEMPTS_MAX)
