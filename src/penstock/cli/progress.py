"""Counts what was done, and shows it as a bar on a terminal while it takes long."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class Counted:
    """A count that grows by calling it; within its block a terminal shows how far it is."""

    def __init__(self, what: str, expected: int | None = None, *, quiet: bool = False) -> None:
        """`expected` is how many it will be, if that is known."""
        self.total = 0
        self._what = what
        self._expected = expected
        self._quiet = quiet
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Counted:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(file=sys.stderr))
            self._task = self._bar.add_task(self._what, total=self._expected)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, count: int) -> None:
        self.total += count
        if self._bar is not None:
            self._bar.advance(self._task, count)
