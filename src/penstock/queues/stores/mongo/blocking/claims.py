# Written by scripts/blocking from ../aio/claims.py: change that, then run `make blocking`.
"""Claims in MongoDB: the collection `penstock_claims`, beside the queues.

| field | meaning |
|---|---|
| `_id` | `{q: queue, k: key}` |
| `by` | the mark that the jobs got with their leases: `penstock.by` |
| `ids` | the jobs, in their order |

A job is under a key while it has its mark and is reserved: every other reserve of ours writes another mark or none, and
whatever gives a job back ends its reservation. A Node peer that reserves a job whose lease ran out leaves the mark: so
its reservation must also be as old as that of the claim. The jobs are leased before the key is written: a process that
dies in between leaves jobs that come back when their leases are over.
"""

from collections.abc import Callable, Sequence

from bson import DatetimeMS, ObjectId
from pymongo.errors import DuplicateKeyError

from penstock.job import Lease
from penstock.queues.stores.mongo.blocking.jobs import Jobs
from penstock.queues.stores.mongo.blocking.link import Collection, Document, MongoLink
from penstock.queues.stores.mongo.element import leased_after
from penstock.queues.stores.mongo.layout import CLAIMS, Layout


class MongoClaims:
    """The claims of one store."""

    def __init__(self, link: MongoLink, layout: Layout, jobs: Callable[[str], Jobs]) -> None:
        self._link = link
        self._layout = layout
        self._jobs = jobs

    @property
    def _claims(self) -> Collection:
        return self._link.collection(CLAIMS)

    def find(self, queue: str, key: str) -> Document | None:
        """Return the claim of a key; None if there is none."""
        with self._link.errors():
            return self._claims.find_one({"_id": {"q": queue, "k": key}})

    def keep(self, queue: str, key: str, mark: ObjectId, ids: Sequence[ObjectId]) -> bool:
        """Write a new claim; return whether nobody was faster."""
        with self._link.errors():
            try:
                self._claims.insert_one({"_id": {"q": queue, "k": key}, "by": mark, "ids": list(ids)})
            except DuplicateKeyError:
                return False
        return True

    def _under(self, queue: str, claim: Document) -> Document:
        return {
            **self._layout.of(queue),
            "_id": {"$in": claim["ids"]},
            "penstock.by": claim["by"],
            "reserved": {"$exists": True},
            "$expr": {"$eq": ["$reserved", "$penstock.at"]},
        }

    def extend(self, queue: str, claim: Document, until_ms: int) -> list[Document]:
        """Let the leases of a claim end at another time; return the documents of its jobs, in their order."""
        under = self._under(queue, claim)
        with self._link.errors():
            self._jobs(queue).change_all(under, {"$set": {"mature": DatetimeMS(until_ms)}})
            found = {repr(document["_id"]): document for document in self._jobs(queue).find(under)}
        return [found[repr(job_id)] for job_id in claim["ids"] if repr(job_id) in found]

    def end(self, queue: str, key: str) -> list[Lease]:
        """Return the leases that a key still has."""
        claim = self.find(queue, key)
        if claim is None:
            return []
        with self._link.errors():
            documents = self._jobs(queue).find(self._under(queue, claim))
        jobs = [leased_after(document) for document in documents]
        return [Lease(job.id, job.token) for job in jobs]

    def forget(self, queue: str, key: str) -> None:
        """Remove a key."""
        with self._link.errors():
            self._claims.delete_one({"_id": {"q": queue, "k": key}})
