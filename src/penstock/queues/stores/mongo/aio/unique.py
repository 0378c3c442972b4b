"""Unique keys in MongoDB: the collection `penstock_unique`, beside the queues.

| field | meaning |
|---|---|
| `_id` | `{q: queue, k: key}` |
| `id` | the job that has the key |
| `keep_ms` | how long the key stays taken after the end of the job |
| `free_at` | when it is free: absent while the job is there; a TTL index removes the document afterwards |
| `pending` | the job itself, until it is in its queue |

A key is taken before its job is stored, and the document has the job with it: whoever finds a key whose job is still
pending, since its producer is slow or has died, stores that job and goes on. So no key is blocked by a crash, and no
job is lost that somebody was told of. A job is stored twice only if its producer is overtaken by another one, and by a
consumer that ends the job, between two of its steps.

The end of a job frees its key. A job that a Node peer ended, or whose key could not be freed since the process died, is
found missing by the next push with the key: its end counts from then.
"""

from collections.abc import Sequence
from typing import Any

from bson import DatetimeMS, ObjectId
from pymongo import ASCENDING, UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError

from penstock.errors import ConnectionLost
from penstock.job import NewJob
from penstock.queues.aio.runtime import Once
from penstock.queues.stores.mongo.aio.link import Collection, Document, MongoLink, Session
from penstock.queues.stores.mongo.element import key_of, ms_of
from penstock.queues.stores.mongo.errors import SAME_KEY
from penstock.queues.stores.mongo.layout import UNIQUE, Layout

_ATTEMPTS_MAX = 20  # of one push at a key that others take and free at the same time


