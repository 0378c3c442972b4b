# Written by scripts/blocking from ../aio/bucket.py: change that, then run `make blocking`.
"""`mongodb+bucket://host:port/database`: many jobs in one document, in the collections of Keuss' bucket-mongo-safe.

A push of 1,000 jobs is one document, and to take them is two round trips. What a bucket is made of, and where leases
are noted in it, is told in `bucket`.

How jobs go in. Jobs that are pushed at the same time (`push_many`, or single calls that are under way together) share a
bucket if they are ready at the same time and have the same tries: so a job is never late because of another one. A push
returns when its bucket is stored, see `Inbox`.

How they come out. A reader takes whole buckets. What it doesn't need at once it has at hand for the next call, and
others can still take it from the bucket: what is in the memory of a process is only a copy.

1. From the bucket at hand, if nobody else took jobs from it meanwhile (`penstock.turn` tells).
2. From reserved buckets in which a delay or a lease is over.
3. From buckets that are ready.
4. From buckets that other processes of Penstock have at hand.

What a lease is. Each job has its own: its token, its end, its tries and delay after a nack. A Node peer sees only the
bucket, which is reserved for as long as its longest lease or delay lasts; the jobs of a bucket that was given back are
ready for it then, all at the same time. A bucket that a Node peer has reserved is left alone until its time is over:
its jobs are shown as reserved, without a token.

- `extend` keeps the token. A late ack is accepted while nobody has taken the job again, as everywhere.
- `move` stores the job in the other queue before it goes here, hidden for a minute. If the process is killed between
  the two, the job is in both: a duplicate, never a loss. A move gives a job another id, also to the dead letters.
- Each change is one update of one document with a condition: a reader that was frozen past the end of its lease can't
  change what the next one has. A frozen Node reader can: it asks for the bucket's id alone.
- What Keuss leaves behind is cleared: a bucket without jobs is deleted by whoever meets it. The jobs themselves count
  for that, not `n`.
- The payloads 0, false and the empty text are stored as bytes, as null is: Keuss would misread them.
- An index of our own, `penstock.next_1`, which is sparse, finds jobs that are ready in reserved buckets. Keuss' own is
  `mature_1`, as elsewhere.
- There are no unique keys, claims, transactions and atomic moves.

| option | Keuss' name | meaning |
|---|---|---|
| `bucket_size` (1024) | `bucket_max_size` | the most jobs of a bucket; it is also full at 4 MiB |
| `bucket_wait` (0.5) | `bucket_max_wait`, in ms | seconds after which a buffered bucket is stored at the latest |
| `buffered` (no) | always | a push returns when it is buffered; see below |
| `channel` | `signaller.opts.channel` | the collection of the signals |
| `lease` | `reserve_delay` | of each job, not of the bucket |
| `delay` of a nack | `reject_delta_base`, `reject_delta_factor` | how long a job waits; 0 unless given |
| none | `state_flush_period` | an ack returns when it is stored |
| none | `reject_timeout_grace` | a lease lasts until its end |

With `buffered=yes` a crash of the producer, or a server that does not come back before `close`, loses what was pushed
since the last bucket was stored: `close` logs how many jobs that are. `drain` and `close` store what is buffered; what
can't be stored is tried again after `bucket_wait`, and pushes raise once 64 full buckets wait. If the reply to an
insert is lost, the buckets are inserted again under the same ids: they are there twice only if they were emptied and
deleted in between.
"""

import math
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from bson import DatetimeMS, ObjectId
from pymongo import DeleteMany, DeleteOne, ReturnDocument, UpdateMany, UpdateOne

from penstock.errors import PenstockError, StoreError
from penstock.job import JobMove, JobState, Lease, NewJob, Sizes, StoredJob
from penstock.queues.blocking.driver import Driver, NewValue, Page
from penstock.queues.blocking.runtime import Lock, to_the_end
from penstock.queues.capabilities import STANDARD, Capability
from penstock.queues.options import Options, StoreURL
from penstock.queues.stores.mongo.address import mongo_settings
from penstock.queues.stores.mongo.blocking.inbox import Inbox
from penstock.queues.stores.mongo.blocking.link import Collection, MongoLink
from penstock.queues.stores.mongo.blocking.signal import MongoSignal
from penstock.queues.stores.mongo.blocking.stats import MongoStats
from penstock.queues.stores.mongo.blocking.values import MongoValues
from penstock.queues.stores.mongo.bucket import (
    EPOCH,
    NOTE,
    OURS,
    Bucket,
    BucketPosition,
    BucketToken,
    Document,
    Record,
    Turn,
    held,
    made_ms,
    unchanged,
    unwrapped,
)
from penstock.queues.stores.mongo.buckets import OPTIONS, BucketOptions, buckets_of, entry_of, read_options
from penstock.queues.stores.mongo.layout import CLAIMS, UNIQUE, check_name
from penstock.queues.stores.mongo.signals import CHANNEL

HIDDEN_MS = 60_000  # how long a job that moves is hidden in the other queue, if its mover dies before it has moved
OPEN_MAX = 20  # buckets of others that are looked at in one call
TRIES_MAX = 100  # times that a change is tried again because others changed the same bucket meanwhile
RUN_MIN = 32  # jobs side by side from which on they are taken out of a bucket as one piece
PAGE_BUCKETS = 100  # read in one call by peek; jobs of one document are never cut
WITHOUT_JOBS = {"b": False}
# Not by `n`: a peer that was frozen may have written a wrong number.
EMPTY: Document = {"b": {"$not": {"$elemMatch": {"$ne": None}}}}
UNMARKED: Document = {f"{NOTE}.ended": {"$in": [None, {}]}}
MARKED_MS = 60_000  # how long a mark keeps an empty bucket, if the process that made it died before it looked


class Settled(NamedTuple):
    """A lease of a call."""

    position: int  # in the call
    at: int  # in the bucket
    turn: str
    jobs: int  # that the turn handed out


@dataclass(slots=True)
class Free:
    """A job that a reader has at hand."""

    index: int
    entry: Any
    record: Record
    is_back: bool
    is_noted: bool = False  # a record or an earlier turn in the bucket says something of it


