"""A queue into Parquet files and back, for people who want no code.

A drain is a streaming query whose batches are written by `foreachBatch`, each into a folder of its own that is replaced
as a whole: a batch that is run again after a crash writes the same folder again, so each job is there once. The files
are plain Parquet that any reader can open:

    DIR/batch=0/part-…parquet      the jobs of the first batch
    DIR/_penstock/checkpoint/      Spark's log of the query: where a drain that was killed goes on
    DIR/_penstock/run              the name of its claims: for one that is killed before Spark has logged anything
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


def parquet_directory(place: str, is_remote: bool = False) -> str:
    """The directory that `parquet:DIR` names; at a Connect server if it is remote."""
    kind, colon, directory = place.partition(":")
    if kind != "parquet" or not colon or not directory:
        raise CallerError(f"{place!r} is no place for jobs: write parquet:DIRECTORY")
    path = local_path(directory)
    if is_remote and path is not None and not path.is_absolute():
        raise CallerError(f"{directory!r} would lie wherever the Connect server was started: write the whole path")
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
) -> StreamingQuery:
    """Start moving the jobs of a queue into Parquet; ends when the queue is empty, or never with `follow`."""
    jobs = (
        spark.readStream.format("penstock")
        .option("url", url)
        .option("queue", queue)
        .option("maxJobsPerTrigger", jobs_max)
        .option("lease", lease)
        .options(**({} if local_path(directory) is None else {"runFile": f"{directory}/_penstock/run"}))
        .load()
        .drop("claim", "state", "mature")
    )

    # Through Spark Connect this runs at the server, in another process: it may hold nothing that lives.
    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{directory}/batch={number}")

    writer = jobs.writeStream.foreachBatch(write).option("checkpointLocation", f"{directory}/_penstock/checkpoint")
    return writer.start() if follow else writer.trigger(availableNow=True).start()


def fill(spark: SparkSession, url: str, queue: str, directory: str) -> int:
    """Add a job for each row of Parquet files; gives how many. What a drain wrote becomes the jobs that it was."""
    rows = spark.read.parquet(directory)
    kept = [name for name in rows.columns if name in {"body", "payload", "headers", "delay", "ttl", "retry", "unique"}]
    if not {"body", "payload"} & set(kept):
        kept = rows.columns
    counted = Observation()  # while they are written, so that they are read once
    jobs = rows.select(*kept).observe(counted, f.count(f.lit(1)).alias("rows"))
    jobs.write.format("penstock").option("url", url).option("queue", queue).mode("append").save()
    return int(counted.get["rows"])


def wait_for(query: StreamingQuery, stop: threading.Event | None = None, moved: Progress = lambda count: None) -> None:
    """Wait for a query's end; with an event, stop it when that is set. `moved` hears how many jobs each batch had."""
    last = -1
    is_over = False
    while not is_over:
        is_over = bool(query.awaitTermination(1))
        if not is_over and stop is not None and stop.is_set():
            query.stop()
            is_over = True
        for batch in query.recentProgress:
            # A query that waits reports as well: the number of its next batch, without rows.
            if batch.batchId > last and batch.numInputRows:
                last = batch.batchId
                moved(batch.numInputRows)


def local_path(directory: str) -> Path | None:
    """The directory on this machine, or None if it lies elsewhere (s3:, hdfs:)."""
    return None if "://" in directory else Path(directory)
