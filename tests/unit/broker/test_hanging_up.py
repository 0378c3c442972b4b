"""Jobs whose reply never left the node: the client hung up first, so nothing was delivered and they wait again."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.unit.broker.harness import LocalClient, LocalServer

GET = ["GETJOB", "WITHCOUNTERS", "FROM", "q"]
LEASED = ["GETJOB", "WITHCOUNTERS", "LEASE", 60_000, "FROM", "q"]
RETRIES = pytest.mark.parametrize("retry_s", [0, 100])


@pytest.fixture
def server() -> LocalServer:
    return LocalServer(appendonly=True)


def waiting(server: LocalServer, request: list[Any] = GET) -> LocalClient:
    """Connect a client that waits for a job."""
    client = server.client()
    client.send(request)
    assert not client.pushed()
    return client


def handed(server: LocalServer, retry_s: int, request: list[Any] = GET) -> bytes:
    """Hand a job to a client that hangs up in the same turn; give its id."""
    worker, producer = waiting(server, request), server.client()
    producer.post(["ADDJOB", "q", "body", 0, "RETRY", retry_s])
    worker.hang_up()
    server.turn()
    (job_id,) = producer.pushed()
    assert not worker.pushed()
    return bytes(job_id)


def fetched(server: LocalServer) -> list[tuple[bytes, int, int]]:
    """Fetch all that wait, each with its nacks and additional deliveries."""
    jobs = server.client().call("GETJOB", "NOHANG", "COUNT", 10, "WITHCOUNTERS", "FROM", "q") or []
    return [(job[1], job[4], job[6]) for job in jobs]


@RETRIES
@pytest.mark.parametrize("request_", [GET, LEASED])
def test_a_job_handed_to_a_client_that_hangs_up_waits_again_as_if_nothing_had_happened(
    server: LocalServer, retry_s: int, request_: list[Any]
) -> None:
    job_id = handed(server, retry_s, request_)
    queue = server.client().flat_map("QSTAT", "q")
    assert (queue[b"len"], queue[b"jobs-in"], queue[b"jobs-out"]) == (1, 1, 0)
    assert fetched(server) == [(job_id, 0, 0)]
    assert fetched(server) == []


def test_a_job_that_was_fetched_without_waiting_comes_back_too(server: LocalServer) -> None:
    worker, producer = server.client(), server.client()
    ids = [producer.call("ADDJOB", "q", body, 0, "RETRY", 0) for body in "abc"]
    worker.post(["GETJOB", "FROM", "q"], ["GETJOB", "FROM", "q"])
    worker.post(["GETJOB", "NOHANG", "FROM", "q"])
    worker.hang_up()
    server.turn()
    assert fetched(server) == [(job_id, 0, 0) for job_id in ids]


@RETRIES
def test_the_next_who_waits_gets_it_at_once(server: LocalServer, retry_s: int) -> None:
    first, second, producer = waiting(server), waiting(server), server.client()
    producer.post(["ADDJOB", "q", "body", 0, "RETRY", retry_s])
    first.hang_up()
    server.turn()
    assert [[job[2] for job in jobs] for jobs in second.pushed()] == [[b"body"]]


@RETRIES
def test_when_all_who_waited_hang_up_it_waits_for_others(server: LocalServer, retry_s: int) -> None:
    clients, producer = [waiting(server) for _ in range(5)], server.client()
    producer.post(["ADDJOB", "q", "body", 0, "RETRY", retry_s])
    for client in clients:
        client.hang_up()
    server.turn()
    assert len(fetched(server)) == 1


@RETRIES
def test_once_a_reply_may_have_left_its_job_is_not_queued_again(server: LocalServer, retry_s: int) -> None:
    worker, producer = waiting(server), server.client()
    producer.call("ADDJOB", "q", "body", 0, "RETRY", retry_s)
    worker.hang_up()
    server.turn()
    assert fetched(server) == []


@RETRIES
def test_a_reply_that_could_not_be_sent_has_not_left(server: LocalServer, retry_s: int) -> None:
    worker, producer = waiting(server), server.client()
    worker.takes = False
    producer.call("ADDJOB", "q", "body", 0, "RETRY", retry_s)
    worker.hang_up()
    server.turn()
    assert len(fetched(server)) == 1


def test_the_lease_that_nobody_got_is_stale(server: LocalServer) -> None:
    worker, producer = waiting(server, LEASED), server.client()
    producer.post(["ADDJOB", "q", "body", 0])
    (job,) = server.broker.node.jobs
    token = job.token
    assert token
    worker.hang_up()
    server.turn()
    assert producer.pushed() == [job.id]
    assert producer.call("ACKLEASE", job.id, token) == [b"STALE"]
    assert producer.call("QLEN", "q") == 1


@RETRIES
def test_a_job_that_was_acked_meanwhile_is_over(server: LocalServer, retry_s: int) -> None:
    worker, producer = waiting(server), server.client()
    producer.post(["ADDJOB", "q", "body", 0, "RETRY", retry_s])
    (job,) = server.broker.node.jobs
    producer.post(["ACKJOB", job.id])
    worker.hang_up()
    server.turn()
    assert fetched(server) == []
    assert server.broker.node.jobs.count == 0


def test_a_job_that_is_with_another_client_meanwhile_stays_there(server: LocalServer) -> None:
    worker, other, producer = waiting(server), waiting(server), server.client()
    producer.post(["ADDJOB", "q", "body", 0])
    (job,) = server.broker.node.jobs
    producer.post(["NACK", job.id])
    worker.hang_up()
    server.turn()
    assert [[entry[1] for entry in jobs] for jobs in other.pushed()] == [[job.id]]
    assert fetched(server) == []


@RETRIES
def test_a_client_that_is_killed_gives_its_job_back(server: LocalServer, retry_s: int) -> None:
    worker, producer = waiting(server), server.client()
    producer.post(["ADDJOB", "q", "body", 0, "RETRY", retry_s])
    producer.post(["CLIENT", "KILL", "ID", worker.client.id])
    server.turn()
    assert worker.closed
    assert len(fetched(server)) == 1


def test_a_client_that_wants_no_replies_has_got_its_jobs(server: LocalServer) -> None:
    worker, producer = server.client(), server.client()
    worker.send(["CLIENT", "REPLY", "OFF"], GET)
    producer.post(["ADDJOB", "q", "body", 0])
    producer.post(["ADDJOB", "q", "body", 0])
    worker.post(GET)
    worker.hang_up()
    server.turn()
    assert fetched(server) == []
    assert not worker.client.handed


# The journal


@RETRIES
@pytest.mark.parametrize("delay_s", [0, 1])
def test_what_came_back_is_there_after_a_restart_and_then_delivered_once(
    server: LocalServer, retry_s: int, delay_s: int
) -> None:
    worker, client = waiting(server), server.client()
    job_id = client.call("ADDJOB", "q", "body", 0, "DELAY", delay_s, "RETRY", retry_s) if delay_s else None
    if delay_s:
        server.now_s += 2
        server.broker.tick()
    else:
        client.post(["ADDJOB", "q", "body", 0, "RETRY", retry_s])
    worker.hang_up()
    server.turn()
    job_id = job_id or client.pushed()[0]
    assert client.call("DEBUG", "LOADAOF") == b"OK"
    assert fetched(server) == [(job_id, 0, 0)]
    assert client.call("DEBUG", "LOADAOF") == b"OK"
    assert fetched(server) == []


def test_a_rewritten_journal_has_it_too(server: LocalServer) -> None:
    client = server.client()
    job_id = handed(server, 0)
    assert client.call("BGREWRITEAOF")
    server.finish_rewrite()
    assert client.call("DEBUG", "LOADAOF") == b"OK"
    assert fetched(server) == [(job_id, 0, 0)]


@RETRIES
def test_a_job_whose_delivery_could_not_be_written_down_is_not_lost(server: LocalServer, retry_s: int) -> None:
    worker, producer = waiting(server), server.client()
    producer.call("PAUSE", "q", "OUT")
    producer.call("ADDJOB", "q", "body", 0, "RETRY", retry_s)
    producer.post(["PAUSE", "q", "NONE"])
    server.disk.failure = OSError(errno.ENOSPC, "No space left on device")
    server.turn()
    assert worker.closed == "now"
    assert not worker.pushed()
    server.disk.failure = None
    server.advance(2)
    assert len(fetched(server)) == 1


@RETRIES
def test_a_lease_that_was_held_and_is_made_anew_does_not_bring_the_job_back(server: LocalServer, retry_s: int) -> None:
    worker, producer = server.client(), server.client()
    producer.call("ADDJOB", "q", "body", 0, "RETRY", retry_s)
    [job] = worker.call("GETJOB", "LEASE", 60_000, "FROM", "q")
    again = server.client()
    again.post(["LEASE", 60_000, job[1], job[-1]])
    again.hang_up()
    server.turn()
    assert fetched(server) == []


@RETRIES
def test_a_job_that_was_leased_by_its_id_comes_back(server: LocalServer, retry_s: int) -> None:
    worker, producer = server.client(), server.client()
    job_id = producer.call("ADDJOB", "q", "body", 0, "RETRY", retry_s)
    worker.post(["LEASE", 60_000, job_id, 1])
    worker.hang_up()
    server.turn()
    assert fetched(server) == [(job_id, 0, 0)]
