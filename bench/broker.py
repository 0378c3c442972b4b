"""Rates of the broker beside redis-server and beanstalkd: `python -m bench.broker`.

Shapes of loads are single calls, pipelines, and a hundred a command. A ratio is taken within its round, and the median
of the rounds is held against the bar.
"""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass

from bench.client import Rate
from bench.load import CONNECTIONS
from bench.report import NO_BAR, Bar, Line, Report, command_used, machine, options
from bench.rounds import Rounds
from bench.servers import stop_on_sigterm
from bench.sessions import HUNDRED, PIPELINE, SHAPES, SINGLE, Rates, Session

OURS = {shape: Session("penstock", shape) for shape in SHAPES}
JOURNAL = {shape: Session("penstock", shape, journal=True) for shape in SHAPES}
REDIS = {shape: Session("redis", shape) for shape in SHAPES}
REDIS_JOURNAL = {shape: Session("redis", shape, journal=True) for shape in SHAPES}
BEANSTALKD = {shape: Session("beanstalkd", shape) for shape in (SINGLE, PIPELINE)}


@dataclass(frozen=True)
class Figure:
    """A rate: which session yields it, and under which command."""

    session: Session
    command: str


@dataclass(frozen=True)
class Row:
    """A comparison to be made: ours by the peer's."""

    name: str
    ours: Figure
    peer: Figure
    bar: Bar = NO_BAR


def _row(name: str, ours: tuple[Session, str], peer: tuple[Session, str], bar: Bar = NO_BAR) -> Row:
    return Row(name, Figure(*ours), Figure(*peer), bar)


def _against_redis(shape: str, bar_add: Bar, bar_get: Bar) -> list[Row]:
    ours, redis = OURS[shape], REDIS[shape]
    return [
        _row(f"ADDJOB / LPUSH, {shape}", (ours, "ADDJOB"), (redis, "LPUSH"), bar_add),
        _row(f"GETJOB / RPOP, {shape}", (ours, "GETJOB"), (redis, "RPOP"), bar_get),
        _row(f"ADDJOB / LPUSH, {shape}, own client", (ours, "ADDJOB (own)"), (redis, "LPUSH (own)")),
        _row(f"GETJOB / RPOP, {shape}, own client", (ours, "GETJOB (own)"), (redis, "RPOP (own)")),
    ]


def _journal(shape: str) -> list[Row]:
    on, off, redis = JOURNAL[shape], OURS[shape], REDIS_JOURNAL[shape]
    return [
        _row(f"ADDJOB journal on / off, {shape}", (on, "ADDJOB"), (off, "ADDJOB"), Bar(ratio_min=0.8)),
        _row(f"GETJOB journal on / off, {shape}", (on, "GETJOB"), (off, "GETJOB"), Bar(ratio_min=0.8)),
        _row(
            f"ACKJOB journal on / off, {shape}",
            (on, "ACKJOB (own)"),
            (off, "ACKJOB (own)"),
            Bar(ratio_min=0.8),
        ),
        _row(f"ADDJOB / LPUSH, both with journal, {shape}", (on, "ADDJOB"), (redis, "LPUSH")),
    ]


def _hundred() -> list[Row]:
    ours, redis, single = OURS[HUNDRED], REDIS[HUNDRED], OURS[SINGLE]
    of_redis, of_single = Bar(ratio_min=0.3), Bar(ratio_min=5)
    return [
        _row("ADDJOBS / LPUSH, of 100", (ours, "ADDJOBS"), (redis, "LPUSH 100"), of_redis),
        _row("GETJOB / RPOP, of 100", (ours, "GETJOB 100"), (redis, "RPOP 100"), of_redis),
        _row("ACKJOB / RPOP, of 100", (ours, "ACKJOB 100 (own)"), (redis, "RPOP 100 (own)"), of_redis),
        _row("ADDJOBS of 100 / ADDJOB", (ours, "ADDJOBS"), (single, "ADDJOB"), of_single),
        _row("GETJOB of 100 / of 1", (ours, "GETJOB 100"), (single, "GETJOB"), of_single),
        _row("ACKJOB of 100 / of 1", (ours, "ACKJOB 100 (own)"), (single, "ACKJOB (own)"), of_single),
    ]


