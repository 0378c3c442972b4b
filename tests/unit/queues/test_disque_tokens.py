"""Tokens of leases of a node, and what is not one."""

from __future__ import annotations

import pytest

from penstock.job import Lease
from penstock.queues.stores.disque.jobs import lease_groups, token

NODE = "a" * 40


@pytest.mark.parametrize("text", ["nonsense", "", "5", "5@", f"5@{NODE}", f"5@{NODE}@soon", f"five@{NODE}@1", "5@@1"])
def test_what_no_node_gave_is_the_lease_of_nothing(text: str) -> None:
    assert lease_groups([Lease("D-1", text)]) == []


def test_leases_of_one_fetch_are_held_together() -> None:
    (one,) = lease_groups([Lease("D-1", token(5, NODE, 9)), Lease("D-2", "nonsense"), Lease("D-3", token(6, NODE, 9))])
    assert (one.node, one.until_ms, one.places) == (NODE, 9, [0, 2])
    assert one.pairs() == ["D-1", "5", "D-3", "6"]
