"""Our queues and our worker beside those of others: `python -m bench.queues`.

Two kinds of rows. *Calls* of a queue, 50 under way, beside Keuss on a server of the same kind: once with its signals
and counts in Redis, which is what ours do, and once alone, which only one process can use. *Jobs run end to end* by
one worker process, beside libraries that run jobs. Every session has servers of its own; those that are compared run
right after each other in shuffled order, and a ratio is taken within each round.

The best Python library is not known before the round ends: the bar is held against the fastest in each round.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.queue_peers.commands import JOBS, LATENCIES, PYTHON_PEERS, RUNS, Run, measure, output
from bench.report import NO_BAR, Bar, Line, Report, command_used, machine, options
from bench.rounds import Rounds, Session
from bench.servers import stop_on_sigterm

Figures = dict[str, float]

QUICK_DIVISOR = 20
SOON_MS = 2.0
BEST_PYTHON = "the best Python library"

CALLS = "calls"
END_TO_END = "end to end"

# By our store, which of Keuss' it is held against, and by which part of the usual number of jobs.
KEUSS = {"redis+list": ("redis-list", 1), "redis+oq": ("redis-oq", 1), "postgresql": ("postgres", 4)}
ALONE_IN_ITS_FIELD = ("disque", "sqlite")  # no Keuss there
# One push after the other, each awaited, beside the libraries whose producers enqueue one by one; the bar is Huey's.
PUSHERS = ("redis+oq", "disque")
PUSHES = {"push in turn": "push_in_turn_per_s", "push in turn, blocking": "push_blocking_in_turn_per_s"}
PUSH_PEERS = {"huey": Bar(ratio_min=1.0), "dramatiq": NO_BAR}

SINGLE_BARS = {"redis+list": Bar(ratio_min=1.0), "redis+oq": Bar(ratio_min=1.0), "postgresql": Bar(ratio_min=1.5)}
MANY_BARS = {"redis+list": Bar(ratio_min=2.0), "redis+oq": Bar(ratio_min=2.0), "postgresql": Bar(ratio_min=5.0)}
NO_BARS = dict.fromkeys(KEUSS, NO_BAR)
WORKER_BARS = {"disque": Bar(ratio_min=5.0), "redis+oq": Bar(ratio_min=3.0), "sqlite": NO_BAR, "postgresql": NO_BAR}

# Our figure, Keuss', and whose bar.
CALL_ROWS = {
    "push": ("push_per_s", "push_per_s", SINGLE_BARS),
    "pop": ("pop_per_s", "pop_per_s", SINGLE_BARS),
    "reserve + ack": ("reserve_ok_per_s", "reserve_ok_per_s", SINGLE_BARS),
    "push of 100 / single push": ("push_many_per_s", "push_per_s", MANY_BARS),
    "reserve + ack of 100 / single": ("reserve_ok_many_per_s", "reserve_ok_per_s", MANY_BARS),
    "push of 100 in turn / single push": ("push_many_in_turn_per_s", "push_per_s", NO_BARS),
    "reserve + ack of 100 in turn / single": ("reserve_ok_many_in_turn_per_s", "reserve_ok_per_s", NO_BARS),
}


@dataclass(frozen=True)
class Ours:
    """A store of ours in one round: its calls, or its worker."""

    store: str
    shape: str

    @property
    def name(self) -> str:
        return f"penstock {self.store}, {self.shape}"

    def run(self, quick: bool, program: Path) -> Figures:
        """By the command that measures it, in a process of its own."""
        module = "bench.queue_rates" if self.shape.startswith(CALLS) else "bench.queue_worker"
        divisor = KEUSS.get(self.store, ("", 1))[1] if self.shape.startswith(CALLS) else 1
        words = [str(program.parent / "python"), "-m", module, self.store, "--jobs", str(_jobs(quick) // divisor)]
        if self.shape == END_TO_END:
            words += ["--latencies", str(_latencies(quick))]
        return rates_of(output(words))


@dataclass(frozen=True)
class Theirs:
    """Somebody else's queue in one round."""

    which: Run
    shape: str

    @property
    def name(self) -> str:
        return self.which.name

    def run(self, quick: bool, program: Path) -> Figures:
        """By its own command, in its own environment."""
        latencies = _latencies(quick) if self.shape == END_TO_END else 0
        return rates_of(measure(self.which, _jobs(quick), latencies))


AnySession = Session[Figures]


def _jobs(quick: bool) -> int:
    return JOBS // QUICK_DIVISOR if quick else JOBS


def _latencies(quick: bool) -> int:
    return LATENCIES // QUICK_DIVISOR if quick else LATENCIES


def rates_of(answer: dict[str, Any]) -> Figures:
    """The numbers of an answer, with rates in place of durations."""
    figures = {name: float(value) for name, value in answer.items() if isinstance(value, int | float)}
    for name in [name for name in figures if name.endswith("_s") and not name.endswith("_per_s")]:
        figures[f"{name.removesuffix('_s')}_per_s"] = figures["jobs"] / figures.pop(name)
    return figures


