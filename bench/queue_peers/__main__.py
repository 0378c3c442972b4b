"""All peers, one after the other: `python -m bench.queue_peers`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from bench.queue_peers.commands import JOBS, LATENCIES, RUNS, measure
from bench.report import machine
from bench.servers import NotRunError, stop_on_sigterm
from bench.table import Table

HEADS = ("jobs a second", "enqueue", "run", "end to end", "push", "pop", "reserve + ok", "p50 ms", "p99 ms")


def cells(figures: dict[str, Any]) -> list[str]:
    """A row of the table; rates from the times."""

    def by(name: str) -> str:
        return f"{figures['jobs'] / figures[name]:,.0f}" if name in figures else ""

    def plain(name: str, form: str) -> str:
        return format(figures[name], form) if name in figures else ""

    rates = [by("enqueue_s"), by("run_s"), by("end_to_end_s")]
    rates += [plain(f"{name}_per_s", ",.0f") for name in ("push", "pop", "reserve_ok")]
    return rates + [plain(f"latency_{name}_ms", ".2f") for name in ("p50", "p99")]


def main() -> None:
    """Measures and shows."""
    parser = argparse.ArgumentParser(description="Other people's queues, measured one way.")
    parser.add_argument("--only", default="", metavar="PATTERN", help="peers whose name matches this")
    parser.add_argument("--jobs", type=int, default=JOBS, help="slow peers run a fraction of them")
    parser.add_argument("--latencies", type=int, default=LATENCIES, help="how many single jobs are timed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what the peers answered")
    chosen = parser.parse_args()
    stop_on_sigterm()
    facts = machine()
    rows: list[list[str]] = []
    answers: list[dict[str, Any]] = []
    for run in RUNS:
        if not re.search(chosen.only, run.name):
            continue
        print(f"{run.name} ...", file=sys.stderr)
        try:
            answers.append(measure(run, chosen.jobs, chosen.latencies))
        except NotRunError as error:
            answers.append({"peer": run.peer, "settings": run.settings, "jobs": 0, "error": str(error)})
            print(f"not run: {error}", file=sys.stderr)
        rows.append([run.name, *cells(answers[-1])])
    Table("Queues of others", HEADS, rows).show([f"{name}: {value}" for name, value in facts.items()])
    if chosen.json:
        chosen.json.write_text(json.dumps({"machine": facts, "answers": answers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
