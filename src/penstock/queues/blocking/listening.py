"""A queue's ear: each caller that waits has a subscription of its own, and tells the queue what it heard."""

from collections.abc import Callable

from penstock.queues.blocking.signals.base import Signal, Subscription


class Ear:
    """Makes subscriptions to one channel."""

    def __init__(self, signal: Signal, channel: str, heard: Callable[[str], None]) -> None:
        self._signal = signal
        self._channel = channel
        self.heard = heard

    def open(self) -> None:
        """Nothing to do before somebody waits."""

    def listen(self) -> Subscription:
        """From now on, texts are kept for the caller."""
        return self._signal.subscribe(self._channel)

    def close(self) -> None:
        """Subscriptions end with their waits."""
