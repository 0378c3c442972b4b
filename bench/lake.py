"""The lake beside Spark's own Parquet reader and DuckDB: `python -m bench.lake`.

Segments of events (`bench.lake_events`) are built and folded by one Spark of two cores (`local[2]`), which has built
and folded a small lake before. Times are of one run each: a run takes minutes, and what counts is how they grow. Beside
the time stands processor time, which a busy machine distorts less: events a second of two whole cores.

DuckDB makes the same tables from the Parquet files of `events`, with two threads, into Parquet files by hour of
creation (`bench/lake.sql`): without commits, and with its own sketches.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.client import Client
from bench.lake_events import write_events
from bench.load import repeat
from bench.report import NO_BAR, Bar, Line, Report, command_used, machine, options
from bench.servers import NotRunError, running, stop_on_sigterm
from bench.spark_world import CORES, cpu_s, spark, stop_spark, told

SIZES = (1_000_000, 3_000_000, 10_000_000)
QUICK_SIZES = (20_000, 60_000)
DAYS, QUICK_DAYS = 30.0, 1.0
WARM_EVENTS, WARM_DAYS = 30_000, 2.0
SEGMENT_EVENTS = 10_000  # one more segment: what a node of 14 million events a day writes in a minute
SEGMENT_DAYS = 1 / 1440
ADDS = {1: 40_000, 32: 320_000}
DAY_EVENTS = 100_000_000

SOURCE_BAR = Bar(ratio_min=0.6)
RATE_BAR = Bar(ours_min=50_000)
LINEAR_BAR = Bar(ratio_max=1.2)
SEGMENT_BAR = Bar(ratio_max=0.05)
COMMIT_BAR = Bar(ours_max=0.2)
SINGLE_BAR = Bar(ratio_min=0.9)
PIPELINE_BAR = Bar(ratio_min=0.75)


@dataclass
class Spent:
    """Time, and processor time of this process and all below it."""

    s: float = 0.0
    cpu_s: float = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Add what a block takes."""
        began_s, began_cpu_s = time.perf_counter(), cpu_s()
        yield
        self.s += time.perf_counter() - began_s
        self.cpu_s += cpu_s() - began_cpu_s


@dataclass
class Size:
    """What one size took."""

    events: int
    source: Spent = field(default_factory=Spent)
    parquet: Spent = field(default_factory=Spent)
    build: Spent = field(default_factory=Spent)
    fold: Spent = field(default_factory=Spent)
    more: Spent = field(default_factory=Spent)
    duck: Spent = field(default_factory=Spent)
    commits_s: list[float] = field(default_factory=list)
    raw_bytes: int = 0
    lake_bytes: int = 0


def measure(events: int, days: float, directory: Path, say: Callable[[str], None]) -> Size:
    """Write segments, read, build and fold them, add one more segment, and let DuckDB do the same."""
    from penstock.lake.build import build, read
    from penstock.lake.coverage import Coverage
    from penstock.lake.fold import fold
    from penstock.lake.schemas import EVENTS
    from penstock.lake.segments import plan, segment_files
    from penstock.lake.table import LakeTable

    raw, lake = directory / "events", directory / "lake"
    size = Size(write_events(raw, events, days))
    size.raw_bytes = _bytes(raw)
    with commits_timed(size.commits_s):
        say("build")
        with size.build.measured():
            built = build(spark(), raw, lake)
        if built.events != size.events:
            raise NotRunError(f"{built.events} of {size.events} events were built")
        say("fold")
        with size.fold.measured():
            fold(spark(), lake)
    table = LakeTable(lake, EVENTS)
    files = [str(table.path / file.path) for file in table.snapshot().files]
    say("source and Parquet")
    with size.source.measured():
        _read_all(read(spark(), raw, plan(segment_files(raw), Coverage())))
    with size.parquet.measured():
        _read_all(spark().read.schema(EVENTS.spark()).option("basePath", str(table.path)).parquet(*files))
    size.lake_bytes = _bytes(lake)
    say("DuckDB")
    with size.duck.measured():
        on_duckdb(files, directory / "duck")
    say("one more segment")
    write_events(raw, SEGMENT_EVENTS, SEGMENT_DAYS, seed=2, first_day=days)
    with size.more.measured():
        build(spark(), raw, lake)
        fold(spark(), lake)
    return size


