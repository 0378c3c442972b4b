"""How callers wait for jobs.

All callers that wait for jobs of one queue are served by one task. In each round it asks the store for as many jobs as
are wanted, in one call, and hands them out, first come first served. Then it sleeps until a signal comes, another
caller comes, a caller's time is over, the next job is due, or the poll interval has passed: a lost signal costs no
more. A store whose other users send no signals is asked meanwhile whether it has changed, which costs less than to ask
for jobs: often after a job, and less often the longer none has come.
The task runs only while a caller waits. A store that can wait by itself is asked once in this way; then each caller
that got nothing waits on the server.

A caller that is cancelled never takes a job with it: its jobs go to the next caller, or back to the store.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.errors import ConnectionLost, PenstockError, WaitCancelled
from penstock.job import Consumer, StoredJob
from penstock.queues.aio.signal import SignalListener
from penstock.queues.aio.taker import Taker
from penstock.queues.polling import NAP_S, TROUBLE_S, watch_pause

WAIT_SLICE_S = 5.0  # of a store that can wait: it notices a cancelled wait after this time at most


class _Request:
    """One caller that waits."""

    __slots__ = ("begin", "count", "deadline", "future", "label", "name", "since")

    def __init__(self, count: int, begin: int | None, deadline: float | None, label: object, name: str | None) -> None:
        self.count = count
        self.begin = begin  # how many of these jobs begin at once; None: all
        self.name = name
        self.since = time.time()
        self.deadline = deadline  # by the loop's clock; None waits forever
        self.label = label
        self.future: asyncio.Future[list[StoredJob]] = asyncio.get_running_loop().create_future()


class Fetcher:
    """Waits for jobs of one queue, in one way: pop (`lease_ms` None), or reserve for `lease_ms`."""

    def __init__(self, taker: Taker, lease_ms: int | None, listener: SignalListener, poll_s: float) -> None:
        self._taker = taker
        self._lease_ms = lease_ms
        self._listener = listener
        self._poll_s = poll_s
        self._batch_max = taker.driver.batch_max
        self._requests: deque[_Request] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._wakeup = asyncio.Event()
        self._served: dict[_Request, asyncio.Task[Any]] = {}  # callers that wait on the server, and their calls
        self._tasks: set[asyncio.Task[Any]] = set()
        self._trouble: PenstockError | None = None
        self._got_s = 0.0  # when the last job came, by the loop's clock
        self._version: int | None = None  # of a store that sends no signals

    @property
    def waiting(self) -> int:
        """How many callers wait."""
        return sum(not request.future.done() for request in (*self._requests, *self._served))

    def consumers(self) -> list[Consumer]:
        """Return the callers that wait."""
        return [
            Consumer(request.name, request.label, request.since, self._lease_ms is not None)
            for request in (*self._requests, *self._served)
            if not request.future.done()
        ]

    def wake(self) -> None:
        """Ask the store again: something may have come."""
        self._wakeup.set()

    async def get(
        self,
        count: int,
        timeout: float | None,
        label: object = None,
        name: str | None = None,
        begin: int | None = None,
    ) -> list[StoredJob]:
        """One to `count` jobs, or none when the time is over."""
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        request = _Request(count, begin, deadline, label, name)
        self._requests.append(request)
        self._wakeup.set()
        if self._pump is None:
            self._pump = asyncio.get_running_loop().create_task(self._run())
        try:
            return await request.future
        except asyncio.CancelledError:
            # Jobs may have been handed out in the very turn in which the caller was cancelled.
            if not request.future.cancelled() and request.future.done() and request.future.exception() is None:
                self._give_back(request.future.result())
            raise

    def cancel(self, label: object = None, why: str = "the wait was cancelled") -> int:
        """End waits: those with a label, or all. Return how many."""
        chosen = [
            request
            for request in (*self._requests, *self._served)
            if not request.future.done() and (label is None or request.label == label)
        ]
        for request in chosen:
            request.future.set_exception(WaitCancelled(why))
        self._wakeup.set()
        return len(chosen)

    async def close(self, why: str = "the store was closed") -> None:
        """End all waits, and wait for what is under way."""
        self.cancel(why=why)
        if self._pump is not None:
            await asyncio.wait([self._pump])
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self) -> None:
        try:
            while self._prune():
                self._wakeup.clear()
                try:
                    more = await self._round()
                    if not more and self._prune():
                        if self._taker.driver.can_wait:
                            self._wait_there()
                        else:
                            await self._nap()
                except Exception as problem:
                    self._fail(problem)
        finally:
            self._pump = None

    def _prune(self) -> bool:
        """Drop callers that are done; whether some still wait."""
        self._requests = deque(request for request in self._requests if not request.future.done())
        return bool(self._requests)

    def _fail(self, problem: Exception) -> None:
        for request in self._requests:
            if not request.future.done():
                request.future.set_exception(problem)

    async def _round(self) -> bool:
        """Ask once for all callers. True if there may be more jobs at once."""
        wanted = min(sum(request.count for request in self._requests), self._batch_max)
        jobs: list[StoredJob] = []
        try:
            if not self._listener.open.is_done:
                await self._listener.open()
            if not await self._taker.pause.holds_back():
                jobs = await self._taker.take(self._lease_ms, wanted, 0, self._begin())
            self._trouble = None
        except ConnectionLost as problem:
            # The store may come back: callers that have time go on waiting.
            self._trouble = problem
        self._hand_out(jobs)
        is_more = bool(jobs) and len(jobs) >= wanted
        # A caller with no time to wait gets what is there, also if it takes several calls to fetch it.
        if not is_more:
            self._expire()
        return is_more

    def _begin(self) -> int | None:
        """How many of the next jobs begin at once: those of the first caller. All callers say it, or none does."""
        return self._requests[0].begin if self._requests else None

    def _hand_out(self, jobs: list[StoredJob]) -> None:
        at = 0
        if jobs:
            self._got_s = asyncio.get_running_loop().time()
        for request in self._requests:
            if at >= len(jobs):
                return
            if not request.future.done():
                request.future.set_result(jobs[at : at + request.count])
                at += request.count
        if at < len(jobs):
            self._give_back(jobs[at:])

    def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        for request in self._requests:
            if request.deadline is not None and request.deadline <= now and not request.future.done():
                if self._trouble is not None:
                    request.future.set_exception(self._trouble)
                else:
                    request.future.set_result([])

    async def _nap(self) -> None:
        """Sleep until there is a reason to ask again."""
        delay = self._poll_s
        if self._trouble is not None:
            delay = min(delay, TROUBLE_S)
        elif not self._wakeup.is_set():
            with suppress(ConnectionLost):
                due = await self._taker.seconds_to_next()
                delay = delay if due is None else min(delay, due)
        # A job that is due, but that the store doesn't return yet, must not make this a busy loop.
        delay = min([max(delay, NAP_S), *self._times_left()])
        await self._sleep(delay)

    async def _sleep(self, delay: float) -> None:
        """Sleep until `wake`, or until a store that must be watched has changed."""
        watch_s = self._taker.driver.watch_s
        while delay > 0 and not self._wakeup.is_set():
            step = delay
            if watch_s is not None:
                if self._trouble is None and await self._has_changed():
                    return
                idle_s = asyncio.get_running_loop().time() - self._got_s
                step = min(delay, watch_pause(watch_s, idle_s))
            with suppress(TimeoutError):
                async with asyncio.timeout(step):
                    await self._wakeup.wait()
            delay -= step

    async def _has_changed(self) -> bool:
        """Whether another process has changed the store since the last call."""
        with suppress(ConnectionLost):
            version = await self._taker.driver.version()
            if version != self._version:
                self._version = version
                self._taker.pause.know(None)
                return True
        return False

    def _times_left(self) -> list[float]:
        now = asyncio.get_running_loop().time()
        return [max(0.0, r.deadline - now) for r in self._requests if r.deadline is not None and not r.future.done()]

    def _wait_there(self) -> None:
        """Let each caller that still waits do so on the server, in a call of its own."""
        for request in self._requests:
            task = self._start(self._serve(request))
            self._served[request] = task
            request.future.add_done_callback(partial(self._stop_serving, request))
        self._requests.clear()

    def _stop_serving(self, request: _Request, _: object) -> None:
        task = self._served.pop(request, None)
        if task is not None and not task.done():
            task.cancel()

    async def _serve(self, request: _Request) -> None:
        loop = asyncio.get_running_loop()
        trouble: PenstockError | None = None
        while not request.future.done():
            left = WAIT_SLICE_S if request.deadline is None else request.deadline - loop.time()
            if left <= 0 and trouble is not None:
                request.future.set_exception(trouble)
            elif left <= 0:
                request.future.set_result([])
            else:
                trouble = await self._fetch_there(request, min(left, WAIT_SLICE_S))
                if trouble is not None:
                    await asyncio.sleep(min(left, TROUBLE_S))

    async def _fetch_there(self, request: _Request, wait_s: float) -> PenstockError | None:
        try:
            jobs = await self._taker.take(self._lease_ms, request.count, math.ceil(wait_s * 1000), request.begin)
        except ConnectionLost as problem:
            return problem
        except Exception as problem:
            if not request.future.done():
                request.future.set_exception(problem)
            return None
        if jobs and request.future.done():
            self._give_back(jobs)
        elif jobs:
            request.future.set_result(jobs)
        return None

    def _give_back(self, jobs: list[StoredJob]) -> None:
        if jobs:
            self._start(self._taker.return_unseen(self._lease_ms, jobs))

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # jobs that could not be returned come back when their leases end
