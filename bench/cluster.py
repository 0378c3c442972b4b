"""Three nodes beside one redis-server: `python -m bench.cluster`.

Every job has three copies, and 50 connections send bodies of 64 bytes. All nodes and the load share this machine, so
that a rate tells mostly how much of it was left; processor time for 10,000 jobs, of all nodes together,
tells what the cluster costs. What Disque reaches was measured elsewhere and stands beside the rows, not in the ratios.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.cluster_sessions import LATENCY, OFF, REDIS, TRIO, ClusterSession, Figures
from bench.load import CONNECTIONS
from bench.report import NO_BAR, Bar, Line, Report, command_used, machine, options
from bench.rounds import Rounds
from bench.servers import ALWAYS, EVERYSEC, running, stop_on_sigterm
from bench.sessions import HUNDRED, PIPELINE, SINGLE

A_FEW_MS = 5.0
WELL_UNDER_A_SECOND_MS = 250.0
COMPILED_MARK = "penstock_hot"  # in the name of the library that holds the compiled modules

SHAPES = (SINGLE, PIPELINE, HUNDRED)
ADD_NAMES = {SINGLE: "ADDJOB", PIPELINE: "ADDJOB", HUNDRED: "ADDJOBS"}

# What Disque reaches, by the name of the row.
REFERENCES = {
    "ADDJOB / LPUSH, single": "42k/s",
    "ADDJOB / LPUSH, pipeline 32": "61k/s",
    "ADDJOB, cpu for 10,000 / LPUSH, single": "0.20 to 0.22 s",
    "ADDJOB, cpu for 10,000 / LPUSH, pipeline 32": "0.20 to 0.22 s",
    "get+ack on the producing node / RPOP, single": "40k/s",
    "get+ack on the producing node, cpu for 10,000 / RPOP, single": "0.24 s",
    "get+ack on another node, cpu for 10,000 / RPOP, single": "0.26 s",
    "add to a consumer waiting on another node, 1 copy, p50": "50 ms",
    "add to a consumer waiting on another node, 1 copy, p99": "99 ms",
    "add to a consumer waiting on another node, new queue, 1 copy, max": "up to 4 s",
}


@dataclass(frozen=True)
class Row:
    """One line to be: a figure of a session of ours, and the figure of the peer that it is held against."""

    name: str
    unit: str
    ours: ClusterSession
    figure: str
    peer: ClusterSession | None = None
    peer_figure: str = ""
    bar: Bar = NO_BAR

    @property
    def sessions(self) -> list[ClusterSession]:
        """What has to run for it."""
        return [self.ours, *([self.peer] if self.peer is not None else [])]


def _adds(journal: str) -> Iterator[Row]:
    """Rate and cost of adds, of every shape, beside LPUSH with the same journal."""
    behind = "" if journal == OFF else f", journal {journal}"
    for what, unit in (("rate", "/s"), ("cpu", "s")):
        for shape in SHAPES:
            cost = ", cpu for 10,000" if what == "cpu" else ""
            name = f"{ADD_NAMES[shape]}{cost} / LPUSH, {shape}{behind}"
            ours, peer = ClusterSession(TRIO, shape, journal), ClusterSession(REDIS, shape, journal)
            yield Row(name, unit, ours, f"add {what}", peer, f"add {what}")


def _gets() -> Iterator[Row]:
    """Rate and cost of get and ack; the peer's RPOP is one call where these are two."""
    places = {
        "here": "get+ack on the producing node",
        "elsewhere": "get+ack on another node",
        "flow": "get+ack on another node, while jobs are added",
    }
    for place, title in places.items():
        for what, unit in (("rate", "/s"), ("cpu", "s")):
            for shape in SHAPES if place == "here" else (SINGLE, PIPELINE):
                name = f"{title}{', cpu for 10,000' if what == 'cpu' else ''} / RPOP, {shape}"
                ours, peer = ClusterSession(TRIO, shape), ClusterSession(REDIS, shape)
                yield Row(name, unit, ours, f"{place} {what}", peer, f"here {what}")


def _bus() -> Iterator[Row]:
    """What goes over the bus for a job."""
    places = {
        "add": "add",
        "here": "get+ack on the producing node",
        "elsewhere": "get+ack on another node",
        "flow": "get+ack on another node, while jobs are added",
    }
    for measure, unit in (("messages", "messages"), ("bytes", "bytes")):
        yield Row(f"{measure} a job: add, one connection", unit, ClusterSession(TRIO, LATENCY), f"one add {measure}")
        for place, title in places.items():
            for shape in (SINGLE, PIPELINE) if place in ("elsewhere", "flow") else SHAPES:
                name = f"{measure} a job: {title}, {shape}"
                yield Row(name, unit, ClusterSession(TRIO, shape), f"{place} {measure}")


def _one_add(journal: str) -> Iterator[Row]:
    behind = "" if journal == OFF else f", journal {journal}"
    ours, peer = ClusterSession(TRIO, LATENCY, journal), ClusterSession(REDIS, LATENCY, journal)
    for share in ("p50", "p99"):
        name = f"one ADDJOB at a time / LPUSH, {share}{behind}"
        yield Row(name, "ms", ours, f"one add {share}", peer, f"one add {share}")


