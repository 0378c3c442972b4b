"""`penstock spark`: drain a queue into Parquet files, fill one from them, and check the machine for Spark."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from penstock.cli.application import URL_HELP, URL_VARIABLE, StoreCommand, application
from penstock.cli.application import run as run_application
from penstock.cli.output import ProgressCounter
from penstock.errors import CallerError, MissingExtra
from penstock.queues.blocking import connect

app = application(
    no_args_is_help=True, help="Queues and Spark. For programs there is spark.readStream.format('penstock')."
)

Url = Annotated[str, typer.Argument(metavar="URL", show_default=False, help=URL_HELP)]
Name = Annotated[str, typer.Argument(metavar="QUEUE", show_default=False, help="The queue.")]
Master = Annotated[
    str,
    typer.Option(metavar="MASTER", help="Where Spark runs: local[*], spark://host:7077, yarn, k8s://…, sc://host."),
]
Settings = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
]
Noise = Annotated[bool, typer.Option("--spark-log", help="Show what Spark itself prints.")]


@app.command(cls=StoreCommand)
def drain(
    url: Url,
    queue: Name,
    to: Annotated[str, typer.Option("--to", metavar="parquet:DIR", help="Where the jobs go.", show_default=False)],
    follow: Annotated[bool, typer.Option("--follow", help="Continue when the queue is empty, until Ctrl-C.")] = False,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="With --follow: the time between two batches that aren't full, such as 10s or 5m. [default: 60s]",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="Maximum number of jobs in a batch, which is a file or a few.")
    ] = 20_000,
    lease: Annotated[
        float, typer.Option(metavar="SECONDS", help="After a crash, jobs are redelivered after this time.")
    ] = 60.0,
    master: Master = "local[*]",
    conf: Settings = None,
    spark_log: Noise = False,
) -> None:
    """Move the jobs of a queue into Parquet files, each exactly once; prints how many were moved.

    If it is killed, start it again with the same DIR: it continues where it was.
    """
    drain_module = _drain_module()
    if every is not None and not follow:
        raise CallerError("--every needs --follow: leave it out, or add --follow")
    every_s = drain_module.EVERY_S if every is None else _seconds("--every", every)
    directory = drain_module.parquet_directory(to, _is_remote(master))
    _check("stream", {"url": url, "queue": queue, "maxJobsPerTrigger": batch, "lease": lease})
    waiting = None if _is_remote(master) else _ready_jobs(url, queue, must_exist=True)
    moved = ProgressCounter("jobs to Parquet", None if follow else waiting)
    only = nullcontext() if _is_remote(master) else drain_module.locked(directory)
    with only, quiet(spark_log), spark_session("penstock spark", master, conf, spark_log) as spark, moved:
        # Before the query starts, which takes seconds: Spark's own handler of Ctrl-C breaks its link to Java off.
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        query = drain_module.start_drain(
            spark, url, queue, directory, follow=follow, every=every_s, jobs_max=batch, lease=lease
        )
        drain_module.wait_for(query, stop, moved)
        if not _is_remote(master):
            drain_module.end_drain(query, url)
    print(moved.total)


@app.command(cls=StoreCommand)
def fill(
    url: Url,
    queue: Name,
    source: Annotated[
        str, typer.Option("--from", metavar="parquet:DIR", help="Where the rows are.", show_default=False)
    ],
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=VALUE",
            help="An option of the writer, such as delayColumn=wait or uniqueFor=3600; may be repeated.",
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Add rows even if an earlier fill has added them.")] = False,
    master: Master = "local[*]",
    conf: Settings = None,
    spark_log: Noise = False,
) -> None:
    """Add a job for each row of Parquet files; prints how many were added.

    A column `body` or `payload` is the job; without them the job is all columns, as JSON. Jobs that a drain wrote get
    their headers back. If it is killed, start it again with the same files: it adds the rest, where the store has
    unique keys.
    """
    drain_module = _drain_module()
    directory = drain_module.parquet_directory(source, _is_remote(master))
    options = _pairs("--option", option, "delayColumn=wait")
    _check("write", {**options, "url": url, "queue": queue})
    if not _is_remote(master):
        _ready_jobs(url, queue)
    with (
        TemporaryDirectory() as own,
        quiet(spark_log),
        spark_session("penstock spark", master, conf, spark_log) as spark,
    ):
        count_file = None if _is_remote(master) else f"{own}/count"
        done = drain_module.fill(spark, url, queue, directory, options=options, again=again, count_file=count_file)
    print(done.rows if done.added is None else done.added)
    if done.added is not None and done.added < done.rows:
        sys.stderr.write(
            f"{done.rows - done.added} of {done.rows} rows were not added: an earlier fill has added them, or their "
            "unique key is taken. --again adds rows of an earlier fill once more.\n"
        )


@app.command(cls=StoreCommand)
def doctor(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]",
            show_default=False,
            help=f"A store to check, too; by default that of {URL_VARIABLE}, if set.",
        ),
    ] = None,
) -> None:
    """Check what Spark needs on this machine: packages, Java, the Python of sources and sinks.

    The exit code is 1 if a plain SparkSession would not find format("penstock") here.
    """
    from penstock.spark.doctor import findings

    are_ok = []
    for finding in findings(url):
        print(f"{'ok' if finding.is_ok else 'wrong':<6} {finding.text}")
        are_ok.append(finding.is_ok)
    raise typer.Exit(0 if all(are_ok) else 1)


def _drain_module() -> Any:
    try:
        from penstock.spark import drain as drain_module
    except ModuleNotFoundError as problem:
        name = problem.name or "pyspark"
        raise MissingExtra(
            f"penstock spark needs {name}. Install it with: pip install 'penstock[spark,jre]'"
        ) from problem
    return drain_module


def _check(use: str, options: dict[str, Any]) -> None:
    """Refuse wrong options before Spark is started."""
    from penstock.spark.settings import check_use, read_settings

    check_use(options, use)
    read_settings(options)


def _seconds(name: str, text: str) -> float:
    from penstock.spark.settings import seconds_of

    return seconds_of(name, text)


def _is_remote(master: str) -> bool:
    from penstock.spark.session import is_remote

    return is_remote(master)


def _ready_jobs(url: str, queue: str, must_exist: bool = False) -> int:
    """Return the number of ready jobs, so that a wrong store is noticed before Spark starts.

    Not for Spark Connect: there the server must reach the store, and its client may not.
    """
    with connect(url) as store:
        if must_exist and not store.exists():
            raise CallerError(f"{store.url} doesn't exist: check the path")
        return store.queue(queue).sizes().ready


def _pairs(flag: str, words: list[str] | None, example: str) -> dict[str, str]:
    pairs = [word.partition("=") for word in words or []]
    for key, equals, value in pairs:
        if not key or not equals:
            raise CallerError(f"{flag} must be KEY=VALUE, as in {flag} {example}, got {key}{equals}{value}")
    return {key: value for key, _, value in pairs}


@contextmanager
def spark_session(name: str, master: str, conf: list[str] | None, loud: bool) -> Iterator[Any]:
    """Start Spark for a command; errors of Spark's become one sentence."""
    from penstock.spark.errors import sentence_of
    from penstock.spark.session import local_session

    try:
        spark = local_session(name, master, _pairs("--conf", conf, "spark.executor.memory=2g"))
        try:
            yield spark
        finally:
            spark.stop()
    except Exception as problem:
        if loud or type(problem).__module__.partition(".")[0] not in {"pyspark", "py4j"}:
            raise
        raise sentence_of(str(problem)) from problem


@contextmanager
def quiet(loud: bool) -> Iterator[None]:
    """Discard what Java prints while it starts; our own errors are still printed."""
    if loud:
        yield
        return
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # pyspark's: the stack of a wrong query
        logging.getLogger(name).disabled = True
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    sys.stderr.flush()
    os.dup2(nothing, 2)
    own = sys.stderr
    sys.stderr = os.fdopen(os.dup(kept), "w", buffering=1)
    try:
        yield
    finally:
        sys.stderr = own
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def run(words: list[str]) -> int:
    """Run one of the commands with its words."""
    return run_application(app, words, "penstock spark")
