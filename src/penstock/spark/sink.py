"""Rows become jobs.

    body        binary or text: stored as it is
    payload     text: JSON. If a row has both, stores that keep payloads use this one, and stores that keep bodies the
                body. If one of them is null, the other is used.
    (neither)   the other columns of the row, as a JSON object; `rows` has the types that it can have
    queue       the queue of the row, unless the option `queue` is given; with the option it is data

All other columns are data, whatever their names. The options `delayColumn`, `ttlColumn`, `retryColumn`, `headersColumn`
and `uniqueColumn` name columns that say how a job is added. Of these, only the unique key is part of the JSON object.

No job is added twice where the store has unique keys: not by a task that Spark runs again, nor by a batch of a stream
that is run again, whether by `writeStream` or by `write` within `foreachBatch`. A job's key is that of the
`uniqueColumn`, else it is made of

    the write      the query and the batch of a stream, with the option `writeName`; outside of streams, a random number
    the partition
    the row        its values, and a count of rows that are equal; or the `rowKeyColumn` alone

So rows may come in another order, or some may be missing. A value that differs each time (a random number, the current
time) makes another row: such jobs need a key of their own. Keys are kept until `uniqueFor` seconds after the end of
their job, a day by default. Where the store has no unique keys, the log says so, and jobs are added again.

A row that comes in another partition has another key, and is added again. A batch of a stream that is run again has the
same partitions, unless `partitionJobs` was changed meanwhile, or jobs are missing that other workers took after the
lease had ended. The partition can't be left out of the key: two equal rows in two partitions would become one job, and
losing one is worse. A key of their own, such as `uniqueColumn=id` for rows that are the jobs of a stream, avoids that.
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

from penstock import Capability, Push
from penstock.codec import decode
from penstock.errors import CallerError, ConnectionLost, OutcomeUnknown, PartlyAdded
from penstock.queues.blocking import Queue, connect
from penstock.queues.capabilities import require
from penstock.queues.push import NEEDS
from penstock.spark.errors import retry_while_unreachable, without_traceback
from penstock.spark.rows import NUMBERS, TEXTS, reader_of
from penstock.spark.settings import PUSH_OPTIONS, QuerySettings

CONTENT_COLUMNS = ("body", "payload")
_SECONDS = ("a number of seconds", (*NUMBERS, NullType))
# Option of a push -> what its column must be, in words and as types. A unique key can be of any type: its text counts.
_TYPES: dict[str, tuple[str, tuple[type[DataType], ...]]] = {
    "queue": ("a text with the name of a queue", (*TEXTS, NullType)),
    "headers": ("a map of texts", (MapType, StructType, NullType)),
    "delay": _SECONDS,
    "ttl": _SECONDS,
    "retry": _SECONDS,
}
DIGEST_BYTES = 16  # as in a UUID: two rows never get the same key by chance
# Errors after which jobs may be pushed again: they were not added; with unique keys also if they may have been.
SAFE = (ConnectionLost,)
SAFE_WITH_KEYS = (ConnectionLost, OutcomeUnknown, PartlyAdded)

log = logging.getLogger("penstock.spark")


@dataclass
class AddedJobs(WriterCommitMessage):
    """The number of jobs that a task has added."""

    jobs: int


class _RowReader:
    """Turns rows into payloads and pushes.

    A batch is read column by column: a dict for each row would cost more than everything else.
    """

    def __init__(self, settings: QuerySettings, schema: StructType) -> None:
        self.settings = settings
        self.names = set(schema.names)
        self.contents = [name for name in CONTENT_COLUMNS if name in self.names]
        self.options = dict(settings.push_columns)
        if not settings.queue and "queue" in self.names:
            self.options["queue"] = "queue"
        self._check_columns(schema)
        apart = {name for option, name in self.options.items() if option != "unique"} | {settings.row_key_column}
        self.others = [name for name in schema.names if name not in apart]
        used = [*self.options.values(), *(self.contents or self.others)]
        kinds = {field.name: field.dataType for field in schema.fields}
        readers = {name: reader_of(kinds[name], name) for name in used if not _is_bytes_of(name, kinds, self.contents)}
        self._readers = {name: read for name, read in readers.items() if read is not None}

    def _check_columns(self, schema: StructType) -> None:
        """Refuse options that name no column, or one of another type."""
        named = {f"{option}Column": name for option, name in self.settings.push_columns.items()}
        if self.settings.row_key_column is not None:
            named["rowKeyColumn"] = self.settings.row_key_column
        for option, name in named.items():
            if name not in self.names:
                raise CallerError(f"{option} must name a column of the rows ({', '.join(schema.names)}), got {name!r}")
        for option, name in self.options.items():
            kind = schema[name].dataType
            if option in _TYPES and not isinstance(kind, _TYPES[option][1]):
                raise CallerError(f"the column {name} must be {_TYPES[option][0]}, got the type {kind.simpleString()}")

    @property
    def has_options(self) -> bool:
        """Whether jobs have options beside their payload."""
        return any(option != "queue" for option in self.options)

    @property
    def has_own_keys(self) -> bool:
        """Whether an earlier write may have added a row."""
        return "unique" in self.options or self.settings.row_key_column is not None

    def payloads(self, batch: pa.RecordBatch, keeps_payloads: bool) -> list[Any]:
        """Return the payload of each row."""
        if not self.contents:
            rows: list[Any] = batch.select(self.others).to_pylist()
            odd = [(name, self._values(batch, name)) for name in self.others if name in self._readers]
            for name, values in odd:
                for row, value in zip(rows, values, strict=True):
                    row[name] = value
            return rows
        if keeps_payloads:
            return self._kept(batch)
        first, *rest = self.contents
        column = batch.column(first)
        if not column.null_count:
            return self._values(batch, first) if first in self._readers else bodies_of(column)
        found = self._values(batch, first)
        for name in rest:
            more = self._values(batch, name)
            found = [value if value is not None else other for value, other in zip(found, more, strict=True)]
        if None in found:
            raise self._is_null()
        return [value.encode() if isinstance(value, str) else value for value in found]

    def _kept(self, batch: pa.RecordBatch) -> list[Any]:
        """Return payloads for a store that keeps them: the JSON of the column `payload`, or else the body as it is."""
        found = []
        for payload, body in zip(self._values(batch, "payload"), self._values(batch, "body"), strict=True):
            if isinstance(payload, str):
                found.append(decode(payload.encode()))
            elif body is None and payload is None:
                raise self._is_null()
            else:
                found.append(payload if body is None else body)
        return found

    def _is_null(self) -> CallerError:
        return CallerError(f"a job must have a body, got a row with null in {' and '.join(self.contents)}")

    def _values(self, batch: pa.RecordBatch, name: str | None) -> list[Any]:
        """Return a column as JSON values; None for each row if there is no such column."""
        if name is None or name not in self.names:
            return [None] * batch.num_rows
        values: list[Any] = batch.column(name).to_pylist()
        read = self._readers.get(name)
        return values if read is None else list(map(read, values))

    def pushes(self, batch: pa.RecordBatch, payloads: list[Any], keys: _UniqueKeys | None) -> list[Push]:
        """Return jobs with their options; `keys` makes keys for rows that have none."""
        options = [self._values(batch, self.options.get(name)) for name in (*PUSH_OPTIONS, "queue")]
        row_keys = self._values(batch, self.settings.row_key_column)
        pushes = []
        for payload, delay, ttl, retry, headers, own, queue, row_key in zip(payloads, *options, row_keys, strict=True):
            unique = None if own is None else str(own)
            if unique is None and keys is not None:
                unique = row_key or keys.of(payload, delay, ttl, retry, headers, queue)
            pushes.append(
                Push(
                    payload,
                    delay=delay or 0,
                    ttl=ttl,
                    retry=retry,
                    headers=dict(headers) if headers else None,
                    unique=unique,
                    unique_for=self.settings.unique_for_s if unique is not None else 0,
                )
            )
        return pushes

    def by_queue(self, batch: pa.RecordBatch, jobs: list[Any]) -> dict[str, list[Any]]:
        """Return the jobs by their queue."""
        if "queue" not in self.options:
            return {self.settings.queue: jobs}
        found: dict[str, list[Any]] = {}
        for name, job in zip(self._values(batch, "queue"), jobs, strict=True):
            if not name:
                raise CallerError(
                    "the column queue must have a name in each row, got null or '': fill it, or set the option queue"
                )
            found.setdefault(name, []).append(job)
        return found


def _is_bytes_of(name: str, kinds: dict[str, DataType], contents: list[str]) -> bool:
    """Whether a column has bodies as bytes, which JSON can't have."""
    return name in contents and isinstance(kinds[name], BinaryType)