def _latencies() -> Iterator[Row]:
    """From an add to a consumer on another node."""
    ours = ClusterSession(TRIO, LATENCY)
    soon, in_time = Bar(ours_max=A_FEW_MS), Bar(ours_max=WELL_UNDER_A_SECOND_MS)
    waiting = "add to a consumer waiting on another node"
    for replicate, copies in ((1, "1 copy"), (3, "3 copies")):
        for share, bar in (("p50", soon), ("p99", NO_BAR)):
            yield Row(f"{waiting}, {copies}, {share}", "ms", ours, f"handoff {replicate} {share}", bar=bar)
        for share, bar in (("p50", soon), ("max", in_time)):
            yield Row(f"{waiting}, new queue, {copies}, {share}", "ms", ours, f"first {replicate} {share}", bar=bar)
    for share, bar in (("p50", NO_BAR), ("max", in_time)):
        yield Row(f"GETJOB to a job that waits on another node, {share}", "ms", ours, f"late {share}", bar=bar)


ROWS: list[Row] = [
    *_adds(OFF),
    *_gets(),
    *_latencies(),
    *_one_add(OFF),
    *_bus(),
    *_adds(EVERYSEC),
    *_one_add(EVERYSEC),
    *_adds(ALWAYS),
    *_one_add(ALWAYS),
]


def chosen_rows(pattern: str) -> list[Row]:
    """The rows whose name matches."""
    return [row for row in ROWS if re.search(pattern, row.name, re.IGNORECASE)]


def sessions_of(rows: list[Row]) -> list[ClusterSession]:
    """Each session once, in the order of the rows."""
    return list(dict.fromkeys(session for row in rows for session in row.sessions))


def line_of(row: Row, rounds: Rounds[Figures]) -> Line:
    """The row with its samples, or with the reason why it has none."""
    line = Line(row.name, row.unit, bar=row.bar, reference=REFERENCES.get(row.name, ""))
    for session in row.sessions:
        if reason := rounds.failures.get(session):
            line.note = f"not run: {session.name}: {reason}"
    line.ours = _samples(rounds, row.ours, row.figure)
    if not line.ours and not line.note:
        line.note = "not run: nothing here can count the bytes of the bus; `ss` of iproute2 does"
    if row.peer is not None:
        line.peer = _samples(rounds, row.peer, row.peer_figure)
    if row.unit == "/s":
        shares = [_busy(rounds, session, row.figure.removesuffix(" rate")) for session in row.sessions]
        line.busy = "  ".join(shares)
    return line


def _samples(rounds: Rounds[Figures], session: ClusterSession, name: str) -> list[float]:
    """A figure of all rounds in which it could be had."""
    return [figures[name] for figures in rounds.results.get(session, []) if name in figures]


def _busy(rounds: Rounds[Figures], session: ClusterSession, what: str) -> str:
    what = "here" if session.kind == REDIS and what != "add" else what
    shares = [_samples(rounds, session, f"{what} {who}") for who in ("servers", "client")]
    return "/".join(f"{statistics.median(share) * 100:.0f}" for share in shares) + " %" if all(shares) else "-"


def facts_of(program: Path) -> dict[str, str]:
    """What the figures depend on, of this machine and of the program."""
    facts = machine(program)
    del facts["beanstalkd"]
    with running("penstock", program=program) as server:
        is_compiled = COMPILED_MARK in Path(f"/proc/{server.pid}/maps").read_text()
        facts["file system"] = _file_system(server.directory)
    facts["hot modules"] = "compiled" if is_compiled else "not compiled (`make native` does it)"
    facts["processor time"] = "of all three nodes together, until the cluster is at rest"
    facts["bus"] = "messages by CLUSTER INFO, bytes by the kernel's count for the sockets (ss)"
    return facts


def _file_system(directory: Path) -> str:
    """The type of what the journals lie on: the longest mount point above them."""
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if directory.is_relative_to(where) and len(where) > len(best[0]):
            best = (where, kind)
    return best[1]


def main() -> None:
    """Runs the chosen rows and shows them."""
    chosen = options("Three nodes beside one redis-server.").parse_args()
    rows = chosen_rows(chosen.only)
    stop_on_sigterm()
    facts = facts_of(chosen.penstock)
    rounds: Rounds[Figures] = Rounds(chosen.quick, chosen.penstock)
    rounds.run(sessions_of(rows), chosen.rounds)
    quick = ", quick" if chosen.quick else ""
    title = (
        f"Cluster of three nodes, REPLICATE 3, {CONNECTIONS} connections, 64-byte bodies, "
        f"median of {chosen.rounds} rounds{quick}"
    )
    report = Report(title, command_used("bench.cluster"), facts, [line_of(row, rounds) for row in rows])
    report.show()
    report.write(chosen.markdown, chosen.json)


if __name__ == "__main__":
    main()
