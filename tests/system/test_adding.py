"""ADDJOB on a real node: what it refuses and in which order, what it answers, and what a job is made of."""

from __future__ import annotations

import re

import pytest

from tests.processes import NodeProcess
from tests.raw_link import RawLink

pytestmark = pytest.mark.system

SYNTAX = "ERR syntax error"
REPLICATE = "ERR REPLICATE must be between 1 and 65535"
TTL = "ERR TTL must be a number > 0"
RETRY = "ERR RETRY time must be a non negative number"
DELAY = "ERR DELAY time must be a non negative number"
MAXLEN = "ERR MAXLEN must be a positive number"
BAD_TIMEOUT = "ERR timeout is not an integer or out of range"
NEGATIVE_TIMEOUT = "ERR timeout is negative"
RETRY_0 = "ERR With RETRY set to 0 please explicitly set  REPLICATE to 1 (at-most-once delivery)"
DELAY_TTL = "ERR The specified DELAY is greater than TTL. Job refused since would never be delivered"
NO_NODES = "NOREPL Not enough reachable nodes for the requested replication level"
FULL = "MAXLEN Queue is already longer than the specified MAXLEN count"
PAUSED = "PAUSED Queue paused in input, try later"


def add(node: NodeProcess, queue: bytes, *options: bytes | str | int, body: bytes = b"body") -> bytes:
    job_id: bytes = node.call("ADDJOB", queue, body, 0, *options)
    return job_id


def show(node: NodeProcess, job_id: bytes) -> dict[bytes, object]:
    reply = node.call("SHOW", job_id)
    return dict(zip(reply[::2], reply[1::2], strict=True))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("0 BOGUS", SYNTAX),
        ("0 RETRY", SYNTAX),
        ("0 RETRY 1 TTL", SYNTAX),
        ("0 ASYNC 5", SYNTAX),
        ("0 REPLICATE 0", REPLICATE),
        ("0 REPLICATE 65536", REPLICATE),
        ("0 REPLICATE x", REPLICATE),
        ("0 TTL 0", TTL),
        ("0 TTL -1", TTL),
        ("0 TTL x", TTL),
        ("0 RETRY -1", RETRY),
        ("0 RETRY 1.5", RETRY),
        ("0 DELAY -1", DELAY),
        ("0 DELAY x", DELAY),
        ("0 MAXLEN 0", MAXLEN),
        ("0 MAXLEN x", MAXLEN),
        ("x", BAD_TIMEOUT),
        ("0x5", BAD_TIMEOUT),
        ("9223372036854775808", BAD_TIMEOUT),
        ("-1", NEGATIVE_TIMEOUT),
        ("0 RETRY 0 REPLICATE 2", RETRY_0),
        ("0 DELAY 5 TTL 5", DELAY_TTL),
        ("0 DELAY 6 TTL 5", DELAY_TTL),
        ("0 REPLICATE 2", NO_NODES),
        ("0 REPLICATE 2 ASYNC", NO_NODES),
    ],
)
def test_a_wrong_add_is_refused_in_the_words_that_clients_know(
    link: RawLink, queue: bytes, options: str, problem: str
) -> None:
    assert link.ask("ADDJOB", queue, "body", *options.split()) == f"-{problem}\r\n".encode()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("0 TTL 0 REPLICATE 0", TTL),
        ("0 REPLICATE 0 TTL 0", REPLICATE),
        ("0 TTL 0 BOGUS", TTL),
        ("0 BOGUS TTL 0", SYNTAX),
        ("x BOGUS", SYNTAX),
        ("-1 MAXLEN 0", MAXLEN),
        ("x RETRY 0 REPLICATE 2", BAD_TIMEOUT),
        ("-1 DELAY 5 TTL 5", NEGATIVE_TIMEOUT),
        ("0 RETRY 0 REPLICATE 2 DELAY 5 TTL 5", RETRY_0),
        ("0 REPLICATE 2 DELAY 5 TTL 5", DELAY_TTL),
        ("0 REPLICATE 2 MAXLEN 1", NO_NODES),
        ("0 MAXLEN 1", FULL),
        ("0 MAXLEN 2", PAUSED),
        ("0", PAUSED),
    ],
)
def test_of_several_faults_the_first_to_be_checked_is_named(
    link: RawLink, queue: bytes, options: str, problem: str
) -> None:
    link.ask("ADDJOB", queue, "first", 0)
    link.ask("PAUSE", queue, "in")
    assert link.ask("ADDJOB", queue, "body", *options.split()) == f"-{problem}\r\n".encode()


