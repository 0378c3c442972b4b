"""A stream reader, driven by hand through every fault: each job exactly once in a sink that is idempotent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock import blocking
from penstock.errors import CallerError, StoreError
from penstock.job import StoredJob
from penstock.spark.batch_size import BatchSteps, partition_slices
from tests.processes import wait_until
from tests.spark.stream_driver import POINTS, Crash, Logs, Query, run_and_stop

JOBS = 95
BATCH = 20


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory:{request.node.name}"


@pytest.fixture
def queue(url: str) -> Iterator[blocking.Queue]:
    with blocking.connect(url) as store:
        yield store.queue("jobs")


def options(url: str, **more: Any) -> dict[str, str]:
    given = {"url": url, "queue": "jobs", "maxJobsPerTrigger": BATCH, "lease": 600, "wait": 0, **more}
    return {name: str(value) for name, value in given.items()}


def bodies(logs: Logs) -> list[int]:
    return sorted(int(row["body"]) for row in logs.rows)


def test_a_queue_is_drained_in_batches(url: str, queue: blocking.Queue) -> None:
    queue.push_many(range(JOBS))
    logs = Logs()
    run_and_stop(Query(logs, options(url)))
    assert bodies(logs) == list(range(JOBS))
    assert [len(rows) for rows in logs.sink.values()] == [20, 20, 20, 20, 15]
    assert queue.total() == 0


@pytest.mark.parametrize("batch", [0, 2, 4])
@pytest.mark.parametrize("point", POINTS)
def test_a_driver_that_dies_anywhere_loses_and_doubles_nothing(
    point: str, batch: int, url: str, queue: blocking.Queue
) -> None:
    queue.push_many(range(JOBS))
    logs = Logs()
    first = Query(logs, options(url), lambda name, number: (name, number) == (point, batch))
    with pytest.raises(Crash):
        first.run()
    first.stop()
    run_and_stop(Query(logs, options(url)))
    # Before anything was logged nobody knows the run, and its jobs come back with their leases.
    unknown = BATCH if (point, batch) == ("claimed", 0) else 0
    assert len(bodies(logs)) == JOBS - unknown
    assert len(set(bodies(logs))) == len(bodies(logs))
    assert queue.total() == unknown


def test_a_batch_that_was_claimed_but_never_logged_is_found_again_at_once(url: str, queue: blocking.Queue) -> None:
    queue.push_many(range(JOBS))
    logs = Logs()
    first = Query(logs, options(url), lambda name, number: (name, number) == ("claimed", 1))
    with pytest.raises(Crash):
        first.run()
    assert queue.reserved() == 2 * BATCH, "of these, one batch is done, and is acked while the next one runs"
    run_and_stop(Query(logs, options(url)))
    assert bodies(logs) == list(range(JOBS))


def test_with_an_owner_the_first_batch_is_found_without_a_log(url: str, queue: blocking.Queue) -> None:
    queue.push_many(range(JOBS))
    first = Query(Logs(), options(url, owner="reports"), lambda name, number: name == "claimed")
    with pytest.raises(Crash):
        first.run()
    first.stop()
    logs = Logs()
    run_and_stop(Query(logs, options(url, owner="reports")))
    assert bodies(logs) == list(range(JOBS))


def test_with_a_run_file_the_first_batch_is_found_without_a_log(
    url: str, queue: blocking.Queue, tmp_path: Path
) -> None:
    queue.push_many(range(JOBS))
    given = options(url, runFile=tmp_path / "made" / "run")
    first = Query(Logs(), given, lambda name, number: name == "claimed")
    with pytest.raises(Crash):
        first.run()
    first.stop()
    logs = Logs()
    run_and_stop(Query(logs, given))
    assert bodies(logs) == list(range(JOBS))


def test_an_owner_who_starts_again_is_not_held_up_by_old_claims(url: str, queue: blocking.Queue) -> None:
    queue.push_many(range(2))
    old = queue.claim("spark:reports:2", 1, lease=600)
    queue.ack_many(old)
    queue.push_many(range(2, JOBS))
    logs = Logs()
    run_and_stop(Query(logs, options(url, owner="reports")))
    assert len(bodies(logs)) == JOBS - 1
    assert queue.total() == 0


def test_jobs_without_tries_left_do_not_end_a_run_early(url: str, queue: blocking.Queue) -> None:
    queue.push_many(range(2 * BATCH), tries=1)
    queue.push_many(range(5))
    logs = Logs()
    run_and_stop(Query(logs, options(f"{url}?dead_letter=1")))
    assert bodies(logs) == list(range(5))
    assert queue.store.dead_letters().total() == 2 * BATCH


def test_a_replay_of_a_claim_that_is_gone_takes_no_other_jobs(url: str, queue: blocking.Queue) -> None:
    queue.push_many(range(BATCH))
    logs = Logs()
    first = Query(logs, options(url), lambda name, number: name == "logged")
    with pytest.raises(Crash):
        first.run()
    first.stop()
    run = json.loads(logs.offsets[0])["run"]
    assert [queue.ack_claim(f"spark:{run}:{key}") for key in ("1", "1:1")] == [10, BATCH - 10]
    queue.push("other")
    run_and_stop(Query(logs, options(url)), available_now=False, batches_max=0)
    assert logs.sink[0] == []
    assert queue.size() == 1


def test_jobs_that_others_finished_are_missing_from_a_replay_and_none_come_in_their_place(
    url: str, queue: blocking.Queue
) -> None:
    queue.push_many(range(JOBS))
    logs = Logs()
    first = Query(logs, options(url, lease=1), lambda name, number: (name, number) == ("half read", 0))
    with pytest.raises(Crash):
        first.run()
    first.stop()
    queue.store.shift_clock(3600)
    others = queue.reserve_many(JOBS)
    done = [job for job in others if int(job.body) < 5]
    queue.ack_many(done)
    queue.nack_many([job for job in others if job not in done])
    queue.store.shift_clock(-3600)
    queue.push("more")
    run_and_stop(Query(logs, options(url)), available_now=False, batches_max=1)
    assert logs.sink[0] == []
    assert len(logs.sink[1]) == 1


def test_a_busy_queue_ends_with_what_was_there_at_the_start(url: str, queue: blocking.Queue) -> None:
    queue.push_many(range(JOBS))
    logs = Logs()

    def push_more(name: str, number: int) -> bool:
        if name == "written":
            queue.push_many(range(1000, 1000 + BATCH))
        return False

    run_and_stop(Query(logs, options(url), push_more))
    assert len(logs.rows) == JOBS


def test_an_empty_queue_returns_the_same_offset(url: str) -> None:
    query = Query(Logs(), options(url))
    query.run()
    assert query.logs.offsets == []


def test_a_paused_queue_returns_no_batch(url: str, queue: blocking.Queue) -> None:
    queue.push_many(range(3))
    queue.pause()
    logs = Logs()
    run_and_stop(Query(logs, options(url)))
    assert logs.rows == []
    queue.resume()
    run_and_stop(Query(logs, options(url)))
    assert len(logs.rows) == 3


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"url": ""}, "needs the option url"),
        ({"queue": ""}, "needs the option queue"),
        ({"lease": "soon"}, "lease must be a number"),
        ({"colour": "red"}, "got colour"),
        ({"owner": "a b"}, "owner"),
        ({"states": "ready,gone"}, "states"),
        ({"maxJobsPerTrigger": "0"}, "maxJobsPerTrigger"),
    ],
)
def test_options_that_can_not_be_are_refused(given: dict[str, str], complaint: str, url: str) -> None:
    with pytest.raises(CallerError, match=complaint):
        Query(Logs(), {**options(url), **given})


def test_a_batch_of_large_jobs_has_fewer_of_them(url: str, queue: blocking.Queue) -> None:
    queue.push_many([b"%04d" % number + bytes(10_000) for number in range(300)])
    logs = Logs()
    run_and_stop(Query(logs, options(url, maxJobsPerTrigger=1000, batchMegabytes=0.5)))
    sizes = [len(rows) for rows in logs.sink.values()]
    assert max(sizes) <= 0.5 * 1024 * 1024 / 10_000
    assert sorted(int(row["body"][:4]) for row in logs.rows) == list(range(300))
    assert queue.total() == 0


def test_a_job_that_is_larger_than_a_batch_may_be_is_refused_by_its_id(url: str, queue: blocking.Queue) -> None:
    queue.push("small")
    large = queue.push(bytes(20_000))
    query = Query(Logs(), options(url, batchMegabytes=0.01))
    with pytest.raises(CallerError, match=f"got 20000 in the job {large} of jobs"):
        run_and_stop(query)
    assert queue.total() == 2


@pytest.mark.parametrize(
    ("point", "batch", "time"),
    [*((point, 0, 1) for point in POINTS), ("claiming", 0, 3), ("taken", 0, 3), ("acking", 1, 3), ("acked", 1, 3)],
)
def test_a_batch_of_several_claims_is_found_whole_after_a_crash(
    point: str, batch: int, time: int, url: str, queue: blocking.Queue
) -> None:
    queue.push_many(range(1000))
    logs = Logs()
    given = options(url, maxJobsPerTrigger=300, owner="reports")
    met: list[tuple[str, int]] = []

    def strike(name: str, number: int) -> bool:
        met.append((name, number))
        return met[-1] == (point, batch) and met.count((point, batch)) == time

    first = Query(logs, given, strike)
    first.tap(first.reader.batches.store._driver)
    with pytest.raises(Crash):
        first.run()
    first.stop()
    run_and_stop(Query(logs, given))
    assert bodies(logs) == list(range(1000))
    assert queue.total() == 0
    assert any("steps" in offset for offset in logs.offsets)


@pytest.mark.parametrize(
    ("sizes", "jobs_max", "bytes_max", "expected"),
    [
        ([], 2, 10, []),
        ([1, 1, 1, 1, 1], 2, 10, [2, 2, 1]),
        ([6, 6, 4, 1], 9, 10, [1, 2, 1]),
        ([50, 1, 50], 9, 10, [1, 1, 1]),
    ],
)
def test_partitions_are_cut_by_their_bytes(
    sizes: list[int], jobs_max: int, bytes_max: int, expected: list[int]
) -> None:
    assert [len(sizes[piece]) for piece in partition_slices(sizes, jobs_max, bytes_max)] == expected


def test_steps_grow_from_a_few_jobs_to_what_there_is_room_for() -> None:
    steps = BatchSteps(1_000_000)
    asked = []
    steps.begin(100_000)
    while wanted := steps.next(20_000 - sum(asked)):
        asked.append(wanted)
        steps.took([StoredJob("id", bytes(100))] * wanted)
    assert asked == [10, 40, 200, 1000, 5000, 3750]
    steps.begin(100_000)
    assert steps.next(20_000) == 2500


def test_unread_steps_are_sized_by_the_first_one_which_is_read() -> None:
    steps = BatchSteps(64_000_000, unread_max=5000)
    for _ in range(2):  # each batch has a sample of its own
        steps.begin(100_000)
        asked: list[int] = []
        while wanted := steps.next(12_000 - sum(asked)):
            if asked:
                steps.took_unread(wanted)
            else:
                steps.took([StoredJob("id", bytes(100))] * wanted)
            asked.append(wanted)
        assert asked == [10, 5000, 5000, 1990]
    steps.begin(100_000)
    steps.took([StoredJob("id", bytes(1_000_000))] * 10)
    assert steps.next(12_000) == 8, "a partition of 8 MB"


def test_the_next_batch_is_claimed_while_one_runs_if_it_would_be_full(url: str, queue: blocking.Queue) -> None:
    queue.push_many(range(3 * BATCH - 1))
    reader = Query(Logs(), options(url)).reader
    try:
        ends = [reader.initialOffset()]
        for reserved in (2 * BATCH, BATCH, BATCH - 1):
            ends.append(reader.latestOffset(ends[-1], ReadMaxRows(BATCH)))
            assert sum(batch.num_rows for part in reader.partitions(*ends[-2:]) for batch in reader.read(part))
            wait_until(lambda: queue.reserved() == reserved, 60.0)  # noqa: B023 - used at once
        assert [end["seq"] for end in ends] == [0, 1, 2, 3]
        assert reader.latestOffset(ends[-1], ReadMaxRows(BATCH)) == ends[-1]
        assert queue.total() == 0
    finally:
        reader.stop()


def test_a_batch_ahead_that_could_not_be_claimed_is_claimed_later(url: str, queue: blocking.Queue) -> None:
    queue.push_many(range(2 * BATCH))
    reader = Query(Logs(), options(url)).reader
    try:
        first = reader.latestOffset(reader.initialOffset(), ReadMaxRows(BATCH))
        driver: Any = reader.batches.store._driver
        ready, driver.ready = driver.ready, refuse
        reader.partitions({**first, "seq": 0}, first)
        wait_until(lambda: not reader._background.is_busy, 60.0)
        driver.ready = ready
        assert reader.latestOffset(first, ReadMaxRows(BATCH))["seq"] == 2
        assert queue.total() == BATCH
    finally:
        reader.stop()


def refuse(*args: Any) -> Any:
    raise StoreError("not now")
