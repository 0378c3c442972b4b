"""A queue's ear: hears the signals of its channel as they come."""

from collections.abc import Callable

from penstock.queues.aio.once import Once
from penstock.queues.aio.signals.base import Signal


class Ear:
    """Calls `heard` with each text on the channel, once it is open."""

    def __init__(self, signal: Signal, channel: str, heard: Callable[[str], None]) -> None:
        self._signal = signal
        self._channel = channel
        self._heard = heard
        self.open = Once(self._subscribe)

    @property
    def is_listening(self) -> bool:
        """Whether what is said is heard."""
        return self.open.is_done

    async def _subscribe(self) -> None:
        await self._signal.subscribe(self._channel, self._heard)

    async def close(self) -> None:
        """Hear no more."""
        if self.open.is_done:
            await self._signal.unsubscribe(self._channel, self._heard)