@dataclass(slots=True)
class TakeCall:
    """One call that takes jobs, and what it has got."""

    count: int
    now_ms: int
    high_ms: int  # the other bound of the server's time
    end_ms: int  # of the leases
    is_pop: bool
    begin: int | None = None
    turn: str = ""
    taken: list[StoredJob] = field(default_factory=list)

    @property
    def wanted(self) -> int:
        return self.count - len(self.taken)

    def start_turn(self) -> None:
        """Begin another turn: each change of a bucket is one, or a second one would replace the first."""
        self.turn = secrets.token_hex(6)

    def record(self, free: Free, position: int) -> Record:
        """Return the record of a job that this call gets as the one at a position."""
        has_begun = self.begin is None or (not free.is_back and position < self.begin)
        return Record(
            self.turn,
            self.end_ms,
            not has_begun,
            tries=free.record.tries,
            unbegun=0 if has_begun else free.record.unbegun,
        )

    def noted(self, given: Sequence[Free], position: int, is_run: bool) -> tuple[Document, Document]:
        """Return the turn and the records that say of jobs of a bucket that they are leased.

        `is_run`: no other job without a record stands between them.
        """
        records = {str(free.index): self.record(free, at) for at, free in enumerate(given, position)}
        plain = [free.index for free in given if not free.is_noted and records[str(free.index)] == self._plain]
        first, last = (plain[0], plain[-1]) if plain else (0, -1)
        if is_run or last - first + 1 == len(plain):
            for index in plain:
                del records[str(index)]
        else:
            first, last = 0, -1
        turn = Turn(self.end_ms, len(given), first, last)
        return turn.stored(), {index: record.stored() for index, record in records.items()}

    @property
    def _plain(self) -> Record:
        return Record(self.turn, self.end_ms)

    def take(self, opened: "OpenBucket", free: Free, jobs: int) -> None:
        """Take a job, after its bucket was changed; `jobs` of it were handed out."""
        payload, headers = unwrapped(free.entry)
        job = StoredJob(
            str(BucketPosition(opened.id, free.index)),
            payload=payload,
            headers=headers,
            tries=opened.tries + free.record.tries,
            mature_ms=opened.mature_ms,
            recorded_ms=made_ms(opened.id),
            is_back=free.is_back,
            unbegun=free.record.unbegun,
        )
        if self.is_pop:
            job.raw = free.entry
        else:
            job.mature_ms = self.end_ms
            job.token = str(BucketToken(opened.since_ms, self.turn, jobs))
            job.state = JobState.RESERVED
            job.has_begun = not self.record(free, len(self.taken)).is_ahead
        self.taken.append(job)


@dataclass(slots=True)
class OpenBucket:
    """A bucket that is ours, and the jobs of it that a reader has at hand."""

    id: ObjectId
    since_ms: int
    mature_ms: int  # when it was ready
    tries: int
    turn: str
    free: list[Free]