class _UniqueKeys:
    """Unique keys for the rows of a task: a row has the same key whenever the task is run.

    Equal rows are counted, so that each of them becomes a job. Stores keep a key for a day, so it is short.
    """

    def __init__(self, write: str, partition: int) -> None:
        self._task = blake2b(f"{write}:{partition}:".encode(), digest_size=DIGEST_BYTES)
        self._seen: Counter[bytes] = Counter()

    def of(self, *row: Any) -> str:
        hashed = self._task.copy()
        hashed.update(repr(row).encode(errors="backslashreplace"))
        digest = hashed.digest()
        self._seen[digest] += 1
        count = self._seen[digest]
        return f"spark:{digest.hex()}" if count == 1 else f"spark:{digest.hex()}:{count}"


def bodies_of(column: pa.Array) -> list[Any]:
    """Return a column without nulls as bodies: texts as UTF-8, converted at once. Other types stay as they are."""
    if column.type not in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()):
        values: list[Any] = column.to_pylist()
        return values
    raw = column.cast(pa.binary())
    _, ends, data = raw.buffers()
    # Arrow itself would first make an object of each value.
    bounds = memoryview(ends).cast("i")[raw.offset : raw.offset + len(raw) + 1].tolist()
    whole = b"" if data is None else data.to_pybytes()
    return [whole[begin:end] for begin, end in pairwise(bounds)]


