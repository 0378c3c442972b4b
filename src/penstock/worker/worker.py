"""The worker: runs a handler for the jobs of some queues."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Never, TypeAlias, TypeGuard

from penstock import DeadLetter, Exponential
from penstock.errors import CallerError, PenstockError
from penstock.queues import blocking
from penstock.queues.aio import Job, Queue, Store
from penstock.queues.aio.store import opened
from penstock.queues.backoff import Backoff
from penstock.queues.options import Limit, checked_dead_letter, checked_lease
from penstock.queues.push import unexpected_keyword
from penstock.worker.batches import BatchHandler, BatchRunner
from penstock.worker.prefetch import Admit
from penstock.worker.reporting import OnDone, OnError, Outage, Reporter, Summary, call_hook, log_event
from penstock.worker.routes import Router
from penstock.worker.run import Run
from penstock.worker.runners import Finished, RoutedRunner, Runner, RunnerSettings, TaskRunner, ThreadRunner

# A plain function's job blocks where an async one's is awaited.
Handler: TypeAlias = (
    Callable[[Job], Awaitable[Any]] | Callable[[Job], Any] | Callable[[blocking.Job], Any] | BatchHandler
)

CONCURRENCY = 10
CONCURRENCY_MAX = 10_000  # more tasks than that wait for one another more than they work
SHUTDOWN_TIMEOUT_S = 30.0  # what most supervisors of processes allow
MAX_TRIES = 25  # with the default back-off half a day
RENAMED = {"stop_within": "shutdown_timeout", "stuck_max": "max_stuck"}  # arguments: old name -> new


class Worker:
    """Runs a handler for the jobs of some queues.

        worker = penstock.Worker("sqlite:///jobs.db", "mail", send)
        await worker.run()

    `handler` is called with a Job: as a task if it is an `async def`, else in a thread, where the job's methods block
    instead of being awaited. A `BatchHandler` is called with up to `concurrency` jobs at once. What it returns is not
    kept, unless it is an `Outcome`. `outcomes` has the table of what becomes of the job. Times are in seconds.

    In place of a function, `handler` may be a `Router` (see `routes`): an object with a method `route(job)`, which says
    for each job what handles it, with which limits. `max_tries` and `time_limit` are then those of the routes.

    - `concurrency`: number of handlers that run at the same time.
    - `lease`: how long jobs are reserved for; extended while they run. By default that of the queue.
    - `time_limit`: maximum run time of a handler; no limit by default.
    - `max_tries`: the number of deliveries after which a job goes to the dead letters; 0 is without limit. By default
      that of the queue object or of the store's option `dead_letter`, or else 25. `dead_letter` also names the queue.
    - `backoff`: how long a job waits after an error. By default that of the queue object, or else exponential.
    - `prefetch`: number of jobs that are reserved ahead of those that run; by default chosen by their run times.
    - `shutdown_timeout`: how long running handlers may go on when the worker is stopped.
    - `on_start(job)`, `on_done(job, seconds)`, `on_error(job, error)`: hooks. An async hook is awaited; others must not
      block.
    - `max_stuck`: how many handlers may go on beyond their time limit before the worker ends; by default `concurrency`.
    - `admit(count, in_hand)`: awaited before up to `count` jobs are taken, beside those that the worker has in hand;
      returns how many may be, at least one. For callers that hold the worker back while others can't keep up.
    - `label`: a name in the log, for one of several workers of a process.
    """

    def __init__(
        self,
        store: Store | str,
        queues: str | Queue | Iterable[str | Queue],
        handler: Handler | Router,
        *,
        concurrency: int = CONCURRENCY,
        lease: float | None = None,
        time_limit: float | None = None,
        max_tries: int | None = None,
        dead_letter: Limit | None = None,
        backoff: Backoff | None = None,
        prefetch: int | None = None,
        shutdown_timeout: float = SHUTDOWN_TIMEOUT_S,
        on_start: Callable[[Job], object] | None = None,
        on_done: OnDone | None = None,
        on_error: OnError | None = None,
        max_stuck: int | None = None,
        admit: Admit | None = None,
        label: str = "",
        **unknown: Never,
    ) -> None:
        if unknown:
            raise unexpected_keyword("Worker", unknown, RENAMED)
        if not isinstance(store, Store | str):
            raise CallerError(f"store must be a URL or a store of penstock.connect(), got {store!r}")
        self._router: Router | None = None
        if hasattr(handler, "route"):
            self._router = handler
        elif not callable(handler):
            raise CallerError(f"handler must be a function, got {handler!r}")
        else:
            refuse_generator(handler)
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise CallerError(f"concurrency must be 1 to {CONCURRENCY_MAX}, got {concurrency!r}")
        if time_limit is not None and not time_limit > 0:
            raise CallerError(f"time_limit must be above 0 seconds, got {time_limit!r}")
        if not shutdown_timeout >= 0:
            raise CallerError(f"shutdown_timeout must be at least 0 seconds, got {shutdown_timeout!r}")
        if prefetch is not None and prefetch < 0:
            raise CallerError(f"prefetch must be at least 0 jobs, got {prefetch!r}")
        if max_tries is not None and dead_letter is not None:
            raise CallerError("max_tries and dead_letter can't be given together: dead_letter has max_tries, too")
        self._store = store
        self._names: list[str | Queue] = [queues] if isinstance(queues, str | Queue) else list(queues)
        if not self._names:
            raise CallerError("queues must name at least one queue, got none")
        self._handler: Any = handler
        self._concurrency = concurrency
        self._lease = None if lease is None else checked_lease(lease)
        self._time_limit = time_limit
        self._max_tries = None if max_tries is None else DeadLetter(max_tries).max_tries  # which checks it
        self._dead_letter = None if dead_letter is None else checked_dead_letter(dead_letter)
        self._backoff = backoff
        self._prefetch = prefetch
        self._admit = admit
        self._label = label
        self._shutdown_timeout = shutdown_timeout
        self._on_start, self._on_done, self._on_error = on_start, on_done, on_error
        self._max_stuck = concurrency if max_stuck is None else max_stuck
        self._is_stuck = False
        self._reporter = Reporter(on_done, on_error, label)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_level = 0  # see stop_at
        self._stop = asyncio.Event()
        self._now = asyncio.Event()
        self._abandon = asyncio.Event()

    @property
    def summary(self) -> Summary:
        """Return the counts so far."""
        return self._reporter.summary

    @property
    def is_stuck(self) -> bool:
        """Whether more than `max_stuck` handlers still run, so that this process should be replaced."""
        return self._is_stuck

    def main(self, *, until_empty: bool = False) -> Summary:
        """Run in an event loop of its own, until SIGTERM or SIGINT."""
        return asyncio.run(self.run(until_empty=until_empty, signals=True))

    async def run(self, *, until_empty: bool = False, signals: bool = False) -> Summary:
        """Run jobs until `stop` is called; returns what was done.

        With `until_empty` it also ends when no queue has a job that is ready; scheduled jobs stay. With `signals`,
        SIGTERM and SIGINT stop it, and all other workers of the process that run with `signals`: the first gracefully,
        the second at once, the third without waiting for handlers that ignore that they are cancelled. Only the main
        thread can do that.
        """
        if self._loop is not None:
            raise CallerError("this worker is already running")
        self._loop = asyncio.get_running_loop()
        self._reporter = Reporter(self._on_done, self._on_error, self._label)
        self._stop, self._now, self._abandon = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._is_stuck = False
        self._apply_stop()
        try:
            with _stop_signals.reaching(self) if signals else nullcontext():
                async with self._opened() as store:
                    await self._run(store, until_empty)
        finally:
            self._loop = None
            self._stop_level = 0
        return self._reporter.finish()

    async def run_claim(self, key: str, *, seconds: float, attempt: int = 0) -> Summary:
        """Run the jobs that another process has claimed under a key, each to the outcome that `run` would bring.

        That process extends the leases, and ends the claim. Jobs that have not begun after `seconds` are returned as
        they were. `attempt` counts the processes that died with this claim: after the first, jobs run one by one, so
        that the next time the first job that is left is known to have killed its process; it is charged with a try.
        """
        (name,) = self._names
        async with self._opened() as store:
            queue = self._queue(store, name)
            reporter = Reporter(self._on_done, self._on_error, self._label)
            jobs = await _claimed(queue, key, self._lease)
            run = Run(
                [queue],
                self._runner,
                reporter,
                lease=self._lease,
                backoff=self._backoff or Exponential(),
                prefetch=0,
                claim=key,
            )
            run.open()
            try:
                if attempt >= 2 and jobs:
                    run.nack(jobs.pop(0), RuntimeError("the process that ran it died"))
                await run.work_on(jobs, seconds, one_by_one=attempt >= 1)
            except asyncio.CancelledError:
                self._now.set()
                raise
            finally:
                await _to_its_end(run.shut_down(self._shutdown_timeout, self._now, self._abandon), self._now.set)
            return reporter.finish()

    def stop(self, *, now: bool = False) -> None:
        """Take no more jobs, wait for running ones, and end; with `now`, return them. Works in any thread."""
        self.stop_at(2 if now else 1)

    def stop_at(self, level: int) -> None:
        """Stop: 1 waits for running handlers, 2 cancels them, 3 returns their jobs without waiting for their end."""
        self._stop_level = max(self._stop_level, level)
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(self._apply_stop)

    def _apply_stop(self) -> None:
        if self._stop_level >= 1:
            self._stop.set()
        if self._stop_level >= 2:
            self._now.set()
        if self._stop_level >= 3:
            self._abandon.set()

    def _opened(self) -> AbstractAsyncContextManager[Store]:
        """Open the store for a block."""
        return opened(self._store)

    async def _run(self, store: Store, until_empty: bool) -> None:
        queues = [self._queue(store, name) for name in self._names]
        run = Run(
            queues,
            self._runner,
            self._reporter,
            lease=self._lease,
            backoff=self._backoff or Exponential(),
            prefetch=self._prefetch,
            admit=self._admit,
            router=self._router,
        )
        run.open()
        names = [queue.name for queue in queues]
        self._reporter.log_labelled(
            "start", f"Working on {', '.join(names)} of {store.url}, {self._concurrency} at a time.", queues=names
        )
        try:
            await run.work(self._stop, until_empty)
        except asyncio.CancelledError:
            self._now.set()
            raise
        finally:
            # Also of a run that was cancelled: its jobs must go back.
            await _to_its_end(self._shut_down(run, queues), self._now.set)
            self._reporter.finish()
            self._reporter.log_labelled(
                "stop", f"Stopped: {self.summary}.", **self.summary.counts(), seconds=round(self.summary.seconds, 3)
            )

    async def _shut_down(self, run: Run, queues: list[Queue]) -> None:
        await run.shut_down(self._shutdown_timeout, self._now, self._abandon)
        await self._reporter.end_hooks(self._shutdown_timeout, self._now)
        for queue, name in zip(queues, self._names, strict=True):
            if isinstance(name, str):  # made for this run: else its store would listen to signals for it to the end
                with suppress(PenstockError):  # the store is away, and tells nobody anything
                    await queue.close()

    def _queue(self, store: Store, name: str | Queue) -> Queue:
        """Return the queue with the worker's options, or else its own, or else the defaults."""
        own = store.options.dead_letter if isinstance(name, str) else name.dead_letter
        limit = self._dead_letter or own or DeadLetter(MAX_TRIES)
        if self._router is not None:
            limit = DeadLetter(0, limit.queue)  # that of each route holds
        elif self._max_tries is not None:
            limit = DeadLetter(self._max_tries, limit.queue)
        if isinstance(name, str):
            return store.queue(name, dead_letter=limit, lease=self._lease, backoff=self._backoff or Exponential())
        backoff = self._backoff or name.backoff or Exponential()
        return name.with_options(dead_letter=limit, lease=self._lease, backoff=backoff)

    def _runner(self, finished: Finished) -> Runner:
        on_start = None if self._on_start is None else partial(call_hook, self._on_start)
        settings = RunnerSettings(
            self._concurrency, self._time_limit, finished, on_start, self._max_stuck, self._on_stuck
        )
        if self._router is not None:
            return RoutedRunner(settings)
        if isinstance(self._handler, BatchHandler):
            return BatchRunner(self._handler, settings)
        if is_async(self._handler):
            return TaskRunner(self._handler, settings)
        return ThreadRunner(self._handler, settings)

    def _on_stuck(self) -> None:
        if not self._is_stuck:
            self._is_stuck = True
            log_event("stuck", "Handlers overran their time limit and don't end: this process must be replaced.")
            self.stop()

    def signalled(self, number: signal.Signals) -> None:
        """Stop one level further than before (see `stop_at`)."""
        level = min(self._stop_level + 1, 3)
        what = {1: f"Stopping; running jobs get {self._shutdown_timeout:g} s", 2: "Stopping at once"}
        text = what.get(level, "Returning all jobs, also those whose handlers don't end")
        log_event("stopping", f"{number.name}: {text}.", signal=number.name)
        self.stop_at(level)