class SharedReads:
    """What the readers of one queue in this process share."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.opened: OpenBucket | None = None
        self.average = 0.0  # jobs of a bucket, as lately seen


class MongoBucketDriver(Driver):
    """Jobs in buckets."""

    type: ClassVar[str] = "mongo:bucket-safe"
    capabilities: ClassVar[frozenset[Capability]] = STANDARD - {
        Capability.CLAIM,
        Capability.UNIQUE,
        Capability.ATOMIC_MOVE,
    }
    keeps_payloads: ClassVar[bool] = True
    keeps_ids: ClassVar[bool] = False  # an id names the place in a bucket
    puts_values_together: bool = True

    def __init__(self, address: StoreURL, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        settings = mongo_settings(address, extra, OPTIONS)
        self._link = MongoLink(settings)
        self._options: BucketOptions = read_options(settings.own)
        self._signal = MongoSignal(address, extra, self._link, str(settings.own.get("channel", CHANNEL)))
        self._values = MongoValues(self._link)
        self._shared: dict[str, SharedReads] = {}
        self._inboxes: dict[str, Inbox] = {}
        self._indexed: set[str] = set()

    def open(self) -> None:
        self._link.open()
        self._indexed.clear()

    def close(self) -> None:
        try:
            for inbox in self._inboxes.values():
                inbox.close()
            for queue, shared in self._shared.items():
                self._give_back(queue, shared)
        except PenstockError:
            pass  # others take these jobs from their bucket, or it comes back when its time is over
        finally:
            self._inboxes.clear()
            self._shared.clear()
            self._signal.close()
            self._link.close()

    def flush(self, queue: str) -> None:
        inbox = self._inboxes.get(queue)
        if inbox is not None:
            inbox.flush()

    def own_signal(self) -> MongoSignal:
        return self._signal

    def own_stats(self) -> MongoStats:
        return MongoStats(self.address, {}, self.options.namespace, self._link)

    def check_queue(self, queue: str) -> None:
        check_name(self._link.database_name, queue, "a queue name")

    def now_ms(self) -> int:
        return (self._link.clock()).low_ms + self.shift_ms

    def put_value(self, key: str, value: str, ttl_ms: int) -> None:
        self.put_values([NewValue(key, value, ttl_ms)])

    def put_values(self, values: Sequence[NewValue]) -> None:
        self._values.put(values, self.now_ms())

    def value(self, key: str) -> str | None:
        return self._values.get(key, self.now_ms())

    def remove_value(self, key: str) -> None:
        self._values.remove(key)

    def _later_ms(self, delay_ms: int) -> int:
        """Return when a delay from now ends."""
        clock = self._link.clock()
        return (clock.high_ms if delay_ms > 0 else clock.low_ms) + self.shift_ms + delay_ms

    def _collection(self, queue: str) -> Collection:
        return self._link.collection(queue)

    def _ensure_indexes(self, queue: str) -> None:
        if queue not in self._indexed:
            with self._link.errors():
                self._collection(queue).create_index([("mature", 1)])
                self._collection(queue).create_index([(f"{NOTE}.next", 1)], sparse=True)
            self._indexed.add(queue)

    # Jobs into a queue.

    def prepare(self, job: NewJob) -> None:
        job.prepared = entry_of(job)

    def push(self, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        self._ensure_indexes(queue)
        inbox = self._inboxes.get(queue)
        if inbox is None:
            inbox = self._inboxes.setdefault(queue, Inbox(self._link, queue, self._options, self._signal))
        clock = self._link.clock()
        return inbox.add(jobs, clock.low_ms + self.shift_ms, clock.high_ms + self.shift_ms, channel)

    # Jobs out of a queue.

    def pop(self, queue: str, count: int, wait_ms: int = 0) -> list[StoredJob]:
        call = self._new_call(count, math.ceil(self.options.lease * 1000), True)
        return to_the_end(self._take(queue, call), lambda jobs: self.put_back(queue, jobs))

    def reserve(
        self, queue: str, count: int, lease_ms: int, wait_ms: int = 0, begin: int | None = None
    ) -> list[StoredJob]:
        call = self._new_call(count, lease_ms, False, begin)

        def undo(jobs: list[StoredJob]) -> None:
            self.release(queue, [Lease(job.id, job.token) for job in jobs])

        return to_the_end(self._take(queue, call), undo)

    def _new_call(self, count: int, lease_ms: int, is_pop: bool, begin: int | None = None) -> TakeCall:
        clock = self._link.clock()
        low_ms, high_ms = clock.low_ms + self.shift_ms, clock.high_ms + self.shift_ms
        return TakeCall(count, low_ms, high_ms, low_ms + lease_ms, is_pop, begin)

    def _is_ready(self, high_ms: int) -> Document:
        """Return the filter for buckets that are ready by the server's clock; the bound is for the index."""
        now = {"$add": ["$$NOW", self.shift_ms]} if self.shift_ms else "$$NOW"
        return {"mature": {"$lte": DatetimeMS(high_ms)}, "$expr": {"$lte": ["$mature", now]}}

    def _shared_by_readers(self, queue: str) -> SharedReads:
        return self._shared.setdefault(queue, SharedReads())

    def _take(self, queue: str, call: TakeCall) -> list[StoredJob]:
        self._ensure_indexes(queue)
        shared = self._shared_by_readers(queue)
        with shared.lock:
            try:
                self._from_bucket_at_hand(queue, shared, call)
                if call.wanted:
                    self._from_opened(queue, shared, call, EPOCH)
                for _ in range(TRIES_MAX):
                    if not call.wanted or not self._from_ready(queue, shared, call):
                        break
                    self._from_bucket_at_hand(queue, shared, call)
                if call.wanted:
                    self._from_opened(queue, shared, call, None)
            except PenstockError:
                shared.opened = None
                if not call.taken:
                    raise
        return call.taken

    def _from_bucket_at_hand(self, queue: str, shared: SharedReads, call: TakeCall) -> None:
        """Take jobs from the bucket at hand."""
        opened = shared.opened
        if opened is None or not call.wanted:
            return
        chosen = opened.free[: call.wanted]
        call.start_turn()
        guard = {"_id": opened.id, "reserved": DatetimeMS(opened.since_ms), f"{NOTE}.turn": opened.turn}
        shared.opened = None
        if not self._write(queue, call, guard, self._handed_out(call, chosen), len(chosen)):
            return
        for free in chosen:
            call.take(opened, free, len(chosen))
        opened.free = opened.free[len(chosen) :]
        opened.turn = call.turn
        if opened.free:
            shared.opened = opened
        elif call.is_pop:
            self._delete_empty(queue, [opened.id])

    def _write(self, queue: str, call: TakeCall, guard: Document, update: Document, jobs: int) -> bool:
        """Change a bucket that is as a reader knows it. A pop is final, and so must be confirmed as a push is."""
        collection = self._collection(queue) if call.is_pop else self._link.quick(queue)
        with self._link.errors(is_once=call.is_pop):
            return (collection.update_one(guard, update)).matched_count == 1

    def _handed_out(self, call: TakeCall, chosen: Sequence[Free], next_ms: int | None = None) -> Document:
        """Return the update that hands out jobs of a bucket that is ours."""
        changes: Document = {f"{NOTE}.turn": call.turn}
        if next_ms is not None:
            changes[f"{NOTE}.next"] = DatetimeMS(next_ms)
        update: Document = {"$set": changes, "$inc": {f"{NOTE}.count": 1}}
        if call.is_pop:
            update["$unset"] = {f"{NOTE}.jobs.{free.index}": "" for free in chosen}
            update["$inc"]["n"] = -len(chosen)
            changes.update({f"b.{free.index}": None for free in chosen})
        else:
            update["$max"] = {"mature": DatetimeMS(call.end_ms)}
            turn, records = call.noted(chosen, len(call.taken), is_run=next_ms is None)
            changes[f"{NOTE}.turns.{call.turn}"] = turn
            changes.update({f"{NOTE}.jobs.{index}": record for index, record in records.items()})
        return update

    def _from_ready(self, queue: str, shared: SharedReads, call: TakeCall) -> bool:
        """Take jobs from buckets that are ready; whether there may be more."""
        limit = max(1, math.ceil(call.wanted / shared.average)) if shared.average else 1
        with self._link.errors():
            cursor = self._collection(queue).find(self._is_ready(call.high_ms))
            documents = cursor.sort("mature", 1).limit(limit).to_list()
        if not documents:
            return False
        buckets = [Bucket.read(document) for document in documents]
        self._clear(queue, [bucket for bucket in buckets if not bucket.live], call.high_ms)
        buckets = [bucket for bucket in buckets if bucket.live]
        shared.average = max(1.0, sum(len(bucket.live) for bucket in buckets) / len(buckets)) if buckets else 1.0
        wanted = call.wanted
        chosen: list[tuple[Bucket, list[Free]]] = []
        for bucket in buckets:
            if wanted <= 0:
                break
            # By the server's clock it is ready.
            now_ms = max(call.now_ms, bucket.mature_ms)
            frees = [Free(index, bucket.entries[index], *bucket.before_lease(index, now_ms)) for index in bucket.live]
            chosen.append((bucket, frees))
            wanted -= len(frees)
        if chosen:
            self._open(queue, shared, call, chosen)
        return True

    def _open(self, queue: str, shared: SharedReads, call: TakeCall, chosen: list[tuple[Bucket, list[Free]]]) -> None:
        """Make ready buckets ours, and hand out jobs of them."""
        call.start_turn()
        position = len(call.taken)
        writes = []
        for bucket, frees in chosen:
            since_ms = max(call.now_ms, (bucket.reserved_ms or 0) + 1)
            given = frees[: call.count - position]
            update = _opening(call, bucket, frees, given, since_ms, position)
            marks = {**bucket.marks, **({call.turn: 1} if call.is_pop and len(chosen) > 1 else {})}
            if marks:
                update["$set"][NOTE]["ended"] = marks
            writes.append((bucket, frees, given, since_ms, update))
            position += len(given)
        if len(writes) == 1:
            bucket, _, given, _, update = writes[0]
            won = {bucket.id} if self._write(queue, call, unchanged(bucket), update, len(given)) else set()
        else:
            won = self._write_many(
                queue, call, [(bucket.id, unchanged(bucket), update) for bucket, _, _, _, update in writes]
            )
        for bucket, frees, given, since_ms, _ in writes:
            if bucket.id not in won:
                continue
            rest = frees[len(given) :]
            opened = OpenBucket(bucket.id, since_ms, bucket.ready_ms, bucket.tries, call.turn, rest)
            for free in given:
                call.take(opened, free, len(given))
            if rest:
                shared.opened = opened
        if call.is_pop and len(writes) > 1:
            self._unmark(queue, list(won), call.turn)
        elif call.is_pop:
            self._delete_empty(queue, [one.id for one, frees, given, _, _ in writes if len(given) == len(frees)])

    def _write_many(
        self, queue: str, call: TakeCall, writes: Sequence[tuple[ObjectId, Document, Document]]
    ) -> set[ObjectId]:
        """Change several buckets in one round trip; return those that were as this reader knew them."""
        collection = self._collection(queue) if call.is_pop else self._link.quick(queue)
        ids = [bucket for bucket, _, _ in writes]
        with self._link.errors(is_once=call.is_pop):
            changes = [UpdateOne(guard, update) for _, guard, update in writes]
            result = collection.bulk_write(changes, ordered=False)
            if result.matched_count == len(writes):
                return set(ids)
            mark = f"{NOTE}.ended.{call.turn}" if call.is_pop else f"{NOTE}.turns.{call.turn}"
            ours = collection.find({"_id": {"$in": ids}, mark: {"$exists": True}}, {"_id": True})
            return {document["_id"] for document in ours.to_list()}

    def _from_opened(self, queue: str, shared: SharedReads, call: TakeCall, after: DatetimeMS | None) -> None:
        """Take jobs from buckets that are ours already: of this process or another.

        `after` leaves out those that another process has at hand: only jobs whose delay or lease is over.
        """
        collection = self._collection(queue)
        now = DatetimeMS(call.now_ms)
        filter_ = {
            f"{NOTE}.next": {"$lte": now} if after is None else {"$gt": after, "$lte": now},
            "mature": {"$gt": now},
            "$expr": OURS,
        }
        for _ in range(TRIES_MAX):
            with self._link.errors():
                found = collection.find(filter_).sort(f"{NOTE}.next", 1).limit(OPEN_MAX).to_list()
            is_changed = False
            for document in found:
                bucket = Bucket.read(document)
                if not bucket.live:
                    self._delete_empty(queue, [bucket.id])
                    continue
                frees = [
                    Free(index, bucket.entries[index], *bucket.before_lease(index, call.now_ms), bucket.is_noted(index))
                    for index in bucket.live
                    if bucket.state(index, call.now_ms) is JobState.READY
                ]
                given = frees[: call.wanted]
                busy = {index: bucket.record(index).ready_ms for index in bucket.live}
                for free in frees:
                    del busy[free.index]
                times = [*busy.values(), *([call.end_ms] if given and not call.is_pop else [])]
                next_ms = 0 if len(given) < len(frees) else min(times, default=0)
                if given:
                    call.start_turn()
                    update = self._handed_out(call, given, next_ms)
                    update["$inc"] |= _less_by_turn(bucket, [free.index for free in given])
                elif next_ms != bucket.next_ms:
                    update = {"$set": {f"{NOTE}.next": DatetimeMS(next_ms)}, "$inc": {f"{NOTE}.count": 1}}
                else:
                    continue
                if not self._write(queue, call, unchanged(bucket), update, len(given)):
                    is_changed = True
                    continue
                since_ms = bucket.reserved_ms or 0
                opened = OpenBucket(bucket.id, since_ms, bucket.ready_ms, bucket.tries_before, call.turn, [])
                for free in given:
                    call.take(opened, free, len(given))
                if call.is_pop and len(given) == bucket.left:
                    self._delete_empty(queue, [bucket.id])
                if not call.wanted:
                    return
            if not is_changed:
                return

    def _delete_empty(self, queue: str, ids: Sequence[ObjectId]) -> None:
        """Delete buckets whose last job has gone."""
        if ids:
            with self._link.errors():
                collection = self._collection(queue)
                for bucket in ids:
                    collection.delete_one({"_id": bucket, **EMPTY, **UNMARKED})

    def _unmark(self, queue: str, ids: Sequence[ObjectId], mark: str) -> None:
        """Delete buckets that a call emptied, and take its mark from the others, after it has looked."""
        collection = self._collection(queue)
        these = {"_id": {"$in": ids}}
        with self._link.errors():
            deleted = collection.delete_many({**these, **EMPTY, f"{NOTE}.ended": {mark: 1}})
            if deleted.deleted_count < len(ids):
                # Others may have emptied a bucket meanwhile, and left it because of the mark.
                own = {f"{NOTE}.ended.{mark}": ""}
                marked = {**these, f"{NOTE}.ended.{mark}": 1}
                collection.bulk_write([UpdateMany(marked, {"$unset": own}), DeleteMany({**these, **EMPTY, **UNMARKED})])

    def _clear(self, queue: str, buckets: Sequence[Bucket], now_ms: int) -> None:
        """Delete ready buckets without jobs; one with a mark that nobody took away, some time later."""
        self._delete_empty(queue, [bucket.id for bucket in buckets if not bucket.marks])
        later = {"$set": {"mature": DatetimeMS(now_ms + MARKED_MS), f"{NOTE}.left": True}}
        collection = self._collection(queue)
        for bucket in buckets:
            with self._link.errors():
                if bucket.is_left:
                    collection.delete_one({**unchanged(bucket), **EMPTY})
                elif bucket.marks:
                    collection.update_one({**unchanged(bucket), **EMPTY}, later)

    def _give_back(self, queue: str, shared: SharedReads) -> None:
        """Return the rest of the bucket at hand for all consumers, Node peers too, if no job of it is leased."""
        opened, shared.opened = shared.opened, None
        if opened is None:
            return
        collection = self._collection(queue)
        with self._link.errors():
            document = collection.find_one(
                {"_id": opened.id, "reserved": DatetimeMS(opened.since_ms), f"{NOTE}.turn": opened.turn}, WITHOUT_JOBS
            )
            if document is None:
                return
            bucket = Bucket.read(document)
            leases = sum(turn.left for turn in bucket.turns.values())
            if leases > 0 or bucket.marks or any(record.at_ms for record in bucket.records.values()):
                return
            collection.update_one(unchanged(bucket), _plain(bucket, opened.mature_ms, bucket.tries_before))

    def put_back(self, queue: str, jobs: Sequence[StoredJob]) -> None:
        for job in jobs:
            place = BucketPosition.read(job.id)
            if place is not None:
                self._put_back(queue, job, place)

    def _put_back(self, queue: str, job: StoredJob, place: BucketPosition) -> None:
        """Put a popped job into the place that it had; if its bucket has gone, into a new one of the same id."""
        collection = self._collection(queue)
        entry = f"b.{place.at}"
        for _ in range(TRIES_MAX):
            with self._link.errors(is_once=True):
                document = collection.find_one({"_id": place.bucket}, WITHOUT_JOBS)
                if document is None:
                    entries = [*([None] * place.at), job.raw]
                    new = {"_id": place.bucket, "b": entries, "mature": DatetimeMS(job.mature_ms or 0), "n": 1}
                    if job.tries:
                        new["tries"] = job.tries
                    found = collection.update_one({"_id": place.bucket}, {"$setOnInsert": _rest(new)}, upsert=True)
                    if found.upserted_id is not None:
                        return
                    continue
                bucket = Bucket.read(document)
                change: Document = {"$set": {entry: job.raw}, "$inc": {"n": 1}}
                if bucket.is_ours:
                    base = job.tries - bucket.tries_before
                    change["$set"] |= {f"{NOTE}.jobs.{place.at}": {"tries": base}, f"{NOTE}.next": EPOCH}
                    change["$inc"][f"{NOTE}.count"] = 1
                elif bucket.reserved_ms is not None:
                    new = {"_id": ObjectId(), "b": [job.raw], "mature": DatetimeMS(job.mature_ms or 0), "n": 1}
                    collection.insert_one({**new, **({"tries": job.tries} if job.tries else {})})
                    return
                if (collection.update_one({**unchanged(bucket), entry: None}, change)).matched_count:
                    return
        raise StoreError(f"job {job.id} of {queue!r} could not be put back: its bucket changes all the time")

    def release(self, queue: str, leases: Sequence[Lease]) -> None:
        def update(settled: Sequence[Settled]) -> Document:
            records = [f"{NOTE}.jobs.{one.at}" for one in settled]
            return {
                "$set": {f"{NOTE}.next": EPOCH},
                "$inc": {f"{NOTE}.count": 1, **_less(settled), **{f"{record}.tries": 0 for record in records}},
                "$unset": {
                    f"{record}.{name}": "" for record in records for name in ("lease", "end", "ahead", "unbegun")
                },
            }

        self._settle(queue, leases, update)

    # Reserved jobs.

    def ack(self, queue: str, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        if begun:

            def has_begun(settled: Sequence[Settled]) -> Document:
                records = [f"{NOTE}.jobs.{one.at}" for one in settled]
                return {
                    "$inc": {f"{NOTE}.count": 1},
                    "$unset": {f"{record}.{name}": "" for record in records for name in ("ahead", "unbegun")},
                }

            self._settle(queue, begun, has_begun, only_records=True)
        return self._end(queue, leases)

    def _end(self, queue: str, leases: Sequence[Lease]) -> list[bool]:
        """Take leased jobs out of their buckets, and with the last job the bucket."""
        groups = _groups(leases)
        if len(groups) == 1:
            ((bucket, since_ms), settled), *_ = groups.items()
            guard = _guard(bucket, since_ms, settled)
            with self._link.errors():
                result = self._collection(queue).bulk_write(
                    [DeleteOne({**guard, **_only(len(settled)), **UNMARKED}), UpdateOne(guard, _ending(settled))]
                )
            if result.deleted_count + result.matched_count:
                given = {one.position for one in settled}
                return [position in given for position in range(len(leases))]
            if len(settled) == 1:
                return [False] * len(leases)
        emptied: list[ObjectId] = []

        def after(document: Document) -> None:
            if document.get("n", 0) <= 0:
                emptied.append(document["_id"])

        done = self._settle(queue, leases, _ending, after, are_ended=True)
        self._delete_empty(queue, emptied)
        return done

    def _settle(
        self,
        queue: str,
        leases: Sequence[Lease],
        update: Callable[[Sequence[Settled]], Document | list[Document]],
        after: Callable[[Document], object] = lambda document: None,
        only_records: bool = False,
        are_ended: bool = False,
    ) -> list[bool]:
        """Change the jobs of leases that still hold, one update a bucket; return which these were."""
        done = [False] * len(leases)
        groups = list(_groups(leases).items())
        if are_ended and len(groups) > 1:
            groups = self._end_many(queue, groups, done)
        collection = self._collection(queue)
        while groups:
            (bucket, since_ms), settled = groups.pop()
            guard = _guard(bucket, since_ms, settled, only_records)
            with self._link.errors():
                document = collection.find_one_and_update(
                    guard, update(settled), projection=WITHOUT_JOBS, return_document=ReturnDocument.AFTER
                )
            if document is not None:
                for one in settled:
                    done[one.position] = True
                after(document)
            elif len(settled) > 1:
                groups += [((bucket, since_ms), [one]) for one in settled]
        return done

    def _end_many(
        self,
        queue: str,
        groups: list[tuple[tuple[ObjectId, int], list[Settled]]],
        done: list[bool],
    ) -> list[tuple[tuple[ObjectId, int], list[Settled]]]:
        """End jobs of many buckets in two or three round trips; return those of which not all leases hold."""
        mark = secrets.token_hex(6)
        # A mark says only that the bucket was changed: of leases from several reservations, at most the newest hold.
        newest: dict[ObjectId, int] = {}
        for (bucket, since_ms), _ in groups:
            newest[bucket] = max(since_ms, newest.get(bucket, 0))
        others = [group for group in groups if group[0][1] != newest[group[0][0]]]
        groups = [group for group in groups if group[0][1] == newest[group[0][0]]]
        changes = []
        for (bucket, since_ms), settled in groups:
            changes.append(UpdateOne(_guard(bucket, since_ms, settled), _ending(settled, mark)))
        collection = self._collection(queue)
        ids = [bucket for (bucket, _), _ in groups]
        with self._link.errors():
            result = collection.bulk_write(changes, ordered=False)
            if result.matched_count == len(groups):
                ended = set(ids)
            else:
                ours = collection.find({"_id": {"$in": ids}, f"{NOTE}.ended.{mark}": 1}, {"_id": True})
                ended = {document["_id"] for document in ours.to_list()}
        self._unmark(queue, list(ended), mark)
        for (bucket, _), settled in groups:
            for one in settled:
                done[one.position] = done[one.position] or bucket in ended
        return others + [group for group in groups if group[0][0] not in ended and len(group[1]) > 1]

    def nack(self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None) -> list[bool]:
        times = [self._later_ms(delay_ms) for delay_ms in delays_ms]
        waiting: list[Bucket] = []

        def update(settled: Sequence[Settled]) -> Document:
            records = {f"{NOTE}.jobs.{one.at}": times[one.position] for one in settled}
            gone = ("lease", "end", "ahead", "unbegun")
            return {
                "$set": {f"{record}.at": DatetimeMS(at_ms) for record, at_ms in records.items()},
                "$inc": {f"{NOTE}.count": 1, **_less(settled), **{f"{record}.tries": 1 for record in records}},
                "$unset": {f"{record}.{name}": "" for record in records for name in gone},
                "$min": {f"{NOTE}.next": DatetimeMS(min(records.values()))},
                "$max": {"mature": DatetimeMS(max(records.values()))},
            }

        def after(document: Document) -> None:
            bucket = Bucket.read(document)
            if len(bucket.records) == bucket.left and all(one.lease is None for one in bucket.records.values()):
                waiting.append(bucket)

        done = self._settle(queue, leases, update, after)
        for bucket in waiting:
            self._leave(queue, bucket)
        if channel is not None and any(done):
            soonest = min(at_ms for at_ms, is_done in zip(times, done, strict=True) if is_done)
            self._signal.send(channel, str(soonest))
        return done

    def _leave(self, queue: str, bucket: Bucket) -> None:
        """Make a bucket whose jobs all wait for the same time, with the same tries, one that Keuss understands."""
        times = {record.at_ms for record in bucket.records.values()}
        tries = {record.tries for record in bucket.records.values()}
        if len(times) == len(tries) == 1 and not bucket.marks:
            plain = _plain(bucket, times.pop(), bucket.tries_before + tries.pop(), keeps_tries=False)
            with self._link.errors():
                self._collection(queue).update_one(unchanged(bucket), plain)

    def extend(
        self, queue: str, leases: Sequence[Lease], leases_ms: Sequence[int], begun: Sequence[bool] = ()
    ) -> list[str | None]:
        now_ms = self.now_ms()
        ends = [now_ms + lease_ms for lease_ms in leases_ms]

        def update(settled: Sequence[Settled]) -> Document:
            chosen = [ends[one.position] for one in settled]
            change: Document = {
                "$set": {},
                "$inc": {f"{NOTE}.count": 1},
                "$min": {f"{NOTE}.next": DatetimeMS(min(chosen))},
                "$max": {"mature": DatetimeMS(max(chosen))},
            }
            for one in settled:
                record = f"{NOTE}.jobs.{one.at}"
                change["$set"] |= {f"{record}.lease": one.turn, f"{record}.end": DatetimeMS(ends[one.position])}
                if begun and begun[one.position]:
                    change.setdefault("$unset", {}).update({f"{record}.ahead": "", f"{record}.unbegun": ""})
            return change

        done = self._settle(queue, leases, update)
        return [lease.token if is_done else None for lease, is_done in zip(leases, done, strict=True)]

    def move(
        self, queue: str, to: str, moves: Sequence[JobMove], channel: str | None, counter: str | None = None
    ) -> list[bool]:
        self._ensure_indexes(to)
        clock = self._link.clock()
        low_ms, high_ms = clock.low_ms + self.shift_ms, clock.high_ms + self.shift_ms
        buckets = buckets_of([move.job for move in moves], low_ms, high_ms, self._options.size)
        hidden = {"reserved": DatetimeMS(low_ms), "mature": DatetimeMS(high_ms + HIDDEN_MS)}
        target = self._collection(to)
        with self._link.errors():
            target.insert_many([{**bucket.document, **hidden} for bucket in buckets])
        moved = self._take_away(queue, [move.lease for move in moves])
        for bucket in buckets:
            failed = [index for index, position in enumerate(bucket.positions) if not moved[position]]
            with self._link.errors():
                if len(failed) == len(bucket.positions):
                    target.delete_one({"_id": bucket.id, "reserved": hidden["reserved"]})
                    continue
                change: Document = {"$set": {"mature": bucket.document["mature"]}, "$unset": {"reserved": ""}}
                if failed:
                    change["$set"] |= {f"b.{index}": None for index in failed}
                    change["$inc"] = {"n": -len(failed)}
                target.update_one({"_id": bucket.id, "reserved": hidden["reserved"]}, change)
        if channel is not None and any(moved):
            self._signal.send(channel, str(min(int(bucket.document["mature"]) for bucket in buckets)))
        return moved

    def _take_away(self, queue: str, leases: Sequence[Lease]) -> list[bool]:
        """Take jobs out of their queue: those that are leased by their tokens, and waiting ones where there is none."""
        leased = [at for at, lease in enumerate(leases) if lease.token is not None]
        waiting = [at for at, lease in enumerate(leases) if lease.token is None]
        done = [False] * len(leases)
        if leased:
            for at, is_done in zip(leased, self._end(queue, [leases[at] for at in leased]), strict=True):
                done[at] = is_done
        if waiting:
            for at, is_done in zip(waiting, self.remove(queue, [leases[at].id for at in waiting]), strict=True):
                done[at] = is_done
        return done

    # Jobs that wait.

    def remove(self, queue: str, ids: Sequence[str]) -> list[bool]:
        wanted: dict[ObjectId, dict[int, int]] = {}
        for position, job_id in enumerate(ids):
            place = BucketPosition.read(job_id)
            if place is not None:
                wanted.setdefault(place.bucket, {}).setdefault(place.at, position)
        removed = [False] * len(ids)
        collection = self._collection(queue)
        for bucket_id, places in wanted.items():
            for index in self._remove_from(collection, bucket_id, list(places)):
                removed[places[index]] = True
        return removed

    def _remove_from(self, collection: Collection, bucket_id: ObjectId, places: Sequence[int] | None) -> list[int]:
        """Remove jobs of a bucket that wait: those at some places, or all; return which."""
        for _ in range(TRIES_MAX):
            now_ms = self.now_ms()
            with self._link.errors():
                document = collection.find_one({"_id": bucket_id})
                if document is None:
                    return []
                bucket = Bucket.read(document)
                chosen = [
                    index
                    for index in (bucket.live if places is None else places)
                    if index < len(bucket.entries)
                    and bucket.entries[index] is not None
                    and bucket.state(index, now_ms) is not JobState.RESERVED
                ]
                if not chosen:
                    return []
                if len(chosen) == len(bucket.live) and not bucket.marks:
                    if (collection.delete_one(unchanged(bucket))).deleted_count:
                        return chosen
                    continue
                change: Document = {"$set": {f"b.{index}": None for index in chosen}, "$inc": {"n": -len(chosen)}}
                if bucket.turn is not None:
                    change["$set"][f"{NOTE}.turn"] = secrets.token_hex(6)
                    change["$inc"] |= {f"{NOTE}.count": 1, **_less_by_turn(bucket, chosen)}
                    change["$unset"] = {f"{NOTE}.jobs.{index}": "" for index in chosen}
                if (collection.update_one(unchanged(bucket), change)).matched_count:
                    return chosen
        return []

    def purge(self, queue: str) -> int:
        collection = self._collection(queue)
        purged = 0
        with self._link.errors():
            ids = [document["_id"] for document in collection.find({}, {"_id": True}).to_list()]
        for bucket in ids:
            purged += len(self._remove_from(collection, bucket, None))
        return purged

    # Looks.

    def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None = None) -> Page:
        now_ms = self.now_ms()
        collection = self._collection(queue)
        jobs: list[StoredJob] = []
        while len(jobs) < count:
            # A bucket keeps its place when jobs are taken from it, so that nothing is shown twice.
            order = {"$cond": [OURS, f"${NOTE}.ready", "$mature"]}
            chosen: list[Document] = [{"$match": _candidates(state, now_ms)}, {"$project": {"ready": order}}]
            if cursor is not None:
                ready_ms, _, last = cursor.partition(":")
                ready = DatetimeMS(int(ready_ms))
                later = {"$or": [{"ready": {"$gt": ready}}, {"ready": ready, "_id": {"$gt": ObjectId(last)}}]}
                chosen.append({"$match": later})
            chosen += [{"$sort": {"ready": 1, "_id": 1}}, {"$limit": PAGE_BUCKETS}]
            with self._link.errors():
                heads = (collection.aggregate(chosen)).to_list()
            cursor = None
            for head in heads:
                with self._link.errors():
                    document = collection.find_one({"_id": head["_id"]})
                if document is not None:
                    bucket_ = Bucket.read(document)
                    found = [bucket_.job(index, now_ms) for index in bucket_.live]
                    jobs += [job for job in found if state is None or job.state is state]
                if len(jobs) >= count and head is not heads[-1]:
                    return Page(jobs, f"{int(head['ready'])}:{head['_id']}")
            if len(heads) < PAGE_BUCKETS:
                break
            cursor = f"{int(heads[-1]['ready'])}:{heads[-1]['_id']}"
        return Page(jobs, cursor)

    def reserved(self, queue: str, ids: Sequence[str]) -> list[StoredJob | None]:
        now_ms = self.now_ms()
        places = [BucketPosition.read(job_id) for job_id in ids]
        wanted = list({place.bucket for place in places if place is not None})
        with self._link.errors():
            documents = self._collection(queue).find({"_id": {"$in": wanted}}).to_list()
        buckets = {document["_id"]: Bucket.read(document) for document in documents}
        found: list[StoredJob | None] = []
        for place in places:
            bucket = None if place is None else buckets.get(place.bucket)
            job = None
            if place is not None and bucket is not None and place.at in bucket.live:
                job = bucket.job(place.at, now_ms)
                job.state = JobState.RESERVED
            found.append(job if job is not None and job.token is not None else None)
        return found

    def sizes(self, queue: str) -> Sizes:
        now_ms = self.now_ms()
        now = DatetimeMS(now_ms)
        collection = self._collection(queue)
        is_reserved = {"$ne": [{"$type": "$reserved"}, "missing"]}
        state = {
            "$switch": {
                "branches": [
                    {"case": {"$lte": ["$mature", now]}, "then": "ready"},
                    {"case": {"$not": [is_reserved]}, "then": "scheduled"},
                    {"case": OURS, "then": "open"},
                ],
                "default": "reserved",
            }
        }
        with self._link.errors():
            groups = (collection.aggregate([{"$group": {"_id": state, "n": {"$sum": "$n"}}}])).to_list()
            numbers = {group["_id"]: int(group["n"]) for group in groups}
            ready, scheduled, reserved = (numbers.get(name, 0) for name in ("ready", "scheduled", "reserved"))
            if "open" in numbers:
                # Few are: those from which jobs are taken now.
                for document in collection.find({"mature": {"$gt": now}, "$expr": OURS}, WITHOUT_JOBS):
                    bucket = Bucket.read(document)
                    leased, waiting = bucket.numbers(now_ms)
                    reserved += leased
                    scheduled += waiting
                    ready += bucket.left - leased - waiting
        return Sizes(ready + scheduled + reserved, ready, scheduled, reserved)

    def next_mature_ms(self, queue: str) -> int | None:
        now_ms = self.now_ms()
        collection = self._collection(queue)
        with self._link.errors():
            first = collection.find_one({}, {"mature": True}, sort=[("mature", 1)])
            if first is None:
                return None
            ours = collection.find({f"{NOTE}.next": {"$exists": True}, "$expr": OURS}, WITHOUT_JOBS)
            opened = [Bucket.read(one) for one in ours.sort(f"{NOTE}.next", 1).limit(OPEN_MAX).to_list()]
        return min([int(first["mature"]), *(one.next_free_ms(now_ms) for one in opened if one.is_open(now_ms))])

    def queues(self) -> list[str]:
        with self._link.errors():
            names = self._link.database().list_collection_names()
            return sorted(
                [
                    name
                    for name in names
                    if name not in {CLAIMS, UNIQUE}
                    and self._collection(name).find_one({"n": {"$gt": 0}}, {"_id": True})
                ]
            )


