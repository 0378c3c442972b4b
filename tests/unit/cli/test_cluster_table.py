"""Tables for people: aligned, and never wider than their terminal."""

from __future__ import annotations

import pytest

from penstock.cli.cluster import table
from penstock.cli.cluster.table import TableColumn

COLUMNS = (TableColumn[int]("NAME", False, lambda n: f"n{n}"), TableColumn[int]("SQUARE", True, lambda n: str(n * n)))


def test_columns_are_aligned_to_their_side() -> None:
    assert table.plain(COLUMNS, [2, 100]) == "NAME  SQUARE\nn2         4\nn100   10000"


def test_a_table_without_rows_is_its_headings() -> None:
    assert table.plain(COLUMNS, []) == "NAME  SQUARE"


@pytest.mark.parametrize(
    ("sizes", "room", "tables"),
    [
        ([4, 6, 6], 80, [[0, 1, 2]]),
        ([4, 6, 6], 20, [[0, 1, 2]]),
        ([4, 6, 6], 19, [[0, 1], [0, 2]]),
        ([4, 6, 6, 1], 19, [[0, 1], [0, 2, 3]]),
        ([4, 60, 6], 19, [[0, 1], [0, 2]]),  # what fits nowhere still stands somewhere
        ([4], 80, [[0]]),
    ],
)
def test_a_table_is_cut_where_the_terminal_ends(sizes: list[int], room: int, tables: list[list[int]]) -> None:
    assert table.cut(sizes, room) == tables


def test_a_drawn_table_shows_all_cells_in_as_many_tables_as_it_takes() -> None:
    from rich.console import Console

    columns = (*COLUMNS, TableColumn[int]("CUBE", True, lambda n: str(n**3)))
    console = Console(width=14, force_terminal=False)
    with console.capture() as capture:
        for one in table.drawn(columns, [2, 100], lambda n: "red", 14):
            console.print(one)
    assert [row.split() for row in capture.get().splitlines()] == [
        ["NAME", "SQUARE"],
        ["n2", "4"],
        ["n100", "10000"],
        ["NAME", "CUBE"],
        ["n2", "8"],
        ["n100", "1000000"],
    ]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0B"), (1023, "1023B"), (1024, "1.0K"), (1536, "1.5K"), (1 << 30, "1.0G"), (5 << 50, "5120.0T")],
)
def test_sizes(count: int, text: str) -> None:
    assert table.size(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (59, "59s"), (60, "1m"), (7200, "2h"), (200_000, "2d")])
def test_ages(seconds: int, text: str) -> None:
    assert table.age(seconds) == text
