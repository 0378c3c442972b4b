"""Penstock's own commands on a real node: leases with tokens, claims under a key, many adds at once, compact scans."""

from __future__ import annotations

from typing import Any

import pytest

from tests.processes import NodeProcess, wait_until
from tests.raw_link import RawLink

pytestmark = pytest.mark.system

UNKNOWN = b"D-01234567-abcdefghijklmnopqrstuvwx-05a1"
SYNTAX = "ERR syntax error"
WEEK_MS = 7 * 86_400_000
NO_TOKEN = "ERR each id must be followed by the token of its lease"
BAD_ID = "BADID Invalid Job ID format."


def add(node: NodeProcess, queue: bytes, *options: str | int, body: str = "body") -> bytes:
    job_id: bytes = node.call("ADDJOB", queue, body, 0, *options)
    return job_id


def lease(node: NodeProcess, queue: bytes, ms: int = 100_000, *options: str | int) -> tuple[bytes, bytes]:
    """Take one job with a lease: its id and token."""
    ((_, job_id, _, token),) = node.call("GETJOB", "NOHANG", "LEASE", ms, *options, "FROM", queue)
    return job_id, token


def state(node: NodeProcess, job_id: bytes) -> bytes | None:
    shown = node.call("SHOW", job_id)
    return None if shown is None else shown[5]


def fact(node: NodeProcess, job_id: bytes, name: bytes) -> Any:
    shown = node.call("SHOW", job_id)
    return shown[shown.index(name) + 1]


def claim(node: NodeProcess, key: bytes, queue: bytes, *options: str | int) -> list[bytes]:
    return [job[1] for job in node.call("CLAIM", key, *options, "FROM", queue)]


def milliseconds(name: str) -> str:
    return f"ERR {name} must be a number of milliseconds between 0 and {WEEK_MS}"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("GETJOB LEASE FROM", milliseconds("LEASE")),
        ("GETJOB LEASE", SYNTAX),
        ("GETJOB LEASE x FROM q", milliseconds("LEASE")),
        ("GETJOB LEASE -1 FROM q", milliseconds("LEASE")),
        (f"GETJOB LEASE {WEEK_MS + 1} FROM q", milliseconds("LEASE")),
        ("ACKLEASE ID", "ERR wrong number of arguments for 'acklease' command"),
        ("ACKLEASE ID 1 ID", NO_TOKEN),
        ("ACKLEASE ID x", NO_TOKEN),
        ("ACKLEASE ID 0", NO_TOKEN),
        ("ACKLEASE ID -5", NO_TOKEN),
        ("ACKLEASE bad 1", BAD_ID),
        ("ACKLEASE ID 1 bad 1", BAD_ID),
        ("NACKLEASE x ID 1", milliseconds("the delay")),
        ("NACKLEASE 0 bad 1", BAD_ID),
        ("NACKLEASE 0 ID x", NO_TOKEN),
        ("EXTEND x ID 1", milliseconds("the lease")),
        (f"EXTEND {WEEK_MS + 1} ID 1", milliseconds("the lease")),
        ("EXTEND 1 ID", "ERR wrong number of arguments for 'extend' command"),
        ("EXTEND 1 bad 1", BAD_ID),
        ("NACK AFTER x ID", milliseconds("AFTER")),
        ("NACK AFTER -1 ID", milliseconds("AFTER")),
        ("NACK AFTER 1 bad", BAD_ID),
        ("CLAIM key FROM", "ERR wrong number of arguments for 'claim' command"),
        ("CLAIM key COUNT 1 FROM", SYNTAX),
        ("CLAIM key BOGUS 1 FROM q", SYNTAX),
        ("CLAIM key COUNT x FROM q", "ERR COUNT must be a number between 0 and 100000"),
        ("CLAIM key COUNT 100001 FROM q", "ERR COUNT must be a number between 0 and 100000"),
        ("CLAIM key LEASE x FROM q", milliseconds("LEASE")),
        ("NACKCLAIM key x", milliseconds("the delay")),
        ("NACKCLAIM key 1 2", SYNTAX),
        ("EXTENDCLAIM key x", milliseconds("the lease")),
        ("ADDJOBS q 0 BODIES", "ERR wrong number of arguments for 'addjobs' command"),
        ("ADDJOBS q 0 ASYNC BODIES", SYNTAX),
        ("ADDJOBS q 0 RETRY 1 a b", SYNTAX),
        ("ADDJOBS q 0 BOGUS BODIES a", SYNTAX),
        ("ADDJOBS q x RETRY -1 BODIES a", "ERR RETRY time must be a non negative number"),
        ("ADDJOBS q x BODIES a b", "ERR timeout is not an integer or out of range"),
    ],
)
def test_a_wrong_request_is_refused_with_its_reason(link: RawLink, words: str, problem: str) -> None:
    reply = link.ask(*[UNKNOWN if word == "ID" else word for word in words.split()])
    assert reply == f"-{problem}\r\n".encode()


