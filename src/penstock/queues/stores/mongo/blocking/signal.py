"""Signals in MongoDB: see `signals`.

Each waiter has a cursor of its own: see `penstock.queues.blocking.receivers`. It is lost when the server goes away, the
collection is dropped, or it fills up faster than it is read.
"""

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from bson import ObjectId
from pymongo import CursorType

from penstock.errors import PenstockError, StoreError
from penstock.queues.blocking.receivers import SLICE_S, Receiver, Receivers, ReceiverSubscription
from penstock.queues.blocking.signal import TEXTS_MAX, Signal, Subscription
from penstock.queues.options import StoreURL
from penstock.queues.stores.mongo.address import SIGNAL_SUFFIX, mongo_settings
from penstock.queues.stores.mongo.blocking.link import Collection, MongoLink
from penstock.queues.stores.mongo.errors import COLLECTION_EXISTS, MONGO_ERRORS, code_of
from penstock.queues.stores.mongo.signals import CAPPED, CHANNEL, NOT_CAPPED, message_of, text_of


class _Tail(Receiver):
    """A cursor that hears one channel."""

    def __init__(self, signal: "MongoSignal", channel: str) -> None:
        super().__init__(channel)
        self._link = signal.link
        self._texts: deque[str] = deque()
        with self._link.errors():
            signal.make()
            messages = signal.messages
            newest = messages.find_one({}, {"_id": True}, sort=[("$natural", -1)])
            if newest is None:
                newest = {"_id": messages.insert_one({"_id": ObjectId(), "dummy": True}).inserted_id}
            self._cursor = messages.find(
                {"$or": [{"event": channel}, {"_id": newest["_id"]}]},
                cursor_type=CursorType.TAILABLE_AWAIT,
                no_cursor_timeout=True,
            ).max_await_time_ms(int(SLICE_S * 1000))
            try:
                for document in self._cursor:
                    if document["_id"] == newest["_id"]:
                        break
                self._read_buffered()
            except BaseException:
                self.close()
                raise

    def _read_buffered(self) -> None:
        """Take what has come with the last reply."""
        while self._cursor._data:
            self._hear(self._cursor.next())

    def _hear(self, document: Mapping[str, Any]) -> None:
        text = text_of(document.get("message"))
        if text is not None and (len(self._texts) < TEXTS_MAX or text.startswith("p ")):
            self._texts.append(text)

    def next(self, timeout: float) -> str | None:
        """Return the next text. The server waits for SLICE_S, whatever `timeout` is: a cursor has one time for all."""
        if not self._texts:
            with self._link.errors():
                with suppress(StopIteration):
                    self._hear(self._cursor.next())
                self._read_buffered()
                if not self._cursor.alive:
                    raise StoreError(f"lost the cursor on the signals at {self._link.where}")
        return self._texts.popleft() if self._texts else None

    def close(self) -> None:
        with suppress(*MONGO_ERRORS, PenstockError):
            self._cursor.close()


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
        self.link = link
        self._suffix = SIGNAL_SUFFIX if not self._owns_link else ""
        self._name = channel
        self._is_there = False  # the collection
        self._receivers = Receivers(self._connect)

    def open(self) -> None:
        if self._owns_link:
            self.link.open()

    def close(self) -> None:
        self._receivers.close()
        if self._owns_link:
            self.link.close()

    @property
    def messages(self) -> Collection:
        """The collection."""
        return self.link.quick(self._name, self._suffix)

    def send(self, channel: str, text: str) -> None:
        with suppress(PenstockError), self.link.errors():
            if not self._is_there:
                self.make()
            self.messages.insert_one({"event": channel, "message": message_of(text)})

    def make(self) -> None:
        """Make the collection, unless it is there. An insert would make one that can't be tailed."""
        try:
            with self.link.errors():
                self.link.database(self._suffix).create_collection(self._name, check_exists=False, **CAPPED)
        except StoreError as problem:
            if code_of(problem) != COLLECTION_EXISTS:
                raise
        self._is_there = True

    def subscribe(self, channel: str) -> Subscription:
        return ReceiverSubscription(self._receivers, channel)

    def _connect(self, channel: str) -> _Tail | None:
        try:
            return _Tail(self, channel)
        except PenstockError as problem:
            if code_of(problem) == NOT_CAPPED:
                self._convert()
            return None

    def _convert(self) -> None:
        """Somebody inserted after the collection was dropped: that made one without a limit."""
        with suppress(PenstockError), self.link.errors():
            self.link.database(self._suffix).command("convertToCapped", self._name, size=CAPPED["size"])
