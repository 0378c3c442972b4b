"""The lake of the demo: what the nodes and workers wrote down becomes tables, a report, and the story of one job.

It stays when the demo ends, in a directory that the demo names: `build/demo`, unless it is told another.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from parts import DemoFailed, Parts
from screen import Screen


class DemoLake:
    """Where it is, and how it is made."""

    def __init__(self, directory: Path, events: Path) -> None:
        self.directory, self.events = directory.absolute(), events
        self.lake, self.report = self.directory / "lake", self.directory / "report.html"

    def clear(self) -> None:
        """Delete what an earlier demo has left, and nothing else."""
        if self.lake.exists() and not (self.lake / "events" / "_delta_log").is_dir():
            raise DemoFailed(f"{self.lake} must be a lake or nothing: give another directory with --lake")
        shutil.rmtree(self.lake, ignore_errors=True)
        self.report.unlink(missing_ok=True)
        self.directory.mkdir(parents=True, exist_ok=True)

    def build(self, parts: Parts, screen: Screen, variables: Mapping[str, str]) -> None:
        """Make the tables, the report, and tell the story of the job with the longest one."""
        where = ("--lake", str(self.lake))
        screen.command("penstock lake build --events events --lake lake")
        began = time.monotonic()
        said = parts.call("lake", "build", "--events", str(self.events), *where, variables=variables)
        screen.say(f"{_last_line(said)}. It took {time.monotonic() - began:.0f} s, most of them for Spark to start.")
        screen.command("penstock lake report --lake lake --to report.html")
        parts.call("lake", "report", *where, "--to", str(self.report), variables=variables)
        job = self.longest_story()
        screen.say("One of the orders that were delivered most often:")
        screen.command(f"penstock why {job} --lake lake")
        for line in parts.call("why", job, *where).splitlines():
            screen.say(line)
        screen.say(f"The lake is {self.lake}, the report {self.report}: they stay. Ask more:", "bold")
        screen.command(
            f'penstock lake query "select queue, outcome, count(*) from jobs group by all" --lake {self.lake}'
        )

    def longest_story(self) -> str:
        """Return the order with the most deliveries, and of those the one with the most events."""
        table = import_module("penstock.lake.table").LakeTable(self.lake, import_module("penstock.lake.schemas").JOBS)
        rows = table.arrow(table.snapshot().files, ["job", "queue", "attempts", "events"]).to_pylist()
        orders = [row for row in rows if row["queue"] == "orders"]
        if not orders:
            raise DemoFailed("the lake has no orders")
        found: str = max(orders, key=lambda row: (row["attempts"], row["events"]))["job"]
        return found


def why_no_lake() -> str:
    """What is missing for a lake, beside Spark; nothing if all is there."""
    try:
        import_module("bokeh")
        import_module("penstock.lake.table")
    except Exception as problem:
        return str(problem)
    return ""


def _last_line(said: str) -> str:
    lines = [line for line in said.splitlines() if " commits, " in line]
    return lines[-1] if lines else said.strip()
