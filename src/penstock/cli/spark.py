"""`penstock spark`: a queue into Parquet files, and back, without writing code."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from penstock import errors
from penstock.cli.progress import Counted
from penstock.errors import CallerError, MissingExtra, OperatorError, PenstockError
from penstock.queues.blocking import connect

SPARK_TEXT_MAX = 500  # characters of an error of Spark's
_OWN = re.compile(r"\bpenstock\.errors\.(\w+): (.+)")
# The line after a traceback's own, which are indented.
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n)+(\S.*)")
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Queues and Spark. For programs there is spark.readStream.format('penstock').",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)

Url = Annotated[str, typer.Argument(metavar="URL", show_default=False, help="The store.")]
Name = Annotated[str, typer.Argument(metavar="QUEUE", show_default=False, help="The queue.")]
Master = Annotated[
    str,
    typer.Option(metavar="MASTER", help="Where Spark runs: local[*], spark://host:7077, yarn, k8s://…, sc://host."),
]
Settings = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; can be given many times.")
]
Noise = Annotated[bool, typer.Option("--spark-log", help="Show what Spark itself prints.")]


@app.command()
def drain(
    url: Url,
    queue: Name,
    to: Annotated[str, typer.Option("--to", metavar="parquet:DIR", help="Where the jobs go.", show_default=False)],
    follow: Annotated[bool, typer.Option("--follow", help="Go on when the queue is empty, until Ctrl-C.")] = False,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="With --follow: the time between two batches that aren't full, such as 10s or 5m. [default: 60s]",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="At most so many jobs in a batch, which is a file or a few.")
    ] = 20_000,
    lease: Annotated[float, typer.Option(metavar="SECONDS", help="After a crash others wait so long.")] = 60.0,
    master: Master = "local[*]",
    conf: Settings = None,
    spark_log: Noise = False,
) -> None:
    """Move the jobs of a queue into Parquet files, each exactly once; prints how many went.

    Killed at any moment, it goes on where it was when it is started again with the same DIR.
    """
    draining = _draining()
    if every is not None and not follow:
        raise CallerError("--every is for --follow: leave it out")
    every_s = draining.EVERY_S if every is None else _seconds("--every", every)
    directory = draining.parquet_directory(to, _is_remote(master))
    _check("stream", url=url, queue=queue, maxJobsPerTrigger=batch, lease=lease)
    waiting = None if _is_remote(master) else _look(url, queue)
    moved = Counted("jobs to Parquet", None if follow else waiting)
    only = nullcontext() if _is_remote(master) else draining.held(directory)
    with only, _quiet(spark_log), _session(master, conf, spark_log) as spark, moved:
        query = draining.start_drain(
            spark, url, queue, directory, follow=follow, every=every_s, jobs_max=batch, lease=lease
        )
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        draining.wait_for(query, stop, moved)
        if not _is_remote(master):
            draining.end_drain(query, url)
    print(moved.total)


@app.command()
def fill(
    url: Url,
    queue: Name,
    source: Annotated[
        str, typer.Option("--from", metavar="parquet:DIR", help="Where the rows are.", show_default=False)
    ],
    master: Master = "local[*]",
    conf: Settings = None,
    spark_log: Noise = False,
) -> None:
    """Add a job for each row of Parquet files; prints how many were added.

    A column `body` (or `payload`) is the job, else all columns are, as JSON. `headers`, `delay`, `ttl`, `retry` and
    `unique` are its options.
    """
    draining = _draining()
    directory = draining.parquet_directory(source, _is_remote(master))
    _check("write", url=url, queue=queue)
    if not _is_remote(master):
        _look(url, queue)
    with TemporaryDirectory() as own, _quiet(spark_log), _session(master, conf, spark_log) as spark:
        told = None if _is_remote(master) else f"{own}/count"
        print(draining.fill(spark, url, queue, directory, count_file=told))


def _draining() -> Any:
    try:
        from penstock.spark import draining
    except ModuleNotFoundError as problem:
        name = problem.name or "pyspark"
        raise MissingExtra(f"this needs {name}. Install it with: pip install 'penstock[spark,jre]'") from problem
    return draining


def _check(use: str, **options: Any) -> None:
    """Refuse before Spark starts what it would refuse after that."""
    from penstock.spark.settings import check_use, read_settings

    check_use(options, use)
    read_settings(options)


def _seconds(name: str, text: str) -> float:
    from penstock.spark.settings import seconds_of

    return seconds_of(name, text)


def _is_remote(master: str) -> bool:
    from penstock.spark.session import is_remote

    return is_remote(master)


def _look(url: str, queue: str) -> int:
    """How many jobs wait. A store that isn't there is so noticed before Spark starts.

    Through Spark Connect it is the server that must reach the store, and whoever asks it may not.
    """
    with connect(url) as store:
        return store.queue(queue).sizes().ready


def _read_settings(words: list[str] | None) -> dict[str, str]:
    pairs = [word.partition("=") for word in words or []]
    for key, equals, value in pairs:
        if not key or not equals:
            raise CallerError(f"--conf {key}{equals}{value}: write KEY=VALUE, as in --conf spark.executor.memory=2g")
    return {key: value for key, _, value in pairs}


@contextmanager
def _session(master: str, conf: list[str] | None, loud: bool) -> Iterator[Any]:
    from penstock.spark.session import local_session

    try:
        spark = local_session("penstock spark", master, _read_settings(conf))
        try:
            yield spark
        finally:
            spark.stop()
    except Exception as problem:
        if loud or type(problem).__module__.partition(".")[0] not in {"pyspark", "py4j"}:
            raise
        raise _spoken(str(problem)) from problem


def _spoken(text: str) -> PenstockError:
    """The sentence that says what is wrong, out of pages of Java and Python.

    Our own if there is one, else what Python said last, else the first line.
    """
    own = _OWN.findall(text)
    if own:
        name, said = own[-1]
        kind = getattr(errors, name, OperatorError)
        said = _STATE.sub("", said)[:SPARK_TEXT_MAX]
        return CallerError(said) if issubclass(kind, CallerError) else OperatorError(f"Spark failed: {said}")
    of_python = _PYTHON.findall(text)
    said = of_python[-1] if of_python else text.strip().partition("\n")[0]
    return OperatorError(f"Spark failed: {_STATE.sub('', said)[:SPARK_TEXT_MAX]} (--spark-log shows the rest)")


@contextmanager
def _quiet(loud: bool) -> Iterator[None]:
    """Keep what Java prints while it starts out of the terminal; our own errors still come."""
    if loud:
        yield
        return
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
    """One of the commands, with its words."""
    try:
        app(args=words, prog_name="penstock spark")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0
