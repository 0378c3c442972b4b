"""What nodes would say, made up: reports and views for tests of what is worked out from them."""

from __future__ import annotations

from typing import Any

from penstock.cli.cluster.view import Member, NodeLine, Report, View
from penstock.client.addresses import Address


def node_id(number: int) -> str:
    return f"{number:x}" * 40


def line(number: int, *flags: str, is_linked: bool = True) -> NodeLine:
    return NodeLine(node_id(number), "10.0.0.1", 7710 + number, frozenset(flags), is_linked)


def report(number: int, *others: NodeLine, **facts: Any) -> Report:
    """A node that knows these others. Facts are of INFO or CLUSTER INFO, or fields of the report."""
    lines = {one.id: one for one in (line(number, "myself", *facts.pop("flags", ())), *others)}
    info = {
        "registered_jobs": "0",
        "registered_queues": "0",
        "used_memory": "2048",
        "connected_clients": "3",
        "uptime_in_seconds": "90",
        "penstock_version": "0.1.0",
    }
    cluster = {"reachable_nodes": str(len(others)), "stats_messages_sent": "7", "stats_messages_received": "8"}
    fields = {"memory_limit": 1 << 30, "acked": 0}
    for name, value in facts.items():
        place = fields if name in fields else cluster if name in {"draining", "drain_left"} else info
        place[name] = value
    return Report(node_id(number), lines, info, cluster, **fields)


def member(
    number: int, said: Report | None, link: str = "up", problem: str = "", flags: tuple[str, ...] = ()
) -> Member:
    place = Address("10.0.0.1", 7710 + number)
    return Member(node_id(number), place, place, frozenset(flags), link, said, problem)


def view(*members: Member) -> View:
    return View(Address("10.0.0.1", 7711), list(members))


def trio(**facts: Any) -> View:
    """Three nodes that are well; the facts are those of the first."""
    return view(
        member(1, report(1, line(2), line(3), **facts), "itself"),
        member(2, report(2, line(1), line(3))),
        member(3, report(3, line(1), line(2))),
    )
