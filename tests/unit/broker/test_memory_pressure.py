"""What a node does when memory gets short: above 75 % it keeps no new jobs, above 95 % it evicts, then refuses."""

from __future__ import annotations

import pytest
from hiredis import ReplyError

from penstock.broker.core.jobs import JOB_BYTES
from penstock.broker.core.queues import QUEUE_BYTES
from tests.unit.broker.harness import Desk, Seat

LIMIT = 1_000_000
FULL_ERROR = "OOM command not allowed when used memory > 'maxmemory'."
ALONE_ERROR = (
    "NOREPL Not enough reachable nodes for the requested replication level, since I'm unable to hold a copy of the "
    "message for the following reason: I'm out of memory"
)


@pytest.fixture
def desk() -> Desk:
    return Desk(maxmemory=LIMIT)


@pytest.fixture
def seat(desk: Desk) -> Seat:
    return desk.client()


def used(desk: Desk) -> int:
    return desk.broker.node.memory.used_bytes


def jobs(desk: Desk) -> int:
    return desk.broker.node.jobs.count


def set_limit_to_percent(desk: Desk, seat: Seat, percent: int) -> None:
    """Change maxmemory so that what is used now is this much of it."""
    assert seat.call("CONFIG", "SET", "maxmemory", used(desk) * 100 // percent) == b"OK"


def fetched(seat: Seat, count: int, size: int, *options: str) -> list[bytes]:
    """Add jobs and fetch them; give their ids."""
    ids = [seat.call("ADDJOB", "q", b"x" * size, 0, *options) for _ in range(count)]
    for _ in range(count):
        assert seat.call("GETJOB", "FROM", "q")
    return ids


def is_error(reply: object, text: str) -> bool:
    return isinstance(reply, ReplyError) and str(reply) == text


# Above 75 %


def test_above_three_quarters_a_node_that_is_alone_takes_no_job(desk: Desk, seat: Seat) -> None:
    while not isinstance(reply := seat.call("ADDJOB", "q", b"x" * 10_000, 0), ReplyError):
        assert used(desk) < LIMIT
    assert str(reply) == ALONE_ERROR
    assert LIMIT * 0.75 < used(desk) < LIMIT * 0.75 + 10_000 + JOB_BYTES + 1


@pytest.mark.parametrize("command", [["ADDJOB", "new", "x", "0"], ["ADDJOBS", "q", "0", "BODIES", "x", "y"]])
def test_above_three_quarters_every_way_to_add_is_refused(desk: Desk, seat: Seat, command: list[str]) -> None:
    seat.call("ADDJOB", "q", b"x" * 700_000, 0)
    assert is_error(seat.call(*command), ALONE_ERROR)


def test_above_three_quarters_all_else_goes_on(desk: Desk, seat: Seat) -> None:
    seat.call("ADDJOB", "q", b"x" * 700_000, 0)
    ((_, job_id, _),) = seat.call("GETJOB", "FROM", "q")
    assert seat.call("NACK", job_id) == 1
    assert seat.call("DEQUEUE", job_id) == 1
    assert seat.call("ENQUEUE", job_id) == 1
    assert seat.call("ACKJOB", job_id) == 1
    assert not isinstance(seat.call("ADDJOB", "q", "x", 0), ReplyError)


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
def test_a_full_node_refuses_what_needs_memory(desk: Desk, seat: Seat, command: list[str]) -> None:
    seat.call("ADDJOB", "q", b"x" * LIMIT, 0)
    assert is_error(seat.call(*command), FULL_ERROR)


def test_a_full_node_still_gives_out_and_finishes_jobs(desk: Desk, seat: Seat) -> None:
    seat.call("ADDJOB", "q", b"x" * LIMIT, 0)
    assert seat.call("PING") == b"PONG"
    assert seat.call("QLEN", "q") == 1
    ((_, job_id, body),) = seat.call("GETJOB", "FROM", "q")
    assert len(body) == LIMIT
    assert seat.call("WORKING", job_id) == 300
    assert is_error(seat.call("ADDJOB", "q", "x", 0), FULL_ERROR)
    assert seat.call("ACKJOB", job_id) == 1
    assert not isinstance(seat.call("ADDJOB", "q", "x", 0), ReplyError)


def test_full_begins_right_above_95_percent(desk: Desk, seat: Seat) -> None:
    seat.call("ADDJOB", "q", "x", 0)
    seat.call("CONFIG", "SET", "maxmemory", -(-used(desk) // 95) * 100)
    assert is_error(seat.call("ADDJOB", "q", "x", 0), ALONE_ERROR)  # at 95 %, and above 75
    seat.call("CONFIG", "SET", "maxmemory", (used(desk) - 1) // 95 * 100)
    assert is_error(seat.call("ADDJOB", "q", "x", 0), FULL_ERROR)


# Eviction


def test_one_command_evicts_as_many_delivered_jobs_of_retry_0_as_needed(desk: Desk, seat: Seat) -> None:
    fetched(seat, 60, 10_000, "RETRY", "0")
    set_limit_to_percent(desk, seat, 190)
    before = jobs(desk)
    assert seat.call("PING") == b"PONG"
    assert used(desk) <= desk.broker.node.memory.full_bytes < used(desk) + 10_000 + JOB_BYTES
    assert 20 < before - jobs(desk) < 40


def test_the_add_that_makes_eviction_necessary_is_taken(desk: Desk, seat: Seat) -> None:
    """The original evicts one job a command and refuses the add all the same."""
    fetched(seat, 60, 10_000, "RETRY", "0")
    set_limit_to_percent(desk, seat, 96)
    assert is_error(seat.call("ADDJOB", "q", "x", 0), ALONE_ERROR)  # no longer full: only above 75 %
    assert seat.call("NACK") == 0


@pytest.mark.parametrize("state", ["queued", "with a retry", "not delivered yet"])
def test_what_somebody_still_needs_is_never_evicted(desk: Desk, seat: Seat, state: str) -> None:
    if state == "with a retry":
        fetched(seat, 50, 10_000)
    else:
        options = ("RETRY", "0", "DELAY", "100") if state == "not delivered yet" else ("RETRY", "0")
        for _ in range(50):
            seat.call("ADDJOB", "q", b"x" * 10_000, 0, *options)
    set_limit_to_percent(desk, seat, 120)
    assert is_error(seat.call("ADDJOB", "q", "x", 0), FULL_ERROR)
    assert jobs(desk) == 50


def test_with_noeviction_nothing_is_evicted(desk: Desk, seat: Seat) -> None:
    fetched(seat, 50, 10_000, "RETRY", "0")
    seat.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    set_limit_to_percent(desk, seat, 120)
    assert is_error(seat.call("ADDJOB", "q", "x", 0), FULL_ERROR)
    assert jobs(desk) == 50
    seat.call("CONFIG", "SET", "maxmemory-policy", "acks")
    seat.call("PING")
    assert jobs(desk) < 50


def test_a_few_jobs_are_found_among_many_places_that_are_empty(desk: Desk, seat: Seat) -> None:
    seat.call("CONFIG", "SET", "maxmemory", 1 << 30)
    ids = [seat.call("ADDJOB", "q", "x", 0) for _ in range(5000)]
    seat.call("ACKJOB", *ids)
    fetched(seat, 5, 200_000, "RETRY", "0")
    set_limit_to_percent(desk, seat, 200)
    seat.call("PING")
    assert used(desk) <= desk.broker.node.memory.full_bytes
    assert jobs(desk) < 5


# No limit


def test_maxmemory_0_means_no_refusal_for_memory_but_permanent_pressure(desk: Desk, seat: Seat) -> None:
    (job_id,) = fetched(seat, 1, 10, "RETRY", "0")
    other = seat.call("ADDJOB", "q", "x", 0)
    assert seat.call("CONFIG", "SET", "maxmemory", 0) == b"OK"
    assert is_error(seat.call("ADDJOB", "q", "x", 0), ALONE_ERROR)
    seat.call("GETJOB", "FROM", "q")
    assert seat.call("NACK", other) == 1
    assert seat.call("SHOW", job_id) is not None  # nothing is evicted
    assert seat.call("CONFIG", "SET", "maxmemory", LIMIT) == b"OK"
    assert not isinstance(seat.call("ADDJOB", "q", "x", 0), ReplyError)


# Queues


def make_queues(seat: Seat, count: int) -> None:
    for number in range(count):
        assert seat.call("GETJOB", "NOHANG", "FROM", f"queue-{number}") is None


def test_a_thousand_empty_queues_vanish_under_pressure(desk: Desk, seat: Seat) -> None:
    seat.call("CONFIG", "SET", "maxmemory", 1 << 30)
    make_queues(seat, 1000)
    idle = used(desk) - 1000 * QUEUE_BYTES
    assert len(desk.broker.node.queues) == 1000
    seat.call("CONFIG", "SET", "maxmemory", 1)
    desk.advance(5)
    assert len(desk.broker.node.queues) == 0
    assert used(desk) < idle


@pytest.mark.parametrize(("percent", "seconds"), [(10, 300), (80, 10), (96, 2)])
def test_idle_queues_go_the_sooner_the_less_memory_is_left(desk: Desk, seat: Seat, percent: int, seconds: int) -> None:
    seat.call("ADDJOB", "stays", b"x" * 100_000, 0)
    make_queues(seat, 50)
    set_limit_to_percent(desk, seat, percent)
    desk.advance(seconds - 1)
    assert len(desk.broker.node.queues) == 51
    desk.advance(2)
    assert len(desk.broker.node.queues) == 1


def test_queues_in_use_stay_however_little_memory_is_left(desk: Desk, seat: Seat) -> None:
    seat.call("ADDJOB", "with-a-job", "x", 0)
    seat.call("PAUSE", "paused", "in")
    waiting = desk.client()
    waiting.send(["GETJOB", "FROM", "waited-for"])
    seat.call("CONFIG", "SET", "maxmemory", 1)
    desk.advance(20)
    assert set(desk.broker.node.queues.by_name) == {b"with-a-job", b"paused", b"waited-for"}


# Accounts


def test_what_was_taken_is_given_back(desk: Desk, seat: Seat) -> None:
    desk.advance(1)  # the client itself is accounted for
    idle = used(desk)
    ids = fetched(seat, 20, 1000) + fetched(seat, 20, 1000, "RETRY", "0")
    assert used(desk) == idle + 40 * (1000 + JOB_BYTES) + QUEUE_BYTES + 1
    seat.call("ACKJOB", *ids)
    assert used(desk) == idle + QUEUE_BYTES + 1
    desk.advance(301)
    assert used(desk) == idle


def test_buffers_of_clients_are_accounted_for(desk: Desk, seat: Seat) -> None:
    desk.advance(1)
    idle = used(desk)
    memory = desk.broker.node.memory
    memory.clients.bytes, memory.connection_bytes, memory.unauthenticated.bytes = 5000, 700, 10_000
    desk.advance(1)
    assert used(desk) == idle + 5700  # what unauthenticated connections hold is counted apart
    memory.clients.bytes = memory.connection_bytes = 0
    desk.advance(1)
    assert used(desk) == idle


def test_buffers_stay_accounted_when_everything_is_dropped(desk: Desk, seat: Seat) -> None:
    desk.broker.node.memory.clients.bytes = 5000
    desk.advance(1)
    before = used(desk)
    seat.call("ADDJOB", "q", "x", 0)
    seat.call("DEBUG", "FLUSHALL")
    assert used(desk) == before
