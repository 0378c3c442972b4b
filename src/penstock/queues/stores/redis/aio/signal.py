"""Signals through Redis' PUBLISH and SUBSCRIBE.

| channel                      | message                                                                            |
|------------------------------|------------------------------------------------------------------------------------|
| keuss:signal:NAMESPACE:QUEUE | when a job is ready, in ms; `p true`, `p false`: the queue was paused, or resumed  |

One connection listens for all queues of a store. After it is lost it is replaced as soon as the server can be reached,
and every listener gets an empty text, since messages may have been missed. While Redis can't be reached nobody is
blocked: consumers poll. A message reaches all databases of a server, and all nodes of a Cluster.
"""

import asyncio
from contextlib import suppress
from typing import Any

from penstock.errors import PenstockError
from penstock.queues.aio.signal import Hear, Signal
from penstock.queues.options import StoreURL
from penstock.queues.stores.redis.aio.link import RedisLink
from penstock.queues.stores.redis.scripts import packed

RETRY_S = 0.5  # between two attempts to subscribe
QUIET_S = 30.0  # without a message a PING is sent, and after the same time the connection is given up


class RedisSignal(Signal):
    """The channels of one Redis."""

    def __init__(self, address: StoreURL, extra: dict[str, Any], link: RedisLink | None = None) -> None:
        self._owns_link = link is None
        self._link = RedisLink(address, extra) if link is None else link
        self._listeners: dict[str, list[Hear]] = {}
        self._unconfirmed: dict[str, list[asyncio.Future[None]]] = {}  # calls of `subscribe` that wait for the server
        self._confirmed: set[str] = set()  # channels that the server has subscribed this connection to
        self._missed: set[str] = set()  # channels whose listeners must get an empty text
        self._connection: Any = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if self._owns_link:
            await self._link.open()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self._owns_link:
            await self._link.close()

    async def send(self, channel: str, text: str) -> None:
        with suppress(PenstockError):
            await self._link.call(b"PUBLISH", channel, text)

    async def subscribe(self, channel: str, hear: Hear) -> None:
        self._listeners.setdefault(channel, []).append(hear)
        if channel in self._confirmed:
            return
        confirmation: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unconfirmed.setdefault(channel, []).append(confirmation)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen())
        else:
            await self._send(b"SUBSCRIBE", channel)
        await confirmation

    async def unsubscribe(self, channel: str, hear: Hear) -> None:
        listeners = self._listeners.get(channel, [])
        if hear in listeners:
            listeners.remove(hear)
        if not listeners and self._listeners.pop(channel, None) is not None:
            self._confirmed.discard(channel)
            await self._send(b"UNSUBSCRIBE", channel)

    async def _send(self, *words: bytes | str) -> None:
        """Send on the connection that listens. If it is broken, `_read` finds out."""
        if self._connection is not None:
            with suppress(Exception):
                await self._connection.send_packed_command([packed(words)], check_health=False)

    async def _listen(self) -> None:
        while True:
            with suppress(PenstockError):
                async with self._link.listening() as connection:
                    self._connection = connection
                    for channel in list(self._listeners):
                        await connection.send_packed_command([packed([b"SUBSCRIBE", channel])], check_health=False)
                    await self._read(connection)
            self._connection = None
            self._confirmed.clear()
            self._missed.update(self._listeners)
            # `subscribe` doesn't wait for a server that is gone: its listeners get an empty text when it is back.
            for channel in list(self._unconfirmed):
                self._confirm(channel)
            await asyncio.sleep(RETRY_S)

    async def _read(self, connection: Any) -> None:
        was_pinged = False
        while True:
            message = await connection.read_response(disable_decoding=True, timeout=QUIET_S, push_request=True)
            if message is None and was_pinged:
                return
            if message is None:
                await connection.send_packed_command([packed([b"PING"])], check_health=False)
            was_pinged = message is None
            if isinstance(message, list) and len(message) == 3:
                self._on_message(*message)

    def _on_message(self, kind: bytes, channel: bytes | None, content: Any) -> None:
        name = (channel or b"").decode(errors="replace")
        if kind == b"subscribe" and name in self._listeners:
            self._confirmed.add(name)
            self._confirm(name)
            if name in self._missed:
                self._missed.discard(name)
                self._notify(name, "")
        elif kind == b"message":
            self._notify(name, content.decode(errors="replace"))

    def _confirm(self, channel: str) -> None:
        for confirmation in self._unconfirmed.pop(channel, ()):
            if not confirmation.done():
                confirmation.set_result(None)

    def _notify(self, channel: str, text: str) -> None:
        for hear in tuple(self._listeners.get(channel, ())):
            hear(text)
