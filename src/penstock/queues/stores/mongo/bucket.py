"""A bucket: many jobs in one document, as Keuss' bucket-mongo-safe stores them, and what we note beside them.

    _id        ObjectId; a job's id is `<24 hex digits of it>:<its place in b, from 0>`
    b          the jobs in their order, each {__p: payload, __h: headers}; null once a job has gone. Before Keuss 1.6.3,
               an entry is the bare payload
    mature     when the bucket is ready; while it is reserved, when the last lease in it is over
    n          how many jobs are left
    tries      absent, or how often the bucket was read
    reserved   since when a reader has it, or had it until its time was over
    penstock   ours; a Node peer neither reads nor changes it

Keuss leases whole buckets, and keeps the state of single jobs in the memory of the reader. We keep it in the bucket, so
that each job has its own lease, tries and delay, all processes of Penstock can take jobs from one bucket, and nothing
depends on the memory of any:

    penstock.since     as `reserved`, if the reservation is ours. A bucket that is not yet over, and has another time
                       in `reserved`, is in the hands of a Node peer: we don't touch it
    penstock.turn      a text that is new whenever jobs were handed out
    penstock.count     grows with each of our changes
    penstock.ready     when the bucket was ready, before it was reserved: its place in the order of buckets
    penstock.next      not later than the next time at which a job of the bucket is ready; 0 while one is
    penstock.turns.T   what a turn handed out: {end, n, first, last}. `n` is how many leases of it are left. Jobs
                       between `first` and `last` that have no record of their own are leased until `end`
    penstock.jobs.I    the record of the job at place I, see `Record`: of jobs for which a turn does not say it all
    penstock.ended.M   a call that changed many buckets has to look which of them it changed: nobody else may delete
                       this one before
    penstock.left      true once the bucket was met without jobs, but with such a mark: next time it is deleted

The rules: `mature` of a reserved bucket is never before the end of a lease or a delay in it, so a Node peer reads the
bucket only when everything in it is ready. Then it counts a try for each job in it, as Keuss does. `tries` of the
document is the base for all its jobs: a record has the difference.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bson import DatetimeMS, ObjectId

from penstock.job import JobState, StoredJob
from penstock.queues.stores.mongo.element import plain

Document = dict[str, Any]

NOTE = "penstock"
EPOCH = DatetimeMS(0)
_TOKEN = re.compile(r"([0-9]{1,15})\.([0-9a-f]+)\.([0-9]{1,9})", re.ASCII)


class BucketPosition(NamedTuple):
    """Where a job is."""

    bucket: ObjectId
    at: int

    def __str__(self) -> str:
        return f"{self.bucket}:{self.at}"

    @classmethod
    def read(cls, job_id: str) -> "BucketPosition | None":
        """Return the place that an id names; None if no job can have this id."""
        bucket, _, index = job_id.partition(":")
        if len(bucket) != 24 or not ObjectId.is_valid(bucket) or not (index.isascii() and index.isdigit()):
            return None
        return cls(ObjectId(bucket), int(index))


class BucketToken(NamedTuple):
    """Which turn a lease is from, and how many jobs of the bucket that handed out: as text, the token."""

    since_ms: int
    turn: str
    jobs: int

    def __str__(self) -> str:
        return f"{self.since_ms}.{self.turn}.{self.jobs}"

    @classmethod
    def read(cls, text: str | None) -> "BucketToken | None":
        """Return the token of a text; None if it can't be one of ours."""
        found = _TOKEN.fullmatch(text or "")
        return None if found is None else cls(int(found[1]), found[2], int(found[3]))


class Turn(NamedTuple):
    """What one call handed out of a bucket."""

    end_ms: int
    left: int
    first: int = 0
    last: int = -1  # no job without a record of its own

    @classmethod
    def read(cls, stored: Document) -> "Turn":
        return cls(int(stored["end"]), int(stored["n"]), int(stored.get("first", 0)), int(stored.get("last", -1)))

    def stored(self) -> Document:
        found: Document = {"end": DatetimeMS(self.end_ms), "n": self.left}
        return found if self.last < 0 else {**found, "first": self.first, "last": self.last}


