"""One run of a worker: jobs come in, are run, and the store is told.

    prefetcher ── jobs ──> waiting ──> runner ── finished ──> settler ── settled ──> reporter
                              └───────────┴─────── lost ────────┘

Everything here happens in the event loop, except for plain handlers themselves.

Jobs that are redelivered from a worker that crashed may include the one that killed it. They begin one after the other,
each when the one before has ended or has run for TRIAL_S, and after the store knows of it. So only a job that kills its
worker at once, and those that run beside it, are charged with a try.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from penstock import DeadLetter, Exponential
from penstock.queues.aio import Job, Queue
from penstock.queues.backoff import Backoff, checked_delay
from penstock.queues.dead_letter import described
from penstock.worker.outcomes import ENDED, LOST, RELEASED, Action, InFlightJob, Outcome, WorkerStopped, outcome_of
from penstock.worker.prefetch import WAIT_S_MAX, Prefetcher
from penstock.worker.reporting import Reporter, log_event
from penstock.worker.runners import CANCEL_S, Finished, Runner
from penstock.worker.settling import Settler

SUMMARY_S = 5.0  # between two summaries
SETTLE_S = 10.0  # that a worker which stops waits for an unreachable store; then jobs come back when leases end
MEAN_OVER = 16  # jobs over which the mean of the run times goes
TRIAL_S = 0.1  # a redelivered job that has run for this long has not killed this worker at once
AFTER_CRASH_S = 10.0  # after the last redelivered job, in which fewer jobs are taken ahead


class Run:
    """A worker's jobs, from `open` to `shut_down`."""

    def __init__(
        self,
        queues: Sequence[Queue],
        make_runner: Callable[[Finished], Runner],
        reporter: Reporter,
        *,
        lease: float | None,
        backoff: Backoff,
        prefetch: int | None,
    ) -> None:
        self.prefetch = prefetch
        self.unsettled = 0  # jobs that the store has not been told of
        self.mean_run_s: float | None = None
        self._loop = asyncio.get_running_loop()
        self._reporter = reporter
        self._backoff = backoff
        self._runner = make_runner(self._finished)
        self.concurrency = self._runner.concurrency
        self._waiting: deque[InFlightJob] = deque()
        self._redelivered: deque[InFlightJob] = deque()  # jobs that wait, from a worker that crashed
        self._trial: InFlightJob | None = None  # the redelivered job that began last
        self._beginning: set[InFlightJob] = set()  # jobs that begin once the store knows of it
        self._redelivered_at: float | None = None  # when the last redelivered job came
        self._settlers = [
            Settler(queue, queue.lease if lease is None else lease, self._settled, self._lost, self._begun)
            for queue in queues
        ]
        self._settling: list[asyncio.Task[None]] = []
        self._prefetcher = Prefetcher(self, self._settlers, self._take)
        reporter.hook_ended = self._prefetcher.slot_freed
        self._last_end = self._loop.time()
        self._is_over = False
        self._quiet = asyncio.Event()
        self._handler_ended = asyncio.Event()

    @property
    def in_flight(self) -> int:
        return len(self._waiting) + len(self._redelivered) + len(self._beginning) + len(self._runner.running)

    @property
    def is_after_crash(self) -> bool:
        return self._redelivered_at is not None and self._loop.time() - self._redelivered_at < AFTER_CRASH_S

    @property
    def pending_hooks(self) -> int:
        return self._reporter.pending_hooks

    @property
    def idle_s(self) -> float:
        return self._loop.time() - self._last_end

    def _take(self, settler: Settler, jobs: list[Job]) -> None:
        """Accept jobs that were reserved."""
        now = self._loop.time()
        self.unsettled += len(jobs)
        for job in jobs:
            entry = InFlightJob(job, settler, now)
            settler.in_flight.add(entry)
            if job.stored.is_back:
                self._redelivered_at = now
                self._redelivered.append(entry)
            else:
                self._waiting.append(entry)
        self._start()

    def _start(self) -> None:
        waiting, runner = self._waiting, self._runner
        while not self._is_over:
            if self._redelivered and self._trial is None and self._has_idle_slot:
                self._trial = entry = self._redelivered.popleft()
            elif waiting and runner.has_room and (not (self._redelivered or self._beginning) or self._has_idle_slot):
                entry = waiting.popleft()
            else:
                return
            if entry.settler.must_begin_first(entry):
                self._beginning.add(entry)
                entry.settler.begin(entry)
            else:
                self._run(entry)

    @property
    def _has_idle_slot(self) -> bool:
        return self._runner.has_room and len(self._runner.running) + len(self._beginning) < self.concurrency

    def _begun(self, entry: InFlightJob) -> None:
        """Run a job, now that the store knows that it begins."""
        self._beginning.discard(entry)
        if self._is_over:
            self._settle(entry, RELEASED)
        else:
            self._run(entry)

    def _run(self, entry: InFlightJob) -> None:
        self._runner.start(entry)
        if entry is self._trial:
            self._loop.call_later(TRIAL_S, self._end_trial, entry)

    def _end_trial(self, entry: InFlightJob) -> None:
        """Let the next redelivered job begin."""
        if entry is self._trial:
            self._trial = None
            self._start()

    def _finished(self, entry: InFlightJob, problem: BaseException | None) -> None:
        """Settle a job whose handler has ended."""
        self._last_end = self._loop.time()
        mean = self.mean_run_s
        self.mean_run_s = entry.seconds if mean is None else mean + (entry.seconds - mean) / MEAN_OVER
        if entry.outcome is None:
            entry.problem = problem
            if entry.is_lost:
                self._settle(entry, LOST)
            elif entry.job.ended:
                self._settle(entry, ENDED)
            else:
                self._settle(entry, outcome_of(problem))
        self._end_trial(entry)
        self._start()
        self._prefetcher.slot_freed()
        self._handler_ended.set()

    def _settle(self, entry: InFlightJob, outcome: Outcome) -> None:
        entry.outcome = outcome if outcome.action is Action.ACK else self._final(entry, outcome)
        if entry.outcome.action in (Action.LOST, Action.ENDED):
            entry.settler.in_flight.discard(entry)
            self._settled([entry], [True])
        else:
            entry.settler.settle(entry)

    def _final(self, entry: InFlightJob, outcome: Outcome) -> Outcome:
        """Return the outcome after the queue's limit on tries and the back-off."""
        queue = entry.settler.queue
        action, delay = outcome.action, outcome.delay
        if action is Action.NACK and queue.is_last_try(entry.job.tries):
            action = Action.FAIL
        elif action is Action.FAIL and queue.name == (queue.dead_letter or DeadLetter()).queue:
            action = Action.NACK  # its queue is that of the dead letters: there is nowhere else to go
        if action is Action.NACK and delay is None:
            delay = self._pause_s(entry)
        return Outcome(action, delay, outcome.error, outcome.problem)

    def _pause_s(self, entry: InFlightJob) -> float:
        """Return the back-off of a job; the default one if the application's own fails, so that no job gets stuck."""
        job, queue = entry.job, entry.settler.queue
        try:
            return checked_delay((queue.backoff or self._backoff)(job.tries))
        except BaseException as problem:  # the application's code, whatever it raises
            text = described(problem)
            log_event(
                "hook",
                f"The back-off of {queue.name} {job.id} failed, and the default is used: {text}",
                problem,
                queue=queue.name,
                job=job.id,
                tries=job.tries,
                error=text,
            )
            return Exponential()(job.tries)

    def _settled(self, group: Sequence[InFlightJob], answers: Sequence[bool | None]) -> None:
        """Report jobs that the store was told of."""
        self.unsettled -= len(group)
        for entry, is_settled in zip(group, answers, strict=True):
            self._reporter.ended(entry, is_settled)
        if not self.unsettled:
            self._quiet.set()
        self._prefetcher.slot_freed()

    def _lost(self, entry: InFlightJob) -> None:
        """Drop a job whose lease could not be extended: it is another worker's."""
        entry.is_lost = entry.job.lost = True
        if entry not in self._runner.running:
            self._beginning.discard(entry)
            for place in (self._waiting, self._redelivered):
                with suppress(ValueError):
                    place.remove(entry)
            self._settle(entry, LOST)
            self._end_trial(entry)
        elif self._runner.lease_lost(entry):
            self._settle(entry, LOST)

    async def work(self, stop: asyncio.Event, until_empty: bool) -> None:
        """Take and run jobs until `stop` is set, or with `until_empty` until there are none."""
        if stop.is_set():
            return
        if until_empty:
            fetches = [self._prefetcher.fetch_until_empty()]
        else:
            fetches = [self._prefetcher.fetch(settler) for settler in self._settlers]
        tasks: list[asyncio.Task[Any]] = [self._loop.create_task(fetch) for fetch in fetches]
        tasks += [self._loop.create_task(stop.wait()), self._loop.create_task(self._tick())]
        try:
            await asyncio.wait([*tasks, *self._settling], return_when=asyncio.FIRST_COMPLETED)
        finally:
            # A reserve that is cancelled returns the jobs that the store has given it.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in [*tasks, *self._settling]:
            if task.done() and not task.cancelled():
                task.result()  # raises what ended it

    async def _tick(self) -> None:
        """Release jobs that wait too long, and log summaries."""
        next_summary = self._loop.time() + SUMMARY_S
        while True:
            await asyncio.sleep(WAIT_S_MAX)
            if self.prefetch is None and self.idle_s > WAIT_S_MAX:
                self._release_waiting()
            if self._loop.time() >= next_summary:
                next_summary = self._loop.time() + SUMMARY_S
                self._reporter.log_summary(self._runner.busy)

    def _release_waiting(self) -> None:
        """Return the jobs that have not begun."""
        unbegun = [*self._waiting, *self._redelivered, *self._runner.withdraw()]
        self._waiting.clear()
        self._redelivered.clear()
        for entry in unbegun:
            self._settle(entry, RELEASED)

    def open(self) -> None:
        """Start settling jobs."""
        self._settling = [self._loop.create_task(settler.run()) for settler in self._settlers]

    async def shut_down(self, timeout_s: float, now: asyncio.Event, abandon: asyncio.Event) -> None:
        """Return the jobs that wait, give running handlers `timeout_s` to end, then cancel them."""
        self._is_over = True
        self._release_waiting()
        if self._runner.running:
            await self._wait_for_handlers(timeout_s, now)
        why = WorkerStopped("the worker was stopped before the handler was done")
        for entry in list(self._runner.running):
            if self._runner.cancel(entry, why):
                self._settle(entry, RELEASED)
        if self._runner.running:
            await self._wait_for_handlers(CANCEL_S, abandon)
        for entry in list(self._runner.running):
            # The handler ignores that it was cancelled: its job goes back all the same.
            entry.problem = why
            self._settle(entry, outcome_of(why))
        self._runner.close()
        if self.unsettled:
            await self._wait_for_the_store()
        for task in self._settling:
            task.cancel()
        await asyncio.gather(*self._settling, return_exceptions=True)

    async def _wait_for_handlers(self, seconds: float, now: asyncio.Event) -> None:
        end = self._loop.time() + seconds
        stopped = self._loop.create_task(now.wait())
        try:
            while self._runner.running and not now.is_set() and self._loop.time() < end:
                self._handler_ended.clear()
                ended = self._loop.create_task(self._handler_ended.wait())
                await asyncio.wait({ended, stopped}, timeout=end - self._loop.time(), return_when="FIRST_COMPLETED")
                ended.cancel()
        finally:
            stopped.cancel()

    async def _wait_for_the_store(self) -> None:
        self._quiet.clear()
        try:
            async with asyncio.timeout(SETTLE_S):
                while self.unsettled:
                    self._quiet.clear()
                    await self._quiet.wait()
        except TimeoutError:
            self._reporter.log_unsettled(self.unsettled)