def _opening(
    call: TakeCall, bucket: Bucket, frees: Sequence[Free], given: Sequence[Free], since_ms: int, position: int
) -> Document:
    """Return the update that makes a ready bucket ours, and hands out jobs of it."""
    note: Document = {
        "since": DatetimeMS(since_ms),
        "turn": call.turn,
        "count": (bucket.count or 0) + 1,
        "ready": DatetimeMS(bucket.ready_ms),
        "next": EPOCH if len(given) < len(frees) else DatetimeMS(call.end_ms),
        "turns": {},
    }
    changes: Document = {
        "reserved": DatetimeMS(since_ms),
        "mature": DatetimeMS(call.end_ms),
        "tries": bucket.tries + 1,
        NOTE: note,
    }
    update: Document = {"$set": changes}
    stored = {str(free.index): free.record.stored() for free in frees}
    if call.is_pop:
        for free in given:
            changes[f"b.{free.index}"] = None
            del stored[str(free.index)]
        update["$inc"] = {"n": -len(given)}
    else:
        for free in frees:
            free.is_noted = free.record != Record()
        turn, records = call.noted(given, position, is_run=True)
        note["turns"] = {call.turn: turn}
        for free in given:
            del stored[str(free.index)]
        stored |= records
    note["jobs"] = {index: record for index, record in stored.items() if record}
    return update


