"""What a stream does besides handing out jobs: it reports, it holds on to leases, it knows its place, and it rests."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock import blocking
from penstock.errors import CallerError
from penstock.spark import batch_size
from penstock.spark.settings import read_settings
from penstock.spark.streaming import QueueStream
from tests.processes import wait_until
from tests.servers import RedisServer
from tests.spark.stream_driver import Crash, Logs, Query, run_and_stop

LIMIT = ReadMaxRows(1000)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory:{request.node.name}"


@pytest.fixture
def queue(url: str) -> Iterator[blocking.Queue]:
    with blocking.connect(url) as store:
        yield store.queue("jobs")


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill_hard()


def options(url: str, **more: Any) -> dict[str, str]:
    given = {"url": url, "queue": "jobs", "lease": 600, "wait": 0, **more}
    return {name: str(value) for name, value in given.items()}


def reader(url: str, **more: Any) -> QueueStream:
    return QueueStream(read_settings(options(url, **more)), ["id", "body"])


# Progress.


def test_the_progress_of_a_query_has_the_backlog(url: str, queue: blocking.Queue) -> None:
    queue.push_many(range(30))
    stream = reader(url)
    stream.latestOffset(stream.initialOffset(), ReadMaxRows(10))
    reported = stream.reportLatestOffset()
    assert reported is not None
    assert (reported["backlog"], reported["leases_lost"]) == (20, 0)
    stream.stop()


# Leases.


def test_the_thread_that_extends_leases_survives_any_error(
    url: str, queue: blocking.Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    extend = blocking.Queue.extend_claim
    calls: list[str] = []

    def fail_first(queue: blocking.Queue, key: str, lease: float) -> int:
        calls.append(key)
        if len(calls) == 1:
            raise RuntimeError("dictionary changed size during iteration")
        return extend(queue, key, lease)

    monkeypatch.setattr(blocking.Queue, "extend_claim", fail_first)
    queue.push("job")
    stream = reader(url, lease=1)
    stream.latestOffset(stream.initialOffset(), LIMIT)
    wait_until(lambda: len(calls) > 1)
    stream.stop()
    assert "dictionary changed size" in caplog.text


def test_leases_that_were_lost_are_logged_and_reported(
    url: str, queue: blocking.Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    extend = blocking.Queue.extend_claim
    is_stalled = True

    def stall(queue: blocking.Queue, key: str, lease: float) -> int:
        if is_stalled:
            raise OSError("no route to host")
        return extend(queue, key, lease)

    monkeypatch.setattr(blocking.Queue, "extend_claim", stall)
    queue.push_many(range(5))
    stream = reader(url, lease=1)
    end = stream.latestOffset(stream.initialOffset(), LIMIT)
    taken = queue.reserve_many(2, 30)
    assert len(taken) == 2
    is_stalled = False
    with caplog.at_level(logging.WARNING):
        wait_until(lambda: (stream.reportLatestOffset() or {})["leases_lost"] == 2)
    assert "the leases of 2 jobs" in caplog.text
    stream.latestOffset(end, LIMIT)
    assert (stream.reportLatestOffset() or {})["leases_lost"] == 2
    stream.stop()
    assert queue.total() == 2


def test_jobs_that_went_to_the_dead_letters_are_not_reported_as_lost(
    url: str, queue: blocking.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.spark.dead_letters import give_up

    extend = blocking.Queue.extend_claim
    kept: list[int] = []

    def note(queue: blocking.Queue, key: str, lease: float) -> int:
        kept.append(extend(queue, key, lease))
        return kept[-1]

    monkeypatch.setattr(blocking.Queue, "extend_claim", note)
    ids = queue.push_many(range(5))
    stream = reader(url, lease=3)
    end = stream.latestOffset(stream.initialOffset(), LIMIT)
    assert give_up(url, "jobs", f"spark:{end['run']}:1", {ids[0]: "bad"}) == 1
    wait_until(lambda: 4 in kept)
    stream.latestOffset(end, LIMIT)
    assert (stream.reportLatestOffset() or {})["leases_lost"] == 0
    stream.stop()
    assert queue.total() == 0


# A checkpoint is of one queue in one store.


def started(logs: Logs, given: dict[str, str], point: str = "") -> None:
    """One run on these logs, which dies at a point if there is one."""
    query = Query(logs, given, lambda name, batch: name == point)
    if point:
        with pytest.raises(Crash):
            query.run()
        query.stop()
    else:
        run_and_stop(query)


@pytest.mark.parametrize("point", ["", "partitions"])
@pytest.mark.parametrize("changed", ["queue", "store"])
def test_a_checkpoint_of_another_queue_or_store_is_refused(changed: str, point: str, tmp_path: Path) -> None:
    first, second = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "second"))
    for url in (first, second):
        with blocking.connect(url) as store:
            for name in ("jobs", "others"):
                store.queue(name).push_many(range(3))
    logs = Logs()
    started(logs, options(first), point)
    others = options(first, queue="others") if changed == "queue" else options(second)
    with pytest.raises(CallerError, match=f"got one of the queue 'jobs' in .*{tmp_path}/first.db"):
        run_and_stop(Query(logs, others))
    with blocking.connect(others["url"]) as store:
        assert store.queue(others["queue"]).size() == 3
    started(logs, options(first))


def test_a_store_that_has_moved_is_accepted_when_the_query_says_so(tmp_path: Path) -> None:
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    with blocking.connect(f"sqlite:///{first}") as store:
        store.queue("jobs").push_many(range(3))
    logs = Logs()
    started(logs, options(f"sqlite:///{first}"), "partitions")
    first.rename(second)
    started(logs, options(f"sqlite:///{second}", storeMoved="true"))
    assert sorted(int(row["body"]) for row in logs.rows) == [0, 1, 2]
    with blocking.connect(f"sqlite:///{second}") as store:
        store.queue("jobs").push(3)
    started(logs, options(f"sqlite:///{second}", storeMoved="true"))
    started(logs, options(f"sqlite:///{second}"))  # the last offset has the new address


def test_a_checkpoint_from_before_offsets_named_their_queue_goes_on(url: str, queue: blocking.Queue) -> None:
    queue.push_many(range(3))
    logs = Logs()
    started(logs, options(url), "partitions")
    logs.offsets = [json.dumps({name: json.loads(one)[name] for name in ("run", "seq")}) for one in logs.offsets]
    started(logs, options(url))
    assert len(logs.rows) == 3
    assert queue.total() == 0


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("redis+oq://ann:secret@a:6379/0", "redis+oq://bob@a/0", True),
        ("redis+oq://a:6379/0", "rediss+oq://a:6379/0", True),
        ("redis+oq://a/0", "redis+oq://a/1", False),
        ("redis+oq://a:1/0", "redis+oq://a:2/0", False),
        ("disque://a:1,b:2", "disque://c:3?lease=5", True),
        ("redis+oq://a:1,b:2/0", "redis+oq://b:2,c:3/0", True),
        ("disques://a:1", "disque://b:2", True),
        ("redis://a", "redis+oq://a/0", True),
        ("redis://a", "redis://a/1", False),
        ("redis+oq:///0?unix=/run/a.sock", "redis+oq:///0?unix=/run/a.sock&lease=5", True),
        ("redis+oq:///0?unix=/run/a.sock", "redis+oq:///0?unix=/run/b.sock", False),
        ("redis+oq:///0?sentinel=a&master=jobs", "redis+oq:///0?sentinel=b&master=jobs", True),
        ("redis+oq:///0?sentinel=a&master=jobs", "redis+oq:///0?sentinel=a&master=mail", False),
        ("postgres://a/jobs", "postgresql://a/jobs", True),
        ("postgresql:///jobs?host=/run/one", "postgresql:///jobs?host=/run/other", False),
        ("postgresql://a/jobs", "redis+oq://a/jobs", False),
    ],
)
def test_two_addresses_of_one_store_are_distinguished_from_those_of_two(one: str, other: str, is_same: bool) -> None:
    from penstock.spark.streaming import is_same_store, store_address

    assert is_same_store(store_address(one), store_address(other)) == is_same
    assert "secret" not in store_address(one)


# Rest.


def calls_of(server: RedisServer) -> dict[str, int]:
    with server.client() as client:
        return {name: one["calls"] for name, one in client.info("commandstats").items()}


def test_an_idle_stream_costs_next_to_nothing_and_wakes_nobody(redis_server: RedisServer) -> None:
    stream = reader(f"redis+oq://{redis_server.host}:{redis_server.port}/0", wait=2)
    start = stream.initialOffset()
    before = calls_of(redis_server)
    assert stream.latestOffset(start, LIMIT) == start
    stream.reportLatestOffset()
    after = calls_of(redis_server)
    stream.stop()
    assert after.get("cmdstat_publish", 0) == before.get("cmdstat_publish", 0)
    assert sum(after.values()) - sum(before.values()) < 250


def test_an_idle_stream_asks_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    asked: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def size() -> int:
        asked.append(now)
        return 0

    monkeypatch.setattr(batch_size, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    backlog = batch_size.Backlog(size, 0, 900)
    while now < 60:
        assert not backlog.wait(0.5)
    assert 45 <= len(asked) <= 120
    assert 25 <= sum(when > 30 for when in asked) <= 30


def test_to_give_back_a_claim_that_holds_nothing_wakes_nobody(redis_server: RedisServer) -> None:
    with blocking.connect(f"redis+oq://{redis_server.host}:{redis_server.port}/0") as store:
        before = calls_of(redis_server)
        assert store.queue("jobs").nack_claim("nobody") == 0
        assert calls_of(redis_server).get("cmdstat_publish", 0) == before.get("cmdstat_publish", 0)


def test_a_batch_that_is_done_is_acked_once(url: str, queue: blocking.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    ack = blocking.Queue.ack_claim
    acked: list[int] = []

    def note(queue: blocking.Queue, key: str) -> int:
        acked.append(ack(queue, key))
        return acked[-1]

    monkeypatch.setattr(blocking.Queue, "ack_claim", note)
    queue.push_many(range(3))
    stream = reader(url)
    end = stream.latestOffset(stream.initialOffset(), LIMIT)
    for _ in range(3):
        assert stream.latestOffset(end, LIMIT) == end
    stream.stop()
    assert acked == [3]


# Batches that wait until they are worth it.


def test_a_batch_waits_for_a_number_of_jobs_or_a_time(url: str, queue: blocking.Queue) -> None:
    given = {"minJobsPerTrigger": 10, "maxTriggerDelay": "10m", "wait": 0.2}
    stream = reader(url, **given)
    start = stream.initialOffset()
    queue.push_many(range(3))
    first = stream.latestOffset(start, LIMIT)
    assert first["seq"] == 1  # nobody knows how long the first jobs have waited
    queue.push_many(range(3))
    assert stream.latestOffset(first, LIMIT) == first
    assert queue.size() == 3  # others may have them meanwhile
    queue.push_many(range(7))
    second = stream.latestOffset(first, LIMIT)
    assert second["seq"] == 2
    assert queue.size() == 0
    stream.stop()
    hasty = reader(url, **{**given, "maxTriggerDelay": "0s"})
    queue.push("one")
    third = hasty.latestOffset(second, LIMIT)
    queue.push("another")
    assert hasty.latestOffset(third, LIMIT)["seq"] == 4
    hasty.stop()


def test_a_run_to_the_end_does_not_wait_for_more_jobs(url: str, queue: blocking.Queue) -> None:
    queue.push_many(range(23))
    logs = Logs()
    run_and_stop(Query(logs, options(url, minJobsPerTrigger=10, maxJobsPerTrigger=10, maxTriggerDelay="1h")))
    assert [len(rows) for rows in logs.sink.values()] == [10, 10, 3]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay must be a time such as 60s, 15m or 1h, got 'soon'"),
        ({"minJobsPerTrigger": "20", "maxJobsPerTrigger": "10"}, "minJobsPerTrigger must be at most"),
        ({"storeMoved": "perhaps"}, "storeMoved"),
    ],
)
def test_options_that_can_not_be_are_refused(given: dict[str, str], complaint: str, url: str) -> None:
    with pytest.raises(CallerError, match=complaint):
        reader(url, **given)


# Where jobs are read.


def rows_of(stream: QueueStream, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    """Return the bodies of a batch, each partition read as a task on another machine would."""
    sent = pickle.dumps((stream, stream.partitions(start, end)))
    there, parts = pickle.loads(sent)  # noqa: S301 - as Spark sends them
    return [row["body"] for part in parts for batch in there.read(part) for row in batch.to_pylist()]


def test_jobs_that_executors_read_are_not_sent_through_the_driver(url: str, queue: blocking.Queue) -> None:
    bodies = [b"%04d" % number + bytes(1000) for number in range(200)]
    queue.push_many(bodies)
    stream = reader(url, fetch="executors", partitionJobs=80)
    start = stream.initialOffset()
    end = stream.latestOffset(start, LIMIT)
    parts = stream.partitions(start, end)
    assert (len(parts), len(pickle.dumps(parts)) < 2000) == (3, True)
    assert sorted(rows_of(stream, start, end)) == sorted(bodies)
    stream.stop()


@pytest.mark.parametrize("fetch", ["driver", "executors"])
def test_a_batch_has_the_same_jobs_whenever_it_is_read(url: str, queue: blocking.Queue, fetch: str) -> None:
    queue.push_many([b"early"] * 30)
    stream = reader(url, fetch=fetch)
    start = stream.initialOffset()
    end = stream.latestOffset(start, LIMIT)
    queue.push_many([b"late"] * 30)
    assert rows_of(stream, start, end) == [b"early"] * 30
    stream.stop()
    again = reader(url, fetch=fetch)
    assert rows_of(again, start, end) == [b"early"] * 30, "after a restart, from the log"
    assert again.latestOffset(end, LIMIT)["seq"] == end["seq"] + 1
    assert queue.total() == 30, "the first batch is acked"
    again.stop()


def test_executors_read_by_default_where_a_store_has_a_server(url: str) -> None:
    addresses = [url, "sqlite:///jobs.db", "fsq:/queues", "redis://host", "postgresql://host/db", "disque://host"]
    settings = [read_settings({"url": address, "queue": "jobs"}) for address in addresses]
    assert [one.fetch for one in settings] == ["driver"] * 3 + ["executors"] * 3
    with pytest.raises(CallerError, match="the option fetch must be driver or executors, got 'both'"):
        read_settings({"url": url, "queue": "jobs", "fetch": "both"})
