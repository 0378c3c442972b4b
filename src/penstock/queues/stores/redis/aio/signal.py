"""Signals through Redis' PUBLISH and SUBSCRIBE, with Keuss' channels and texts (see `base`).

One connection listens for all queues of a store. When it breaks it is made anew, again and again until it holds, and
everybody is told that something may have been missed. A Redis that can't be reached holds up nobody: whoever waits for
jobs then looks every poll interval. Numbers of databases mean nothing here: a signal goes to the whole server, or the
whole Cluster.
"""

import asyncio
from contextlib import suppress
from typing import Any

from penstock.errors import PenstockError
from penstock.queues.aio.signal import Hear, Signal
from penstock.queues.options import Address
from penstock.queues.stores.redis.aio.link import RedisLink
from penstock.queues.stores.redis.packing import packed

AGAIN_S = 0.5  # between two tries to listen
QUIET_S = 30.0  # without a word the connection is asked for one, and after the same time given up


class RedisSignal(Signal):
    """The channels of one Redis."""

    def __init__(self, address: Address, extra: dict[str, Any], link: RedisLink | None = None) -> None:
        self._is_mine = link is None
        self._link = RedisLink(address, extra) if link is None else link
        self._hears: dict[str, list[Hear]] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}  # who waits for the server to know of a channel
        self._known: set[str] = set()  # channels that the server knows of
        self._missed: set[str] = set()  # channels whose listeners must be told so
        self._connection: Any = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if self._is_mine:
            await self._link.open()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self._is_mine:
            await self._link.close()

    async def send(self, channel: str, text: str) -> None:
        with suppress(PenstockError):
            await self._link.call(b"PUBLISH", channel, text)

    async def subscribe(self, channel: str, hear: Hear) -> None:
        self._hears.setdefault(channel, []).append(hear)
        if channel in self._known:
            return
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(channel, []).append(heard)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen())
        else:
            await self._say(b"SUBSCRIBE", channel)
        await heard

    async def unsubscribe(self, channel: str, hear: Hear) -> None:
        hears = self._hears.get(channel, [])
        if hear in hears:
            hears.remove(hear)
        if not hears and self._hears.pop(channel, None) is not None:
            self._known.discard(channel)
            await self._say(b"UNSUBSCRIBE", channel)

    async def _say(self, *words: bytes | str) -> None:
        """Send on the connection that listens; if it is broken, whoever reads there will notice."""
        if self._connection is not None:
            with suppress(Exception):
                await self._connection.send_packed_command([packed(words)], check_health=False)

    async def _listen(self) -> None:
        while True:
            with suppress(PenstockError):
                async with self._link.listening() as connection:
                    self._connection = connection
                    for channel in list(self._hears):
                        await connection.send_packed_command([packed([b"SUBSCRIBE", channel])], check_health=False)
                    await self._read(connection)
            self._connection = None
            self._known.clear()
            self._missed.update(self._hears)
            # Nobody waits for a server that may not come back: they will be told when it does.
            for channel in list(self._waiting):
                self._let_go(channel)
            await asyncio.sleep(AGAIN_S)

    async def _read(self, connection: Any) -> None:
        is_asked = False
        while True:
            said = await connection.read_response(disable_decoding=True, timeout=QUIET_S, push_request=True)
            if said is None and is_asked:
                return
            if said is None:
                await connection.send_packed_command([packed([b"PING"])], check_health=False)
            is_asked = said is None
            if isinstance(said, list) and len(said) == 3:
                self._said(*said)

    def _said(self, kind: bytes, channel: bytes | None, what: Any) -> None:
        name = (channel or b"").decode(errors="replace")
        if kind == b"subscribe" and name in self._hears:
            self._known.add(name)
            self._let_go(name)
            if name in self._missed:
                self._missed.discard(name)
                self._tell(name, "")
        elif kind == b"message":
            self._tell(name, what.decode(errors="replace"))

    def _let_go(self, channel: str) -> None:
        for heard in self._waiting.pop(channel, ()):
            if not heard.done():
                heard.set_result(None)

    def _tell(self, channel: str, text: str) -> None:
        for hear in tuple(self._hears.get(channel, ())):
            hear(text)
