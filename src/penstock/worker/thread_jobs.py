"""A job as a plain function has it: in a thread, where nothing can be awaited.

Its calls are done by the worker's event loop, and return when they are done. So are those of its queue and store. It is
a `penstock.blocking.Job`, and shares its state with the worker's own: `lost` is set there, and `ended` is read.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, cast

from penstock.errors import CallerError, LeaseLost
from penstock.queues import blocking
from penstock.queues.aio import Job, Queue, Store
from penstock.queues.dead_letter import Error
from penstock.queues.push import Duration

T = TypeVar("T")


class ThreadJob(blocking.Job):
    """One delivery of a job, for one thread."""

    __slots__ = ("_job", "_loop")

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self._job = job
        self._loop = loop
        super().__init__(cast(Any, InLoop(job.queue, loop)), job.stored, job.lease)

    @property
    def payload(self) -> Any:
        return self._job.payload

    @property
    def ended(self) -> bool:
        return self._job.ended

    @ended.setter
    def ended(self, value: bool) -> None:
        """Only the worker's own job knows."""

    @property
    def lost(self) -> bool:
        return self._job.lost

    @lost.setter
    def lost(self, value: bool) -> None:
        """The same."""

    def ack(self) -> None:
        _wait(self._job.ack(), self._loop)

    def nack(self, delay: Duration | None = None, error: Error = "", *, at: float | datetime | None = None) -> None:
        _wait(self._job.nack(delay, error, at=at), self._loop)

    def extend(self, lease: Duration | None = None) -> None:
        _wait(self._job.extend(lease), self._loop)

    def fail(self, error: Error = "") -> None:
        _wait(self._job.fail(error), self._loop)


class InLoop:
    """Stands for a queue or a store in other threads than its loop's."""

    def __init__(self, target: object, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._target)

    def __getattr__(self, name: str) -> Any:
        return self._shown(getattr(self._target, name))

    def _shown(self, value: Any) -> Any:
        if isinstance(value, Queue | Store):
            return InLoop(value, self._loop)
        return partial(self._call, value) if inspect.ismethod(value) else value

    def _call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        async def call() -> Any:
            result = method(*arguments, **named)
            return await result if inspect.isawaitable(result) else result

        return self._shown(_wait(call(), self._loop))


def _wait(call: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Let the loop do something, and wait for it."""
    if _running_loop() is loop:
        call.close()
        raise CallerError("the job of a plain function waits for the event loop: use it in the function's own thread")
    try:
        future = asyncio.run_coroutine_threadsafe(call, loop)
    except RuntimeError as problem:  # the loop was closed
        call.close()
        raise LeaseLost("the worker has ended, and has given its jobs back") from problem
    return future.result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
