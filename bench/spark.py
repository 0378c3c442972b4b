"""Spark on our queues: `python -m bench.spark`.

One Spark of two cores (`local[2]`) for all of it. A stream into Parquet stands beside a plain loop that reserves,
writes with pyarrow and acks as many jobs at a time, on the same store and within seconds: what Spark costs, or gains. A
second table tells where the time of a batch goes. Rates of a million jobs are the broker's, and so are the two rows
that show that a job costs the same however many jobs wait, and however many batches came before.

The memory store is not here: it lives in one process, and Spark has many.
"""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass

from bench.report import NO_BAR, Bar, Line, Report, command_used, machine, options
from bench.rounds import Rounds
from bench.servers import stop_on_sigterm
from bench.spark_sessions import BATCH_JOBS, MILLION, Batches, Figures, Million, Stream
from bench.spark_world import stop_spark
from bench.table import Table

STORES = ("disque", "redis+oq", "postgresql", "sqlite", "fsq")
STREAM_BAR = Bar(ours_min=15_000)
MILLION_BAR = Bar(ours_min=100_000)
# Equal cost is the claim; the allowance is for noise, and for caches that a million jobs do not fit.
SAME = Bar(ratio_min=0.85)

AnySession = Stream | Million | Batches


@dataclass(frozen=True)
class Row:
    """One line to be: a rate, the rate beside it, and the processor time a job of both."""

    name: str
    session: AnySession
    ours: str
    peer: str = ""
    cpu: str = ""
    peer_cpu: str = ""
    bar: Bar = NO_BAR


ROWS: list[Row] = [
    *(
        Row(f"{store} into Parquet / a plain loop", Stream(store), "jobs_per_s", "loop_jobs_per_s", "cpu_us",
            "loop_cpu_us", STREAM_BAR)
        for store in STORES
    ),
    Row(f"write of {MILLION:,} jobs to the broker", Million(), "write_per_s", cpu="write_cpu_us", bar=MILLION_BAR),
    Row(f"batch read of {MILLION:,} jobs of the broker", Million(), "read_per_s", cpu="read_cpu_us", bar=MILLION_BAR),
    Row(f"a batch by hand, at {MILLION:,} / at {BATCH_JOBS:,} waiting", Million(), "long_per_s", "short_per_s",
        "long_cpu_us", "short_cpu_us", SAME),
    Row("36th to 40th batch of a query / 2nd to 6th", Batches(), "late_per_s", "early_per_s", "late_cpu_us",
        "early_cpu_us", SAME),
]  # fmt: skip

# Where the time of a batch goes: the column's head, and the figure.
PARTS = {
    "a batch": "batch_ms",
    "ack": "ack_ms",
    "claim": "claim_ms",
    "partitions": "partitions_ms",
    "plan": "plan_ms",
    "read": "read_ms",
    "write": "write_ms",
    "two logs": "logs_ms",
    "rest": "rest_ms",
}


def samples(rounds: Rounds[Figures], session: AnySession, figure: str) -> list[float]:
    """One figure of all rounds."""
    return [figures[figure] for figures in rounds.results.get(session, []) if figure in figures]


def line_of(row: Row, rounds: Rounds[Figures]) -> Line:
    """The row with its samples, or with the reason why it has none."""
    line = Line(row.name, bar=row.bar)
    if reason := rounds.failures.get(row.session):
        line.note = f"not run: {row.session.name}: {reason}"
    line.ours = samples(rounds, row.session, row.ours)
    line.peer = samples(rounds, row.session, row.peer)
    ours_us, peer_us = (samples(rounds, row.session, name) for name in (row.cpu, row.peer_cpu))
    if peer_us:
        line.cpu_ratios = [peer / ours for ours, peer in zip(ours_us, peer_us, strict=True)]
    return line


def parts_table(rows: list[Row], rounds: Rounds[Figures]) -> Table:
    """Where the time of a batch goes: medians of all rounds."""
    sessions = [row.session for row in rows if isinstance(row.session, Stream)]
    cells = [
        [session.store, *(_median(samples(rounds, session, figure), 0) for figure in PARTS.values())]
        for session in sessions
    ]
    return Table(f"Where the time of a batch of {BATCH_JOBS:,} jobs goes, in ms", ("", *PARTS), cells)


def cpu_table(rows: list[Row], rounds: Rounds[Figures]) -> Table:
    """Processor time, which other work on the machine disturbs less: medians of all rounds."""
    cells = [
        [row.name, *(_median(samples(rounds, row.session, figure), 1) for figure in (row.cpu, row.peer_cpu))]
        for row in rows
    ]
    return Table("Processor time of all processes, in µs a job", ("", "ours", "peer"), cells)


def _median(found: list[float], digits: int) -> str:
    return f"{statistics.median(found):.{digits}f}" if found else "-"


def main() -> None:
    """Runs the chosen rows and shows them."""
    parser = options("Spark on our queues.")
    parser.set_defaults(rounds=3)
    chosen = parser.parse_args()
    rows = [row for row in ROWS if re.search(chosen.only, row.name, re.IGNORECASE)]
    stop_on_sigterm()
    facts = machine(chosen.penstock)
    del facts["beanstalkd"]
    rounds: Rounds[Figures] = Rounds(chosen.quick, chosen.penstock)
    try:
        rounds.run(list(dict.fromkeys(row.session for row in rows)), chosen.rounds)
    finally:
        stop_spark()
    title = f"Spark on our queues, median of {chosen.rounds} rounds{', quick' if chosen.quick else ''}"
    report = Report(title, command_used("bench.spark"), facts, [line_of(row, rounds) for row in rows])
    tables = [parts_table(rows, rounds), cpu_table(rows, rounds)]
    report.show()
    report.write(chosen.markdown, chosen.json)
    for table in tables:
        print()
        table.show([])
    if chosen.markdown:
        text = "".join("\n".join(["", f"### {table.title}", "", *table.markdown(), ""]) for table in tables)
        chosen.markdown.write_text(report.markdown() + text)
    if chosen.json:
        all_figures = {session.name: figures for session, figures in rounds.results.items()}
        chosen.json.write_text(json.dumps(json.loads(chosen.json.read_text()) | {"figures": all_figures}, indent=1))


if __name__ == "__main__":
    main()
