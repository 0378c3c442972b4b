"""A queue as a stream: each micro-batch is a claim.

Spark's offset is a run id and a number; together they are the key of a claim in the store:

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
from penstock.spark.settings import Settings

LOOK_PAUSE_S = 0.05  # between two looks at an empty queue
OWNERS_QUEUE = "__penstock_owners__"


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
            self._budget -= len(jobs)
        return end

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        if end["seq"] == start["seq"]:
            return []
        jobs = self._holder(end).jobs_of(end)
        schema = arrow_schema(self._columns)
        size = self._settings.partition_jobs
        pieces = [jobs[begin : begin + size] for begin in range(0, len(jobs), size)]
        return [
            InputPartition(_packed(to_batch(piece, schema, self._settings.queue, self.claims.key(end))))
            for piece in pieces
        ]

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
        self._open: dict[int, list[StoredJob] | None] = {}  # by number; None once its jobs were handed out
        self._run = ""
        self._owner: Job | None = None
        self._lost_owner = False
        self._has_looked = False
        self._heart = Heart(settings, self._keep_leases, settings.lease_s / 3)
        self._lock = threading.Lock()

    def key(self, offset: Offset) -> str:
        """The claim's key in the store."""
        return f"spark:{offset['run']}:{offset['seq']}"

    def check_owner(self, offset: Offset) -> None:
        """With a fixed owner: be the only one, and stop if another query has taken the name over."""
        self._run = offset["run"]
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
            through_outages(lambda: self.queue.ack_claim(self.key(offset)))
        with self._lock:
            for seq in [seq for seq in self._open if seq <= offset["seq"]]:
                del self._open[seq]

    def recover(self, offset: Offset) -> bool:
        """Whether the next batch was claimed already, right before a crash. Asked once, at the first batch."""
        if self._has_looked:
            return False
        self._has_looked = True
        jobs = through_outages(lambda: self._claim(offset, 0))
        if jobs:
            self._hold(offset, jobs)
        return bool(jobs)

    def begin(self, offset: Offset, count: int, wait_s: float) -> list[StoredJob]:
        """Claim jobs for the next batch."""
        until = time.monotonic() + wait_s
        looked = 0
        while True:
            jobs = through_outages(lambda: self._claim(offset, count))
            waiting = through_outages(self.queue.size) if count and not jobs else 0
            if waiting and waiting != looked:
                # The key is an old one, or it was given only jobs that had no tries left: it would give none for ever.
                looked = waiting
                through_outages(lambda: self.queue.nack_claim(self.key(offset)))
                continue
            if jobs or time.monotonic() >= until:
                break
            time.sleep(LOOK_PAUSE_S)
        if jobs:
            self._hold(offset, jobs)
        return jobs

    def _claim(self, offset: Offset, count: int) -> list[StoredJob]:
        return [job.stored for job in self.queue.claim(self.key(offset), count, lease=self._settings.lease_s)]

    def jobs_of(self, offset: Offset) -> list[StoredJob]:
        """The jobs of a claim: from memory, or, after a restart, from the store."""
        self.check_owner(offset)
        with self._lock:
            jobs = self._open.get(offset["seq"])
        if jobs is None:
            jobs = through_outages(lambda: self._claim(offset, 0))  # no others in the place of those that are gone
            self._hold(offset, jobs)
        return jobs

    def _hold(self, offset: Offset, jobs: list[StoredJob]) -> None:
        with self._lock:
            self._open[offset["seq"]] = jobs
        self._heart.start()

    def _keep_leases(self, store: Store) -> None:
        """Make leases longer."""
        queue = store.queue(self._settings.queue)
        with self._lock:
            numbers = list(self._open)
        for number in numbers:
            queue.extend_claim(self.key({"run": self._run, "seq": number}), self._settings.lease_s)
        if self._owner is not None:
            try:
                store.queue(self._owner.queue.name).extend(self._owner, self._settings.lease_s)
            except LeaseLost:
                self._lost_owner = True

    def close(self) -> None:
        self._heart.stop()
        self.store.close()