def _plain(bucket: Bucket, mature_ms: int, tries: int, keeps_tries: bool = True) -> Document:
    """Return the update that makes a bucket one that nobody has reserved."""
    change: Document = {"$set": {"mature": DatetimeMS(mature_ms)}, "$unset": {"reserved": ""}}
    if tries:
        change["$set"]["tries"] = tries
    else:
        change["$unset"]["tries"] = ""
    kept = {str(index): {"tries": one.tries} for index, one in bucket.records.items() if one.tries and keeps_tries}
    if kept:
        change["$set"][NOTE] = {"count": (bucket.count or 0) + 1, "jobs": kept}
    else:
        change["$unset"][NOTE] = ""
    return change


def _rest(document: Document) -> Document:
    return {name: value for name, value in document.items() if name != "_id"}


def _groups(leases: Sequence[Lease]) -> dict[tuple[ObjectId, int], list[Settled]]:
    """Return leases by their buckets. Those that can't be ours are left out; of equal ones the first counts."""
    groups: dict[tuple[ObjectId, int], list[Settled]] = {}
    seen: set[BucketPosition] = set()
    for position, lease in enumerate(leases):
        place, token = BucketPosition.read(lease.id), BucketToken.read(lease.token)
        if place is None or token is None or place in seen:
            continue
        seen.add(place)
        one = Settled(position, place.at, token.turn, token.jobs)
        groups.setdefault((place.bucket, token.since_ms), []).append(one)
    return groups


