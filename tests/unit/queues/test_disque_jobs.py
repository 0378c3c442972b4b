"""Tokens of leases of a node, what is not one, and which jobs wait for their time."""

from __future__ import annotations

import pytest

from penstock.client.values import JobDetails
from penstock.job import Lease
from penstock.queues.stores.disque.jobs import is_before_its_time, lease_groups, token

NODE = "a" * 40


@pytest.mark.parametrize("text", ["nonsense", "", "5", "5@", f"5@{NODE}", f"5@{NODE}@soon", f"five@{NODE}@1", "5@@1"])
def test_what_no_node_gave_is_the_lease_of_nothing(text: str) -> None:
    assert lease_groups([Lease("D-1", text)]) == []


def test_leases_of_one_fetch_are_held_together() -> None:
    (one,) = lease_groups([Lease("D-1", token(5, NODE, 9)), Lease("D-2", "nonsense"), Lease("D-3", token(6, NODE, 9))])
    assert (one.node, one.until_ms, one.places) == (NODE, 9, [0, 2])
    assert one.pairs() == ["D-1", "5", "D-3", "6"]


@pytest.mark.parametrize(("delay", "is_waiting"), [(0, False), (1, True)])
def test_only_a_job_with_a_delay_waits_for_its_time(delay: int, is_waiting: bool) -> None:
    # The creation time is a millisecond ahead of the node's clock: such times strictly grow.
    details = JobDetails("D-1", "q", "active", 1, 60, 5_001_000_000, delay, 60, 0, 0, [], [], None, None, b"")
    assert is_before_its_time(details, 5000) == is_waiting
