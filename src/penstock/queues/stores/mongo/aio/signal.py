"""Signals in MongoDB: see `signals`.

One cursor listens for all queues of a store. After it is lost (the server went away, the collection was dropped, or
filled up faster than it was read) it is replaced, and every listener gets an empty text, since messages may have been
missed. While the server can't be reached nobody is blocked: consumers poll.

Jobs of several pushes within a few milliseconds are announced together: the first at once, and the following ones by
one insert for all queues.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from bson import ObjectId
from pymongo import CursorType

from penstock.errors import ConnectionLost, PenstockError, StoreError
from penstock.queues.aio.signal import Hear, Signal
from penstock.queues.options import StoreURL
from penstock.queues.stores.mongo.address import SIGNAL_SUFFIX, mongo_settings
from penstock.queues.stores.mongo.aio.link import Collection, MongoLink
from penstock.queues.stores.mongo.errors import COLLECTION_EXISTS, code_of
from penstock.queues.stores.mongo.signals import (
    AWAIT_MS,
    CAPPED,
    CHANNEL,
    NOT_CAPPED,
    RETRY_S,
    front_of,
    message_of,
    text_of,
    wanted,
)

PAUSE_S = 0.02  # between two inserts of announcements
CANCEL_S = 0.1  # until the listener is cancelled again


class MongoSignal(Signal):
    """The signals in one collection."""

    def __init__(
        self, address: StoreURL, extra: Mapping[str, Any], link: MongoLink | None = None, channel: str = CHANNEL
    ) -> None:
        """`link` is that of the store, if the signals are kept beside it."""
        self._owns_link = link is None
        if link is None:
            settings = mongo_settings(address, extra, {"channel"})
            channel = str(settings.own.get("channel", CHANNEL))
            link = MongoLink(settings)
        self._link = link
        self._suffix = SIGNAL_SUFFIX if not self._owns_link else ""
        self._name = channel
        self._listeners: dict[str, list[Hear]] = {}
        self._fronts: set[str] = set()  # of the channels that the cursor looks for
        self._is_outdated = False  # it should look for more
        self._live = asyncio.Event()  # the cursor hears what is sent
        self._tail: asyncio.Task[None] | None = None
        self._is_there = False  # the collection
        self._pending: dict[str, int] = {}  # channel -> the first time at which a job is ready
        self._sender: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if self._owns_link:
            await self._link.open()

    async def close(self) -> None:
        if self._sender is not None:
            await asyncio.wait([self._sender])
        tail, self._tail = self._tail, None
        while tail is not None and not tail.done():
            # pymongo may swallow a cancellation that comes while it connects or has just read a reply.
            tail.cancel()
            await asyncio.wait([tail], timeout=CANCEL_S)
        if self._owns_link:
            await self._link.close()

    @property
    def _messages(self) -> Collection:
        return self._link.quick(self._name, self._suffix)

    async def send(self, channel: str, text: str) -> None:
        if not text.isdigit():
            with suppress(PenstockError):
                await self._insert({channel: text})
            return
        soonest = int(text)
        self._pending[channel] = min(soonest, self._pending.get(channel, soonest))
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send_pending())

    async def _send_pending(self) -> None:
        try:
            while self._pending:
                pending, self._pending = self._pending, {}
                with suppress(PenstockError):
                    await self._insert({channel: str(soonest) for channel, soonest in pending.items()})
                await asyncio.sleep(PAUSE_S)
        finally:
            self._sender = None

    async def _insert(self, texts: Mapping[str, str]) -> None:
        if not self._is_there:
            await self._make()
        documents = [{"event": channel, "message": message_of(text)} for channel, text in texts.items()]
        with self._link.errors():
            await self._messages.insert_many(documents)

    async def _make(self) -> None:
        """Make the collection, unless it is there. An insert would make one that can't be tailed."""
        try:
            with self._link.errors():
                await self._link.database(self._suffix).create_collection(self._name, check_exists=False, **CAPPED)
        except StoreError as problem:
            if code_of(problem) != COLLECTION_EXISTS:
                raise
        self._is_there = True

    async def subscribe(self, channel: str, hear: Hear) -> None:
        self._listeners.setdefault(channel, []).append(hear)
        if self._tail is not None and front_of(channel) not in self._fronts:
            # The cursor is replaced when its server replies next. It is not cancelled, as pymongo may swallow that.
            self._is_outdated = True
            self._live.clear()
        if self._tail is None:
            self._live.clear()
            self._tail = asyncio.get_running_loop().create_task(self._listen())
        await self._live.wait()

    async def unsubscribe(self, channel: str, hear: Hear) -> None:
        listeners = self._listeners.get(channel, [])
        if hear in listeners:
            listeners.remove(hear)
        if not listeners:
            self._listeners.pop(channel, None)

    async def _listen(self) -> None:
        is_first = True
        while True:
            try:
                await self._follow(is_first)
                is_first = False
                continue
            except PenstockError as problem:
                if code_of(problem) == NOT_CAPPED:
                    await self._convert()
            except Exception:
                self._live.set()  # nobody waits for a listener that has ended
                raise
            # `subscribe` doesn't wait for a server that is gone: its listeners get an empty text when it is back.
            self._live.set()
            is_first = self._is_there = False
            await asyncio.sleep(RETRY_S)

    async def _follow(self, is_first: bool) -> None:
        """Hear what is inserted, until the cursor must look for more channels. Raises if it is lost."""
        with self._link.errors():
            await self._make()
            newest = await self._messages.find_one({}, {"_id": True}, sort=[("$natural", -1)])
            if newest is None:
                newest = {"_id": (await self._messages.insert_one({"_id": ObjectId(), "dummy": True})).inserted_id}
            self._is_outdated = False
            self._fronts = {front_of(channel) for channel in self._listeners}
            cursor = self._messages.find(
                wanted(self._fronts, newest["_id"]),
                cursor_type=CursorType.TAILABLE_AWAIT,
                no_cursor_timeout=True,
            ).max_await_time_ms(AWAIT_MS)
            is_new = False
            async with cursor:
                while cursor.alive:
                    async for document in cursor:
                        if is_new:
                            self._hear(document)
                        elif document["_id"] == newest["_id"]:
                            is_new = True
                            self._begin(is_first)
                    if not is_new:  # the document was overwritten meanwhile
                        is_new = True
                        self._begin(is_first)
                    if self._is_outdated:
                        return
        raise ConnectionLost(f"lost the cursor on the signals at {self._link.where}")

    def _begin(self, is_first: bool) -> None:
        if not self._is_outdated:
            self._live.set()
        if not is_first:
            for channel in tuple(self._listeners):
                self._notify(channel, "")

    async def _convert(self) -> None:
        """Somebody inserted after the collection was dropped: that made one without a limit."""
        with suppress(PenstockError), self._link.errors():
            await self._link.database(self._suffix).command("convertToCapped", self._name, size=CAPPED["size"])

    def _hear(self, document: Mapping[str, Any]) -> None:
        text = text_of(document.get("message"))
        if text is not None:
            self._notify(str(document.get("event")), text)

    def _notify(self, channel: str, text: str) -> None:
        for hear in tuple(self._listeners.get(channel, ())):
            hear(text)
