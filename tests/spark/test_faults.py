"""Faults at every point of a stream, on every store: each job is put out exactly once, and none is left.

The table is: which process is killed, in which phase of a batch, at which point (see `drive`), on which store.
Besides, batches that are larger than any round trip, and leases that must outlast a batch that takes its time.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock import blocking
from penstock.errors import ConnectionLost, StoreError
from penstock.queues.capabilities import Capability
from penstock.spark import errors
from penstock.spark.settings import read_settings
from penstock.spark.sink import QueueStreamWriter
from tests.processes import wait_until
from tests.spark.killable import CAN_BE_KILLED, STORES, FindStore, Killable, stores
from tests.spark.stream_driver import Crash, Logs, Query, WorkerDied, run_and_stop, task_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

JOBS, BATCH, PARTITION = 25, 10, 5
LAST = 3  # the batch that is not there any more: with its planning the last one is acked
LARGE = 20_000

# Phase -> points and the batch that they are in.
PHASES = {
    "planning": (("planning", 1), ("claiming", 1), ("taken", 1), ("claimed", 1), ("logged", 1)),
    "read": (("partitions", 1), ("half read", 1)),
    "write": (("half written", 1),),
    "commit": (("written", 1), ("committed", 1)),
    "ack": (("acking", 1), ("acked", 1), ("acking", LAST), ("acked", LAST)),
}
# Which process is killed -> in which phases, on which stores. A worker reads and writes, and does nothing else.
VICTIMS = {
    "driver": (tuple(PHASES), STORES),
    "worker": (("half read", "half written"), STORES),
    "store": (tuple(PHASES), CAN_BE_KILLED),
}
WITHOUT_KEYS = ("disque", "mongodb+stream", "mongodb+intraorder")  # a task that runs again adds its jobs again there
ANSWERS = ("acked", "taken")  # points where a store that is killed has done what it was told, and not said so

_numbers = itertools.count(1)


def table() -> Iterator[Any]:
    for victim, (where, names) in VICTIMS.items():
        for name, (phase, points) in itertools.product(names, PHASES.items()):
            for point, batch in points:
                if {phase, point} & set(where):
                    label = f"{victim}-{phase}-{point.replace(' ', '_')}-{batch}-{name}"
                    yield pytest.param(victim, point, batch, name, id=label)


@pytest.fixture(scope="module")
def find_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FindStore]:
    yield from stores(request, tmp_path_factory)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "OUTAGE_PAUSE_S", 0.05)


def options(store: Killable, queue: str, **more: Any) -> dict[str, str]:
    given = {"url": store.url, "queue": queue, "maxJobsPerTrigger": BATCH, "partitionJobs": PARTITION, "lease": 600}
    return {name: str(value) for name, value in {**given, "wait": 0, **more}.items()}


class Fault:
    """Kills somebody, once."""

    def __init__(self, victim: str, point: str, batch: int, store: Killable) -> None:
        self.query: Query | None = None
        self.is_done = False
        self._victim, self._where, self._store = victim, (point, batch), store
        self._starting: threading.Thread | None = None

    def strike(self, point: str, batch: int) -> bool:
        if self.is_done or (point, batch) != self._where:
            return False
        self.is_done = True
        if self._victim == "worker":
            raise WorkerDied
        if self._victim == "store":
            self._kill_store()
            if point in ANSWERS:
                raise ConnectionLost("the store died before it could answer")
        return self._victim == "driver"

    def _kill_store(self) -> None:
        assert self.query is not None
        self._store.kill(self.query.reader.batches.queue.store._driver)
        # Whoever asks before it is back has to be patient.
        self._starting = threading.Thread(target=self._store.start)
        self._starting.start()

    def wait(self) -> None:
        """Until the store is there again."""
        if self._starting is not None:
            self._starting.join()


@pytest.mark.parametrize(("victim", "point", "batch", "name"), list(table()))
def test_whoever_is_killed_each_job_is_put_out_once(
    victim: str, point: str, batch: int, name: str, find_store: FindStore
) -> None:
    place = find_store(name)
    number = next(_numbers)
    jobs, copies = f"jobs{number}", f"copies{number}"
    with blocking.connect(place.url) as store:
        store.queue(jobs).push_many(range(JOBS))
    logs = Logs()
    fault = Fault(victim, point, batch, place)
    first = fault.query = Query(logs, options(place, jobs), fault.strike, copies)
    first.tap(first.reader.batches.queue.store._driver)
    try:
        first.run()
        first.stop()
    except Crash:
        first.stop()
        run_and_stop(Query(logs, options(place, jobs), copies=copies))
    fault.wait()
    assert fault.is_done
    assert sorted(int(row["body"]) for row in logs.rows) == list(range(JOBS))
    with blocking.connect(place.url) as store:
        assert store.queue(jobs).total() == 0
        copied = sorted(int(job.body) for job in store.queue(copies).jobs())
        if Capability.UNIQUE in store.capabilities:
            assert copied == list(range(JOBS))
        else:
            assert set(copied) == set(range(JOBS))


@pytest.mark.parametrize("name", STORES)
def test_a_first_batch_that_was_never_logged_is_found_by_its_owner(name: str, find_store: FindStore) -> None:
    place = find_store(name)
    given = options(place, f"jobs{next(_numbers)}", owner=f"owner{next(_numbers)}")
    with blocking.connect(place.url) as store:
        store.queue(given["queue"]).push_many(range(JOBS))
        first = Query(Logs(), given, lambda point, batch: point == "claimed")
        with pytest.raises(Crash):
            first.run()
        first.stop()
        logs = Logs()
        run_and_stop(Query(logs, given))
        assert sorted(int(row["body"]) for row in logs.rows) == list(range(JOBS))
        assert store.queue(given["queue"]).total() == 0


@pytest.mark.parametrize("name", STORES)
def test_a_batch_of_many_jobs_is_claimed_given_again_and_acked_as_one(name: str, find_store: FindStore) -> None:
    place = find_store(name)
    given = options(place, f"jobs{next(_numbers)}", maxJobsPerTrigger=LARGE, partitionJobs=5000)
    with blocking.connect(place.url) as store:
        store.queue(given["queue"]).push_many(range(LARGE))
        logs = Logs()
        first = Query(logs, given, lambda point, batch: point == "written")
        with pytest.raises(Crash):
            first.run()
        first.stop()
        before = [row["id"] for row in logs.rows]
        run_and_stop(Query(logs, given))
        assert [row["id"] for row in logs.rows] == before
        assert sorted(int(row["body"]) for row in logs.rows) == list(range(LARGE))
        assert (logs.commits, store.queue(given["queue"]).total()) == (1, 0)


@pytest.mark.parametrize("name", STORES)
def test_leases_are_made_longer_while_a_batch_runs(name: str, find_store: FindStore) -> None:
    place = find_store(name)
    given = options(place, f"jobs{next(_numbers)}", lease=3)
    with blocking.connect(place.url) as store:
        queue = store.queue(given["queue"])
        queue.push_many(range(3))

        def ends() -> list[int]:
            return [job.stored.mature_ms or 0 for job in queue.jobs(state="reserved")]

        def outlast(point: str, batch: int) -> bool:
            if point == "partitions":
                first = max(ends())
                wait_until(lambda: min(ends()) > first)
            return False

        logs = Logs()
        query = Query(logs, given, outlast)
        query.run()
        query.stop()
        assert (len(logs.rows), queue.total()) == (3, 0)


def test_leases_are_made_longer_after_a_store_refused(find_store: FindStore, monkeypatch: pytest.MonkeyPatch) -> None:
    place = find_store("memory")
    given = options(place, f"jobs{next(_numbers)}", lease=1)
    calls: list[str] = []

    def refuse_once(queue: blocking.Queue, key: str, lease: float) -> int:
        calls.append(key)
        if len(calls) == 1:
            raise StoreError("the disk is full")
        return 0

    monkeypatch.setattr(blocking.Queue, "extend_claim", refuse_once)
    with blocking.connect(place.url) as store:
        store.queue(given["queue"]).push("job")

        def outlast(point: str, batch: int) -> bool:
            return point == "partitions" and not wait_until(lambda: len(calls) > 1)

        query = Query(Logs(), given, outlast)
        query.run()
        query.stop()


@pytest.mark.parametrize("name", [name for name in STORES if name not in WITHOUT_KEYS])
def test_a_task_that_runs_again_in_another_order_loses_and_doubles_nothing(name: str, find_store: FindStore) -> None:
    place = find_store(name)
    queue = f"copies{next(_numbers)}"
    settings = read_settings({"url": place.url, "queue": queue})
    writer = QueueStreamWriter(settings, StructType([StructField("body", BinaryType())]))
    rows = [b"a", b"b", b"twice", b"c", b"twice", b"d"]
    pieces = [pa.record_batch({"body": pa.array(part)}) for part in (rows[:3], rows[3:], rows[::-1])]

    def until_killed() -> Iterator[pa.RecordBatch]:
        yield pieces[0]
        raise WorkerDied

    with task_of("query", 0, 0):
        with pytest.raises(WorkerDied):
            writer.write(until_killed())
        writer.write(iter(pieces[2:]))
    with blocking.connect(place.url) as store:
        assert sorted(job.body for job in store.queue(queue).jobs()) == sorted(rows)
