"""What the sessions of `bench.spark` have in common: one Spark, stores, jobs to fill them with, and processor time."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.queue_worker import store_url
from bench.servers import CLOCK_TICKS, HOST, NotRunError, running
from penstock import blocking
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
CORES = 2
QUEUE = "bench"
BODY = '{"n":%d,"to":"somebody@example.org","subject":"a job for the benchmark of Spark"}'
FILL_JOBS = 10_000  # in one call of push_many


@functools.cache
def spark() -> SparkSession:
    """The session of all measurements, as `penstock spark` makes one, on two cores."""
    # Spark's Python processes import this package, and write their steps to this file.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    descriptor, name = tempfile.mkstemp(prefix="bench-spark-steps-")
    os.close(descriptor)
    with told():
        from bench.spark_steps import VARIABLE, SteppedSource
        from penstock.spark.session import local_session

        os.environ[VARIABLE] = name
        session = local_session("bench", f"local[{CORES}]")
        session.dataSource.register(SteppedSource)
        return session


def stop_spark() -> None:
    """At the end, if it was started."""
    if spark.cache_info().currsize:
        spark().stop()
        _steps_file().unlink(missing_ok=True)


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Turns errors of Spark and of stores into the reason why something was not run."""
    try:
        yield
    except (ModuleNotFoundError, PenstockError) as problem:
        raise NotRunError(str(problem)) from problem
    except Exception as problem:
        if not type(problem).__module__.startswith(("pyspark.", "py4j.")):
            raise
        raise NotRunError(f"Spark: {str(problem).partition(chr(10))[0][:200]}") from problem


def _steps_file() -> Path:
    from bench.spark_steps import VARIABLE

    return Path(os.environ[VARIABLE])


def forget_steps() -> None:
    """Start again."""
    _steps_file().write_text("")


def steps() -> list[dict[str, Any]]:
    """What Spark's processes have written down since."""
    return [json.loads(line) for line in _steps_file().read_text().splitlines()]


@contextlib.contextmanager
def store_at(kind: str, directory: Path, program: Path) -> Iterator[str]:
    """A store of its own for the length of a block."""
    if kind == "fsq":
        yield f"fsq:{directory}/root"
    elif kind == "disque":
        with running("penstock", program=program) as node:
            yield f"disque://{HOST}:{node.port}"
    else:
        with store_url(kind, directory) as url:
            yield url


def fill(queue: blocking.Queue, count: int) -> None:
    """Put jobs into a queue: small JSON objects."""
    for begin in range(0, count, FILL_JOBS):
        queue.push_many([json.loads(BODY % number) for number in range(begin, min(count, begin + FILL_JOBS))])


def cpu_s() -> float:
    """Processor seconds so far of this process and of all that come from it: Spark, its workers, and the servers."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with contextlib.suppress(OSError):
                # The name in parentheses may hold blanks, so fields are counted from behind it.
                fields = (place / "stat").read_text().rpartition(")")[2].split()
                parents[int(place.name)] = int(fields[1])
                # With that of children which have ended.
                spent[int(place.name)] = sum(map(int, fields[11:15])) / CLOCK_TICKS
    mine = os.getpid()
    return sum(seconds for pid, seconds in spent.items() if _is_from(pid, mine, parents))


def _is_from(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid and pid != ancestor:
        pid = parents.get(pid, 0)
    return pid == ancestor