class _NewJobCount:
    """Counts jobs that are new, apart from those that found their unique key taken."""

    new = 0

    def counted(self, queue: str, counter: str, by: int) -> None:
        self.new += by if counter == "put" else 0


class _JobWriter:
    """Adds the rows of a task to their queues."""

    def __init__(self, settings: QuerySettings, schema: StructType) -> None:
        self._settings = settings
        self._rows = _RowReader(settings, schema)
        having = connect(settings.url).capabilities
        for option in settings.push_columns:
            require(having, NEEDS[option], settings.shown)
        if Capability.UNIQUE not in having:
            log.warning(
                "%s has no unique keys: a task or a batch that is run again adds its jobs again", settings.shown
            )

    def write(self, batches: Iterator[pa.RecordBatch], write_id: str) -> AddedJobs:
        """Add jobs. Their keys are made of the batch of a stream, or of `write_id` outside of streams."""
        task = TaskContext.get()
        assert task is not None
        query = task.getLocalProperty("sql.streaming.queryId")
        batch_id = task.getLocalProperty("streaming.sql.batchId")
        is_stream = query is not None and batch_id is not None
        name = f":{self._settings.write_name}" if self._settings.write_name else ""
        keys = _UniqueKeys(f"{query}:{batch_id}{name}" if is_stream else write_id, task.partitionId())
        rows = self._rows
        added = 0
        store = connect(self._settings.url)
        count = _NewJobCount()
        store.observe(count.counted)
        if is_stream:
            retry_while_unreachable(store.open)
        with store:
            has_keys = Capability.UNIQUE in store.capabilities
            queues: dict[str, Queue] = {}
            for batch in batches:
                jobs = rows.payloads(batch, store.keeps_payloads)
                if has_keys or rows.has_options:
                    jobs = rows.pushes(batch, jobs, keys if has_keys else None)
                for to, some in rows.by_queue(batch, jobs).items():
                    if to not in queues:
                        queues[to] = store.queue(to)
                    _push(queues[to], some, has_keys)
                added += len(jobs)
        # A row whose key was made here counts as added, even if the task was run before.
        return AddedJobs(count.new if rows.has_own_keys else added)


def _push(queue: Queue, jobs: list[Any], has_keys: bool) -> None:
    """Push jobs, one round trip at a time: jobs that are sent again after an outage were not added, or have keys."""
    size = queue.store.batch_max
    for begin in range(0, len(jobs), size):
        retry_while_unreachable(
            partial(queue.push_many, jobs[begin : begin + size]), SAFE_WITH_KEYS if has_keys else SAFE
        )


@without_traceback
class QueueWriter(DataSourceArrowWriter):
    """`df.write`, also within `foreachBatch`."""

    def __init__(self, settings: QuerySettings, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise CallerError("mode must be 'append', got 'overwrite': `penstock purge` empties a queue")
        self._jobs = _JobWriter(settings, schema)
        self._count_file = settings.count_file
        self._write_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> AddedJobs:
        return self._jobs.write(iterator, self._write_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write the count; the jobs were added by the tasks."""
        if self._count_file is not None:
            added = sum(message.jobs for message in messages if isinstance(message, AddedJobs))
            Path(self._count_file).write_text(str(added))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: jobs that were added stay, as workers may have them already."""


@without_traceback
class QueueStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def __init__(self, settings: QuerySettings, schema: StructType) -> None:
        self._jobs = _JobWriter(settings, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> AddedJobs:
        return self._jobs.write(iterator, "")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: the jobs were added by the tasks."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: jobs that were added stay. The batch has the same keys if it is run again."""