def _read_all(rows: Any) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@contextmanager
def commits_timed(seconds: list[float]) -> Iterator[None]:
    """Note how long each commit of a block takes."""
    from penstock.lake.table import LakeTable

    real = LakeTable.commit

    def commit(*words: Any, **named: Any) -> int:
        began_s = time.perf_counter()
        version = real(*words, **named)
        seconds.append(time.perf_counter() - began_s)
        return version

    LakeTable.commit = commit
    try:
        yield
    finally:
        LakeTable.commit = real


def on_duckdb(files: list[str], directory: Path) -> None:
    """Make the same tables with DuckDB, in Parquet files by hour of creation."""
    try:
        import duckdb
    except ModuleNotFoundError as problem:
        raise NotRunError("duckdb is not installed") from problem
    directory.mkdir()
    with duckdb.connect(config={"threads": CORES, "temp_directory": str(directory / "temporary")}) as connection:
        connection.execute("set timezone = 'UTC'")
        connection.execute("create view events as select * from read_parquet(?)".replace("?", repr(files)))
        text = Path(__file__).with_suffix(".sql").read_text()
        for statement in re.sub(r"--.*", "", text).split(";"):
            if statement.strip():
                connection.execute(statement.replace("DIRECTORY", str(directory)))


def adds_per_s(depth: int, requests: int, program: Path, events: bool) -> tuple[float, float]:
    """Return adds a second, and a processor second of the node, with events on or off."""
    with tempfile.TemporaryDirectory(prefix="bench-lake-events-") as name:
        more = ["--events-dir", name] if events else []
        with running("penstock", program=program, more=more) as server, Client(server) as client:
            repeat(client, "ADDJOB", requests // 10, depth)
            rate, _ = repeat(client, "ADDJOB", requests, depth)
            return rate.items / rate.wall_s, rate.items / rate.server_cpu_s


def events_on(depth: int, rounds: int, quick: bool, program: Path) -> Line:
    """The line of what events cost a node."""
    requests = ADDS[depth] // (20 if quick else 1)
    shape = "single adds" if depth == 1 else f"pipelines of {depth}"
    line = Line(f"{shape}, events on / off", bar=SINGLE_BAR if depth == 1 else PIPELINE_BAR)
    for _ in range(rounds):
        on, on_cpu = adds_per_s(depth, requests, program, events=True)
        off, off_cpu = adds_per_s(depth, requests, program, events=False)
        line.ours.append(on)
        line.peer.append(off)
        line.cpu_ratios.append(on_cpu / off_cpu)
    return line


def lines_of(sizes: list[Size]) -> list[Line]:
    """The lines of the report."""
    lines = []
    for size in sizes:
        n, name = size.events, f"{size.events / 1e6:.3g}M"
        whole = Spent(size.build.s + size.fold.s, size.build.cpu_s + size.fold.cpu_s)
        lines += [
            Line(
                f"{name}: source / Spark's Parquet reader",
                ours=[n / size.source.s],
                peer=[n / size.parquet.s],
                bar=SOURCE_BAR,
                cpu_ratios=[size.parquet.cpu_s / size.source.cpu_s],
            ),
            Line(f"{name}: build", ours=[n / size.build.s], bar=RATE_BAR),
            Line(
                f"{name}: fold / DuckDB",
                ours=[n / size.fold.s],
                peer=[n / size.duck.s],
                bar=RATE_BAR,
                cpu_ratios=[size.duck.cpu_s / size.fold.cpu_s],
            ),
            Line(f"{name}: build and fold, by processor time of {CORES} cores", ours=[n / whole.cpu_s * CORES]),
            Line(
                f"{name}: one more segment / everything", "s", ours=[size.more.s], peer=[whole.s],
                bar=SEGMENT_BAR if size is sizes[-1] else NO_BAR, cpu_ratios=[size.more.cpu_s / whole.cpu_s],
            ),
            Line(f"{name}: commits", "s", ours=size.commits_s, bar=COMMIT_BAR),
        ]  # fmt: skip
    first, last = sizes[0], sizes[-1]
    if len(sizes) > 1:
        per = [(size.build.s + size.fold.s) / size.events * 1e6 for size in (last, first)]
        cpu = [(size.build.cpu_s + size.fold.cpu_s) / size.events for size in (last, first)]
        lines.append(
            Line(
                "seconds a million, largest / smallest",
                "s",
                [per[0]],
                [per[1]],
                LINEAR_BAR,
                cpu_ratios=[cpu[0] / cpu[1]],
            )
        )
    return lines


def footer(sizes: list[Size]) -> dict[str, str]:
    """What a day of very many events would cost, by the largest size."""
    last = sizes[-1]
    day = DAY_EVENTS / last.events
    core_hours = (last.build.cpu_s + last.fold.cpu_s) * day / 3600
    pays = [size for size in sizes if size.fold.s < size.duck.s]
    crossing = (
        f"from {pays[0].events:,} events on" if pays else f"not on this machine: not up to {last.events:,} events"
    )
    return {
        f"{DAY_EVENTS:,} events a day, extrapolated": (
            f"{core_hours:.1f} core hours, {last.raw_bytes * day / 1e9:.0f} GB of segments, "
            f"{last.lake_bytes * day / 1e9:.1f} GB of tables"
        ),
        "folds are faster on Spark than on DuckDB": crossing,
    }


def main() -> None:
    """All of it."""
    parser = options(__doc__ or "")
    parser.add_argument("--sizes", help="numbers of events, with commas between them")
    chosen = parser.parse_args()
    stop_on_sigterm()
    sizes = [int(text) for text in chosen.sizes.split(",")] if chosen.sizes else QUICK_SIZES if chosen.quick else SIZES
    lines: list[Line] = []
    found: list[Size] = []
    facts = machine(chosen.penstock)

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - began_s:.0f} s] {text}", flush=True)

    began_s = time.perf_counter()
    note = ""
    if re.search(chosen.only, "lake"):
        try:
            with told(), tempfile.TemporaryDirectory(prefix="bench-lake-") as name:
                say("Spark starts")
                warm_up(Path(name))
                for events in sizes:
                    directory = Path(name) / str(events)
                    days = QUICK_DAYS if chosen.quick else DAYS
                    found.append(measure(events, days, directory, lambda text, n=events: say(f"{n:,}: {text}")))
                    shutil.rmtree(directory)
        except NotRunError as problem:
            note = str(problem)
        finally:
            stop_spark()
        lines += lines_of(found) if found else []
        if note:
            lines.append(Line("the lake", note=f"not run: {note}"))
    if re.search(chosen.only, "events"):
        for depth in ADDS:
            say(f"events on, {depth}")
            lines.append(events_on(depth, chosen.rounds, chosen.quick, chosen.penstock))
    if found:
        facts |= footer(found)
    report = Report("The lake: one run, local[2]", command_used("bench.lake"), facts, lines)
    report.show()
    report.write(chosen.markdown, chosen.json)


def warm_up(directory: Path) -> None:
    """Build, fold and read a small lake, so that Java has compiled what is measured."""
    from penstock.lake.build import build
    from penstock.lake.fold import fold

    write_events(directory / "warm", WARM_EVENTS, WARM_DAYS)
    for number in range(2):
        build(spark(), directory / "warm", directory / f"warm-lake-{number}")
        fold(spark(), directory / f"warm-lake-{number}")


if __name__ == "__main__":
    main()
