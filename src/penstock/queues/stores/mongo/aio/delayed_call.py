"""A call that is made some time later, once, however often it was asked for meanwhile.

`penstock.queues.stores.mongo.blocking.delayed_call` has the same for programs without an event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from penstock.errors import PenstockError


class DelayedCall:
    """Calls a function `seconds` after `start`. What it raises of our errors is left to its next caller."""

    def __init__(self, call: Callable[[], Awaitable[None]], seconds: float) -> None:
        self._call = call
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to wait, unless it waits already."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        await asyncio.sleep(self._seconds)
        self._task = None
        with suppress(PenstockError):
            await self._call()

    async def close(self) -> None:
        """Don't call any more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
