"""The order of a queue against the simplest thing that does the same: a list sorted by creation time and id."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.core.jobs import ACTIVE, DELIVERED, GONE, LISTED, QUEUED, Holders, Job, Rules
from penstock.broker.core.queues import STALE_MIN, Queue
from tests.unit.broker.harness import LocalServer

RULES = Rules.of(1, 0, 300)
HOLDERS = Holders(frozenset())


def job(ctime: int, number: int = 0, state: int = ACTIVE) -> Job:
    return Job(b"%06d" % number, b"q", b"", RULES, ctime, 0, HOLDERS, state)


def place(one: Job) -> tuple[int, bytes]:
    return one.ctime, one.id


def insert(queue: Queue, one: Job) -> None:
    one.state = QUEUED
    queue.insert(one)


def drop(queue: Queue, one: Job, state: int) -> None:
    one.state = state
    queue.drop()


steps = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "drop", "end", "take", "extend"]), st.integers(0, 29)), max_size=80
)
# Many jobs share a creation time, as they do when nodes create them in the same nanosecond: then the id decides.
ctimes = st.lists(st.integers(1, 12), min_size=30, max_size=30)


@settings(max_examples=300)
@given(ctimes, steps)
def test_jobs_leave_by_creation_time_and_id_whatever_came_and_went_before(
    ctimes: list[int], steps: list[tuple[str, int]]
) -> None:
    queue = Queue(b"q", 0, 0)
    jobs = [job(ctime, number) for number, ctime in enumerate(ctimes)]
    waiting: list[Job] = []
    newest = 100
    for what, number in steps:
        one = jobs[number]
        if what == "insert" and one.state == ACTIVE:
            insert(queue, one)
            waiting.append(one)
        elif what in ("drop", "end") and one.state == QUEUED:
            drop(queue, one, ACTIVE if what == "drop" else GONE)
            waiting.remove(one)
        elif what == "take":
            count = number % 5
            expected = sorted(waiting, key=place)[:count]
            assert queue.take(count) == expected
            waiting = [other for other in waiting if other not in expected]
            assert all(other.state == ACTIVE and other.flags & DELIVERED for other in expected)
        elif what == "extend":
            fresh = [job(newest + n, 1000 + newest + n, QUEUED) for n in range(1 + number % 3)]
            newest += 10
            for other in fresh:
                other.flags |= LISTED
            queue.extend(fresh)
            waiting += fresh
        assert queue.length == len(waiting)
        ordered = sorted(waiting, key=place)
        most = number + 1
        assert list(queue.oldest(min(most, max(1, queue.length)))) == ordered[:most]
        assert list(queue.newest(min(most, max(1, queue.length)))) == ordered[::-1][:most]
    assert queue.take(1000) == sorted(waiting, key=place)
    assert queue.length == 0


@pytest.mark.parametrize("state", [ACTIVE, GONE])
def test_jobs_that_left_by_the_side_leave_few_entries_behind(state: int) -> None:
    queue = Queue(b"q", 0, 0)
    for number in range(5000):
        one = job(number + 1, number)
        insert(queue, one)
        drop(queue, one, state)
        assert len(queue._jobs) + len(queue._late) <= STALE_MIN + 1


def test_a_job_that_left_in_a_rebuild_can_come_back() -> None:
    queue = Queue(b"q", 0, 0)
    jobs = [job(number + 1, number) for number in range(STALE_MIN * 3)]
    for one in jobs:
        insert(queue, one)
    for one in jobs:
        drop(queue, one, ACTIVE)
    for one in reversed(jobs):
        insert(queue, one)
    assert queue.take(len(jobs)) == jobs


def test_a_job_out_of_a_queue_that_was_cleared_can_go_into_a_new_one() -> None:
    old, new = Queue(b"q", 0, 0), Queue(b"q", 0, 0)
    early, late = job(1, 1), job(2, 2)
    for one in (late, early):
        insert(old, one)
        drop(old, one, ACTIVE)
    old.clear()
    for one in (late, early):
        insert(new, one)
    assert new.take(5) == [early, late]


def test_looking_changes_nothing() -> None:
    queue = Queue(b"q", 0, 0)
    jobs = [job(ctime, ctime) for ctime in (5, 1, 3, 2, 4)]
    for one in jobs:
        insert(queue, one)
    for _ in range(3):
        assert [one.ctime for one in queue.oldest(3)] == [1, 2, 3]
        assert [one.ctime for one in queue.newest(3)] == [5, 4, 3]
    assert [one.ctime for one in queue.take(9)] == [1, 2, 3, 4, 5]


def test_a_body_is_let_go_with_its_job_even_if_the_order_still_has_its_entry() -> None:
    server = LocalServer()
    client = server.client()
    for _ in range(STALE_MIN // 2):
        client.call("ACKJOB", client.call("ADDJOB", "q", b"x" * 10_000, 0))
    kept = server.broker.node.queues.by_name[b"q"]._jobs
    assert sum(len(one.body) for one in kept) == 0