def test_the_key_of_a_claim_has_a_limit(link: RawLink, queue: bytes) -> None:
    refused = b"-ERR the key of a claim must have 1 to 512 bytes\r\n"
    assert link.ask("CLAIM", b"k" * 512, "FROM", queue) == b"*0\r\n"
    assert link.ask("CLAIM", b"k" * 513, "FROM", queue) == refused
    assert link.ask("ACKCLAIM", b"") == refused


# Leases


def test_a_leased_job_comes_with_its_token_behind_the_body(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    job_id = add(shared_node, queue)
    reply = link.ask("GETJOB", "LEASE", 1000, "FROM", queue)
    head = b"*1\r\n*4\r\n$%d\r\n%b\r\n$40\r\n%b\r\n$4\r\nbody\r\n$" % (len(queue), queue, job_id)
    assert reply.startswith(head)
    size, token, end = reply[len(head) :].split(b"\r\n")
    assert len(token) == int(size)
    assert int(token) > 0
    assert end == b""


def test_counters_stand_behind_the_token(shared_node: NodeProcess, queue: bytes) -> None:
    add(shared_node, queue)
    ((_, _, _, token, *counters),) = shared_node.call("GETJOB", "WITHCOUNTERS", "LEASE", 1000, "FROM", queue)
    assert token.isdigit()
    assert counters == [b"nacks", 0, b"additional-deliveries", 0]


def test_a_client_that_waited_gets_its_token_too(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    link.post("GETJOB", "LEASE", 100_000, "FROM", queue)
    wait_until(lambda: (shared_node.call("QSTAT", queue) or [0] * 10)[9] == 1)
    job_id = add(shared_node, queue)
    token = link.reply().split(b"\r\n")[-2]
    assert shared_node.call("ACKLEASE", job_id, token) == [b"OK"]


def test_no_two_deliveries_have_the_same_token(shared_node: NodeProcess, queue: bytes) -> None:
    tokens = set()
    job_id = add(shared_node, queue)
    for _ in range(50):
        tokens.add(lease(shared_node, queue)[1])
        shared_node.call("NACK", job_id)
    assert len(tokens) == 50


def test_an_ack_of_a_lease_answers_a_status_for_each_job(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    add(shared_node, queue)
    add(shared_node, queue)
    held, token = lease(shared_node, queue)
    other, other_token = lease(shared_node, queue)
    reply = link.ask("ACKLEASE", held, token, UNKNOWN, 5, other, int(other_token) + 1)
    assert reply == b"*3\r\n+OK\r\n+NOJOB\r\n+STALE\r\n"
    assert [state(shared_node, job) for job in (held, other)] == [None, b"active"]


def test_an_acked_lease_is_of_an_unknown_job_the_second_time(shared_node: NodeProcess, queue: bytes) -> None:
    add(shared_node, queue)
    job_id, token = lease(shared_node, queue)
    assert shared_node.call("ACKLEASE", job_id, token, job_id, token) == [b"OK", b"NOJOB"]


@pytest.mark.parametrize("words", [["ACKLEASE"], ["NACKLEASE", 0], ["EXTEND", 1000]])
@pytest.mark.parametrize("cause", ["NACK", "ENQUEUE"])
def test_a_token_is_stale_once_its_job_was_queued_again(
    shared_node: NodeProcess, queue: bytes, words: list[str | int], cause: str
) -> None:
    add(shared_node, queue)
    job_id, token = lease(shared_node, queue)
    shared_node.call(cause, job_id)
    assert shared_node.call(*words, job_id, token) == [b"STALE"]
    assert state(shared_node, job_id) == b"queued"


def test_a_token_is_stale_while_somebody_else_has_the_job(shared_node: NodeProcess, queue: bytes) -> None:
    add(shared_node, queue)
    job_id, token = lease(shared_node, queue)
    shared_node.call("NACK", job_id)
    _, next_token = lease(shared_node, queue)
    assert shared_node.call("ACKLEASE", job_id, token) == [b"STALE"]
    assert shared_node.call("ACKLEASE", job_id, next_token) == [b"OK"]


def test_a_job_fetched_without_a_lease_has_no_token_that_fits(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = add(shared_node, queue)
    shared_node.call("GETJOB", "FROM", queue)
    assert shared_node.call("ACKLEASE", job_id, 1) == [b"STALE"]


def test_a_plain_ack_ends_a_leased_job(shared_node: NodeProcess, queue: bytes) -> None:
    add(shared_node, queue)
    job_id, token = lease(shared_node, queue)
    assert shared_node.call("ACKJOB", job_id) == 1
    assert shared_node.call("ACKLEASE", job_id, token) == [b"NOJOB"]


def test_a_nacked_lease_returns_the_job_at_once(shared_node: NodeProcess, queue: bytes) -> None:
    add(shared_node, queue)
    job_id, token = lease(shared_node, queue)
    assert shared_node.call("NACKLEASE", 0, job_id, token) == [b"OK"]
    assert state(shared_node, job_id) == b"queued"
    assert fact(shared_node, job_id, b"nacks") == 1


def test_a_lease_nacked_with_a_delay_returns_the_job_later(shared_node: NodeProcess, queue: bytes) -> None:
    add(shared_node, queue)
    job_id, token = lease(shared_node, queue)
    assert shared_node.call("NACKLEASE", 500_000, job_id, token) == [b"OK"]
    assert state(shared_node, job_id) == b"active"
    assert 400_000 < fact(shared_node, job_id, b"next-requeue-within") <= 500_001


def test_a_lease_nacked_with_a_delay_is_over(shared_node: NodeProcess, queue: bytes) -> None:
    add(shared_node, queue)
    job_id, token = lease(shared_node, queue)
    shared_node.call("NACKLEASE", 500_000, job_id, token)
    assert shared_node.call("ACKLEASE", job_id, token) == [b"STALE"]


def test_an_extended_lease_ends_later(shared_node: NodeProcess, queue: bytes) -> None:
    add(shared_node, queue)
    job_id, token = lease(shared_node, queue, 100_000)
    assert shared_node.call("EXTEND", 900_000, job_id, token) == [b"OK"]
    assert 800_000 < fact(shared_node, job_id, b"next-requeue-within") <= 900_000


# NACK AFTER


def test_a_nack_with_a_delay_counts_now_and_queues_later(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    job_id = add(shared_node, queue)
    shared_node.call("GETJOB", "FROM", queue)
    assert link.ask("nack", "after", 500_000, job_id, UNKNOWN) == b":1\r\n"
    assert (state(shared_node, job_id), fact(shared_node, job_id, b"nacks")) == (b"active", 1)
    assert 400_000 < fact(shared_node, job_id, b"next-requeue-within") <= 500_001


def test_a_nack_after_no_time_is_a_plain_nack(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = add(shared_node, queue)
    shared_node.call("GETJOB", "FROM", queue)
    assert shared_node.call("NACK", "AFTER", 0, job_id) == 1
    assert state(shared_node, job_id) == b"queued"


@pytest.mark.parametrize("options", [[], ["RETRY", 0]])
def test_a_nack_with_a_delay_takes_only_what_a_nack_takes(
    shared_node: NodeProcess, queue: bytes, options: list[str | int]
) -> None:
    job_id = add(shared_node, queue, *options)
    if options:
        shared_node.call("GETJOB", "FROM", queue)
    assert shared_node.call("NACK", "AFTER", 1000, job_id) == 0


# Claims


def test_a_claimed_job_comes_with_its_counters_and_creation_time(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    job_id = add(shared_node, queue)
    ctime = fact(shared_node, job_id, b"ctime")
    reply = link.ask("CLAIM", queue, "FROM", queue)
    job = b"*6\r\n$%d\r\n%b\r\n$40\r\n%b\r\n$4\r\nbody\r\n:0\r\n:0\r\n:%d\r\n" % (len(queue), queue, job_id, ctime)
    assert reply == b"*1\r\n" + job


def test_a_claim_on_an_empty_queue_is_an_empty_array_at_once(link: RawLink, queue: bytes) -> None:
    assert link.ask("CLAIM", queue, "FROM", queue) == b"*0\r\n"


def test_the_same_key_returns_the_same_jobs_again_and_no_others(shared_node: NodeProcess, queue: bytes) -> None:
    ids = [add(shared_node, queue) for _ in range(5)]
    assert claim(shared_node, queue, queue, "COUNT", 3) == ids[:3]
    assert claim(shared_node, queue, queue, "COUNT", 5) == ids[:3]
    assert shared_node.call("QLEN", queue) == 2


def test_another_key_returns_other_jobs(shared_node: NodeProcess, queue: bytes) -> None:
    ids = [add(shared_node, queue) for _ in range(4)]
    assert claim(shared_node, queue + b"1", queue, "COUNT", 2) == ids[:2]
    assert claim(shared_node, queue + b"2", queue, "COUNT", 5) == ids[2:]


def test_a_claim_of_no_jobs_only_reads(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = add(shared_node, queue)
    assert claim(shared_node, queue, queue, "COUNT", 0) == []
    assert claim(shared_node, queue, queue) == [job_id]
    assert claim(shared_node, queue, queue, "COUNT", 0) == [job_id]


def test_a_claim_takes_jobs_from_several_queues_in_turn(shared_node: NodeProcess, queue: bytes) -> None:
    x, y = queue + b"x", queue + b"y"
    ids = [add(shared_node, name) for name in (x, y, x, y)]
    jobs = shared_node.call("CLAIM", queue, "COUNT", 10, "FROM", x, y)
    assert [job[1] for job in jobs] == ids


def test_acking_a_claim_ends_all_its_jobs(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    for _ in range(3):
        add(shared_node, queue)
    ids = claim(shared_node, queue, queue, "COUNT", 3)
    assert link.ask("ACKCLAIM", queue) == b":3\r\n"
    assert [state(shared_node, job_id) for job_id in ids] == [None] * 3
    assert link.ask("ACKCLAIM", queue) == b":0\r\n"


def test_a_key_can_be_used_again_once_its_claim_is_acked(shared_node: NodeProcess, queue: bytes) -> None:
    first, second = add(shared_node, queue), add(shared_node, queue)
    assert claim(shared_node, queue, queue) == [first]
    shared_node.call("ACKCLAIM", queue)
    assert claim(shared_node, queue, queue) == [second]


def test_a_job_that_ended_otherwise_is_missing_from_its_claim(shared_node: NodeProcess, queue: bytes) -> None:
    ids = [add(shared_node, queue) for _ in range(4)]
    claim(shared_node, queue, queue, "COUNT", 4)
    shared_node.call("ACKJOB", ids[0])
    shared_node.call("DELJOB", ids[1])
    shared_node.call("NACK", ids[2])
    assert claim(shared_node, queue, queue, "COUNT", 4) == [ids[3]]


def test_nacking_a_claim_returns_all_its_jobs(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    ids = [add(shared_node, queue) for _ in range(3)]
    claim(shared_node, queue, queue, "COUNT", 3)
    assert link.ask("NACKCLAIM", queue) == b":3\r\n"
    assert [job[1] for job in shared_node.call("GETJOB", "COUNT", 5, "FROM", queue)] == ids
    assert fact(shared_node, ids[0], b"nacks") == 1


def test_a_claim_nacked_with_a_delay_returns_its_jobs_later(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = add(shared_node, queue)
    claim(shared_node, queue, queue)
    assert shared_node.call("NACKCLAIM", queue, 500_000) == 1
    assert state(shared_node, job_id) == b"active"
    assert claim(shared_node, queue, queue, "COUNT", 0) == []


def test_extending_a_claim_extends_all_its_jobs(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    ids = [add(shared_node, queue) for _ in range(3)]
    claim(shared_node, queue, queue, "COUNT", 3, "LEASE", 1000)
    assert link.ask("EXTENDCLAIM", queue, 900_000) == b":3\r\n"
    assert all(800_000 < fact(shared_node, job_id, b"next-requeue-within") <= 900_000 for job_id in ids)


def test_a_claim_lasts_two_minutes_by_default(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = add(shared_node, queue)
    claim(shared_node, queue, queue)
    assert 60_000 < fact(shared_node, job_id, b"next-requeue-within") <= 120_000


def test_asking_for_a_claim_again_renews_its_lease(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = add(shared_node, queue)
    claim(shared_node, queue, queue, "LEASE", 50_000)
    claim(shared_node, queue, queue, "LEASE", 900_000)
    assert 800_000 < fact(shared_node, job_id, b"next-requeue-within") <= 900_000


# ADDJOBS


def test_many_jobs_are_added_with_one_command(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    reply = link.ask("ADDJOBS", queue, 0, "RETRY", 7, "BODIES", "a", "b", "a")
    ids = [line[1:] for line in reply.split(b"\r\n")[1:-1]]
    assert reply == b"*3\r\n" + b"".join(b"+%b\r\n" % job_id for job_id in ids)
    jobs = shared_node.call("GETJOB", "COUNT", 5, "FROM", queue)
    assert jobs == [[queue, job_id, body] for job_id, body in zip(ids, (b"a", b"b", b"a"), strict=True)]
    assert fact(shared_node, ids[1], b"retry") == 7


def test_everything_behind_bodies_is_a_body(shared_node: NodeProcess, queue: bytes) -> None:
    bodies = [b"BODIES", b"RETRY", b"0", b"", b"\r\n"]
    shared_node.call("ADDJOBS", queue, 0, "bodies", *bodies)
    assert [job[2] for job in shared_node.call("GETJOB", "COUNT", 9, "FROM", queue)] == bodies


def test_of_many_jobs_all_are_added_or_none(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    add(shared_node, queue)
    full = b"-MAXLEN Queue is already longer than the specified MAXLEN count\r\n"
    assert link.ask("ADDJOBS", queue, 0, "MAXLEN", 3, "BODIES", "a", "b", "c") == full
    assert shared_node.call("QLEN", queue) == 1
    assert len(shared_node.call("ADDJOBS", queue, 0, "MAXLEN", 3, "BODIES", "a", "b")) == 2


def test_many_delayed_jobs_wait_for_their_delay(shared_node: NodeProcess, queue: bytes) -> None:
    ids = shared_node.call("ADDJOBS", queue, 0, "DELAY", 100, "BODIES", "a", "b")
    assert [state(shared_node, job_id) for job_id in ids] == [b"active", b"active"]


def test_clients_that_wait_share_what_is_added_at_once(shared_node: NodeProcess, queue: bytes) -> None:
    with RawLink(shared_node) as one, RawLink(shared_node) as two:
        for number, waiting in enumerate((one, two), 1):
            waiting.post("GETJOB", "COUNT", 9, "FROM", queue)
            wait_until(lambda number=number: (shared_node.call("QSTAT", queue) or [0] * 10)[9] == number)
        shared_node.call("ADDJOBS", queue, 0, "BODIES", "a", "b", "c")
        assert [one.reply()[-3:-2], two.reply()[-3:-2]] == [b"a", b"b"]
    assert shared_node.call("QLEN", queue) == 1


# JSCAN REPLY compact


def test_a_compact_scan_returns_a_row_for_each_job(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    job_id = add(shared_node, queue, "RETRY", 0, "TTL", 5000)
    ctime, ttl_s = fact(shared_node, job_id, b"ctime"), fact(shared_node, job_id, b"ttl")
    row = b"*12\r\n$40\r\n%b\r\n$%d\r\n%b\r\n$6\r\nqueued\r\n$4\r\nbody\r\n:%d\r\n:%d\r\n" % (
        job_id, len(queue), queue, ctime, ttl_s,
    )  # fmt: skip
    reply = link.ask("JSCAN", "QUEUE", queue, "BUSYLOOP", "REPLY", "compact")
    assert reply == b"*2\r\n$1\r\n0\r\n*1\r\n" + row + b":0\r\n:0\r\n:1\r\n:0\r\n:0\r\n$-1\r\n"


def test_a_compact_row_has_what_show_has(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = add(shared_node, queue, "RETRY", 40, "DELAY", 2000, "TTL", 5000)
    shared_node.call("NACK", "AFTER", 0, job_id)
    ((row,),) = shared_node.call("JSCAN", "QUEUE", queue, "BUSYLOOP", "REPLY", "compact")[1:]
    names = [b"id", b"queue", b"state", b"body", b"ctime", b"delay", b"retry", b"repl", b"nacks"]
    values = [*row[:5], *row[6:10]]
    assert values == [fact(shared_node, job_id, name) for name in names]
    assert row[10] == 0
    assert 30_000 < row[11] <= 40_250
