"""Drives a stream reader and a sink as Spark does, without Spark: the same calls in the same order, the same two logs.

A fault strikes at a chosen point. `Crash` is the death of the driver: the next `Query` on the same logs is the restart.
`WorkerDied` ends a task, which is run again, as Spark does. The output keeps one set of rows for each batch id, which a
batch that is run again replaces, as a sink does that is idempotent; besides, the rows can go to another queue by
Penstock's own sink.

    planning                   before latestOffset
      acking, acked            the batch before is acked in the store; done, but the answer is not heard
      claiming, taken          the same of the claim
    claimed, logged            latestOffset has answered; its answer is in the offset log
    partitions                 the jobs were handed out
      half read, half written  within a task, before and after half of its rows were put out
    written, committed         all is put out; it is in the commit log
"""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.errors import OutcomeUnknown
from penstock.spark.settings import read_settings
from penstock.spark.sink import QueueStreamWriter
from penstock.spark.streaming import QueueStream

TASK_TRIES = 4  # Spark's own limit

# Where a query can die, as seen from outside of the reader.
POINTS = ("planning", "claimed", "logged", "partitions", "half read", "half written", "written", "committed")
# Calls of the store within latestOffset, and the points before and after each.
CALLS = {"ack_claim": ("acking", "acked"), "claim": ("claiming", "taken")}


class Crash(BaseException):
    """The driver died."""


class WorkerDied(Exception):
    """The process of a task died."""


class Logs:
    """What Spark keeps in its checkpoint, and what was put out."""

    def __init__(self) -> None:
        self.query = uuid.uuid4().hex
        self.offsets: list[str] = []  # as JSON, one for each batch that was planned
        self.commits = 0  # batches that are done
        self.sink: dict[int, list[dict[str, Any]]] = {}

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for number in sorted(self.sink) for row in self.sink[number]]


@contextmanager
def task_of(query: str | None, batch: int, partition: int) -> Iterator[None]:
    """As in a worker: there is a task, of a batch of a query if there is one."""
    properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)} if query is not None else {}
    TaskContext._setTaskContext(None)
    TaskContext(partitionId=partition, localProperties=properties)
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)  # Spark refuses to start a session where there is one


class Query:
    """One run of a query, from a start to its end or its death. `strike` hears of each point, and may bring it."""

    def __init__(
        self,
        logs: Logs,
        options: dict[str, str],
        strike: Callable[[str, int], object] | None = None,
        copies: str | None = None,
    ) -> None:
        self.logs = logs
        self.settings = read_settings(options)
        self.reader = QueueStream(self.settings, ["id", "body", "tries"])
        self.batch = 0  # that is being planned or run
        self._initial: dict[str, Any] | None = None
        self._strike = strike or (lambda point, batch: False)
        self._writer: QueueStreamWriter | None = None
        if copies is not None:
            there = read_settings({"url": options["url"], "queue": copies})
            self._writer = QueueStreamWriter(there, StructType([StructField("body", BinaryType())]))

    def _point(self, name: str) -> None:
        if self._strike(name, self.batch):
            raise Crash(f"{name} of batch {self.batch}")

    def tap(self, driver: Any) -> None:
        """Strike also before and after calls of the store."""
        for name, points in CALLS.items():
            setattr(driver, name, self._tapped(getattr(driver, name), *points))

    def _tapped(self, call: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
        def tapped(*args: Any) -> Any:
            self._point(before)
            answer = call(*args)
            self._point(after)
            return answer

        return tapped

    def _offset(self, batch: int) -> dict[str, Any]:
        """The end of a batch; -1 is the beginning."""
        if batch >= 0:
            return json.loads(self.logs.offsets[batch])  # type: ignore[no-any-return] # the offset is a dict, as it was written
        # Where a stream begins is not logged: it is asked for again after a restart.
        if self._initial is None:
            self._initial = self.reader.initialOffset()
        return self._initial

    def run(self, available_now: bool = True, batches_max: int = 1000) -> None:
        """Until the queue is empty."""
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        if len(self.logs.offsets) > self.logs.commits:
            self._run_batch(self.logs.commits)
        for _ in range(batches_max):
            self.batch = self.logs.commits
            start = self._offset(self.batch - 1)
            self._point("planning")
            end = self.reader.latestOffset(start, ReadMaxRows(self.settings.jobs_max))
            if json.dumps(end) == json.dumps(start):
                return
            self._point("claimed")
            self.logs.offsets.append(json.dumps(end))
            self._point("logged")
            self._run_batch(self.batch)

    def _run_batch(self, batch: int) -> None:
        self.batch = batch
        parts = self.reader.partitions(self._offset(batch - 1), self._offset(batch))
        self._point("partitions")
        self.logs.sink[batch] = []
        for number, part in enumerate(parts):
            self.logs.sink[batch] += self._run_task(number, part)
        self._point("written")
        self.logs.commits += 1
        self._point("committed")

    def _run_task(self, number: int, part: InputPartition) -> list[dict[str, Any]]:
        """The rows of a partition, put out; once more while its worker dies, or fails."""
        for _ in range(TASK_TRIES):
            rows: list[dict[str, Any]] = []
            halves = self._halves(part, rows)
            try:
                with task_of(self.logs.query, self.batch, number):
                    if self._writer is not None:
                        self._writer.write(halves)
                    list(halves)
            except (WorkerDied, OutcomeUnknown):
                continue  # a sink without unique keys leaves it to Spark, which runs a task again that failed
            return rows
        raise AssertionError("a task failed too often")

    def _halves(self, part: InputPartition, rows: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
        """The bodies of a partition in two pieces; all columns are noted in `rows`."""
        worker = pickle.loads(pickle.dumps(self.reader))  # noqa: S301 - as Spark does it; no job in it
        for table in worker.read(part):
            middle = table.num_rows // 2
            for piece, point in ((table.slice(0, middle), "half read"), (table.slice(middle), "half written")):
                self._point(point)
                rows += piece.to_pylist()
                yield piece.select(["body"])

    def stop(self) -> None:
        self.reader.stop()


def run_and_stop(query: Query, **how: Any) -> None:
    """One run of a query, and its end: nothing of it goes on."""
    try:
        query.run(**how)
    finally:
        query.stop()
