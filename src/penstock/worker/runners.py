"""Runs handlers: async ones as tasks, plain ones in threads.

    TaskRunner     a task for each job
    ThreadRunner   threads that take jobs from an inbox; ThreadJob is what a plain handler is called with

A handler that overruns its time limit is cancelled. A thread can't be cancelled, and a task may ignore it: such a
handler is given up, at once or after CANCEL_S. Its job counts as failed, `job.lost` tells the handler, and another job
gets its slot. When more than `max_stuck` of them still run, the worker must be replaced as a whole, which it is told by
`on_stuck`. What still runs when the worker ends is left behind: no event loop waits for it.

To go through the event loop for each job would cost more than a short plain function does. So jobs lie in an inbox that
the threads take from, one after the other, and results lie in an outbox; the loop is woken for the first of them, and
takes all that have come by then.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, TypeVar, cast

from penstock.errors import CallerError, LeaseLost
from penstock.queues import blocking
from penstock.queues.aio import Job, Queue, Store
from penstock.queues.dead_letter import Error
from penstock.queues.push import Duration
from penstock.worker.outcomes import InFlightJob, TimeLimitExceeded

CANCEL_S = 5.0  # that a cancelled handler gets to end
OVERRUN_CHECKS = 10  # within a time limit, for threads: an overrun is found at most a tenth too late

# Called in the event loop with a job whose handler has ended, and with what it raised.
Finished = Callable[[InFlightJob, BaseException | None], None]
# Called before a handler; returns what is to be awaited before it begins.
OnStart = Callable[[Job], Coroutine[Any, Any, None] | None]

T = TypeVar("T")


class Runner:
    """What a run needs of its runner."""

    def __init__(self, concurrency: int, finished: Finished) -> None:
        self.concurrency = concurrency
        self.running: set[InFlightJob] = set()
        self._finished = finished

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
        concurrency: int,
        time_limit: float | None,
        finished: Finished,
        on_start: OnStart | None,
        max_stuck: int,
        on_stuck: Callable[[], None],
    ) -> None:
        super().__init__(concurrency, finished)
        self._handler = handler
        self._limit = time_limit
        self._on_start = on_start
        self._max_stuck = max_stuck
        self._on_stuck = on_stuck
        self._stuck: set[InFlightJob] = set()  # given up, and still running
        self._loop = asyncio.get_running_loop()
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
            entry.settler.begun_since.append(entry)
        if self._limit is not None:
            entry.timer = self._loop.call_later(self._limit, self._overran, entry, self._limit)
        try:
            if self._on_start is not None and (rest := self._on_start(entry.job)) is not None:
                await rest
            result = await self._handler(entry.job)
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
        concurrency: int,
        time_limit: float | None,
        finished: Finished,
        on_start: OnStart | None,
        max_stuck: int,
        on_stuck: Callable[[], None],
    ) -> None:
        super().__init__(concurrency, finished)
        self._handler = handler
        self._limit = time_limit
        self._on_start = on_start
        self._max_stuck = max_stuck
        self._on_stuck = on_stuck
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[InFlightJob | None] = SimpleQueue()
        self._outbox: deque[tuple[InFlightJob, BaseException | None]] = deque()
        self._lock = threading.Lock()  # a job is given up before its result is in the outbox, or not at all
        self._is_woken = False
        self._threads = 0
        self._stuck = 0
        self._check_timer: asyncio.TimerHandle | None = None
        if time_limit is not None:
            self._check_later(time_limit)

    @property
    def has_room(self) -> bool:
        # Jobs wait in the inbox just as well as elsewhere, and a thread that is done takes the next one without delay.
        return True

    @property
    def busy(self) -> int:
        return min(len(self.running), self.concurrency)

    def start(self, entry: InFlightJob) -> None:
        self.running.add(entry)
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
            entry.settler.begun_since.append(entry)
        try:
            if self._on_start is not None and (rest := self._on_start(entry.job)) is not None:
                asyncio.run_coroutine_threadsafe(rest, self._loop).result()
            result = self._handler(ThreadJob(entry.job, self._loop))
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

    def _check_later(self, limit_s: float) -> None:
        self._check_timer = self._loop.call_later(limit_s / OVERRUN_CHECKS, self._find_overruns, limit_s)

    def _find_overruns(self, limit_s: float) -> None:
        now = perf_counter()
        for entry in list(self.running):
            if entry.began is None or now - entry.began <= limit_s:
                continue
            if self._give_up(entry, TimeLimitExceeded(f"it took longer than its time limit of {limit_s:g} s")):
                self._stuck += 1
                if self._stuck <= self._max_stuck:
                    self._add_thread()
                else:
                    self._on_stuck()
        self._check_later(limit_s)

    def _give_up(self, entry: InFlightJob, reason: BaseException) -> bool:
        """Give a job up; returns False if its result is there already."""
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
        return False  # `job.lost` tells the function

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
