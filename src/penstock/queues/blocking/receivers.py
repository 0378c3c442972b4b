"""Subscriptions for signals whose client library reads one channel at a time: a connection or cursor for each waiter.

The one of a waiter that is done is kept for the next waiter on the same channel. One that is lost is replaced, and its
waiter gets an empty text, since messages may have been missed. While the server can't be reached nobody is blocked:
consumers poll.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.errors import PenstockError
from penstock.queues.blocking.signal import Subscription

RETRY_S = 0.5  # between two attempts to connect
SLICE_S = 0.25  # until `wake` from another thread is noticed, at most
IDLE_MAX = 16  # receivers that are kept for the next waiter


class Receiver:
    """What receives the texts of one channel."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.pid = os.getpid()

    def next(self, timeout: float) -> str | None:
        """Return the next text; None if none comes in time. Raises a PenstockError if it is lost."""
        raise NotImplementedError

    def close(self) -> None:
        """Receive no more."""


R = TypeVar("R", bound=Receiver)


class Receivers(Generic[R]):
    """The receivers of one signal that no caller uses now."""

    def __init__(self, connect: Callable[[str], R | None]) -> None:
        """`connect` makes the receiver of a channel; None if the server can't be reached."""
        self._connect = connect
        self._idle: list[R] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def take(self, channel: str) -> R | None:
        """Return an idle receiver or a new one; None if the server can't be reached."""
        with self._lock:
            # A forked child must neither read with its parent's receivers nor close them.
            self._idle = [receiver for receiver in self._idle if receiver.pid == os.getpid()]
            for receiver in self._idle:
                if receiver.channel == channel:
                    self._idle.remove(receiver)
                    return receiver
        return self._connect(channel)

    def keep(self, receiver: R) -> None:
        """Keep a receiver for the next waiter; if there are too many, close the oldest."""
        with self._lock:
            if self._is_closed:
                surplus: list[R] = [receiver]
            else:
                self._idle.append(receiver)
                surplus, self._idle = self._idle[:-IDLE_MAX], self._idle[-IDLE_MAX:]
        for one in surplus:
            one.close()

    def close(self) -> None:
        """Close all that are idle, and from now on those that come back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for receiver in idle:
            receiver.close()


class ReceiverSubscription(Subscription, Generic[R]):
    """One channel, for one waiter at a time."""

    def __init__(self, receivers: Receivers[R], channel: str) -> None:
        self._receivers = receivers
        self._channel = channel
        self._receiver = receivers.take(channel)
        self._is_woken = threading.Event()

    def wait(self, timeout: float) -> str | None:
        deadline = time.monotonic() + timeout
        while True:
            if self._is_woken.is_set():
                self._is_woken.clear()
                return ""
            left = max(0.0, deadline - time.monotonic())
            if self._receiver is None:
                self._is_woken.wait(min(left, RETRY_S))
                self._receiver = self._receivers.take(self._channel)
                if self._receiver is not None:
                    return ""
            else:
                text = self._next(self._receiver, min(left, SLICE_S))
                if text is not None:
                    return text
            if time.monotonic() >= deadline:
                return None

    def _next(self, receiver: R, timeout: float) -> str | None:
        try:
            return receiver.next(timeout)
        except PenstockError:
            receiver.close()
            self._receiver = None
            return None

    def wake(self) -> None:
        self._is_woken.set()

    def close(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            self._receivers.keep(receiver)