class MongoUniqueKeys:
    """The unique keys of one store."""

    def __init__(self, link: MongoLink, layout: Layout) -> None:
        self._link = link
        self._layout = layout
        self._make = Once(self._make_index)

    async def _make_index(self) -> None:
        with self._link.errors():
            await self._keys.create_index([("free_at", ASCENDING)], expireAfterSeconds=0)

    @property
    def _keys(self) -> Collection:
        return self._link.collection(UNIQUE)

    def _jobs(self, queue: str) -> Collection:
        return self._link.collection(self._layout.collection(queue))

    async def push(self, queue: str, jobs: Sequence[NewJob], documents: Sequence[Document], now_ms: int) -> list[str]:
        """Store jobs without keys, and those whose keys are free; return their ids, or those of the jobs that have the
        keys."""
        await self._make()
        places = [place for place, job in enumerate(jobs) if job.unique is not None]
        wanted = [_key(queue, jobs[place], documents[place]) for place in places]
        taken: dict[int, Document] = {}
        with self._link.errors(is_once=True):
            try:
                await self._keys.insert_many(wanted, ordered=False)
            except BulkWriteError as problem:
                for number in _same_keys(problem):
                    taken[places[number]] = wanted[number]
        new = [document for place, document in enumerate(documents) if place not in taken]
        await self._store(queue, new, [key for place, key in zip(places, wanted, strict=True) if place not in taken])
        return [
            await self._holder(queue, taken[place], now_ms) if place in taken else str(document["_id"])
            for place, document in enumerate(documents)
        ]

    async def _store(self, queue: str, documents: Sequence[Document], keys: Sequence[Document]) -> None:
        """Store jobs, in their order, but for those that are there already; those of the keys are pending no more."""
        with self._link.errors(is_once=True):
            if documents:
                try:
                    await self._jobs(queue).insert_many(documents, ordered=False)
                except BulkWriteError as problem:
                    _same_keys(problem)
            if keys:
                done = [UpdateOne({"_id": key["_id"], "id": key["id"]}, {"$unset": {"pending": ""}}) for key in keys]
                await self._keys.bulk_write(done, ordered=False)

    async def _holder(self, queue: str, key: Document, now_ms: int) -> str:
        """Return the id of the job that has a key, which may be the one to be stored if the key becomes free."""
        for _ in range(_ATTEMPTS_MAX):
            with self._link.errors(is_once=True):
                held = await self._keys.find_one({"_id": key["_id"]})
                if held is None:
                    try:
                        await self._keys.insert_one(key)
                    except DuplicateKeyError:
                        continue
                    await self._store(queue, [key["pending"]], [key])
                    return str(key["id"])
                free_at = held.get("free_at")
                if free_at is not None and ms_of(free_at) <= now_ms:
                    same = {"_id": key["_id"], "id": held["id"], "free_at": free_at}
                    if (await self._keys.replace_one(same, key)).modified_count:
                        await self._store(queue, [key["pending"]], [key])
                        return str(key["id"])
                elif free_at is not None or await self._is_there(queue, held):
                    return str(held["id"])
                else:
                    await self._note_end(held, now_ms)
        raise ConnectionLost(f"a unique key of {queue!r} is taken and freed by others all the time: try again")

    async def _is_there(self, queue: str, held: Document) -> bool:
        """Whether the job that has a key is in its queue. One that is pending is stored."""
        if "pending" in held:
            await self._store(queue, [held["pending"]], [held])
            return True
        return (
            await self._jobs(queue).find_one({**self._layout.of(queue), "_id": held["id"]}, {"_id": True}) is not None
        )

    async def _note_end(self, held: Document, now_ms: int) -> None:
        same = {"_id": held["_id"], "id": held["id"], "pending": {"$exists": False}, "free_at": {"$exists": False}}
        await self._keys.update_one(same, {"$set": {"free_at": DatetimeMS(now_ms + int(held.get("keep_ms", 0)))}})

    async def take_within(self, session: Session, queue: str, job: NewJob, now_ms: int) -> str | None:
        """Take a key in the caller's transaction; return the id of the job that has it, if it is taken."""
        await self._make()
        key = _key(queue, job, {"_id": ObjectId(job.id)})
        del key["pending"]
        keys = session.client.get_database(self._link.database_name, self._keys.codec_options)[UNIQUE]
        with self._link.errors(is_once=True, is_callers=True):
            held = await keys.find_one({"_id": key["_id"]}, session=session)
            if held is not None:
                free_at = held.get("free_at")
                is_free = free_at is not None and ms_of(free_at) <= now_ms
                if not is_free and (free_at is not None or await self._is_there(queue, held)):
                    return str(held["id"])
            await keys.replace_one({"_id": key["_id"]}, key, upsert=True, session=session)
        return None

    async def end(self, queue: str, keys: Sequence[tuple[str, ObjectId]], now_ms: int) -> None:
        """The jobs of these keys have ended."""
        updates = [
            UpdateOne(
                {"_id": {"q": queue, "k": key}, "id": job_id, "free_at": {"$exists": False}},
                [{"$set": {"free_at": {"$add": [DatetimeMS(now_ms), "$keep_ms"]}}}, {"$unset": "pending"}],
            )
            for key, job_id in keys
        ]
        with self._link.errors():
            await self._keys.bulk_write(updates, ordered=False)

    async def retake(self, queue: str, documents: Sequence[Document]) -> None:
        """The keys of jobs that are back in the queue are taken again, unless others have them by now."""
        updates = [
            UpdateOne({"_id": {"q": queue, "k": key}, "id": document["_id"]}, {"$unset": {"free_at": ""}})
            for document in documents
            if (key := key_of(document)) is not None
        ]
        if updates:
            with self._link.errors():
                await self._keys.bulk_write(updates, ordered=False)


def _same_keys(problem: BulkWriteError) -> list[int]:
    """Return the numbers of documents whose keys are there already. Raises the error if there are others in it."""
    details: Any = problem.details
    if details.get("writeConcernErrors") or any(error["code"] != SAME_KEY for error in details["writeErrors"]):
        raise problem
    return [error["index"] for error in details["writeErrors"]]


def _key(queue: str, job: NewJob, document: Document) -> Document:
    return {
        "_id": {"q": queue, "k": job.unique},
        "id": document["_id"],
        "keep_ms": job.unique_for_ms,
        "pending": document,
    }
