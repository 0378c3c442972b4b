"""Tables: rows of text, aligned for a pipe, or drawn for a terminal.

A table that is too wide for its terminal is split into several, each with the first column: wrapped rows can't be read.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")

GAP = 2  # blanks between columns
NOTHING = "-"
SIZE_UNITS = "BKMGT"
AGE_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))


class TableColumn(NamedTuple, Generic[T]):
    """A heading, its alignment, and how to make a cell."""

    heading: str
    is_right: bool
    cell: Callable[[T], str]


def cells(columns: Sequence[TableColumn[T]], items: Sequence[T]) -> list[list[str]]:
    """Return the headings, and a row for each item."""
    return [[column.heading for column in columns], *([column.cell(item) for column in columns] for item in items)]


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def plain(columns: Sequence[TableColumn[T]], items: Sequence[T]) -> str:
    """Return a table as lines of text."""
    rows = cells(columns, items)
    sizes = widths(rows)
    lines = []
    for row in rows:
        aligned = [
            text.rjust(size) if column.is_right else text.ljust(size)
            for text, size, column in zip(row, sizes, columns, strict=True)
        ]
        lines.append((" " * GAP).join(aligned).rstrip())
    return "\n".join(lines)


def cut(sizes: Sequence[int], room: int) -> list[list[int]]:
    """Return the columns of each table, so that all tables fit; the first column is in all of them."""
    tables: list[list[int]] = []
    used = room
    for at, size in enumerate(sizes[1:], 1):
        if not tables or used + GAP + size > room:
            tables.append([0])
            used = sizes[0]
        tables[-1].append(at)
        used += GAP + size
    return tables or [[0]]


def drawn(columns: Sequence[TableColumn[T]], items: Sequence[T], style: Callable[[T], str], room: int) -> list[Table]:
    """Return a table for a terminal, in as many tables as its width requires."""
    from rich.table import Table
    from rich.text import Text

    rows = cells(columns, items)
    tables = []
    for places in cut(widths(rows), room):
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
        for at in places:
            table.add_column(
                columns[at].heading, justify="right" if columns[at].is_right else "left", no_wrap=True, overflow="fold"
            )
        for item, row in zip(items, rows[1:], strict=True):
            table.add_row(*(Text(row[at]) for at in places), style=style(item))
        tables.append(table)
    return tables


def is_terminal() -> bool:
    """Whether the output is a terminal."""
    return sys.stdout.isatty()


def terminal_width() -> int:
    """Return the width of the terminal."""
    return shutil.get_terminal_size().columns


def size(count: int) -> str:
    """Return a number of bytes as text, such as 98.1K."""
    value = float(count)
    for unit in SIZE_UNITS:
        if value < 1024 or unit == SIZE_UNITS[-1]:
            break
        value /= 1024
    return f"{count}B" if unit == "B" else f"{value:.1f}{unit}"


def age(seconds: int) -> str:
    """Return a duration as text: 3d, 4h, 12m, 5s."""
    return next((f"{seconds // unit_s}{letter}" for unit_s, letter in AGE_UNITS if seconds >= unit_s), f"{seconds}s")


def jobs(count: int) -> str:
    """Return a number of jobs as text."""
    return f"{count} job" if count == 1 else f"{count} jobs"


def nodes(count: int) -> str:
    """Return a number of nodes as text."""
    return f"{count} node" if count == 1 else f"{count} nodes"
