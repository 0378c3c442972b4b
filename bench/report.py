"""How figures are shown: a table on a terminal, plain text elsewhere, Markdown and JSON in files.

A line is one comparison: samples of ours, samples of the peer's (one a round), and the bar that was set for
it. Medians count; the spread beside them is the least and the greatest sample, to show the noise.
The ratio by cpu divides items per processor second of the servers: steadier on a busy machine.
Nothing here fails a run: a missed bar is marked, and a line without samples says why it was not run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.servers import KINDS, PENSTOCK, version
from bench.table import Table

HEADS = ("", "ours", "peer", "ratio", "wanted", "verdict", "ratio by cpu", "busy: server/client, ours  peer")
VERDICT_COLUMN = 5
REFERENCE_HEAD = "the original, measured elsewhere"


@dataclass(frozen=True)
class Bar:
    """What a line has to reach; with several limits one of them is enough. An aim is shown, not judged."""

    ratio_min: float | None = None
    ratio_max: float | None = None
    ours_max: float | None = None
    ours_min: float | None = None
    aim: float | None = None

    def met(self, ours: float, ratio: float | None) -> bool | None:
        """Whether the medians reach the bar; None without a bar."""
        verdicts = []
        if self.ours_max is not None:
            verdicts.append(ours <= self.ours_max)
        if self.ours_min is not None:
            verdicts.append(ours >= self.ours_min)
        if self.ratio_min is not None and ratio is not None:
            verdicts.append(ratio >= self.ratio_min)
        if self.ratio_max is not None and ratio is not None:
            verdicts.append(ratio <= self.ratio_max)
        return any(verdicts) if verdicts else None

    def text(self, unit: str) -> str:
        """The bar in words, such as `≥ 0.75 (aim 0.9)`."""
        parts = []
        if self.ours_max is not None:
            parts.append(f"≤ {quantity(self.ours_max, unit)}")
        if self.ours_min is not None:
            parts.append(f"≥ {quantity(self.ours_min, unit)}")
        if self.ratio_min is not None:
            parts.append(f"≥ {self.ratio_min:g}")
        if self.ratio_max is not None:
            parts.append(f"≤ {self.ratio_max:g} times")
        return " or ".join(parts) + (f" (aim {self.aim:g})" if self.aim else "")


NO_BAR = Bar()


@dataclass
class Line:
    """One comparison of the report."""

    name: str
    unit: str = "/s"
    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)
    bar: Bar = NO_BAR
    note: str = ""
    cpu_ratios: list[float] = field(default_factory=list)
    busy: str = ""
    reference: str = ""  # what others have measured elsewhere: shown, never divided by

    def ratios(self) -> list[float]:
        """Ours by peer's, round by round where both ran in each round."""
        if len(self.ours) == len(self.peer):
            return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True) if peer]
        if not self.ours or not self.peer:
            return []
        return [statistics.median(self.ours) / statistics.median(self.peer)]

    def verdict(self) -> str:
        """`met`, `MISSED`, why it was not run, or nothing where no bar was set."""
        if self.note:
            return self.note
        if not self.ours:
            return "not run"
        ratios = self.ratios()
        met = self.bar.met(statistics.median(self.ours), statistics.median(ratios) if ratios else None)
        return "" if met is None else "met" if met else "MISSED"

    def cells(self) -> tuple[str, ...]:
        """The line as the columns of a table."""
        return (
            self.name,
            _spread(self.ours, self.unit),
            _spread(self.peer, self.unit),
            _spread(self.ratios(), ""),
            self.bar.text(self.unit),
            self.verdict().partition(":")[0],
            _spread(self.cpu_ratios, "") if self.cpu_ratios else "",
            self.busy,
        )

    def as_json(self) -> dict[str, object]:
        """All samples, for comparing runs later."""
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": self.ours,
            "peer": self.peer,
            "ratios": self.ratios(),
            "wanted": self.bar.text(self.unit),
            "verdict": self.verdict(),
            "cpu_ratios": self.cpu_ratios,
            "busy": self.busy,
            "reference": self.reference,
        }


