"""Rows become jobs.

    body        binary or text: stored as it is
    payload     text: JSON; where there is one it goes before the body on stores that keep payloads
    (neither)   the other columns of the row, as a JSON object
    queue, delay, ttl, retry, headers, unique
                optional, for a row of its own queue, times in seconds, a map of headers and a unique key

A task that Spark runs again adds no job twice where the store has unique keys: a job's key is that of the option
`uniqueColumn` or of the column `unique`, else it is made of the query, the batch, the partition and the row's number,
which is right as long as the rows of a partition come in the same order again. Keys are kept for a day. Where the store
has none, the log says so, and a repeated task adds its jobs again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.codec import decode
from penstock.errors import CallerError
from penstock.queues.blocking import Queue, Store, connect
from penstock.queues.capabilities import Capability
from penstock.queues.pushing import Push
from penstock.spark.settings import Settings

UNIQUE_FOR_S = 24 * 3600.0
OPTION_COLUMNS = ("queue", "delay", "ttl", "retry", "headers", "unique")
CONTENT_COLUMNS = ("body", "payload")

log = logging.getLogger("penstock.spark")


@dataclass
class Added(WriterCommitMessage):
    """What a task has done."""

    jobs: int


class _Rows:
    """Turns rows into pushes."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self.settings = settings
        names = set(schema.names)
        self.content = next((name for name in CONTENT_COLUMNS if name in names), None)
        unique = settings.unique_column or ("unique" if "unique" in names else None)
        if unique is not None and unique not in names:
            raise CallerError(f"uniqueColumn={unique!r}: there is no such column; there are {', '.join(schema.names)}")
        self.unique = unique
        self.others = [name for name in schema.names if name not in OPTION_COLUMNS]

    def payload(self, row: dict[str, Any], keeps_payloads: bool) -> Any:
        if self.content is None:
            return {name: row[name] for name in self.others}
        json_text = row.get("payload")
        if isinstance(json_text, str) and (keeps_payloads or self.content == "payload"):
            return decode(json_text.encode()) if keeps_payloads else json_text.encode()
        value = row[self.content]
        if value is None:
            raise CallerError(f"the column {self.content} is null: a job needs a body")
        return value.encode() if isinstance(value, str) and not keeps_payloads else value

    def push(self, row: dict[str, Any], key: str | None, keeps_payloads: bool) -> Push:
        own = row.get(self.unique) if self.unique is not None else None
        name = key if own is None else str(own)
        headers = row.get("headers")
        return Push(
            self.payload(row, keeps_payloads),
            delay=row.get("delay") or 0,
            ttl=row.get("ttl"),
            retry=row.get("retry"),
            headers=dict(headers) if headers else None,
            unique=name,
            unique_for=UNIQUE_FOR_S if name is not None else 0,
        )


class _Writing:
    """What both writers do."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._rows = _Rows(settings, schema)

    def _write(self, batches: Iterator[pa.RecordBatch], task: str) -> Added:
        added = 0
        with connect(self._settings.url) as store:
            has_keys = Capability.UNIQUE in store.capabilities
            if not has_keys:
                log.warning("%s has no unique keys: a task that runs again adds its jobs again", store.url)
            queues: dict[str, Queue] = {}
            number = 0
            for batch in batches:
                pushes: dict[str, list[Push]] = {}
                for row in batch.to_pylist():
                    key = f"spark:{task}:{number}" if has_keys else None
                    name = row.get("queue") or self._settings.queue
                    pushes.setdefault(name, []).append(self._rows.push(row, key, store.driver.keeps_payloads))
                    number += 1
                for name, some in pushes.items():
                    self._queue(store, queues, name).push_many(some)
                    added += len(some)
        return Added(added)

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

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Jobs that were added stay: workers may have them already."""


class QueueStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Added:
        task = TaskContext.get()
        assert task is not None
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        return self._write(iterator, f"{query}:{batch}:{task.partitionId()}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """The jobs are there already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Jobs that were added stay: the batch that is run again adds them under the same keys."""
