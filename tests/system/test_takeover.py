"""Real nodes: when one dies, the others queue what waited there long before the retry time, and nothing else."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from penstock.client import Connection
from tests.processes import NodeProcess, meet, wait_until, wait_until_met

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

StartNode = Callable[..., NodeProcess]

NODE_TIMEOUT_MS = 2000
RETRY_S = 300
WITHIN_S = 20 * NODE_TIMEOUT_MS / 1000  # far more than it takes, far less than the retry time
JOBS = 500
QUEUE = b"work"


@pytest.fixture
def nodes(start_node: StartNode) -> list[NodeProcess]:
    nodes = [start_node(cluster_node_timeout=NODE_TIMEOUT_MS) for _ in range(3)]
    meet(*nodes)
    met_s = [_uptime_s(node) for node in nodes]
    # A node that has just joined tells where its jobs are within a second; one that dies before that isn't taken over.
    wait_until(lambda: all(_uptime_s(node) > met + 2 for node, met in zip(nodes, met_s, strict=True)))
    return nodes


def _uptime_s(node: NodeProcess) -> int:
    return int(node.info()["uptime_in_seconds"])


def add(node: NodeProcess) -> None:
    bodies = [b"%d" % number for number in range(JOBS)]
    node.call("ADDJOBS", QUEUE, 5000, "REPLICATE", 2, "RETRY", RETRY_S, "BODIES", *bodies)


def fetch(connection: Connection) -> list[tuple[bytes, int, int]]:
    """Fetch jobs; return their bodies, nacks and additional deliveries."""
    jobs = connection.execute("GETJOB", "NOHANG", "COUNT", 100, "WITHCOUNTERS", "FROM", QUEUE) or []
    return [(job[2], job[4], job[6]) for job in jobs]


def test_what_waited_on_a_node_that_is_killed_comes_within_node_timeouts(nodes: list[NodeProcess]) -> None:
    dead, *rest = nodes
    add(dead)
    out = {job[2] for job in dead.call("GETJOB", "COUNT", 50, "LEASE", 250_000, "FROM", QUEUE)}
    assert len(out) == 50
    dead.call("ADDJOB", "other", "behind the word of the leases", 5000, "REPLICATE", 3)
    dead.kill()
    found: list[tuple[bytes, int, int]] = []
    connections = [node.connect() for node in rest]

    def all_came() -> bool:
        for connection in connections:
            found.extend(fetch(connection))
        return len(found) >= JOBS - len(out)

    wait_until(all_came, WITHIN_S, every=0.1)
    assert sorted(found) == sorted((b"%d" % n, 0, 0) for n in range(JOBS) if b"%d" % n not in out)
    for connection in connections:
        connection.close()


def test_a_node_that_stood_still_gives_nothing_that_others_have_taken_over(nodes: list[NodeProcess]) -> None:
    still, *rest = nodes
    add(still)
    assert still.process is not None
    still.process.send_signal(signal.SIGSTOP)
    found: list[bytes] = []
    connections = [node.connect() for node in rest]
    try:

        def all_came() -> bool:
            for connection in connections:
                found.extend(body for body, _, _ in fetch(connection))
            return len(found) >= JOBS

        wait_until(all_came, WITHIN_S, every=0.1)
    finally:
        still.process.send_signal(signal.SIGCONT)
        for connection in connections:
            connection.close()
    assert sorted(found) == sorted(b"%d" % number for number in range(JOBS))
    wait_until_met(*nodes)
    assert not still.call("GETJOB", "NOHANG", "COUNT", 100, "FROM", QUEUE)
