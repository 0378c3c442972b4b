"""A stream from nodes of the original Disque, driven by hand: no claims there, so Spark's own log has the jobs.

What dies between a reserve and the log leaves jobs that come back by their retry time; all else is as everywhere: each
job exactly once in a sink that is idempotent by batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

from penstock import blocking
from penstock.client import Connection
from penstock.errors import CallerError
from penstock.spark.claims import JOBS_MAX, held_of, marks_in
from penstock.spark.dead_letters import give_up
from tests.processes import NodeProcess, meet
from tests.spark.stream_driver import POINTS, Crash, Logs, Query
from tests.stores.original_node import OriginalNode, understanding

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

JOBS, BATCH = 50, 20
RETRY_S = 600

_names = (f"queue-{number}" for number in count(1))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OriginalNode]:
    node = OriginalNode(tmp_path_factory.mktemp("original"), appendonly="no")
    node.start()
    yield node
    node.kill()


@pytest.fixture
def queue(node: OriginalNode) -> Iterator[blocking.Queue]:
    """A queue of jobs whose retry time is long, on a node that is told nothing which an original would not know."""
    with understanding(node), blocking.connect(url_of(node), retry=RETRY_S) as store:
        yield store.queue(next(_names))


def url_of(*nodes: NodeProcess) -> str:
    return "disque://" + ",".join(f"{node.host}:{node.port}" for node in nodes)


def options(queue: blocking.Queue, **more: Any) -> dict[str, str]:
    given = {"url": queue.store.url, "queue": queue.name, "maxJobsPerTrigger": BATCH, "lease": 600, "wait": 0, **more}
    return {name: str(value) for name, value in given.items()}


def bodies(logs: Logs) -> list[int]:
    return sorted(int(row["body"]) for row in logs.rows)


def died_at(where: tuple[str, int], queue: blocking.Queue, **more: Any) -> Logs:
    """The logs of a query that died there."""
    logs = Logs()
    query = Query(logs, options(queue, **more), lambda point, batch: (point, batch) == where)
    with pytest.raises(Crash):
        query.run()
    query.stop()
    return logs


def finish(logs: Logs, queue: blocking.Queue, **more: Any) -> None:
    query = Query(logs, options(queue, **more))
    query.run()
    query.stop()


def test_a_queue_is_drained_in_batches_whose_jobs_are_in_the_log(queue: blocking.Queue) -> None:
    ids = queue.push_many(range(JOBS))
    logs = Logs()
    finish(logs, queue)
    assert bodies(logs) == list(range(JOBS))
    assert queue.total() == 0
    assert [mark.id for offset in logs.offsets for mark in marks_in(json.loads(offset))] == ids


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_driver_that_dies_anywhere_loses_and_doubles_nothing(
    point: str, batch: int, queue: blocking.Queue, node: OriginalNode
) -> None:
    queue.push_many(range(JOBS))
    logs = died_at((point, batch), queue)
    finish(logs, queue)
    if point == "claimed":
        taken = BATCH if batch == 0 else JOBS - 2 * BATCH
        assert len(bodies(logs)) == JOBS - taken
        node.shift(RETRY_S + 1)  # nobody knows of them: they come back by themselves
        finish(logs, queue)
    assert bodies(logs) == list(range(JOBS))
    node.shift(RETRY_S + 1)
    assert queue.total() == 0


def test_a_batch_has_no_more_jobs_than_an_offset_can_bear(queue: blocking.Queue) -> None:
    queue.push_many(range(JOBS_MAX + 10))
    logs = Logs()
    finish(logs, queue, maxJobsPerTrigger=20_000)
    assert [len(rows) for rows in logs.sink.values()] == [JOBS_MAX, 10]
    assert len(logs.offsets[0]) < 300_000
    assert queue.total() == 0


def test_jobs_that_came_back_and_that_nobody_took_are_held_again(queue: blocking.Queue, node: OriginalNode) -> None:
    queue.push_many(range(JOBS))
    logs = died_at(("partitions", 0), queue)
    node.shift(RETRY_S + 1)
    assert queue.size() == JOBS
    finish(logs, queue)
    assert [len(rows) for rows in logs.sink.values()] == [BATCH, BATCH, JOBS - 2 * BATCH]
    assert bodies(logs) == list(range(JOBS))
    assert queue.total() == 0


def test_jobs_that_others_had_are_missing_from_a_replay_and_none_come_in_their_place(
    queue: blocking.Queue, node: OriginalNode
) -> None:
    queue.push_many(range(JOBS))
    logs = died_at(("partitions", 0), queue)
    node.shift(RETRY_S + 1)
    others = queue.reserve_many(10)
    assert [int(job.body) for job in others] == list(range(10))
    queue.ack_many(others[:4])
    queue.nack_many(others[4:7])
    query = Query(logs, options(queue))
    query.run(available_now=False, batches_max=0)
    query.stop()
    assert sorted(int(row["body"]) for row in logs.sink[0]) == list(range(10, BATCH))
    assert all(queue.ack_many(others[7:]))


def test_a_job_that_was_acked_by_somebody_else_is_missing(queue: blocking.Queue, node: OriginalNode) -> None:
    ids = queue.push_many(range(JOBS))
    logs = died_at(("partitions", 0), queue)
    assert node.call("ACKJOB", *ids[:3]) == 3
    finish(logs, queue)
    assert bodies(logs) == list(range(3, JOBS))


def test_retry_times_are_started_again_while_a_batch_runs(node: OriginalNode) -> None:
    with (
        blocking.connect(url_of(node), retry=1) as store,
        Connection(node.host, node.port, timeout=60) as monitor,
    ):
        queue = store.queue(next(_names))
        (job_id,) = queue.push_many([0])
        monitor.execute("MONITOR")

        def wait_for_beats(point: str, batch: int) -> None:
            beats = 0
            while point == "partitions" and beats < 5:
                beats += b'"WORKING" "%b"' % job_id.encode() in monitor.receive()

        logs = Logs()
        query = Query(logs, options(queue), wait_for_beats)
        query.run()
        query.stop()
        assert [row["tries"] for row in logs.rows] == [0]
        assert queue.total() == 0


def test_a_job_that_spark_can_not_process_goes_to_the_dead_letters(queue: blocking.Queue, node: OriginalNode) -> None:
    ids = queue.push_many(range(3))
    dead = next(_names)

    def fail(point: str, batch: int) -> None:
        if point == "half read" and batch == 0:
            assert give_up(queue.store.url, queue.name, "spark:any:1", {ids[1]: "no good"}, dead) == 1

    query = Query(Logs(), options(queue), fail)
    query.run()
    query.stop()
    assert queue.total() == 0
    (job,) = queue.store.queue(dead).peek()
    assert (job.body, job.headers["x-dl-error"]) == (b"1", "no good")


def test_an_owner_is_refused_with_the_reason(queue: blocking.Queue) -> None:
    with pytest.raises(CallerError, match="original Disque"):
        Query(Logs(), options(queue, owner="reports")).run()


def test_what_an_original_began_goes_on_when_it_is_a_node_of_ours(tmp_path: Path) -> None:
    node = OriginalNode(tmp_path, appendonly="yes", appendfsync="always")
    node.start()
    ours = NodeProcess(tmp_path, port=node.port, appendonly="yes")
    try:
        with blocking.connect(url_of(node), retry=RETRY_S) as store:
            queue = store.queue("jobs")
            queue.push_many(range(JOBS))
            logs = died_at(("partitions", 1), queue)
        node.kill()
        ours.start()
        with blocking.connect(url_of(ours)) as store:
            queue = store.queue("jobs")
            finish(logs, queue)
            assert bodies(logs) == list(range(JOBS))
            assert ["held" in json.loads(offset) for offset in logs.offsets] == [True, True, False]
            assert queue.total() == 0
    finally:
        node.kill()
        ours.kill()


def test_a_replay_finds_jobs_on_whichever_node_is_left(tmp_path_factory: pytest.TempPathFactory) -> None:
    nodes = [
        OriginalNode(tmp_path_factory.mktemp("original"), appendonly="no", cluster_node_timeout=2000) for _ in range(2)
    ]
    for node in nodes:
        node.start()
    try:
        meet(*nodes)
        with blocking.connect(url_of(nodes[0]), retry=RETRY_S, replicate=2) as store:
            queue = store.queue("jobs")
            queue.push_many(range(BATCH))
            logs = died_at(("partitions", 0), queue)
        nodes[0].kill()
        with blocking.connect(url_of(nodes[1])) as store:
            queue = store.queue("jobs")
            query = Query(logs, options(queue))
            query.run(available_now=False, batches_max=1)
            query.stop()
            assert bodies(logs) == list(range(BATCH))
            nodes[1].shift(RETRY_S + 60)
            assert queue.total() == 0
    finally:
        for node in nodes:
            node.kill()


def test_an_offset_names_jobs_and_the_counters_that_are_not_zero(queue: blocking.Queue) -> None:
    queue.push_many(range(2))
    queue.reserve_many(1)[0].nack()
    jobs = [job.stored for job in queue.reserve_many(2)]
    held = held_of(jobs)
    ((node, texts),) = held.items()
    assert sorted(texts) == sorted([f"{job.id} {job.nacks} 0" if job.nacks else job.id for job in jobs])
    assert {(mark.id, mark.node, mark.nacks) for mark in marks_in({"held": held})} == {
        (job.id, node, job.nacks) for job in jobs
    }
