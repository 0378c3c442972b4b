# Written by scripts/blocking from ../aio/stats.py: change that, then run `make blocking`.
"""Statistics in MongoDB: see `stats_document`."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pymongo import UpdateOne

from penstock.errors import OutcomeUnknown
from penstock.queues.blocking.stats import COUNTERS, Stats
from penstock.queues.options import StoreURL
from penstock.queues.stores.mongo.address import STATS_SUFFIX, mongo_settings
from penstock.queues.stores.mongo.blocking.link import Collection, Document, MongoLink
from penstock.queues.stores.mongo.layout import Layout
from penstock.queues.stores.mongo.stats_document import COLLECTION, flat, stats_id, storable_options, with_groups


class MongoStats(Stats):
    """The documents of one namespace."""

    def __init__(
        self,
        address: StoreURL,
        extra: Mapping[str, Any],
        namespace: str,
        link: MongoLink | None = None,
        layout: Layout | None = None,
    ) -> None:
        """`link` and `layout` are those of the store, if the statistics are kept beside it."""
        self._layout = Layout() if layout is None else layout
        self._owns_link = link is None
        self._link = MongoLink(mongo_settings(address, extra)) if link is None else link
        self._suffix = "" if link is None else STATS_SUFFIX
        self._namespace = namespace

    def open(self) -> None:
        if self._owns_link:
            self._link.open()

    def close(self) -> None:
        if self._owns_link:
            self._link.close()

    @property
    def _documents(self) -> Collection:
        return self._link.collection(COLLECTION, self._suffix)

    def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        updates = [
            UpdateOne(
                {"_id": stats_id(self._namespace, queue)},
                {
                    "$inc": {
                        f"counters.{name}": much
                        for name, much in with_groups(counters, self._layout.groups, self._layout.group).items()
                    },
                    "$set": {"ns": self._namespace, "name": queue},
                },
                upsert=True,
            )
            for queue, counters in counts.items()
            if counters
        ]
        # Better not counted than counted twice: the caller would add the same again.
        with suppress(OutcomeUnknown), self._link.errors(is_once=True):
            if updates:
                self._link.quick(COLLECTION, self._suffix).bulk_write(updates, ordered=False)

    def counters(self, queue: str) -> dict[str, int]:
        return {**dict.fromkeys(COUNTERS, 0), **flat((self._of(queue)).get("counters"))}

    def _of(self, queue: str) -> Document:
        with self._link.errors():
            return self._documents.find_one({"_id": stats_id(self._namespace, queue)}) or {}

    def register(self, queue: str, options: Mapping[str, Any]) -> None:
        key = {"_id": stats_id(self._namespace, queue)}
        names: Document = {"ns": self._namespace, "name": queue}
        update: Document = {"$set": {**names, "opts": storable_options(options)}}
        if not options:
            # Keuss writes an empty object, which makes others forget the options of the queue.
            update = {"$set": names, "$setOnInsert": {"opts": {}}}
        with self._link.errors():
            self._documents.update_one(key, update, upsert=True)

    def options(self, queue: str) -> dict[str, Any]:
        options = (self._of(queue)).get("opts")
        return options if isinstance(options, dict) else {}

    def queues(self) -> list[str]:
        # Keuss looks for ids that begin with the namespace, and so finds those of longer names, too.
        begin, end = stats_id(self._namespace, ""), stats_id(self._namespace, "\U0010ffff")
        with self._link.errors():
            found = self._documents.find({"_id": {"$gt": begin, "$lte": end}}, {"_id": True})
            return sorted([document["_id"][len(begin) :] for document in found])

    def paused(self, queue: str) -> bool:
        return (self._of(queue)).get("paused") is True

    def set_paused(self, queue: str, paused: bool) -> None:
        update = {"$set": {"ns": self._namespace, "name": queue, "paused": paused}}
        with self._link.errors():
            self._documents.update_one({"_id": stats_id(self._namespace, queue)}, update, upsert=True)