@pytest.mark.parametrize("option", ["RETRY", "DELAY"])
def test_a_time_beyond_32_bits_is_refused_instead_of_wrapping(link: RawLink, queue: bytes, option: str) -> None:
    problem = {"RETRY": RETRY, "DELAY": DELAY}[option]
    assert link.ask("ADDJOB", queue, "body", 0, option, 2**32) == f"-{problem}\r\n".encode()


def test_a_retry_time_whose_milliseconds_need_more_than_32_bits_is_kept(shared_node: NodeProcess, queue: bytes) -> None:
    within_ms = show(shared_node, add(shared_node, queue, "RETRY", 4294968))[b"next-requeue-within"]
    assert isinstance(within_ms, int)
    assert within_ms > 4_294_000_000


def test_a_refused_add_leaves_no_queue_behind(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    link.ask("ADDJOB", queue, "body", 0, "REPLICATE", 2)
    assert shared_node.call("QSTAT", queue) is None


@pytest.mark.parametrize("number", [b"", b"0", b"+5", b"007", b"5\0junk", b"9223372036854775807"])
def test_a_number_may_be_written_in_the_ways_the_original_takes(link: RawLink, queue: bytes, number: bytes) -> None:
    assert link.ask("ADDJOB", queue, "body", number).startswith(b"+D-")


@pytest.mark.parametrize("number", [b" 5", b"5 ", b"0x5", b"5.0", b"five", b"+", b"-", b"--5", b"x5"])
def test_a_number_with_anything_around_it_is_none(link: RawLink, queue: bytes, number: bytes) -> None:
    assert link.ask("ADDJOB", queue, "body", number) == f"-{BAD_TIMEOUT}\r\n".encode()


def test_the_reply_is_the_id_as_a_simple_string(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    node_id = shared_node.call("CLUSTER", "MYID")
    pattern = rb"\+D-" + node_id[:8] + rb"-[A-Za-z0-9+/]{24}-05a1\r\n"
    assert re.fullmatch(pattern, link.ask("ADDJOB", queue, "body", 0))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ("", b"05a1"),
        ("RETRY 0", b"05a0"),
        ("TTL 86400 RETRY 5", b"05a1"),
        ("TTL 59", b"0001"),
        ("TTL 59 RETRY 0", b"0000"),
        ("TTL 120", b"0003"),
        ("TTL 120 RETRY 0", b"0002"),
        ("TTL 3932100", b"ffff"),
        ("TTL 2000000000", b"ffff"),
        ("TTL 2000000000 RETRY 0", b"fffe"),
    ],
)
def test_an_id_ends_with_the_minutes_to_live_odd_for_jobs_that_are_retried(
    shared_node: NodeProcess, queue: bytes, options: str, field: bytes
) -> None:
    assert add(shared_node, queue, *options.split())[-4:] == field


def test_no_two_jobs_have_the_same_id(shared_node: NodeProcess, queue: bytes) -> None:
    with shared_node.connect() as connection:
        ids = connection.pipeline([("ADDJOB", queue, "body", 0)] * 5000)
    assert len(set(ids)) == 5000


@pytest.mark.parametrize(
    ("ttl_s", "retry_s"), [(1, 1), (19, 1), (20, 2), (60, 6), (2999, 299), (3000, 300), (86400, 300), (10**6, 300)]
)
def test_without_a_retry_time_a_job_has_a_tenth_of_its_time_to_live(
    shared_node: NodeProcess, queue: bytes, ttl_s: int, retry_s: int
) -> None:
    assert show(shared_node, add(shared_node, queue, "TTL", ttl_s))[b"retry"] == retry_s


def test_without_options_a_job_is_kept_once_for_a_day(shared_node: NodeProcess, queue: bytes) -> None:
    facts = show(shared_node, add(shared_node, queue))
    assert (facts[b"repl"], facts[b"delay"], facts[b"retry"]) == (1, 0, 300)
    assert facts[b"ttl"] in range(86395, 86401)


