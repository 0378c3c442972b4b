"""No bus at all, for stores where whoever waits does so on the server."""

from typing import ClassVar

from penstock.queues.blocking.signals.base import Signal


class SilentSignal(Signal):
    """Tells nobody; nobody listens, since nobody waits for it."""

    is_silent: ClassVar[bool] = True

    def send(self, channel: str, text: str) -> None:
        """Nothing is told."""
