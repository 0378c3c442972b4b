"""`penstock cluster add`: when a node counts as added, and what is left behind when it could not be."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli.cluster import change
from penstock.cli.cluster.access import Access
from penstock.cli.cluster.view import Report, View
from penstock.cli.output import EventPrinter
from penstock.client.addresses import Address
from penstock.errors import OperatorError, PeerError
from tests.unit.cli.cluster_data import line, member, node_id, report, view

OLD, NEW = Address("10.0.0.1", 7711), Address("10.0.0.1", 7713)
DONE = "the cluster is as it was before"


class World(Access):
    """Nodes 1 and 2, which are a cluster, and 3, which is met. What they think of each other is up to the test."""

    def __init__(self) -> None:
        super().__init__()
        self.knows: dict[int, set[int]] = {1: {2}, 2: {1}, 3: set()}
        self.linked: Iterator[bool] | None = None  # whether 3 has a link to the others, in each look
        self.deaf: set[int] = set()  # nodes that forget nobody
        self.down: set[int] = set()
        self.learns: set[int] = set()  # whom 3 gets to know when it is met
        self.met = False
        self.now = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def report(self, number: int, linked: bool = True) -> Report:
        others = (line(other, is_linked=linked or number != 3) for other in sorted(self.knows[number]))
        return report(number, *others)

    def ask(self, _access: Access, address: Address) -> Report:
        number = address.port - 7710
        if number in self.down:
            raise PeerError("refused")
        return self.report(number)

    def view_cluster(self, _access: Access, address: Address) -> View:
        first = address.port - 7710
        if first == 3 and not self.met:
            return view(member(3, self.report(3), "itself"))
        linked = next(self.linked) if self.met and self.linked is not None else True
        numbers = sorted({1, 2} | self.knows[1] | self.knows[2])
        return view(*(member(one, None if one in self.down else self.report(one, linked)) for one in numbers))

    def run(self, address: Address, *words: Any) -> Any:
        number = address.port - 7710
        if words[1] == "MEET":
            self.met = True
            self.knows[number] |= {3} - {number}
            self.knows[3] |= self.learns
        elif number not in self.deaf:
            self.knows[number] -= {other for other in (1, 2, 3) if node_id(other) == words[2]}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    clock = SimpleNamespace(monotonic=lambda: made.now, sleep=made.sleep)
    monkeypatch.setattr(change, "ask", made.ask)
    monkeypatch.setattr(change, "time", clock)
    monkeypatch.setattr(change, "view_cluster", made.view_cluster)
    monkeypatch.setattr(change, "_reachable_ip", lambda *_places: "10.0.0.1")
    return made


def add(world: World) -> int:
    return change.add(world, NEW, OLD, False, 10, EventPrinter())


def test_an_add_that_failed_leaves_the_cluster_as_it_was(world: World) -> None:
    with pytest.raises(OperatorError, match=DONE):
        add(world)
    assert world.met
    assert world.knows == {1: {2}, 2: {1}, 3: set()}


def test_the_new_node_forgets_the_cluster_too(world: World) -> None:
    world.learns = {1}
    with pytest.raises(OperatorError, match=DONE):
        add(world)
    assert world.knows[3] == set()


def test_what_could_not_be_undone_is_reported_as_commands(world: World) -> None:
    world.deaf = {1, 3}
    with pytest.raises(OperatorError) as told:
        add(world)
    assert f"  penstock cli -h 10.0.0.1 -p 7711 CLUSTER FORGET {node_id(3)}" in str(told.value)
    assert "-p 7712" not in str(told.value)


def test_a_node_that_could_not_be_asked_to_forget_is_named_with_the_command(world: World) -> None:
    world.down = {2}
    with pytest.raises(OperatorError) as told:
        add(world)
    assert DONE in str(told.value)
    assert f"  penstock cli -h 10.0.0.1 -p 7712 CLUSTER FORGET {node_id(3)}" in str(told.value)


def test_a_node_that_was_in_the_cluster_before_is_not_forgotten(world: World) -> None:
    world.knows[1].add(3)
    world.met = True
    world.linked = repeat(False)
    with pytest.raises(OperatorError, match="was in the cluster before"):
        add(world)
    assert 3 in world.knows[1]


def test_an_add_that_is_interrupted_is_undone(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Iterator[bool]:
        raise KeyboardInterrupt
        yield True

    world.linked = broken()
    with pytest.raises(KeyboardInterrupt):
        add(world)
    assert world.knows == {1: {2}, 2: {1}, 3: set()}
    assert DONE in capsys.readouterr().err


def test_a_link_that_exists_for_a_moment_is_no_success(world: World) -> None:
    world.learns = {1, 2}
    world.linked = cycle([True, False])
    with pytest.raises(OperatorError, match="is not in the cluster"):
        add(world)


def test_two_checks_in_a_row_are_a_success(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.learns = {1, 2}
    world.linked = iter([False, True, False, True, True, True])
    assert add(world) == 0
    assert "is in the cluster now: 3 nodes" in capsys.readouterr().out
