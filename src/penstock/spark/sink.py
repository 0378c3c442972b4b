"""Rows become jobs.

    body        binary or text: stored as it is
    payload     text: JSON; where there is one it goes before the body on stores that keep payloads
    (neither)   the other columns of the row, as a JSON object; `values` says which types can be in it, and how
    queue, delay, ttl, retry, headers, unique
                optional, for a row of its own queue, times in seconds, a map of headers and a unique key

A task that Spark runs again adds no job twice where the store has unique keys: a job's key is that of the option
`uniqueColumn` or of the column `unique`, else it is made of the query, the batch, the partition and what is in the row.
So rows may come in another order, or some not at all: none is taken for another. What differs each time (a random
number, the present time) makes another row: such jobs need a key of their own. Keys are kept for a day. Where the store
has none, the log says so, and a repeated task adds its jobs again.

A row that comes in another partition has another key, and is added again. A batch of a stream that is run again has the
same partitions unless `partitionJobs` was changed meanwhile, or jobs are missing that others took when the lease was
over. The partition can't be left out of the key: two rows that are alike, in two partitions, would be one job, and to
lose one is worse. Whoever must be sure names a key, as `uniqueColumn=id` for rows that are the jobs of a stream.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, MapType, NullType, StructType

from penstock.codec import decode
from penstock.errors import CallerError, ConnectionLost, OutcomeUnknown, PartlyAdded
from penstock.queues.blocking import Queue, Store, connect
from penstock.queues.blocking.counting import Counting
from penstock.queues.capabilities import Capability
from penstock.queues.pushing import Push
from penstock.spark.outages import through_outages
from penstock.spark.settings import Settings
from penstock.spark.values import NUMBERS, TEXTS, Read, reader_of

UNIQUE_FOR_S = 24 * 3600.0
OPTION_COLUMNS = ("queue", "delay", "ttl", "retry", "headers", "unique")
PUSH_COLUMNS = ("delay", "ttl", "retry", "headers")
CONTENT_COLUMNS = ("body", "payload")
_SECONDS = ("a number, of seconds", (*NUMBERS, NullType))
# Column -> what it must be, in words and as types.
_TYPES: dict[str, tuple[str, tuple[type[DataType], ...]]] = {
    "queue": ("a text, the name of a queue", (*TEXTS, NullType)),
    "headers": ("a map of texts", (MapType, StructType, NullType)),
    "delay": _SECONDS,
    "ttl": _SECONDS,
    "retry": _SECONDS,
}
DIGEST_BYTES = 16  # as many as a UUID has: two rows are never alike by chance
# What may be sent again, as it was not done; with unique keys also what may have been.
SAFE = (ConnectionLost,)
SAFE_WITH_KEYS = (ConnectionLost, OutcomeUnknown, PartlyAdded)

log = logging.getLogger("penstock.spark")


@dataclass
class Added(WriterCommitMessage):
    """What a task has done."""

    jobs: int


class _Rows:
    """Turns rows into what a queue is given.

    A batch is read column by column: a dict for each row would cost more than all else.
    """

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self.settings = settings
        self.names = set(schema.names)
        self.content = next((name for name in CONTENT_COLUMNS if name in self.names), None)
        unique = settings.unique_column or ("unique" if "unique" in self.names else None)
        if unique is not None and unique not in self.names:
            raise CallerError(f"uniqueColumn={unique!r}: there is no such column; there are {', '.join(schema.names)}")
        self.unique = unique
        self.others = [name for name in schema.names if name not in OPTION_COLUMNS]
        self._readers = _readers(schema, self.others if self.content is None else [])

    @property
    def has_options(self) -> bool:
        """Whether there is more to say of a job than what it holds."""
        return self.unique is not None or not self.names.isdisjoint(PUSH_COLUMNS)

    def payloads(self, batch: pa.RecordBatch, keeps_payloads: bool) -> list[Any]:
        """What the job of each row holds."""
        if self.content is None:
            rows: list[Any] = batch.select(self.others).to_pylist()
            odd = [(name, self._values(batch, name)) for name in self.others if name in self._readers]
            for name, values in odd:
                for row, value in zip(rows, values, strict=True):
                    row[name] = value
            return rows
        if keeps_payloads:
            return self._kept(batch, self.content)
        column = batch.column(self.content)
        if column.null_count:
            raise self._is_null()
        return self._values(batch, self.content) if self.content in self._readers else bodies_of(column)

    def _kept(self, batch: pa.RecordBatch, content: str) -> list[Any]:
        """For a store that keeps payloads: the JSON of the column `payload`, or else the body as it is."""
        found = []
        for json_text, value in zip(self._values(batch, "payload"), self._values(batch, content), strict=True):
            if isinstance(json_text, str):
                found.append(decode(json_text.encode()))
            elif value is None:
                raise self._is_null()
            else:
                found.append(value)
        return found

    def _is_null(self) -> CallerError:
        return CallerError(f"the column {self.content} is null: a job needs a body")

    def _values(self, batch: pa.RecordBatch, name: str | None) -> list[Any]:
        """A column as JSON has it; of one that isn't there, as many times None."""
        if name is None or name not in self.names:
            return [None] * batch.num_rows
        values: list[Any] = batch.column(name).to_pylist()
        read = self._readers.get(name)
        return values if read is None else list(map(read, values))

    def pushes(self, batch: pa.RecordBatch, payloads: list[Any], keys: _Keys | None) -> list[Push]:
        """Jobs with their options; a key is for rows that have none of their own."""
        options = [self._values(batch, name) for name in (*PUSH_COLUMNS, self.unique, "queue")]
        pushes = []
        for payload, delay, ttl, retry, headers, own, queue in zip(payloads, *options, strict=True):
            unique = None if own is None else str(own)
            if unique is None and keys is not None:
                unique = keys.of(payload, delay, ttl, retry, headers, queue)
            pushes.append(
                Push(
                    payload,
                    delay=delay or 0,
                    ttl=ttl,
                    retry=retry,
                    headers=dict(headers) if headers else None,
                    unique=unique,
                    unique_for=UNIQUE_FOR_S if unique is not None else 0,
                )
            )
        return pushes

    def by_queue(self, batch: pa.RecordBatch, jobs: list[Any]) -> dict[str, list[Any]]:
        """Jobs by the queue that they go to."""
        if "queue" not in self.names:
            return {self.settings.queue: jobs}
        found: dict[str, list[Any]] = {}
        for name, job in zip(self._values(batch, "queue"), jobs, strict=True):
            found.setdefault(name or self.settings.queue, []).append(job)
        return found


