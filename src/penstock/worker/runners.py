"""Runs handlers: async ones as tasks, plain ones in threads.

    TaskRunner     a task for each job
    ThreadRunner   threads that take jobs from an inbox; ThreadJob is what a plain handler is called with
    RoutedRunner   both, for jobs that have a route

A handler that overruns its time limit is cancelled. A thread can't be cancelled, and a task may ignore it: such a
handler is given up, at once or after CANCEL_S. Its job counts as failed, `job.lost` is set for the handler, and another
job gets its slot. When more than `max_stuck` of them still run, the worker must be replaced as a whole, which is said
by `on_stuck`. What still runs when the worker ends is left behind: no event loop waits for it.

To go through the event loop for each job would cost more than a short plain function does. So jobs lie in an inbox that
the threads take from, one after the other, and results lie in an outbox; the loop is woken for the first of them, and
takes all that have come by then.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, TypeVar, cast

from penstock.errors import CallerError, LeaseLost
from penstock.queues import blocking
from penstock.queues.aio import Job, Queue, Store
from penstock.queues.dead_letter import Error
from penstock.queues.push import UNCHANGED, Duration
from penstock.worker.outcomes import InFlightJob, TimeLimitExceeded

CANCEL_S = 5.0  # that a cancelled handler gets to end
OVERRUN_CHECKS = 10  # within a time limit, for threads: an overrun is found at most a tenth too late

# Called in the event loop with a job whose handler has ended, and with what it raised.
Finished = Callable[[InFlightJob, BaseException | None], None]
# Called before a handler; returns what is to be awaited before it begins.
OnStart = Callable[[Job], Coroutine[Any, Any, None] | None]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """What a worker wants of its runner."""

    concurrency: int
    time_limit: float | None  # of a handler, in seconds
    finished: Finished
    on_start: OnStart | None
    max_stuck: int
    on_stuck: Callable[[], None]  # called when more handlers than that were given up and still run


class Runner:
    """What a run needs of its runner."""

    def __init__(self, settings: RunnerSettings) -> None:
        self.concurrency = settings.concurrency
        self.running: set[InFlightJob] = set()
        self._finished = settings.finished
        self._limit = settings.time_limit
        self._on_start = settings.on_start
        self._max_stuck = settings.max_stuck
        self._on_stuck = settings.on_stuck
        self._loop = asyncio.get_running_loop()

    @property
    def has_room(self) -> bool:
        """Whether another job may be started."""
        return len(self.running) < self.concurrency

    @property
    def busy(self) -> int:
        """Return the number of handlers that run."""
        return len(self.running)

    def start(self, entry: InFlightJob) -> None:
        """Run the handler of a job soon."""
        raise NotImplementedError

    def cancel(self, entry: InFlightJob, reason: BaseException) -> bool:
        """Cancel a handler if possible. Returns True if it had not begun: then `finished` is not called for it."""
        raise NotImplementedError

    def lease_lost(self, entry: InFlightJob) -> bool:
        """Cancel a handler whose job has lost its lease; returns what `cancel` does."""
        raise NotImplementedError

    def withdraw(self) -> list[InFlightJob]:
        """Return the jobs that were started and have not begun; they won't run."""
        return []

    def close(self) -> None:
        """Stop; no more jobs are started."""


def unfinished_work(result: object) -> TypeError | None:
    """Return an error if a handler returned work that nobody will do: then its job is not done."""
    if inspect.iscoroutine(result):
        result.close()  # or Python warns, long after
        return TypeError("the handler returned a coroutine that nobody awaits: write it with `async def` and `await`")
    if inspect.isgenerator(result):
        return TypeError("the handler returned a generator that nobody runs: write it without `yield`")
    if inspect.isasyncgen(result):
        return TypeError("the handler returned an async generator that nobody runs: write it without `yield`")
    if inspect.isawaitable(result):
        return TypeError("the handler returned an awaitable that nobody awaits: write it with `async def` and `await`")
    return None


# Tasks.


