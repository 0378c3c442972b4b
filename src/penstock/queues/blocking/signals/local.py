"""Signals within this process."""

import queue

from penstock.queues import hub
from penstock.queues.blocking.signals.base import Signal, Subscription

TEXTS_MAX = 100  # kept for a waiter who is busy; beyond that it is told that it missed something


class LocalSubscription(Subscription):
    """Texts of one channel."""

    def __init__(self, place: str, channel: str) -> None:
        self._place = place
        self._channel = channel
        self._texts: queue.SimpleQueue[str] = queue.SimpleQueue()
        hub.listen(place, channel, self._hear)

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
        hub.leave(self._place, self._channel, self._hear)


class LocalSignal(Signal):
    """The hub of one place."""

    def __init__(self, place: str) -> None:
        self._place = place

    def send(self, channel: str, text: str) -> None:
        hub.tell(self._place, channel, text)

    def subscribe(self, channel: str) -> Subscription:
        return LocalSubscription(self._place, channel)
