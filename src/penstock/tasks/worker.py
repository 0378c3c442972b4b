"""A worker of an app: runs the tasks of its queues in one process.

Queues share one worker and its concurrency, apart from those that the app gives a concurrency of their own. One worker
more takes care of jobs whose tasks were unknown when they came, and a scheduler pushes the app's crons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.errors import CallerError
from penstock.queues.aio import Store
from penstock.tasks.message import UNKNOWN_QUEUE
from penstock.tasks.router import TaskRouter
from penstock.tasks.scheduler import Scheduler
from penstock.worker import Summary, Worker
from penstock.worker.reporting import log_event
from penstock.worker.worker import CONCURRENCY, SHUTDOWN_TIMEOUT_S

if TYPE_CHECKING:
    from penstock.tasks.app import App


class TaskWorker:
    """Runs the tasks of an app. Made by `app.worker()`; its options are those of `penstock.Worker`."""

    def __init__(
        self,
        app: App,
        *,
        queues: Iterable[str] | None = None,
        concurrency: int = CONCURRENCY,
        lease: float | None = None,
        prefetch: int | None = None,
        shutdown_timeout: float = SHUTDOWN_TIMEOUT_S,
        max_stuck: int | None = None,
    ) -> None:
        if not app.tasks:
            raise CallerError("the app has no tasks: decorate functions with @app.task")
        app.check()
        self.queues = app.known_queues() if queues is None else list(queues)
        if not self.queues:
            raise CallerError("queues must name at least one queue, got none")
        if isinstance(queues, str):
            raise CallerError(f"queues must be a list of names, got {queues!r}")
        self._app = app
        self._lease = lease
        self._prefetch = prefetch
        self._concurrency = concurrency
        self._shutdown_timeout = shutdown_timeout
        self._max_stuck = max_stuck
        self._workers: list[Worker] = []
        self._past = Summary()
        self._stop_level = 0

    @property
    def summary(self) -> Summary:
        """Return the counts so far."""
        summary = Summary(seconds=self._past.seconds)
        summary.add(self._past.counts())
        for worker in self._workers:
            summary.add(worker.summary.counts())
        return summary

    @property
    def is_stuck(self) -> bool:
        """Whether functions overran their time limit and don't end: this process should be replaced."""
        return any(worker.is_stuck for worker in self._workers)

    def main(self, *, until_empty: bool = False) -> Summary:
        """Run in an event loop of its own, until SIGTERM or SIGINT."""

        async def run() -> Summary:
            async with self._app:
                return await self.run(until_empty=until_empty, signals=True)

        return asyncio.run(run())

    def stop(self, *, now: bool = False) -> None:
        """Take no more jobs, wait for running ones, and end; with `now`, return them. Works in any thread."""
        self.stop_at(2 if now else 1)

    def stop_at(self, level: int) -> None:
        """Stop, as `Worker.stop_at` does."""
        self._stop_level = max(self._stop_level, level)
        for worker in self._workers:
            worker.stop_at(level)

    async def run(self, *, until_empty: bool = False, signals: bool = False) -> Summary:
        """Run tasks until `stop` is called, or with `until_empty` until no job is ready; returns what was done."""
        store = self._app.client.store
        await store.open()
        self._warn_of_strange_queues()
        self._past = Summary()
        try:
            while True:
                before = sum(self._past.counts().values())
                await self._run_once(store, until_empty, signals)
                # A task may have pushed to a queue whose worker had already found it empty.
                is_idle = sum(self._past.counts().values()) == before
                if not until_empty or self._stop_level or len(self._classes()) == 1 or is_idle:
                    return self._past
        finally:
            self._stop_level = 0

    def _warn_of_strange_queues(self) -> None:
        """Log queues that no task names: jobs may have been pushed there, or the name is wrong."""
        known = self._app.known_queues()
        for name in self.queues:
            if name not in known:
                text = f"No task of the app is for the queue {name}; its queues are {', '.join(known)}."
                log_event("queues", text, queue=name)

    def _classes(self) -> list[tuple[list[str], int, str]]:
        """Return the queues that share a worker, its concurrency, and its name in the log."""
        own = self._app.queues
        shared = [name for name in self.queues if name not in own]
        found = [(shared, self._concurrency, "")] if shared else []
        return found + [([name], own[name], name) for name in self.queues if name in own]

    async def _run_once(self, store: Store, until_empty: bool, signals: bool) -> None:
        self._workers = list(self._made(store, with_unknown=not until_empty))
        for worker in self._workers:
            worker.stop_at(self._stop_level)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(worker.run(until_empty=until_empty, signals=signals)) for worker in self._workers]
        if self._app.crons and not until_empty:
            tasks.append(loop.create_task(self._push_crons()))
        try:
            # One that ends by itself ends the others: it is stuck, or it has failed.
            await asyncio.wait(tasks, return_when=asyncio.ALL_COMPLETED if until_empty else asyncio.FIRST_COMPLETED)
        finally:
            for worker in self._workers:
                worker.stop()
            for task in tasks[len(self._workers) :]:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            for worker in self._workers:
                self._past.add(worker.summary.counts())
                self._past.seconds = max(self._past.seconds, worker.summary.seconds)
            self._workers = [worker for worker in self._workers if worker.is_stuck]
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
                raise end

    async def _push_crons(self) -> Summary:
        await Scheduler(self._app).run()
        raise AssertionError("a scheduler ends only by being cancelled")

    def _made(self, store: Store, with_unknown: bool) -> Iterator[Worker]:
        router = TaskRouter(self._app)
        for queues, concurrency, label in self._classes():
            yield Worker(
                store,
                queues,
                router,
                concurrency=concurrency,
                lease=self._lease,
                prefetch=self._prefetch,
                shutdown_timeout=self._shutdown_timeout,
                max_stuck=self._max_stuck,
                label=label,
            )
        if with_unknown:
            yield Worker(store, UNKNOWN_QUEUE, router, lease=self._lease, label=UNKNOWN_QUEUE)
