"""What a node does when memory gets short: above 75 % it keeps no new jobs, above 95 % it evicts, then refuses."""

from __future__ import annotations

import pytest
from hiredis import ReplyError

from penstock.broker.core.jobs import JOB_BYTES
from penstock.broker.core.queues import QUEUE_BYTES
from tests.unit.broker.harness import LocalClient, LocalServer

LIMIT = 1_000_000
FULL_ERROR = "OOM command not allowed when used memory > 'maxmemory'."
ALONE_ERROR = (
    "NOREPL Not enough reachable nodes for the requested replication level, since I'm unable to hold a copy of the "
    "message for the following reason: I'm out of memory"
)


@pytest.fixture
def server() -> LocalServer:
    return LocalServer(maxmemory=LIMIT)


@pytest.fixture
def client(server: LocalServer) -> LocalClient:
    return server.client()


def used(server: LocalServer) -> int:
    return server.broker.node.memory.used_bytes


def jobs(server: LocalServer) -> int:
    return server.broker.node.jobs.count


def set_limit_to_percent(server: LocalServer, client: LocalClient, percent: int) -> None:
    """Change maxmemory so that what is used now is this much of it."""
    assert client.call("CONFIG", "SET", "maxmemory", used(server) * 100 // percent) == b"OK"


def fetched(client: LocalClient, count: int, size: int, *options: str) -> list[bytes]:
    """Add jobs and fetch them; give their ids."""
    ids = [client.call("ADDJOB", "q", b"x" * size, 0, *options) for _ in range(count)]
    for _ in range(count):
        assert client.call("GETJOB", "FROM", "q")
    return ids


def is_error(reply: object, text: str) -> bool:
    return isinstance(reply, ReplyError) and str(reply) == text


# Above 75 %


def test_above_three_quarters_a_node_that_is_alone_takes_no_job(server: LocalServer, client: LocalClient) -> None:
    while not isinstance(reply := client.call("ADDJOB", "q", b"x" * 10_000, 0), ReplyError):
        assert used(server) < LIMIT
    assert str(reply) == ALONE_ERROR
    assert LIMIT * 0.75 < used(server) < LIMIT * 0.75 + 10_000 + JOB_BYTES + 1


@pytest.mark.parametrize("command", [["ADDJOB", "new", "x", "0"], ["ADDJOBS", "q", "0", "BODIES", "x", "y"]])
def test_above_three_quarters_every_way_to_add_is_refused(
    server: LocalServer, client: LocalClient, command: list[str]
) -> None:
    client.call("ADDJOB", "q", b"x" * 700_000, 0)
    assert is_error(client.call(*command), ALONE_ERROR)


def test_above_three_quarters_all_else_goes_on(server: LocalServer, client: LocalClient) -> None:
    client.call("ADDJOB", "q", b"x" * 700_000, 0)
    ((_, job_id, _),) = client.call("GETJOB", "FROM", "q")
    assert client.call("NACK", job_id) == 1
    assert client.call("DEQUEUE", job_id) == 1
    assert client.call("ENQUEUE", job_id) == 1
    assert client.call("ACKJOB", job_id) == 1
    assert not isinstance(client.call("ADDJOB", "q", "x", 0), ReplyError)


# Above 95 %


@pytest.mark.parametrize(
    "command",
    [
        ["ADDJOB", "q", "x", "0"],
        ["ADDJOBS", "q", "0", "BODIES", "x"],
        ["NACK"],
        ["ENQUEUE"],
        ["NACKLEASE", "0", "D-8ff1663c-e/3qajFcXLIlJT4ycmEenmf3-05a1", "1"],
        ["NACKCLAIM", "k"],
    ],
)
def test_a_full_node_refuses_what_needs_memory(server: LocalServer, client: LocalClient, command: list[str]) -> None:
    client.call("ADDJOB", "q", b"x" * LIMIT, 0)
    assert is_error(client.call(*command), FULL_ERROR)


def test_a_full_node_still_gives_out_and_finishes_jobs(server: LocalServer, client: LocalClient) -> None:
    client.call("ADDJOB", "q", b"x" * LIMIT, 0)
    assert client.call("PING") == b"PONG"
    assert client.call("QLEN", "q") == 1
    ((_, job_id, body),) = client.call("GETJOB", "FROM", "q")
    assert len(body) == LIMIT
    assert client.call("WORKING", job_id) == 300
    assert is_error(client.call("ADDJOB", "q", "x", 0), FULL_ERROR)
    assert client.call("ACKJOB", job_id) == 1
    assert not isinstance(client.call("ADDJOB", "q", "x", 0), ReplyError)


def test_full_begins_right_above_95_percent(server: LocalServer, client: LocalClient) -> None:
    client.call("ADDJOB", "q", "x", 0)
    client.call("CONFIG", "SET", "maxmemory", -(-used(server) // 95) * 100)
    assert is_error(client.call("ADDJOB", "q", "x", 0), ALONE_ERROR)  # at 95 %, and above 75
    client.call("CONFIG", "SET", "maxmemory", (used(server) - 1) // 95 * 100)
    assert is_error(client.call("ADDJOB", "q", "x", 0), FULL_ERROR)


# Eviction


def test_one_command_evicts_as_many_delivered_jobs_of_retry_0_as_needed(
    server: LocalServer, client: LocalClient
) -> None:
    fetched(client, 60, 10_000, "RETRY", "0")
    set_limit_to_percent(server, client, 190)
    before = jobs(server)
    assert client.call("PING") == b"PONG"
    assert used(server) <= server.broker.node.memory.full_bytes < used(server) + 10_000 + JOB_BYTES
    assert 20 < before - jobs(server) < 40


def test_the_add_that_makes_eviction_necessary_is_taken(server: LocalServer, client: LocalClient) -> None:
    """The original evicts one job a command and refuses the add all the same."""
    fetched(client, 60, 10_000, "RETRY", "0")
    set_limit_to_percent(server, client, 96)
    assert is_error(client.call("ADDJOB", "q", "x", 0), ALONE_ERROR)  # no longer full: only above 75 %
    assert client.call("NACK") == 0


@pytest.mark.parametrize("state", ["queued", "with a retry", "not delivered yet"])
def test_what_somebody_still_needs_is_never_evicted(server: LocalServer, client: LocalClient, state: str) -> None:
    if state == "with a retry":
        fetched(client, 50, 10_000)
    else:
        options = ("RETRY", "0", "DELAY", "100") if state == "not delivered yet" else ("RETRY", "0")
        for _ in range(50):
            client.call("ADDJOB", "q", b"x" * 10_000, 0, *options)
    set_limit_to_percent(server, client, 120)
    assert is_error(client.call("ADDJOB", "q", "x", 0), FULL_ERROR)
    assert jobs(server) == 50


def test_with_noeviction_nothing_is_evicted(server: LocalServer, client: LocalClient) -> None:
    fetched(client, 50, 10_000, "RETRY", "0")
    client.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    set_limit_to_percent(server, client, 120)
    assert is_error(client.call("ADDJOB", "q", "x", 0), FULL_ERROR)
    assert jobs(server) == 50
    client.call("CONFIG", "SET", "maxmemory-policy", "acks")
    client.call("PING")
    assert jobs(server) < 50


def test_a_few_jobs_are_found_among_many_places_that_are_empty(server: LocalServer, client: LocalClient) -> None:
    client.call("CONFIG", "SET", "maxmemory", 1 << 30)
    ids = [client.call("ADDJOB", "q", "x", 0) for _ in range(5000)]
    client.call("ACKJOB", *ids)
    fetched(client, 5, 200_000, "RETRY", "0")
    set_limit_to_percent(server, client, 200)
    client.call("PING")
    assert used(server) <= server.broker.node.memory.full_bytes
    assert jobs(server) < 5


# No limit


def test_maxmemory_0_means_no_refusal_for_memory_but_permanent_pressure(
    server: LocalServer, client: LocalClient
) -> None:
    (job_id,) = fetched(client, 1, 10, "RETRY", "0")
    other = client.call("ADDJOB", "q", "x", 0)
    assert client.call("CONFIG", "SET", "maxmemory", 0) == b"OK"
    assert is_error(client.call("ADDJOB", "q", "x", 0), ALONE_ERROR)
    client.call("GETJOB", "FROM", "q")
    assert client.call("NACK", other) == 1
    assert client.call("SHOW", job_id) is not None  # nothing is evicted
    assert client.call("CONFIG", "SET", "maxmemory", LIMIT) == b"OK"
    assert not isinstance(client.call("ADDJOB", "q", "x", 0), ReplyError)


# Queues


def make_queues(client: LocalClient, count: int) -> None:
    for number in range(count):
        assert client.call("GETJOB", "NOHANG", "FROM", f"queue-{number}") is None


def test_a_thousand_empty_queues_vanish_under_pressure(server: LocalServer, client: LocalClient) -> None:
    client.call("CONFIG", "SET", "maxmemory", 1 << 30)
    make_queues(client, 1000)
    idle = used(server) - 1000 * QUEUE_BYTES
    assert len(server.broker.node.queues) == 1000
    client.call("CONFIG", "SET", "maxmemory", 1)
    server.advance(5)
    assert len(server.broker.node.queues) == 0
    assert used(server) < idle


@pytest.mark.parametrize(("percent", "seconds"), [(10, 300), (80, 10), (96, 2)])
def test_idle_queues_go_the_sooner_the_less_memory_is_left(
    server: LocalServer, client: LocalClient, percent: int, seconds: int
) -> None:
    client.call("ADDJOB", "stays", b"x" * 100_000, 0)
    make_queues(client, 50)
    set_limit_to_percent(server, client, percent)
    server.advance(seconds - 1)
    assert len(server.broker.node.queues) == 51
    server.advance(2)
    assert len(server.broker.node.queues) == 1


def test_queues_in_use_stay_however_little_memory_is_left(server: LocalServer, client: LocalClient) -> None:
    client.call("ADDJOB", "with-a-job", "x", 0)
    client.call("PAUSE", "paused", "in")
    waiting = server.client()
    waiting.send(["GETJOB", "FROM", "waited-for"])
    client.call("CONFIG", "SET", "maxmemory", 1)
    server.advance(20)
    assert set(server.broker.node.queues.by_name) == {b"with-a-job", b"paused", b"waited-for"}


# Accounts


def test_what_was_taken_is_given_back(server: LocalServer, client: LocalClient) -> None:
    server.advance(1)  # the client itself is accounted for
    idle = used(server)
    ids = fetched(client, 20, 1000) + fetched(client, 20, 1000, "RETRY", "0")
    assert used(server) == idle + 40 * (1000 + JOB_BYTES) + QUEUE_BYTES + 1
    client.call("ACKJOB", *ids)
    assert used(server) == idle + QUEUE_BYTES + 1
    server.advance(301)
    assert used(server) == idle


def test_buffers_of_clients_are_accounted_for(server: LocalServer, client: LocalClient) -> None:
    server.advance(1)
    idle = used(server)
    memory = server.broker.node.memory
    memory.clients.bytes, memory.connection_bytes, memory.unauthenticated.bytes = 5000, 700, 10_000
    server.advance(1)
    assert used(server) == idle + 5700  # what unauthenticated connections hold is counted apart
    memory.clients.bytes = memory.connection_bytes = 0
    server.advance(1)
    assert used(server) == idle


def test_buffers_stay_accounted_when_everything_is_dropped(server: LocalServer, client: LocalClient) -> None:
    server.broker.node.memory.clients.bytes = 5000
    server.advance(1)
    before = used(server)
    client.call("ADDJOB", "q", "x", 0)
    client.call("DEBUG", "FLUSHALL")
    assert used(server) == before


def test_waits_on_queues_that_others_wait_on_are_refused_when_memory_is_full(server: LocalServer) -> None:
    names = [f"q{number}" for number in range(200)]
    waiting = [server.client() for _ in range(150)]  # their waits alone would be nearly twice the limit
    for client in waiting:
        client.send(["GETJOB", "FROM", *names])
    refused = [reply for client in waiting for reply in client.pushed()]
    assert 0 < len(refused) < 150
    assert str(refused[0]).startswith("OOM used memory must be at most 1000000 bytes (maxmemory)")
    assert used(server) < LIMIT
