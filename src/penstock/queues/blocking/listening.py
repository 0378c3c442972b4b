"""A queue's ear: each caller that waits has a subscription of its own, and tells the queue what it heard."""

from collections.abc import Callable
from weakref import WeakSet

from penstock.queues.blocking.signals.base import Signal, Subscription


class Ear:
    """Makes subscriptions to one channel."""

    def __init__(self, signal: Signal, channel: str, heard: Callable[[str], None]) -> None:
        self._signal = signal
        self._channel = channel
        self.heard = heard
        self._subscriptions: WeakSet[Subscription] = WeakSet()

    @property
    def is_listening(self) -> bool:
        """Whether what is said is heard: by somebody who waits just now."""
        return bool(self._subscriptions)

    def open(self) -> None:
        """Nothing to do before somebody waits."""

    def listen(self) -> Subscription:
        """From now on, texts are kept for the caller; what was said before may have been missed."""
        subscription = self._signal.subscribe(self._channel)
        self._subscriptions.add(subscription)
        self.heard("")
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """The caller waits no more."""
        self._subscriptions.discard(subscription)
        subscription.close()

    def close(self) -> None:
        """Subscriptions end with their waits."""
