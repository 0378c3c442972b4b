"""Memory of a real node: what it says it uses is what its process takes, and its limit holds."""

from __future__ import annotations

import pytest

from penstock.client import Connection
from penstock.errors import ReplyError
from tests.conftest import StartNode
from tests.processes import NodeProcess, resident_bytes, settled_bytes, wait_until
from tests.raw_link import encode

pytestmark = pytest.mark.system

BODY_BYTES = 12
BATCH = 2000  # commands sent in one go
JOB_BYTES_MAX = 500  # what a job may take beside its body


def used_bytes(node: NodeProcess) -> int:
    return int(node.info()["used_memory"])


def add(connection: Connection, count: int, body: bytes, queue: str = "q") -> list[bytes]:
    """Add jobs in a pipeline of encoded commands; give their ids."""
    command = encode("ADDJOB", queue, body, 0)
    ids: list[bytes] = []
    while len(ids) < count:
        batch = min(BATCH, count - len(ids))
        connection.send_bytes(command * batch)
        ids += [connection.receive() for _ in range(batch)]
    assert not any(isinstance(job_id, ReplyError) for job_id in ids)
    return ids


def finish(connection: Connection, ids: list[bytes]) -> None:
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        assert connection.execute("ACKJOB", *batch) == len(batch)


def settled(node: NodeProcess) -> int:
    """Give what is used by a node that has one client and one empty queue, once that is accounted for."""
    with node.connect() as connection:
        finish(connection, add(connection, 1, b"x"))
    wait_until(lambda: node.info()["connected_clients"] == "1")
    return settled_bytes(node)


def test_an_idle_node_uses_well_under_a_megabyte(node: NodeProcess) -> None:
    assert settled(node) < 200_000


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("journal", ["no", "yes"])
def test_a_million_jobs_take_what_the_node_says_and_give_it_back(start_node: StartNode, journal: str) -> None:
    count = 1_000_000
    node = start_node(maxmemory="4gb", appendonly=journal)
    idle, rss = settled(node), resident_bytes(node)
    with node.connect() as connection:
        ids = add(connection, count, b"x" * BODY_BYTES)
        wait_until(lambda: node.info().get("aof_buffer_length", "0") == "0")
        accounted, taken = used_bytes(node) - idle, resident_bytes(node) - rss
        assert 0.75 < accounted / taken < 1.25
        assert taken / count - BODY_BYTES <= JOB_BYTES_MAX
        finish(connection, ids)
    assert node.info()["registered_jobs"] == "0"
    wait_until(lambda: used_bytes(node) == idle)


@pytest.mark.parametrize(("size", "count"), [(100, 100_000), (1000, 50_000), (10_000, 10_000)])
def test_larger_bodies_take_what_the_node_says(start_node: StartNode, size: int, count: int) -> None:
    node = start_node(maxmemory="4gb")
    idle, rss = settled(node), resident_bytes(node)
    with node.connect() as connection:
        add(connection, count, b"x" * size)
    accounted, taken = used_bytes(node) - idle, resident_bytes(node) - rss
    assert 0.75 < accounted / taken < 1.25


@pytest.mark.slow
def test_jobs_added_one_by_one_take_what_the_node_says(start_node: StartNode) -> None:
    """They share less than those of a pipeline."""
    count = 50_000
    node = start_node(maxmemory="4gb")
    idle, rss = settled(node), resident_bytes(node)
    for _ in range(count):
        node.call("ADDJOB", "q", b"x" * BODY_BYTES, 0)
    accounted, taken = used_bytes(node) - idle, resident_bytes(node) - rss
    assert 0.75 < accounted / taken < 1.25
    assert taken / count - BODY_BYTES <= JOB_BYTES_MAX


def test_queues_take_what_the_node_says(start_node: StartNode) -> None:
    count = 100_000
    node = start_node(maxmemory="4gb")
    idle, rss = settled(node), resident_bytes(node)
    with node.connect() as connection:
        for start in range(0, count, BATCH):
            names = range(start, start + BATCH)
            connection.send_bytes(b"".join(encode("GETJOB", "NOHANG", "FROM", f"queue-{name}") for name in names))
            for _ in names:
                connection.receive()
    accounted, taken = used_bytes(node) - idle, resident_bytes(node) - rss
    assert 0.75 < accounted / taken < 1.25


def test_connections_take_what_the_node_says(node: NodeProcess) -> None:
    count = 500
    idle, rss = settled(node), resident_bytes(node)
    connections = [node.connect() for _ in range(count)]
    for connection in connections:
        connection.execute("PING")
    wait_until(lambda: used_bytes(node) - idle > count * 1000)
    taken = resident_bytes(node) - rss
    assert (used_bytes(node) - idle) / taken > 0.5
    for connection in connections:
        connection.close()
    wait_until(lambda: used_bytes(node) == idle)


def test_a_limit_of_a_few_megabytes_is_that_of_the_jobs(start_node: StartNode) -> None:
    limit = 3 << 20
    node = start_node(maxmemory="3mb")
    with node.connect() as connection:
        replies = connection.pipeline([("ADDJOB", "q", b"x" * 1000, 0)] * 3000)
    added = sum(not isinstance(reply, ReplyError) for reply in replies)
    assert "I'm out of memory" in str(replies[added])
    # A pipeline of adds is checked at its beginning and after every hundred of them.
    assert limit * 0.75 < used_bytes(node) < limit * 0.81
    assert added > 1000
    for _, job_id, _ in node.call("GETJOB", "COUNT", 100, "FROM", "q"):
        node.call("ACKJOB", job_id)
    assert node.call("ADDJOB", "q", b"x", 0)


def test_a_full_node_evicts_what_is_done_with_and_goes_on(start_node: StartNode) -> None:
    node = start_node(maxmemory="8mb")
    for _ in range(1000):
        node.call("ADDJOB", "q", b"x" * 4000, 0, "RETRY", 0)
    assert len(node.call("GETJOB", "COUNT", 1000, "FROM", "q")) == 1000
    before = used_bytes(node)
    node.call("CONFIG", "SET", "maxmemory", 4 << 20)
    assert node.call("NACK") == 0  # which would be refused if the node were full still
    assert used_bytes(node) <= (4 << 20) * 0.95 < before
    assert 0 < int(node.info()["registered_jobs"]) < 1000


def test_a_thousand_empty_queues_vanish_when_memory_is_short(node: NodeProcess) -> None:
    for number in range(1000):
        node.call("GETJOB", "NOHANG", "FROM", f"queue-{number}")
    assert node.info()["registered_queues"] == "1000"
    node.call("CONFIG", "SET", "maxmemory", 1)
    wait_until(lambda: node.info()["registered_queues"] == "0")
