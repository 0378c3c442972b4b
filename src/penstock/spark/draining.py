"""A queue into Parquet files and back, for people who want no code.

A drain is a streaming query whose batches are written by `foreachBatch`, each into a folder of its own that is replaced
as a whole: a batch that is run again after a crash writes the same folder again, so each job is there once. The files
are plain Parquet that any reader can open:

    DIR/batch=0/part-…parquet      the jobs of the first batch
    DIR/_penstock/checkpoint/      Spark's log of the query: where a drain that was killed goes on
    DIR/_penstock/run              the name of its claims: for one that is killed before Spark has logged anything
    DIR/_penstock/lock             held by the drain that runs

A folder that was finished is never written again. A claim only ever loses jobs, so what a batch brings again is in its
folder already. If it isn't, the folder is of another drain, and the query stops before any job is lost.
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

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import CallerError, OperatorError
from penstock.spark.settings import JOBS_PER_TRIGGER

log = logging.getLogger("penstock.spark")

Progress = Callable[[int], None]
OFFSETS = "_penstock/checkpoint/offsets"
LOCK = "_penstock/lock"
DRAINED = {"id", "queue", "body", "payload", "headers", "tries"}  # columns by which the files of a drain are known
ROW_KEY = "__penstock_row"
FINISHED = "_SUCCESS"  # the file that Spark puts into a folder when all of it is there


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
    jobs_max: int = JOBS_PER_TRIGGER,
    lease: float = 60.0,
) -> StreamingQuery:
    """Start moving the jobs of a queue into Parquet; ends when the queue is empty, or never with `follow`.

    Only one drain may write into a directory: see `held`.
    """
    if not _is_there(spark, f"{directory}/{OFFSETS}/*") and _is_there(spark, f"{directory}/batch=*"):
        raise _no_log(directory)
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
        folder = f"{directory}/batch={number}"
        if not _has_it(batch, folder):
            batch.write.mode("overwrite").parquet(folder)

    writer = jobs.writeStream.foreachBatch(write).option("checkpointLocation", f"{directory}/_penstock/checkpoint")
    return writer.start() if follow else writer.trigger(availableNow=True).start()


def _has_it(batch: DataFrame, folder: str) -> bool:
    """Whether a folder is to be left as it is: the batch is in it already, or it has nothing to put in its place."""
    spark = batch.sparkSession
    here = local_path(folder)  # asking Spark takes longer, and this is done for each batch
    if not (_is_there(spark, folder) if here is None else here.exists()):
        return False
    if not (_is_there(spark, f"{folder}/{FINISHED}") if here is None else (here / FINISHED).exists()):
        return bool(batch.isEmpty())
    known = spark.read.schema("id string").parquet(folder)
    if not batch.join(known, "id", "left_anti").isEmpty():
        raise CallerError(f"{folder} holds jobs of another drain: move it away, and start the drain again")
    return True


def _is_there(spark: SparkSession, path: str) -> bool:
    """Whether there is such a path, in whichever file system; stars are understood."""
    try:
        return bool(spark.read.text(path).columns)
    except AnalysisException:
        return False


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


def local_path(directory: str) -> Path | None:
    """The directory on this machine, or None if it lies elsewhere (s3:, hdfs:)."""
    return None if "://" in directory else Path(directory)
