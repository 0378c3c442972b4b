"""A table of texts: rich on a terminal, aligned columns in a pipe, Markdown for a document."""

from __future__ import annotations

import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass, field


@dataclass
class Table:
    """Heads and rows of cells. The first column names the row; `words` are the other columns that hold no numbers."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Set[int] = frozenset()
    styles: dict[int, str] = field(default_factory=dict)  # of rows, for a terminal

    def _is_numeric(self, column: int) -> bool:
        return column > 0 and column not in self.words

    def show(self, footer: list[str]) -> None:
        """To standard output, with lines of text below it."""
        if sys.stdout.isatty():
            self._show_rich(footer)
        else:
            sys.stdout.write(self.plain(footer))

    def _show_rich(self, footer: list[str]) -> None:
        from rich.console import Console
        from rich.table import Table as RichTable

        table = RichTable(title=self.title)
        for number, head in enumerate(self.heads):
            table.add_column(head, justify="right" if self._is_numeric(number) else "left")
        for number, row in enumerate(self.rows):
            table.add_row(*row, style=self.styles.get(number))
        console = Console()
        console.print(table)
        console.print("\n".join(footer), highlight=False, markup=False)

    def plain(self, footer: list[str]) -> str:
        """Aligned columns without colours."""
        rows = [self.heads, *self.rows]
        widths = [max(len(row[column]) for row in rows) for column in range(len(self.heads))]
        text = [self.title, ""]
        for row in rows:
            padded = (
                cell.rjust(width) if self._is_numeric(column) else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            text.append("  ".join(padded).rstrip())
        text += ["", *footer]
        return "\n".join(text) + "\n"

    def markdown(self) -> list[str]:
        """The lines of the table for a document."""
        lines = ["| " + " | ".join(self.heads) + " |", "|" + "---|" * len(self.heads)]
        return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows]
