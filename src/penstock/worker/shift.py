"""One run of a worker: jobs come in, are run, and the store is told.

    intake ── took ──> waiting ──> runner ── finished ──> settler ── told ──> reporter
                          └───────────┴──────── lost ────────┘

Everything here happens in the event loop, but for plain handlers themselves.

Jobs that come back from a worker that died may include the one that killed it. They begin one after the other, the next
one when the last has ended or has run for TRIAL_S, and each after the store knows of it: so only the one that kills its
worker at once, and what runs beside it, is charged with a try.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from penstock.queues.aio import Job, Queue
from penstock.queues.backoff import Backoff, Exponential, checked_delay
from penstock.queues.dead_letter import DeadLetter, described
from penstock.worker.choices import ENDED, LOST, RELEASED, Kind, Stopped, Verdict, verdict_of
from penstock.worker.events import say
from penstock.worker.held import Held
from penstock.worker.intake import WAIT_S_MAX, Intake
from penstock.worker.reporting import Reporter
from penstock.worker.running import CANCEL_S, Finished, Runner
from penstock.worker.settling import Settler

SUMMARY_S = 5.0  # between two summaries
GIVE_BACK_S = 10.0  # how long a worker that stops waits for a store that is away; leases do the rest
MEAN_OVER = 16  # jobs over which the mean of the run times goes
TRIAL_S = 0.1  # after which a job that came back from a worker that died has not killed this one at once
AFTER_DEATH_S = 10.0  # so long after the last job from a worker that died, fewer jobs are taken ahead


class Shift:
    """A worker at work."""

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
        self._waiting: deque[Held] = deque()
        self._back: deque[Held] = deque()  # jobs that wait and come back from a worker that died
        self._trial: Held | None = None  # the one of those that began last
        self._beginning: set[Held] = set()  # jobs that begin when the store knows of it
        self._death_seen: float | None = None  # when the last job came from a worker that died
        self._settlers = [
            Settler(queue, queue.lease if lease is None else lease, self._told, self._lost, self._begun)
            for queue in queues
        ]
        self._settling: list[asyncio.Task[None]] = []
        self._intake = Intake(self, self._settlers)
        reporter.hook_ended = self._intake.freed
        self._last_end = self._loop.time()
        self._is_over = False
        self._quiet = asyncio.Event()
        self._idle = asyncio.Event()  # set when a handler ended: whoever waits for the last one looks again

    @property
    def in_hand(self) -> int:
        return len(self._waiting) + len(self._back) + len(self._beginning) + len(self._runner.running)

    @property
    def is_after_death(self) -> bool:
        return self._death_seen is not None and self._loop.time() - self._death_seen < AFTER_DEATH_S

    @property
    def pending_hooks(self) -> int:
        return self._reporter.pending_hooks

    @property
    def idle_s(self) -> float:
        return self._loop.time() - self._last_end

    def took(self, settler: Settler, jobs: list[Job]) -> None:
        """Jobs have come."""
        now = self._loop.time()
        self.unsettled += len(jobs)
        for job in jobs:
            held = Held(job, settler, now)
            settler.in_hand.add(held)
            if job.stored.is_back:
                self._death_seen = now
                self._back.append(held)
            else:
                self._waiting.append(held)
        self._start()

    def _start(self) -> None:
        waiting, runner = self._waiting, self._runner
        while not self._is_over:
            if self._back and self._trial is None and self._has_idle_hands:
                self._trial = held = self._back.popleft()
            elif waiting and runner.has_room and (not (self._back or self._beginning) or self._has_idle_hands):
                held = waiting.popleft()
            else:
                return
            if held.settler.must_begin_first(held):
                self._beginning.add(held)
                held.settler.begin(held)
            else:
                self._run(held)

    @property
    def _has_idle_hands(self) -> bool:
        return self._runner.has_room and len(self._runner.running) + len(self._beginning) < self.concurrency

    def _begun(self, held: Held) -> None:
        """The store knows that a job begins."""
        self._beginning.discard(held)
        if self._is_over:
            self._settle(held, RELEASED)
        else:
            self._run(held)

    def _run(self, held: Held) -> None:
        self._runner.start(held)
        if held is self._trial:
            self._loop.call_later(TRIAL_S, self._end_trial, held)

    def _end_trial(self, held: Held) -> None:
        """Another job that comes back from a worker that died may begin."""
        if held is self._trial:
            self._trial = None
            self._start()

    def _finished(self, held: Held, problem: BaseException | None) -> None:
        """A handler has ended."""
        self._last_end = self._loop.time()
        mean = self.mean_run_s
        self.mean_run_s = held.seconds if mean is None else mean + (held.seconds - mean) / MEAN_OVER
        if held.verdict is None:
            held.problem = problem
            if held.is_lost:
                self._settle(held, LOST)
            elif held.job.ended:
                self._settle(held, ENDED)
            else:
                self._settle(held, verdict_of(problem))
        self._end_trial(held)
        self._start()
        self._intake.freed()
        self._idle.set()

    def _settle(self, held: Held, verdict: Verdict) -> None:
        held.verdict = verdict if verdict.kind is Kind.ACK else self._final(held, verdict)
        if held.verdict.kind in (Kind.LOST, Kind.ENDED):
            held.settler.in_hand.discard(held)
            self._told([held], [True])
        else:
            held.settler.settle(held)

    def _final(self, held: Held, verdict: Verdict) -> Verdict:
        """The verdict, with what the queue's limit on tries and the back-off say."""
        queue = held.settler.queue
        kind, delay = verdict.kind, verdict.delay
        if kind is Kind.NACK and queue.is_last_try(held.job.tries):
            kind = Kind.FAIL
        elif kind is Kind.FAIL and queue.name == (queue.dead_letter or DeadLetter()).queue:
            kind = Kind.NACK  # it is where the dead letters are: there is nowhere else to go
        if kind is Kind.NACK and delay is None:
            delay = self._pause_s(held)
        return Verdict(kind, delay, verdict.error, verdict.problem)

    def _pause_s(self, held: Held) -> float:
        """How long a job waits by the back-off; by the usual one if that goes wrong, so that no job is kept by it."""
        job, queue = held.job, held.settler.queue
        try:
            return checked_delay((queue.backoff or self._backoff)(job.tries))
        except BaseException as problem:  # the application's code, whatever it raises
            text = described(problem)
            say(
                "hook",
                f"The back-off of {queue.name} {job.id} is wrong, and the usual one is taken: {text}",
                problem,
                queue=queue.name,
                job=job.id,
                tries=job.tries,
                error=text,
            )
            return Exponential()(job.tries)

    def _told(self, group: Sequence[Held], answers: Sequence[bool | None]) -> None:
        """The store knows."""
        self.unsettled -= len(group)
        for held, is_told in zip(group, answers, strict=True):
            self._reporter.ended(held, is_told)
        if not self.unsettled:
            self._quiet.set()
        self._intake.freed()

    def _lost(self, held: Held) -> None:
        """A lease could not be made longer: the job is another worker's."""
        held.is_lost = held.job.lost = True
        if held not in self._runner.running:
            self._beginning.discard(held)
            for place in (self._waiting, self._back):
                with suppress(ValueError):
                    place.remove(held)
            self._settle(held, LOST)
            self._end_trial(held)
        elif self._runner.lose(held):
            self._settle(held, LOST)

    async def work(self, stop: asyncio.Event, until_empty: bool) -> None:
        """Take and run jobs until told to stop, or until there are none."""
        if stop.is_set():
            return
        if until_empty:
            feeders = [self._intake.feed_until_empty()]
        else:
            feeders = [self._intake.feed(settler) for settler in self._settlers]
        tasks: list[asyncio.Task[Any]] = [self._loop.create_task(feeder) for feeder in feeders]
        tasks += [self._loop.create_task(stop.wait()), self._loop.create_task(self._tick())]
        try:
            await asyncio.wait([*tasks, *self._settling], return_when=asyncio.FIRST_COMPLETED)
        finally:
            # A feeder that is cancelled gives back what the store has for it.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in [*tasks, *self._settling]:
            if task.done() and not task.cancelled():
                task.result()  # raises what ended it

    async def _tick(self) -> None:
        """What must be seen to from time to time."""
        next_summary = self._loop.time() + SUMMARY_S
        while True:
            await asyncio.sleep(WAIT_S_MAX)
            if self.prefetch is None and self.idle_s > WAIT_S_MAX:
                self._release_waiting()
            if self._loop.time() >= next_summary:
                next_summary = self._loop.time() + SUMMARY_S
                self._reporter.say_summary(self._runner.busy)

    def _release_waiting(self) -> None:
        """Jobs that have not begun go back."""
        unbegun = [*self._waiting, *self._back, *self._runner.take_back()]
        self._waiting.clear()
        self._back.clear()
        for held in unbegun:
            self._settle(held, RELEASED)

    def open(self) -> None:
        """Begin to tell the store what becomes of jobs."""
        self._settling = [self._loop.create_task(settler.run()) for settler in self._settlers]

    async def wind_down(self, stop_within: float, now: asyncio.Event, abandon: asyncio.Event) -> None:
        """No more jobs: let the running ones end, and give back the others."""
        self._is_over = True
        self._release_waiting()
        if self._runner.running:
            await self._wait_for_handlers(stop_within, now)
        why = Stopped("the worker was stopped before the handler was done")
        for held in list(self._runner.running):
            if self._runner.cut(held, why):
                self._settle(held, RELEASED)
        if self._runner.running:
            await self._wait_for_handlers(CANCEL_S, abandon)
        for held in list(self._runner.running):
            # It won't be cancelled: its job goes back all the same.
            held.problem = why
            self._settle(held, verdict_of(why))
        self._runner.close()
        if self.unsettled:
            await self._wait_for_the_store()
        for task in self._settling:
            task.cancel()
        await asyncio.gather(*self._settling, return_exceptions=True)

    async def _wait_for_handlers(self, seconds: float, now: asyncio.Event) -> None:
        end = self._loop.time() + seconds
        cut_short = self._loop.create_task(now.wait())
        try:
            while self._runner.running and not now.is_set() and self._loop.time() < end:
                self._idle.clear()
                ended = self._loop.create_task(self._idle.wait())
                await asyncio.wait({ended, cut_short}, timeout=end - self._loop.time(), return_when="FIRST_COMPLETED")
                ended.cancel()
        finally:
            cut_short.cancel()

    async def _wait_for_the_store(self) -> None:
        self._quiet.clear()
        try:
            async with asyncio.timeout(GIVE_BACK_S):
                while self.unsettled:
                    self._quiet.clear()
                    await self._quiet.wait()
        except TimeoutError:
            self._reporter.gave_up(self.unsettled)
