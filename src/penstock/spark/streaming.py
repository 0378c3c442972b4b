"""A queue as a stream: each micro-batch is a claim.

Spark's offset is a run id and a number; together they are the key of a claim in the store. A batch takes its jobs in
steps (`room`), and each is a claim: the offset says how many, and the key of a later one has its number besides. It
also names the queue and the store, so that a checkpoint is never used for others.

    {"run": …, "seq": 3, "queue": "mail", "store": "redis://host:6379/0", "steps": 4}

    latestOffset(start)   acks the claim of `start`, which Spark has logged as done, and makes the next one
    partitions(…, end)    hands out the jobs of a claim; after a crash the same key gives the same jobs
    read(partition)       needs no store: the jobs travel with the partition, as Arrow; reading twice is harmless
    reportLatestOffset()  is what the query's progress shows: how many jobs wait, and how many leases were lost

`commit` comes a batch late, and for the last batch of a run not at all, so nothing is acked there. A query that ends
without another `latestOffset` (`once`, `stop`) leaves its last batch to `listener`, or to the next start. A claim that
was made right before a crash, and never logged, is found again under its key. While a batch runs its leases are made
longer (`heart`); when the process has died they end by themselves. Where the store has no claims, since its nodes are
originals, the offset itself names the jobs: see `marks`.

At least once; exactly once into a sink that is idempotent by batch id. After a replay, jobs that others have finished
meanwhile (the query was down for longer than its lease) are missing, and no others are in their place.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.errors import CallerError, LeaseLost
from penstock.job import StoredJob
from penstock.queues.blocking import Job, Queue, Store, connect
from penstock.queues.capabilities import Capability, require
from penstock.queues.options import parse
from penstock.spark.columns import arrow_schema, to_batch
from penstock.spark.heart import Heart
from penstock.spark.marks import HELD, Marks, Offset
from penstock.spark.outages import through_outages
from penstock.spark.refusals import without_traceback
from penstock.spark.room import Backlog, Steps, bytes_of, cuts
from penstock.spark.settings import Settings

OWNERS_QUEUE = "__penstock_owners__"
STEPS = "steps"  # in an offset: how many claims its batch has, if there are more than one
FILES = ("sqlite", "fsq", "memory")  # stores whose address is a path

log = logging.getLogger("penstock.spark")


def store_address(url: str) -> str:
    """Return what tells a store from others: its URL without user, password and options, with the whole path."""
    address = parse(url, {})[0]
    if address.scheme in FILES:
        return connect(url).place
    scheme = address.scheme.partition("+")[0].replace("rediss", "redis").replace("postgresql", "postgres")
    return f"{scheme}://{address.netloc.rpartition('@')[2]}{address.path}"


def is_same_store(one: str, other: str) -> bool:
    """Whether two addresses may be of one store. A cluster of nodes can be reached by any of them."""
    if one == other:
        return True
    (first, _, _), (second, _, _) = parse(one, {}), parse(other, {})
    if (first.scheme, first.path) != (second.scheme, second.path):
        return False
    return first.scheme == "disque" or any(
        host == other_host and (port == other_port or None in (port, other_port))
        for host, port in first.places
        for other_host, other_port in second.places
    )


def claim_keys(offset: Offset) -> list[str]:
    """Return the keys of the claims that a batch has in the store."""
    return [_claim_key(offset, step) for step in range(offset.get(STEPS, 1))]


def _claim_key(offset: Offset, step: int) -> str:
    return f"spark:{offset['run']}:{offset['seq']}" + (f":{step}" if step else "")


@without_traceback
class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one query. Made in several processes: everything that lives is made when it is needed."""

    def __init__(self, settings: Settings, columns: list[str]) -> None:
        self._settings = settings
        self._columns = columns
        self._address = store_address(settings.url)
        self._last: Offset = {}  # that was given
        self._budget: int | None = None
        self._claims: _Claims | Marks | None = None
        self._marks: Marks | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Workers get a copy without connections."""
        return {**self.__dict__, "_claims": None, "_marks": None}

    @property
    def claims(self) -> _Claims | Marks:
        if self._claims is None:
            self._claims = _holding(self._settings)
        return self._claims

    def _holder(self, offset: Offset) -> _Claims | Marks:
        """What holds a batch: its offset, also if the originals that it came from are nodes of ours by now."""
        claims = self.claims
        if HELD not in offset or isinstance(claims, Marks):
            return claims
        self._marks = self._marks or Marks(self._settings, claims.store)
        return self._marks

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        kept = self._settings.run_file
        run = self._settings.owner or (_run_in(Path(kept)) if kept else uuid.uuid4().hex)
        return {"run": run, "seq": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._settings.jobs_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Of a busy queue, take no more than what is there now."""
        self._budget = self.claims.backlog.ask()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        self._check_place(start)
        self.claims.check_owner(start)
        self._holder(start).finish(start)
        self._last = self._next(start, limit)
        return self._last

    def _next(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next batch; the same as its start if there is none yet."""
        claims = self.claims
        wanted = limit.max_rows if isinstance(limit, ReadMaxRows) else self._settings.jobs_max
        if self._budget is not None:
            wanted = min(wanted, self._budget)
        end: Offset = {
            "run": start["run"],
            "seq": start["seq"] + 1,
            "queue": self._settings.queue,
            "store": self._address,
        }
        if claims.recover(end):
            return end
        if self._budget is None and not claims.backlog.wait(self._settings.wait_s):
            return start
        jobs = claims.begin(end, wanted)
        claims.backlog.took(len(jobs))
        if not jobs:
            return start
        if self._budget is not None:
            self._budget = max(0, self._budget - len(jobs))
        return end

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """What the progress of a query shows as its latest offset; Spark uses it for nothing else."""
        claims = self.claims
        return {
            "run": self._last.get("run", ""),
            "seq": self._last.get("seq", 0),
            "backlog": claims.backlog.count(),
            "leases_lost": claims.leases_lost,
        }

    def _check_place(self, offset: Offset) -> None:
        """Refuse a checkpoint of another queue or store. Offsets of old checkpoints don't name them."""
        queue, address = offset.get("queue", self._settings.queue), offset.get("store", self._address)
        is_same = self._settings.has_moved or is_same_store(address, self._address)
        if queue != self._settings.queue or not is_same:
            raise CallerError(
                f"the checkpoint is of the queue {queue!r} in {address}, and this query reads the queue "
                f"{self._settings.queue!r} in {self._address}: give it a checkpoint of its own. If it is the same "
                "store at another address, set the option storeMoved to true"
            )

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        if end["seq"] == start["seq"]:
            return []
        self._check_place(end)
        held = self._holder(end).jobs_of(end)
        jobs = [job for some in held.values() for job in some]
        claims = [key for key, some in held.items() for _ in some]
        sizes = list(map(bytes_of, jobs))
        self._check_sizes(jobs, sizes)
        schema = arrow_schema(self._columns)
        return [
            InputPartition(_packed(to_batch(jobs[piece], schema, self._settings.queue, claims[piece])))
            for piece in cuts(sizes, self._settings.partition_jobs)
        ]

    def _check_sizes(self, jobs: list[StoredJob], sizes: list[int]) -> None:
        """Java would run out of memory, and not say on which job."""
        largest = max(sizes, default=0)
        if largest > self._settings.batch_bytes:
            job = jobs[sizes.index(largest)]
            raise CallerError(
                f"the job {job.id} of {self._settings.queue} has {largest} bytes, more than the "
                f"{self._settings.batch_bytes} of a whole batch: give the option batchMegabytes more, and Spark's "
                "driver ten times as much memory, or let a worker take the job"
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from pa.ipc.open_stream(partition.value)

    def commit(self, end: Offset) -> None:
        """Too late to ack with: see above."""

    def stop(self) -> None:
        for holder in (self._marks, self._claims):
            if holder is not None:
                holder.close()


def _run_in(file: Path) -> str:
    """The name that a file keeps; whoever finds none makes one."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
        fresh.write_text(uuid.uuid4().hex)
        fresh.replace(file)
    return file.read_text()


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return] # pyarrow has no types


def _holding(settings: Settings) -> _Claims | Marks:
    """What holds the jobs of a batch: a claim in the store, or the offset where the store has none."""
    store: Store = connect(settings.url, lease=settings.lease_s)
    through_outages(store.open)
    if Capability.CLAIM not in store.capabilities and store.has_marks:
        return Marks(settings, store)
    require(store.capabilities, Capability.CLAIM, store.url)
    return _Claims(settings, store)


@dataclass(slots=True)
class _Held:
    """The jobs of a claim, and when their leases were extended last."""

    jobs: list[StoredJob]
    count: int  # that were still held then
    extended: tuple[float, float] = field(default_factory=lambda: (time.monotonic(), time.time()))

    @property
    def age_s(self) -> float:
        """Seconds since then. The wall clock counts as well: a machine that sleeps stops the other one."""
        return max(time.monotonic() - self.extended[0], time.time() - self.extended[1])


class _Claims:
    """The claims of one query in its store, in the driver's process."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self.store = store
        self.queue: Queue = store.queue(settings.queue)
        self.backlog = Backlog(self.queue.size, settings.jobs_min, settings.delay_s_max)
        self.leases_lost = 0
        self._open: dict[int, dict[str, _Held]] = {}  # by number: the jobs of each key
        self._finished: int | None = None
        self._steps = Steps(settings.batch_bytes)
        self._owner: Job | None = None
        self._lost_owner = False
        self._has_looked = False
        self._heart = Heart(settings, self._keep_leases, settings.lease_s / 3)
        self._lock = threading.Lock()

    def check_owner(self, offset: Offset) -> None:
        """With a fixed owner: be the only one, and stop if another query has taken the name over."""
        if self._settings.owner is None:
            return
        if self._lost_owner:
            raise CallerError(
                f"another query with owner={self._settings.owner!r} has taken over: give each query a name of its own"
            )
        if self._owner is None:
            self._owner = through_outages(self._take_owner)
            self._heart.start()

    def _take_owner(self) -> Job:
        """A job that is leased for as long as this query lives. A newer query takes it, and this one notices."""
        owners = self.store.queue(f"{OWNERS_QUEUE}:{self._settings.owner}")
        key = f"owner:{self._settings.owner}"
        held = owners.claim(key, 1, lease=self._settings.lease_s)
        if not held:
            owners.ack_claim(key)
            if not owners.total():
                owners.push(b"")
            held = owners.claim(key, 1, lease=self._settings.lease_s)
        if not held:
            raise CallerError(f"owner={self._settings.owner!r} is held by another query that began at the same moment")
        return held[0]

    def finish(self, offset: Offset) -> None:
        """Spark has logged this batch as done."""
        if offset["seq"] == self._finished:
            return  # Spark asks over and over while there are no jobs
        for key in claim_keys(offset) if offset["seq"] else []:
            acked = through_outages(partial(self.queue.ack_claim, key))
            with self._lock:
                held = self._open.get(offset["seq"], {}).get(key)
                if held is not None and acked:  # else it was acked before, as by a listener
                    self._note_lost(held, acked)
        self._finished = offset["seq"]
        with self._lock:
            for seq in [seq for seq in self._open if seq <= offset["seq"]]:
                del self._open[seq]

    def recover(self, offset: Offset) -> bool:
        """Whether the next batch was claimed already, right before a crash. Asked once, at the first batch."""
        if self._has_looked:
            return False
        self._has_looked = True
        found: dict[str, list[StoredJob]] = {}
        while jobs := self._claim(_claim_key(offset, len(found)), 0):
            found[_claim_key(offset, len(found))] = jobs
        if found:
            self._hold(offset, found)
        return bool(found)

    def begin(self, offset: Offset, count: int) -> list[StoredJob]:
        """Claim jobs for the next batch."""
        self._steps.begin()
        wanted = self._steps.next(count)
        jobs = self._first(_claim_key(offset, 0), wanted)
        found: dict[str, list[StoredJob]] = {}
        while jobs:
            found[_claim_key(offset, len(found))] = jobs
            count -= len(jobs)
            self._steps.took(jobs)
            is_all = len(jobs) < wanted
            wanted = 0 if is_all else self._steps.next(max(0, count))
            jobs = self._claim(_claim_key(offset, len(found)), wanted) if wanted else []
        if found and wanted:  # the last key was given nothing, or only jobs that had no tries left
            through_outages(lambda: self.queue.nack_claim(_claim_key(offset, len(found))))
        if found:
            self._hold(offset, found)
        return [job for some in found.values() for job in some]

    def _first(self, key: str, count: int) -> list[StoredJob]:
        """The first jobs of a batch."""
        looked = 0
        while True:
            jobs = self._claim(key, count)
            waiting = self.backlog.ask() if count and not jobs else 0
            if not waiting or waiting == looked:
                return jobs
            # The key is an old one, or it was given only jobs that had no tries left: it would give none for ever.
            looked = waiting
            through_outages(lambda: self.queue.nack_claim(key))

    def _claim(self, key: str, count: int) -> list[StoredJob]:
        jobs = through_outages(lambda: self.queue.claim(key, count, lease=self._settings.lease_s))
        return [job.stored for job in jobs]

    def jobs_of(self, offset: Offset) -> dict[str, list[StoredJob]]:
        """The jobs of a batch by their claims: from memory, or, after a restart, from the store."""
        self.check_owner(offset)
        with self._lock:
            held = self._open.get(offset["seq"])
        if held is None:
            # Asking for 0: no others in the place of those that are gone.
            held = self._hold(offset, {key: self._claim(key, 0) for key in claim_keys(offset)})
        return {key: one.jobs for key, one in held.items()}

    def _hold(self, offset: Offset, jobs: dict[str, list[StoredJob]]) -> dict[str, _Held]:
        if len(jobs) > 1:
            offset[STEPS] = len(jobs)
        held = {key: _Held(some, len(some)) for key, some in jobs.items()}
        with self._lock:
            self._open[offset["seq"]] = held
        self._heart.start()
        return held

    def _keep_leases(self, store: Store) -> None:
        """Make leases longer."""
        queue = store.queue(self._settings.queue)
        with self._lock:
            open_now = [one for held in self._open.values() for one in held.items()]
        for key, held in open_now:
            count = queue.extend_claim(key, self._settings.lease_s)
            with self._lock:
                self._note_lost(held, count)
        if self._owner is not None:
            try:
                store.queue(self._owner.queue.name).extend(self._owner, self._settings.lease_s)
            except LeaseLost:
                self._lost_owner = True

    def _note_lost(self, held: _Held, count: int) -> None:
        """Compare how many jobs a claim has with how many it had.

        Others can only take them when their leases are over. Those that go before are given up, or were acked.
        """
        gone = held.count - count
        if gone > 0 and held.age_s >= self._settings.lease_s:
            self.leases_lost += gone
            log.warning(
                "the leases of %d jobs of %s were over before they could be extended, and others have taken the jobs: "
                "they are processed twice. A longer lease than %g s helps",
                gone,
                self._settings.queue,
                self._settings.lease_s,
            )
        held.count, held.extended = count, (time.monotonic(), time.time())

    def close(self) -> None:
        self._heart.stop()
        self.store.close()
