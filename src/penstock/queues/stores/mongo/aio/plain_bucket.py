"""`mongodb+bucket-plain://host:port/database`: many jobs in one document, as in Keuss' old bucket-mongo.

| what | name |
|---|---|
| jobs | a document of the collection `QUEUE`: `_id`; `b`, the payloads, the oldest first; `n`, their number; `mature` |
| queues, counters, pauses; signals | as in `mongodb:` |

It is there for queues that are shared with Keuss up to 1.6 (1.7 has it no more): for new ones `mongodb+bucket:` can do
more. There are only `push` and `pop`: no leases, no delays, no headers, no ids, no tries.

- A push returns when its bucket is stored; pushes that are under way together share one. With `buffered=yes` it returns
  at once, as with Keuss, see `mongodb+bucket:`. Keuss loses what it has buffered when the process ends; ours is stored
  by `drain` and `close`, and what can't be stored is tried again.
- `pop` takes as many jobs as are wanted out of the oldest bucket, and leaves the rest for others: the death of a
  consumer costs no more than what it was given. A Keuss consumer takes whole buckets, and loses what it had not served
  when it ends.
- The oldest bucket is that with the lowest `_id`, as with Keuss.
- The options are `bucket_size`, `bucket_wait`, `buffered` and `channel`, as in `mongodb+bucket:`.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from bson import DatetimeMS, ObjectId

from penstock.errors import PenstockError
from penstock.job import JobState, NewJob, Sizes, StoredJob
from penstock.queues.aio.driver import Driver, Page
from penstock.queues.aio.runtime import to_the_end
from penstock.queues.capabilities import Capability
from penstock.queues.options import Options, StoreURL
from penstock.queues.stores.mongo.address import mongo_settings
from penstock.queues.stores.mongo.aio.inbox import Inbox
from penstock.queues.stores.mongo.aio.link import Collection, Document, MongoLink
from penstock.queues.stores.mongo.aio.signal import MongoSignal
from penstock.queues.stores.mongo.aio.stats import MongoStats
from penstock.queues.stores.mongo.bucket import made_ms
from penstock.queues.stores.mongo.buckets import OPTIONS, BucketOptions, bare_entry_of, read_options
from penstock.queues.stores.mongo.element import plain
from penstock.queues.stores.mongo.layout import CLAIMS, UNIQUE, check_name
from penstock.queues.stores.mongo.signals import CHANNEL

WITH_JOBS: Document = {"b.0": {"$exists": True}}
NUMBER: Document = {"_id": True, "size": {"$size": "$b"}}


class MongoPlainBucketDriver(Driver):
    """Jobs in buckets, without anything but their payloads."""

    type: ClassVar[str] = "mongo:bucket"
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.PEEK, Capability.SHARED_PAUSE})
    keeps_payloads: ClassVar[bool] = True

    def __init__(self, address: StoreURL, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        settings = mongo_settings(address, extra, OPTIONS)
        self._link = MongoLink(settings)
        self._options: BucketOptions = read_options(settings.own)._replace(is_bare=True)
        self._signal = MongoSignal(address, extra, self._link, str(settings.own.get("channel", CHANNEL)))
        self._inboxes: dict[str, Inbox] = {}

    async def open(self) -> None:
        await self._link.open()

    async def close(self) -> None:
        try:
            for inbox in self._inboxes.values():
                await inbox.close()
        finally:
            self._inboxes.clear()
            await self._signal.close()
            await self._link.close()

    async def flush(self, queue: str) -> None:
        inbox = self._inboxes.get(queue)
        if inbox is not None:
            await inbox.flush()

    def own_signal(self) -> MongoSignal:
        return self._signal

    def own_stats(self) -> MongoStats:
        return MongoStats(self.address, {}, self.options.namespace, self._link)

    def check_queue(self, queue: str) -> None:
        check_name(self._link.database_name, queue, "a queue name")

    async def now_ms(self) -> int:
        return (await self._link.clock()).low_ms + self.shift_ms

    def _collection(self, queue: str) -> Collection:
        self.check_queue(queue)
        return self._link.collection(queue)

    def prepare(self, job: NewJob) -> None:
        job.prepared = bare_entry_of(job)
        job.tries = 0

    async def push(self, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        self.check_queue(queue)
        inbox = self._inboxes.get(queue)
        if inbox is None:
            inbox = self._inboxes.setdefault(queue, Inbox(self._link, queue, self._options, self._signal))
        now_ms = await self.now_ms()
        return await inbox.add(jobs, now_ms, now_ms, channel)

    async def pop(self, queue: str, count: int, wait_ms: int = 0) -> list[StoredJob]:
        return await to_the_end(self._take(queue, count), lambda jobs: self.put_back(queue, jobs))

    async def _take(self, queue: str, count: int) -> list[StoredJob]:
        collection = self._collection(queue)
        taken: list[StoredJob] = []
        while len(taken) < count:
            wanted = count - len(taken)
            try:
                with self._link.errors(is_once=True):
                    first = await collection.find_one(WITH_JOBS, NUMBER, sort=[("_id", 1)])
                    if first is None:
                        break
                    bucket = await self._out_of(collection, first["_id"], wanted, first["size"] <= wanted)
            except PenstockError:
                if not taken:
                    raise
                break
            if bucket is not None:
                taken += [_job(bucket, payload) for payload in bucket["b"][:wanted]]
        return taken

    @staticmethod
    async def _out_of(collection: Collection, bucket: ObjectId, count: int, is_whole: bool) -> Document | None:
        """Take jobs out of a bucket; return it as it was, None if others changed its number of jobs meanwhile.

        An empty bucket is never left: a Keuss consumer that takes one believes that there are no more.
        """
        is_longer = {f"b.{count}": {"$exists": True}}
        if is_whole:
            return await collection.find_one_and_delete({"_id": bucket, f"b.{count}": {"$exists": False}})
        rest: Document = {"$set": {"b": {"$slice": ["$b", count, {"$size": "$b"}]}}}
        number: Document = {"$set": {"n": {"$size": "$b"}}}
        return await collection.find_one_and_update({"_id": bucket, **is_longer}, [rest, number])

    async def put_back(self, queue: str, jobs: Sequence[StoredJob]) -> None:
        by_bucket: dict[ObjectId, list[StoredJob]] = {}
        for job in jobs:
            by_bucket.setdefault(job.raw[0], []).append(job)
        for bucket, some in by_bucket.items():
            update = {
                "$push": {"b": {"$each": [job.raw[1] for job in some], "$position": 0}},
                "$inc": {"n": len(some)},
                "$setOnInsert": {"mature": DatetimeMS(some[0].mature_ms or 0)},
            }
            with self._link.errors(is_once=True):
                await self._collection(queue).update_one({"_id": bucket}, update, upsert=True)

    async def purge(self, queue: str) -> int:
        count = 0
        with self._link.errors():
            while (bucket := await self._collection(queue).find_one_and_delete(WITH_JOBS)) is not None:
                count += len(bucket["b"])
        return count

    async def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None = None) -> Page:
        """Return jobs, bucket by bucket: those of one are never cut."""
        if state not in {None, JobState.READY}:
            return Page([], None)
        wanted = dict(WITH_JOBS) if cursor is None else {**WITH_JOBS, "_id": {"$gt": ObjectId(cursor)}}
        jobs: list[StoredJob] = []
        with self._link.errors():
            async for bucket in self._collection(queue).find(wanted).sort("_id", 1):
                jobs += [_job(bucket, payload) for payload in bucket["b"]]
                if len(jobs) >= count:
                    return Page(jobs, str(bucket["_id"]))
        return Page(jobs, None)

    async def sizes(self, queue: str) -> Sizes:
        stages = [{"$match": WITH_JOBS}, {"$group": {"_id": None, "n": {"$sum": {"$size": "$b"}}}}]
        with self._link.errors():
            async for row in await self._collection(queue).aggregate(stages):
                return Sizes(row["n"], row["n"], 0, None)
        return Sizes(0, 0, 0, None)

    async def next_mature_ms(self, queue: str) -> int | None:
        with self._link.errors():
            found = await self._collection(queue).find_one(WITH_JOBS, {"_id": True})
        return None if found is None else await self.now_ms()

    async def queues(self) -> list[str]:
        with self._link.errors():
            names = await self._link.database().list_collection_names(filter={"type": "collection"})
            found = []
            for name in names:
                is_queue = not name.startswith("system.") and name not in {UNIQUE, CLAIMS}
                if is_queue and await self._link.collection(name).find_one(WITH_JOBS, {"_id": True}) is not None:
                    found.append(name)
        return sorted(found)


def _job(bucket: Document, payload: Any) -> StoredJob:
    """Return a job, with what puts it back."""
    mature_ms = int(bucket["mature"]) if isinstance(bucket.get("mature"), DatetimeMS) else 0
    made = made_ms(bucket["_id"])
    return StoredJob("", payload=plain(payload), mature_ms=mature_ms, recorded_ms=made, raw=(bucket["_id"], payload))
