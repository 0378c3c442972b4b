"""Our queues on MongoDB beside those of Node Keuss 2.0.6, on the same mongod in one run: `python -m bench.mongo`.

Calls with 50 under way. The mongod is a replica set of one member, started for the run; every session has a database of
its own in it, and both sides have their signals and counts in databases beside that, where other processes see them.
Keuss has no calls of many jobs, so those of ours stand beside its single ones. Both confirm writes as the set does by
default: by a majority, in the journal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench import mongod
from bench.queue_peers.commands import NODE_FOLDER, ROOT, node_program, output
from bench.queues import Figures, Row, line_of, rates_of
from bench.report import NO_BAR, Bar, Report, command_used, machine, options
from bench.rounds import Rounds
from bench.servers import stop_on_sigterm

JOBS = 4_000
QUICK_JOBS = 200
# The one that the tests use, in case that `scripts/setup bench` was not run.
MODULES = ROOT / "tests" / "interop" / "node" / "node_modules"
BACKENDS = {
    "mongodb": "mongo",
    "mongodb+pl": "pl-mongo",
    "mongodb+ps": "ps-mongo",
    "mongodb+bucket": "bucket-mongo-safe",
    "mongodb+bucket?buffered=yes": "bucket-mongo-safe",
    "mongodb+stream": "stream-mongo",
    "mongodb+intraorder": "intraorder",
}
SINGLE = dict.fromkeys(("mongodb", "mongodb+pl", "mongodb+ps"), Bar(ratio_min=1.2)) | {
    "mongodb+bucket": Bar(ratio_min=1.0),
    "mongodb+bucket?buffered=yes": Bar(ratio_min=1.0),
}
MANY = dict.fromkeys(("mongodb", "mongodb+pl", "mongodb+ps"), Bar(ratio_min=5.0)) | {
    "mongodb+bucket": Bar(ratio_min=1.5),
    "mongodb+bucket?buffered=yes": Bar(ratio_min=1.5),
}
# Our figure, Keuss', and whose bar.
CALLS = {
    "push": ("push_per_s", "push_per_s", SINGLE),
    "pop": ("pop_per_s", "pop_per_s", SINGLE),
    "reserve + ack": ("reserve_ok_per_s", "reserve_ok_per_s", SINGLE),
    "push of 100 / single push": ("push_many_per_s", "push_per_s", MANY),
    "reserve + ack of 100 / single": ("reserve_ok_many_per_s", "reserve_ok_per_s", MANY),
    "push of 100 in turn / single push": ("push_many_in_turn_per_s", "push_per_s", {}),
    "reserve + ack of 100 in turn / single": ("reserve_ok_many_in_turn_per_s", "reserve_ok_per_s", {}),
}
_databases = count(1)


@dataclass(frozen=True)
class Ours:
    """A store of ours in one round."""

    scheme: str
    server: str  # host and port
    jobs: int

    @property
    def name(self) -> str:
        return f"penstock {self.scheme}"

    @property
    def shape(self) -> str:
        return self.scheme

    def run(self, quick: bool, program: Path) -> Figures:
        """By the command that measures it, in a process of its own."""
        scheme, query, option = self.scheme.partition("?")
        url = f"{scheme}://{self.server}/bench{next(_databases)}{query}{option}"
        words = [str(program.parent / "python"), "-m", "bench.queue_rates", "--url", url]
        return rates_of(output([*words, "--jobs", str(QUICK_JOBS if quick else self.jobs)]))


@dataclass(frozen=True)
class Theirs:
    """Keuss on the same server in one round."""

    scheme: str
    server: str
    jobs: int

    @property
    def name(self) -> str:
        return f"keuss ({BACKENDS[self.scheme]})"

    @property
    def shape(self) -> str:
        return self.scheme

    def run(self, quick: bool, program: Path) -> Figures:
        """By its own command."""
        url = f"mongodb://{self.server}/bench{next(_databases)}"
        jobs = QUICK_JOBS if quick else self.jobs
        words = [node_program(), str(NODE_FOLDER / "keuss.js"), BACKENDS[self.scheme], "shared", str(jobs), "0", url]
        return rates_of(output(words))


def rows(server: str, jobs: int) -> Iterator[Row]:
    """All lines to be."""
    for scheme in BACKENDS:
        ours, theirs = Ours(scheme, server, jobs), Theirs(scheme, server, jobs)
        for title, (figure, others_figure, bars) in CALLS.items():
            bar = bars.get(scheme, NO_BAR)
            yield Row(f"{scheme}: {title}, Keuss", "/s", ours, figure, (theirs,), others_figure, bar)
        for name in ("push", "pop", "reserve_ok"):
            yield Row(f"{scheme}: {name}, our processor time for a job", "us", ours, f"cpu_us_{name}")


def main() -> None:
    """Runs the chosen rows and shows them."""
    parser = options("Our queues on MongoDB beside those of Keuss.")
    parser.set_defaults(rounds=3)
    parser.add_argument("--jobs", type=int, default=JOBS, help="jobs of each figure")
    chosen = parser.parse_args()
    stop_on_sigterm()
    os.environ.setdefault("NODE_PATH", str(MODULES))
    facts = machine(chosen.penstock)
    for other in ("beanstalkd", "redis"):
        del facts[other]
    rounds: Rounds[Figures] = Rounds(chosen.quick, chosen.penstock)
    with mongod.running() as server:
        with server.client() as client:
            facts["mongod"] = str(client.server_info()["version"])
        wanted = rows(f"{server.host}:{server.port}", chosen.jobs)
        lines = [row for row in wanted if re.search(chosen.only, row.name, re.IGNORECASE)]
        rounds.run(list(dict.fromkeys(session for row in lines for session in row.sessions)), chosen.rounds)
    quick = ", quick" if chosen.quick else ""
    title = f"Queues on MongoDB beside those of Keuss, median of {chosen.rounds} rounds{quick}"
    report = Report(title, command_used("bench.mongo"), facts, [line_of(row, rounds) for row in lines])
    report.show()
    report.write(chosen.markdown, chosen.json)


if __name__ == "__main__":
    main()