@dataclass(slots=True)
class Record:
    """What we know of one job of a bucket."""

    lease: str | None = None  # the turn that handed it out
    end_ms: int = 0  # of the lease
    is_ahead: bool = False  # work on it has not begun
    at_ms: int = 0  # it was given back, and waits until then
    tries: int = 0  # in addition to those of the bucket
    unbegun: int = 0  # leases in a row, before this one, that ran out before work began

    @classmethod
    def read(cls, stored: Document) -> "Record":
        return cls(
            stored.get("lease"),
            int(stored.get("end", 0)),
            bool(stored.get("ahead")),
            int(stored.get("at", 0)),
            stored.get("tries", 0),
            stored.get("unbegun", 0),
        )

    def stored(self) -> Document:
        """Return it as it is stored: without what is as in a job that nobody ever took."""
        found: Document = {}
        if self.lease is not None:
            found |= {"lease": self.lease, "end": DatetimeMS(self.end_ms)}
        if self.is_ahead:
            found["ahead"] = True
        if self.at_ms:
            found["at"] = DatetimeMS(self.at_ms)
        if self.tries:
            found["tries"] = self.tries
        if self.unbegun:
            found["unbegun"] = self.unbegun
        return found

    def state(self, now_ms: int) -> JobState:
        """Where the job stands, in a bucket that we hold."""
        if self.lease is not None and self.end_ms > now_ms:
            return JobState.RESERVED
        return JobState.SCHEDULED if self.lease is None and self.at_ms > now_ms else JobState.READY

    @property
    def ready_ms(self) -> int:
        """When the job is ready; 0 for at once."""
        return self.at_ms if self.lease is None else self.end_ms

    def taken_again(self) -> "Record":
        """Return the record before the next lease: the last one, if there is one, ran out."""
        if self.lease is None:
            return Record(tries=self.tries, unbegun=self.unbegun)
        if self.is_ahead:
            return Record(tries=self.tries, unbegun=self.unbegun + 1)
        return Record(tries=self.tries + 1)


@dataclass(slots=True)
class Bucket:
    """A bucket as it was read."""

    id: ObjectId
    entries: list[Any]
    mature_ms: int
    left: Any  # a number, whoever wrote it
    tries: int
    reserved_ms: int | None
    turn: str | None
    count: int | None
    next_ms: int
    ready_ms: int  # when it is or was ready
    is_ours: bool  # the reservation in `reserved` is ours
    turns: dict[str, Turn] = field(default_factory=dict)
    records: dict[int, Record] = field(default_factory=dict)
    marks: Document = field(default_factory=dict)  # of calls that have to look
    is_left: bool = False  # it was met without jobs, but with marks

    @classmethod
    def read(cls, document: Document) -> "Bucket":
        """Read a document, also one that was fetched without its jobs."""
        note = document.get(NOTE) or {}
        reserved = document.get("reserved")
        is_ours = reserved is not None and "since" in note and int(note["since"]) == int(reserved)
        return cls(
            document["_id"],
            document.get("b", []),
            int(document.get("mature", 0)),
            document.get("n"),
            int(document.get("tries", 0)),
            None if reserved is None else int(reserved),
            note.get("turn"),
            note.get("count"),
            int(note.get("next", 0)),
            int((note if is_ours else document).get("ready" if is_ours else "mature", 0)),
            is_ours,
            {turn: Turn.read(stored) for turn, stored in note.get("turns", {}).items()},
            {int(index): Record.read(stored) for index, stored in note.get("jobs", {}).items()},
            note.get("ended") or {},
            bool(note.get("left")),
        )

    @property
    def live(self) -> list[int]:
        """The places of the jobs that are left."""
        return [index for index, entry in enumerate(self.entries) if entry is not None]

    def is_open(self, now_ms: int) -> bool:
        """Whether its jobs have leases of ours, which are not all over."""
        return self.is_ours and self.mature_ms > now_ms

    def record(self, index: int) -> Record:
        """Return the record of a job, in a bucket that is or was ours."""
        found = self.records.get(index)
        if found is not None:
            return found
        for name, turn in self.turns.items():
            if turn.first <= index <= turn.last:
                return Record(name, turn.end_ms)
        return Record()

    def is_noted(self, index: int) -> bool:
        """Whether a record or a turn already says something of a job."""
        return index in self.records or self.record(index).lease is not None

    def numbers(self, now_ms: int) -> tuple[int, int]:
        """Return how many jobs of an open bucket are reserved, and how many wait; also without its entries."""
        states = Counter(record.state(now_ms) for record in self.records.values())
        noted = Counter(record.lease for record in self.records.values())
        reserved = sum(turn.left - noted[name] for name, turn in self.turns.items() if turn.end_ms > now_ms)
        return reserved + states[JobState.RESERVED], states[JobState.SCHEDULED]

    def next_free_ms(self, now_ms: int) -> int:
        """Return when the next job of an open bucket is ready; also without its entries."""
        if self.left > sum(self.numbers(now_ms)):
            return now_ms
        # Times that are over are of jobs that were taken again, or have gone: others would count as free.
        noted = Counter(record.lease for record in self.records.values())
        ends = [turn.end_ms for name, turn in self.turns.items() if turn.left > noted[name]]
        times = [*ends, *(record.ready_ms for record in self.records.values())]
        return min((at_ms for at_ms in times if at_ms > now_ms), default=self.mature_ms)

    def state(self, index: int, now_ms: int) -> JobState:
        """Where a job stands."""
        if self.mature_ms <= now_ms:
            return JobState.READY
        if self.reserved_ms is None:
            return JobState.SCHEDULED
        return self.record(index).state(now_ms) if self.is_ours else JobState.RESERVED

    def before_lease(self, index: int, now_ms: int) -> tuple[Record, bool]:
        """Return what a job's next record begins with, and whether the job comes back from a lease that ran out.

        `tries` of the record is what the job has in addition to the bucket's number of reads before this one.
        """
        if self.is_open(now_ms):
            record = self.record(index)
            return record.taken_again(), record.lease is not None
        if self.is_ours:
            # The number of reads has grown by one, for all jobs: also for those that nobody was given.
            record = self.record(index)
            begun = record.taken_again()
            begun.tries -= 1
            return begun, record.lease is not None
        kept = Record(tries=self.records[index].tries if index in self.records else 0)
        return kept, self.reserved_ms is not None

    @property
    def tries_before(self) -> int:
        """The number of reads before the present one."""
        return self.tries - 1 if self.is_ours else self.tries

    def job(self, index: int, now_ms: int) -> StoredJob:
        """Return a job as it stands, without changing anything."""
        state = self.state(index, now_ms)
        payload, headers = unwrapped(self.entries[index])
        job = StoredJob(
            str(BucketPosition(self.id, index)),
            payload=payload,
            headers=headers,
            tries=self.tries,
            mature_ms=self.mature_ms,
            recorded_ms=made_ms(self.id),
            state=state,
        )
        record = self.record(index) if self.is_ours else self.records.get(index, Record())
        if self.is_ours:
            # A lease that ran out is as its worker had it, while nobody has taken the job since.
            if record.lease is not None and self.reserved_ms is not None:
                turn = self.turns.get(record.lease)
                job.token = str(BucketToken(self.reserved_ms, record.lease, 0 if turn is None else turn.left))
                job.has_begun = not record.is_ahead
            job.tries = self.tries_before + record.tries
            job.mature_ms = record.ready_ms or self.ready_ms
        else:
            job.tries = max(0, self.tries - (state is JobState.RESERVED)) + record.tries
        return job


