"""Sends the outcome of jobs to the store.

There is one settler for each queue. It makes one call at a time, with everything that was collected during the one
before: the slower the store, the larger the batches. Between these calls its lease extender makes its own
(`lease_extender`).

While the store is unreachable, calls are repeated: the token makes sure that a late ack does no harm. After a bug in
code, such as a TypeError out of a driver, they are repeated a few times; then the job is left to its lease.

Of a claim's jobs, whoever made the claim extends the leases, and on most stores that changes their tokens. What is
refused for an old token is asked again with the new one, if the job is still under the claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.errors import LeaseLost
from penstock.queues.aio import Queue
from penstock.queues.dead_letter import described
from penstock.worker.lease_extender import CHECKS, LeaseExtender, is_permanent
from penstock.worker.outcomes import Action, InFlightJob, Outcome
from penstock.worker.reporting import Outage, log_event

RENEWALS_MAX = 5  # of tokens, for one call: leases are extended far less often than calls are made


class Settler:
    """Acks, nacks, fails and moves the jobs of one queue."""

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
        self._wake = asyncio.Event()
        self.leases = LeaseExtender(
            queue,
            lease,
            self._wake.set,
            on_lost,
            on_begun,
            on_kept,
            is_claim=claim is not None,
            counts_late=counts_late,
        )
        self._on_settled = on_settled  # called with True, with False if the lease was gone, with None if it is unknown
        self._on_lost = on_lost
        self._waiting: list[InFlightJob] = []
        self._ending = Outage(f"Settling jobs of {queue.name!r} in {queue.store.url}", lease / CHECKS)
        self._calls = {
            Action.ACK: self._ack,
            Action.NACK: self._nack,
            Action.FAIL: self._fail,
            Action.RELEASE: self._release,
            Action.MOVE: self._move,
        }

    def settle(self, entry: InFlightJob) -> None:
        """Send the outcome of a job to the store soon."""
        self.leases.in_flight.discard(entry)
        self._waiting.append(entry)
        self._wake.set()

    async def run(self) -> None:
        """Settle jobs and extend leases, until cancelled."""
        self.leases.start()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self.leases.extend_due(self._waiting)
                if self._waiting:
                    await self._settle_all()
                # Last: finished jobs are settled before one begins that may kill this process.
                await self.leases.report_beginning()
        finally:
            self.leases.stop()

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
            self._give_up([entry for entry in group if is_permanent(entry, problem)], problem)
            again = [entry for entry in group if not is_permanent(entry, problem)]
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
        for entry in (*group, *self._waiting, *self.leases.in_flight):
            if entry.job.id in tokens:
                entry.job.stored.token = tokens[entry.job.id]
        for entry in [entry for entry in self.leases.in_flight if entry.job.id not in tokens]:
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
        begun = self.leases.take_begun()
        try:
            return await self.queue.ack_many([entry.job for entry in group], [entry.job for entry in begun])
        except BaseException:
            self.leases.begun_since.extend(begun)
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


def _confirmed(entry: InFlightJob, answer: bool | None) -> bool | None:
    # A refusal after a lost answer: most likely the first call did it.
    return None if answer is False and entry.attempts else answer
