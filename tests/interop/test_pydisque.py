"""pydisque, Disque's own Python client."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.processes import NodeProcess, need_module, wait_until

pytestmark = pytest.mark.interop

NO_SUCH_ID = "D-00000000-AAAAAAAAAAAAAAAAAAAAAAAA-05a1"


def connect(node: NodeProcess) -> Any:
    client = need_module("pydisque.client").Client([f"{node.host}:{node.port}"])
    client.connect()
    return client


@pytest.fixture
def client(shared_node: NodeProcess) -> Any:
    return connect(shared_node)


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue of this test alone."""
    return request.node.name


def test_hello_names_the_node_it_is_connected_to(client: Any, shared_node: NodeProcess) -> None:
    version, node_id, (row_id, _, port, priority) = client.hello()
    assert (version, row_id, port, priority) == (1, node_id, str(shared_node.port).encode(), b"1")
    assert client.connected_node.node_id == node_id == shared_node.call("CLUSTER", "MYID")


def test_a_job_is_added_fetched_and_acked(client: Any, queue: str) -> None:
    job_id = client.add_job(queue, "hello", timeout=100)
    assert client.get_job([queue], timeout=1000) == [(queue.encode(), job_id, b"hello")]
    client.ack_job(job_id)
    assert client.show(job_id) is None


def test_the_options_of_an_add_are_kept(client: Any, queue: str) -> None:
    job_id = client.add_job(queue, "x", replicate=1, delay=30, retry=40, ttl=500, asynchronous=True)
    facts = client.show(job_id, return_dict=True)
    assert [facts[name] for name in (b"repl", b"delay", b"retry", b"state")] == [1, 30, 40, b"active"]
    assert 495 <= facts[b"ttl"] <= 500


def test_a_nacked_job_is_counted(client: Any, queue: str) -> None:
    job_id = client.add_job(queue, "x")
    client.get_job([queue])
    client.nack_job(job_id)
    assert client.get_job([queue], withcounters=True) == [(queue.encode(), job_id, b"x", 1, 0)]


def test_working_answers_the_retry_time(client: Any, queue: str) -> None:
    job_id = client.add_job(queue, "x", retry=88)
    client.get_job([queue])
    assert client.working(job_id) == 88


def test_qlen_qpeek_and_qstat_read_without_taking(client: Any, queue: str) -> None:
    ids = [client.add_job(queue, str(number)) for number in range(3)]
    assert client.qlen(queue) == 3
    assert [row[1] for row in client.qpeek(queue, 2)] == ids[:2]
    assert client.qstat(queue, return_dict=True)[b"jobs-in"] == 3


def test_a_job_is_dequeued_and_enqueued(client: Any, queue: str) -> None:
    job_id = client.add_job(queue, "x")
    assert client.dequeue(job_id) == 1
    assert client.qlen(queue) == 0
    assert client.enqueue(job_id) == 1
    assert client.qlen(queue) == 1


def test_del_job_and_fast_ack_forget(client: Any, queue: str) -> None:
    first, second = client.add_job(queue, "1"), client.add_job(queue, "2")
    assert client.del_job(first) == 1
    client.fast_ack(second)
    assert client.qlen(queue) == 0


def test_scans_find_queue_and_job(client: Any, queue: str) -> None:
    job_id = client.add_job(queue, "x")
    assert queue.encode() in client.qscan(busyloop=True)[1]
    assert client.jscan(queue=queue, busyloop=True) == [b"0", [job_id]]
    ((row,)) = client.jscan(queue=queue, state=["queued"], reply="all", busyloop=True)[1]
    assert row[:2] == [b"id", job_id]


def test_a_paused_queue_refuses_jobs(client: Any, queue: str) -> None:
    redis = need_module("redis")
    assert client.pause(queue, kw_in=True) == b"in"
    with pytest.raises(redis.exceptions.ResponseError, match=r"^PAUSED "):
        client.add_job(queue, "x")
    assert client.pause(queue, kw_none=True) == b"none"


def test_no_job_is_an_empty_list(client: Any, queue: str) -> None:
    assert client.get_job([queue], nohang=True) == []


def test_a_blocked_client_gets_what_another_adds(client: Any, queue: str, shared_node: NodeProcess) -> None:
    got: list[Any] = []
    consumer = connect(shared_node)
    thread = threading.Thread(target=lambda: got.extend(consumer.get_job([queue], timeout=4000)), daemon=True)
    thread.start()
    wait_until(lambda: shared_node.info()["blocked_clients"] == "1")
    job_id = client.add_job(queue, "late")
    thread.join(10)
    assert got == [(queue.encode(), job_id, b"late")]


def test_an_unknown_job_is_an_error(client: Any) -> None:
    redis = need_module("redis")
    with pytest.raises(redis.exceptions.ResponseError, match=r"^NOJOB "):
        client.working(NO_SUCH_ID)


def test_info_is_understood(client: Any) -> None:
    assert client.info()["registered_jobs"] >= 0
