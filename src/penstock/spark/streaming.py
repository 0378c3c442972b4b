"""A queue as a stream: each micro-batch is a claim.

Spark's offset is a run id and a number; together they are the key of a claim in the store (`claims`). It also names the
queue and the store, so that a checkpoint is never used for others.

    latestOffset(start)   acks the claim of `start`, which Spark has logged as done, and makes the next one
    partitions(start, end)
                          cuts the jobs of a claim into partitions; after a crash the same key returns the same jobs
    read(partition)       the jobs come with the partition, as Arrow, or are read from the store by the key of their
                          claim (option `fetch`); reading twice is harmless
    reportLatestOffset()  is what the query's progress shows: the backlog, and the number of lost leases

`commit` comes a batch late, and for the last batch of a run not at all, so nothing is acked there. A query that ends
without another `latestOffset` (`once`, `stop`) leaves its last batch to `listener`, or to the next start. A claim that
was made right before a crash, and never logged, is found again under its key. While a batch runs its leases are
extended (`lease_keeper`); when the process has died they end by themselves.

While a batch runs, a thread does what the next `latestOffset` would do (`ahead`): it acks the batch before, and claims
the next one, if there are jobs for a full batch, and the store claims in one step. Spark asks for the partitions of a
batch only after it has logged the one before as done; so whoever asks for them, also after a restart, may ack that one.

Delivery is at least once, and exactly once into a sink that is idempotent by batch id. After a replay, jobs that other
workers have finished meanwhile (the query was down for longer than its lease) are missing; no others replace them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.errors import CallerError, PenstockError
from penstock.job import StoredJob
from penstock.queues.blocking import Store, connect
from penstock.queues.options import StoreURL, parse
from penstock.spark.background import BackgroundWork
from penstock.spark.batch_size import bytes_of, partition_slices
from penstock.spark.claims import (
    BEFORE,
    HELD,
    STEPS,
    ClaimedBatches,
    Offset,
    OffsetBatches,
    open_batches,
    read_claim,
)
from penstock.spark.errors import retry_while_unreachable, without_traceback
from penstock.spark.rows import arrow_schema, to_batch
from penstock.spark.settings import FILES, QuerySettings

log = logging.getLogger("penstock.spark")

_SCHEMES = {"rediss": "redis", "disques": "disque", "postgresql": "postgres"}  # two names of one store
# Options of a URL that say where the store is: a socket, a master of Sentinel, and what PostgreSQL's libpq knows.
PLACE_OPTIONS = ("unix", "master", "host", "hostaddr", "port", "dbname", "service")
_stores: dict[str, Store] = {}  # of this process, in which tasks follow one another: by URL


class NextBatch(NamedTuple):
    """A batch that was claimed while the one before it ran."""

    start: Offset
    end: Offset
    partitions: list[InputPartition]


class ClaimsToRead(NamedTuple):
    """A partition whose jobs its task reads, by the keys of their claims."""

    keys: list[str]


def store_address(url: str) -> str:
    """Return what identifies a store: its URL without user and password, with the whole path."""
    address = parse(url, {})[0]
    if address.scheme in FILES:
        return connect(url).place
    scheme = address.scheme.partition("+")[0]
    options = {name: address.rest[name] for name in PLACE_OPTIONS if name in address.rest}
    place = f"{_SCHEMES.get(scheme, scheme)}://{address.netloc.rpartition('@')[2]}{address.path}"
    return f"{place}?{urlencode(options)}" if options else place


def is_same_store(one: str, other: str) -> bool:
    """Whether two addresses may be of one store. A broker cluster can be reached by any of its nodes."""
    if one == other:
        return True
    (first, _, _), (second, _, _) = parse(one, {}), parse(other, {})
    if (first.scheme, _database(first), first.rest) != (second.scheme, _database(second), second.rest):
        return False
    return first.scheme == "disque" or any(
        host == other_host and (port == other_port or None in (port, other_port))
        for host, port in first.places
        for other_host, other_port in second.places
    )


def _database(address: StoreURL) -> str:
    database = address.path.strip("/")
    return database or "0" if address.scheme == "redis" else database


@without_traceback
class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one query. It is made in several processes: connections are opened when they are needed."""

    def __init__(self, settings: QuerySettings, columns: list[str]) -> None:
        self._settings = settings
        self._columns = columns
        self._address = store_address(settings.url)
        self._last: Offset = {}  # that was returned
        self._next_batch: NextBatch | None = None  # that was returned, and whose partitions were not asked for yet
        self._unacked: Offset | None = None  # done, and to be acked ahead
        self._background: BackgroundWork[NextBatch | None] = BackgroundWork()
        self._limit = settings.jobs_max
        self._budget: int | None = None
        self._batches: ClaimedBatches | OffsetBatches | None = None
        self._offset_batches: OffsetBatches | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return a copy without connections, for workers."""
        return {**self.__dict__, "_batches": None, "_offset_batches": None, "_next_batch": None, "_background": None}

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
        self._limit = limit.max_rows if isinstance(limit, ReadMaxRows) else self._settings.jobs_max
        self._next_batch = self._claimed_ahead(start)
        if self._next_batch is not None:
            self._last = self._next_batch.end
        else:
            self.batches.check_owner(start)
            self._ack_unacked()
            self._batches_of(start).finish(start)
            self._last = self._next(start)
        return self._last

    def _claimed_ahead(self, start: Offset) -> NextBatch | None:
        """Return the batch after `start`, if it was claimed already."""
        try:
            batch = self._background.take()
        except PenstockError as problem:  # the same calls are made again now, and fail if they must
            log.debug("the next batch of %s could not be claimed ahead: %s", self._settings.queue, problem)
            return None
        return batch if batch is not None and batch.start == start else None

    def _work_ahead(self, start: Offset, end: Offset) -> NextBatch | None:
        """While the batch from `start` to `end` runs: ack the one before it, and claim the next one if it is full."""
        self._ack_unacked()
        batches = self.batches
        if batches.store.claims_in_steps:
            return None  # a claim that fails halfway keeps its jobs: it is made when nothing else goes on
        batches.check_owner(end)
        following = {**self._following(end), BEFORE: end.get(STEPS, 1)}
        if not batches.recover(following) and not self._claim_full(following):
            return None
        return NextBatch(end, following, self._partitions_of(following))

    def _claim_full(self, end: Offset) -> bool:
        """Whether a batch was claimed: not if there are too few jobs for a full one, as more may come."""
        wanted = self._limit if self._budget is None else min(self._limit, self._budget)
        if not wanted or self.batches.backlog.poll() < wanted:
            return False
        return bool(self._claim(end, wanted))

    def _ack_unacked(self) -> None:
        if self._unacked is not None:
            self.batches.finish(self._unacked)
            self._unacked = None

    def _following(self, start: Offset) -> Offset:
        """Return the end of the batch that begins at an offset."""
        return {
            "run": start["run"],
            "seq": start["seq"] + 1,
            "queue": self._settings.queue,
            "store": self._address,
        }

    def _next(self, start: Offset) -> Offset:
        """Return the end of the next batch; its start if there is no job yet."""
        batches = self.batches
        wanted = self._limit if self._budget is None else min(self._limit, self._budget)
        end = self._following(start)
        if batches.recover(end):
            return end
        if self._budget is None and not batches.backlog.wait(self._settings.wait_s):
            return start
        return end if self._claim(end, wanted) else start

    def _claim(self, end: Offset, wanted: int) -> int:
        count = self.batches.begin(end, wanted)
        self.batches.backlog.took(count)
        if self._budget is not None:
            self._budget = max(0, self._budget - count)
        return count

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """Return what the progress of a query shows as its latest offset; Spark uses it for nothing else."""
        batches = self.batches
        return {
            "run": self._last.get("run", ""),
            "seq": self._last.get("seq", 0),
            "backlog": batches.backlog.count(may_poll=not self._background.is_busy),
            "leases_lost": batches.leases_lost,
        }

    def _check_place(self, offset: Offset) -> None:
        """Refuse a checkpoint of another queue or store. Offsets of old checkpoints don't name them."""
        queue, address = offset.get("queue", self._settings.queue), offset.get("store", self._address)
        is_same = self._settings.has_moved or is_same_store(address, self._address)
        if queue != self._settings.queue or not is_same:
            raise CallerError(
                f"the checkpoint must be of the queue {self._settings.queue!r} in {self._address}, got one of the "
                f"queue {queue!r} in {address}: use another checkpoint for this query. If it is the same store at "
                "another address, set the option storeMoved to true"
            )

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        if end["seq"] == start["seq"]:
            return []
        self._check_place(end)
        batch, self._next_batch = self._next_batch, None
        parts = batch.partitions if batch is not None and batch.end == end else self._partitions_of(end)
        if not isinstance(self.batches, OffsetBatches) and not any(HELD in offset for offset in (start, end)):
            if start["seq"]:
                self._unacked = start
            self._background.start(lambda: self._work_ahead(start, end))
        return parts

    def _partitions_of(self, end: Offset) -> list[InputPartition]:
        batches = self._batches_of(end)
        unread = batches.unread(end)
        if unread is not None:
            return [InputPartition(ClaimsToRead(keys)) for keys in unread]
        by_claim = batches.jobs_of(end)
        jobs = [job for some in by_claim.values() for job in some]
        claims = [key for key, some in by_claim.items() for _ in some]
        self._check_sizes(jobs, list(map(bytes_of, jobs)))
        return [InputPartition(_packed(batch)) for batch in self._arrow_batches(jobs, claims)]

    def _arrow_batches(self, jobs: Sequence[StoredJob], claims: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self._columns)
        for piece in partition_slices(list(map(bytes_of, jobs)), self._settings.partition_jobs):
            yield to_batch(jobs[piece], schema, self._settings.queue, claims[piece])

    def _check_sizes(self, jobs: list[StoredJob], sizes: list[int]) -> None:
        """Refuse a job that is larger than a batch: Java would run out of memory, and not say on which job."""
        largest = max(sizes, default=0)
        if largest > self._settings.batch_bytes:
            job = jobs[sizes.index(largest)]
            raise CallerError(
                f"a job must have at most {self._settings.batch_bytes} bytes, the limit of a batch, got {largest} in "
                f"the job {job.id} of {self._settings.queue}: raise the option batchMegabytes, and Spark's driver "
                "ten times as much memory, or let a worker take the job"
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition.value, ClaimsToRead):
            yield from pa.ipc.open_stream(partition.value)
            return
        queue = _store_of_process(self._settings).queue(self._settings.queue)
        for key in partition.value.keys:
            # With 0, the claim gets no other jobs for those that are gone.
            jobs = read_claim(queue, key, 0, self._settings)
            yield from self._arrow_batches(jobs, [key] * len(jobs))

    def commit(self, end: Offset) -> None:
        """Do nothing: it comes too late to ack with (see above)."""

    def stop(self) -> None:
        with suppress(PenstockError):
            self._background.take()
        for batches in (self._offset_batches, self._batches):
            if batches is not None:
                batches.close()


def _store_of_process(settings: QuerySettings) -> Store:
    """Return a store that stays open for the next tasks of this process."""
    store = _stores.get(settings.url)
    if store is None:
        store = _stores[settings.url] = connect(settings.url, lease=settings.lease_s)
    retry_while_unreachable(store.open)
    return store


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
