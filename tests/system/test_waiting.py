"""Real clusters: a client that waits on one node gets the jobs of the others, and jobs go nowhere else (P10)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock import blocking
from tests.processes import NodeProcess, meet, wait_until
from tests.raw_link import RawLink

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

QUEUE = "orders"
IDLE_CALLS = 8  # of a second each: the pause in which nothing happens
LATE_CALLS = 3  # of which the job may come, on a machine that is busy with other things

StartNode = Callable[..., NodeProcess]


@pytest.fixture
def pair(start_node: StartNode) -> tuple[NodeProcess, NodeProcess]:
    nodes = (start_node(cluster_node_timeout=15_000), start_node(cluster_node_timeout=15_000))
    meet(*nodes)
    return nodes


def blocked(node: NodeProcess) -> int:
    reply = node.call("QSTAT", QUEUE)
    return int(reply[reply.index(b"blocked") + 1]) if reply else 0


def calls(*nodes: NodeProcess) -> int:
    """Return how often jobs were asked for on these nodes."""
    found = 0
    for node in nodes:
        found += int(node.info().get("cmdstat_getjob", "calls=0,").partition("calls=")[2].partition(",")[0])
    return found


def test_a_consumer_of_the_library_gets_a_job_of_another_node_after_a_long_pause(
    pair: tuple[NodeProcess, NodeProcess],
) -> None:
    url = f"disque://{pair[0].host}:{pair[0].port}?replicate=1"
    with blocking.connect(url) as store, ThreadPoolExecutor(1) as pool:
        job = pool.submit(store.queue(QUEUE).pop, timeout=None)
        try:
            wait_until(lambda: calls(*pair) >= IDLE_CALLS, 60)  # it waits in slices, each a call of its own
            here = wait_until(lambda: [node for node in pair if blocked(node)], 60)
            (other,) = [node for node in pair if node not in here]
            before = calls(*pair)
            other.call("ADDJOB", QUEUE, '"late"', 0, "REPLICATE", 1)
            found = job.result(timeout=60)
            assert found is not None
            assert found.payload == "late"
            assert calls(*pair) <= before + LATE_CALLS
        finally:
            for node in pair:
                node.call("ADDJOB", QUEUE, "the end", 0, "REPLICATE", 1)  # or a thread would wait forever


def test_a_nack_on_another_node_brings_the_job_to_a_waiting_client(pair: tuple[NodeProcess, NodeProcess]) -> None:
    first, second = pair
    job_id = first.call("ADDJOB", QUEUE, "body", 0, "REPLICATE", 2, "RETRY", 3600)
    assert first.call("GETJOB", "FROM", QUEUE)
    link = RawLink(first)
    try:
        link.post("GETJOB", "FROM", QUEUE)
        wait_until(lambda: blocked(first))
        assert second.call("NACK", job_id) == 1
        assert job_id in link.reply()
    finally:
        link.close()


def test_a_job_stays_where_it_was_added_when_nobody_waits_elsewhere(pair: tuple[NodeProcess, NodeProcess]) -> None:
    first, second = pair
    job_id = first.call("ADDJOB", QUEUE, "one", 0, "REPLICATE", 1)
    assert second.call("GETJOB", "FROM", QUEUE)
    second.call("ACKJOB", job_id)
    # A second client comes and goes: its end is told at once, and with it that of the first.
    link = RawLink(second)
    link.post("GETJOB", "FROM", QUEUE)
    wait_until(lambda: blocked(second))
    link.close()
    wait_until(lambda: not blocked(second))
    # What it had to say to the first node came before this, whose copy that node confirms.
    second.call("ADDJOB", "fence", "body", 0, "REPLICATE", 2)
    job_id = first.call("ADDJOB", QUEUE, "two", 0, "REPLICATE", 1, "RETRY", 0)
    assert first.call("QLEN", QUEUE) == 1
    assert first.call("GETJOB", "NOHANG", "FROM", QUEUE) == [[QUEUE.encode(), job_id, b"two"]]
