"""Which events a table has."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.coverage import Coverage

RANGES = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9)).map(lambda pair: (pair[0], sum(pair))), max_size=20)


def numbers(coverage: Coverage) -> set[int]:
    return {seq for _, _, (first, last) in coverage for seq in range(first, last + 1)}


@given(RANGES)
def test_ranges_in_any_order_cover_their_union(ranges: list[tuple[int, int]]) -> None:
    coverage = Coverage()
    for first, last in ranges:
        coverage.add("n", 1, first, last)
    assert numbers(coverage) == {seq for first, last in ranges for seq in range(first, last + 1)}
    kept = coverage.ranges("n", 1)
    assert all(high + 1 < low for (_, high), (low, _) in itertools.pairwise(kept)), "ranges that touch are one"


@given(RANGES, st.integers(1, 60), st.integers(1, 60))
def test_what_is_missing_of_a_range_is_what_is_not_covered(
    ranges: list[tuple[int, int]], first: int, last: int
) -> None:
    coverage = Coverage()
    for low, high in ranges:
        coverage.add("n", 1, low, high)
    missing = {seq for low, high in coverage.missing("n", 1, first, last) for seq in range(low, high + 1)}
    assert missing == set(range(first, last + 1)) - numbers(coverage)


def test_the_note_of_a_commit_returns_the_same_coverage() -> None:
    coverage = Coverage()
    coverage.add("a", 7, 1, 5)
    coverage.add("a", 9, 3, 4)
    coverage.add("b", 1, 1, 1)
    assert Coverage.from_json(json.loads(json.dumps(coverage.to_json()))) == coverage
    assert coverage.gaps() == [("a", 9, (1, 2))]


def test_an_epoch_is_covered_however_many_come_after_it() -> None:
    coverage = Coverage()
    for epoch in range(3000):  # of a node that could not start, and was started again each second
        coverage.add("a", epoch, 1, 1)
    assert Coverage.from_json(coverage.to_json()).missing("a", 0, 1, 1) == []
    assert coverage.drop("a", 0) == 1
    assert coverage.missing("a", 0, 1, 1) == [(1, 1)]
    assert (coverage.is_behind("a", 5, 1), coverage.is_behind("a", 2999, 2), coverage.is_behind("b", 1, 1)) == (
        True,
        False,
        False,
    )
