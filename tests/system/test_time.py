"""Time as a client of a real node sees it: nothing early by the client's clock, and everything comes in the end.

How late things may be on a busy machine nobody knows, so the bounds to that side are those of patience alone; the exact
facts are in tests/unit/broker/test_time.py.
"""

from __future__ import annotations

import time

import pytest

from tests.processes import NodeProcess, wait_until
from tests.raw_link import RawLink

pytestmark = pytest.mark.system

JITTER_S = 0.25


def fetch(node: NodeProcess, queue: bytes, *options: str | int) -> list[list[bytes]]:
    """Look for a job without waiting."""
    return node.call("GETJOB", "NOHANG", *options, "FROM", queue) or []


def test_a_delayed_job_is_not_there_before_its_time(shared_node: NodeProcess, queue: bytes) -> None:
    began = time.monotonic()
    shared_node.call("ADDJOB", queue, "body", 0, "DELAY", 1)
    wait_until(lambda: fetch(shared_node, queue))
    assert time.monotonic() - began >= 1


def test_a_client_that_waits_for_a_delayed_job_gets_it_not_early(
    shared_node: NodeProcess, link: RawLink, queue: bytes
) -> None:
    began = time.monotonic()
    shared_node.call("ADDJOB", queue, "body", 0, "DELAY", 1)
    assert link.ask("GETJOB", "FROM", queue).endswith(b"body\r\n")
    assert time.monotonic() - began >= 1


def test_a_job_that_is_not_acked_comes_again(shared_node: NodeProcess, queue: bytes) -> None:
    began = time.monotonic()
    job_id = shared_node.call("ADDJOB", queue, "body", 0, "RETRY", 1)
    fetch(shared_node, queue)
    (job,) = wait_until(lambda: fetch(shared_node, queue, "WITHCOUNTERS"))
    assert time.monotonic() - began >= 1 - JITTER_S
    assert job == [queue, job_id, b"body", b"nacks", 0, b"additional-deliveries", 1]


def test_an_acked_job_does_not_come_again(shared_node: NodeProcess, queue: bytes) -> None:
    done = shared_node.call("ADDJOB", queue, "done", 0, "RETRY", 1)
    fetch(shared_node, queue)
    shared_node.call("ACKJOB", done)
    shared_node.call("ADDJOB", queue, "witness", 0, "DELAY", 2)
    (job,) = wait_until(lambda: fetch(shared_node, queue))
    assert job[2] == b"witness"


def test_a_job_with_retry_0_does_not_come_again(shared_node: NodeProcess, queue: bytes) -> None:
    shared_node.call("ADDJOB", queue, "once", 0, "RETRY", 0)
    fetch(shared_node, queue)
    shared_node.call("ADDJOB", queue, "witness", 0, "DELAY", 2)
    (job,) = wait_until(lambda: fetch(shared_node, queue))
    assert job[2] == b"witness"


def test_who_is_working_keeps_a_job_beyond_its_retry_time(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = shared_node.call("ADDJOB", queue, "body", 0, "RETRY", 2)
    shared_node.call("ADDJOB", queue, "witness", 0, "DELAY", 4)
    assert fetch(shared_node, queue)[0][1] == job_id

    def next_job() -> list[list[bytes]]:
        shared_node.call("WORKING", job_id)
        return fetch(shared_node, queue)

    (job,) = wait_until(next_job)
    assert job[2] == b"witness"


def test_a_job_is_gone_after_its_time_to_live(shared_node: NodeProcess, queue: bytes) -> None:
    began = time.monotonic()
    job_id = shared_node.call("ADDJOB", queue, "body", 0, "TTL", 1)
    wait_until(lambda: shared_node.call("SHOW", job_id) is None)
    assert time.monotonic() - began >= 0.99
    assert shared_node.call("QLEN", queue) == 0


@pytest.mark.parametrize("timeout_ms", [1, 500])
def test_a_wait_for_nothing_ends_with_a_null_array(link: RawLink, queue: bytes, timeout_ms: int) -> None:
    began = time.monotonic()
    assert link.ask("GETJOB", "TIMEOUT", timeout_ms, "FROM", queue) == b"*-1\r\n"
    assert time.monotonic() - began >= timeout_ms / 1000 - 0.001


def test_a_lease_that_ends_returns_its_job(shared_node: NodeProcess, queue: bytes) -> None:
    began = time.monotonic()
    job_id = shared_node.call("ADDJOB", queue, "body", 0)
    token = fetch(shared_node, queue, "LEASE", 300)[0][3]
    wait_until(lambda: fetch(shared_node, queue))
    assert time.monotonic() - began >= 0.299
    assert shared_node.call("ACKLEASE", job_id, token) == [b"STALE"]


def test_a_nack_with_a_delay_returns_the_job_not_early(shared_node: NodeProcess, queue: bytes) -> None:
    job_id = shared_node.call("ADDJOB", queue, "body", 0)
    fetch(shared_node, queue)
    began = time.monotonic()
    shared_node.call("NACK", "AFTER", 400, job_id)
    wait_until(lambda: fetch(shared_node, queue))
    assert time.monotonic() - began >= 0.4


def test_a_claim_that_nobody_renews_returns_its_jobs(shared_node: NodeProcess, queue: bytes) -> None:
    ids = shared_node.call("ADDJOBS", queue, 0, "BODIES", "a", "b")
    shared_node.call("CLAIM", queue, "COUNT", 2, "LEASE", 300, "FROM", queue)
    wait_until(lambda: shared_node.call("QLEN", queue) == 2)
    assert [job[1] for job in fetch(shared_node, queue, "COUNT", 2)] == ids


def test_the_age_of_a_queue_is_reported_in_seconds(shared_node: NodeProcess, queue: bytes) -> None:
    began = time.monotonic()
    shared_node.call("PAUSE", queue, "in")
    wait_until(lambda: shared_node.call("QSTAT", queue)[5] >= 1)
    assert time.monotonic() - began >= 0.99
