"""Signals by LISTEN and NOTIFY: PostgreSQL sends them when the transaction that they are part of is committed.

One connection of its own listens, from the first subscription on. When it breaks, it is replaced: then every subscriber
gets an empty text, since something may have been missed. Channels have Keuss' names, but for long ones, which
PostgreSQL can't have: see `penstock.queues.stores.postgres.names`. Node peers neither send nor receive these signals.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import PGnotify

from penstock.errors import PenstockError
from penstock.queues.aio.signal import Hear, Signal
from penstock.queues.options import StoreURL
from penstock.queues.stores.postgres.aio.link import PostgresLink
from penstock.queues.stores.postgres.aio.pool import Pool
from penstock.queues.stores.postgres.errors import failed
from penstock.queues.stores.postgres.names import channel_name, quoted
from penstock.queues.stores.postgres.sql import NOTIFY

RECONNECT_S = 0.5  # between two attempts


class PostgresSignal(Signal):
    """The channels of one database."""

    def __init__(self, address: StoreURL, extra: Mapping[str, Any], pool: Pool | None = None) -> None:
        self._pool = Pool(address, extra) if pool is None else pool
        self._is_own = pool is None
        self._subscribers: dict[str, list[Hear]] = {}  # by the channel's name in PostgreSQL
        self._link: PostgresLink | None = None
        self._lock = asyncio.Lock()
        self._reconnecting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if self._is_own:
            await self._pool.open()

    async def close(self) -> None:
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting])
        self._subscribers.clear()
        async with self._lock:
            link, self._link = self._link, None
            if link is not None:
                link.close()
        if self._is_own:
            await self._pool.close()

    async def send(self, channel: str, text: str) -> None:
        with suppress(PenstockError):
            await self._pool.run(NOTIFY, channel_name(channel), text)

    async def subscribe(self, channel: str, hear: Hear) -> None:
        name = channel_name(channel)
        async with self._lock:
            if self._link is None:
                await self._connect([*self._subscribers, name])
            elif name not in self._subscribers:
                await self._run(self._link, f"LISTEN {quoted(name)}")
            self._subscribers.setdefault(name, []).append(hear)

    async def unsubscribe(self, channel: str, hear: Hear) -> None:
        name = channel_name(channel)
        subscribers = self._subscribers.get(name, [])
        if hear in subscribers:
            subscribers.remove(hear)
        if not subscribers and self._subscribers.pop(name, None) is not None:
            async with self._lock:
                if self._link is not None and name not in self._subscribers:
                    with suppress(PenstockError):
                        await self._run(self._link, f"UNLISTEN {quoted(name)}")

    async def _connect(self, names: list[str]) -> None:
        link = await self._pool.connect()
        link.pgconn.notify_handler = self._notified  # for what comes along with an answer
        link.on_input = lambda: self._read(link)
        try:
            await self._run(link, "; ".join(f"LISTEN {quoted(name)}" for name in names))
        except BaseException:
            link.close()
            raise
        self._link = link

    async def _run(self, link: PostgresLink, script: str) -> None:
        try:
            await link.run_script(script)
        except psycopg.Error as problem:
            self._lost(link)
            raise failed(problem, self._pool.url, True, False) from problem

    def _read(self, link: PostgresLink) -> None:
        try:
            link.pgconn.consume_input()
        except psycopg.Error:
            self._lost(link)
            return
        while notify := link.pgconn.notifies():
            self._notified(notify)

    def _notified(self, notify: PGnotify) -> None:
        self._publish(notify.relname.decode(), notify.extra.decode())

    def _publish(self, name: str, text: str) -> None:
        for hear in tuple(self._subscribers.get(name, ())):
            hear(text)

    def _lost(self, link: PostgresLink) -> None:
        link.close()
        if link is self._link:
            self._link = None
            if self._subscribers and self._reconnecting is None:
                self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        try:
            while self._subscribers:
                with suppress(PenstockError):
                    async with self._lock:
                        if self._link is None:
                            await self._connect(list(self._subscribers))
                    break
                await asyncio.sleep(RECONNECT_S)
        finally:
            self._reconnecting = None
        for name in tuple(self._subscribers):
            self._publish(name, "")
