"""Handlers that are called with several jobs at once, and what runs them.

    BatchHandler   a function from a list of jobs to a list of what became of each: a result, or an exception
    BatchRunner    calls it in a thread, with all jobs that wait, up to `concurrency`; one call at a time

A call that overruns its time limit is given up: its jobs count as failed, and the next call begins.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

from penstock.queues import blocking
from penstock.worker.outcomes import InFlightJob, TimeLimitExceeded
from penstock.worker.runners import Runner, RunnerSettings, ThreadJob, unfinished_work


class BatchHandler:
    """A function of several jobs: it returns, for each in their order, a result or an exception."""

    def __init__(self, function: Callable[[Sequence[blocking.Job]], Sequence[object]]) -> None:
        self._function = function

    def __call__(self, jobs: Sequence[blocking.Job]) -> Sequence[object]:
        return self._function(jobs)


class BatchRunner(Runner):
    """One call at a time, with up to `concurrency` jobs."""

    def __init__(self, handler: BatchHandler, settings: RunnerSettings) -> None:
        super().__init__(settings)
        self._handler = handler
        self._inbox: list[InFlightJob] = []
        self._called: list[InFlightJob] = []  # of the call that runs
        self._is_due = False
        self._stuck = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> int:
        return len(self._called)

    def start(self, entry: InFlightJob) -> None:
        self.running.add(entry)
        self._inbox.append(entry)
        self._call_soon()

    def _call_soon(self) -> None:
        """Call the handler when all jobs that come in this turn of the loop are there."""
        if not self._is_due and not self._called and self._inbox:
            self._is_due = True
            self._loop.call_soon(self._call)

    def _call(self) -> None:
        self._is_due = False
        if self._called or not self._inbox:
            return
        batch, self._inbox = self._inbox[: self.concurrency], self._inbox[self.concurrency :]
        self._called = batch
        began = perf_counter()
        for entry in batch:
            entry.began = began
            if not entry.job.stored.has_begun:
                entry.settler.leases.begun_since.append(entry)
        if self._limit is not None:
            self._timer = self._loop.call_later(self._limit, self._overran, batch, self._limit)
        # A daemon: a function that hangs must not keep the process from ending.
        threading.Thread(target=self._work, args=(batch,), name="penstock-worker-batch", daemon=True).start()

    def _work(self, batch: list[InFlightJob]) -> None:
        results: Sequence[Any]
        try:
            for entry in batch:
                if self._on_start is not None and (rest := self._on_start(entry.job)) is not None:
                    asyncio.run_coroutine_threadsafe(rest, self._loop).result()
            results = self._handler([ThreadJob(entry.job, self._loop) for entry in batch])
            if len(results) != len(batch):
                raise TypeError(f"the handler must return a result for each of {len(batch)} jobs, got {len(results)}")
        except BaseException as problem:  # whatever a function raises ends only its jobs
            results = [problem] * len(batch)
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._take, batch, results)

    def _take(self, batch: list[InFlightJob], results: Sequence[Any]) -> None:
        if batch is self._called:
            self._end_call()
        else:
            self._stuck -= 1  # it was given up
        for entry, result in zip(batch, results, strict=True):
            if entry in self.running:
                problem = result if isinstance(result, BaseException) else unfinished_work(result)
                entry.result = None if problem is not None else result
                self._end(entry, problem, len(batch))
        self._call_soon()

    def _end_call(self) -> None:
        self._called = []
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, entry: InFlightJob, problem: BaseException | None, jobs: int) -> None:
        entry.seconds = (perf_counter() - (entry.began or perf_counter())) / jobs
        self.running.discard(entry)
        self._finished(entry, problem)

    def _overran(self, batch: list[InFlightJob], limit_s: float) -> None:
        reason = TimeLimitExceeded(f"it took longer than its time limit of {limit_s:g} s")
        self._end_call()
        self._stuck += 1
        for entry in batch:
            if entry in self.running:
                entry.job.lost = True
                entry.cancel_reason = reason
                self._end(entry, reason, 1)
        if self._stuck > self._max_stuck:
            self._on_stuck()
        else:
            self._call_soon()

    def cancel(self, entry: InFlightJob, reason: BaseException) -> bool:
        entry.cancel_reason = reason
        entry.job.lost = True
        if entry in self._inbox:
            self._inbox.remove(entry)
            self.running.discard(entry)
            return True
        self._end(entry, reason, 1)
        return False

    def lease_lost(self, entry: InFlightJob) -> bool:
        return False  # `job.lost` is set for the function

    def withdraw(self) -> list[InFlightJob]:
        waiting, self._inbox = self._inbox, []
        self.running.difference_update(waiting)
        return waiting

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
