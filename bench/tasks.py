"""Our tasks beside those of other libraries, and beside our bare worker: `python -m bench.tasks`.

Every figure is of empty tasks and one worker process. A session has a server of its own: a Redis without persistence, a
PostgreSQL with its defaults, or a broker; those that are compared run right after each other in shuffled order, and a
ratio is taken within each round. `bench.queue_peers` says how is counted.

| rows                     | what they show                                                                            |
|--------------------------|-------------------------------------------------------------------------------------------|
| push                     | all tasks pushed the fastest way that the library documents, with no worker running       |
| run                      | a worker that was started on the full queue, from the first task to the last              |
| end to end               | pushed and run at the same time, with a worker that was idle; what the bars are for       |
| with results             | the same, with a result of each task kept                                                 |
| the layer / bare worker  | tasks beside a worker that calls one function: what the layer costs                       |
| push to function         | how soon a single task begins on an idle worker                                           |

The best library is not known before the round ends: the bar is held against the fastest in each round. Beside the
broker and Redis the others are on Redis; beside PostgreSQL there is procrastinate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.queue_peers.commands import JOBS, LATENCIES, RUNS, Run, measure, output
from bench.queues import Figures, Row, line_of, rates_of
from bench.report import NO_BAR, Bar, Report, command_used, machine, options
from bench.rounds import Rounds
from bench.servers import stop_on_sigterm

QUICK_DIVISOR = 10
EMPTY, RESULTS = "empty tasks", "tasks with results"
STORES = ("disque", "redis+oq", "postgresql", "sqlite")
BARS = {"disque": Bar(ratio_min=5.0), "redis+oq": Bar(ratio_min=3.0), "postgresql": Bar(ratio_min=2.0)}
RESULT_BAR = Bar(ratio_min=2.0)
LAYER_BAR = Bar(ratio_min=0.75)  # the layer costs at most a quarter of the bare worker's rate
SOON = {"disque": Bar(ours_max=2.0), "redis+oq": Bar(ours_max=2.0)}
LIBRARIES = ("celery", "rq", "dramatiq", "huey", "arq", "taskiq")
KEEP_NOTHING = ("procrastinate",)
RATES = {"push": "enqueue_per_s", "run": "run_per_s", "end to end": "end_to_end_per_s"}


@dataclass(frozen=True)
class Ours:
    """Tasks on a store of ours in one round, or the bare worker there."""

    store: str
    module: str
    settings: str
    shape: str

    @property
    def name(self) -> str:
        return f"{self.module} {self.store} ({self.settings})"

    def run(self, quick: bool, program: Path) -> Figures:
        """By the command that measures it, in a process of its own."""
        python = str(program.parent / "python")
        words = [python, "-m", f"bench.{self.module}", self.store, "--settings", self.settings]
        return rates_of(output([*words, "--jobs", str(_jobs(quick)), "--latencies", str(_latencies(quick))]))


@dataclass(frozen=True)
class Theirs:
    """Somebody else's tasks in one round."""

    which: Run
    shape: str

    @property
    def name(self) -> str:
        return self.which.name

    def run(self, quick: bool, _: Path) -> Figures:
        """By its own command, in its own environment."""
        return rates_of(measure(self.which, _jobs(quick), _latencies(quick)))


def _jobs(quick: bool) -> int:
    return JOBS // QUICK_DIVISOR if quick else JOBS


def _latencies(quick: bool) -> int:
    return LATENCIES // QUICK_DIVISOR if quick else LATENCIES


def _libraries(store: str, results: bool) -> tuple[Theirs, ...]:
    """The others that work on this kind of server, each with all its settings."""
    names = ("procrastinate",) if store == "postgresql" else () if store == "sqlite" else LIBRARIES
    names = tuple(name for name in names if not results or name not in KEEP_NOTHING)
    runs = [Run(run.peer, run.settings, run.divisor, results) for run in RUNS if run.peer in names]
    return tuple(Theirs(run, RESULTS if results else EMPTY) for run in runs)


def _rows() -> Iterator[Row]:
    for store in STORES:
        ours = Ours(store, "task_worker", "async", EMPTY)
        others = _libraries(store, False)
        for title, figure in RATES.items():
            bar = BARS.get(store, NO_BAR) if title == "end to end" else NO_BAR
            beside = " / the best library" if others else ""
            yield Row(f"{store}: {title}{beside}", "/s", ours, figure, others, bar=bar)
    for store in STORES:
        ours = Ours(store, "task_worker", "results", RESULTS)
        others = _libraries(store, True)
        beside = " / the best library" if others else ""
        bar = RESULT_BAR if others else NO_BAR
        yield Row(f"{store}: end to end with results{beside}", "/s", ours, "end_to_end_per_s", others, bar=bar)
    for store in STORES:
        ours = Ours(store, "task_worker", "async", EMPTY)
        bare = Ours(store, "queue_worker", "async", EMPTY)
        for title in ("run", "end to end"):
            yield Row(f"{store}: {title}, the layer / bare worker", "/s", ours, RATES[title], (bare,), bar=LAYER_BAR)
    for library in _libraries("redis+oq", False):
        ours = Ours("redis+oq", "task_worker", "async", EMPTY)
        yield Row(f"redis+oq: end to end / {library.name}", "/s", ours, RATES["end to end"], (library,))
    for store in STORES:
        ours = Ours(store, "task_worker", "async", EMPTY)
        others = _libraries(store, False)
        beside = " / the best library" if others else ""
        name = f"{store}: push to function when idle"
        yield Row(f"{name}, p50{beside}", "ms", ours, "latency_p50_ms", others, bar=SOON.get(store, NO_BAR))
        yield Row(f"{name}, p99{beside}", "ms", ours, "latency_p99_ms", others)


ROWS: list[Row] = list(_rows())


def main() -> None:
    """Runs the chosen rows and shows them."""
    parser = options("Our tasks beside those of other libraries.")
    parser.set_defaults(rounds=3)
    chosen = parser.parse_args()
    rows = [row for row in ROWS if re.search(chosen.only, row.name, re.IGNORECASE)]
    stop_on_sigterm()
    facts = machine(chosen.penstock)
    del facts["beanstalkd"]
    rounds: Rounds[Figures] = Rounds(chosen.quick, chosen.penstock)
    rounds.run(list(dict.fromkeys(session for row in rows for session in row.sessions)), chosen.rounds)
    quick = ", quick" if chosen.quick else ""
    title = f"Tasks beside those of others, median of {chosen.rounds} rounds{quick}"
    report = Report(title, command_used("bench.tasks"), facts, [line_of(row, rounds) for row in rows])
    report.show()
    report.write(chosen.markdown, chosen.json)


if __name__ == "__main__":
    main()
