"""Tests of an app: its tasks run in memory, at once and in order, with a clock that stands still until it is moved.

    with app.testing() as testing:
        handle = welcome.blocking.push(42)
        testing.run()
        testing.clock.advance(days=1)

In an event loop it is `async with app.testing() as testing`, and `run` and `advance` are awaited. Everything is done by
the worker and the memory store that programs use; only the URL and the time are others. What a task raises is raised in
the test once its job is given up; an error that is followed by another try is not.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.errors import CallerError
from penstock.queues.dead_letter import ERROR
from penstock.tasks.scheduler import Scheduler
from penstock.worker import Fail, Summary

if TYPE_CHECKING:
    from penstock.queues.aio import Store
    from penstock.tasks.app import App
    from penstock.tasks.running import TaskJob

_numbers = itertools.count(1)
STEPS_MAX = 1_000_000  # times at which something is due within one advance: more is a task that pushes itself for ever


class FrozenTime:
    """The time of an app under test: it stands still."""

    def __init__(self, start: datetime | None) -> None:
        if start is not None and start.tzinfo is None:
            raise CallerError(f"start must have a time zone, as datetime.now(UTC) has one, got {start!r}")
        self.seconds = float(int(time.time() if start is None else start.timestamp()))  # stores keep milliseconds
        self.is_running = False  # whether the test runs tasks now

    def now(self) -> float:
        """Return the unix time."""
        return self.seconds

    def set_store(self, store: Any) -> None:
        """Let a store's clock show this time."""
        store.freeze_clock(self.now)


class _Steps:
    """What both forms do."""

    def __init__(self, app: App, start: datetime | None) -> None:
        self.app = app
        self.time = FrozenTime(start)
        self._scheduler = Scheduler(app)
        self.errors: dict[str, BaseException] = {}  # the last one of each job
        self._seen: set[str] = set()  # dead letters that were raised
        self._before: dict[str, Any] = {}

    def begin(self) -> None:
        self._before = self.app.replace_store(f"memory:testing-{next(_numbers)}", self.time, self._note)

    def end(self) -> None:
        self.app.restore_store(self._before)

    def _note(self, job: TaskJob, error: BaseException) -> None:
        self.errors[job.job_id] = error

    async def run(self, raises: bool) -> Summary:
        if self.app.crons:
            await self._scheduler.step()
        self.time.is_running = True
        try:
            summary = await self.app.worker(concurrency=1).run(until_empty=True)
        finally:
            self.time.is_running = False
        if raises:
            await self._raise_first(self.app.client.store)
        return summary

    async def _raise_first(self, store: Store) -> None:
        new = [job async for job in store.dead_letters().jobs() if job.id not in self._seen]
        self._seen.update(job.id for job in new)
        for job in new:
            raise self.errors.get(job.id) or Fail(str(job.headers.get(ERROR, "")))

    async def advance(self, delta: timedelta, raises: bool) -> Summary:
        if delta < timedelta(0):
            raise CallerError(f"the clock can't go back, got {delta}")
        end = self.time.seconds + delta.total_seconds()
        total = await self.run(raises)
        for _ in range(STEPS_MAX):
            due = await self._next_time()
            if due is None or due > end:
                break
            self.time.seconds = max(self.time.seconds, due)
            total.add((await self.run(raises)).counts())
        else:
            raise CallerError(f"more than {STEPS_MAX} jobs were due within {delta}: does a task push itself?")
        self.time.seconds = end
        total.add((await self.run(raises)).counts())
        return total

    async def _next_time(self) -> float | None:
        """Return when a job is due that waits now."""
        store = self.app.client.store
        times = []
        for name in self.app.known_queues():
            due = await store.queue(name).next_mature()
            times += [] if due is None else [due]
        if self.app.crons:
            times.append(await self._scheduler.step())
        return min(times, default=None)


class Testing:
    """An app under test, in a program without an event loop."""

    __test__ = False  # pytest takes a class of this name for a test

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps
        self.app = steps.app
        self.clock = Clock(steps)

    def run(self, *, raises: bool = True) -> Summary:
        """Run everything that is ready, and what it pushes; raises what a task raised that was given up."""
        return _alone(self._steps, self._steps.run(raises))


class Clock:
    """The clock of a test."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps

    @property
    def now(self) -> datetime:
        """The time, in UTC."""
        return datetime.fromtimestamp(self._steps.time.seconds, UTC)

    def advance(self, *, raises: bool = True, **delta: float) -> Summary:
        """Let time pass, as in `advance(days=1)`: what becomes due meanwhile runs at its time, in order."""
        return _alone(self._steps, self._steps.advance(timedelta(**delta), raises))


class AsyncTesting:
    """An app under test, in an event loop."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps
        self.app = steps.app
        self.clock = AsyncClock(steps)

    async def run(self, *, raises: bool = True) -> Summary:
        """Run everything that is ready, and what it pushes; raises what a task raised that was given up."""
        return await self._steps.run(raises)


class AsyncClock:
    """The clock of a test, in an event loop."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps

    @property
    def now(self) -> datetime:
        """The time, in UTC."""
        return datetime.fromtimestamp(self._steps.time.seconds, UTC)

    async def advance(self, *, raises: bool = True, **delta: float) -> Summary:
        """Let time pass, as in `advance(days=1)`: what becomes due meanwhile runs at its time, in order."""
        return await self._steps.advance(timedelta(**delta), raises)


def _alone(steps: _Steps, work: Any) -> Summary:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        work.close()
        raise CallerError("an event loop runs here: use `async with app.testing()`, and await run() and advance()")

    async def run() -> Summary:
        async with steps.app:
            summary: Summary = await work
            return summary

    return asyncio.run(run())


class TestingContext:
    """What `app.testing()` returns: for `with`, or for `async with`."""

    __test__ = False  # the same

    def __init__(self, app: App, start: datetime | None) -> None:
        self._steps = _Steps(app, start)

    def __enter__(self) -> Testing:
        self._steps.begin()
        return Testing(self._steps)

    def __exit__(self, *_: object) -> None:
        self._steps.end()

    async def __aenter__(self) -> AsyncTesting:
        self._steps.begin()
        return AsyncTesting(self._steps)

    async def __aexit__(self, *_: object) -> None:
        await self._steps.app.close()
        self._steps.end()
