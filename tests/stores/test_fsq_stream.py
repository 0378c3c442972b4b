"""A stream of Spark over directories: a batch is a directory of the claim, and comes back when its driver has died."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

from penstock import blocking, fsq
from tests.fsq import original, programs
from tests.spark.stream_driver import Crash, Logs, Query

pytestmark = pytest.mark.usefixtures("root")

JOBS = 5
LEASE = 600.0


@pytest.fixture
def queue(root: Path) -> Iterator[blocking.Queue]:
    with blocking.connect(f"fsq:{root}?sync=0") as store:
        yield store.queue("mail")


def options(root: Path) -> dict[str, str]:
    return {"url": f"fsq:{root}?sync=0", "queue": "mail", "lease": str(LEASE), "wait": "0", "maxJobsPerTrigger": "10"}


def dying(root: Path, logs: Logs, shift: float = 0.0) -> None:
    """A query whose driver dies in its first batch, a while ago."""
    query = Query(logs, options(root), lambda point, batch: point == "partitions")
    query.reader.batches.queue.store.shift_clock(shift)
    with pytest.raises(Crash):
        query.run()
    query.stop()


def claimed(root: Path) -> list[Path]:
    return sorted((root / "mail/.penstock/claim").glob("*/[0-9]*.*/_*"))


def bodies(logs: Logs) -> list[int]:
    return sorted(int(row["body"]) for row in logs.rows)


def test_a_batch_is_out_of_everybodys_sight_while_its_lease_holds(root: Path, queue: blocking.Queue) -> None:
    queue.push_many(range(JOBS))
    logs = Logs()
    dying(root, logs)
    assert len(claimed(root)) == JOBS
    assert list(fsq.scan("mail")) == []
    assert queue.reserve_many(JOBS) == []
    assert programs.run("repair", "mail").stdout == b"0 repaired, 0 left\n"
    Query(logs, options(root)).run()
    assert bodies(logs) == list(range(JOBS))
    assert queue.total() == 0
    assert claimed(root) == []


def test_repair_brings_the_batch_of_a_dead_driver_back(root: Path, queue: blocking.Queue) -> None:
    queue.push_many(range(JOBS))
    logs = Logs()
    dying(root, logs, -2 * LEASE)
    assert programs.run("audit", "mail").stdout.count(b"lease-over: ") == JOBS
    done = programs.run("repair", "mail")
    assert (done.returncode, done.stdout.count(b": repaired\n")) == (0, JOBS)
    assert claimed(root) == []
    assert [item.tries for item in fsq.scan("mail", max_tries=0)] == [1] * JOBS
    # What nobody has taken is still the batch's when the query comes again.
    items = fsq.scan("mail", max_tries=0)
    for _ in range(2):
        fsq.success(next(items))
    items.close()
    Query(logs, options(root)).run()
    assert bodies(logs) == [2, 3, 4]
    assert queue.total() == 0


def test_a_worker_gets_the_batch_of_a_dead_driver_when_its_lease_is_over(root: Path, queue: blocking.Queue) -> None:
    queue.push_many(range(JOBS))
    logs = Logs()
    dying(root, logs, -2 * LEASE)
    jobs = queue.reserve_many(JOBS)
    assert [(job.payload, job.tries) for job in jobs] == [(number, 1) for number in range(JOBS)]
    queue.ack_many(jobs[:3])
    queue.release_many(jobs[3:])
    Query(logs, options(root)).run()
    # The last two have been in other hands, but nobody finished them: they come as a new batch.
    assert bodies(logs) == [3, 4]
    assert queue.total() == 0


def test_an_original_runs_what_came_back(root: Path, queue: blocking.Queue, tmp_path: Path) -> None:
    queue.push_many(range(JOBS))
    dying(root, Logs(), -2 * LEASE)
    log = tmp_path / "log"
    assert programs.run("repair", "mail").returncode == 0
    original.scan(str(root / "mail"), str(log))
    assert len(log.read_text().splitlines()) == JOBS
    assert len(list((root / "mail/done").iterdir())) == JOBS
