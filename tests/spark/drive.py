"""Drives a stream reader as Spark does, without Spark: the same calls in the same order, the same two logs.

A crash is an exception at a chosen point; the next `Query` on the same logs is the restart. The sink keeps one set of
rows for each batch id, as a sink does that is idempotent.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock.spark.settings import read_settings
from penstock.spark.streaming import QueueStream


class Crash(BaseException):
    """The driver died."""


class Logs:
    """What Spark keeps in its checkpoint, and what the sink has."""

    def __init__(self) -> None:
        self.offsets: list[str] = []  # as JSON, one for each batch that was planned
        self.commits = 0  # batches that are done
        self.sink: dict[int, list[dict[str, Any]]] = {}
        self.writes = 0

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for number in sorted(self.sink) for row in self.sink[number]]


# Where a query can die.
POINTS = ("planning", "claimed", "logged", "partitions", "read", "written", "committed")


class Query:
    """One run of a query, from a start to its end or its death."""

    def __init__(self, logs: Logs, options: dict[str, str], crash_at: Callable[[str, int], bool] | None = None) -> None:
        self.logs = logs
        self.settings = read_settings(options)
        self.reader = QueueStream(self.settings, ["id", "body", "tries"])
        self._initial: dict[str, Any] | None = None
        self._crash_at = crash_at or (lambda point, batch: False)

    def _point(self, name: str, batch: int) -> None:
        if self._crash_at(name, batch):
            raise Crash(f"{name} of batch {batch}")

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
            self._batch(self.logs.commits)
        for _ in range(batches_max):
            batch = self.logs.commits
            start = self._offset(batch - 1)
            self._point("planning", batch)
            limit = ReadMaxRows(self.settings.jobs_max)
            end = self.reader.latestOffset(start, limit)
            if json.dumps(end) == json.dumps(start):
                return
            self._point("claimed", batch)
            self.logs.offsets.append(json.dumps(end))
            self._point("logged", batch)
            self._batch(batch)

    def _batch(self, batch: int) -> None:
        start, end = self._offset(batch - 1), self._offset(batch)
        parts = self.reader.partitions(start, end)
        self._point("partitions", batch)
        # Workers get a pickled copy of the reader, and a task may run twice.
        worker = pickle.loads(pickle.dumps(self.reader))  # noqa: S301 - as Spark does it; no job in it
        rows = [row for part in parts for _ in range(2) for table in worker.read(part) for row in table.to_pylist()]
        self._point("read", batch)
        seen: dict[str, dict[str, Any]] = {row["id"]: row for row in rows}
        self.logs.sink[batch] = list(seen.values())
        self.logs.writes += 1
        self._point("written", batch)
        self.logs.commits += 1
        self._point("committed", batch)

    def stop(self) -> None:
        self.reader.stop()
