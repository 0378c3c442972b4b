"""The timer wheel against the simplest thing that does the same: a dict from item to time."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.core.timers import SLOT_BITS, Timed, Timers

pytestmark = pytest.mark.skipif(
    hasattr(Timed, "__mypyc_attrs__"),
    reason="its items are plain objects that weak references can follow; the compiled wheel takes only its own kind, "
    "and is tested through test_time and test_model",
)

START_MS = 1_000_000
SLOT_MS = 1 << SLOT_BITS


class Item:
    """Something with a time."""

    def __init__(self, name: int) -> None:
        self.name = name
        self.wake_at = 0

    def __repr__(self) -> str:
        return f"item {self.name}"


class Crowd:
    """Makes items, and counts what of them somebody still keeps."""

    def __init__(self) -> None:
        self._items: weakref.WeakSet[Item] = weakref.WeakSet()
        self._made = 0

    def make(self) -> Item:
        self._made += 1
        item = Item(self._made)
        self._items.add(item)
        return item

    def kept(self) -> int:
        return len(self._items)


def names(items: Iterable[object]) -> list[int]:
    return [item.name for item in items if isinstance(item, Item)]


# Times are near each other, so that items meet in slots, and also far away.
aheads = st.one_of(st.integers(1, 40), st.integers(1, 5 * SLOT_MS), st.sampled_from([10**6, 10**9]))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 7), aheads),
        st.tuples(st.just("set past"), st.integers(0, 7), st.integers(0, 500)),
        st.tuples(st.just("cancel"), st.integers(0, 7), st.just(0)),
        st.tuples(st.just("append"), st.integers(0, 7), st.integers(SLOT_MS + 1, 6 * SLOT_MS)),
        st.tuples(st.just("pass"), st.sampled_from([1, 2, 1000]), st.integers(0, 4 * SLOT_MS)),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(steps)
def test_items_come_at_their_time_in_order_each_once_whatever_was_moved_or_cancelled(
    steps: list[tuple[str, int, int]],
) -> None:
    timers = Timers()
    items = [Item(number) for number in range(8)]
    due_at: dict[int, int] = {}
    now_ms = START_MS
    list(timers.pop_due(now_ms, 1))
    for what, number, value in [*steps, ("pass", 1000, 2 * 10**9)]:
        if what in ("set", "set past"):
            at_ms = now_ms + value if what == "set" else now_ms - value
            timers.set(items[number], at_ms)
            due_at[number] = at_ms
        elif what == "append":
            timers.cancel(items[number])
            items[number].wake_at = due_at[number] = now_ms + value
            timers.slot(now_ms + value).items.append(items[number])
        elif what == "cancel":
            timers.cancel(items[number])
            due_at.pop(number, None)
        else:
            now_ms += value
            expected = sorted((at_ms, name) for name, at_ms in due_at.items() if at_ms <= now_ms)
            given_names = names(timers.pop_due(now_ms, number))
            assert [due_at[name] for name in given_names] == [at_ms for at_ms, _ in expected[:number]]
            assert len(set(given_names)) == len(given_names)
            assert all(items[name].wake_at == 0 for name in given_names)
            for name in given_names:
                del due_at[name]
        next_ms = timers.next_ms()
        if due_at:
            assert next_ms is not None
            assert next_ms <= min(due_at.values()), "the shell would sleep too long"
    assert due_at == {}


def test_while_an_item_is_handled_others_may_be_set_moved_and_cancelled() -> None:
    timers = Timers()
    first, second, third, fourth = (Item(number) for number in range(4))
    for item, at_ms in ((first, 1), (second, 2), (third, 3)):
        timers.set(item, START_MS + at_ms)
    seen = []
    for item in timers.pop_due(START_MS + 10, 100):
        seen.append(item)
        if item is first:
            timers.cancel(second)
            timers.set(fourth, START_MS + 5)
            timers.set(first, START_MS + 1000)
    assert seen == [first, third, fourth]
    assert names(timers.pop_due(START_MS + 1000, 100)) == [0]


def test_without_anything_planned_there_is_no_next_time() -> None:
    timers = Timers()
    item = Item(0)
    assert timers.next_ms() is None
    timers.set(item, START_MS)
    assert list(timers.pop_due(START_MS, 5)) == [item]
    assert timers.next_ms() is None


def test_a_cancelled_item_may_be_cancelled_again() -> None:
    timers = Timers()
    item = Item(0)
    timers.set(item, START_MS)
    timers.cancel(item)
    timers.cancel(item)
    assert list(timers.pop_due(START_MS + 10, 5)) == []


# What is cancelled must not be kept for long: a job, once acked, has no business in memory


@settings(max_examples=30)
@given(st.integers(1, 8), st.integers(0, 3000), st.integers(0, 500))
def test_items_that_are_cancelled_together_are_let_go(slots: int, ended: int, waiting: int) -> None:
    timers, crowd = Timers(), Crowd()
    list(timers.pop_due(START_MS, 1))
    for number in range(waiting):
        timers.set(crowd.make(), START_MS + SLOT_MS * (2 + number % slots))
    for number in range(ended):
        item = crowd.make()
        timers.set(item, START_MS + SLOT_MS * (2 + number % slots))
        timers.cancel(item)
    assert crowd.kept() <= 2 * waiting + 2 * slots


@pytest.mark.parametrize("a_second", [10, 100, 400])
def test_items_that_are_cancelled_are_let_go_also_where_few_come_at_a_time(a_second: int) -> None:
    timers, crowd = Timers(), Crowd()
    most = 0
    for number in range(20_000):
        now_ms = START_MS + number * 1000 // a_second
        list(timers.pop_due(now_ms, 100))
        item = crowd.make()
        timers.set(item, now_ms + 86_400_000)  # a job with a day to live, acked at once
        timers.cancel(item)
        del item
        most = max(most, crowd.kept())
    assert most <= 2000


@pytest.mark.parametrize("count", [1, 20])
def test_items_that_are_postponed_all_the_time_leave_little_behind(count: int) -> None:
    timers = Timers()
    items = [Item(number) for number in range(count)]
    now_ms = START_MS
    for move in range(20_000):
        now_ms += 7
        list(timers.pop_due(now_ms, 100))
        timers.set(items[move % count], now_ms + 3_600_000)
    assert sum(map(sys.getrefcount, items)) <= 2000


def test_items_that_move_to_and_fro_leave_little_behind() -> None:
    timers = Timers()
    list(timers.pop_due(START_MS, 1))
    one, other = Item(1), Item(2)
    near_ms, far_ms = START_MS + 10 * SLOT_MS, START_MS + 20 * SLOT_MS
    timers.set(one, near_ms)
    timers.set(other, near_ms)
    for number in range(20_000):
        mover = one if number % 50 == 0 else other
        timers.set(mover, far_ms)
        timers.set(mover, near_ms)
    assert sys.getrefcount(one) + sys.getrefcount(other) <= 2000
