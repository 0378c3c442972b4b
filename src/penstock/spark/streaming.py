"""A queue as a stream: each micro-batch is a claim.

Spark's offset is a run id and a number; together they are the key of a claim in the store. A batch takes its jobs in
steps (`room`), and each is a claim: the offset says how many, and the key of a later one has its number besides.

    latestOffset(start)   acks the claim of `start`, which Spark has logged as done, and makes the next one
    partitions(…, end)    hands out the jobs of a claim; after a crash the same key gives the same jobs
    read(partition)       needs no store: the jobs travel with the partition, as Arrow; reading twice is harmless

`commit` comes a batch late, and for the last batch of a run not at all, so nothing is acked there. A claim that was
made right before a crash, and never logged, is found again under its key. While a batch runs its leases are made longer
(`heart`); when the process has died they end by themselves. Where the store has no claims,
since its nodes are originals, the offset itself names the jobs: see `marks`.

At least once; exactly once into a sink that is idempotent by batch id. After a replay, jobs that others have finished
meanwhile (the query was down for longer than its lease) are missing, and no others are in their place.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
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
from penstock.spark.columns import arrow_schema, to_batch
from penstock.spark.heart import Heart
from penstock.spark.marks import HELD, Marks, Offset
from penstock.spark.outages import through_outages
from penstock.spark.refusals import without_traceback
from penstock.spark.room import Steps, bytes_of, cuts
from penstock.spark.settings import Settings

LOOK_PAUSE_S = 0.05  # between two looks at an empty queue
OWNERS_QUEUE = "__penstock_owners__"
STEPS = "steps"  # in an offset: how many claims its batch has, if there are more than one


@without_traceback
class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one query. Made in several processes: everything that lives is made when it is needed."""

    def __init__(self, settings: Settings, columns: list[str]) -> None:
        self._settings = settings
        self._columns = columns
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
        self._budget = through_outages(self.claims.queue.size)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        self.claims.check_owner(start)
        self._holder(start).finish(start)
        wanted = limit.max_rows if isinstance(limit, ReadMaxRows) else self._settings.jobs_max
        if self._budget is not None:
            wanted = min(wanted, self._budget)
        end: Offset = {"run": start["run"], "seq": start["seq"] + 1}
        if self.claims.recover(end):
            return end
        jobs = self.claims.begin(end, wanted, 0.0 if self._budget is not None else self._settings.wait_s)
        if not jobs:
            return start
        if self._budget is not None:
            self._budget = max(0, self._budget - len(jobs))
        return end

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        if end["seq"] == start["seq"]:
            return []
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
    if Capability.CLAIM not in store.capabilities and store.driver.has_marks:
        return Marks(settings, store)
    require(store.capabilities, Capability.CLAIM, store.url)
    return _Claims(settings, store)


class _Claims:
    """The claims of one query in its store, in the driver's process."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self.store = store
        self.queue: Queue = store.queue(settings.queue)
        self._open: dict[int, dict[str, list[StoredJob]]] = {}  # by number: the jobs of each key
        self._steps = Steps(settings.batch_bytes)
        self._owner: Job | None = None
        self._lost_owner = False
        self._has_looked = False
        self._heart = Heart(settings, self._keep_leases, settings.lease_s / 3)
        self._lock = threading.Lock()

    @staticmethod
    def _key(offset: Offset, step: int) -> str:
        """The key of a claim in the store."""
        return f"spark:{offset['run']}:{offset['seq']}" + (f":{step}" if step else "")

    def _keys(self, offset: Offset) -> list[str]:
        """Those of a batch."""
        return [self._key(offset, step) for step in range(offset.get(STEPS, 1))]

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
        if offset["seq"]:
            for key in self._keys(offset):
                through_outages(partial(self.queue.ack_claim, key))
        with self._lock:
            for seq in [seq for seq in self._open if seq <= offset["seq"]]:
                del self._open[seq]

    def recover(self, offset: Offset) -> bool:
        """Whether the next batch was claimed already, right before a crash. Asked once, at the first batch."""
        if self._has_looked:
            return False
        self._has_looked = True
        found: dict[str, list[StoredJob]] = {}
        while jobs := self._claim(self._key(offset, len(found)), 0):
            found[self._key(offset, len(found))] = jobs
        if found:
            self._hold(offset, found)
        return bool(found)

    def begin(self, offset: Offset, count: int, wait_s: float) -> list[StoredJob]:
        """Claim jobs for the next batch."""
        self._steps.begin()
        wanted = self._steps.next(count)
        jobs = self._wait_for(self._key(offset, 0), wanted, wait_s)
        found: dict[str, list[StoredJob]] = {}
        while jobs:
            found[self._key(offset, len(found))] = jobs
            count -= len(jobs)
            self._steps.took(jobs)
            is_all = len(jobs) < wanted
            wanted = 0 if is_all else self._steps.next(max(0, count))
            jobs = self._claim(self._key(offset, len(found)), wanted) if wanted else []
        if wanted:  # the last key was given nothing, or only jobs that had no tries left
            through_outages(lambda: self.queue.nack_claim(self._key(offset, len(found))))
        if found:
            self._hold(offset, found)
        return [job for some in found.values() for job in some]

    def _wait_for(self, key: str, count: int, wait_s: float) -> list[StoredJob]:
        """The first jobs of a batch, as soon as there are some."""
        until = time.monotonic() + wait_s
        looked = 0
        while True:
            jobs = self._claim(key, count)
            waiting = through_outages(self.queue.size) if count and not jobs else 0
            if waiting and waiting != looked:
                # The key is an old one, or it was given only jobs that had no tries left: it would give none for ever.
                looked = waiting
                through_outages(lambda: self.queue.nack_claim(key))
                continue
            if jobs or time.monotonic() >= until:
                return jobs
            time.sleep(LOOK_PAUSE_S)

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
            held = {key: self._claim(key, 0) for key in self._keys(offset)}
            self._hold(offset, held)
        return held

    def _hold(self, offset: Offset, held: dict[str, list[StoredJob]]) -> None:
        if len(held) > 1:
            offset[STEPS] = len(held)
        with self._lock:
            self._open[offset["seq"]] = held
        self._heart.start()

    def _keep_leases(self, store: Store) -> None:
        """Make leases longer."""
        queue = store.queue(self._settings.queue)
        with self._lock:
            keys = [key for held in self._open.values() for key in held]
        for key in keys:
            queue.extend_claim(key, self._settings.lease_s)
        if self._owner is not None:
            try:
                store.queue(self._owner.queue.name).extend(self._owner, self._settings.lease_s)
            except LeaseLost:
                self._lost_owner = True

    def close(self) -> None:
        self._heart.stop()
        self.store.close()
