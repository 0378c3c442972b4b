"""What the demo shows: headings, commands as one would type them, and figures that change.

On a terminal the figures are a small table that stays at the bottom; in a pipe they are a line every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

LINE_EVERY_S = 3.0


class Figures(NamedTuple):
    """How things stand."""

    seconds: float
    nodes: dict[str, bool]  # whether each is up
    goal: int
    produced: int
    done: int
    stored: int
    place: str  # where results are stored

    def table(self) -> Table:
        """As a table for a terminal."""
        table = Table(box=box.SIMPLE, pad_edge=False)
        for name in ("seconds", *self.nodes, "produced", "done", f"in {self.place}"):
            table.add_column(name, justify="right", min_width=8)
        states = ["[green]up[/]" if is_up else "[bold red]down[/]" for is_up in self.nodes.values()]
        counts = [f"{self.produced:,}", f"{self.done:,}", f"{self.stored:,}"]
        table.add_row(f"{self.seconds:.0f}", *states, *counts)
        return table

    def line(self) -> str:
        """As a line for a pipe."""
        up = sum(self.nodes.values())
        return (
            f"{self.seconds:4.0f} s | nodes up: {up} of {len(self.nodes)} | produced: {self.produced:,} of "
            f"{self.goal:,} | done: {self.done:,} | in {self.place}: {self.stored:,}"
        )


class Screen:
    """Where it is shown; nowhere, if it is silent."""

    def __init__(self, is_silent: bool = False) -> None:
        self._console = Console(highlight=False, soft_wrap=True, quiet=is_silent)
        self._live: Live | None = None
        self._line_at = 0.0

    def title(self, text: str) -> None:
        """Begin a part of the tour."""
        self._console.print(f"\n[bold cyan]{escape(text)}[/]")

    def say(self, text: str, style: str = "") -> None:
        """Say something."""
        self._console.print(f"  {escape(text)}", style=style)

    def command(self, text: str, style: str = "green") -> None:
        """A command as one would type it."""
        self._console.print(f"  [{style}]$ {escape(text)}[/]")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While figures are shown."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False) as self._live:
            yield
        self._live = None

    def show(self, figures: Figures) -> None:
        """How things stand now."""
        if self._live is not None:
            self._live.update(figures.table(), refresh=True)
        elif time.monotonic() - self._line_at >= LINE_EVERY_S:
            self._line_at = time.monotonic()
            self.say(figures.line())

    def rows(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """A table of names, figures and remarks."""
        widths = [max(len(row[at]) for row in rows) for at in range(2)]
        for name, figure, remark in rows:
            self.say(f"{name:<{widths[0]}}  {figure:>{widths[1]}}  {remark}".rstrip())
