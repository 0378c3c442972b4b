"""`mongodb://user:password@host:port/database`: jobs in MongoDB, in the collections of Keuss' backend `mongo`.

| what | name | see, in `penstock.queues.stores.mongo` |
|---|---|---|
| jobs of a queue | collection `QUEUE`: `_id`, `mature`, `payload`, `tries`, `hdrs`, `reserved` | `element` |
| their order | index `mature_1` | `layout` |
| unique keys | collection `penstock_unique`, index `free_at_1` | `aio.unique` |
| claims | collection `penstock_claims` | `aio.claims` |
| queues, options, pauses, counters | database `DATABASE_stats`, collection `keuss_stats` | `stats_document` |
| signals | database `DATABASE_signal`, capped collection `default` | `signals` |

A URL without a database means `keuss`. What to know:

- A replica set is what to run: there a job moves to another queue (dead letters) in one transaction, and `push` can be
  part of a transaction of yours, by `connection=` with your session. A single server has neither: there a job that
  moves is stored before it is deleted, so that a crash in between leaves it in both queues.
- A worker that is killed in the middle of such a transaction leaves it open: the server ends it after a minute
  (`transactionLifetimeLimitSeconds`), and until then calls that meet its jobs wait. Moves within `mongodb+pl` are one
  update, and have no such wait: take it for pipelines.
- Writes are confirmed by a majority of a replica set, and by the journal of a single server, unless the URL says
  otherwise (`w`, `journal`); reads go to the primary. Sharded clusters (mongos) are refused.
- All options of MongoDB's connection strings can stand in the URL: `replicaSet`, `tls`, `tlsCAFile`, `authSource`,
  `retryWrites`, time-outs and so on. `serverSelectionTimeoutMS` and `connectTimeoutMS` are 5000 unless given. An option
  of ours is `channel`: the collection of the signals. There is no `mongodb+srv:`: name the hosts and options that its
  DNS records have.
- A push within your transaction is not signalled, as MongoDB tells nobody of a commit: consumers find such a job when
  they next look, at the latest after their poll interval, or with the next signal.
- A transaction of yours sees no collection that was made after its beginning, so the first push to a queue must not be
  within one that has begun to read or write: push once before, or make the collection.
- A push or pop whose connection breaks before the answer raises OutcomeUnknown: it may have been done. pymongo repeats
  single writes by itself on a replica set, where the server knows what it has done already.
- A lease's token is the stored end of the reservation, and the tries: whatever a Node peer does to the job makes it
  stale.
- MongoDB must be 4.4 or newer.

`mongodb+pl://host:port/database?pipeline=NAME`: queues that share a collection, as Keuss' backend `pl-mongo` has it.

| what | name |
|---|---|
| jobs of all queues | collection `NAME`, `default` unless given: the fields of `mongodb:`, and `_q`, the queue |
| their order | index `_q_1_mature_1` |

All else is as in `mongodb:`.

- A job moves from one queue of the pipeline to another, also to the dead letters, by one update, on a single server
  too: it is always in exactly one of them.
- Queues of one name in two pipelines have different jobs, but the same counters, pause and signals, as with Keuss: use
  a `namespace` for each pipeline, or different names.
- Keuss keeps the dead letters of all pipelines in the pipeline `default`, and loses those of others (they stay in the
  collection of their pipeline, where its queue of dead letters doesn't look). Here each pipeline has its own.

`mongodb+ps://host:port/database?ttl=SECONDS`: ended jobs stay for a while, as Keuss' backend `ps-mongo` has it.

| what | name |
|---|---|
| jobs of a queue | collection `QUEUE`: the fields of `mongodb:`, and `processed`, when the job ended; `removed` |
| their order | index `mature_1` |
| the end of their history | index `processed_1`, which removes jobs `ttl` seconds after their end |

All else is as in `mongodb:`.

- `peek(state="done")` and `penstock peek --state done` show ended jobs, those that ended last first. MongoDB removes
  them about a minute after their time.
- `ttl` is 3600 seconds unless given. It is part of the index, so it must be the same for all users of a queue: another
  one is refused. To change it, drop the index.
- A job that moves to another queue, also to the dead letters, leaves no history in the first.

`mongodb+stream://host:port/database?groups=A,B,C&group=A&ttl=SECONDS`: several groups of consumers, each of which gets
each job once, as Keuss' backend `stream-mongo` has it.

| what | name |
|---|---|
| jobs of a queue | collection `QUEUE`: `_id`, `payload`, `hdrs`, `t`; for each group `mature`, `tries`, `reserved`, |
| | `processed` |
| their order | index `mature.GROUP_1` for each group |
| the end of their history | index `t_1`, which removes jobs `ttl` seconds after they were ready first |

- A push is for all `groups` of the URL (`A,B,C` unless given; at most 32); `group` (the first of them unless given) is
  the one that takes jobs, and whose sizes and states are shown. A group that is added later gets what is pushed from
  then on. Each group has its own leases, tries, delays and history.
- **A job is removed `ttl` seconds (3600 unless given) after its push, also if a group has not taken it yet**: choose
  one that is longer than the longest outage. The time of a delay, at the push or at a nack, doesn't count.
- Dead letters, and all that moves, are of the one group that had the job, and so is their way back. A job gets another
  id by that.
- `remove` and `purge` are of one group. Signals and the counters `put`, `get` and so on are shared by all groups;
  `stream.GROUP.put` and so on are of one, in the statistics beside the store.
- There are no unique keys, as a job ends at another time in each group.

`mongodb+intraorder://host:port/database?key=FIELD`: jobs of one key come one after the other, as Keuss' backend
`intraorder` has it.

| what | name |
|---|---|
| jobs of one key | a document of the collection `QUEUE`: `_id`, the key; `q`, the jobs; `qcnt`, their number; |
| | `mature`, `tries`, `reserved` of the first of them |
| their order | index `mature_1_qcnt_1` |

- The key is the field `iid` of the payload, or the one that the URL names with `key`: a text or a number. A job whose
  payload has none is on its own. Jobs of different keys don't wait for each other.
- While a job is leased, waits for its delay or was given back, those of its key wait behind it. They go on when it is
  acked, fails for good or moves. `pop` ends a job at once, so the next one may be taken while the first still runs.
- `sizes` counts jobs behind a first one that is ready as ready, and those behind one that is reserved or waits as
  scheduled.
- The id of a job is its key and an id of its own, `KEY:ID`; of a job without a key it is the id alone, and of one that
  a Node peer pushed the key alone.
- A push leaves the lease and the time of the first job as they are. A Node peer's push doesn't: it writes the time of
  the new job over them, so that a leased job may be delivered again, and our late ack is refused.
- All jobs of a key are one document: at most 16 MiB, and each change writes it whole. Documents without jobs are
  deleted.
- There are no unique keys.

How it works. Every call is a fixed number of round trips, whatever the number of jobs:

| call | one job | many |
|---|---|---|
| push | insert | one insert |
| pop | findAndModify | four: find the first, mark those that are still ready, read the marked ones, delete them |
| reserve | findAndModify | three: the same without the deletion |
| ack, nack, extend, remove | one | two: find out which leases hold, then one bulk write |
| move | a transaction, or one update within a pipeline | the same |

Consumers that mark at the same time may find the same jobs: each gets those that it was first to mark, and looks again
further behind the head, at a place of its own, if it got nothing.

A bulk write says how many jobs it changed, and not which. So which leases hold is read before; if the write then
changed fewer (somebody was faster in between), what is left is read again.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, ClassVar

from bson import DatetimeMS, ObjectId, json_util
from pymongo.errors import BulkWriteError

from penstock.errors import CallerError, PenstockError
from penstock.job import JobMove, JobState, Lease, NewJob, Sizes, StoredJob
from penstock.queues.aio.driver import Driver, NewValue, Page
from penstock.queues.capabilities import STANDARD, Capability
from penstock.queues.lease_token import LeaseToken
from penstock.queues.options import Options, StoreURL
from penstock.queues.stores.mongo.address import mongo_settings
from penstock.queues.stores.mongo.aio.claims import MongoClaims
from penstock.queues.stores.mongo.aio.jobs import BY_TIME, Jobs, Write
from penstock.queues.stores.mongo.aio.link import Document, MongoLink, Session
from penstock.queues.stores.mongo.aio.signal import MongoSignal
from penstock.queues.stores.mongo.aio.stats import MongoStats
from penstock.queues.stores.mongo.aio.unique import MongoUniqueKeys
from penstock.queues.stores.mongo.aio.values import MongoValues
from penstock.queues.stores.mongo.clock import ServerClock
from penstock.queues.stores.mongo.element import (
    extend_stages,
    key_of,
    lease_stages,
    leased_after,
    leased_before,
    ms_of,
    popped,
    read,
    release_stages,
    text_id,
    tries_of,
)
from penstock.queues.stores.mongo.errors import SAME_KEY
from penstock.queues.stores.mongo.layout import CLAIMS, KINDS, UNIQUE, Update, check_name
from penstock.queues.stores.mongo.signals import CHANNEL

CAPABILITIES = STANDARD | {Capability.TRANSACTION}
_CLOCK_SLACK_MS = 2000  # how far the server's clock may be from what was measured
_MARKED_MS = 60_000  # how long a job that is being popped is hidden if the popping process dies
_ROUNDS_MAX = 8  # attempts of one call to mark jobs that others mark at the same time
_UNION_MAX = 100  # collections that one command looks into


class MongoDriver(Driver):
    """Jobs in MongoDB, in the layout that the scheme of the URL means."""

    capabilities: ClassVar[frozenset[Capability]] = CAPABILITIES
    keeps_payloads: ClassVar[bool] = True
    claims_in_steps: ClassVar[bool] = True
    puts_values_together: bool = True

    def __init__(self, address: StoreURL, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        self._kind = KINDS[address.scheme]
        vars(self)["type"], vars(self)["capabilities"] = self.kind_of(address.scheme)  # of this store alone
        settings = mongo_settings(address, extra, {"channel", *self._kind.options})
        self._link = MongoLink(settings)
        self._channel = str(settings.own.get("channel", CHANNEL))
        self._layout = self._kind.layout(settings.own, self._link.database_name)
        self._signal = MongoSignal(address, {}, self._link, self._channel)
        self._unique = MongoUniqueKeys(self._link, self._layout)
        self._claims = MongoClaims(self._link, self._layout, self._jobs)
        self._values = MongoValues(self._link)
        self._indexed: set[str] = set()  # collections whose indexes are there

    @classmethod
    def kind_of(cls, scheme: str) -> tuple[str, frozenset[Capability]]:
        kind = KINDS[scheme]
        return kind.type, (CAPABILITIES | kind.has) - kind.lacks

    @property
    def keeps_ids(self) -> bool:  # type: ignore[override]  # a fact of the layout here
        return self._layout.keeps_ids and not self._layout.has_many

    @property
    def place(self) -> str:
        return f"{super().place}#{self._layout.place}" if self._layout.place else super().place

    async def open(self) -> None:
        await self._link.open()
        self._indexed.clear()
        lacks: set[Capability] = set()
        if not self._link.kind.is_replica_set:
            lacks = (
                {Capability.TRANSACTION} if self._layout.pipeline else {Capability.TRANSACTION, Capability.ATOMIC_MOVE}
            )
        vars(self)["capabilities"] = self.kind_of(self.address.scheme)[1] - lacks

    async def close(self) -> None:
        await self._signal.close()
        await self._link.close()

    def own_signal(self) -> MongoSignal:
        return self._signal

    def own_stats(self) -> MongoStats:
        return MongoStats(self.address, {}, self.options.namespace, self._link, self._layout)

    def check_queue(self, queue: str) -> None:
        if self._layout.pipeline is None:
            check_name(self._link.database_name, queue, "a queue name")
        elif "\0" in queue:
            raise CallerError(f"a queue name on MongoDB must be without zero bytes, got {queue!r}")

    async def now_ms(self) -> int:
        return (await self._link.clock()).low_ms + self.shift_ms

    async def put_value(self, key: str, value: str, ttl_ms: int) -> None:
        await self.put_values([NewValue(key, value, ttl_ms)])

    async def put_values(self, values: Sequence[NewValue]) -> None:
        await self._values.put(values, await self.now_ms())

    async def value(self, key: str) -> str | None:
        return await self._values.get(key, await self.now_ms())

    async def remove_value(self, key: str) -> None:
        await self._values.remove(key)

    async def _clock(self) -> ServerClock:
        return await self._link.clock()

    def _jobs(self, queue: str) -> Jobs:
        self.check_queue(queue)
        return Jobs(self._link, self._layout, queue)

    async def _ready(self, queue: str) -> Document:
        high_ms = (await self._link.clock()).high_ms + self.shift_ms + _CLOCK_SLACK_MS
        return self._layout.ready(queue, high_ms, self.shift_ms)

    async def _make(self, queue: str) -> None:
        """Make a queue's collection and its indexes, unless they are there."""
        name = self._layout.collection(queue)
        if name not in self._indexed:
            with self._link.errors():
                await self._jobs(queue).collection.create_indexes(self._layout.indexes())
            self._indexed.add(name)

    # Jobs into a queue.

    def prepare(self, job: NewJob) -> None:
        self._layout.prepare(job)

    async def push(self, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        await self._make(queue)
        documents, times_ms = await self._documents(queue, jobs)
        if any(job.unique is not None for job in jobs):
            ids = await self._unique.push(queue, jobs, documents, await self.now_ms())
        else:
            ids = [job.id for job in jobs]
            with self._link.errors(is_once=True):
                await self._jobs(queue).add(documents)
        await self._announce(channel, times_ms)
        return ids

    async def _documents(
        self, queue: str, jobs: Sequence[NewJob], is_moving: bool = False
    ) -> tuple[list[Document], list[int]]:
        """Return the documents of new jobs, and when each is ready."""
        clock = await self._clock()
        low, high = clock.low_ms + self.shift_ms, clock.high_ms + self.shift_ms
        documents, times_ms = [], []
        for job in jobs:
            mature_ms = job.mature_ms
            if mature_ms is None:
                mature_ms = high + job.delay_ms if job.delay_ms > 0 else low + job.delay_ms
            documents.append(self._layout.made(queue, job, mature_ms, low, is_moving))
            times_ms.append(mature_ms)
        return documents, times_ms

    async def _announce(self, channel: str | None, times_ms: Iterable[int]) -> None:
        if channel is not None:
            await self._signal.send(channel, str(min(times_ms)))

    async def push_within(self, connection: Any, queue: str, jobs: Sequence[NewJob]) -> list[str]:
        if not isinstance(connection, Session):
            kinds = (Session.__name__, type(connection).__name__)
            raise CallerError("connection must be a {} of pymongo, got {}".format(*kinds))
        if not connection.in_transaction:
            raise CallerError("connection must be a session with an open transaction. Nothing was pushed.")
        await self._make(queue)
        documents, _ = await self._documents(queue, jobs)
        codec = self._jobs(queue).collection.codec_options
        theirs = connection.client.get_database(self._link.database_name, codec)[self._layout.collection(queue)]
        now_ms = await self.now_ms()
        ids = [job.id for job in jobs]
        chosen = []
        for place, (job, document) in enumerate(zip(jobs, documents, strict=True)):
            holder = None
            if job.unique is not None:
                holder = await self._unique.take_within(connection, queue, job, now_ms)
            if holder is None:
                chosen.append(document)
            else:
                ids[place] = holder
        if chosen:
            with self._link.errors(is_once=True, is_callers=True):
                await Jobs(self._link, self._layout, queue, theirs).add(chosen, session=connection)
        return ids

    # Jobs out of a queue.

    async def pop(self, queue: str, count: int, wait_ms: int = 0) -> list[StoredJob]:
        jobs = self._jobs(queue)
        if count == 1:
            end = self._layout.ended(await self.now_ms())
            ready = await self._ready(queue)
            with self._link.errors(is_once=True):
                found = await jobs.take(ready, end, order=BY_TIME)
            documents = [] if found is None else [found]
        else:
            until_ms = (await self._clock()).high_ms + self.shift_ms + _MARKED_MS
            mark = ObjectId()
            documents = await self._mark(queue, count, until_ms, 0, mark)
            if documents:
                ids = {"_id": {"$in": [document["_id"] for document in documents]}, "penstock.by": mark}
                with self._link.errors(is_once=True):
                    await jobs.change_all(ids, self._layout.ended(await self.now_ms()))
            documents = [_unmarked(document) for document in documents]
        await self._after_end(queue, documents)
        return [popped(document) for document in documents]

    async def put_back(self, queue: str, jobs: Sequence[StoredJob]) -> None:
        await self._make(queue)
        documents = [job.raw for job in jobs]
        writes = [write for document in documents if (write := self._layout.put_back(document)) is not None]
        if writes:
            with self._link.errors():
                await self._jobs(queue).write(writes, makes=self._layout.has_many)
        else:
            await self._insert(queue, documents)
        await self._unique.retake(queue, documents)

    async def _insert(self, queue: str, documents: Sequence[Document]) -> None:
        """Insert jobs; those that are there already are left alone."""
        with self._link.errors():
            try:
                await self._jobs(queue).add(documents, ordered=False)
            except BulkWriteError as problem:
                details: Any = problem.details
                if details.get("writeConcernErrors") or any(
                    error["code"] != SAME_KEY for error in details["writeErrors"]
                ):
                    raise

    async def reserve(
        self, queue: str, count: int, lease_ms: int, wait_ms: int = 0, begin: int | None = None
    ) -> list[StoredJob]:
        clock = await self._clock()
        until_ms = clock.low_ms + self.shift_ms + lease_ms
        if count > 1:
            return [leased_after(document) for document in await self._mark(queue, count, until_ms, begin)]
        stages = lease_stages(until_ms, clock.low_ms + self.shift_ms, begin)
        ready = await self._ready(queue)
        with self._link.errors():
            found = await self._jobs(queue).take(ready, stages, order=BY_TIME)
        return [] if found is None else [leased_before(found, until_ms, begin)]

    async def _mark(
        self, queue: str, count: int, until_ms: int, begin: int | None, mark: ObjectId | None = None
    ) -> list[Document]:
        """Reserve up to `count` jobs under one mark; return their documents, as they are now, in order."""
        jobs = self._jobs(queue)
        mark = ObjectId() if mark is None else mark
        marked: list[Document] = []
        for round_ in range(_ROUNDS_MAX):
            wanted = count - len(marked)
            ready = await self._ready(queue)
            reserved_ms = await self.now_ms()
            # After a round that others won, a longer stretch is read, and a part of it tried.
            limit = wanted << round_
            with self._link.errors():
                ids = [document["_id"] for document in await jobs.find(ready, {"_id": True}, BY_TIME, limit)]
                if not ids:
                    break
                is_all = len(ids) < limit
                if len(ids) > wanted:
                    start = random.randrange(len(ids) - wanted + 1)
                    ids = ids[start : start + wanted]
                left = None if begin is None else max(0, begin - len(marked))
                stages = lease_stages(until_ms, reserved_ms, left, ids, mark)
                done = await jobs.change_all({**ready, "_id": {"$in": ids}}, stages)
                if done:
                    taken = await jobs.find({"_id": {"$in": ids}, "penstock.by": mark})
                    places = {repr(job_id): place for place, job_id in enumerate(ids)}
                    marked += sorted(taken, key=lambda document: places[repr(document["_id"])])
            if len(marked) >= count or (is_all and done == len(ids)):
                break
        return marked

    async def release(self, queue: str, leases: Sequence[Lease]) -> None:
        updates: list[Write] = [
            (wanted, release_stages(token.before)) for wanted, token in self._readable(queue, leases)
        ]
        with self._link.errors():
            await self._jobs(queue).write(updates)

    def _errors(self, session: Session | None) -> AbstractContextManager[None]:
        """Within a transaction, errors of pymongo stay as they are: by them it is repeated."""
        return self._link.errors() if session is None else nullcontext()

    def _lease(self, queue: str, lease: Lease) -> Document | None:
        """Return the filter for the job of a lease that holds; None if it can't be ours."""
        token = LeaseToken.read(lease.token)
        of_job = self._layout.with_id(lease.id)
        if token is None or of_job is None:
            return None
        return {
            **self._layout.of(queue),
            **of_job,
            "mature": DatetimeMS(token.mature),
            "tries": token.tries,
            "reserved": {"$exists": True},
        }

    def _readable(self, queue: str, leases: Sequence[Lease]) -> list[tuple[Document, LeaseToken]]:
        """Return the filters and tokens of leases that can be ours."""
        found = []
        for lease in leases:
            token, wanted = LeaseToken.read(lease.token), self._lease(queue, lease)
            if token is not None and wanted is not None:
                found.append((wanted, token))
        return found

    # Reserved jobs.

    async def _held(self, queue: str, leases: Sequence[Lease], session: Session | None = None) -> dict[int, Document]:
        """Return what is stored of the jobs whose lease holds, by the place of the lease in the list."""
        tokens = {}
        for place, lease in reversed(list(enumerate(leases))):
            token = LeaseToken.read(lease.token)
            if token is not None and self._layout.with_id(lease.id) is not None:
                tokens[lease.id] = place, token
        held = {}
        wanted = {**self._layout.of(queue), **self._layout.with_ids(list(tokens)), "reserved": {"$exists": True}}
        with self._errors(session):
            documents = await self._jobs(queue).find(wanted, self._layout.lease_fields(), session=session)
        for document in documents:
            place, token = tokens.get(text_id(document), (-1, None))
            if token is not None and (ms_of(document["mature"]), tries_of(document)) == token[:2]:
                held[place] = document
        return held

    async def ack(self, queue: str, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        if begun:
            update = {"$unset": {"penstock.ahead": ""}}
            with self._link.errors():
                await self._jobs(queue).write([(wanted, update) for wanted, _ in self._readable(queue, begun)])
        if not leases:
            return []
        end = self._layout.ended(await self.now_ms())
        if len(leases) == 1:
            wanted = self._lease(queue, leases[0])
            if wanted is None:
                return [False]
            with self._link.errors():
                found = await self._jobs(queue).take(wanted, end, self._layout.lease_fields())
            await self._after_end(queue, [] if found is None else [found])
            return [found is not None]
        held = await self._held(queue, leases)
        done = await self._settle(queue, leases, held, lambda place: end)
        await self._after_end(queue, [document for place, document in held.items() if done[place]])
        return done

    async def _settle(
        self, queue: str, leases: Sequence[Lease], held: Mapping[int, Document], update: Callable[[int], Update | None]
    ) -> list[bool]:
        """Write what `update` returns for the place of each lease that holds; None: its document is deleted."""
        writes: list[Write] = []
        for place in held:
            wanted = self._lease(queue, leases[place])
            if wanted is not None:
                writes.append((wanted, update(place)))
        with self._link.errors():
            done = await self._jobs(queue).write(writes)
        kept = held
        if done < len(held):
            missed = await self._held(queue, leases)
            kept = {place: document for place, document in held.items() if place not in missed}
        return [place in kept for place in range(len(leases))]

    async def _after_end(self, queue: str, documents: Sequence[Document]) -> None:
        """Free the keys of jobs that have ended, and delete what they left."""
        keys = [(key, document["_id"]) for document in documents if (key := key_of(document)) is not None]
        if keys:
            await self._unique.end(queue, keys, await self.now_ms())
        if self._layout.has_many:
            await self._clear(queue, documents)

    async def _clear(self, queue: str, documents: Sequence[Document]) -> None:
        """Delete documents that have no job any more, and note if the next job of one is ready."""
        last = [document["_id"] for document in documents if document.get("qcnt", 1) <= 1]
        if len(last) < len(documents):
            self.freed.add(queue)
        if last:
            # What is left there disturbs nobody, so it need not be confirmed as an ack is.
            with suppress(PenstockError), self._link.errors():
                await self._link.quick(queue).delete_many({"_id": {"$in": last}, "qcnt": {"$lte": 0}})

    async def nack(
        self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None
    ) -> list[bool]:
        clock = await self._clock()
        low, high = clock.low_ms + self.shift_ms, clock.high_ms + self.shift_ms
        times = [high + delay_ms if delay_ms > 0 else low + delay_ms for delay_ms in delays_ms]

        def update(place: int) -> Document:
            return {
                "$set": {"mature": DatetimeMS(times[place])},
                "$unset": {"reserved": "", "penstock.by": ""},
                **self._layout.delayed(times[place]),
            }

        done = await self._change(queue, leases, update)
        if any(done) and channel is not None:
            await self._signal.send(channel, str(min(when for when, was in zip(times, done, strict=True) if was)))
        return done

    async def extend(
        self, queue: str, leases: Sequence[Lease], leases_ms: Sequence[int], begun: Sequence[bool] = ()
    ) -> list[str | None]:
        now_ms = (await self._clock()).low_ms + self.shift_ms

        def update(place: int) -> list[Document]:
            return extend_stages(now_ms + leases_ms[place], bool(begun) and begun[place])

        done = await self._change(queue, leases, update)
        tokens: list[str | None] = []
        for place, lease in enumerate(leases):
            token = LeaseToken.read(lease.token) if done[place] else None
            tokens.append(None if token is None else str(token._replace(mature=now_ms + leases_ms[place])))
        return tokens

    async def _change(self, queue: str, leases: Sequence[Lease], update: Callable[[int], Update | None]) -> list[bool]:
        """Write what `update` returns for the place of each lease that holds."""
        if len(leases) == 1:
            wanted, change = self._lease(queue, leases[0]), update(0)
            if wanted is None or change is None:
                return [False]
            with self._link.errors():
                return [await self._jobs(queue).update_one(wanted, change)]
        return await self._settle(queue, leases, await self._held(queue, leases), update)

    # From one queue to another.

    async def move(
        self, queue: str, to: str, moves: Sequence[JobMove], channel: str | None, counter: str | None = None
    ) -> list[bool]:
        await self._make(to)
        documents, times_ms = await self._documents(to, [move.job for move in moves], is_moving=True)
        if self._layout.pipeline is not None:
            done = await self._move_in_place(queue, moves, documents)
        elif self._link.kind.is_replica_set:

            async def work(session: Session) -> dict[int, Document]:
                return await self._move_within(session, queue, to, moves, documents)

            with self._link.errors():
                found = await self._in_transaction(work)
            await self._after_end(queue, list(found.values()))
            done = [place in found for place in range(len(moves))]
        else:
            done = await self._move_by_copy(queue, to, moves, documents)
        moved_ms = [mature_ms for mature_ms, was in zip(times_ms, done, strict=True) if was]
        if moved_ms:
            await self._announce(channel, moved_ms)
        return done

    async def _in_transaction(self, work: Any) -> dict[int, Document]:
        """Return what `work` returns in a transaction, which is repeated after collisions."""
        async with self._link.client.start_session() as session:
            found: dict[int, Document] = await session.with_transaction(work)
            return found

    async def _movable(
        self, queue: str, moves: Sequence[JobMove], session: Session | None = None
    ) -> dict[int, Document]:
        """Return what is stored of the jobs that may move, by their place in the list."""
        found = await self._held(queue, [move.lease for move in moves], session)
        waiting: dict[str, int] = {}
        for place, move in reversed(list(enumerate(moves))):
            if move.lease.token is None and self._layout.with_id(move.lease.id) is not None:
                waiting[move.lease.id] = place
        if waiting:
            # Behind a first job that is reserved there may be some that wait.
            is_free = self._layout.of(queue) if self._layout.has_many else self._layout.waiting(queue, self.shift_ms)
            wanted = {**self._layout.with_ids(list(waiting)), **is_free}
            fields = self._layout.lease_fields()
            with self._errors(session):
                documents = await self._jobs(queue).find_stored(wanted, fields, session=session)
            now_ms = await self.now_ms()
            for document in documents:
                for job in self._layout.all_seen(document):
                    place = waiting.get(text_id(job), -1)
                    if place >= 0 and place not in found and not self._is_leased(job, now_ms):
                        found[place] = job
        return found

    def _is_leased(self, job: Document, now_ms: int) -> bool:
        """Whether a job of a document with several is leased; of others, the filter has said it."""
        return self._layout.has_many and "reserved" in job and ms_of(job["mature"]) > now_ms

    async def _move_in_place(self, queue: str, moves: Sequence[JobMove], documents: Sequence[Document]) -> list[bool]:
        found = await self._movable(queue, moves)
        writes: dict[int, Write] = {}
        for place, document in found.items():
            new = {name: value for name, value in documents[place].items() if name != "_id"}
            update = {"$set": new, "$unset": {"reserved": "", "penstock": ""}}
            writes[place] = self._layout.as_it_was(queue, document), update
        return await self._write(queue, len(moves), found, writes)

    async def _write(
        self, queue: str, count: int, found: Mapping[int, Document], writes: Mapping[int, Write]
    ) -> list[bool]:
        """Do to jobs that were just read what takes them out of the queue; return for which of `count` it was done."""
        done = [place in found for place in range(count)]
        if not found:
            return done
        with self._link.errors():
            if await self._jobs(queue).write(writes.values()) < len(found):
                # Somebody was faster: what is still in the queue was not taken out by us.
                left = await self._there(queue, [text_id(document) for document in found.values()])
                done = [place in found and text_id(found[place]) not in left for place in range(count)]
        await self._after_end(queue, [document for place, document in found.items() if done[place]])
        return done

    async def _there(self, queue: str, ids: Sequence[str], session: Session | None = None) -> set[str]:
        """Return the ids of jobs that are in a queue."""
        wanted = {**self._layout.of(queue), **self._layout.with_ids(ids)}
        documents = await self._jobs(queue).find_stored(wanted, self._layout.lease_fields(), session=session)
        return {text_id(job) for document in documents for job in self._layout.all_seen(document)}

    async def _move_within(
        self, session: Session, queue: str, to: str, moves: Sequence[JobMove], documents: Sequence[Document]
    ) -> dict[int, Document]:
        """Move jobs in a transaction; return what was stored of those that moved, by their place in the list."""
        source, target = self._jobs(queue), self._jobs(to)
        found = await self._movable(queue, moves, session)
        if not found:
            return found
        now_ms = await self.now_ms()
        gone: list[Write] = [
            (self._layout.as_it_was(queue, document), self._layout.taken_out(document, now_ms))
            for document in found.values()
        ]
        await source.write(gone, session=session)
        new = [documents[place] for place in found]
        if self._layout.keeps_ids and not self._layout.has_many:
            ids = {"_id": {"$in": [document["_id"] for document in new]}}
            await target.collection.delete_many({**ids, "processed": {"$exists": True}}, session=session)
            there = {document["_id"] for document in await target.find(ids, {"_id": True}, session=session)}
            new = [document for document in new if document["_id"] not in there]
        if new:
            await target.add(new, session=session)
        return found

    async def _move_by_copy(
        self, queue: str, to: str, moves: Sequence[JobMove], documents: Sequence[Document]
    ) -> list[bool]:
        """Without transactions: store the new job, then delete the old one.

        If the process ends in between, both are there: the job is delivered once more than it should be, and never
        lost. If the old job was taken by others in between, the new one is removed again.
        """
        found = await self._movable(queue, moves)
        if found:
            await self._insert(to, [documents[place] for place in found])
        done = [False] * len(moves)
        now_ms = await self.now_ms()
        for place, document in found.items():
            gone = self._layout.as_it_was(queue, document), self._layout.taken_out(document, now_ms)
            with self._link.errors():
                done[place] = await self._jobs(queue).write([gone]) > 0
                if not done[place]:
                    copy = documents[place]
                    await self._jobs(to).write([self._layout.removed_copy(to, copy)])
        await self._after_end(queue, [document for place, document in found.items() if done[place]])
        return done

    # Claims.

    async def claim(self, queue: str, key: str, count: int, lease_ms: int) -> list[StoredJob]:
        until_ms = (await self._clock()).low_ms + self.shift_ms + lease_ms
        known = await self._claims.find(queue, key)
        if known is not None:
            return [leased_after(document) for document in await self._claims.extend(queue, known, until_ms)]
        if count == 0:
            return []
        mark = ObjectId()
        documents = await self._mark(queue, count, until_ms, None, mark)
        if not documents:
            return []
        if await self._claims.keep(queue, key, mark, [document["_id"] for document in documents]):
            return [leased_after(document) for document in documents]
        # Another process began the same claim at the same moment.
        jobs = [leased_after(document) for document in documents]
        await self.release(queue, [Lease(job.id, job.token) for job in jobs])
        return await self.claim(queue, key, count, lease_ms)

    async def extend_claim(self, queue: str, key: str, lease_ms: int) -> int:
        known = await self._claims.find(queue, key)
        if known is None:
            return 0
        until_ms = (await self._clock()).low_ms + self.shift_ms + lease_ms
        return len(await self._claims.extend(queue, known, until_ms))

    async def ack_claim(self, queue: str, key: str) -> int:
        leases = await self._claims.end(queue, key)
        done = 0
        for begin in range(0, len(leases), self.batch_max):
            done += sum(await self.ack(queue, leases[begin : begin + self.batch_max]))
        await self._claims.forget(queue, key)
        return done

    async def nack_claim(self, queue: str, key: str, delay_ms: int) -> int:
        leases = await self._claims.end(queue, key)
        done = 0
        for begin in range(0, len(leases), self.batch_max):
            some = leases[begin : begin + self.batch_max]
            done += sum(await self.nack(queue, some, [delay_ms] * len(some), None))
        await self._claims.forget(queue, key)
        return done

    # What is in a queue.

    async def remove(self, queue: str, ids: Sequence[str]) -> list[bool]:
        moves = [JobMove(Lease(job_id, None), NewJob(None, b"")) for job_id in ids]
        found = await self._movable(queue, moves)
        now_ms = await self.now_ms()
        writes: dict[int, Write] = {
            place: (
                self._layout.as_it_was(queue, document),
                self._layout.taken_out(document, now_ms, removed=True),
            )
            for place, document in found.items()
        }
        return await self._write(queue, len(ids), found, writes)

    async def purge(self, queue: str) -> int:
        if self._layout.has_many:
            return await self._purge_many(queue)
        waiting = self._layout.waiting(queue, self.shift_ms)
        jobs = self._jobs(queue)
        with self._link.errors():
            documents = await jobs.find({**waiting, "penstock.key": {"$exists": True}}, {"penstock.key": True})
            count = await jobs.change_all(waiting, self._layout.ended(await self.now_ms(), removed=True))
        await self._after_end(queue, documents)
        return count

    async def _purge_many(self, queue: str) -> int:
        """Purge documents with several jobs: those of each size together, since the server counts documents."""
        jobs, count = self._jobs(queue), 0
        waiting = self._layout.waiting(queue, self.shift_ms)
        only_first: Document = {"$set": {"q": {"$slice": ["$q", 1]}, "qcnt": 1}}
        with self._link.errors():
            for size in await jobs.collection.distinct("qcnt", self._layout.of(queue)):
                count += size * await jobs.change_all({**waiting, "qcnt": size}, None)
                # What is left is reserved: but for the first job of each key.
                if size > 1:
                    leased = {"qcnt": size, "reserved": {"$exists": True}}
                    count += (size - 1) * await jobs.change_all(leased, [only_first])
        return count

    async def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None = None) -> Page:
        if state is JobState.DONE:
            return await self._history(queue, count, cursor)
        if self._layout.has_many:
            return await self._peek_many(queue, state, count, cursor)
        wanted = await self._of_state(queue, state)
        after_ms, _, after_id = (cursor or f"{-(2**62)}:").partition(":")
        documents: list[Document] = []
        if after_id:
            documents = await self._of_moment(queue, wanted, int(after_ms), ObjectId(after_id), count + 1)
        if len(documents) <= count:
            later = await self._later(queue, wanted, int(after_ms), count + 1)
            if later and len(later) > count:
                # The last moment may be cut, and MongoDB has no order among its jobs but that of insertion.
                last_ms = ms_of(later[-1]["mature"])
                later = [document for document in later if ms_of(document["mature"]) < last_ms]
                later += await self._of_moment(queue, wanted, last_ms, None, count + 1)
            documents += sorted(later, key=lambda document: (ms_of(document["mature"]), document["_id"]))
        now_ms = await self.now_ms()
        page = documents[:count]
        jobs = [read(document, now_ms) for document in page]
        if len(documents) <= count:
            return Page(jobs, None)
        return Page(jobs, f"{ms_of(page[-1]['mature'])}:{page[-1]['_id']}")

    async def _of_state(self, queue: str, state: JobState | None) -> Document:
        if state is JobState.READY:
            return await self._ready(queue)
        if state is None:
            return self._layout.dated(queue)
        is_reserved = state is JobState.RESERVED
        return {**self._layout.not_ready(queue, self.shift_ms), "reserved": {"$exists": is_reserved}}

    async def _of_moment(
        self, queue: str, wanted: Document, mature_ms: int, after: ObjectId | None, count: int
    ) -> list[Document]:
        """Return jobs that mature at one moment, in the order of their ids."""
        chosen = {**wanted, "mature": DatetimeMS(mature_ms)}
        if after is not None:
            chosen["_id"] = {"$gt": after}
        with self._link.errors():
            return await self._jobs(queue).find(chosen, order=[("_id", 1)], limit=count)

    async def _later(self, queue: str, wanted: Document, after_ms: int, count: int) -> list[Document]:
        """Return jobs that mature after a moment, in the order of their maturity."""
        chosen = {**wanted, "mature": {**wanted["mature"], "$gt": DatetimeMS(after_ms)}}
        with self._link.errors():
            return await self._jobs(queue).find(chosen, order=BY_TIME, limit=count)

    async def _peek_many(self, queue: str, state: JobState | None, count: int, cursor: str | None) -> Page:
        """Return jobs of documents that have several, in the order of the documents. A page ends with a document."""
        wanted = self._layout.dated(queue)
        after: Any = None
        if cursor is not None:
            after = json_util.loads(cursor)
            same = {"mature": DatetimeMS(after["ms"]), "$expr": {"$gt": ["$_id", {"$literal": after["key"]}]}}
            wanted["$or"] = [{"mature": {"$gt": DatetimeMS(after["ms"])}}, same]
        with self._link.errors():
            order = [("mature", 1), ("_id", 1)]
            documents = await self._jobs(queue).find_stored(wanted, order=order, limit=count + 1)
        now_ms = await self.now_ms()
        jobs: list[StoredJob] = []
        for place, document in enumerate(documents):
            if len(jobs) >= count or place == count:
                last = documents[place - 1]
                return Page(jobs, json_util.dumps({"ms": ms_of(last["mature"]), "key": last["_id"]}))
            first, *others = self._layout.all_seen(document)
            head = read(first, now_ms)
            seen = [head, *(read(other, now_ms) for other in others)]
            for job in seen[1:]:
                # It waits for those before it, whatever its own time.
                job.state = JobState.READY if head.state is JobState.READY else JobState.SCHEDULED
            jobs += [job for job in seen if state is None or job.state is state]
        return Page(jobs, None)

    async def _history(self, queue: str, count: int, cursor: str | None) -> Page:
        """Return ended jobs, those that ended last first."""
        wanted = self._layout.done(queue)
        if cursor is not None:
            before_ms, _, before_id = cursor.partition(":")
            moment = DatetimeMS(int(before_ms))
            wanted["$or"] = [
                {"processed": {"$lt": moment}},
                {"processed": moment, "_id": {"$lt": ObjectId(before_id)}},
            ]
        with self._link.errors():
            order = [("processed", -1), ("_id", -1)]
            documents = await self._jobs(queue).find(wanted, order=order, limit=count + 1)
        page = documents[:count]
        jobs = [read(document, 0) for document in page]
        if len(documents) <= count:
            return Page(jobs, None)
        return Page(jobs, f"{ms_of(page[-1]['processed'])}:{page[-1]['_id']}")

    async def reserved(self, queue: str, ids: Sequence[str]) -> list[StoredJob | None]:
        wanted = {**self._layout.of(queue), **self._layout.with_ids(ids), "reserved": {"$exists": True}}
        with self._link.errors():
            found = {text_id(document): document for document in await self._jobs(queue).find(wanted)}
        now_ms = await self.now_ms()
        return [read(found[job_id], now_ms, True) if job_id in found else None for job_id in ids]

    async def sizes(self, queue: str) -> Sizes:
        now = {"$add": ["$$NOW", self.shift_ms]}
        is_ready = {"$lte": ["$mature", now]}
        is_reserved = {"$and": [{"$gt": ["$mature", now]}, {"$gt": ["$reserved", None]}]}
        jobs: Any = "$qcnt" if self._layout.has_many else 1
        sums = {
            "total": {"$sum": jobs},
            "ready": {"$sum": {"$cond": [is_ready, jobs, 0]}},
            "leased": {"$sum": {"$cond": [is_reserved, 1, 0]}},
        }
        with self._link.errors():
            row = await self._jobs(queue).totals(self._layout.dated(queue), sums)
        if row is None:
            return Sizes(0, 0, 0, 0)
        return Sizes(row["total"], row["ready"], row["total"] - row["ready"] - row["leased"], row["leased"])

    async def ready(self, queue: str) -> int:
        if self._layout.has_many:
            return (await self.sizes(queue)).ready
        ready = self._layout.stored(await self._ready(queue))
        with self._link.errors():
            return await self._jobs(queue).collection.count_documents(ready)

    async def next_mature_ms(self, queue: str) -> int | None:
        with self._link.errors():
            found = await self._jobs(queue).find(self._layout.dated(queue), {"mature": True}, BY_TIME, 1)
        return ms_of(found[0]["mature"]) if found else None

    async def queues(self) -> list[str]:
        if self._layout.pipeline is not None:
            with self._link.errors():
                names = await self._link.collection(self._layout.pipeline).distinct("_q")
            return sorted(name for name in names if isinstance(name, str))
        with self._link.errors():
            found = await self._link.database().list_collection_names(filter={"type": "collection"})
        names = sorted(name for name in found if not name.startswith("system.") and name not in {UNIQUE, CLAIMS})
        with_jobs: list[str] = []
        for begin in range(0, len(names), _UNION_MAX):
            with_jobs += await self._with_jobs(names[begin : begin + _UNION_MAX])
        return with_jobs

    async def _with_jobs(self, names: Sequence[str]) -> list[str]:
        """Return those of some collections that have jobs, by one command."""

        def first(name: str) -> list[Document]:
            wanted = self._layout.stored({**self._layout.dated(""), **self._layout.is_job})
            return [{"$match": wanted}, {"$limit": 1}, {"$project": {"_id": {"$literal": name}}}]

        stages = first(names[0])
        stages += [{"$unionWith": {"coll": name, "pipeline": first(name)}} for name in names[1:]]
        with self._link.errors():
            cursor = await self._link.collection(names[0]).aggregate(stages)
            return [row["_id"] async for row in cursor]


def _unmarked(document: Document) -> Document:
    """Return a document as it was before it was marked to be popped."""
    ours = document["penstock"]
    before = {**document, "mature": ours["before"], "tries": tries_of(document) - 1}
    del before["reserved"]
    return before