def wrapped(payload: Any, headers: Document) -> Document:
    """Return a job as an entry of a bucket."""
    return {"__p": payload, "__h": headers}


def unwrapped(entry: Any) -> tuple[Any, Document]:
    """Return payload and headers of an entry."""
    if isinstance(entry, dict) and "__p" in entry:
        headers = entry.get("__h")
        return plain(entry["__p"]), plain(headers) if isinstance(headers, dict) else {}
    return plain(entry), {}


def made_ms(bucket: ObjectId) -> int:
    """When a bucket was made."""
    return int(bucket.generation_time.timestamp()) * 1000


def held(index: int, turn: str) -> Document:
    """Return the condition that a job of a bucket is still leased by a turn."""
    record = f"{NOTE}.jobs.{index}"
    by_turn = {f"{NOTE}.turns.{turn}.last": {"$gte": index}, f"{NOTE}.turns.{turn}.first": {"$lte": index}}
    # Not `$ne`: that would look for the place as a name in each entry, too, and find none.
    is_there = {record: {"$exists": False}, f"b.{index}": {"$not": {"$type": "null"}}}
    return {"$or": [{f"{record}.lease": turn}, {**by_turn, **is_there}]}


OURS: Document = {"$and": [{"$gt": [f"${NOTE}.since", None]}, {"$eq": ["$reserved", f"${NOTE}.since"]}]}


def unchanged(bucket: Bucket) -> Document:
    """Return the condition that nobody has changed a bucket since it was read."""
    return {
        "_id": bucket.id,
        "n": bucket.left,
        "mature": DatetimeMS(bucket.mature_ms),
        "reserved": None if bucket.reserved_ms is None else DatetimeMS(bucket.reserved_ms),
        f"{NOTE}.count": bucket.count,
    }
