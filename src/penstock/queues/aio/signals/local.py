"""Signals within this process."""

import asyncio
from contextlib import suppress

from penstock.queues import hub
from penstock.queues.aio.signals.base import Hear, Signal


class LocalSignal(Signal):
    """The hub of one place."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._callbacks: dict[tuple[str, Hear], hub.Callback] = {}

    async def close(self) -> None:
        for (channel, _), callback in self._callbacks.items():
            hub.leave(self._place, channel, callback)
        self._callbacks.clear()

    async def send(self, channel: str, text: str) -> None:
        hub.tell(self._place, channel, text)

    async def subscribe(self, channel: str, hear: Hear) -> None:
        loop = asyncio.get_running_loop()

        def callback(text: str) -> None:
            # The sender may be of another thread; a loop that was closed has nobody left who waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(hear, text)

        self._callbacks[channel, hear] = callback
        hub.listen(self._place, channel, callback)

    async def unsubscribe(self, channel: str, hear: Hear) -> None:
        callback = self._callbacks.pop((channel, hear), None)
        if callback is not None:
            hub.leave(self._place, channel, callback)
