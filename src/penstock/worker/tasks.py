"""Runs handlers that await: a task for each job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from penstock.errors import LeaseLost
from penstock.queues.aio import Job
from penstock.worker.choices import Overran
from penstock.worker.held import Held
from penstock.worker.running import Finished, Runner, undone


class Tasks(Runner):
    """Up to `concurrency` tasks at a time."""

    def __init__(
        self,
        handler: Callable[[Job], Awaitable[Any]],
        concurrency: int,
        time_limit: float | None,
        finished: Finished,
        on_start: Callable[[Job], object] | None,
    ) -> None:
        super().__init__(concurrency, finished)
        self._handler = handler
        self._limit = time_limit
        self._on_start = on_start
        self._create_task = asyncio.get_running_loop().create_task

    def start(self, held: Held) -> None:
        self.running.add(held)
        held.task = self._create_task(self._run(held))

    async def _run(self, held: Held) -> None:
        problem: BaseException | None = None
        held.began = began = perf_counter()
        try:
            if self._on_start is not None:
                self._on_start(held.job)
            if self._limit is None:
                result = await self._handler(held.job)
            else:
                result = await self._run_limited(held.job, self._limit)
            problem = None if result is None else undone(result)
        except BaseException as error:
            # Also what a handler means for the whole process, as SystemExit. A real Ctrl-C comes to no handler: it is a
            # signal, and the worker's or asyncio's own.
            problem = error
        held.seconds = perf_counter() - began
        if held.cut is not None and isinstance(problem, asyncio.CancelledError):
            problem = held.cut
        self.running.discard(held)
        self._finished(held, problem)

    async def _run_limited(self, job: Job, limit_s: float) -> Any:
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return await self._handler(job)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Overran(f"it took longer than its time limit of {limit_s:g} s") from None

    def cut(self, held: Held, why: BaseException) -> bool:
        held.cut = why
        assert held.task is not None
        held.task.cancel()
        if held.began is None:
            # A task that is cancelled before its first step never comes to its end.
            self.running.discard(held)
            return True
        return False

    def lose(self, held: Held) -> bool:
        return self.cut(held, LeaseLost("the lease was lost"))
