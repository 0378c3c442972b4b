"""Runs handlers that await: a task for each job.

A task that is cancelled may go on all the same: its handler has caught that. One that overran its time limit, was
cancelled for it and goes on for CANCEL_S is given up as a function in a thread is: its job counts as failed, `job.lost`
tells the handler, and another job has its place. With more than `stuck_max` of them the worker must be replaced.

What still goes on when the worker ends is left behind: no event loop waits for it when it is closed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from penstock.errors import LeaseLost
from penstock.queues.aio import Job
from penstock.worker.choices import Overran
from penstock.worker.held import Held
from penstock.worker.running import CANCEL_S, Finished, OnStart, Runner, undone


class Tasks(Runner):
    """Up to `concurrency` tasks at a time."""

    def __init__(
        self,
        handler: Callable[[Job], Awaitable[Any]],
        concurrency: int,
        time_limit: float | None,
        finished: Finished,
        on_start: OnStart | None,
        stuck_max: int,
        on_stuck: Callable[[], None],
    ) -> None:
        super().__init__(concurrency, finished)
        self._handler = handler
        self._limit = time_limit
        self._on_start = on_start
        self._stuck_max = stuck_max
        self._on_stuck = on_stuck
        self._stuck: set[Held] = set()  # given up, and still there
        self._loop = asyncio.get_running_loop()
        self._create_task = self._loop.create_task

    @property
    def has_room(self) -> bool:
        return len(self.running) < self.concurrency and len(self._stuck) <= self._stuck_max

    def start(self, held: Held) -> None:
        self.running.add(held)
        held.task = self._create_task(self._run(held))

    async def _run(self, held: Held) -> None:
        problem: BaseException | None = None
        held.began = began = perf_counter()
        if not held.job.stored.has_begun:
            held.settler.begun_since.append(held)
        if self._limit is not None:
            held.timer = self._loop.call_later(self._limit, self._overran, held, self._limit)
        try:
            if self._on_start is not None and (rest := self._on_start(held.job)) is not None:
                await rest
            result = await self._handler(held.job)
            problem = None if result is None else undone(result)
        except BaseException as error:
            # Also what a handler means for the whole process, as SystemExit. A real Ctrl-C comes to no handler: it is a
            # signal, and the worker's or asyncio's own.
            problem = error
        if held.timer is not None:
            held.timer.cancel()
        if held in self._stuck:
            self._stuck.discard(held)
            return
        held.seconds = perf_counter() - began
        is_cut_off = isinstance(problem, asyncio.CancelledError)
        # One that returns after its time limit may have left its work half done: only its job's own end counts.
        if held.cut is not None and (is_cut_off or (problem is None and isinstance(held.cut, Overran))):
            problem = held.cut
        self.running.discard(held)
        self._finished(held, problem)

    def _overran(self, held: Held, limit_s: float) -> None:
        self.cut(held, Overran(f"it took longer than its time limit of {limit_s:g} s"))
        held.timer = self._loop.call_later(CANCEL_S, self._give_up, held)

    def _give_up(self, held: Held) -> None:
        held.job.lost = True
        held.seconds = perf_counter() - (held.began or perf_counter())
        self.running.discard(held)
        self._stuck.add(held)
        self._finished(held, Overran(f"{held.cut}, and went on though it was cancelled"))
        if len(self._stuck) > self._stuck_max:
            self._on_stuck()

    def cut(self, held: Held, why: BaseException) -> bool:
        held.cut = held.cut or why
        assert held.task is not None
        held.task.cancel()
        if held.began is None:
            # A task that is cancelled before its first step never comes to its end.
            self.running.discard(held)
            return True
        return False

    def lose(self, held: Held) -> bool:
        return self.cut(held, LeaseLost("the lease was lost"))

    def close(self) -> None:
        for held in [*self.running, *self._stuck]:
            if held.timer is not None:
                held.timer.cancel()
            if held.task is not None and not held.task.done():
                _leave_behind(held.task)


def _leave_behind(task: asyncio.Task[None]) -> None:
    """Cancel a task for the last time, and let nobody wait for it: closing its loop would, without end."""
    task.cancel()
    asyncio.tasks._unregister_task(task)
    # Nor must it be destroyed with the loop or the process: its handler would be run once more, and might go on then.
    # A thread that waits has hold of it, and like one in which a function hangs it ends with the process.
    ended = threading.Event()
    task.add_done_callback(lambda _: ended.set())
    threading.Thread(target=_keep, args=(task, ended), name="penstock-worker-left", daemon=True).start()


def _keep(task: asyncio.Task[None], ended: threading.Event) -> None:
    ended.wait()