class _StopSignals:
    """SIGTERM and SIGINT of the process: they stop all workers that run with `signals`.

    The signal handlers that the program had are restored when the last of these workers has ended.
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
    """Whether a handler must be awaited: an `async def`, a partial of one, or an object with an async `__call__`."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def refuse_generator(handler: Callable[..., Any]) -> None:
    """Refuse a function that yields: a call of it runs none of its lines, and its jobs would count as done."""
    for is_kind in (inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        if is_kind(handler) or is_kind(type(handler).__call__):
            raise CallerError(
                f"handler must be a function, got the generator {handler!r}, which does nothing when called: write it "
                "without yield"
            )


async def _claimed(queue: Queue, key: str, lease: float | None) -> list[Job]:
    """Return the jobs of a claim, once the store can be reached."""
    outage = Outage(f"Reading the claim {key!r} of {queue.name!r} in {queue.store.url}")
    while True:
        try:
            jobs = await queue.claim(key, 0, lease=lease)
        except CallerError:
            raise
        except PenstockError as problem:
            await outage.wait_out(problem)
        else:
            outage.recovered()
            return jobs


async def _to_its_end(work: Coroutine[Any, Any, None], hurry: Callable[[], None]) -> None:
    """Finish a coroutine, even if this task is cancelled meanwhile, any number of times."""
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
