"""The worker: runs a handler for the jobs of some queues."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeAlias, TypeGuard

from penstock.errors import CallerError
from penstock.queues import blocking
from penstock.queues.aio import Job, Queue, Store, connect
from penstock.queues.backoff import Backoff, Exponential
from penstock.queues.dead_letter import DeadLetter
from penstock.queues.options import checked_lease
from penstock.worker.events import say
from penstock.worker.reporting import OnDone, OnError, Reporter, Summary, call_hook
from penstock.worker.running import Finished, Runner
from penstock.worker.shift import Shift
from penstock.worker.tasks import Tasks
from penstock.worker.threads import Threads

# A plain function's job blocks where an async one's is awaited.
Handler: TypeAlias = Callable[[Job], Awaitable[Any]] | Callable[[Job], Any] | Callable[[blocking.Job], Any]

CONCURRENCY = 10
CONCURRENCY_MAX = 10_000  # tasks beyond that wait for one another more than they work
STOP_WITHIN_S = 30.0  # what most supervisors of processes allow
MAX_TRIES = 25  # with the usual back-off half a day: who needs longer says so


class Worker:
    """Runs a handler for the jobs of some queues.

        worker = penstock.Worker("sqlite:///jobs.db", "mail", send)
        await worker.run()

    `handler` is called with a Job: as a task if it is an `async def`, else in a thread, where `job.ack()` and its kin
    block in place of being awaited. What it returns is not kept. `choices` has the table of what becomes of the job.
    Times are in seconds.

    - `concurrency`: how many handlers run at a time.
    - `lease`: how long jobs are reserved for; made longer while they are in hand. By default as the queue has it.
    - `time_limit`: how long a handler may take; none by default.
    - `max_tries`: the number of deliveries after which a job goes to the dead letters; 0 is without limit. By default
      that of the queue object or of the store's option `dead_letter`, or else 25. `dead_letter` also names the queue.
    - `backoff`: how long a job waits after an error. By default that of the queue object, or else it grows.
    - `prefetch`: how many jobs are taken ahead of those that run; by default few or many, by how long they take.
    - `stop_within`: how long running handlers get when the worker is told to stop.
    - `on_start(job)`, `on_done(job, seconds)`, `on_error(job, error)`: called as it happens. One that is async is
      awaited; others must not block.
    """

    def __init__(
        self,
        store: Store | str,
        queues: str | Queue | Iterable[str | Queue],
        handler: Handler,
        *,
        concurrency: int = CONCURRENCY,
        lease: float | None = None,
        time_limit: float | None = None,
        max_tries: int | None = None,
        dead_letter: DeadLetter | None = None,
        backoff: Backoff | None = None,
        prefetch: int | None = None,
        stop_within: float = STOP_WITHIN_S,
        on_start: Callable[[Job], object] | None = None,
        on_done: OnDone | None = None,
        on_error: OnError | None = None,
        stuck_max: int | None = None,
    ) -> None:
        if not isinstance(store, Store | str):
            raise CallerError(f"a worker needs a URL, or a store of penstock.connect(), not {store!r}")
        if not callable(handler):
            raise CallerError(f"a handler is a function, and {handler!r} is none")
        refuse_generator(handler)
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise CallerError(f"concurrency={concurrency!r}: give 1 to {CONCURRENCY_MAX}")
        if time_limit is not None and not time_limit > 0:
            raise CallerError(f"time_limit={time_limit!r}: give seconds, above 0")
        if not stop_within >= 0:
            raise CallerError(f"stop_within={stop_within!r}: give seconds, at least 0")
        if prefetch is not None and prefetch < 0:
            raise CallerError(f"prefetch={prefetch!r}: give a number of jobs")
        if max_tries is not None and dead_letter is not None:
            raise CallerError("give max_tries or dead_letter, not both")
        self._store = store
        self._names: list[str | Queue] = [queues] if isinstance(queues, str | Queue) else list(queues)
        if not self._names:
            raise CallerError("a worker needs a queue")
        self._handler = handler
        self._concurrency = concurrency
        self._lease = None if lease is None else checked_lease(lease)
        self._time_limit = time_limit
        self._max_tries = None if max_tries is None else DeadLetter(max_tries).max_tries  # which checks it
        self._dead_letter = dead_letter
        self._backoff = backoff
        self._prefetch = prefetch
        self._stop_within = stop_within
        self._on_start, self._on_done, self._on_error = on_start, on_done, on_error
        self._stuck_max = concurrency if stuck_max is None else stuck_max
        self.is_stuck = (
            False  # too many handlers overran their time limit and still run: this process should be replaced
        )
        self._reporter = Reporter(on_done, on_error)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wishes = 0  # see stop_at
        self._stop = asyncio.Event()
        self._now = asyncio.Event()
        self._abandon = asyncio.Event()

    @property
    def summary(self) -> Summary:
        """What has been done so far."""
        return self._reporter.summary

    def main(self, *, until_empty: bool = False) -> Summary:
        """Run as a program: with an event loop of its own, stopped by SIGTERM and SIGINT."""
        return asyncio.run(self.run(until_empty=until_empty, signals=True))

    async def run(self, *, until_empty: bool = False, signals: bool = False) -> Summary:
        """Run jobs until `stop` is called, and give what was done.

        With `until_empty`, also until no queue has a job that is ready; those that wait for their time stay. With
        `signals`, SIGTERM and SIGINT stop it, and all other workers of the process that run with `signals`: the first
        gracefully, the second at once, the third without waiting for handlers that don't end when they are cancelled.
        Only the main thread can do that.
        """
        if self._loop is not None:
            raise CallerError("this worker runs already")
        self._loop = asyncio.get_running_loop()
        self._reporter = Reporter(self._on_done, self._on_error)
        self._stop, self._now, self._abandon = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.is_stuck = False
        self._heed()
        try:
            with _stop_signals.reaching(self) if signals else nullcontext():
                async with self._opened() as store:
                    await self._run(store, until_empty)
        finally:
            self._loop = None
            self._wishes = 0
        return self._reporter.finish()

    def stop(self, *, now: bool = False) -> None:
        """Take no more jobs, let the running ones end, and end. `now` gives back what runs. From any thread."""
        self.stop_at(2 if now else 1)

    def stop_at(self, level: int) -> None:
        """Stop: 1 lets running handlers end, 2 cancels them, 3 gives their jobs back without waiting for their end."""
        self._wishes = max(self._wishes, level)
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(self._heed)

    def _heed(self) -> None:
        if self._wishes >= 1:
            self._stop.set()
        if self._wishes >= 2:
            self._now.set()
        if self._wishes >= 3:
            self._abandon.set()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Store]:
        """The store; one that came as a URL is this run's own."""
        if isinstance(self._store, Store):
            await self._store.open()
            yield self._store
        else:
            async with connect(self._store) as store:
                yield store

    async def _run(self, store: Store, until_empty: bool) -> None:
        queues = [self._queue(store, name) for name in self._names]
        shift = Shift(
            queues,
            self._runner,
            self._reporter,
            lease=self._lease,
            backoff=self._backoff or Exponential(),
            prefetch=self._prefetch,
        )
        shift.open()
        names = [queue.name for queue in queues]
        say("start", f"Working on {', '.join(names)} of {store.url}, {self._concurrency} at a time.", queues=names)
        try:
            await shift.work(self._stop, until_empty)
        except asyncio.CancelledError:
            self._now.set()
            raise
        finally:
            # Also of a run that was cancelled: what it has in hand must go back.
            await _to_its_end(self._wind_down(shift), self._now.set)
            self._reporter.finish()
            say("stop", f"Stopped: {self.summary}.", **self.summary.counts(), seconds=round(self.summary.seconds, 3))

    async def _wind_down(self, shift: Shift) -> None:
        await shift.wind_down(self._stop_within, self._now, self._abandon)
        await self._reporter.end_hooks(self._stop_within, self._now)

    def _queue(self, store: Store, name: str | Queue) -> Queue:
        """The queue with the worker's options, or else its own, or else the usual ones."""
        own = store.options.dead_letter if isinstance(name, str) else name.dead_letter
        limit = self._dead_letter or own or DeadLetter(MAX_TRIES)
        if self._max_tries is not None:
            limit = DeadLetter(self._max_tries, limit.queue)
        if isinstance(name, str):
            return store.queue(name, dead_letter=limit, lease=self._lease, backoff=self._backoff or Exponential())
        backoff = self._backoff or name.backoff or Exponential()
        return name.with_options(dead_letter=limit, lease=self._lease, backoff=backoff)

    def _runner(self, finished: Finished) -> Runner:
        on_start = None if self._on_start is None else partial(call_hook, self._on_start)
        make = partial(Tasks, self._handler) if is_async(self._handler) else partial(Threads, self._handler)
        return make(self._concurrency, self._time_limit, finished, on_start, self._stuck_max, self._gave_up)

    def _gave_up(self) -> None:
        if not self.is_stuck:
            self.is_stuck = True
            say("stuck", "Handlers overran their time limit and can't be ended: this process must be replaced.")
            self.stop()

    def signalled(self, number: signal.Signals) -> None:
        """A signal to stop came: each stops at one level more (see `stop_at`)."""
        level = min(self._wishes + 1, 3)
        what = {1: f"Stopping; running jobs get {self._stop_within:g} s", 2: "Stopping at once"}
        text = what.get(level, "Giving back all jobs, also those whose handlers don't end")
        say("stopping", f"{number.name}: {text}.", signal=number.name)
        self.stop_at(level)


