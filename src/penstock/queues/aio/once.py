"""Something that must happen once, before all else."""

import asyncio
from collections.abc import Awaitable, Callable


class Once:
    """Calls the first time; who comes meanwhile waits; if it fails, the next one tries again."""

    def __init__(self, call: Callable[[], Awaitable[None]]) -> None:
        self._call = call
        self._lock = asyncio.Lock()
        self.is_done = False

    async def __call__(self) -> None:
        if self.is_done:
            return
        async with self._lock:
            if not self.is_done:
                await self._call()
                self.is_done = True
