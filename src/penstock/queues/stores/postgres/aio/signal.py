"""Signals by LISTEN and NOTIFY: PostgreSQL sends them when the transaction that they are part of is committed.

One connection of its own listens, from when somebody first waits. It is mended by itself when it breaks: then everybody
hears an empty text, since something may have been missed. Channels have Keuss' names, but for long ones, which
PostgreSQL has no room for: see `penstock.queues.stores.postgres.names`. Node peers neither send nor hear these signals.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import AsyncRawCursor

from penstock.errors import PenstockError
from penstock.queues.aio.signal import Hear, Signal
from penstock.queues.options import Address
from penstock.queues.stores.postgres.aio.client import Pool, connect
from penstock.queues.stores.postgres.aio.link import Link
from penstock.queues.stores.postgres.errors import failed
from penstock.queues.stores.postgres.names import channel_name, quoted
from penstock.queues.stores.postgres.sql import NOTIFY

TROUBLE_S = 0.5  # between two tries to reach a server that is gone


class PostgresSignal(Signal):
    """The channels of one database."""

    def __init__(self, address: Address, extra: Mapping[str, Any], pool: Pool | None = None) -> None:
        self._pool = Pool(address, extra) if pool is None else pool
        self._is_own = pool is None
        self._ears: dict[str, list[Hear]] = {}
        self._link: Link | None = None
        self._lock = asyncio.Lock()
        self._mending: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if self._is_own:
            await self._pool.open()

    async def close(self) -> None:
        if self._mending is not None:
            self._mending.cancel()
            await asyncio.wait([self._mending])
        self._ears.clear()
        async with self._lock:
            await self._let_go()
        if self._is_own:
            await self._pool.close()

    async def send(self, channel: str, text: str) -> None:
        with suppress(PenstockError):
            await self._pool.run(NOTIFY, channel_name(channel), text)

    async def subscribe(self, channel: str, hear: Hear) -> None:
        name = channel_name(channel)
        async with self._lock:
            if self._link is None:
                await self._connect([*self._ears, name])
            elif name not in self._ears:
                await self._tell(self._link, f"LISTEN {quoted(name)}")
            self._ears.setdefault(name, []).append(hear)

    async def unsubscribe(self, channel: str, hear: Hear) -> None:
        name = channel_name(channel)
        ears = self._ears.get(name, [])
        if hear in ears:
            ears.remove(hear)
        if not ears and self._ears.pop(name, None) is not None:
            async with self._lock:
                if self._link is not None and name not in self._ears:
                    with suppress(PenstockError):
                        await self._tell(self._link, f"UNLISTEN {quoted(name)}")

    async def _connect(self, names: list[str]) -> None:
        link = await connect(self._pool.conninfo, self._pool.url)
        link.add_notify_handler(lambda notify: self._heard(notify.channel, notify.payload))
        try:
            await self._tell(link, "; ".join(f"LISTEN {quoted(name)}" for name in names))
        except BaseException:
            await link.close()
            raise
        self._link = link

    async def _tell(self, link: Link, words: str) -> None:
        """Say something on the connection that listens. psycopg reads it meanwhile, and then the loop must again."""
        try:
            await AsyncRawCursor(link).execute(words)
        except psycopg.Error as problem:
            if link is self._link:
                self._broke(link)
            raise failed(problem, self._pool.url, True, False) from problem
        socket = link.pgconn.socket
        asyncio.get_running_loop().add_reader(socket, self._read, link, socket)

    def _read(self, link: Link, socket: int) -> None:
        try:
            link.pgconn.consume_input()
        except psycopg.Error:
            # By its number, as libpq has closed it, and the next connection may get the same.
            asyncio.get_running_loop().remove_reader(socket)
            self._broke(link)
            return
        while notify := link.pgconn.notifies():
            self._heard(notify.relname.decode(), notify.extra.decode())

    def _heard(self, name: str, text: str) -> None:
        for hear in tuple(self._ears.get(name, ())):
            hear(text)

    def _broke(self, link: Link) -> None:
        link.pgconn.finish()
        self._link = None
        if self._ears and self._mending is None:
            self._mending = asyncio.get_running_loop().create_task(self._mend())

    async def _mend(self) -> None:
        try:
            while self._ears:
                with suppress(PenstockError):
                    async with self._lock:
                        if self._link is None:
                            await self._connect(list(self._ears))
                    break
                await asyncio.sleep(TROUBLE_S)
        finally:
            self._mending = None
        for name in tuple(self._ears):
            self._heard(name, "")

    async def _let_go(self) -> None:
        link, self._link = self._link, None
        if link is not None and not link.closed:
            asyncio.get_running_loop().remove_reader(link.pgconn.socket)
            await link.close()