def _guard(bucket: ObjectId, since_ms: int, settled: Sequence[Settled], only_records: bool = False) -> Document:
    """Return the condition that leases of a bucket hold.

    Where all that a turn handed out is in the call, that none of it has gone since says it at once.
    """
    guard: Document = {"_id": bucket, "reserved": DatetimeMS(since_ms)}
    if only_records:
        return guard | {"$and": [{f"{NOTE}.jobs.{one.at}.lease": one.turn} for one in settled]}
    numbers = Counter((one.turn, one.jobs) for one in settled)
    whole = {turn for (turn, jobs), number in numbers.items() if number == jobs > 1}
    guard |= {f"{NOTE}.turns.{turn}.n": jobs for turn, jobs in numbers if turn in whole}
    singles = [held(one.at, one.turn) for one in settled if one.turn not in whole]
    return guard | ({"$and": singles} if singles else {})


def _only(jobs: int) -> Document:
    """Return the condition that a bucket has so few jobs left."""
    left = {"$filter": {"input": "$b", "cond": {"$ne": ["$$this", None]}}}
    return {"n": jobs, "$expr": {"$eq": [{"$size": left}, jobs]}}


def _less_by_turn(bucket: Bucket, places: Sequence[int]) -> Document:
    """Return how many leases less turns have, after jobs whose leases ran out went to others."""
    turns = Counter(bucket.record(index).lease for index in places)
    return {f"{NOTE}.turns.{turn}.n": -number for turn, number in turns.items() if turn in bucket.turns}


