"""Signals through Redis' PUBLISH and SUBSCRIBE.

| channel                      | message                                                                            |
|------------------------------|------------------------------------------------------------------------------------|
| keuss:signal:NAMESPACE:QUEUE | when a job is ready, in ms; `p true`, `p false`: the queue was paused, or resumed  |

Each waiter has a connection of its own, which is kept for the next wait on the same channel. After it is lost it is
replaced, and the waiter gets an empty text, since messages may have been missed. While Redis can't be reached nobody is
blocked: consumers poll. A message reaches all databases of a server, and all nodes of a Cluster.
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
from penstock.queues.stores.redis.errors import REDIS_ERRORS
from penstock.queues.stores.redis.scripts import packed

RETRY_S = 0.5  # between two attempts to subscribe
SLICE_S = 0.25  # until `wake` from another thread is noticed, at most
IDLE_MAX = 16  # subscribed connections that are kept for the next waiter


class _SubscribedConnection:
    """A connection that is subscribed to one channel."""

    def __init__(self, link: RedisLink, channel: str) -> None:
        self.channel = channel
        self.pid = os.getpid()
        self._stack = ExitStack()
        try:
            self._connection: Any = self._stack.enter_context(link.listening())
            self._connection.send_packed_command([packed([b"SUBSCRIBE", channel])], check_health=False)
            self._read()
        except REDIS_ERRORS as problem:
            self.close()
            raise ConnectionLost(f"lost the subscription at {link.where}: {problem}") from problem
        except BaseException:
            self.close()
            raise

    def _read(self) -> Any:
        return self._connection.read_response(disable_decoding=True, push_request=True)

    def next(self, timeout: float) -> str | None:
        """Return the last of the texts that have come, but a pause or resume before any other; None after `timeout`."""
        text: str | None = None
        while self._connection.can_read(timeout=timeout if text is None else 0):
            message = self._read()
            is_message = isinstance(message, list) and message[:1] == [b"message"]
            if is_message and (message[2].startswith(b"p ") or not (text or "").startswith("p ")):
                text = message[2].decode(errors="replace")
            timeout = 0
        return text

    def close(self) -> None:
        with suppress(PenstockError, *REDIS_ERRORS):
            self._stack.close()


class RedisSubscription(Subscription):
    """One channel, for one waiter at a time."""

    def __init__(self, signal: "RedisSignal", channel: str) -> None:
        self._signal = signal
        self._channel = channel
        self._connection = signal.connection(channel)
        self._is_woken = threading.Event()

    def wait(self, timeout: float) -> str | None:
        deadline = time.monotonic() + timeout
        while True:
            if self._is_woken.is_set():
                self._is_woken.clear()
                return ""
            left = max(0.0, deadline - time.monotonic())
            if self._connection is None:
                self._is_woken.wait(min(left, RETRY_S))
                self._connection = self._signal.connection(self._channel)
                if self._connection is not None:
                    return ""
            else:
                text = self._next(self._connection, min(left, SLICE_S))
                if text is not None:
                    return text
            if time.monotonic() >= deadline:
                return None

    def _next(self, connection: _SubscribedConnection, timeout: float) -> str | None:
        try:
            return connection.next(timeout)
        except (*REDIS_ERRORS, AttributeError, TypeError, ValueError):
            # It was lost; or another thread closed the store, and redis-py fails on what is left of the connection.
            connection.close()
            self._connection = None
            return None

    def wake(self) -> None:
        self._is_woken.set()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._signal.keep(connection)


class RedisSignal(Signal):
    """The channels of one Redis."""

    def __init__(self, address: Address, extra: dict[str, Any], link: RedisLink | None = None) -> None:
        self._owns_link = link is None
        self._link = RedisLink(address, extra) if link is None else link
        self._idle: list[_SubscribedConnection] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def open(self) -> None:
        if self._owns_link:
            self._link.open()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        if self._owns_link:
            self._link.close()

    def send(self, channel: str, text: str) -> None:
        with suppress(PenstockError):
            self._link.call(b"PUBLISH", channel, text)

    def subscribe(self, channel: str) -> Subscription:
        return RedisSubscription(self, channel)

    def connection(self, channel: str) -> _SubscribedConnection | None:
        """Return an idle connection or a new one; None if the server can't be reached."""
        with self._lock:
            # A forked child must neither read on its parent's connections nor close them.
            self._idle = [connection for connection in self._idle if connection.pid == os.getpid()]
            for connection in self._idle:
                if connection.channel == channel:
                    self._idle.remove(connection)
                    return connection
        try:
            return _SubscribedConnection(self._link, channel)
        except PenstockError:
            return None

    def keep(self, connection: _SubscribedConnection) -> None:
        """Keep a connection for the next waiter; of too many, the oldest is closed."""
        with self._lock:
            if self._is_closed:
                surplus: list[_SubscribedConnection] = [connection]
            else:
                self._idle.append(connection)
                surplus, self._idle = self._idle[:-IDLE_MAX], self._idle[-IDLE_MAX:]
        for one in surplus:
            one.close()
