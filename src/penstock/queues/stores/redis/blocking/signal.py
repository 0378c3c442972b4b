"""Signals through Redis' PUBLISH and SUBSCRIBE.

| channel                      | message                                                                            |
|------------------------------|------------------------------------------------------------------------------------|
| keuss:signal:NAMESPACE:QUEUE | when a job is ready, in ms; `p true`, `p false`: the queue was paused, or resumed  |

Each waiter has a connection of its own: see `penstock.queues.blocking.receivers`. A message reaches all databases of a
server, and all nodes of a Cluster.
"""

from contextlib import ExitStack, suppress
from typing import Any

from penstock.errors import ConnectionLost, PenstockError
from penstock.queues.blocking.receivers import Receiver, Receivers, ReceiverSubscription
from penstock.queues.blocking.signal import Signal, Subscription
from penstock.queues.options import StoreURL
from penstock.queues.stores.redis.blocking.link import RedisLink
from penstock.queues.stores.redis.errors import REDIS_ERRORS
from penstock.queues.stores.redis.scripts import packed


class _SubscribedConnection(Receiver):
    """A connection that is subscribed to one channel."""

    def __init__(self, link: RedisLink, channel: str) -> None:
        super().__init__(channel)
        self._link = link
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
        """Return the last of the texts that have come, but a pause or resume before any other."""
        try:
            return self._last(timeout)
        except (*REDIS_ERRORS, AttributeError, TypeError, ValueError) as problem:
            # It was lost; or another thread closed the store, and redis-py fails on what is left of the connection.
            raise ConnectionLost(f"lost the subscription at {self._link.where}: {problem}") from problem

    def _last(self, timeout: float) -> str | None:
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


class RedisSignal(Signal):
    """The channels of one Redis."""

    def __init__(self, address: StoreURL, extra: dict[str, Any], link: RedisLink | None = None) -> None:
        self._owns_link = link is None
        self._link = RedisLink(address, extra) if link is None else link
        self._receivers = Receivers(self._connect)

    def open(self) -> None:
        if self._owns_link:
            self._link.open()

    def close(self) -> None:
        self._receivers.close()
        if self._owns_link:
            self._link.close()

    def send(self, channel: str, text: str) -> None:
        with suppress(PenstockError):
            self._link.call(b"PUBLISH", channel, text)

    def subscribe(self, channel: str) -> Subscription:
        return ReceiverSubscription(self._receivers, channel)

    def _connect(self, channel: str) -> _SubscribedConnection | None:
        try:
            return _SubscribedConnection(self._link, channel)
        except PenstockError:
            return None
