"""A queue into Parquet files and back, for people who want no code.

A drain is a streaming query whose batches are written by `foreachBatch`, each into a folder of its own that is replaced
as a whole: a batch that is run again after a crash writes the same folder again, so each job is there once. The files
are plain Parquet that any reader can open:

    DIR/batch=0/part-…parquet      the jobs of the first batch
    DIR/batch=49/part-…parquet     the jobs of old small batches, merged, up to the one that it is named after
    DIR/_penstock/checkpoint/      Spark's log of the query: where a drain that was killed goes on
    DIR/_penstock/run              the name of its claims: for one that is killed before Spark has logged anything
    DIR/_penstock/lock             held by the drain that runs

A folder that was finished is never written again (`parquet`). A claim only ever loses jobs, so what a batch brings
again is in its folder already. If it isn't, the folder is of another drain, and the query stops before any job is lost.
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
DRAINED = {"id", "queue", "body", "payload", "headers", "tries"}  # columns by which the files of a drain are known
ROW_KEY = "__penstock_row"
EVERY_S = 60.0  # between two batches that are not full, of a drain that goes on


def parquet_directory(place: str, is_remote: bool = False) -> str:
    """The directory that `parquet:DIR` names; at a Connect server if it is remote."""
    kind, colon, directory = place.partition(":")
    if kind != "parquet" or not colon or not directory:
        raise CallerError(f"{place!r} is no place for jobs: write parquet:DIRECTORY")
    path = local_path(directory)
    if is_remote and path is not None and not path.is_absolute():
        raise CallerError(f"{directory!r} would lie wherever the Connect server was started: write the whole path")
    return directory


@contextmanager
def held(directory: str) -> Iterator[None]:
    """Be the only drain into a directory of this machine, until the block or the process ends.

    Nothing is locked in other file systems (s3:, hdfs:), which have no lock that ends with its process.
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
                f"another drain writes into {directory}: wait until it has ended, or choose another directory"
            ) from problem
        except OSError as problem:  # some network file systems
            log.warning("%s can't be locked (%s): start no second drain into it", directory, problem)
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
        f"{directory} has batches of an earlier drain, but not its log ({directory}/_penstock): a new one would write "
        "over them. Choose another directory, or bring the log back."
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
    """Start moving the jobs of a queue into Parquet; ends when the queue is empty, or never with `follow`.

    With `follow`, a batch is made when it is full, or `every` seconds after the last one: many small files are slow to
    read. Only one drain may write into a directory: see `held`.
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

    # Through Spark Connect this runs at the server, in another process: it may hold nothing that lives.
    def write(batch: DataFrame, number: int) -> None:
        if not write_batch(batch, directory, number, merge_small=True):
            raise CallerError(
                f"{directory}/batch={number} holds jobs of another drain: move it away, and start the drain again"
            )

    writer = jobs.writeStream.foreachBatch(write).option("checkpointLocation", f"{directory}/_penstock/checkpoint")
    return writer.start() if follow else writer.trigger(availableNow=True).start()


def end_drain(query: StreamingQuery, url: str) -> None:
    """Ack the last batch of a drain that was stopped: nobody else would before its next start."""
    try:
        ack_last_batch(query, url)
    except PenstockError as problem:
        log.warning(
            "the last batch is written, but could not be acked: %s. Start the drain again with the same directory, "
            "before others take its jobs when their lease is over",
            problem,
        )


class Filled(NamedTuple):
    """What a fill has done."""

    rows: int
    added: int | None  # the rest was there already; None where Spark's own process can't tell


def fill(
    spark: SparkSession,
    url: str,
    queue: str,
    directory: str,
    *,
    options: Mapping[str, str] | None = None,
    again: bool = False,
    count_file: str | None = None,
) -> Filled:
    """Add a job for each row of Parquet files. What a drain wrote becomes the jobs that it was.

    A row is known by its file (path, size, time of change) and its place in it: a fill that was killed and is run again
    adds the rest, where the store has unique keys. With `again`, rows are added that an earlier fill has added, too.
    `options` are those of `format("penstock")`. Through `count_file` Spark's own process tells how many jobs were new.
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
    counted = Observation()  # while they are written, so that they are read once
    jobs = rows.select(*kept, row_key).observe(counted, f.count(f.lit(1)).alias("rows"))
    given = {**more, "url": url, "queue": queue, "rowKeyColumn": ROW_KEY}
    if count_file is not None:
        given["countFile"] = count_file
    jobs.write.format("penstock").options(**given).mode("append").save()
    return Filled(int(counted.get["rows"]), None if count_file is None else int(Path(count_file).read_text()))


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
