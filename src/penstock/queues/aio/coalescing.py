"""Calls of one kind that are made in the same turn of the event loop go to the store together, as one.

So fifty tasks that push one job each cost one round trip, and a task alone waits for nothing but the turn's end.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Coalescer(Generic[Item, Result]):
    """Collects items, and sends them at the end of the turn."""

    def __init__(self, send: Callable[[list[Item]], Awaitable[list[Result]]], batch_max: int) -> None:
        self._send = send
        self._batch_max = batch_max
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._under_way: set[asyncio.Task[None]] = set()

    async def add(self, item: Item) -> Result:
        """One item's result. A caller that is cancelled before the turn's end takes its item back."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            self._start(self._flush())  # in the next turn
        self._waiting.append((item, future))
        return await future

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for begin in range(self._batch_max, len(waiting), self._batch_max):
            self._start(self._deliver(waiting[begin : begin + self._batch_max]))
        await self._deliver(waiting[: self._batch_max])

    async def _deliver(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        batch = [(item, future) for item, future in batch if not future.cancelled()]
        if not batch:
            return
        try:
            results = await self._send([item for item, _ in batch])
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as problem:
            for _, future in batch:
                if not future.done():
                    future.set_exception(problem)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)

    async def finish(self) -> None:
        """Wait for what is under way."""
        while self._under_way:
            await asyncio.wait(self._under_way)
