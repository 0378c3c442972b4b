"""Jobs whose reply never left the node: the client hung up first, so nothing was delivered and they wait again."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.unit.broker.harness import Desk, Seat

GET = ["GETJOB", "WITHCOUNTERS", "FROM", "q"]
LEASED = ["GETJOB", "WITHCOUNTERS", "LEASE", 60_000, "FROM", "q"]
RETRIES = pytest.mark.parametrize("retry_s", [0, 100])


@pytest.fixture
def desk() -> Desk:
    return Desk(appendonly=True)


def waiting(desk: Desk, request: list[Any] = GET) -> Seat:
    """Seat a client that waits for a job."""
    seat = desk.client()
    seat.send(request)
    assert not seat.pushed()
    return seat


def handed(desk: Desk, retry_s: int, request: list[Any] = GET) -> bytes:
    """Hand a job to a client that hangs up in the same turn; give its id."""
    worker, producer = waiting(desk, request), desk.client()
    producer.post(["ADDJOB", "q", "body", 0, "RETRY", retry_s])
    worker.hang_up()
    desk.turn()
    (job_id,) = producer.pushed()
    assert not worker.pushed()
    return bytes(job_id)


def fetched(desk: Desk) -> list[tuple[bytes, int, int]]:
    """Fetch all that wait, each with its nacks and additional deliveries."""
    jobs = desk.client().call("GETJOB", "NOHANG", "COUNT", 10, "WITHCOUNTERS", "FROM", "q") or []
    return [(job[1], job[4], job[6]) for job in jobs]


@RETRIES
@pytest.mark.parametrize("request_", [GET, LEASED])
def test_a_job_handed_to_a_client_that_hangs_up_waits_again_as_if_nothing_had_happened(
    desk: Desk, retry_s: int, request_: list[Any]
) -> None:
    job_id = handed(desk, retry_s, request_)
    queue = desk.client().flat_map("QSTAT", "q")
    assert (queue[b"len"], queue[b"jobs-in"], queue[b"jobs-out"]) == (1, 1, 0)
    assert fetched(desk) == [(job_id, 0, 0)]
    assert fetched(desk) == []


def test_a_job_that_was_fetched_without_waiting_comes_back_too(desk: Desk) -> None:
    worker, producer = desk.client(), desk.client()
    ids = [producer.call("ADDJOB", "q", body, 0, "RETRY", 0) for body in "abc"]
    worker.post(["GETJOB", "FROM", "q"], ["GETJOB", "FROM", "q"])
    worker.post(["GETJOB", "NOHANG", "FROM", "q"])
    worker.hang_up()
    desk.turn()
    assert fetched(desk) == [(job_id, 0, 0) for job_id in ids]


@RETRIES
def test_the_next_who_waits_gets_it_at_once(desk: Desk, retry_s: int) -> None:
    first, second, producer = waiting(desk), waiting(desk), desk.client()
    producer.post(["ADDJOB", "q", "body", 0, "RETRY", retry_s])
    first.hang_up()
    desk.turn()
    assert [[job[2] for job in jobs] for jobs in second.pushed()] == [[b"body"]]


@RETRIES
def test_when_all_who_waited_hang_up_it_waits_for_others(desk: Desk, retry_s: int) -> None:
    seats, producer = [waiting(desk) for _ in range(5)], desk.client()
    producer.post(["ADDJOB", "q", "body", 0, "RETRY", retry_s])
    for seat in seats:
        seat.hang_up()
    desk.turn()
    assert len(fetched(desk)) == 1


@RETRIES
def test_once_a_reply_may_have_left_its_job_is_not_queued_again(desk: Desk, retry_s: int) -> None:
    worker, producer = waiting(desk), desk.client()
    producer.call("ADDJOB", "q", "body", 0, "RETRY", retry_s)
    worker.hang_up()
    desk.turn()
    assert fetched(desk) == []


@RETRIES
def test_a_reply_that_could_not_be_sent_has_not_left(desk: Desk, retry_s: int) -> None:
    worker, producer = waiting(desk), desk.client()
    worker.takes = False
    producer.call("ADDJOB", "q", "body", 0, "RETRY", retry_s)
    worker.hang_up()
    desk.turn()
    assert len(fetched(desk)) == 1


def test_the_lease_that_nobody_got_is_stale(desk: Desk) -> None:
    worker, producer = waiting(desk, LEASED), desk.client()
    producer.post(["ADDJOB", "q", "body", 0])
    (job,) = desk.broker.node.jobs
    token = job.token
    assert token
    worker.hang_up()
    desk.turn()
    assert producer.pushed() == [job.id]
    assert producer.call("ACKLEASE", job.id, token) == [b"STALE"]
    assert producer.call("QLEN", "q") == 1


@RETRIES
def test_a_job_that_was_acked_meanwhile_is_over(desk: Desk, retry_s: int) -> None:
    worker, producer = waiting(desk), desk.client()
    producer.post(["ADDJOB", "q", "body", 0, "RETRY", retry_s])
    (job,) = desk.broker.node.jobs
    producer.post(["ACKJOB", job.id])
    worker.hang_up()
    desk.turn()
    assert fetched(desk) == []
    assert desk.broker.node.jobs.count == 0


def test_a_job_that_is_with_another_client_meanwhile_stays_there(desk: Desk) -> None:
    worker, other, producer = waiting(desk), waiting(desk), desk.client()
    producer.post(["ADDJOB", "q", "body", 0])
    (job,) = desk.broker.node.jobs
    producer.post(["NACK", job.id])
    worker.hang_up()
    desk.turn()
    assert [[entry[1] for entry in jobs] for jobs in other.pushed()] == [[job.id]]
    assert fetched(desk) == []


@RETRIES
def test_a_client_that_is_killed_gives_its_job_back(desk: Desk, retry_s: int) -> None:
    worker, producer = waiting(desk), desk.client()
    producer.post(["ADDJOB", "q", "body", 0, "RETRY", retry_s])
    producer.post(["CLIENT", "KILL", "ID", worker.client.id])
    desk.turn()
    assert worker.closed
    assert len(fetched(desk)) == 1


def test_a_client_that_wants_no_replies_has_got_its_jobs(desk: Desk) -> None:
    worker, producer = desk.client(), desk.client()
    worker.send(["CLIENT", "REPLY", "OFF"], GET)
    producer.post(["ADDJOB", "q", "body", 0])
    producer.post(["ADDJOB", "q", "body", 0])
    worker.post(GET)
    worker.hang_up()
    desk.turn()
    assert fetched(desk) == []
    assert not worker.client.handed


# The journal


@RETRIES
@pytest.mark.parametrize("delay_s", [0, 1])
def test_what_came_back_is_there_after_a_restart_and_then_delivered_once(
    desk: Desk, retry_s: int, delay_s: int
) -> None:
    worker, seat = waiting(desk), desk.client()
    job_id = seat.call("ADDJOB", "q", "body", 0, "DELAY", delay_s, "RETRY", retry_s) if delay_s else None
    if delay_s:
        desk.now_s += 2
        desk.broker.tick()
    else:
        seat.post(["ADDJOB", "q", "body", 0, "RETRY", retry_s])
    worker.hang_up()
    desk.turn()
    job_id = job_id or seat.pushed()[0]
    assert seat.call("DEBUG", "LOADAOF") == b"OK"
    assert fetched(desk) == [(job_id, 0, 0)]
    assert seat.call("DEBUG", "LOADAOF") == b"OK"
    assert fetched(desk) == []


def test_a_rewritten_journal_has_it_too(desk: Desk) -> None:
    seat = desk.client()
    job_id = handed(desk, 0)
    assert seat.call("BGREWRITEAOF")
    desk.finish_rewrite()
    assert seat.call("DEBUG", "LOADAOF") == b"OK"
    assert fetched(desk) == [(job_id, 0, 0)]


@RETRIES
def test_a_job_whose_delivery_could_not_be_written_down_is_not_lost(desk: Desk, retry_s: int) -> None:
    worker, producer = waiting(desk), desk.client()
    producer.call("PAUSE", "q", "OUT")
    producer.call("ADDJOB", "q", "body", 0, "RETRY", retry_s)
    producer.post(["PAUSE", "q", "NONE"])
    desk.disk.failure = OSError(errno.ENOSPC, "No space left on device")
    desk.turn()
    assert worker.closed == "now"
    assert not worker.pushed()
    desk.disk.failure = None
    desk.advance(2)
    assert len(fetched(desk)) == 1


@RETRIES
def test_a_lease_that_was_held_and_is_made_anew_does_not_bring_the_job_back(desk: Desk, retry_s: int) -> None:
    worker, producer = desk.client(), desk.client()
    producer.call("ADDJOB", "q", "body", 0, "RETRY", retry_s)
    [job] = worker.call("GETJOB", "LEASE", 60_000, "FROM", "q")
    again = desk.client()
    again.post(["LEASE", 60_000, job[1], job[-1]])
    again.hang_up()
    desk.turn()
    assert fetched(desk) == []


@RETRIES
def test_a_job_that_was_leased_by_its_id_comes_back(desk: Desk, retry_s: int) -> None:
    worker, producer = desk.client(), desk.client()
    job_id = producer.call("ADDJOB", "q", "body", 0, "RETRY", retry_s)
    worker.post(["LEASE", 60_000, job_id, 1])
    worker.hang_up()
    desk.turn()
    assert fetched(desk) == [(job_id, 0, 0)]
