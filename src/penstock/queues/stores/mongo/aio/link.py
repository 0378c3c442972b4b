"""The connection to MongoDB, and what else differs between the two forms of the library.

pymongo's client has the pool of connections, finds the primary, and repeats a write once where the server can tell a
repetition (`retryWrites`, on replica sets). Writes are confirmed by a majority of a replica set, and elsewhere once
they are in the journal, unless the URL says otherwise; reads go to the primary.

    open, close         the client's life; `open` looks at what kind of server it is
    collection          a collection of the store's database, or of the one with a suffix
    errors              within it, errors of pymongo are raised as those of `penstock.errors`
    clock               the server's time
"""

import time
from contextlib import AbstractContextManager, suppress
from typing import Any

from bson import CodecOptions
from bson.codec_options import DatetimeConversion
from pymongo import AsyncMongoClient, ReadPreference, WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from penstock.errors import CallerError, StoreError
from penstock.queues.stores.mongo.address import MongoSettings
from penstock.queues.stores.mongo.clock import ServerClock
from penstock.queues.stores.mongo.errors import MONGO_ERRORS, translated
from penstock.queues.stores.mongo.server import ServerKind, server_kind

Document = dict[str, Any]
Collection = AsyncCollection[Document]
Database = AsyncDatabase[Document]
Session = AsyncClientSession

# Dates as milliseconds: Python's datetime can't hold all of Node's. Text that isn't UTF-8 must not stop a queue.
CODEC: CodecOptions[Document] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="replace"
)


class MongoLink:
    """A client of one server or replica set. A store, its signals and its statistics share it."""

    def __init__(self, settings: MongoSettings) -> None:
        self._settings = settings
        self.where = settings.where
        self.database_name = settings.database
        self.kind = ServerKind(is_replica_set=False, wire_version=0)
        self._client: AsyncMongoClient[Document] | None = None
        self._clock = ServerClock()
        self._collections: dict[tuple[str, str], Collection] = {}

    async def open(self) -> None:
        """Connect. Raises if there is no server, or one that can't be used."""
        try:
            if self._client is None:
                self._client = AsyncMongoClient(self._settings.uri)
            with self.errors():
                self.kind = server_kind(await self._hello(), self.where)
                await self._hello()  # measured again, without the time that it took to connect
            self._collections.clear()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        self._collections.clear()
        if client is not None:
            with suppress(*MONGO_ERRORS):
                await client.close()

    @property
    def client(self) -> AsyncMongoClient[Document]:
        """The client, while the link is open."""
        if self._client is None:
            raise CallerError(f"the connection to {self.where} is closed: open the store again")
        return self._client

    def errors(self, is_once: bool = False, is_callers: bool = False) -> AbstractContextManager[None]:
        """Errors of pymongo within it are raised as those of Penstock.

        `is_once`: what is done must not be repeated. `is_callers`: it is part of a transaction of the caller.
        """
        return translated(self.where, is_once, self.kind.is_replica_set, is_callers)

    def collection(self, name: str, suffix: str = "") -> Collection:
        """Return a collection of the database, or of the database whose name has a suffix."""
        found = self._collections.get((name, suffix))
        if found is None:
            found = self.database(suffix)[name]
            self._collections[name, suffix] = found
        return found

    def database(self, suffix: str = "") -> Database:
        """Return the database, or the one whose name has a suffix."""
        concern = None if self._settings.has_write_concern else self.kind.write_concern
        return self.client.get_database(self.database_name + suffix, CODEC, ReadPreference.PRIMARY, concern)

    def quick(self, name: str, suffix: str = "") -> Collection:
        """Return a collection whose writes are confirmed by the primary alone, for what may be lost."""
        return self.collection(name, suffix).with_options(write_concern=WriteConcern(1))

    async def clock(self) -> ServerClock:
        """Return the server's clock, measured if that was long ago."""
        if self._clock.is_old:
            with self.errors():
                await self._hello()
        return self._clock

    async def _hello(self) -> Document:
        sent_s = time.monotonic()
        reply = await self.client.admin.with_options(codec_options=CODEC).command(
            "hello", read_preference=ReadPreference.PRIMARY, codec_options=CODEC
        )
        if "localTime" not in reply:
            raise StoreError(f"{self.where} is not MongoDB: its reply to hello has no localTime")
        self._clock.measured(int(reply["localTime"]), sent_s, time.monotonic())
        return dict(reply)
