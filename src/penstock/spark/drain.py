"""A queue into Parquet files and back: what `penstock spark drain` and `fill` do.

A drain is a streaming query whose batches are written by `foreachBatch`, each into a folder of its own that is replaced
as a whole: a batch that is run again after a crash writes the same folder again, so each job is there once. The files
are plain Parquet that any reader can open:

    DIR/batch=0/part-…parquet      the jobs of the first batch
    DIR/batch=49/part-…parquet     the jobs of old small batches, merged, up to the one that it is named after
    DIR/_penstock/checkpoint/      Spark's log of the query: where a drain that was killed goes on
    DIR/_penstock/run              the run id of its claims, for a drain that is killed before Spark has logged anything
    DIR/_penstock/lock             locked by the drain that runs

A finished folder is never written again (`parquet`). A claim only ever loses jobs, so the jobs of a batch that is run
again are in its folder already. If they aren't, the folder is of another drain, and the query stops before a job is
lost.
"""

from __future__ import annotations

import fcntl
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import CallerError, OperatorError, PenstockError
from penstock.spark.listener import ack_last_batch
from penstock.spark.parquet import finish_merge, is_there, local_path, write_batch
from penstock.spark.settings import JOBS_PER_TRIGGER

log = logging.getLogger("penstock.spark")

Progress = Callable[[int], None]
OFFSETS = "_penstock/checkpoint/offsets"
LOCK = "_penstock/lock"
DRAINED = {"id", "queue", "body", "payload", "headers", "tries"}  # columns that identify the files of a drain
ROW_KEY = "__penstock_row"
EVERY_S = 60.0  # between two batches that are not full, with `follow`


def parquet_directory(place: str, is_remote: bool = False) -> str:
    """Return the directory that `parquet:DIR` names; with `is_remote`, on a Connect server."""
    kind, colon, directory = place.partition(":")
    if kind != "parquet" or not colon or not directory:
        raise CallerError(f"the place of Parquet files must be parquet:DIRECTORY, got {place!r}")
    path = local_path(directory)
    if is_remote and path is not None and not path.is_absolute():
        raise CallerError(f"a directory on a Connect server must be an absolute path, got {directory!r}")
    return directory