class TaskRunner(Runner):
    """Up to `concurrency` tasks at a time."""

    def __init__(
        self,
        handler: Callable[[Job], Awaitable[Any]],
        settings: RunnerSettings,
    ) -> None:
        super().__init__(settings)
        self._handler = handler
        self._stuck: set[InFlightJob] = set()  # given up, and still running
        self._create_task = self._loop.create_task

    @property
    def has_room(self) -> bool:
        return len(self.running) < self.concurrency and len(self._stuck) <= self._max_stuck

    def start(self, entry: InFlightJob) -> None:
        self.running.add(entry)
        entry.task = self._create_task(self._run(entry))

    async def _run(self, entry: InFlightJob) -> None:
        problem: BaseException | None = None
        entry.began = began = perf_counter()
        if not entry.job.stored.has_begun:
            entry.settler.leases.begun_since.append(entry)
        route = entry.route
        handler, limit_s = (self._handler, self._limit) if route is None else (route.handler, route.time_limit)
        if limit_s is not None:
            entry.timer = self._loop.call_later(limit_s, self._overran, entry, limit_s)
        try:
            if self._on_start is not None and (rest := self._on_start(entry.job)) is not None:
                await rest
            entry.result = result = await handler(entry.job)
            problem = None if result is None else unfinished_work(result)
        except BaseException as error:
            # SystemExit, too, ends only the job. A real Ctrl-C never gets here: signals go to the worker or to asyncio.
            problem = error
        if entry.timer is not None:
            entry.timer.cancel()
        if entry in self._stuck:
            self._stuck.discard(entry)
            return
        entry.seconds = perf_counter() - began
        is_cut_off = isinstance(problem, asyncio.CancelledError)
        # A handler that returns after its time limit may have left its work half done: that is an overrun, too.
        if entry.cancel_reason is not None and (
            is_cut_off or (problem is None and isinstance(entry.cancel_reason, TimeLimitExceeded))
        ):
            problem = entry.cancel_reason
        self.running.discard(entry)
        self._finished(entry, problem)

    def _overran(self, entry: InFlightJob, limit_s: float) -> None:
        self.cancel(entry, TimeLimitExceeded(f"it took longer than its time limit of {limit_s:g} s"))
        entry.timer = self._loop.call_later(CANCEL_S, self._give_up, entry)

    def _give_up(self, entry: InFlightJob) -> None:
        entry.job.lost = True
        entry.seconds = perf_counter() - (entry.began or perf_counter())
        self.running.discard(entry)
        self._stuck.add(entry)
        self._finished(entry, TimeLimitExceeded(f"{entry.cancel_reason}, and went on after it was cancelled"))
        if len(self._stuck) > self._max_stuck:
            self._on_stuck()

    def cancel(self, entry: InFlightJob, reason: BaseException) -> bool:
        entry.cancel_reason = entry.cancel_reason or reason
        assert entry.task is not None
        entry.task.cancel()
        if entry.began is None:
            # A task that is cancelled before its first step runs no line of it.
            self.running.discard(entry)
            return True
        return False

    def lease_lost(self, entry: InFlightJob) -> bool:
        return self.cancel(entry, LeaseLost("the lease was lost"))

    def close(self) -> None:
        for entry in [*self.running, *self._stuck]:
            if entry.timer is not None:
                entry.timer.cancel()
            if entry.task is not None and not entry.task.done():
                _leave_behind(entry.task)


def _leave_behind(task: asyncio.Task[None]) -> None:
    """Cancel a task for the last time, and remove it from its loop, which would else wait for it when it is closed."""
    task.cancel()
    asyncio.tasks._unregister_task(task)
    # It must not be destroyed with the loop either: that would run its handler once more. A thread that waits keeps a
    # reference to it, and ends with the process.
    ended = threading.Event()
    task.add_done_callback(lambda _: ended.set())
    threading.Thread(target=_keep, args=(task, ended), name="penstock-worker-left", daemon=True).start()


def _keep(task: asyncio.Task[None], ended: threading.Event) -> None:
    ended.wait()


# Threads.


