# Written by scripts/blocking from ../aio/values.py: change that, then run `make blocking`.
"""Texts under keys in MongoDB: the collection `penstock_values`, in the database of statistics.

_id      the key
value    the text
ends     when its time is over; the server removes documents after that, within a minute or so
"""

from collections.abc import Sequence

from bson.datetime_ms import DatetimeMS
from pymongo import ReplaceOne

from penstock.queues.blocking.driver import NewValue
from penstock.queues.stores.mongo.address import STATS_SUFFIX
from penstock.queues.stores.mongo.blocking.link import Collection, MongoLink

COLLECTION = "penstock_values"


class MongoValues:
    """The collection."""

    def __init__(self, link: MongoLink) -> None:
        self._link = link
        self._is_indexed = False

    @property
    def _documents(self) -> Collection:
        return self._link.collection(COLLECTION, STATS_SUFFIX)

    def put(self, values: Sequence[NewValue], now_ms: int) -> None:
        """Keep texts, in this order."""
        with self._link.errors():
            if not self._is_indexed:
                self._documents.create_index("ends", expireAfterSeconds=0)
                self._is_indexed = True
            self._documents.bulk_write(
                [
                    ReplaceOne({"_id": key}, {"value": text, "ends": DatetimeMS(now_ms + ttl_ms)}, upsert=True)
                    for key, text, ttl_ms in values
                ]
            )

    def get(self, key: str, now_ms: int) -> str | None:
        with self._link.errors():
            found = self._documents.find_one({"_id": key, "ends": {"$gt": DatetimeMS(now_ms)}})
        return None if found is None else str(found["value"])

    def remove(self, key: str) -> None:
        with self._link.errors():
            self._documents.delete_one({"_id": key})
