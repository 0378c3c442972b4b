"""Rows become jobs.

    body        binary or text: stored as it is
    payload     text: JSON; where both are given, it goes before the body on stores that keep payloads, and after it on
                those that keep bodies. A null in the one leaves the row to the other.
    (neither)   the other columns of the row, as a JSON object; `values` says which types can be in it, and how
    queue       the queue of the row, where the option `queue` is not given; with the option it is data

All other columns are data, whatever their names. The options `delayColumn`, `ttlColumn`, `retryColumn`, `headersColumn`
and `uniqueColumn` name columns that say how a job is added. Of these only the unique key is part of the JSON object.

Nothing is added twice where the store has unique keys: not by a task that Spark runs again, nor by a batch of a stream
that is run again, whether by `writeStream` or by `write` within `foreachBatch`. A job's key is that of the
`uniqueColumn`, else it is made of

    the write      the query and the batch of a stream, with the option `writeName`; outside of streams, a random number
    the partition
    the row        what is in it, and a count of rows that are wholly alike; or the `rowKeyColumn`, alone

So rows may come in another order, or some not at all: none is taken for another. What differs each time (a random
number, the present time) makes another row: such jobs need a key of their own. Keys are kept until `uniqueFor` seconds
after the end of their job, a day by default. Where the store has no keys, the log says so, and jobs are added again.

A row that comes in another partition has another key, and is added again. A batch of a stream that is run again has the
same partitions unless `partitionJobs` was changed meanwhile, or jobs are missing that others took when the lease was
over. The partition can't be left out of the key: two rows that are alike, in two partitions, would be one job, and to
lose one is worse. A key of their own, as `uniqueColumn=id` for rows that are the jobs of a stream, is safe from that.
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
from penstock.queues.blocking import Queue, connect
from penstock.queues.capabilities import Capability, require
from penstock.queues.push import NEEDS, Push
from penstock.spark.outages import through_outages
from penstock.spark.refusals import without_traceback
from penstock.spark.settings import PUSH_OPTIONS, Settings
from penstock.spark.values import NUMBERS, TEXTS, reader_of

CONTENT_COLUMNS = ("body", "payload")
_SECONDS = ("a number, of seconds", (*NUMBERS, NullType))
# Option of a push -> what its column must be, in words and as types. A unique key can be anything: its text counts.
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
        """Whether there is more to say of a job than what it holds."""
        return any(option != "queue" for option in self.options)

    @property
    def has_own_keys(self) -> bool:
        """Whether a row may find that it was added by an earlier write."""
        return "unique" in self.options or self.settings.row_key_column is not None

    def payloads(self, batch: pa.RecordBatch, keeps_payloads: bool) -> list[Any]:
        """What the job of each row holds."""
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
        """For a store that keeps payloads: the JSON of the column `payload`, or else the body as it is."""
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
        return CallerError(f"a job needs a body, got a row with null in {' and '.join(self.contents)}")

    def _values(self, batch: pa.RecordBatch, name: str | None) -> list[Any]:
        """A column as JSON has it; of one that isn't there, as many times None."""
        if name is None or name not in self.names:
            return [None] * batch.num_rows
        values: list[Any] = batch.column(name).to_pylist()
        read = self._readers.get(name)
        return values if read is None else list(map(read, values))

    def pushes(self, batch: pa.RecordBatch, payloads: list[Any], keys: _Keys | None) -> list[Push]:
        """Jobs with their options; a key is for rows that have none of their own."""
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
        """Jobs by the queue that they go to."""
        if "queue" not in self.options:
            return {self.settings.queue: jobs}
        found: dict[str, list[Any]] = {}
        for name, job in zip(self._values(batch, "queue"), jobs, strict=True):
            if not name:
                raise CallerError("the column queue is null or empty in a row: fill it, or give the option queue")
            found.setdefault(name, []).append(job)
        return found


def _is_bytes_of(name: str, kinds: dict[str, DataType], contents: list[str]) -> bool:
    """Whether a column holds bodies as bytes, for which JSON has no form."""
    return name in contents and isinstance(kinds[name], BinaryType)


class _Keys:
    """Unique keys for the rows of a task: a row has the same one whenever the task is run.

    Rows that are wholly alike are counted, so that as many jobs are made of them as there are. Stores keep a key for a
    day, so it is short.
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


class _NewJobs:
    """Counts jobs that are new, apart from those that found their unique key taken."""

    number = 0

    def counted(self, queue: str, counter: str, by: int) -> None:
        self.number += by if counter == "put" else 0


class _JobWriter:
    """Adds the rows of a task to their queues."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._rows = _Rows(settings, schema)
        having = connect(settings.url).capabilities
        for option in settings.push_columns:
            require(having, NEEDS[option], settings.shown)
        if Capability.UNIQUE not in having:
            log.warning("%s has no unique keys: a task or a batch that runs again adds its jobs again", settings.shown)

    def write(self, batches: Iterator[pa.RecordBatch], otherwise: str) -> Added:
        """Add jobs. What tells this write from others is the batch of a stream, and `otherwise` outside of streams."""
        task = TaskContext.get()
        assert task is not None
        query = task.getLocalProperty("sql.streaming.queryId")
        batch_id = task.getLocalProperty("streaming.sql.batchId")
        is_stream = query is not None and batch_id is not None
        name = f":{self._settings.write_name}" if self._settings.write_name else ""
        keys = _Keys(f"{query}:{batch_id}{name}" if is_stream else otherwise, task.partitionId())
        rows = self._rows
        added = 0
        store = connect(self._settings.url)
        new_jobs = _NewJobs()
        store.observe(new_jobs.counted)
        if is_stream:
            through_outages(store.open)
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
        # A row whose key was made here is new, also if the task was run before.
        return Added(new_jobs.number if rows.has_own_keys else added)


def _push(queue: Queue, jobs: list[Any], has_keys: bool) -> None:
    """Push jobs a round trip at a time: what is sent again after an outage was not done, or has its keys."""
    size = queue.store.batch_max
    for begin in range(0, len(jobs), size):
        through_outages(partial(queue.push_many, jobs[begin : begin + size]), SAFE_WITH_KEYS if has_keys else SAFE)


@without_traceback
class QueueWriter(DataSourceArrowWriter):
    """`df.write`, also within `foreachBatch`."""

    def __init__(self, settings: Settings, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise CallerError("a queue can't be overwritten: use mode('append'), and penstock purge before if you must")
        self._jobs = _JobWriter(settings, schema)
        self._count_file = settings.count_file
        self._write_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Added:
        return self._jobs.write(iterator, self._write_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """The jobs are there already."""
        if self._count_file is not None:
            added = sum(message.jobs for message in messages if isinstance(message, Added))
            Path(self._count_file).write_text(str(added))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Jobs that were added stay: workers may have them already."""


@without_traceback
class QueueStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._jobs = _JobWriter(settings, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Added:
        return self._jobs.write(iterator, "")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """The jobs are there already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Jobs that were added stay: a batch that is run again, and cut as before, has the same keys."""
