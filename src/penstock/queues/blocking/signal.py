"""How waiting consumers hear of new jobs: `penstock.queues.aio.signal` without an event loop.

No thread listens here: whoever waits for a job waits on a subscription of their own.
"""

import queue
from collections.abc import Callable
from typing import ClassVar
from weakref import WeakSet

from penstock.queues import local_signals

TEXTS_MAX = 100  # kept for a waiter that is busy; beyond that only pauses are


class Subscription:
    """One channel, for one waiter at a time."""

    def wait(self, timeout: float) -> str | None:
        """Return the next text since the subscription began; None if the time is over. An empty text says that
        something may have been missed."""
        raise NotImplementedError

    def wake(self) -> None:
        """End a wait that goes on in another thread; it gets an empty text."""
        raise NotImplementedError

    def close(self) -> None:
        """Hear no more."""


class Signal:
    """The contract."""

    is_silent: ClassVar[bool] = False  # nobody ever hears anything: what would be sent need not be worked out

    def open(self) -> None:
        """Connect."""

    def close(self) -> None:
        """Stop hearing and sending."""

    def send(self, channel: str, text: str) -> None:
        """Send to everybody, this process included. A server that is gone is not an error: nothing depends on it."""
        raise NotImplementedError

    def subscribe(self, channel: str) -> Subscription:
        """From the return on, texts on the channel are kept for whoever waits."""
        raise NotImplementedError


class SignalListener:
    """Makes subscriptions to one channel; callers that wait tell it what they heard."""

    def __init__(self, signal: Signal, channel: str, heard: Callable[[str], None]) -> None:
        self._signal = signal
        self._channel = channel
        self.heard = heard
        self._subscriptions: WeakSet[Subscription] = WeakSet()

    @property
    def is_listening(self) -> bool:
        """Whether what is sent is heard: by somebody who waits just now."""
        return bool(self._subscriptions)

    def listen(self) -> Subscription:
        """From now on, texts are kept for the caller; what was sent before may have been missed."""
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


class LocalSubscription(Subscription):
    """Texts of one channel within this process."""

    def __init__(self, place: str, channel: str) -> None:
        self._place = place
        self._channel = channel
        self._texts: queue.SimpleQueue[str] = queue.SimpleQueue()
        local_signals.listen(place, channel, self._hear)

    def _hear(self, text: str) -> None:
        if self._texts.qsize() < TEXTS_MAX or text.startswith("p "):
            self._texts.put(text)

    def wait(self, timeout: float) -> str | None:
        try:
            return self._texts.get(timeout=max(timeout, 0))
        except queue.Empty:
            return None

    def wake(self) -> None:
        self._texts.put("")

    def close(self) -> None:
        local_signals.leave(self._place, self._channel, self._hear)


class LocalSignal(Signal):
    """Signals within this process, among the stores of one place."""

    def __init__(self, place: str) -> None:
        self._place = place

    def send(self, channel: str, text: str) -> None:
        local_signals.send(self._place, channel, text)

    def subscribe(self, channel: str) -> Subscription:
        return LocalSubscription(self._place, channel)


class SilentSignal(Signal):
    """No signals, for stores where callers wait on the server: nobody subscribes."""

    is_silent: ClassVar[bool] = True

    def send(self, channel: str, text: str) -> None:
        """Nothing is sent."""
