"""redis-py, the client that most Python programs have already, in both versions of the protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import StartNode
from tests.processes import NodeProcess, need_module, wait_until

pytestmark = pytest.mark.interop

MakeClient = Callable[..., Any]
NO_SUCH_ID = "D-00000000-AAAAAAAAAAAAAAAAAAAAAAAA-05a1"


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def make_client(request: pytest.FixtureRequest, shared_node: NodeProcess) -> Iterator[MakeClient]:
    """Makes clients of the shared node that speak one version of the protocol."""
    redis = need_module("redis")
    clients = []

    def make(port: int = shared_node.port, **options: Any) -> Any:
        client = redis.Redis(port=port, protocol=request.param, **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(make_client: MakeClient) -> Any:
    return make_client()


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue of this test alone."""
    return request.node.name


def pairs(reply: list[Any]) -> dict[bytes, Any]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def test_the_handshake_ends_in_the_protocol_that_was_asked_for(client: Any) -> None:
    assert client.ping() is True
    wanted = int(client.connection_pool.connection_kwargs["protocol"])
    # A map is a dict only in version 3.
    assert isinstance(client.execute_command("CONFIG", "GET", "port"), dict if wanted == 3 else list)


def test_a_password_and_a_name_are_given_in_the_handshake(make_client: MakeClient, start_node: StartNode) -> None:
    node = start_node(requirepass="secret", appendonly="no")
    client = make_client(node.port, password="secret", client_name="worker-7")
    assert client.execute_command("CLIENT", "GETNAME") == b"worker-7"


def test_a_wrong_password_is_refused_as_redis_refuses_it(make_client: MakeClient, start_node: StartNode) -> None:
    redis = need_module("redis")
    node = start_node(requirepass="secret", appendonly="no")
    at_once = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    with pytest.raises((redis.exceptions.AuthenticationError, redis.exceptions.ResponseError), match="invalid"):
        make_client(node.port, password="wrong", retry=at_once).ping()


def test_a_job_goes_in_and_comes_out_byte_for_byte(client: Any, queue: str) -> None:
    body = bytes(range(256))
    job_id = client.execute_command("ADDJOB", queue, body, 0)
    assert client.execute_command("GETJOB", "FROM", queue) == [[queue.encode(), job_id, body]]


def test_an_acked_job_is_gone(client: Any, queue: str) -> None:
    job_id = client.execute_command("ADDJOB", queue, "x", 0)
    client.execute_command("GETJOB", "FROM", queue)
    assert client.execute_command("ACKJOB", job_id) == 1
    assert client.execute_command("SHOW", job_id) is None


def test_a_nacked_job_comes_back_counted(client: Any, queue: str) -> None:
    job_id = client.execute_command("ADDJOB", queue, "x", 0)
    client.execute_command("GETJOB", "FROM", queue)
    assert client.execute_command("NACK", job_id) == 1
    (job,) = client.execute_command("GETJOB", "WITHCOUNTERS", "FROM", queue)
    assert job[3:] == [b"nacks", 1, b"additional-deliveries", 0]


def test_working_answers_the_retry_time(client: Any, queue: str) -> None:
    job_id = client.execute_command("ADDJOB", queue, "x", 0, "RETRY", 123)
    client.execute_command("GETJOB", "FROM", queue)
    assert client.execute_command("WORKING", job_id) == 123


def test_show_has_state_and_counters(client: Any, queue: str) -> None:
    job_id = client.execute_command("ADDJOB", queue, "x", 0, "RETRY", 5, "TTL", 50)
    facts = pairs(client.execute_command("SHOW", job_id))
    assert (facts[b"state"], facts[b"retry"], facts[b"body"]) == (b"queued", 5, b"x")


def test_qlen_and_qpeek_read_without_taking(client: Any, queue: str) -> None:
    ids = [client.execute_command("ADDJOB", queue, str(n), 0) for n in range(3)]
    assert [job[1] for job in client.execute_command("QPEEK", queue, -2)] == [ids[2], ids[1]]
    assert client.execute_command("QLEN", queue) == 3


def test_no_job_is_none(client: Any, queue: str) -> None:
    assert client.execute_command("GETJOB", "NOHANG", "FROM", queue) is None


def test_a_blocked_client_gets_what_another_adds(make_client: MakeClient, queue: str) -> None:
    consumer, producer = make_client(), make_client()
    got: list[Any] = []
    thread = threading.Thread(
        target=lambda: got.extend(consumer.execute_command("GETJOB", "TIMEOUT", 4000, "FROM", queue) or []),
        daemon=True,
    )
    thread.start()
    wait_until(lambda: pairs(producer.execute_command("QSTAT", queue) or []).get(b"blocked") == 1)
    job_id = producer.execute_command("ADDJOB", queue, "late", 0)
    thread.join(10)
    assert got == [[queue.encode(), job_id, b"late"]]


def test_an_error_is_raised_with_its_code(client: Any) -> None:
    redis = need_module("redis")
    with pytest.raises(redis.exceptions.ResponseError, match=r"^NOJOB "):
        client.execute_command("WORKING", NO_SUCH_ID)
    with pytest.raises(redis.exceptions.ResponseError, match=r"^BADID "):
        client.execute_command("ACKJOB", "nonsense")


def test_a_pipeline_keeps_order_and_reports_errors_in_place(client: Any, queue: str) -> None:
    redis = need_module("redis")
    with client.pipeline(transaction=False) as pipe:
        for number in range(100):
            pipe.execute_command("ADDJOB", queue, str(number), 0)
        pipe.execute_command("BOGUS")
        pipe.execute_command("QLEN", queue)
        *ids, wrong, length = pipe.execute(raise_on_error=False)
    assert isinstance(wrong, redis.exceptions.ResponseError)
    assert length == len(set(ids)) == 100
    jobs = client.execute_command("GETJOB", "COUNT", 100, "FROM", queue)
    assert [job[1] for job in jobs] == ids


def test_threads_share_a_pool_of_connections(make_client: MakeClient, queue: str) -> None:
    client = make_client(max_connections=4)

    def add_some() -> None:
        for number in range(50):
            client.execute_command("ADDJOB", queue, str(number), 0)

    threads = [threading.Thread(target=add_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert client.execute_command("QLEN", queue) == 200


def test_the_table_of_commands_is_understood(client: Any) -> None:
    commands = client.execute_command("COMMAND")
    assert commands["addjob"]["arity"] == -4


def test_info_is_understood(client: Any) -> None:
    assert client.info("server")["disque_version"] == "1.0-rc1"


def test_a_lease_is_a_fourth_field(client: Any, queue: str) -> None:
    job_id = client.execute_command("ADDJOB", queue, "x", 0)
    ((_, _, _, token),) = client.execute_command("GETJOB", "LEASE", 60000, "FROM", queue)
    assert client.execute_command("ACKLEASE", job_id, token) == [b"OK"]
    assert client.execute_command("ACKLEASE", job_id, token) == [b"NOJOB"]