def _less(settled: Sequence[Settled]) -> Document:
    """Return how many leases less turns have."""
    return {f"{NOTE}.turns.{turn}.n": -number for turn, number in Counter(one.turn for one in settled).items()}


def _ending(settled: Sequence[Settled], mark: str | None = None) -> Document | list[Document]:
    """Return the update that takes jobs out of a bucket."""
    marked = {} if mark is None else {f"{NOTE}.ended.{mark}": 1}
    first, last = min(one.at for one in settled), max(one.at for one in settled)
    turns = {one.turn for one in settled}
    if len(turns) == 1 and last - first + 1 == len(settled) == settled[0].jobs >= RUN_MIN:
        return _ending_run(first, last, turns.pop(), marked)
    change: Document = {
        "$set": {**{f"b.{one.at}": None for one in settled}, **marked},
        "$inc": {"n": -len(settled), f"{NOTE}.count": 1, **_less(settled)},
        "$unset": {f"{NOTE}.jobs.{one.at}": "" for one in settled},
    }
    return change


def _ending_run(first: int, last: int, turn: str, marked: Document) -> list[Document]:
    """Return the update for all that a turn handed out, side by side in the bucket.

    MongoDB counts from the beginning of an array for each place that an update names: for many, this is faster.
    """
    parts: list[Any] = [{"$slice": ["$b", 0, first]}] if first else []
    parts += [[None] * (last - first + 1), {"$slice": ["$b", last + 1, {"$max": [1, {"$size": "$b"}]}]}]
    others = {"$ne": ["$$this.v.lease", turn]}
    records = {"$filter": {"input": {"$objectToArray": f"${NOTE}.jobs"}, "cond": others}}
    fields = {
        "b": {"$concatArrays": parts},
        "n": {"$subtract": ["$n", last - first + 1]},
        f"{NOTE}.count": {"$add": [f"${NOTE}.count", 1]},
        f"{NOTE}.turns.{turn}.n": 0,
        f"{NOTE}.jobs": {"$arrayToObject": records},
        **marked,
    }
    return [{"$set": fields}]


def _candidates(state: JobState | None, now_ms: int) -> Document:
    """Return a filter for buckets that may have jobs of a state."""
    now = DatetimeMS(now_ms)
    if state is JobState.RESERVED:
        return {"mature": {"$gt": now}, "reserved": {"$exists": True}}
    if state is JobState.SCHEDULED:
        return {"mature": {"$gt": now}}
    if state is JobState.READY:
        return {"$or": [{"mature": {"$lte": now}}, {f"{NOTE}.next": {"$lte": now}}]}
    return {}
