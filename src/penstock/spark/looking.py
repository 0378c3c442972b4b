"""A look at the jobs of a queue, as a table: nothing is taken, leased or changed.

One partition for each state. Jobs may come and go while it is read: it is no snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.job import JobState, StoredJob
from penstock.queues.blocking import connect
from penstock.queues.capabilities import Capability, require
from penstock.spark.columns import arrow_schema, to_batch
from penstock.spark.settings import Settings

PAGE = 5_000


class QueueLook(DataSourceReader):
    """The reader of one look."""

    def __init__(self, settings: Settings, columns: list[str]) -> None:
        self._settings = settings
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(state)) for state in self._settings.states]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self._columns)
        with connect(self._settings.url) as store:
            require(store.capabilities, Capability.PEEK, store.url)
            cursor: str | None = None
            while True:
                page = store.driver.peek(self._settings.queue, JobState(partition.value), PAGE, cursor)
                jobs: list[StoredJob] = page.jobs
                if jobs:
                    yield to_batch(jobs, schema, self._settings.queue)
                cursor = page.cursor
                if cursor is None:
                    return
