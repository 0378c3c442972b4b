"""A queue as a stream: each micro-batch is a claim.

Spark's offset is a run id and a number; together they are the key of a claim in the store (`claims`). It also names the
queue and the store, so that a checkpoint is never used for others.

    latestOffset(start)   acks the claim of `start`, which Spark has logged as done, and makes the next one
    partitions(…, end)    cuts the jobs of a claim into partitions; after a crash the same key gives the same jobs
    read(partition)       needs no store: the jobs come with the partition, as Arrow; reading twice is harmless
    reportLatestOffset()  is what the query's progress shows: the backlog, and the number of lost leases

`commit` comes a batch late, and for the last batch of a run not at all, so nothing is acked there. A query that ends
without another `latestOffset` (`once`, `stop`) leaves its last batch to `listener`, or to the next start. A claim that
was made right before a crash, and never logged, is found again under its key. While a batch runs its leases are
extended (`lease_keeper`); when the process has died they end by themselves.

Delivery is at least once, and exactly once into a sink that is idempotent by batch id. After a replay, jobs that other
workers have finished meanwhile (the query was down for longer than its lease) are missing; no others replace them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.errors import CallerError
from penstock.job import StoredJob
from penstock.queues.blocking import connect
from penstock.queues.options import parse
from penstock.spark.batch_size import bytes_of, partition_slices
from penstock.spark.claims import HELD, ClaimedBatches, Offset, OffsetBatches, open_batches
from penstock.spark.errors import without_traceback
from penstock.spark.rows import arrow_schema, to_batch
from penstock.spark.settings import Settings

FILES = ("sqlite", "fsq", "memory")  # stores whose address is a path


def store_address(url: str) -> str:
    """Return what identifies a store: its URL without user, password and options, with the whole path."""
    address = parse(url, {})[0]
    if address.scheme in FILES:
        return connect(url).place
    scheme = address.scheme.partition("+")[0].replace("rediss", "redis").replace("postgresql", "postgres")
    return f"{scheme}://{address.netloc.rpartition('@')[2]}{address.path}"


def is_same_store(one: str, other: str) -> bool:
    """Whether two addresses may be of one store. A broker cluster can be reached by any of its nodes."""
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


@without_traceback
class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one query. It is made in several processes: connections are opened when they are needed."""

    def __init__(self, settings: Settings, columns: list[str]) -> None:
        self._settings = settings
        self._columns = columns
        self._address = store_address(settings.url)
        self._last: Offset = {}  # that was returned
        self._budget: int | None = None
        self._batches: ClaimedBatches | OffsetBatches | None = None
        self._offset_batches: OffsetBatches | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return a copy without connections, for workers."""
        return {**self.__dict__, "_batches": None, "_offset_batches": None}

    @property
    def batches(self) -> ClaimedBatches | OffsetBatches:
        """Return what holds the jobs of new batches."""
        if self._batches is None:
            self._batches = open_batches(self._settings)
        return self._batches

    def _batches_of(self, offset: Offset) -> ClaimedBatches | OffsetBatches:
        """Return what holds a batch: its offset, also if the original nodes that it came from are nodes of ours now."""
        batches = self.batches
        if HELD not in offset or isinstance(batches, OffsetBatches):
            return batches
        self._offset_batches = self._offset_batches or OffsetBatches(self._settings, batches.store)
        return self._offset_batches

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        kept = self._settings.run_file
        run = self._settings.owner or (_run_in(Path(kept)) if kept else uuid.uuid4().hex)
        return {"run": run, "seq": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._settings.jobs_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Limit the query to the jobs that are ready now, so that it ends on a busy queue."""
        self._budget = self.batches.backlog.poll()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        self._check_place(start)
        self.batches.check_owner(start)
        self._batches_of(start).finish(start)
        self._last = self._next(start, limit)
        return self._last

    def _next(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next batch; its start if there is none yet."""
        batches = self.batches
        wanted = limit.max_rows if isinstance(limit, ReadMaxRows) else self._settings.jobs_max
        if self._budget is not None:
            wanted = min(wanted, self._budget)
        end: Offset = {
            "run": start["run"],
            "seq": start["seq"] + 1,
            "queue": self._settings.queue,
            "store": self._address,
        }
        if batches.recover(end):
            return end
        if self._budget is None and not batches.backlog.wait(self._settings.wait_s):
            return start
        jobs = batches.begin(end, wanted)
        batches.backlog.took(len(jobs))
        if not jobs:
            return start
        if self._budget is not None:
            self._budget = max(0, self._budget - len(jobs))
        return end

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """Return what the progress of a query shows as its latest offset; Spark uses it for nothing else."""
        batches = self.batches
        return {
            "run": self._last.get("run", ""),
            "seq": self._last.get("seq", 0),
            "backlog": batches.backlog.count(),
            "leases_lost": batches.leases_lost,
        }

    def _check_place(self, offset: Offset) -> None:
        """Refuse a checkpoint of another queue or store. Offsets of old checkpoints don't name them."""
        queue, address = offset.get("queue", self._settings.queue), offset.get("store", self._address)
        is_same = self._settings.has_moved or is_same_store(address, self._address)
        if queue != self._settings.queue or not is_same:
            raise CallerError(
                f"the checkpoint must be of the queue {self._settings.queue!r} in {self._address}, got one of the "
                f"queue {queue!r} in {address}: give this query a checkpoint of its own. If it is the same store at "
                "another address, set the option storeMoved to true"
            )

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        if end["seq"] == start["seq"]:
            return []
        self._check_place(end)
        by_claim = self._batches_of(end).jobs_of(end)
        jobs = [job for some in by_claim.values() for job in some]
        claims = [key for key, some in by_claim.items() for _ in some]
        sizes = list(map(bytes_of, jobs))
        self._check_sizes(jobs, sizes)
        schema = arrow_schema(self._columns)
        return [
            InputPartition(_packed(to_batch(jobs[piece], schema, self._settings.queue, claims[piece])))
            for piece in partition_slices(sizes, self._settings.partition_jobs)
        ]

    def _check_sizes(self, jobs: list[StoredJob], sizes: list[int]) -> None:
        """Refuse a job that is larger than a batch: Java would run out of memory, and not say on which job."""
        largest = max(sizes, default=0)
        if largest > self._settings.batch_bytes:
            job = jobs[sizes.index(largest)]
            raise CallerError(
                f"a job must have at most {self._settings.batch_bytes} bytes, the limit of a batch, got {largest} in "
                f"the job {job.id} of {self._settings.queue}: give the option batchMegabytes more, and Spark's driver "
                "ten times as much memory, or let a worker take the job"
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from pa.ipc.open_stream(partition.value)

    def commit(self, end: Offset) -> None:
        """Do nothing: it comes too late to ack with (see above)."""

    def stop(self) -> None:
        for batches in (self._offset_batches, self._batches):
            if batches is not None:
                batches.close()


def _run_in(file: Path) -> str:
    """Return the run id in a file; makes the file if it is missing."""
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