def test_options_come_in_any_order_and_case_and_the_last_of_each_counts(shared_node: NodeProcess, queue: bytes) -> None:
    options = ["async", "Ttl", 100, "rETRY", 7, "Delay", 9, "replicate", 1, "RETRY", 8, "ttl", 200]
    job_id = add(shared_node, queue, *options)
    facts = show(shared_node, job_id)
    assert (facts[b"delay"], facts[b"retry"], facts[b"ttl"]) == (9, 8, 200)


def test_a_time_to_live_beyond_what_a_record_holds_counts_as_the_longest(
    shared_node: NodeProcess, queue: bytes
) -> None:
    assert show(shared_node, add(shared_node, queue, "TTL", 10**11))[b"ttl"] == 2**31 - 1


def test_retry_0_needs_no_explicit_replicate_on_a_node_alone(shared_node: NodeProcess, queue: bytes) -> None:
    assert show(shared_node, add(shared_node, queue, "RETRY", 0))[b"repl"] == 1


@pytest.mark.parametrize(
    "body",
    [b"", bytes(range(256)), b"\r\n$5\r\nhello\r\n", b"*1\r\n$4\r\nPING\r\n", b"x" * 2_000_000],
    ids=["empty", "every byte", "like a bulk", "like a request", "two megabytes"],
)
def test_a_body_comes_back_byte_for_byte(shared_node: NodeProcess, queue: bytes, body: bytes) -> None:
    job_id = add(shared_node, queue, body=body)
    assert shared_node.call("GETJOB", "FROM", queue) == [[queue, job_id, body]]


@pytest.mark.parametrize("name", [b"", b"\0\r\n\xff", b" blank ", b"FROM"], ids=repr)
def test_any_bytes_make_a_name_of_a_queue(shared_node: NodeProcess, name: bytes) -> None:
    job_id = add(shared_node, name)
    assert shared_node.call("GETJOB", "FROM", name) == [[name, job_id, b"body"]]


def test_names_of_queues_are_distinguished_by_case(shared_node: NodeProcess, queue: bytes) -> None:
    add(shared_node, queue)
    assert shared_node.call("QLEN", queue.upper()) == 0


def test_an_added_job_is_queued(shared_node: NodeProcess, queue: bytes) -> None:
    assert show(shared_node, add(shared_node, queue))[b"state"] == b"queued"


def test_a_delayed_job_is_active_and_not_in_its_queue(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = add(shared_node, queue, "DELAY", 100)
    assert show(shared_node, job_id)[b"state"] == b"active"
    assert shared_node.call("QLEN", queue) == 0


def test_maxlen_lets_in_as_many_jobs_as_it_says(shared_node: NodeProcess, link: RawLink, queue: bytes) -> None:
    add(shared_node, queue, "MAXLEN", 2)
    add(shared_node, queue, "MAXLEN", 2)
    assert link.ask("ADDJOB", queue, "body", 0, "MAXLEN", 2) == f"-{FULL}\r\n".encode()


def test_maxlen_counts_only_jobs_that_wait_in_the_queue(shared_node: NodeProcess, queue: bytes) -> None:
    add(shared_node, queue, "DELAY", 100)
    add(shared_node, queue)
    shared_node.call("GETJOB", "FROM", queue)
    assert add(shared_node, queue, "MAXLEN", 1)


def test_creation_times_grow_strictly_also_within_a_millisecond(shared_node: NodeProcess, queue: bytes) -> None:
    with shared_node.connect() as connection:
        ids = connection.pipeline([("ADDJOB", queue, "body", 0)] * 200)
    times = [show(shared_node, job_id)[b"ctime"] for job_id in ids]
    assert times == sorted(set(times))


def test_a_paused_queue_takes_jobs_again_once_it_is_resumed(shared_node: NodeProcess, queue: bytes) -> None:
    shared_node.call("PAUSE", queue, "in")
    shared_node.call("PAUSE", queue, "none")
    assert add(shared_node, queue)


def test_a_node_that_is_leaving_says_so_when_it_is_the_one_that_is_missing(node: NodeProcess) -> None:
    node.call("CLUSTER", "LEAVING", "yes")
    with RawLink(node) as link:
        reply = link.ask("ADDJOB", "queue", "body", 0)
    reason = ", since I'm unable to hold a copy of the message for the following reason: I'm leaving the cluster"
    assert reply == f"-{NO_NODES}{reason}\r\n".encode()