def _readers(schema: StructType, others: list[str]) -> dict[str, Read]:
    """How values of columns are read that are not taken as they are. Types that can't be are refused."""
    found: dict[str, Read | None] = {}
    for field in schema.fields:
        name, kind = field.name, field.dataType
        if name in _TYPES and not isinstance(kind, _TYPES[name][1]):
            raise CallerError(f"the column {name} is of type {kind.simpleString()}, and must be {_TYPES[name][0]}")
        is_content = name in CONTENT_COLUMNS and not isinstance(kind, BinaryType)
        if name in others or name in PUSH_COLUMNS or is_content:
            found[name] = reader_of(kind, name)
    return {name: read for name, read in found.items() if read is not None}


class _Keys:
    """Unique keys for the rows of a task: a row has the same one whenever the task is run.

    Rows that are wholly alike are counted, so that as many jobs are made of them as there are.
    """

    def __init__(self, task: str) -> None:
        self._task = task
        self._seen: Counter[bytes] = Counter()

    def of(self, *row: Any) -> str:
        digest = blake2b(repr(row).encode(errors="backslashreplace"), digest_size=DIGEST_BYTES).digest()
        self._seen[digest] += 1
        return f"spark:{self._task}:{digest.hex()}:{self._seen[digest]}"


def bodies_of(column: pa.Array) -> list[Any]:
    """A column without nulls as bodies: texts as UTF-8, all at once. What is neither text nor bytes stays as it is."""
    if column.type not in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()):
        values: list[Any] = column.to_pylist()
        return values
    raw = column.cast(pa.binary())
    _, ends, data = raw.buffers()
    # Arrow would make an object of its own of each value first.
    bounds = memoryview(ends).cast("i")[raw.offset : raw.offset + len(raw) + 1].tolist()
    whole = b"" if data is None else data.to_pybytes()
    return [whole[begin:end] for begin, end in pairwise(bounds)]


class _Tally(Counting):
    """Counts jobs that are new, apart from those that found their unique key taken."""

    new = 0

    def count(self, queue: str, counter: str, much: int = 1) -> None:
        self.new += much if counter == "put" else 0
        super().count(queue, counter, much)


class _Writing:
    """What both writers do."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._rows = _Rows(settings, schema)

    def _write(self, batches: Iterator[pa.RecordBatch], task: str, is_patient: bool = False) -> Added:
        added = 0
        rows = self._rows
        store = connect(self._settings.url)
        store.counting = tally = _Tally(store.stats, store.driver.counts)
        if is_patient:
            through_outages(store.open)
        with store:
            has_keys = Capability.UNIQUE in store.capabilities
            if not has_keys:
                log.warning("%s has no unique keys: a task that runs again adds its jobs again", store.url)
            keys = _Keys(task) if has_keys else None
            queues: dict[str, Queue] = {}
            for batch in batches:
                jobs = rows.payloads(batch, store.driver.keeps_payloads)
                if has_keys or rows.has_options:
                    jobs = rows.pushes(batch, jobs, keys)
                for name, some in rows.by_queue(batch, jobs).items():
                    self._push(self._queue(store, queues, name), some, has_keys)
                added += len(jobs)
        # Without keys of their own all are added, be it when the task was run before.
        return Added(added if rows.unique is None else tally.new)

    @staticmethod
    def _push(queue: Queue, jobs: list[Any], has_keys: bool) -> None:
        """Push jobs a round trip at a time: what is sent again after an outage was not done, or has its keys."""
        size = queue.store.driver.batch_max
        for begin in range(0, len(jobs), size):
            through_outages(partial(queue.push_many, jobs[begin : begin + size]), SAFE_WITH_KEYS if has_keys else SAFE)

    @staticmethod
    def _queue(store: Store, queues: dict[str, Queue], name: str) -> Queue:
        if not name:
            raise CallerError("a row has no queue: give the option queue, or fill the column")
        if name not in queues:
            queues[name] = store.queue(name)
        return queues[name]


class QueueWriter(_Writing, DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, settings: Settings, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise CallerError("a queue can't be overwritten: use mode('append'), and penstock purge before if you must")
        super().__init__(settings, schema)
        self._write_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Added:
        task = TaskContext.get()
        assert task is not None
        return self._write(iterator, f"{self._write_id}:{task.partitionId()}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """The jobs are there already."""
        if self._settings.count_file is not None:
            added = sum(message.jobs for message in messages if isinstance(message, Added))
            Path(self._settings.count_file).write_text(str(added))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Jobs that were added stay: workers may have them already."""


class QueueStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Added:
        task = TaskContext.get()
        assert task is not None
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        return self._write(iterator, f"{query}:{batch}:{task.partitionId()}", is_patient=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """The jobs are there already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Jobs that were added stay: a batch that is run again, and cut as before, has the same keys."""
