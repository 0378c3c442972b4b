"""Signals through Redis' PUBLISH and SUBSCRIBE, with Keuss' channels and texts.

Whoever waits has a connection of its own, which is kept for the next wait on the same channel. When it breaks it is
made anew, and the waiter is told that something may have been missed. A Redis that can't be reached holds up nobody:
whoever waits for jobs then looks every poll interval. Numbers of databases mean nothing here: a signal goes to the
whole server, or the whole Cluster.
"""

import os
import threading
import time
from contextlib import ExitStack, suppress
from typing import Any

from penstock.errors import ConnectionLost, PenstockError
from penstock.queues.blocking.signal import Signal, Subscription
from penstock.queues.options import Address
from penstock.queues.stores.redis.blocking.link import RedisLink
from penstock.queues.stores.redis.errors import RAISED
from penstock.queues.stores.redis.packing import packed

AGAIN_S = 0.5  # between two tries to listen
SLICE_S = 0.25  # so long it may take until a wait that another thread ended is noticed
KEPT_MAX = 16  # subscriptions that wait for the next waiter


class _Listener:
    """A connection that is subscribed to one channel."""

    def __init__(self, link: RedisLink, channel: str) -> None:
        self.channel = channel
        self.pid = os.getpid()
        self._stack = ExitStack()
        try:
            self._connection: Any = self._stack.enter_context(link.listening())
            self._connection.send_packed_command([packed([b"SUBSCRIBE", channel])], check_health=False)
            self._read()
        except RAISED as problem:
            self.close()
            raise ConnectionLost(f"the subscription at {link.where} broke: {problem}") from problem
        except BaseException:
            self.close()
            raise

    def _read(self) -> Any:
        return self._connection.read_response(disable_decoding=True, push_request=True)

    def next(self, timeout: float) -> str | None:
        """What came: of many texts the last one, but a pause goes before all else. None if nothing came in time."""
        text: str | None = None
        while self._connection.can_read(timeout=timeout if text is None else 0):
            said = self._read()
            is_message = isinstance(said, list) and said[:1] == [b"message"]
            if is_message and (said[2].startswith(b"p ") or not (text or "").startswith("p ")):
                text = said[2].decode(errors="replace")
            timeout = 0
        return text

    def close(self) -> None:
        with suppress(PenstockError, *RAISED):
            self._stack.close()


class RedisSubscription(Subscription):
    """Texts of one channel, for one waiter at a time."""

    def __init__(self, signal: "RedisSignal", channel: str) -> None:
        self._signal = signal
        self._channel = channel
        self._listener = signal.listener(channel)
        self._is_woken = threading.Event()

    def wait(self, timeout: float) -> str | None:
        deadline = time.monotonic() + timeout
        while True:
            if self._is_woken.is_set():
                self._is_woken.clear()
                return ""
            left = max(0.0, deadline - time.monotonic())
            if self._listener is None:
                self._is_woken.wait(min(left, AGAIN_S))
                self._listener = self._signal.listener(self._channel)
                if self._listener is not None:
                    return ""
            else:
                text = self._next(self._listener, min(left, SLICE_S))
                if text is not None:
                    return text
            if time.monotonic() >= deadline:
                return None

    def _next(self, listener: _Listener, timeout: float) -> str | None:
        try:
            return listener.next(timeout)
        except (*RAISED, AttributeError, TypeError, ValueError):
            # It broke; or another thread closed the store, and redis-py stumbles over what is left of the connection.
            listener.close()
            self._listener = None
            return None

    def wake(self) -> None:
        self._is_woken.set()

    def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            self._signal.keep(listener)


class RedisSignal(Signal):
    """The channels of one Redis."""

    def __init__(self, address: Address, extra: dict[str, Any], link: RedisLink | None = None) -> None:
        self._is_mine = link is None
        self._link = RedisLink(address, extra) if link is None else link
        self._kept: list[_Listener] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def open(self) -> None:
        if self._is_mine:
            self._link.open()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            kept, self._kept = self._kept, []
        for listener in kept:
            listener.close()
        if self._is_mine:
            self._link.close()

    def send(self, channel: str, text: str) -> None:
        with suppress(PenstockError):
            self._link.call(b"PUBLISH", channel, text)

    def subscribe(self, channel: str) -> Subscription:
        return RedisSubscription(self, channel)

    def listener(self, channel: str) -> _Listener | None:
        """One that was kept, or a new one; None if the server is away."""
        with self._lock:
            # A forked child must not read on its parent's connections, nor close them.
            self._kept = [listener for listener in self._kept if listener.pid == os.getpid()]
            for listener in self._kept:
                if listener.channel == channel:
                    self._kept.remove(listener)
                    return listener
        try:
            return _Listener(self._link, channel)
        except PenstockError:
            return None

    def keep(self, listener: _Listener) -> None:
        """For the next waiter; the oldest goes if there are too many."""
        with self._lock:
            if self._is_closed:
                surplus: list[_Listener] = [listener]
            else:
                self._kept.append(listener)
                surplus, self._kept = self._kept[:-KEPT_MAX], self._kept[-KEPT_MAX:]
        for one in surplus:
            one.close()
