"""RELEASE undoes a fetch, LEASE takes jobs by their ids, and JSCAN tells what an active job is active for."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest

from tests.unit.broker.harness import Desk, Seat

NOBODYS = 1


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def seat(desk: Desk) -> Seat:
    return desk.client()


def add(seat: Seat, body: str = "body", *options: str | int) -> bytes:
    job_id: bytes = seat.call("ADDJOB", "q", body, 0, *options)
    return job_id


def lease(seat: Seat, ms: int = 60_000) -> tuple[bytes, bytes]:
    ((_, job_id, _, token),) = seat.call("GETJOB", "NOHANG", "LEASE", ms, "FROM", "q")
    return job_id, token


def counters(seat: Seat) -> list[Any]:
    """Fetch a job without a lease: its id and counters."""
    ((_, job_id, _, _, nacks, _, deliveries),) = seat.call("GETJOB", "NOHANG", "WITHCOUNTERS", "FROM", "q")
    return [job_id, nacks, deliveries]


def scan(seat: Seat, *states: str) -> set[bytes]:
    options = [word for state in states for word in ("STATE", state)]
    _, ids = seat.call("JSCAN", 0, "BUSYLOOP", "QUEUE", "q", *options)
    return set(ids)


# RELEASE


def test_a_released_job_is_queued_again_and_nothing_is_counted(seat: Seat) -> None:
    job_id = add(seat)
    held = lease(seat)
    assert seat.call("RELEASE", *held) == [b"OK"]
    assert seat.call("QLEN", "q") == 1
    assert seat.call("ACKLEASE", *held) == [b"STALE"]
    assert seat.call("RELEASE", *held) == [b"STALE"]
    assert counters(seat) == [job_id, 0, 0]


def test_a_job_that_was_released_comes_back_as_before_when_its_worker_dies_later(desk: Desk, seat: Seat) -> None:
    job_id = add(seat, "body", "RETRY", 50)
    seat.call("RELEASE", *lease(seat))
    lease(seat, 60_000)
    desk.advance(59)
    assert seat.call("QLEN", "q") == 0
    desk.advance(2)
    assert counters(seat) == [job_id, 0, 1]


def test_a_job_that_is_delivered_at_most_once_may_be_released(desk: Desk, seat: Seat) -> None:
    job_id = add(seat, "once", "RETRY", 0)
    assert seat.call("RELEASE", *lease(seat)) == [b"OK"]
    lease(seat)
    desk.advance(1000)
    assert seat.call("GETJOB", "NOHANG", "FROM", "q") is None
    assert seat.call("RELEASE", job_id, NOBODYS) == [b"STALE"]


def test_a_released_job_goes_to_who_waits(desk: Desk, seat: Seat) -> None:
    add(seat)
    held = lease(seat)
    other = desk.client()
    other.send(["GETJOB", "FROM", "q"])
    seat.call("RELEASE", *held)
    assert [job[1] for job in other.pushed()[0]] == [held[0]]


def test_only_what_the_token_holds_is_released(seat: Seat) -> None:
    job_id = add(seat)
    seat.call("GETJOB", "FROM", "q")
    assert seat.call("RELEASE", job_id, NOBODYS, b"D-" + b"0" * 8 + b"-" + b"x" * 24 + b"-05a1", 5) == [
        b"STALE",
        b"NOJOB",
    ]


# LEASE


def test_waiting_jobs_are_leased_by_their_ids(desk: Desk, seat: Seat) -> None:
    first, second = add(seat, "one"), add(seat, "two")
    (row,) = seat.call("LEASE", 10_000, second, NOBODYS)
    name, job_id, body, token, *tail = row
    assert (name, job_id, body, tail) == (b"q", second, b"two", [b"nacks", 0, b"additional-deliveries", 0])
    assert seat.call("QLEN", "q") == 1
    assert seat.call("LEASE", 10_000, second, NOBODYS) == [None]
    desk.advance(11)
    assert seat.call("ACKLEASE", second, token) == [b"STALE"]
    assert [counters(seat), counters(seat)] == [[first, 0, 0], [second, 0, 1]]


def test_who_holds_a_job_gets_another_token(desk: Desk, seat: Seat) -> None:
    add(seat)
    job_id, token = lease(seat, 10_000)
    ((_, _, _, other, *_),) = seat.call("LEASE", 30_000, job_id, token)
    assert int(other) > int(token)
    assert seat.call("ACKLEASE", job_id, token) == [b"STALE"]
    desk.advance(20)
    assert seat.call("ACKLEASE", job_id, other) == [b"OK"]
    assert seat.call("LEASE", 30_000, job_id, other) == [None]


def test_a_paused_queue_gives_jobs_by_their_ids_only(seat: Seat) -> None:
    job_id = add(seat)
    seat.call("PAUSE", "q", "out")
    assert seat.call("GETJOB", "NOHANG", "FROM", "q") is None
    assert seat.call("LEASE", 1000, job_id, NOBODYS)[0][1] == job_id


def test_a_job_that_is_leased_by_its_id_is_delivered_at_most_once_if_it_wants_so(desk: Desk, seat: Seat) -> None:
    job_id = add(seat, "once", "RETRY", 0)
    assert seat.call("LEASE", 1000, job_id, NOBODYS)[0][1] == job_id
    assert seat.call("ENQUEUE", job_id) == 0
    desk.advance(1000)
    assert seat.call("LEASE", 1000, job_id, NOBODYS) == [None]


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
def test_mistakes_are_told(seat: Seat, words: str, problem: str) -> None:
    job_id = add(seat)
    reply = seat.call(*[job_id if word == "ID" else word for word in words.split()])
    assert isinstance(reply, hiredis.ReplyError)
    assert problem in str(reply)
    assert seat.call("QLEN", "q") == 1


# JSCAN


def test_an_active_job_is_scheduled_or_reserved(desk: Desk, seat: Seat) -> None:
    queued, delayed, leased, taken, later = add(seat), add(seat, "late", "DELAY", 100), b"", b"", b""
    for number in range(3):
        add(seat, str(number))
    seat.call("DEQUEUE", queued)
    leased, _ = lease(seat)
    ((_, taken, _),) = seat.call("GETJOB", "FROM", "q")
    later, token = lease(seat)
    assert scan(seat, "reserved") == {leased, taken, later}
    seat.call("NACKLEASE", 50_000, later, token)
    assert scan(seat, "scheduled") == {delayed, later}
    assert scan(seat, "reserved") == {leased, taken}
    assert scan(seat, "active") == {queued, delayed, leased, taken, later}
    assert scan(seat, "scheduled", "reserved") == {delayed, leased, taken, later}
    seat.call("ENQUEUE", queued)
    assert scan(seat, "queued", "Scheduled") == {queued, delayed, later}
    desk.advance(51)
    assert scan(seat, "scheduled") == {delayed}
    desk.advance(51)
    assert scan(seat, "scheduled", "reserved") == {taken}


def test_who_was_fetched_again_after_a_late_nack_is_reserved(desk: Desk, seat: Seat) -> None:
    add(seat)
    seat.call("NACKLEASE", 1000, *lease(seat))
    desk.advance(2)
    job_id, _ = lease(seat)
    assert scan(seat, "reserved") == {job_id}
    assert scan(seat, "scheduled") == set()


# A restart


def test_a_release_outlives_a_restart() -> None:
    seat = Desk(appendonly=True).client()
    ids = {add(seat, "kept", "RETRY", 100), add(seat, "once", "RETRY", 0)}
    for held in (lease(seat), lease(seat)):
        assert seat.call("RELEASE", *held) == [b"OK"]
    seat.call("DEBUG", "LOADAOF")
    assert {counters(seat)[0], counters(seat)[0]} == ids


def test_a_lease_by_id_outlives_a_restart() -> None:
    seat = Desk(appendonly=True).client()
    kept, once = add(seat, "kept", "RETRY", 100), add(seat, "once", "RETRY", 0)
    (row, _) = seat.call("LEASE", 60_000, kept, NOBODYS, once, NOBODYS)
    seat.call("DEBUG", "LOADAOF")
    assert seat.call("GETJOB", "NOHANG", "FROM", "q") is None
    assert seat.call("ACKLEASE", kept, row[3]) == [b"OK"]
