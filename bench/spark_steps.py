"""`format("penstock_steps")`: our source for Spark, which writes down how long each of its own steps takes.

Spark tells how long a batch was planned and how long it ran, but not which part of that is ours. The steps are done by
several processes, so each is a line of JSON, appended to the file that the environment names:

    ack     the store ends the claim of the batch before
    plan    the jobs become partitions
    read    a worker gets the next rows of its partition
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from penstock.spark.settings import read_settings
from penstock.spark.source import PenstockSource
from penstock.spark.streaming import QueueStream

FORMAT = "penstock_steps"
VARIABLE = "PENSTOCK_BENCH_STEPS"

Offset = dict[str, Any]


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """A block that is a step."""
    began_s, began_cpu_s = time.perf_counter(), time.thread_time()
    try:
        yield
    finally:
        spent = {"step": name, "s": time.perf_counter() - began_s, "cpu_s": time.thread_time() - began_cpu_s}
        with Path(os.environ[VARIABLE]).open("a") as file:
            file.write(json.dumps(spent) + "\n")


def stepping(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose calls are steps."""

    def run(*args: Any, **named: Any) -> Any:
        with step(name):
            return call(*args, **named)

    return run


class SteppedStream(QueueStream):
    """The reader of a query, with a clock."""

    _is_watched = False

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        if not self._is_watched:
            driver: Any = self.batches.queue.store._driver
            driver.ack_claim = stepping("ack", driver.ack_claim)
            self._is_watched = True
        return super().latestOffset(start, limit)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        with step("plan"):
            return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batches = iter(super().read(partition))
        while True:
            with step("read"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


class SteppedSource(PenstockSource):
    """Queues for Spark, with a clock."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return SteppedStream(read_settings(self.options), schema.names)