def quantity(value: float, unit: str) -> str:
    """A figure with its unit, at a precision that fits a table."""
    if unit == "":
        return f"{value:.2f}"
    if unit == "/s":
        return f"{value / 1e6:.2f}M/s" if value >= 1e6 else f"{value / 1e3:.1f}k/s"
    if unit == "bytes":
        return f"{value:,.0f} B"
    if unit == "messages":
        return f"{value:.3g}"
    return f"{value:.{3 if value < 0.1 else 2}f} {unit}"


def _spread(samples: Sequence[float], unit: str) -> str:
    if not samples:
        return "-"
    middle = quantity(statistics.median(samples), unit)
    if len(samples) == 1:
        return middle
    least, most = (quantity(value, unit).removesuffix(unit).strip() for value in (min(samples), max(samples)))
    return f"{middle} ({least}..{most})"


def machine(program: Path = PENSTOCK) -> dict[str, str]:
    """What the figures depend on: the processor, the kernel, Python and the servers' versions."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    facts = {
        "processor": f"{model}, {os.cpu_count()} cores",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }
    return facts | {kind: version(kind, program) for kind in KINDS}


@dataclass
class Report:
    """A title, the machine and the lines."""

    title: str
    command: str
    facts: dict[str, str]
    lines: list[Line]

    def footer(self) -> list[str]:
        """The machine, and each reason for a line that was not run or failed, once."""
        reasons = dict.fromkeys(line.note for line in self.lines if line.note)
        return [*(f"{name}: {value}" for name, value in self.facts.items()), *reasons]

    def table(self) -> Table:
        """The lines as cells; of the last columns only those in which something stands."""
        heads = [*HEADS, REFERENCE_HEAD]
        rows = [[*line.cells(), line.reference] for line in self.lines]
        shown = [
            column for column in range(len(heads)) if column <= VERDICT_COLUMN or any(cells[column] for cells in rows)
        ]
        styles = {}
        for number, line in enumerate(self.lines):
            if line.verdict().startswith("MISSED"):
                styles[number] = "red"
            elif line.verdict().startswith("not run"):
                styles[number] = "dim"
        chosen_rows = [[cells[column] for column in shown] for cells in rows]
        return Table(self.title, [heads[column] for column in shown], chosen_rows, {VERDICT_COLUMN}, styles)

    def show(self) -> None:
        """To standard output."""
        self.table().show(self.footer())

    def markdown(self) -> str:
        """The table for a document, with the command that made it."""
        return document(self.table(), self.command, self.footer())

    def write(self, markdown: Path | None, as_json: Path | None) -> None:
        """The files that were asked for."""
        if markdown:
            markdown.write_text(self.markdown())
        if as_json:
            body = {"title": self.title, "command": self.command, "machine": self.facts}
            as_json.write_text(json.dumps(body | {"lines": [line.as_json() for line in self.lines]}, indent=1))


def document(table: Table, command: str, facts: list[str]) -> str:
    """A table as a section of a document, with the command that made it and what it depends on."""
    text = [f"## {table.title}", "", f"`{command}`, {time.strftime('%Y-%m-%d')}", ""]
    text += [*(f"- {fact}" for fact in facts), "", *table.markdown()]
    return "\n".join(text) + "\n"


def options(description: str) -> argparse.ArgumentParser:
    """The options that all benchmarks of this package share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of which the median is taken")
    parser.add_argument("--only", default="", metavar="PATTERN", help="rows whose name matches this")
    parser.add_argument("--quick", action="store_true", help="a smoke test with fewer requests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table for a document")
    parser.add_argument("--penstock", type=Path, default=PENSTOCK, metavar="PROGRAM", help="what to measure")
    return parser


def command_used(module: str) -> str:
    """The command line of this run, as one would type it."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


class Progress:
    """One line on standard error that says what runs now; a line each where it is not a terminal."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.done = 0
        self.begin_s = time.perf_counter()

    def step(self, what: str) -> None:
        """Another step begins."""
        self.done += 1
        text = f"[{self.done}/{self.steps}, {time.perf_counter() - self.begin_s:.0f} s] {what}"
        sys.stderr.write(f"\r\x1b[K{text}" if sys.stderr.isatty() else text + "\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Leaves a terminal's line clean."""
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
