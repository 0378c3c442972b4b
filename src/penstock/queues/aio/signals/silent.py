"""No bus at all, for stores where whoever waits does so on the server."""

from typing import ClassVar

from penstock.queues.aio.signals.base import Hear, Signal


class SilentSignal(Signal):
    """Tells nobody, and nobody listens."""

    is_silent: ClassVar[bool] = True

    async def send(self, channel: str, text: str) -> None:
        """Nothing is told."""

    async def subscribe(self, channel: str, hear: Hear) -> None:
        """Nothing will be heard."""

    async def unsubscribe(self, channel: str, hear: Hear) -> None:
        """Nothing was heard."""