@contextmanager
def locked(directory: str) -> Iterator[None]:
    """Lock a directory of this machine against other drains, until the block or the process ends.

    Other file systems (s3:, hdfs:) have no lock that ends with its process: nothing is locked there.
    """
    path = local_path(directory)
    if path is None:
        yield
        return
    if _has_batches(path) and not any((path / OFFSETS).glob("[0-9]*")):
        raise _no_log(directory)
    with _opened(path / LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            raise CallerError(
                f"another drain is writing into {directory}: wait until it has ended, or choose another directory"
            ) from problem
        except OSError as problem:  # some network file systems
            log.warning("%s can't be locked (%s): don't start a second drain into it", directory, problem)
        finish_merge(path)
        yield


def _opened(file: Path) -> TextIO:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("a")
    except OSError as problem:
        raise OperatorError(f"can't write into {file.parent}: {problem.strerror}") from problem


def _has_batches(path: Path) -> bool:
    return any(path.glob("batch=*"))


def _no_log(directory: str) -> CallerError:
    return CallerError(
        f"{directory} has batches of an earlier drain, but not its log ({directory}/_penstock): a new drain would "
        "overwrite them. Choose another directory, or restore the log."
    )


def start_drain(
    spark: SparkSession,
    url: str,
    queue: str,
    directory: str,
    *,
    follow: bool = False,
    every: float = EVERY_S,
    jobs_max: int = JOBS_PER_TRIGGER,
    lease: float = 60.0,
) -> StreamingQuery:
    """Start to move the jobs of a queue into Parquet. The query ends when the queue is empty, or never with `follow`.

    With `follow`, a batch is made when it is full, or `every` seconds after the last one: many small files are slow to
    read. Only one drain may write into a directory: see `locked`.
    """
    if not is_there(spark, f"{directory}/{OFFSETS}/*") and is_there(spark, f"{directory}/batch=*"):
        raise _no_log(directory)
    jobs = (
        spark.readStream.format("penstock")
        .option("url", url)
        .option("queue", queue)
        .option("maxJobsPerTrigger", jobs_max)
        .option("lease", lease)
        .option("minJobsPerTrigger", jobs_max if follow else 0)
        .option("maxTriggerDelay", f"{every:f}s")
        .options(**({} if local_path(directory) is None else {"runFile": f"{directory}/_penstock/run"}))
        .load()
        .drop("claim", "state", "mature")
    )

    # Through Spark Connect this runs on the server, in another process: it must not refer to open connections.
    def write(batch: DataFrame, number: int) -> None:
        if not write_batch(batch, directory, number, merge_small=True):
            raise CallerError(
                f"{directory}/batch={number} has jobs of another drain: move it elsewhere, and start the drain again"
            )

    writer = jobs.writeStream.foreachBatch(write).option("checkpointLocation", f"{directory}/_penstock/checkpoint")
    return writer.start() if follow else writer.trigger(availableNow=True).start()


def end_drain(query: StreamingQuery, url: str) -> None:
    """Ack the last batch of a drain that was stopped, which else happens at its next start."""
    try:
        ack_last_batch(query, url)
    except PenstockError as problem:
        log.warning(
            "the last batch is written, but could not be acked: %s. Start the drain again with the same directory "
            "before the lease of its jobs ends, or they are delivered again",
            problem,
        )


class FillResult(NamedTuple):
    """The counts of a fill."""

    rows: int
    added: int | None  # the others were added before; None if it is unknown


def fill(
    spark: SparkSession,
    url: str,
    queue: str,
    directory: str,
    *,
    options: Mapping[str, str] | None = None,
    again: bool = False,
    count_file: str | None = None,
) -> FillResult:
    """Add a job for each row of Parquet files. Files of a drain become the jobs that they were made of.

    A row is identified by its file (path, size, modification time) and its position: a fill that was killed and is run
    again adds the rest, where the store has unique keys. With `again`, rows that an earlier fill has added are added
    once more. `options` are those of `format("penstock")`. Spark's process writes the number of new jobs to
    `count_file`.
    """
    rows = spark.read.parquet(directory)
    more = {name: str(value) for name, value in (options or {}).items()}
    if DRAINED.issubset(rows.columns):
        more.setdefault("headersColumn", "headers")
    contents = [name for name in ("body", "payload") if name in rows.columns]
    mapped = [name for option, name in more.items() if option.lower().endswith("column") and name in rows.columns]
    kept = list(dict.fromkeys([*contents, *mapped])) if contents else rows.columns
    file = f.concat_ws("|", *(f"_metadata.{part}" for part in ("file_path", "file_size", "file_modification_time")))
    run = f.lit(uuid.uuid4().hex if again else "fill")
    row_key = f.concat_ws(":", run, f.md5(file), "_metadata.row_index").alias(ROW_KEY)
    counted = Observation()  # counts rows while they are written, so that they are read once
    jobs = rows.select(*kept, row_key).observe(counted, f.count(f.lit(1)).alias("rows"))
    given = {**more, "url": url, "queue": queue, "rowKeyColumn": ROW_KEY}
    if count_file is not None:
        given["countFile"] = count_file
    jobs.write.format("penstock").options(**given).mode("append").save()
    return FillResult(int(counted.get["rows"]), None if count_file is None else int(Path(count_file).read_text()))


def wait_for(query: StreamingQuery, stop: threading.Event | None = None, moved: Progress = lambda count: None) -> None:
    """Wait for the end of a query; stop it when `stop` is set. `moved` gets the number of jobs of each batch."""
    last = -1
    is_over = False
    while not is_over:
        is_over = bool(query.awaitTermination(1))
        if not is_over and stop is not None and stop.is_set():
            query.stop()
            is_over = True
        for batch in query.recentProgress:
            # A query that waits reports, too: its next batch, without rows.
            if batch.batchId > last and batch.numInputRows:
                last = batch.batchId
                moved(batch.numInputRows)