@dataclass(frozen=True)
class Row:
    """One line to be: a figure of ours, and the same of somebody else's. Of several others the best counts."""

    name: str
    unit: str
    ours: AnySession
    figure: str
    others: tuple[AnySession, ...] = ()
    others_figure: str = ""
    bar: Bar = NO_BAR

    @property
    def sessions(self) -> list[AnySession]:
        """What has to run for it."""
        return [self.ours, *self.others]


def _calls() -> Iterator[Row]:
    """The calls of each store beside Keuss, and of stores that Keuss has no like of."""
    for store, (backend, divisor) in KEUSS.items():
        shape = f"{CALLS} on {store}"
        ours = Ours(store, shape)
        for title, (figure, keuss_figure, bars) in CALL_ROWS.items():
            if store == "redis+list" and "reserve" in title:
                continue  # a list can't reserve
            for providers in ("shared", "alone"):
                keuss = Theirs(Run("keuss", f"{backend}, {providers}", divisor), shape)
                name = f"{store}: {title}, Keuss {providers}"
                bar = bars[store] if providers == "shared" else NO_BAR
                yield Row(name, "/s", ours, figure, (keuss,), keuss_figure, bar)
    for store in ALONE_IN_ITS_FIELD:
        for title, (figure, _, _) in CALL_ROWS.items():
            yield Row(f"{store}: {title.partition(' /')[0]}", "/s", Ours(store, f"{CALLS} on {store}"), figure)


def _pushes() -> Iterator[Row]:
    """Single pushes of one producer beside those of other libraries: what a web request sees."""
    for store in PUSHERS:
        for peer, bar in PUSH_PEERS.items():
            run = next(run for run in RUNS if run.peer == peer)
            for title, figure in PUSHES.items():
                ours = Ours(store, f"{CALLS} on {store}")
                yield Row(f"{store}: {title} / {peer}", "/s", ours, figure, (Theirs(run, CALLS),), "enqueue_per_s", bar)


def _workers() -> Iterator[Row]:
    """Jobs run by one worker process, beside each library, the best of Python's, and how soon one begins."""
    libraries = [Theirs(run, END_TO_END) for run in RUNS if run.peer not in ("keuss", "procrastinate")]
    python = tuple(theirs for theirs in libraries if theirs.which.peer in PYTHON_PEERS)
    for store, bar in WORKER_BARS.items():
        ours = Ours(store, END_TO_END)
        yield Row(f"{store}: end to end / {BEST_PYTHON}", "/s", ours, "end_to_end_per_s", python, bar=bar)
    for theirs in libraries:
        yield Row(
            f"redis+oq: end to end / {theirs.name}", "/s", Ours("redis+oq", END_TO_END), "end_to_end_per_s", (theirs,)
        )
    for store in WORKER_BARS:
        ours = Ours(store, END_TO_END)
        bar = Bar(ours_max=SOON_MS)
        yield Row(f"{store}: push to handler when idle, p50 / the best", "ms", ours, "latency_p50_ms", python, bar=bar)
        yield Row(f"{store}: push to handler when idle, p99 / the best", "ms", ours, "latency_p99_ms", python)


ROWS: list[Row] = [*_calls(), *_pushes(), *_workers()]


def line_of(row: Row, rounds: Rounds[Figures]) -> Line:
    """The row with its samples, or with the reason why it has none."""
    line = Line(row.name, row.unit, bar=row.bar)
    if reason := rounds.failures.get(row.ours):
        line.note = f"not run: {row.ours.name}: {reason}"
    missing = {other.name: rounds.failures[other] for other in row.others if other in rounds.failures}
    if missing and len(missing) == len(row.others):
        line.note = "not run: " + "; ".join(f"{name}: {reason}" for name, reason in missing.items())
    line.ours = _samples(rounds, row.ours, row.figure)
    samples = [
        _samples(rounds, other, row.others_figure or row.figure) for other in row.others if other.name not in missing
    ]
    best = min if row.unit == "ms" else max
    line.peer = [best(values) for values in zip(*samples, strict=False)]
    return line


def _samples(rounds: Rounds[Figures], session: AnySession, name: str) -> list[float]:
    return [figures[name] for figures in rounds.results.get(session, []) if name in figures]


def main() -> None:
    """Runs the chosen rows and shows them."""
    parser = options("Our queues and our worker beside those of others.")
    parser.set_defaults(rounds=3)
    chosen = parser.parse_args()
    rows = [row for row in ROWS if re.search(chosen.only, row.name, re.IGNORECASE)]
    stop_on_sigterm()
    facts = machine(chosen.penstock)
    del facts["beanstalkd"]
    rounds: Rounds[Figures] = Rounds(chosen.quick, chosen.penstock)
    rounds.run(list(dict.fromkeys(session for row in rows for session in row.sessions)), chosen.rounds)
    quick = ", quick" if chosen.quick else ""
    title = f"Queues and workers beside those of others, median of {chosen.rounds} rounds{quick}"
    report = Report(title, command_used("bench.queues"), facts, [line_of(row, rounds) for row in rows])
    report.show()
    report.write(chosen.markdown, chosen.json)


if __name__ == "__main__":
    main()
