"""Facts about time, on a broker whose clock the test turns: delays, retries, expiry, leases, waits and idle queues."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.unit.broker.harness import WALL_OFFSET_S, LocalClient, LocalServer

JITTER_S = 0.25
TOO_LATE = "TOOLATE Half of job TTL already elapsed, you are no longer allowed to postpone the next delivery."


@pytest.fixture
def server() -> LocalServer:
    return LocalServer()


@pytest.fixture
def client(server: LocalServer) -> LocalClient:
    return server.client()


def add(client: LocalClient, *options: str | int, queue: str = "q", body: str = "body") -> bytes:
    job_id: bytes = client.call("ADDJOB", queue, body, 0, *options)
    assert isinstance(job_id, bytes)
    return job_id


def get(client: LocalClient, *options: str | int, queue: str = "q") -> Any:
    return client.call("GETJOB", "NOHANG", *options, "FROM", queue)


def state(client: LocalClient, job_id: bytes) -> bytes | None:
    shown = client.call("SHOW", job_id)
    return None if shown is None else dict(zip(shown[::2], shown[1::2], strict=True))[b"state"]


def counters(client: LocalClient, job_id: bytes) -> tuple[int, int]:
    facts = client.flat_map("SHOW", job_id)
    return facts[b"nacks"], facts[b"additional-deliveries"]


def seconds_until(server: LocalServer, what: str, client: LocalClient, job_id: bytes, most: float) -> float:
    """Let time pass until a job has a state (`gone` for none); tell how long that took, give or take 10 ms."""
    began = server.now_s
    while server.now_s - began < most:
        now = state(client, job_id)
        if (now is None and what == "gone") or now == what.encode():
            return server.now_s - began
        server.advance(0.01)
    raise AssertionError(f"not {what} after {most} s")


# Delays


def test_a_delayed_job_is_queued_when_its_delay_is_over(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "DELAY", 5)
    assert 5 <= seconds_until(server, "queued", client, job_id, 10) <= 5.03


@pytest.mark.parametrize("fraction", [0.0, 0.0001, 0.0005, 0.0009, 0.00099])
def test_a_delayed_job_is_never_early(server: LocalServer, client: LocalClient, fraction: float) -> None:
    server.advance(0.3 + fraction)  # clocks tick finer than the milliseconds we count
    began = server.now_s
    job_id = add(client, "DELAY", 1)
    server.advance(0.9985)
    while state(client, job_id) != b"queued":
        server.advance(0.0001)
    assert server.now_s - began >= 1


def test_a_delayed_job_is_given_to_a_client_that_waits_for_it(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "DELAY", 5)
    waiting = server.client()
    waiting.send(["GETJOB", "FROM", "q"])
    server.advance(4.9)
    assert waiting.pushed() == []
    server.advance(0.2)
    assert waiting.pushed() == [[[b"q", job_id, b"body"]]]


def test_the_end_of_a_delay_is_no_additional_delivery(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "DELAY", 1)
    server.advance(1.1)
    assert counters(client, job_id) == (0, 0)


def test_delayed_jobs_come_in_the_order_of_creation_among_those_that_wait(
    server: LocalServer, client: LocalClient
) -> None:
    for body, delay_s in (("first", 3), ("second", 1), ("third", 2)):
        add(client, "DELAY", delay_s, body=body)
    server.advance(4)
    assert [job[2] for job in get(client, "COUNT", 5)] == [b"first", b"second", b"third"]


def test_enqueue_ends_a_delay(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "DELAY", 100, "RETRY", 50)
    client.call("ENQUEUE", job_id)
    assert get(client) == [[b"q", job_id, b"body"]]
    assert 49 <= seconds_until(server, "queued", client, job_id, 120) <= 51


# Retries


def test_a_fetched_job_comes_again_after_its_retry_time(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "RETRY", 10)
    get(client)
    took_s = seconds_until(server, "queued", client, job_id, 20)
    assert 10 - JITTER_S - 0.03 <= took_s <= 10 + JITTER_S + 0.03


def test_retries_are_spread_by_a_quarter_of_a_second_to_both_sides(client: LocalClient) -> None:
    within_ms = [client.flat_map("SHOW", add(client, "RETRY", 10))[b"next-requeue-within"] for _ in range(300)]
    assert min(within_ms) >= 9750
    assert max(within_ms) <= 10249
    assert min(within_ms) < 9850
    assert max(within_ms) > 10150


def test_a_job_comes_again_and_again_until_it_is_acked(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "RETRY", 1)
    for _ in range(5):
        assert get(client) == [[b"q", job_id, b"body"]]
        server.advance(1.3)
    get(client)
    client.call("ACKJOB", job_id)
    server.advance(10)
    assert get(client) is None


def test_the_retry_time_runs_from_the_queueing_and_not_from_the_delivery(
    server: LocalServer, client: LocalClient
) -> None:
    job_id = add(client, "RETRY", 3)
    server.advance(2.3)
    get(client)
    took_s = seconds_until(server, "queued", client, job_id, 5)
    assert 0.7 - JITTER_S - 0.03 <= took_s <= 0.7 + JITTER_S + 0.03


def test_after_it_came_back_a_job_has_its_whole_retry_time_again(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "RETRY", 3)
    get(client)
    server.advance(1)
    client.call("NACK", job_id)
    get(client)
    assert seconds_until(server, "queued", client, job_id, 5) >= 3 - JITTER_S - 0.03


def test_a_job_that_nobody_fetches_is_not_counted_again(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "RETRY", 1)
    server.advance(10)
    assert counters(client, job_id) == (0, 0)
    assert client.flat_map("QSTAT", "q")[b"jobs-in"] == 1


def test_a_job_that_nobody_fetches_begins_a_new_retry_time(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "RETRY", 10)
    server.advance(12)  # a new period began 2 s ago, give or take the jitter
    get(client)
    took_s = seconds_until(server, "queued", client, job_id, 12)
    assert 8 - 2 * JITTER_S - 0.03 <= took_s <= 8 + 2 * JITTER_S + 0.03


def test_a_retried_job_goes_before_younger_ones(server: LocalServer, client: LocalClient) -> None:
    old = add(client, "RETRY", 1)
    get(client)
    young = add(client, "RETRY", 100)
    server.advance(1.5)
    assert [job[1] for job in get(client, "COUNT", 2)] == [old, young]


def test_a_retried_job_is_given_to_a_client_that_waits(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "RETRY", 1)
    get(client)
    waiting = server.client()
    waiting.send(["GETJOB", "WITHCOUNTERS", "FROM", "q"])
    server.advance(1.5)
    assert waiting.pushed() == [[[b"q", job_id, b"body", b"nacks", 0, b"additional-deliveries", 1]]]


def test_a_job_with_retry_0_never_comes_again(server: LocalServer, client: LocalClient) -> None:
    add(client, "RETRY", 0, "TTL", 1000)
    assert len(get(client)) == 1
    for _ in range(10):
        server.advance(90)
        assert get(client) is None


def test_a_dequeued_job_comes_back_after_the_rest_of_its_retry_time(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "RETRY", 10)
    server.advance(4)
    client.call("DEQUEUE", job_id)
    took_s = seconds_until(server, "queued", client, job_id, 12)
    assert 6 - JITTER_S - 0.03 <= took_s <= 6 + JITTER_S + 0.03


@pytest.mark.parametrize("command", ["DEQUEUE", "WORKING"])
def test_a_job_that_left_its_queue_comes_back_even_if_the_queue_was_forgotten_meanwhile(
    server: LocalServer, client: LocalClient, command: str
) -> None:
    job_id = add(client, "RETRY", 1000)
    client.call(command, job_id)
    server.advance(302)
    assert client.call("QSTAT", "q") is None
    server.advance(700)
    assert get(client) == [[b"q", job_id, b"body"]]


# WORKING


def test_working_postpones_the_next_delivery_by_the_retry_time(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "RETRY", 10)
    get(client)
    server.advance(9)
    assert client.call("WORKING", job_id) == 10
    took_s = seconds_until(server, "queued", client, job_id, 12)
    assert 10 - JITTER_S - 0.03 <= took_s <= 10 + JITTER_S + 0.03


def test_who_keeps_saying_working_keeps_the_job(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "RETRY", 2)
    get(client)
    for _ in range(20):
        server.advance(1.5)
        client.call("WORKING", job_id)
    assert state(client, job_id) == b"active"


def test_working_counts_nothing(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "RETRY", 2)
    get(client)
    client.call("WORKING", job_id)
    server.advance(3)
    assert counters(client, job_id) == (0, 1)


@pytest.mark.parametrize(("elapsed_s", "allowed"), [(49, True), (49.9, True), (50.1, False), (99, False)])
def test_working_is_too_late_after_half_of_the_time_to_live(
    server: LocalServer, client: LocalClient, elapsed_s: float, allowed: bool
) -> None:
    job_id = add(client, "TTL", 100, "RETRY", 90)
    get(client)
    server.advance(elapsed_s)
    reply = client.call("WORKING", job_id)
    assert str(reply) == ("90" if allowed else TOO_LATE)


def test_working_too_late_postpones_nothing(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "TTL", 100, "RETRY", 60)
    get(client)
    server.advance(59)
    client.call("WORKING", job_id)
    assert seconds_until(server, "queued", client, job_id, 5) <= 1 + JITTER_S + 0.03


# Expiry


@pytest.mark.parametrize("options", [(), ("RETRY", 0), ("DELAY", 9)])
def test_a_job_is_forgotten_at_the_end_of_its_time_to_live(
    server: LocalServer, client: LocalClient, options: tuple[str | int, ...]
) -> None:
    job_id = add(client, "TTL", 10, *options)
    assert 10 <= seconds_until(server, "gone", client, job_id, 20) <= 10.03


def test_a_job_that_is_out_with_a_worker_expires_too(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "TTL", 10, "RETRY", 100)
    get(client)
    assert 10 <= seconds_until(server, "gone", client, job_id, 20) <= 10.03


def test_an_expired_job_is_no_longer_in_its_queue(server: LocalServer, client: LocalClient) -> None:
    add(client, "TTL", 10)
    last = add(client, "TTL", 100)
    server.advance(11)
    assert client.call("QLEN", "q") == 1
    assert [job[1] for job in get(client, "COUNT", 5)] == [last]


def test_an_expired_job_does_not_count_as_fetched(server: LocalServer, client: LocalClient) -> None:
    add(client, "TTL", 10)
    server.advance(11)
    assert client.flat_map("QSTAT", "q")[b"jobs-out"] == 0


def test_expired_jobs_give_their_memory_back(server: LocalServer, client: LocalClient) -> None:
    client.call("GETJOB", "NOHANG", "FROM", "q")
    server.advance(1)
    before = server.broker.node.memory.used_bytes
    for _ in range(50):
        add(client, "TTL", 10, body="x" * 1000)
    server.advance(11)
    assert server.broker.node.memory.used_bytes == before


def test_more_jobs_than_one_turn_handles_expire_all_the_same(server: LocalServer, client: LocalClient) -> None:
    client.send(*[["ADDJOB", "q", "body", "0", "TTL", "5"]] * 3500)
    server.advance(5.1)
    assert server.client().call("QLEN", "q") == 0


# Pauses


def test_a_retry_into_a_queue_paused_for_input_is_put_off_by_the_retry_time(
    server: LocalServer, client: LocalClient
) -> None:
    job_id = add(client, "RETRY", 10)
    get(client)
    client.call("PAUSE", "q", "in")
    server.advance(12)
    assert state(client, job_id) == b"active"
    client.call("PAUSE", "q", "none")
    took_s = seconds_until(server, "queued", client, job_id, 12)
    assert 8 - 2 * JITTER_S - 0.03 <= took_s <= 8 + 2 * JITTER_S + 0.03


def test_a_delayed_job_waits_for_the_end_of_a_pause_for_input(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "DELAY", 2, "RETRY", 10)
    client.call("PAUSE", "q", "in")
    server.advance(3)
    assert state(client, job_id) == b"active"
    client.call("PAUSE", "q", "none")
    server.advance(10)
    assert state(client, job_id) == b"queued"


def test_a_delayed_job_with_retry_0_is_queued_in_spite_of_a_pause_or_it_would_be_lost(
    server: LocalServer, client: LocalClient
) -> None:
    job_id = add(client, "DELAY", 2, "RETRY", 0)
    client.call("PAUSE", "q", "in")
    server.advance(2.1)
    assert get(client) == [[b"q", job_id, b"body"]]


def test_a_retry_into_a_queue_paused_for_output_waits_there(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "RETRY", 1)
    get(client)
    client.call("PAUSE", "q", "out")
    server.advance(2)
    assert state(client, job_id) == b"queued"
    assert get(client) is None


# Counters


def test_a_retry_counts_as_an_additional_delivery(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "RETRY", 1)
    for _ in range(3):
        get(client)
        server.advance(1.5)
    assert counters(client, job_id) == (0, 3)


def test_a_nack_before_the_first_queueing_makes_the_next_return_not_count(
    server: LocalServer, client: LocalClient
) -> None:
    job_id = add(client, "DELAY", 100, "RETRY", 1)
    client.call("NACK", job_id)
    get(client)
    server.advance(1.5)
    assert counters(client, job_id) == (1, 0)
    get(client)
    server.advance(1.5)
    assert counters(client, job_id) == (1, 1)


def test_a_nack_with_a_delay_counts_one_nack_and_no_delivery(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "RETRY", 100)
    get(client)
    client.call("NACK", "AFTER", 5000, job_id)
    assert 5 <= seconds_until(server, "queued", client, job_id, 10) <= 5.03
    assert counters(client, job_id) == (1, 0)


@pytest.mark.parametrize("fraction", [0.0, 0.0001, 0.0005, 0.0009, 0.00099])
def test_a_job_nacked_with_a_delay_is_never_early(server: LocalServer, client: LocalClient, fraction: float) -> None:
    job_id = add(client)
    get(client)
    server.advance(0.3 + fraction)
    began = server.now_s
    client.call("NACK", "AFTER", 1000, job_id)
    server.advance(0.9985)
    while state(client, job_id) != b"queued":
        server.advance(0.0001)
    assert server.now_s - began >= 1


def test_counters_wrap_after_sixteen_bits(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client)
    server.broker.node.jobs.get(job_id).nacks = 0xFFFF  # type: ignore[union-attr]  # it is there
    get(client)
    client.call("NACK", job_id)
    assert counters(client, job_id) == (0, 0)


# Leases


def test_a_lease_begins_at_the_delivery_whatever_the_retry_time(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "RETRY", 3)
    server.advance(2)
    get(client, "LEASE", 20_000)
    assert 20 <= seconds_until(server, "queued", client, job_id, 30) <= 20.03


def test_a_lease_may_be_shorter_than_the_retry_time(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "RETRY", 300)
    get(client, "LEASE", 500)
    assert 0.5 <= seconds_until(server, "queued", client, job_id, 5) <= 0.53


def test_a_client_that_waited_has_its_lease_from_the_moment_of_delivery(
    server: LocalServer, client: LocalClient
) -> None:
    waiting = server.client()
    waiting.send(["GETJOB", "LEASE", "5000", "FROM", "q"])
    server.advance(60)
    job_id = add(client, "RETRY", 300)
    assert 5 <= seconds_until(server, "queued", client, job_id, 10) <= 5.03


def test_an_extended_lease_ends_so_long_after_the_extension(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client)
    token = get(client, "LEASE", 5000)[0][3]
    server.advance(4)
    assert client.call("EXTEND", 10_000, job_id, token) == [b"OK"]
    assert 10 <= seconds_until(server, "queued", client, job_id, 20) <= 10.03


@pytest.mark.parametrize("words", [["ACKLEASE"], ["NACKLEASE", 0], ["EXTEND", 1000]])
def test_a_lease_that_ended_is_stale_and_changes_nothing(
    server: LocalServer, client: LocalClient, words: list[str | int]
) -> None:
    job_id = add(client)
    token = get(client, "LEASE", 1000)[0][3]
    server.advance(1.1)
    assert client.call(*words, job_id, token) == [b"STALE"]
    assert state(client, job_id) == b"queued"


@pytest.mark.parametrize("words", [["ACKLEASE"], ["NACKLEASE", 0], ["EXTEND", 1000]])
def test_a_stale_token_does_not_touch_the_lease_of_the_next_worker(
    server: LocalServer, client: LocalClient, words: list[str | int]
) -> None:
    job_id = add(client)
    stale = get(client, "LEASE", 1000)[0][3]
    server.advance(1.1)
    token = get(client, "LEASE", 5000)[0][3]
    assert client.call(*words, job_id, stale) == [b"STALE"]
    server.advance(4)
    assert client.call("ACKLEASE", job_id, token) == [b"OK"]


def expired(client: LocalClient) -> tuple[int, int]:
    """Return what QSTAT and INFO count."""
    total = re.search(rb"expired_jobs:([0-9]+)", client.call("INFO", "stats"))
    assert total is not None
    return client.flat_map("QSTAT", "q")[b"expired"], int(total[1])


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["GETJOB", "FROM", "q"],
        ["GETJOB", "LEASE", 60_000, "FROM", "q"],
        ["CLAIM", "key", "FROM", "q"],
    ],
)
def test_a_job_that_expires_is_counted(server: LocalServer, client: LocalClient, words: list[str | int]) -> None:
    add(client, "TTL", 10, "RETRY", 300)
    assert expired(client) == (0, 0)
    if words:
        client.call(*words)
    server.advance(9.9)
    assert expired(client) == (0, 0)
    server.advance(0.2)
    assert expired(client) == (1, 1)


def test_a_job_that_expires_after_it_was_given_back_for_later_is_counted(
    server: LocalServer, client: LocalClient
) -> None:
    job_id = add(client, "TTL", 10)
    get(client)
    client.call("NACK", "AFTER", 60_000, job_id)
    server.advance(10.1)
    assert expired(client) == (1, 1)


def test_a_job_that_expires_while_a_pause_keeps_it_out_of_its_queue_is_counted(
    server: LocalServer, client: LocalClient
) -> None:
    add(client, "TTL", 10, "DELAY", 1)
    client.call("PAUSE", "q", "in")
    server.advance(10.1)
    assert expired(client) == (1, 1)


def test_a_job_that_expires_after_it_was_dequeued_is_counted(server: LocalServer, client: LocalClient) -> None:
    client.call("DEQUEUE", add(client, "TTL", 10, "RETRY", 300))
    server.advance(10.1)
    assert expired(client) == (1, 1)


@pytest.mark.parametrize("command", ["ACKJOB", "FASTACK", "DELJOB"])
def test_a_job_that_ended_before_does_not_count_as_expired(
    server: LocalServer, client: LocalClient, command: str
) -> None:
    job_id = add(client, "TTL", 10)
    get(client)
    client.call(command, job_id)
    server.advance(10.1)
    assert expired(client) == (0, 0)


def test_a_job_that_had_its_only_delivery_does_not_count_as_expired(server: LocalServer, client: LocalClient) -> None:
    add(client, "TTL", 10, "RETRY", 0)
    get(client)
    server.advance(10.1)
    assert expired(client) == (0, 0)
    add(client, "TTL", 10, "RETRY", 0)
    server.advance(10.1)
    assert expired(client) == (1, 1)


def test_a_queue_is_known_for_a_while_after_its_last_job_has_expired(server: LocalServer, client: LocalClient) -> None:
    add(client, "TTL", 1000)
    server.advance(1200)
    assert expired(client) == (1, 1)
    client.call("CONFIG", "RESETSTAT")
    assert expired(client) == (1, 0)


def test_a_lease_of_a_job_with_retry_0_holds_until_it_expires(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client, "RETRY", 0, "TTL", 100)
    token = get(client, "LEASE", 1000)[0][3]
    server.advance(50)
    assert get(client) is None
    assert client.call("ACKLEASE", job_id, token) == [b"OK"]


def test_a_claim_that_is_asked_for_again_is_renewed(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client)
    client.call("CLAIM", "key", "LEASE", 5000, "FROM", "q")
    for _ in range(5):
        server.advance(4)
        assert [job[1] for job in client.call("CLAIM", "key", "LEASE", 5000, "FROM", "q")] == [job_id]


def test_a_claim_that_ended_holds_nothing(server: LocalServer, client: LocalClient) -> None:
    job_id = add(client)
    client.call("CLAIM", "key", "LEASE", 5000, "FROM", "q")
    server.advance(5.1)
    assert client.call("ACKCLAIM", "key") == 0
    assert state(client, job_id) == b"queued"


# Clients that wait


@pytest.mark.parametrize("timeout_ms", [1, 250, 5000])
def test_a_wait_ends_after_its_time_with_nothing(server: LocalServer, client: LocalClient, timeout_ms: int) -> None:
    began = server.now_s
    client.send(["GETJOB", "TIMEOUT", str(timeout_ms), "FROM", "q"])
    while not (replies := client.pushed()):
        server.advance(0.001)
    assert replies == [None]
    assert timeout_ms / 1000 - 0.002 <= server.now_s - began <= timeout_ms / 1000 + 0.003


def test_a_wait_without_a_timeout_goes_on(server: LocalServer, client: LocalClient) -> None:
    client.send(["GETJOB", "TIMEOUT", "0", "FROM", "q"])
    server.advance(600)
    assert client.pushed() == []


def test_a_client_whose_wait_is_over_gets_no_job_any_more(server: LocalServer, client: LocalClient) -> None:
    client.send(["GETJOB", "TIMEOUT", "100", "FROM", "q"])
    server.advance(0.2)
    client.pushed()
    other = server.client()
    add(other)
    assert client.pushed() == []
    assert other.call("QLEN", "q") == 1


def test_what_a_client_sent_while_it_waited_runs_after_its_timeout(server: LocalServer, client: LocalClient) -> None:
    client.send(["GETJOB", "TIMEOUT", "100", "FROM", "q"], ["PING"])
    assert client.pushed() == []
    server.advance(0.2)
    assert client.pushed() == [None, b"PONG"]


# Idle queues


def test_an_empty_queue_without_traffic_is_forgotten_after_five_minutes(
    server: LocalServer, client: LocalClient
) -> None:
    get(client)
    server.advance(299.5)
    assert client.call("QSTAT", "q") is not None
    server.advance(1)
    assert client.call("QSTAT", "q") is None


@pytest.mark.parametrize(("used_percent", "idle_s"), [(80, 10), (97, 2)])
def test_under_memory_pressure_idle_queues_go_sooner(used_percent: int, idle_s: int) -> None:
    server = LocalServer()
    client = server.client()
    get(client)
    memory = server.broker.node.memory
    memory.limit(memory.used_bytes * 100 // used_percent)
    server.advance(idle_s - 0.2)
    assert client.call("QSTAT", "q") is not None
    server.advance(0.5)
    assert client.call("QSTAT", "q") is None


@pytest.mark.parametrize(
    ("words", "is_traffic"),
    [
        ("ADDJOB q body 0 RETRY 0", True),
        ("GETJOB NOHANG FROM q", False),
        ("GETJOB NOHANG FROM q other", False),
        ("GETJOB TIMEOUT 1 FROM q", False),
        ("QLEN q", False),
        ("QPEEK q 1", False),
        ("QSTAT q", False),
    ],
)
def test_only_jobs_that_come_and_go_keep_a_queue(
    server: LocalServer, client: LocalClient, words: str, is_traffic: bool
) -> None:
    add(client, "RETRY", 0)
    get(client)
    server.advance(200)
    other = server.client()
    other.send(list(words.split()))
    if is_traffic:
        get(client)
    server.advance(150)
    assert (client.call("QSTAT", "q") is not None) == is_traffic


def test_a_queue_with_jobs_is_kept(server: LocalServer, client: LocalClient) -> None:
    add(client, "RETRY", 0)
    server.advance(900)
    assert client.call("QLEN", "q") == 1


def test_a_paused_queue_is_kept(server: LocalServer, client: LocalClient) -> None:
    client.call("PAUSE", "q", "out")
    server.advance(900)
    assert client.call("PAUSE", "q", "state") == b"out"


def test_a_queue_at_which_somebody_waits_is_kept(server: LocalServer, client: LocalClient) -> None:
    client.send(["GETJOB", "FROM", "q"])
    server.advance(900)
    assert server.client().flat_map("QSTAT", "q")[b"blocked"] == 1


def test_a_queue_that_was_only_waited_at_goes_with_its_last_client(server: LocalServer, client: LocalClient) -> None:
    client.send(["GETJOB", "TIMEOUT", "400000", "FROM", "q"])
    server.advance(399.95)
    watcher = server.client()
    assert watcher.call("QSTAT", "q") is not None
    server.broker.tick()
    server.now_s += 0.06
    server.broker.tick()  # without a cron, which would look for idle queues too
    assert watcher.call("QSTAT", "q") is None


def test_a_queue_tells_its_age_and_how_long_nothing_happened(server: LocalServer, client: LocalClient) -> None:
    add(client)
    server.advance(30)
    get(client)
    server.advance(12.5)
    facts = client.flat_map("QSTAT", "q")
    assert (facts[b"age"], facts[b"idle"]) == (42, 12)


def test_forgotten_queues_give_their_memory_back(server: LocalServer, client: LocalClient) -> None:
    server.advance(1)
    before = server.broker.node.memory.used_bytes
    for number in range(100):
        get(client, queue=f"queue {number}")
    server.advance(302)
    assert server.broker.node.memory.used_bytes == before


# The wall clock


@pytest.mark.parametrize("jump_s", [86_400.0 * 3650, -86_400.0 * 3650])
def test_a_jump_of_the_wall_clock_neither_releases_nor_expires_nor_ends_anything(
    server: LocalServer, client: LocalClient, jump_s: float
) -> None:
    delayed = add(client, "DELAY", 100, queue="delayed")
    waits = add(client, "TTL", 1000, queue="waits")
    out = add(client, "RETRY", 100, queue="out")
    get(client, queue="out")
    leased = add(client, queue="leased")
    get(client, "LEASE", 100_000, queue="leased")
    blocked = server.client()
    blocked.send(["GETJOB", "TIMEOUT", "100000", "FROM", "blocked"])
    server.broker.wall = lambda: server.now_s + WALL_OFFSET_S + jump_s
    server.advance(99)
    assert [state(client, job) for job in (delayed, waits, out, leased)] == [b"active", b"queued", b"active", b"active"]
    assert blocked.pushed() == []


@pytest.mark.parametrize("jump_s", [86_400.0 * 3650, -86_400.0 * 3650])
def test_after_a_jump_of_the_wall_clock_everything_happens_when_it_should(
    server: LocalServer, client: LocalClient, jump_s: float
) -> None:
    delayed = add(client, "DELAY", 100)
    mortal = add(client, "TTL", 100)
    server.broker.wall = lambda: server.now_s + WALL_OFFSET_S + jump_s
    server.advance(100.1)
    assert state(client, delayed) == b"queued"
    assert state(client, mortal) is None


def test_creation_times_grow_even_while_the_wall_clock_goes_back(server: LocalServer, client: LocalClient) -> None:
    times = []
    for number in range(20):
        server.broker.wall = lambda back_s=float(number): server.now_s + WALL_OFFSET_S - 60 * back_s
        server.advance(0.2)
        times.append(client.flat_map("SHOW", add(client))[b"ctime"])
    assert times == sorted(set(times))
