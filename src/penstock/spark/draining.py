"""A queue into Parquet files and back, for people who want no code.

A drain is a streaming query whose batches are written by `foreachBatch`, each into a folder of its own that is replaced
as a whole: a batch that is run again after a crash writes the same folder again, so each job is there once. The files
are plain Parquet that any reader can open:

    DIR/batch=0/part-…parquet      the jobs of the first batch
    DIR/_penstock/checkpoint/      Spark's log of the query: where a drain that was killed goes on
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import CallerError
from penstock.spark.settings import JOBS_PER_TRIGGER

Progress = Callable[[int], None]


def parquet_directory(place: str) -> str:
    """The directory that `parquet:DIR` names."""
    kind, colon, directory = place.partition(":")
    if kind != "parquet" or not colon or not directory:
        raise CallerError(f"{place!r} is no place for jobs: write parquet:DIRECTORY")
    return directory


def start_drain(
    spark: SparkSession,
    url: str,
    queue: str,
    directory: str,
    *,
    follow: bool = False,
    jobs_max: int = JOBS_PER_TRIGGER,
    lease: float = 60.0,
    moved: Progress = lambda count: None,
) -> StreamingQuery:
    """Start moving the jobs of a queue into Parquet; ends when the queue is empty, or never with `follow`."""
    jobs = (
        spark.readStream.format("penstock")
        .option("url", url)
        .option("queue", queue)
        .option("maxJobsPerTrigger", jobs_max)
        .option("lease", lease)
        .load()
        .drop("claim", "state", "mature")
    )

    def write(batch: DataFrame, number: int) -> None:
        counted = _Counted()
        batch.observe(counted.observation, counted.rows).write.mode("overwrite").parquet(f"{directory}/batch={number}")
        moved(counted.count())

    writer = jobs.writeStream.foreachBatch(write).option("checkpointLocation", f"{directory}/_penstock/checkpoint")
    return writer.start() if follow else writer.trigger(availableNow=True).start()


class _Counted:
    """Counts the rows of a batch while they are written, without reading them twice."""

    def __init__(self) -> None:
        self.observation = Observation()
        self.rows = f.count(f.lit(1)).alias("rows")

    def count(self) -> int:
        return int(self.observation.get["rows"])


def fill(spark: SparkSession, url: str, queue: str, directory: str) -> int:
    """Add a job for each row of Parquet files; gives how many. What a drain wrote becomes the jobs that it was."""
    rows = spark.read.parquet(directory)
    kept = [name for name in rows.columns if name in {"body", "payload", "headers", "delay", "ttl", "retry", "unique"}]
    if not {"body", "payload"} & set(kept):
        kept = rows.columns
    counted = _Counted()
    jobs = rows.select(*kept).observe(counted.observation, counted.rows)
    jobs.write.format("penstock").option("url", url).option("queue", queue).mode("append").save()
    return counted.count()


def wait_for(query: StreamingQuery, stop: threading.Event | None = None) -> None:
    """Wait for a query's end; with an event, stop it when that is set."""
    while not query.awaitTermination(1):
        if stop is not None and stop.is_set():
            query.stop()
            return


def local_path(directory: str) -> Path | None:
    """The directory on this machine, or None if it lies elsewhere (s3:, hdfs:)."""
    return None if "://" in directory else Path(directory)
