"""RELEASE undoes a fetch, LEASE takes jobs by their ids, and JSCAN tells what an active job is active for."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest

from tests.unit.broker.harness import LocalClient, LocalServer

NOBODYS = 1


@pytest.fixture
def server() -> LocalServer:
    return LocalServer()


@pytest.fixture
def client(server: LocalServer) -> LocalClient:
    return server.client()


def add(client: LocalClient, body: str = "body", *options: str | int) -> bytes:
    job_id: bytes = client.call("ADDJOB", "q", body, 0, *options)
    return job_id


def lease(client: LocalClient, ms: int = 60_000) -> tuple[bytes, bytes]:
    ((_, job_id, _, token),) = client.call("GETJOB", "NOHANG", "LEASE", ms, "FROM", "q")
    return job_id, token


def counters(client: LocalClient) -> list[Any]:
    """Fetch a job without a lease: its id and counters."""
    ((_, job_id, _, _, nacks, _, deliveries),) = client.call("GETJOB", "NOHANG", "WITHCOUNTERS", "FROM", "q")
    return [job_id, nacks, deliveries]


def scan(client: LocalClient, *states: str) -> set[bytes]:
    options = [word for state in states for word in ("STATE", state)]
    _, ids = client.call("JSCAN", 0, "BUSYLOOP", "QUEUE", "q", *options)
    return set(ids)


# RELEASE


def test_a_released_job_is_queued_again_and_nothing_is_counted(client: LocalClient) -> None:
    job_id = add(client)
    held = lease(client)
    assert client.call("RELEASE", *held) == [b"OK"]
    assert client.call("QLEN", "q") == 1
    assert client.call("ACKLEASE", *held) == [b"STALE"]
    assert client.call("RELEASE", *held) == [b"STALE"]
    assert counters(client) == [job_id, 0, 0]


def test_a_job_that_was_released_comes_back_as_before_when_its_worker_dies_later(
    server: LocalServer, client: LocalClient
) -> None:
    job_id = add(client, "body", "RETRY", 50)
    client.call("RELEASE", *lease(client))
    lease(client, 60_000)
    server.advance(59)
    assert client.call("QLEN", "q") == 0
    server.advance(2)
    assert counters(client) == [job_id, 0, 1]


def test_a_job_that_is_delivered_at_most_once_may_be_released(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "once", "RETRY", 0)
    assert client.call("RELEASE", *lease(client)) == [b"OK"]
    lease(client)
    server.advance(1000)
    assert client.call("GETJOB", "NOHANG", "FROM", "q") is None
    assert client.call("RELEASE", job_id, NOBODYS) == [b"STALE"]


def test_a_released_job_goes_to_who_waits(server: LocalServer, client: LocalClient) -> None:
    add(client)
    held = lease(client)
    other = server.client()
    other.send(["GETJOB", "FROM", "q"])
    client.call("RELEASE", *held)
    assert [job[1] for job in other.pushed()[0]] == [held[0]]


def test_only_what_the_token_holds_is_released(client: LocalClient) -> None:
    job_id = add(client)
    client.call("GETJOB", "FROM", "q")
    assert client.call("RELEASE", job_id, NOBODYS, b"D-" + b"0" * 8 + b"-" + b"x" * 24 + b"-05a1", 5) == [
        b"STALE",
        b"NOJOB",
    ]


# LEASE


def test_waiting_jobs_are_leased_by_their_ids(server: LocalServer, client: LocalClient) -> None:
    first, second = add(client, "one"), add(client, "two")
    (row,) = client.call("LEASE", 10_000, second, NOBODYS)
    name, job_id, body, token, *tail = row
    counts = [b"nacks", 0, b"additional-deliveries", 0, b"tries", 0, b"begun", 0]
    assert (name, job_id, body, tail) == (b"q", second, b"two", counts)
    assert client.call("QLEN", "q") == 1
    assert client.call("LEASE", 10_000, second, NOBODYS) == [None]
    server.advance(11)
    assert client.call("ACKLEASE", second, token) == [b"STALE"]
    assert [counters(client), counters(client)] == [[first, 0, 0], [second, 0, 1]]


def test_who_holds_a_job_gets_another_token(server: LocalServer, client: LocalClient) -> None:
    add(client)
    job_id, token = lease(client, 10_000)
    ((_, _, _, other, *_),) = client.call("LEASE", 30_000, job_id, token)
    assert int(other) > int(token)
    assert client.call("ACKLEASE", job_id, token) == [b"STALE"]
    server.advance(20)
    assert client.call("ACKLEASE", job_id, other) == [b"OK"]
    assert client.call("LEASE", 30_000, job_id, other) == [None]


def test_a_paused_queue_gives_jobs_by_their_ids_only(client: LocalClient) -> None:
    job_id = add(client)
    client.call("PAUSE", "q", "out")
    assert client.call("GETJOB", "NOHANG", "FROM", "q") is None
    assert client.call("LEASE", 1000, job_id, NOBODYS)[0][1] == job_id


def test_a_job_that_is_leased_by_its_id_is_delivered_at_most_once_if_it_wants_so(
    server: LocalServer, client: LocalClient
) -> None:
    job_id = add(client, "once", "RETRY", 0)
    assert client.call("LEASE", 1000, job_id, NOBODYS)[0][1] == job_id
    assert client.call("ENQUEUE", job_id) == 0
    server.advance(1000)
    assert client.call("LEASE", 1000, job_id, NOBODYS) == [None]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("RELEASE ID", "wrong number of arguments"),
        ("RELEASE ID x", "token of its lease"),
        ("RELEASE bad 1", "Invalid Job ID"),
        ("LEASE 1000 ID", "wrong number of arguments"),
        ("LEASE x ID 1", "number of milliseconds"),
        ("LEASE 1000 bad 1", "Invalid Job ID"),
        ("LEASE 1000 ID 0", "token of its lease"),
    ],
)
def test_mistakes_are_told(client: LocalClient, words: str, problem: str) -> None:
    job_id = add(client)
    reply = client.call(*[job_id if word == "ID" else word for word in words.split()])
    assert isinstance(reply, hiredis.ReplyError)
    assert problem in str(reply)
    assert client.call("QLEN", "q") == 1


# JSCAN


def test_a_scan_for_ids_is_not_cut_by_the_sizes_of_bodies(server: LocalServer, client: LocalClient) -> None:
    ids = {add(client, "x" * 400_000) for _ in range(5)}
    assert set(client.call("JSCAN", "COUNT", 10)[1]) == ids
    assert len(client.call("JSCAN", "COUNT", 10, "REPLY", "all")[1]) == 2


def test_an_active_job_is_scheduled_or_reserved(server: LocalServer, client: LocalClient) -> None:
    queued, delayed, leased, taken, later = add(client), add(client, "late", "DELAY", 100), b"", b"", b""
    for number in range(3):
        add(client, str(number))
    client.call("DEQUEUE", queued)
    leased, _ = lease(client)
    ((_, taken, _),) = client.call("GETJOB", "FROM", "q")
    later, token = lease(client)
    assert scan(client, "reserved") == {leased, taken, later}
    client.call("NACKLEASE", 50_000, later, token)
    assert scan(client, "scheduled") == {delayed, later}
    assert scan(client, "reserved") == {leased, taken}
    assert scan(client, "active") == {queued, delayed, leased, taken, later}
    assert scan(client, "scheduled", "reserved") == {delayed, leased, taken, later}
    client.call("ENQUEUE", queued)
    assert scan(client, "queued", "Scheduled") == {queued, delayed, later}
    server.advance(51)
    assert scan(client, "scheduled") == {delayed}
    server.advance(51)
    assert scan(client, "scheduled", "reserved") == {taken}


def test_who_was_fetched_again_after_a_late_nack_is_reserved(server: LocalServer, client: LocalClient) -> None:
    add(client)
    client.call("NACKLEASE", 1000, *lease(client))
    server.advance(2)
    job_id, _ = lease(client)
    assert scan(client, "reserved") == {job_id}
    assert scan(client, "scheduled") == set()


# A restart


def test_a_release_outlives_a_restart() -> None:
    client = LocalServer(appendonly=True).client()
    ids = {add(client, "kept", "RETRY", 100), add(client, "once", "RETRY", 0)}
    for held in (lease(client), lease(client)):
        assert client.call("RELEASE", *held) == [b"OK"]
    client.call("DEBUG", "LOADAOF")
    assert {counters(client)[0], counters(client)[0]} == ids


def test_a_lease_by_id_outlives_a_restart() -> None:
    client = LocalServer(appendonly=True).client()
    kept, once = add(client, "kept", "RETRY", 100), add(client, "once", "RETRY", 0)
    (row, _) = client.call("LEASE", 60_000, kept, NOBODYS, once, NOBODYS)
    client.call("DEBUG", "LOADAOF")
    assert client.call("GETJOB", "NOHANG", "FROM", "q") is None
    assert client.call("ACKLEASE", kept, row[3]) == [b"OK"]