class ThreadRunner(Runner):
    """Up to `concurrency` threads, made when they are needed."""

    def __init__(
        self,
        handler: Callable[[Any], Any],  # of a ThreadJob
        settings: RunnerSettings,
    ) -> None:
        super().__init__(settings)
        self._handler = handler
        self._inbox: SimpleQueue[InFlightJob | None] = SimpleQueue()
        self._outbox: deque[tuple[InFlightJob, BaseException | None]] = deque()
        self._lock = threading.Lock()  # a job is given up before its result is in the outbox, or not at all
        self._is_woken = False
        self._threads = 0
        self._stuck = 0
        self._check_timer: asyncio.TimerHandle | None = None
        self._check_s = math.inf  # the pause between two checks for overruns
        if self._limit is not None:
            self._check_every(self._limit / OVERRUN_CHECKS)

    @property
    def has_room(self) -> bool:
        # Jobs wait in the inbox just as well as elsewhere, and a thread that is done takes the next one without delay.
        return True

    @property
    def busy(self) -> int:
        return min(len(self.running), self.concurrency)

    def start(self, entry: InFlightJob) -> None:
        self.running.add(entry)
        if entry.route is not None and entry.route.time_limit is not None:
            self._check_every(entry.route.time_limit / OVERRUN_CHECKS)
        self._inbox.put(entry)
        if self._threads < self.concurrency and self._threads < len(self.running):
            self._add_thread()

    def _add_thread(self) -> None:
        self._threads += 1
        # A daemon: a function that hangs must not keep the process from ending.
        threading.Thread(target=self._work, name=f"penstock-worker-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        """Take jobs from the inbox and run them: what each thread does."""
        while (entry := self._inbox.get()) is not None:
            # A job whose lease was lost while it waited must not run.
            problem = None if entry.job.lost else self._call(entry)
            with self._lock:
                self._outbox.append((entry, problem))
                was_given_up = entry.cancel_reason is not None
            if not self._is_woken:
                self._is_woken = True
                with suppress(RuntimeError):  # the loop was closed
                    self._loop.call_soon_threadsafe(self._take_results)
            if was_given_up:
                return  # another thread has taken its place

    def _call(self, entry: InFlightJob) -> BaseException | None:
        entry.began = began = perf_counter()
        if not entry.job.stored.has_begun:
            entry.settler.leases.begun_since.append(entry)
        try:
            if self._on_start is not None and (rest := self._on_start(entry.job)) is not None:
                asyncio.run_coroutine_threadsafe(rest, self._loop).result()
            handler = self._handler if entry.route is None else entry.route.handler
            entry.result = result = handler(ThreadJob(entry.job, self._loop))
        except BaseException as error:  # whatever a function raises ends only its job
            return error
        finally:
            entry.seconds = perf_counter() - began
        return None if result is None else unfinished_work(result)

    def _take_results(self) -> None:
        self._is_woken = False  # first: what comes from now on wakes the loop again
        while self._outbox:
            entry, problem = self._outbox.popleft()
            if isinstance(entry.cancel_reason, TimeLimitExceeded):
                self._stuck -= 1
            elif entry in self.running:
                self.running.discard(entry)
                self._finished(entry, problem)

    def _check_every(self, pause_s: float) -> None:
        """Look for overruns at least this often."""
        if pause_s >= self._check_s:
            return
        self._check_s = pause_s
        if self._check_timer is not None:
            self._check_timer.cancel()
        self._check_timer = self._loop.call_later(pause_s, self._find_overruns)

    def _find_overruns(self) -> None:
        now = perf_counter()
        for entry in list(self.running):
            limit_s = self._limit if entry.route is None else entry.route.time_limit
            if limit_s is None or entry.began is None or now - entry.began <= limit_s:
                continue
            if self._give_up(entry, TimeLimitExceeded(f"it took longer than its time limit of {limit_s:g} s")):
                self._stuck += 1
                if self._stuck <= self._max_stuck:
                    self._add_thread()
                else:
                    self._on_stuck()
        self._check_timer = self._loop.call_later(self._check_s, self._find_overruns)

    def _give_up(self, entry: InFlightJob, reason: BaseException) -> bool:
        """Abandon a job; return False if its result is there already."""
        with self._lock:
            if any(entry is done for done, _ in self._outbox):
                return False
            entry.cancel_reason = reason
        entry.job.lost = True
        entry.seconds = perf_counter() - (entry.began or perf_counter())
        self.running.discard(entry)
        self._finished(entry, reason)
        return True

    def cancel(self, entry: InFlightJob, reason: BaseException) -> bool:
        self._give_up(entry, reason)
        return False

    def lease_lost(self, entry: InFlightJob) -> bool:
        return False  # `job.lost` is set for the function

    def withdraw(self) -> list[InFlightJob]:
        waiting: list[InFlightJob] = []
        with suppress(Empty):
            while True:
                entry = self._inbox.get_nowait()
                if entry is not None:
                    waiting.append(entry)
                    self.running.discard(entry)
        return waiting

    def close(self) -> None:
        if self._check_timer is not None:
            self._check_timer.cancel()
        for _ in range(self._threads):
            self._inbox.put(None)


class RoutedRunner(Runner):
    """Tasks and threads for the jobs of one worker, as the route of each says.

    While no task runs, jobs may wait for threads in their inbox, as they do in a ThreadRunner. A task that comes
    meanwhile waits until the threads leave it a slot: tasks and threads together are at most `concurrency`.
    """

    def __init__(self, settings: RunnerSettings) -> None:
        super().__init__(settings)
        parts = replace(settings, time_limit=None, finished=self._ended)
        self._tasks = TaskRunner(_without_handler, parts)
        self._threads = ThreadRunner(_without_handler, parts)
        self._waiting: deque[InFlightJob] = deque()  # tasks that wait for a slot

    @property
    def has_room(self) -> bool:
        if self._waiting:
            return False
        if not self._tasks.running:
            return True
        return self._tasks.has_room and len(self.running) < self.concurrency

    @property
    def busy(self) -> int:
        return self._tasks.busy + self._threads.busy

    def _of(self, entry: InFlightJob) -> Runner:
        assert entry.route is not None
        return self._tasks if entry.route.is_async else self._threads

    def _ended(self, entry: InFlightJob, problem: BaseException | None) -> None:
        self.running.discard(entry)
        if self._waiting:
            self._start_waiting()
        self._finished(entry, problem)

    def start(self, entry: InFlightJob) -> None:
        running = self.running
        running.add(entry)
        if self._of(entry) is self._threads:
            self._threads.start(entry)
        elif not self._waiting and len(running) <= self.concurrency:
            self._tasks.start(entry)
        else:
            self._waiting.append(entry)
            self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and len(self.running) - len(self._waiting) < self.concurrency:
            self._tasks.start(self._waiting.popleft())

    def cancel(self, entry: InFlightJob, reason: BaseException) -> bool:
        return self._taken_back(entry) or self._left(entry, self._of(entry).cancel(entry, reason))

    def lease_lost(self, entry: InFlightJob) -> bool:
        return self._taken_back(entry) or self._left(entry, self._of(entry).lease_lost(entry))

    def _taken_back(self, entry: InFlightJob) -> bool:
        if entry not in self._waiting:
            return False
        self._waiting.remove(entry)
        self.running.discard(entry)
        return True

    def _left(self, entry: InFlightJob, had_not_begun: bool) -> bool:
        if had_not_begun:
            self.running.discard(entry)
            self._start_waiting()
        return had_not_begun

    def withdraw(self) -> list[InFlightJob]:
        withdrawn = [*self._threads.withdraw(), *self._waiting]
        self._waiting.clear()
        self.running.difference_update(withdrawn)
        return withdrawn

    def close(self) -> None:
        self._tasks.close()
        self._threads.close()


def _without_handler(job: Any) -> Any:
    raise AssertionError("a job without a route came to a worker that routes")


class ThreadJob(blocking.Job):
    """A job as a plain handler has it: its calls block its thread while the worker's event loop makes them.

    So do those of its queue and store. It shares its state with the worker's own job: `lost` is set and `ended` is read
    there.
    """

    __slots__ = ("_job", "_loop")

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self._job = job
        self._loop = loop
        super().__init__(cast(Any, LoopProxy(job.queue, loop)), job.stored, job.lease)

    @property
    def payload(self) -> Any:
        return self._job.payload

    @property
    def ended(self) -> bool:
        return self._job.ended

    @ended.setter
    def ended(self, value: bool) -> None:
        """Ignored: the worker's own job has it."""

    @property
    def lost(self) -> bool:
        return self._job.lost

    @lost.setter
    def lost(self, value: bool) -> None:
        """Ignored: the worker's own job has it."""

    def ack(self) -> None:
        _wait(self._job.ack(), self._loop)

    def nack(self, delay: Duration | None = None, error: Error = "", *, at: float | datetime | None = None) -> None:
        _wait(self._job.nack(delay, error, at=at), self._loop)

    def extend(self, lease: Duration | None = None) -> None:
        _wait(self._job.extend(lease), self._loop)

    def fail(self, error: Error = "") -> None:
        _wait(self._job.fail(error), self._loop)

    def move(
        self,
        to: Any,
        *,
        payload: Any = UNCHANGED,
        headers: Mapping[str, Any] | None = None,
        delay: Duration = 0,
        at: float | datetime | None = None,
    ) -> None:
        name = to if isinstance(to, str) else to.name
        _wait(self._job.move(name, payload=payload, headers=headers, delay=delay, at=at), self._loop)


class LoopProxy:
    """A queue or a store for other threads than that of its event loop."""

    def __init__(self, target: object, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._target)

    def __getattr__(self, name: str) -> Any:
        return self._wrapped(getattr(self._target, name))

    def _wrapped(self, value: Any) -> Any:
        if isinstance(value, Queue | Store):
            return LoopProxy(value, self._loop)
        return partial(self._call, value) if inspect.ismethod(value) else value

    def _call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        async def call() -> Any:
            result = method(*arguments, **named)
            return await result if inspect.isawaitable(result) else result

        return self._wrapped(_wait(call(), self._loop))


def _wait(call: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Run a coroutine in the loop, and wait for its result."""
    if _running_loop() is loop:
        call.close()
        raise CallerError(
            "the job of a plain function can't be used in the event loop: use it in the function's thread"
        )
    try:
        future = asyncio.run_coroutine_threadsafe(call, loop)
    except RuntimeError as problem:  # the loop was closed
        call.close()
        raise LeaseLost("the worker has ended, and has returned its jobs") from problem
    return future.result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