class _StopSignals:
    """SIGTERM and SIGINT of the process: they stop all workers that asked for it, however many run.

    The handlers that the program had come back when the last of these workers has ended.
    """

    def __init__(self) -> None:
        self._workers: list[Worker] = []
        self._before: dict[signal.Signals, Any] = {}

    @contextmanager
    def reaching(self, worker: Worker) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            raise CallerError("signals=True needs the main thread: elsewhere call worker.stop()")
        loop = asyncio.get_running_loop()
        if not self._workers:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.getsignal(number) or signal.SIG_DFL
                loop.add_signal_handler(number, self._signalled, number)
        self._workers.append(worker)
        try:
            yield
        finally:
            self._workers.remove(worker)
            if not self._workers:
                for number, handler in self._before.items():
                    loop.remove_signal_handler(number)
                    signal.signal(number, handler)

    def _signalled(self, number: signal.Signals) -> None:
        for worker in tuple(self._workers):
            worker.signalled(number)


_stop_signals = _StopSignals()  # one for the process, as its signals are


def is_async(handler: Callable[..., Any]) -> TypeGuard[Callable[..., Awaitable[Any]]]:
    """Whether a handler is to be awaited: an `async def`, a partial of one, or an object that is called as one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def refuse_generator(handler: Callable[..., Any]) -> None:
    """A function that yields does nothing when it is called: its jobs would be done without a line of it run."""
    for is_kind in (inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        if is_kind(handler) or is_kind(type(handler).__call__):
            raise CallerError(
                f"{handler!r} is a generator, which does nothing when it is called: write it without yield"
            )


async def _to_its_end(work: Coroutine[Any, Any, None], hurry: Callable[[], None]) -> None:
    """Finish something, also if this task is cancelled meanwhile, again and again."""
    task = asyncio.get_running_loop().create_task(work)
    was_cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            was_cancelled = True
            hurry()
    task.result()
    if was_cancelled:
        raise asyncio.CancelledError
