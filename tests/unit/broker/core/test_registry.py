"""Walking over jobs and queues with a cursor, while others come and go: whoever stayed all the time is met."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.core.jobs import Holders, Job, Rules
from penstock.broker.core.queues import Queue
from penstock.broker.core.registry import SCAN_BYTES_MAX, JobTable, QueueTable

RULES = Rules.of(1, 0, 300)
HOLDERS = Holders(frozenset())
CALLS_MAX = 10_000  # a scan that needs more goes round in circles

# What happens between two calls of a scan: (is it an add?, which one)
changes = st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 39)), max_size=12), max_size=30)
counts = st.sampled_from([0, 1, 2, 5, None])


def make_job(number: int, body: bytes = b"") -> Job:
    """Make a job. Ten share a page, two of them also the characters by which jobs of a page are ordered."""
    scattered = number * 7 % 10 // 2
    job_id = b"D-8ff1663c-%02d%d%021d-05a1" % (number // 10, scattered, number)
    return Job(job_id, b"q", body, RULES, number, 0, HOLDERS)


def always(_: object) -> bool:
    return True


@settings(max_examples=300)
@given(st.sets(st.integers(0, 39)), st.sets(st.integers(0, 39)), changes, counts)
def test_a_scan_meets_every_job_that_was_there_all_the_time(
    staying: set[int], passing: set[int], changes: list[list[tuple[bool, int]]], count: int | None
) -> None:
    table = JobTable()
    jobs = [make_job(number) for number in range(40)]
    present = staying | passing
    for number in present:
        table.put(jobs[number])
    met: set[int] = set()
    cursor = 0
    for call in range(CALLS_MAX):
        cursor, found = table.scan(cursor, count, always)
        met |= {job.ctime for job in found}
        if not cursor:
            break
        for is_add, number in changes[call] if call < len(changes) else []:
            if is_add and number not in present:
                table.put(jobs[number])
                present.add(number)
            elif not is_add and number in present - staying:
                table.remove(jobs[number])
                present.discard(number)
    assert cursor == 0
    assert staying <= met
    assert table.count == len(present)


@settings(max_examples=300)
@given(st.sets(st.integers(0, 39)), st.sets(st.integers(0, 39)), changes, counts)
def test_a_scan_meets_every_queue_that_was_there_all_the_time(
    staying: set[int], passing: set[int], changes: list[list[tuple[bool, int]]], count: int | None
) -> None:
    table = QueueTable()
    for number in staying | passing:
        table.create(b"%d" % number, 0)
    met: set[int] = set()
    cursor = 0
    for call in range(CALLS_MAX):
        cursor, found = table.scan(cursor, count, always)
        met |= {int(queue.name) for queue in found}
        if not cursor:
            break
        for is_add, number in changes[call] if call < len(changes) else []:
            queue = table.by_name.get(b"%d" % number)
            if is_add and queue is None:
                table.create(b"%d" % number, 0)
            elif not is_add and queue is not None and number not in staying:
                table.remove(queue)
    assert cursor == 0
    assert staying <= met


@given(st.sets(st.integers(0, 39)), st.integers(0, 2**64 - 1), counts)
def test_a_cursor_that_nobody_gave_out_is_harmless(numbers: set[int], cursor: int, count: int | None) -> None:
    jobs, queues = JobTable(), QueueTable()
    for number in numbers:
        jobs.put(make_job(number))
        queues.create(b"%d" % number, 0)
    job_cursor, found_jobs = jobs.scan(cursor, count, always)
    queue_cursor, found_queues = queues.scan(cursor, count, always)
    assert 0 <= job_cursor < 2**53  # what a client in JavaScript can count to
    assert 0 <= queue_cursor <= len(numbers)
    assert {job.ctime for job in found_jobs} <= numbers
    assert {int(queue.name) for queue in found_queues} <= numbers


def make_page(size: int, body: bytes = b"") -> JobTable:
    """Make jobs that all stand on one page, as jobs that are added together do."""
    table = JobTable()
    for number in range(size):
        table.put(Job(b"D-8ff1663c-aa%05d%017d-05a1" % (number, number), b"q", body, RULES, number, 0, HOLDERS))
    return table


@pytest.mark.parametrize("count", [1, 2, 100])
def test_a_scan_of_one_page_gives_as_many_jobs_as_it_is_asked_for(count: int) -> None:
    table = make_page(256)
    cursor, found = table.scan(0, count, always)
    assert len(found) == count
    following = table.scan(cursor, count, always)[1]
    assert not {job.id for job in found} & {job.id for job in following}


def test_a_scan_looks_at_ten_times_as_many_jobs_as_it_wants_and_goes_on_there() -> None:
    looked: list[int] = []

    def wanted(job: Job) -> bool:
        looked.append(job.ctime)
        return False

    table = make_page(256)
    cursor, found = table.scan(0, 5, wanted)
    assert (cursor > 0, found, looked) == (True, [], list(range(50)))
    table.scan(cursor, 5, wanted)
    assert looked == list(range(100))


def test_a_scan_is_cut_before_the_job_that_would_make_it_too_large_but_gives_one_at_least() -> None:
    table = make_page(10)
    sizes = {0: SCAN_BYTES_MAX // 2, 1: SCAN_BYTES_MAX // 2, 2: 1, 3: 5 * SCAN_BYTES_MAX}
    pages: list[list[int]] = []
    cursor = 0
    while not pages or cursor:
        cursor, found = table.scan(cursor, 100, always, lambda job: sizes.get(job.ctime, 0))
        pages.append([job.ctime for job in found])
    assert pages == [[0, 1], [2], [3], [4, 5, 6, 7, 8, 9]]


def test_a_scan_of_everything_goes_on_within_a_page() -> None:
    table = make_page(20)
    cursor, found = table.scan(0, 7, always)
    end, rest = table.scan(cursor, None, always)
    assert end == 0
    assert sorted(job.ctime for job in found + rest) == list(range(20))


def test_a_scan_of_queues_is_cut_before_the_name_that_would_make_it_too_large() -> None:
    table = QueueTable()
    for number in range(5):
        table.create(b"%d" % number * (SCAN_BYTES_MAX // 2), 0)
    pages: list[int] = []
    cursor = 0
    while not pages or cursor:
        cursor, found = table.scan(cursor, 100, always)
        pages.append(len(found))
    assert pages == [2, 2, 1]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=100))
def test_jobs_are_found_by_id_as_in_a_dict(steps: list[tuple[bool, int]]) -> None:
    table, model = JobTable(), dict[bytes, Job]()
    for is_add, number in steps:
        job = make_job(number)
        if is_add and job.id not in model:
            table.put(job)
            model[job.id] = job
        elif not is_add and job.id in model:
            table.remove(model.pop(job.id))
        assert table.count == len(model)
    assert {job.id: job for job in table} == model
    assert all((make_job(n).id in table) == (make_job(n).id in model) for n in range(21))


@given(st.integers(0, 30), st.integers(0, 100), st.integers(1, 40))
def test_a_sample_of_queues_has_no_queue_twice_and_walks_round_all(size: int, start: int, most: int) -> None:
    table = QueueTable()
    for number in range(size):
        table.create(b"%d" % number, 0)
    sample = table.some(start, most)
    assert len(sample) == len(set(sample)) == min(size, most)
    walked: set[Queue] = set()
    for step in range(0, size + most, most):
        walked |= set(table.some(start + step, most))
    assert len(walked) == size