def _against_beanstalkd(shape: str) -> list[Row]:
    ours, beanstalkd = OURS[shape], BEANSTALKD[shape]
    return [
        _row(f"ADDJOB / put of beanstalkd, {shape}", (ours, "ADDJOB (own)"), (beanstalkd, "put (own)")),
        _row(f"GETJOB / reserve of beanstalkd, {shape}", (ours, "GETJOB (own)"), (beanstalkd, "reserve (own)")),
        _row(f"ACKJOB / delete of beanstalkd, {shape}", (ours, "ACKJOB (own)"), (beanstalkd, "delete (own)")),
    ]


def _client_check(shape: str, *commands: str) -> list[Row]:
    """Our client by redis-benchmark, both against redis-server: it must not be the slower of the two."""
    redis, bar = REDIS[shape], Bar(ratio_min=0.95)
    return [
        _row(
            f"own client / redis-benchmark: {command}, {shape}",
            (redis, f"{command} (own)"),
            (redis, command),
            bar,
        )
        for command in commands
    ]


ROWS: list[Row] = [
    *_against_redis(SINGLE, Bar(ratio_min=0.75), Bar(ratio_min=0.9)),
    *_against_redis(PIPELINE, Bar(ratio_min=0.20, aim=0.25), Bar(ratio_min=0.30, aim=0.4)),
    *_journal(SINGLE),
    *_journal(PIPELINE),
    *_hundred(),
    *_against_beanstalkd(SINGLE),
    *_against_beanstalkd(PIPELINE),
    *_client_check(SINGLE, "LPUSH", "RPOP"),
    *_client_check(PIPELINE, "LPUSH", "RPOP"),
    *_client_check(HUNDRED, "LPUSH 100", "RPOP 100"),
]


def line_of(row: Row, rounds: Rounds[Rates]) -> Line:
    """The row with its samples, or with the reason why it has none."""
    line = Line(row.name, bar=row.bar)
    for figure in (row.ours, row.peer):
        if reason := rounds.failures.get(figure.session):
            line.note = f"not run: {reason}"
    ours, peer = _samples(row.ours, rounds), _samples(row.peer, rounds)
    line.ours = [rate.items_per_s for rate in ours]
    line.peer = [rate.items_per_s for rate in peer]
    # After a failure the rounds no longer pair up, and the line says so in its note.
    pairs = zip(ours, peer, strict=False)
    line.cpu_ratios = [one.items_per_cpu_s / other.items_per_cpu_s for one, other in pairs]
    line.busy = f"{_busy(ours)}  {_busy(peer)}"
    return line


def _samples(figure: Figure, rounds: Rounds[Rates]) -> list[Rate]:
    return [rates[figure.command] for rates in rounds.results.get(figure.session, [])]


def _busy(rates: list[Rate]) -> str:
    if not rates:
        return "-"
    server = statistics.median(rate.server_share for rate in rates)
    client = statistics.median(rate.client_share for rate in rates)
    return f"{server * 100:.0f}/{client * 100:.0f} %"


def chosen_rows(pattern: str) -> list[Row]:
    """The rows whose name matches, and with them the sessions that have to run."""
    return [row for row in ROWS if re.search(pattern, row.name, re.IGNORECASE)]


def sessions_of(rows: list[Row]) -> list[Session]:
    """Each session once, in the order of the rows."""
    return list(dict.fromkeys(figure.session for row in rows for figure in (row.ours, row.peer)))


def main() -> None:
    """Runs the chosen rows and shows them."""
    chosen = options("Rates of the broker beside redis-server and beanstalkd.").parse_args()
    rows = chosen_rows(chosen.only)
    stop_on_sigterm()
    rounds: Rounds[Rates] = Rounds(chosen.quick, chosen.penstock)
    facts = machine(chosen.penstock)
    rounds.run(sessions_of(rows), chosen.rounds)
    quick = ", quick" if chosen.quick else ""
    title = f"Broker rates, {CONNECTIONS} connections, median of {chosen.rounds} rounds{quick}"
    report = Report(title, command_used("bench.broker"), facts, [line_of(row, rounds) for row in rows])
    report.show()
    report.write(chosen.markdown, chosen.json)


if __name__ == "__main__":
    main()
