"""How waiting consumers hear of new jobs: a bus for short texts between the users of a queue.

Best effort, without history. The channels and texts are Keuss': `keuss:signal:NAMESPACE:QUEUE`, with the time in
milliseconds at which a job is ready when one comes in, and `p true` or `p false` when the queue is paused or resumed.
A text that is lost costs at most the poll interval.

This is the contract, and the two that need no server. The stores have their own: Redis pub/sub, PostgreSQL's NOTIFY,
and watches on directories.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

from penstock.queues import local_signals
from penstock.queues.aio.runtime import Once

Hear = Callable[[str], None]


class Signal:
    """The contract. `hear` is called in the event loop of whoever subscribed."""

    is_silent: ClassVar[bool] = False  # nobody ever hears anything: what would be sent need not be worked out

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """Stop hearing and sending."""

    async def send(self, channel: str, text: str) -> None:
        """Send to everybody, this process included. A server that is gone is not an error: nothing depends on it."""
        raise NotImplementedError

    async def subscribe(self, channel: str, hear: Hear) -> None:
        """From the return on, texts on the channel are heard. After a lost connection this goes on by itself, with an
        empty text first, since something may have been missed."""
        raise NotImplementedError

    async def unsubscribe(self, channel: str, hear: Hear) -> None:
        """Hear no more."""
        raise NotImplementedError


class SignalListener:
    """Calls `heard` with each text on a channel, once it is open."""

    def __init__(self, signal: Signal, channel: str, heard: Hear) -> None:
        self._signal = signal
        self._channel = channel
        self._heard = heard
        self.open = Once(self._subscribe)

    @property
    def is_listening(self) -> bool:
        """Whether what is sent is heard."""
        return self.open.is_done

    async def _subscribe(self) -> None:
        await self._signal.subscribe(self._channel, self._heard)

    async def close(self) -> None:
        """Hear no more."""
        if self.open.is_done:
            await self._signal.unsubscribe(self._channel, self._heard)


class LocalSignal(Signal):
    """Signals within this process, among the stores of one place."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._callbacks: dict[tuple[str, Hear], local_signals.Callback] = {}

    async def close(self) -> None:
        for (channel, _), callback in self._callbacks.items():
            local_signals.leave(self._place, channel, callback)
        self._callbacks.clear()

    async def send(self, channel: str, text: str) -> None:
        local_signals.send(self._place, channel, text)

    async def subscribe(self, channel: str, hear: Hear) -> None:
        loop = asyncio.get_running_loop()

        def callback(text: str) -> None:
            # The sender may be in another thread; a loop that was closed has nobody left who waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(hear, text)

        self._callbacks[channel, hear] = callback
        local_signals.listen(self._place, channel, callback)

    async def unsubscribe(self, channel: str, hear: Hear) -> None:
        callback = self._callbacks.pop((channel, hear), None)
        if callback is not None:
            local_signals.leave(self._place, channel, callback)


class SilentSignal(Signal):
    """No signals, for stores where callers wait on the server."""

    is_silent: ClassVar[bool] = True

    async def send(self, channel: str, text: str) -> None:
        """Nothing is sent."""

    async def subscribe(self, channel: str, hear: Hear) -> None:
        """Nothing will be heard."""

    async def unsubscribe(self, channel: str, hear: Hear) -> None:
        """Nothing was heard."""
