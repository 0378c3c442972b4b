"""What is measured of Spark in one round.

    Stream     a queue into Parquet by a streaming query, then by a plain loop of reserve, write and ack
    Million    a million jobs into the broker, a batch read of them, batches off a long queue and a short one
    Batches    one query of many small batches, the first ones beside the last ones

Each has a store of its own. What was moved is counted: a wrong answer can't pass for a fast one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.servers import NotRunError
from bench.spark_world import BODY, CORES, QUEUE, cpu_s, fill, forget_steps, spark, steps, store_at, told
from penstock import blocking

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Figures = dict[str, float]

BATCH_JOBS = 20_000
BATCHES = 5  # of which the first warms up, and the last is not followed by another
LOOP_BATCHES = 2
MILLION = 1_000_000
CYCLES = 3  # batches off a long and off a short queue, in a round
SMALL_BATCH_JOBS = 5_000
SMALL_BATCHES = 42
SOME = 5  # batches that are compared, at the beginning and at the end
QUICK_DIVISOR = 20
LEASE_S = 60.0
SHORT_QUEUE = "short"
NOT_WRITTEN = ("claim", "state", "mature")  # columns that `penstock spark drain` leaves out, too


class Mark(NamedTuple):
    """A moment, by the clock and by the processor time of all processes."""

    s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Mark:
        return cls(time.perf_counter(), cpu_s())

    def since(self, before: Mark) -> Mark:
        """What was spent."""
        return Mark(self.s - before.s, self.cpu_s - before.cpu_s)


@contextlib.contextmanager
def scene(kind: str, program: Path) -> Iterator[tuple[str, blocking.Queue, Path]]:
    """A store, its queue, and a directory."""
    spark()
    with told(), tempfile.TemporaryDirectory(prefix="bench-spark-") as name:
        directory = Path(name)
        with store_at(kind, directory, program) as url, blocking.connect(url, lease=LEASE_S) as store:
            yield url, store.queue(QUEUE), directory


@dataclass(frozen=True)
class Stream:
    """A store into Parquet, by Spark and by a plain loop."""

    store: str

    @property
    def name(self) -> str:
        return f"{self.store} into Parquet"

    @property
    def shape(self) -> str:
        return self.name

    def run(self, quick: bool, program: Path) -> Figures:
        """First Spark, then the loop, on the same store."""
        jobs = BATCH_JOBS // (QUICK_DIVISOR if quick else 1)
        with scene(self.store, program) as (url, queue, directory):
            fill(queue, jobs * BATCHES)
            forget_steps()
            drained = drain(url, queue, directory / "spark", jobs, BATCHES)
            figures = parts_of(drained.progress[1:], steps(), BATCHES)
            spent = drained.marks[-1].since(drained.marks[1])
            moved = jobs * (BATCHES - 2)
            figures |= {"jobs_per_s": moved / spent.s, "cpu_us": spent.cpu_s / moved * 1e6}
            fill(queue, jobs * LOOP_BATCHES)
            spent = plain_loop(queue, directory, jobs)
            moved = jobs * LOOP_BATCHES
            return figures | {"loop_jobs_per_s": moved / spent.s, "loop_cpu_us": spent.cpu_s / moved * 1e6}


class Drained(NamedTuple):
    """A query that has ended: when each batch began to be written, and what Spark says of it."""

    marks: list[Mark]
    progress: list[dict[str, Any]]


def drain(url: str, queue: blocking.Queue, directory: Path, jobs: int, batches: int) -> Drained:
    """Move a whole queue into Parquet, as `penstock spark drain` does: a folder a batch."""
    from bench.spark_steps import FORMAT

    marks: list[Mark] = []

    def write(batch: DataFrame, number: int) -> None:
        marks.append(Mark.now())
        batch.write.mode("overwrite").parquet(f"{directory}/rows/batch={number}")

    reader = spark().readStream.format(FORMAT).option("url", url).option("queue", QUEUE)
    rows = reader.option("maxJobsPerTrigger", jobs).load().drop(*NOT_WRITTEN)
    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", f"{directory}/checkpoint")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    _check(directory / "rows", jobs * batches, queue)
    if len(marks) != batches:
        raise NotRunError(f"there were {len(marks)} batches in place of {batches}")
    progress = [json.loads(one.json) for one in query.recentProgress]
    return Drained(marks, [one for one in progress if "addBatch" in one["durationMs"]])


def plain_loop(queue: blocking.Queue, directory: Path, jobs: int) -> Mark:
    """The same without Spark: reserve, write the same columns with pyarrow, ack."""
    import pyarrow
    import pyarrow.parquet

    from penstock.spark.rows import COLUMNS, arrow_schema, to_batch

    schema = arrow_schema([name for name in COLUMNS if name not in NOT_WRITTEN])
    rows = directory / "loop"
    rows.mkdir()
    began = Mark.now()
    for number in range(LOOP_BATCHES):
        taken: list[blocking.Job] = []
        while len(taken) < jobs and (some := queue.reserve_many(jobs - len(taken))):
            taken += some
        batch = to_batch([job.stored for job in taken], schema, queue.name)
        pyarrow.parquet.write_table(pyarrow.Table.from_batches([batch]), rows / f"{number}.parquet")
        if not all(queue.ack_many(taken)):
            raise NotRunError("leases were lost")
    spent = Mark.now().since(began)
    _check(rows, jobs * LOOP_BATCHES, queue)
    return spent


def _check(rows: Path, jobs: int, queue: blocking.Queue) -> None:
    import pyarrow.dataset

    found = pyarrow.dataset.dataset(str(rows), format="parquet").count_rows()
    if (found, queue.total()) != (jobs, 0):
        raise NotRunError(f"{found} of {jobs} jobs were written, and {queue.total()} are left")


def parts_of(progress: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]], batches: int) -> Figures:
    """Where the time of a batch goes, in milliseconds: medians of what Spark says, and of the steps of our own.

    What a batch is cut, read and written in is one figure of Spark's. Our part of it is known, the reading by two
    workers at once.
    """

    def spark_ms(*names: str) -> float:
        return statistics.median(sum(one["durationMs"].get(name, 0) for name in names) for one in progress)

    def our_ms(name: str) -> float:
        return statistics.median([one["s"] for one in ours if one["step"] == name] or [0.0]) * 1000

    read_ms = sum(one["s"] for one in ours if one["step"] == "read") * 1000 / batches / CORES
    ack_ms = our_ms("ack")
    parts = {
        "ack_ms": ack_ms,
        "claim_ms": spark_ms("latestOffset") - ack_ms,
        "partitions_ms": our_ms("plan"),
        "plan_ms": spark_ms("queryPlanning"),
        "read_ms": read_ms,
        "write_ms": spark_ms("addBatch") - our_ms("plan") - read_ms,
        "logs_ms": spark_ms("walCommit", "commitOffsets"),
    }
    whole_ms = spark_ms("triggerExecution")
    return parts | {"rest_ms": whole_ms - sum(parts.values()), "batch_ms": whole_ms}


@dataclass(frozen=True)
class Million:
    """A broker with very many jobs."""

    name: str = "a million jobs"
    shape: str = "a million jobs"

    def run(self, quick: bool, program: Path) -> Figures:
        """Write, read, then take batches off."""
        jobs = MILLION // (QUICK_DIVISOR if quick else 1)
        with scene("disque", program) as (url, queue, _):
            began = Mark.now()
            write_jobs(url, jobs)
            written = Mark.now().since(began)
            if queue.size() != jobs:
                raise NotRunError(f"{queue.size()} of {jobs} jobs were added")
            began = Mark.now()
            found = batch_read(url)
            read = Mark.now().since(began)
            if found != jobs:
                raise NotRunError(f"a batch read found {found} of {jobs} jobs")
            figures = {"write_per_s": jobs / written.s, "write_cpu_us": written.cpu_s / jobs * 1e6}
            figures |= {"read_per_s": jobs / read.s, "read_cpu_us": read.cpu_s / jobs * 1e6}
            return figures | long_and_short(url, queue, BATCH_JOBS // (QUICK_DIVISOR if quick else 1))


def write_jobs(url: str, jobs: int) -> None:
    """As many rows as that into the queue, from two partitions."""
    head, _, tail = BODY.partition("%d")
    rows = spark().range(0, jobs, 1, CORES).selectExpr(f"concat('{head}', id, '{tail}') AS payload")
    rows.write.format("penstock").option("url", url).option("queue", QUEUE).mode("append").save()


def batch_read(url: str) -> int:
    """Read all jobs into nothing; return how many there were."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()
    rows = spark().read.format("penstock").option("url", url).option("queue", QUEUE).load()
    rows.observe(seen, f.count(f.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


class Driven:
    """A query whose calls are made here, in the order in which Spark makes them, without a Spark."""

    def __init__(self, url: str, queue: str, jobs: int) -> None:
        from penstock.spark.rows import COLUMNS
        from penstock.spark.settings import read_settings
        from penstock.spark.streaming import QueueStream

        settings = read_settings({"url": url, "queue": queue, "maxJobsPerTrigger": str(jobs)})
        self.reader = QueueStream(settings, list(COLUMNS))
        self.jobs = jobs
        self.offset = self.reader.initialOffset()

    def batch(self) -> Mark:
        """Ack the batch before, claim and read the next one; return what it took."""
        began = Mark.now()
        end = self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
        parts = self.reader.partitions(self.offset, end)
        rows = sum(batch.num_rows for part in parts for batch in self.reader.read(part))
        spent = Mark.now().since(began)
        if rows != self.jobs:
            raise NotRunError(f"a batch had {rows} of {self.jobs} jobs")
        self.offset = end
        return spent


def long_and_short(url: str, queue: blocking.Queue, jobs: int) -> Figures:
    """Jobs a second, and a processor second, off a queue of a million and off one of a single batch, by turns."""
    short_queue = queue.store.queue(SHORT_QUEUE)
    queries = {"long": Driven(url, QUEUE, jobs), "short": Driven(url, SHORT_QUEUE, jobs)}
    spent: dict[str, list[Mark]] = {name: [] for name in queries}
    for _ in range(CYCLES + 1):
        fill(short_queue, jobs)
        for name, query in queries.items():
            spent[name].append(query.batch())
    for query in queries.values():
        query.reader.stop()
    figures = {}
    for name, marks in spent.items():
        figures[f"{name}_per_s"] = jobs / statistics.median(mark.s for mark in marks[1:])
        figures[f"{name}_cpu_us"] = statistics.median(mark.cpu_s for mark in marks[1:]) / jobs * 1e6
    return figures


@dataclass(frozen=True)
class Batches:
    """Many batches of one query, on the broker."""

    name: str = "many batches"
    shape: str = "many batches"

    def run(self, quick: bool, program: Path) -> Figures:
        """Early ones and late ones."""
        jobs = SMALL_BATCH_JOBS // (QUICK_DIVISOR if quick else 1)
        batches = SMALL_BATCHES // (QUICK_DIVISOR // 5 if quick else 1)
        with scene("disque", program) as (url, queue, directory):
            fill(queue, jobs * batches)
            marks = drain(url, queue, directory / "spark", jobs, batches).marks
            spent = [after.since(before) for before, after in itertools.pairwise(marks)]
            figures = {}
            for name, some in (("early", spent[1 : SOME + 1]), ("late", spent[-SOME:])):
                figures[f"{name}_per_s"] = jobs / statistics.median(mark.s for mark in some)
                figures[f"{name}_cpu_us"] = statistics.median(mark.cpu_s for mark in some) / jobs * 1e6
            return figures
