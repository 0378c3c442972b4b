"""One run of a worker: jobs come in, are run, and their outcomes are sent to the store.

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
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import chain
from time import perf_counter
from typing import Any

from penstock import DeadLetter, Exponential
from penstock.errors import PenstockError
from penstock.queues.aio import Job, Queue
from penstock.queues.backoff import Backoff, checked_delay
from penstock.queues.dead_letter import Failure, described
from penstock.worker.outcomes import (
    DONE,
    ENDED,
    LOST,
    RELEASED,
    Action,
    InFlightJob,
    Outcome,
    WorkerStopped,
    final_outcome,
    outcome_of,
)
from penstock.worker.prefetch import WAIT_S_MAX, Admit, Prefetcher
from penstock.worker.reporting import Reporter, log_event
from penstock.worker.routes import Route, Router
from penstock.worker.runners import CANCEL_S, Finished, Runner
from penstock.worker.settling import Settler

SUMMARY_S = 5.0  # between two summaries
SAMPLE_S = 60.0  # between two samples of the queues' sizes, for events
SETTLE_S = 10.0  # that a worker which stops waits for an unreachable store; then jobs come back when leases end
MEAN_OVER = 16  # jobs over which the mean of the run times goes
TRIAL_S = 0.1  # a redelivered job that has run for this long has not killed this worker at once
LONG_S = 1.0  # a handler that has run for this long is told of to its route,
NOTE_S = 30.0  # and again after each of these
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
        admit: Admit | None = None,
        router: Router | None = None,
        claim: str | None = None,
    ) -> None:
        """With `claim`, its jobs are those of the one queue that are under that key: see `work_on`."""
        self.prefetch = prefetch
        self.unsettled = 0  # jobs whose outcome is not yet in the store
        self.mean_run_s: float | None = None
        self._loop = asyncio.get_running_loop()
        self._reporter = reporter
        self._backoff = backoff
        self._router = router
        self._runner = make_runner(self._finished)
        self.concurrency = self._runner.concurrency
        self._waiting: deque[InFlightJob] = deque()
        self._redelivered: deque[InFlightJob] = deque()  # jobs that wait, from a worker that crashed
        self._parked: dict[Route, deque[InFlightJob]] = {}  # jobs that wait, as enough of their kind run
        self._trial: InFlightJob | None = None  # the redelivered job that began last
        self._beginning: set[InFlightJob] = set()  # jobs that begin once the store knows of it
        self._redelivered_at: float | None = None  # when the last redelivered job came
        self._settlers = [
            Settler(
                queue,
                queue.lease if lease is None else lease,
                self._settled,
                self._lost,
                self._begun,
                self._kept,
                claim,
                counts_late=getattr(router, "counts_late", False),
            )
            for queue in queues
        ]
        self._settling: list[asyncio.Task[None]] = []
        self._prefetcher = Prefetcher(self, self._settlers, self._take, admit)
        reporter.hook_ended = self._prefetcher.slot_freed
        for queue in queues:
            queue.observe_exhausted(reporter.exhausted)
        self._steps: dict[asyncio.Task[None], InFlightJob] = {}  # of jobs whose handlers have ended
        self._ending = 0  # their number
        self._questions: set[asyncio.Task[None]] = set()  # whether jobs were cancelled, and notes of those that run
        self._noted: dict[InFlightJob, float] = {}  # when their routes were last told that they still run
        self._last_end = self._loop.time()
        self._is_over = False
        self._quiet = asyncio.Event()
        self._handler_ended = asyncio.Event()

    @property
    def in_flight(self) -> int:
        parked = sum(map(len, self._parked.values())) if self._parked else 0
        waiting = len(self._waiting) + len(self._redelivered) + len(self._beginning) + parked
        return waiting + len(self._runner.running) + self._ending

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
            settler.leases.in_flight.add(entry)
            if self._router is not None:
                entry.route = self._router.route(job)
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
            route = entry.route
            if route is not None and route.concurrency is not None:
                if route.is_full:
                    self._park(entry, route)
                    continue
                route.running += 1
            if entry.settler.leases.must_begin_first(entry):
                self._beginning.add(entry)
                entry.settler.leases.begin(entry)
            else:
                self._run(entry)

    def _park(self, entry: InFlightJob, route: Route) -> None:
        """Let a job wait until another one of its kind has ended."""
        self._parked.setdefault(route, deque()).append(entry)
        if entry is self._trial:
            self._trial = None

    def _leave_route(self, entry: InFlightJob) -> None:
        """Note that a job which had begun, or was about to, no longer counts among those of its kind."""
        route = entry.route
        if route is None or route.concurrency is None:
            return
        route.running -= 1
        parked = self._parked.get(route)
        if parked:
            self._waiting.appendleft(parked.popleft())
            if not parked:
                del self._parked[route]

    @property
    def _has_idle_slot(self) -> bool:
        return self._runner.has_room and len(self._runner.running) + len(self._beginning) < self.concurrency

    def _begun(self, entry: InFlightJob) -> None:
        """Run a job, now that the store knows that it begins."""
        self._beginning.discard(entry)
        if self._is_over:
            self._leave_route(entry)
            self._settle(entry, RELEASED)
        else:
            self._run(entry)

    def _run(self, entry: InFlightJob) -> None:
        entry.settler.queue.note_begun(entry.job)
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
        self._leave_route(entry)
        if entry.outcome is None:
            entry.problem = problem
            if entry.is_lost:
                self._settle(entry, LOST)
            elif entry.is_cancelled:
                self._settle(entry, DONE)
            elif entry.job.ended:
                self._settle(entry, ENDED)
            elif problem is None and entry.route is not None and entry.route.done is not None:
                self._end_later(entry, self._after_done(entry, entry.route.done))
            else:
                self._settle(entry, self._checked(entry, outcome_of(problem, entry.result)))
                entry.result = None
        self._end_trial(entry)
        self._start()
        self._prefetcher.slot_freed()
        self._handler_ended.set()

    def _checked(self, entry: InFlightJob, outcome: Outcome) -> Outcome:
        """Check a move now, by itself: a payload that can't be stored must not hold up the other jobs of a batch."""
        if outcome.destination is None:
            return outcome
        try:
            entry.transfer = outcome.destination.transfer(entry.job)
        except Exception as problem:  # a name or a payload that the store refuses, whatever it raises
            entry.problem = problem
            return outcome_of(problem)
        return outcome

    def _end_later(self, entry: InFlightJob, step: Coroutine[Any, Any, None]) -> None:
        """Run the last step of a job, while its lease is extended."""
        self._ending += 1
        task = self._loop.create_task(step)
        self._steps[task] = entry
        task.add_done_callback(self._step_ended)

    def _step_ended(self, task: asyncio.Task[None]) -> None:
        self._ending -= 1
        entry = self._steps.pop(task)
        if task.cancelled() and entry.outcome is None:
            entry.problem = WorkerStopped("the worker was stopped before the job was settled")
            self._settle(entry, outcome_of(entry.problem))
        self._start()
        self._prefetcher.slot_freed()
        self._handler_ended.set()

    async def _after_done(self, entry: InFlightJob, done: Callable[[Job, Any, float], Awaitable[Outcome]]) -> None:
        try:
            outcome = self._checked(entry, await done(entry.job, entry.result, entry.seconds))
        except Exception as problem:  # whatever the application's code raises, or the store
            entry.problem = problem
            outcome = outcome_of(problem)
        entry.result = None
        self._settle(entry, LOST if entry.is_lost else outcome)

    async def _after_failed(
        self, entry: InFlightJob, outcome: Outcome, failed: Callable[[Job, Failure], Awaitable[None]]
    ) -> None:
        try:
            await failed(entry.job, outcome.failure)
        except Exception as problem:  # the same; the job must not stay because of it
            text = described(problem)
            log_event(
                "hook", f"What follows the failure of {entry.job.queue.name} {entry.job.id} failed: {text}", problem
            )
        entry.outcome = LOST if entry.is_lost else outcome
        self._send(entry)

    def _settle(self, entry: InFlightJob, outcome: Outcome) -> None:
        final = outcome
        if outcome.action not in (Action.ACK, Action.MOVE):
            queue = entry.settler.queue
            is_dead_letter = queue.name == (queue.dead_letter or DeadLetter()).queue
            is_last_try = entry.settler.leases.is_last_try(entry)
            final = final_outcome(outcome, is_last_try, is_dead_letter, lambda: self._pause_s(entry))
        if final.action is Action.FAIL and entry.route is not None and entry.route.failed is not None:
            self._end_later(entry, self._after_failed(entry, final, entry.route.failed))
            return
        entry.outcome = final
        self._send(entry)

    def _send(self, entry: InFlightJob) -> None:
        assert entry.outcome is not None
        if entry.outcome.action in (Action.LOST, Action.ENDED):
            entry.settler.leases.in_flight.discard(entry)
            self._settled([entry], [True])
        else:
            entry.settler.settle(entry)

    def _pause_s(self, entry: InFlightJob) -> float:
        """Return the back-off of a job; the default one if the application's own fails, so that no job gets stuck."""
        job, queue = entry.job, entry.settler.queue
        try:
            own = None if entry.route is None else entry.route.backoff
            return checked_delay((own or queue.backoff or self._backoff)(job.tries))
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
        """Report jobs whose outcomes were sent."""
        self.unsettled -= len(group)
        for entry, is_settled in zip(group, answers, strict=True):
            self._reporter.ended(entry, is_settled)
        if not self.unsettled:
            self._quiet.set()
        self._prefetcher.slot_freed()

    def _lost(self, entry: InFlightJob) -> None:
        """Drop a job whose lease could not be extended: it is another worker's."""
        entry.is_lost = entry.job.lost = True
        if entry in self._steps.values():
            return  # its handler has ended: the step sees that the lease is gone
        if entry not in self._runner.running:
            if entry in self._beginning:
                self._beginning.discard(entry)
                self._leave_route(entry)
            for place in (self._waiting, self._redelivered, *self._parked.values()):
                with suppress(ValueError):
                    place.remove(entry)
            self._settle(entry, LOST)
            self._end_trial(entry)
        elif self._runner.lease_lost(entry):
            self._leave_route(entry)
            self._settle(entry, LOST)

    def _kept(self, entry: InFlightJob) -> None:
        """Ask whether a job was cancelled, after its lease was extended."""
        route = entry.route
        if route is not None and route.is_cancelled is not None and not entry.is_cancelled:
            self._ask(self._stop_cancelled(entry, route.is_cancelled))

    def _ask(self, question: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(question)
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    async def _stop_cancelled(self, entry: InFlightJob, is_cancelled: Callable[[Job], Awaitable[bool]]) -> None:
        try:
            if not await is_cancelled(entry.job) or entry.outcome is not None or entry.is_lost:
                return
        except Exception:  # whatever the store raises: the next extension asks again
            return
        entry.is_cancelled = entry.job.lost = True
        log_event(
            "cancelled",
            f"{entry.job.queue.name} {entry.job.id} was cancelled",
            queue=entry.job.queue.name,
            job=entry.job.id,
        )
        # One that has not begun yet finds it out by itself.
        if entry in self._runner.running and self._runner.lease_lost(entry):
            self._leave_route(entry)
            self._settle(entry, DONE)

    def _note_long_runs(self) -> None:
        """Tell the routes of jobs that have run for some time. Short ones cost nothing: this looks once in a while."""
        now = perf_counter()
        noted: dict[InFlightJob, float] = {}
        for entry in self._runner.running:
            route, began = entry.route, entry.began
            if route is None or route.still_runs is None or began is None or now - began < LONG_S:
                continue
            last = self._noted.get(entry)
            if last is None or now - last >= NOTE_S:
                self._ask(self._note(entry, route.still_runs(entry.job, now - began)))
                last = now
            noted[entry] = last
        self._noted = noted

    async def _note(self, entry: InFlightJob, note: Awaitable[None]) -> None:
        try:
            await note
        except Exception:  # whatever the store raises: the next look tries again
            self._noted.pop(entry, None)

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
        tasks.append(self._loop.create_task(self._sample()))
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

    async def work_on(self, jobs: Sequence[Job], seconds: float, *, one_by_one: bool = False) -> None:
        """Run these jobs; return those that have not begun after `seconds`, as they were."""
        (settler,) = self._settlers
        end = self._loop.time() + seconds
        if not one_by_one:
            self._take(settler, list(jobs))
            await self._until_settled(seconds)
        else:
            for at, job in enumerate(jobs):
                self._take(settler, [job] if self._loop.time() < end else list(jobs[at:]))
                if self._loop.time() >= end:
                    break
                await self._until_settled(None)
        self._release_waiting()
        await self._until_settled(None)

    def nack(self, job: Job, problem: BaseException) -> None:
        """Return a job that is not run, as if its handler had raised this."""
        (settler,) = self._settlers
        entry = InFlightJob(job, settler, self._loop.time())
        entry.problem = problem
        self.unsettled += 1
        self._settle(entry, outcome_of(problem))

    async def _until_settled(self, seconds: float | None) -> None:
        """Wait until all jobs are settled, or the time is over."""
        if not self.unsettled:
            return
        self._quiet.clear()
        quiet = self._loop.create_task(self._quiet.wait())
        try:
            await asyncio.wait({quiet, *self._settling}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            quiet.cancel()
        for task in self._settling:
            if task.done():
                task.result()  # raises what ended it

    async def _tick(self) -> None:
        """Release jobs that wait too long, note those that run for long, and log summaries."""
        next_summary = self._loop.time() + SUMMARY_S
        while True:
            await asyncio.sleep(WAIT_S_MAX)
            if self.prefetch is None and self.idle_s > WAIT_S_MAX:
                self._release_waiting()
            self._note_long_runs()
            if self._loop.time() >= next_summary:
                next_summary = self._loop.time() + SUMMARY_S
                self._reporter.log_summary(self._runner.busy)

    async def _sample(self) -> None:
        """Record the sizes of the queues each minute, where events are recorded."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            for settler in self._settlers:
                with suppress(PenstockError):  # the next minute will do
                    await settler.queue.note_size()

    def _release_waiting(self) -> None:
        """Return the jobs that have not begun."""
        withdrawn = self._runner.withdraw()
        unbegun = [*self._waiting, *self._redelivered, *withdrawn, *chain.from_iterable(self._parked.values())]
        self._parked.clear()
        self._waiting.clear()
        self._redelivered.clear()
        for entry in withdrawn:
            self._leave_route(entry)
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
                self._leave_route(entry)
                self._settle(entry, RELEASED)
        if self._runner.running:
            await self._wait_for_handlers(CANCEL_S, abandon)
        for entry in list(self._runner.running):
            # The handler ignores that it was cancelled: its job goes back all the same.
            entry.problem = why
            self._settle(entry, outcome_of(why))
        self._runner.close()
        for task in self._questions:
            task.cancel()
        if self._steps:
            await asyncio.wait(self._steps, timeout=SETTLE_S)
            for task in self._steps:
                task.cancel()
            if self._steps:
                await asyncio.wait(self._steps, timeout=CANCEL_S)
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
