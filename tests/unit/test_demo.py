"""The demo's books: what counts as lost, and how a duplicate came about."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

DEMO = Path(__file__).resolve().parents[2] / "scripts" / "demo"


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(DEMO))
    yield import_module("books")
    del sys.modules["books"]


def test_all_that_was_acknowledged_is_there(books: Any) -> None:
    rows = [books.Row(1, "job-1", "result-1"), books.Row(2, "job-2", "result-2")]
    found = books.balance({1, 2}, range(1, 3), rows)
    assert found.is_good
    assert (found.lost, found.unknown, found.orders, sum(found.duplicates.values())) == ([], [], 2, 0)


def test_an_acknowledged_order_without_a_row_is_lost(books: Any) -> None:
    found = books.balance({1, 2, 3}, range(1, 4), [books.Row(2, "job-2", "result-2")])
    assert not found.is_good
    assert found.lost == [1, 3]


def test_an_order_whose_push_was_never_answered_may_be_there_or_not(books: Any) -> None:
    assert books.balance(set(), range(1, 3), [books.Row(2, "job-2", "result-2")]).is_good


def test_a_row_that_nobody_pushed_is_out_of_thin_air(books: Any) -> None:
    found = books.balance({1}, range(1, 2), [books.Row(1, "job-1", "a"), books.Row(7, "job-7", "b")])
    assert not found.is_good
    assert found.unknown == [7]


@pytest.mark.parametrize(
    ("second", "cause"),
    [
        (("another job", "another result"), "pushed again"),
        (("the job", "another result"), "worked again"),
        (("the job", "the result"), "written again"),
    ],
)
def test_a_duplicate_has_a_cause(books: Any, second: tuple[str, str], cause: str) -> None:
    found = books.balance({1}, range(1, 2), [books.Row(1, "the job", "the result"), books.Row(1, *second)])
    assert {name: count for name, count in found.duplicates.items() if count} == {cause: 1}
    assert found.is_good
    assert found.duplicates.keys() == books.CAUSES.keys()
