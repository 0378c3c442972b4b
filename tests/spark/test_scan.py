"""Looks at queues as tables: how they are cut, what filters leave of them, and that nothing is touched."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    Not,
    StringStartsWith,
)

from penstock import blocking
from penstock.errors import CallerError, Unsupported
from penstock.queues.scan import Limit
from penstock.queues.stores.postgres import scan as postgres_scan
from penstock.spark.filters import Selection, selection_of
from penstock.spark.rows import COLUMNS
from penstock.spark.scan import FilteringScan, QueueScan
from penstock.spark.settings import read_settings
from tests.conftest import StartNode
from tests.processes import NodeProcess, meet

pytestmark = pytest.mark.timeout(300)

STATES = frozenset({"ready", "scheduled", "reserved", "dead"})

_names = (f"queue-{number}" for number in count(1))


def parts_of(options: dict[str, Any], filters: Sequence[Filter] = (), columns: str = "") -> list[list[dict[str, Any]]]:
    """The rows of each partition, as Spark would read them."""
    given = {name: str(value) for name, value in options.items()}
    names = columns.split(",") if columns else list(COLUMNS)
    look = (FilteringScan if filters else QueueScan)(read_settings(given, has_many=True), names)
    if isinstance(look, FilteringScan):
        assert list(look.pushFilters(list(filters))) == list(filters)  # Spark checks them all
    found = []
    for partition in look.partitions():
        worker, there = pickle.loads(pickle.dumps((look, partition)))  # noqa: S301 - as Spark does it; no job in it
        batches: list[pa.RecordBatch] = list(worker.read(there))
        found.append([row for batch in batches for row in batch.to_pylist()])
    return found


def rows_of(options: dict[str, Any], *filters: Filter, columns: str = "") -> list[dict[str, Any]]:
    return [row for part in parts_of(options, filters, columns) for row in part]


@pytest.fixture
def three_states(store: blocking.Store) -> dict[str, str]:
    """The ids of jobs of the queue `jobs`, by their state, and of one that is dead."""
    queue = store.queue("jobs", lease=1000)
    queue.push("bad")
    dead = queue.reserve(0)
    assert dead is not None
    dead.fail("broken")
    ids = {"dead": dead.id, "reserved": queue.push("taken", headers={"color": "red", "size": 3})}
    queue.reserve(0)
    ids["ready"] = queue.push({"n": 1})
    ids["scheduled"] = queue.push(b"\xff\x00", delay=3600)
    store.queue("others").push("other")
    return ids


def test_a_read_shows_all_columns_of_a_job_and_touches_nothing(
    url: str, store: blocking.Store, three_states: dict[str, str]
) -> None:
    before = store.queue("jobs").sizes()
    rows = {row["state"]: row for row in rows_of({"url": url, "queue": "jobs"})}
    assert {state: row["id"] for state, row in rows.items()} == {
        state: three_states[state] for state in ("ready", "scheduled", "reserved")
    }
    ready, scheduled, reserved = rows["ready"], rows["scheduled"], rows["reserved"]
    assert (ready["body"], ready["payload"], ready["tries"]) == (b'{"n":1}', '{"n":1}', 0)
    assert (scheduled["body"], scheduled["payload"]) == (b"\xff\x00", None)
    assert reserved["headers"] == [("color", "red"), ("size", "3")]
    assert ready["queue"] == "jobs"
    assert abs(ready["created"] - datetime.now(UTC)) < timedelta(minutes=5)
    assert timedelta(minutes=50) < scheduled["mature"] - scheduled["created"] < timedelta(minutes=70)
    assert (ready["claim"], ready["node"]) == (None, None)
    assert store.queue("jobs").sizes() == before


def test_dead_letters_are_shown_with_the_queue_that_they_came_from(
    url: str, store: blocking.Store, three_states: dict[str, str]
) -> None:
    other = store.queue("others").reserve(0)
    assert other is not None
    other.fail("another's")
    options = {"url": url, "queue": "jobs", "states": "ready,dead"}
    rows = {row["state"]: row for row in rows_of(options)}
    assert {state: row["id"] for state, row in rows.items()} == {
        state: three_states[state] for state in ("ready", "dead")
    }
    assert rows["dead"]["queue"] == "__deadletter__"
    assert dict(rows["dead"]["headers"])["x-dl-error"] == "broken"
    assert [row["id"] for row in rows_of({**options, "states": "dead"}, columns="id,state")] == [three_states["dead"]]
    assert rows_of(options, EqualTo(("state",), "ready"), columns="state") == [{"state": "ready"}]
    assert rows_of(options, EqualTo(("queue",), "jobs"), columns="state") == [{"state": "ready"}]


@pytest.mark.usefixtures("three_states")
def test_several_queues_are_a_partition_each(url: str, store: blocking.Store) -> None:
    store.queue("__penstock_owners__:me").push("")
    several = parts_of({"url": url, "queues": "jobs, others"})
    assert [len(part) for part in several] == [3, 1]
    everything = parts_of({"url": url, "queues": "*"}, columns="queue")
    assert Counter(row["queue"] for part in everything for row in part) == {"jobs": 3, "others": 1, "__deadletter__": 1}
    assert parts_of({"url": url, "queues": "*"}, [In(("queue",), ("others", "none"))], "queue") == [
        [{"queue": "others"}]
    ]
    assert parts_of({"url": url, "queues": "jobs,others"}, [EqualTo(("queue",), "none")]) == [[]]


def test_filters_are_done_by_the_file(url: str, store: blocking.Store, three_states: dict[str, str]) -> None:
    options = {"url": url, "queue": "jobs"}
    for state in ("ready", "scheduled", "reserved"):
        (row,) = rows_of(options, EqualTo(("state",), state), columns="id")
        assert row["id"] == three_states[state]
    assert {row["state"] for row in rows_of(options, Not(EqualTo(("state",), "ready")))} == {"scheduled", "reserved"}
    assert [row["id"] for row in rows_of(options, EqualTo(("id",), three_states["ready"]))] == [three_states["ready"]]
    now = datetime.now(UTC)
    later = rows_of(options, GreaterThan(("mature",), now + timedelta(minutes=30)), columns="id")
    assert [row["id"] for row in later] == [three_states["scheduled"]]
    assert rows_of(options, LessThan(("created",), now - timedelta(hours=1))) == []
    assert len(rows_of(options, GreaterThanOrEqual(("created",), now - timedelta(hours=1)))) == 3
    assert rows_of(options, GreaterThan(("tries",), 0)) == []


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], Selection()),
        ([EqualTo(("state",), "ready")], Selection(states=frozenset({"ready"}))),
        ([In(("state",), ("ready", None)), EqualTo(("state",), "dead")], Selection(states=frozenset())),
        ([Not(EqualTo(("state",), "ready"))], Selection(states=STATES - {"ready"})),
        ([Not(EqualTo(("queue",), "a"))], Selection()),
        ([EqualTo(("id",), "a"), IsNotNull(("id",))], Selection(ids=frozenset({"a"}))),
        ([In(("id",), tuple(map(str, range(501))))], Selection()),
        ([In(("id",), (None,))], Selection()),
        ([StringStartsWith(("id",), "a"), GreaterThan(("id",), "a")], Selection()),
        ([EqualTo(("tries",), 3)], Selection(limits=(Limit("tries", "=", 3),))),
        ([LessThan(("tries",), 2.5), EqualTo(("tries",), True), EqualTo(("tries",), None)], Selection()),
        ([EqualTo(("headers", "tries"), 3), GreaterThan(("nacks",), 3)], Selection()),
        (
            [GreaterThan(("created",), datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC))],
            Selection(limits=(Limit("created", ">", 1_000_005),)),
        ),
        ([GreaterThan(("created",), datetime(1970, 1, 1))], Selection()),  # noqa: DTZ001 - whose time is not known
    ],
)
def test_a_read_takes_of_filters_what_its_store_can_do(filters: list[Filter], expected: Selection) -> None:
    assert selection_of(filters, frozenset({"id", "tries", "created"}), STATES) == expected


def test_what_a_store_can_not_compare_is_left_to_spark() -> None:
    filters = [EqualTo(("id",), "a"), EqualTo(("tries",), 3), EqualTo(("queue",), "a")]
    assert selection_of(filters, frozenset(), STATES) == Selection(queues=frozenset({"a"}))


def test_a_read_without_a_queue_is_refused(url: str) -> None:
    with pytest.raises(CallerError, match="needs the option queue"):
        read_settings({"url": url}, has_many=True)
    with pytest.raises(CallerError, match="needs the option queue"):
        read_settings({"url": url, "queues": "a,b"})


def test_a_store_that_can_not_be_read_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.queues.stores.memory import MemoryDriver

    monkeypatch.setattr(MemoryDriver, "capabilities", frozenset())
    with pytest.raises(Unsupported, match="peek"):
        rows_of({"url": "memory:blind", "queue": "jobs"})


# Servers.


@pytest.mark.system
def test_a_cluster_has_a_partition_a_node_and_each_job_once(nodes: list[NodeProcess]) -> None:
    names = [next(_names), next(_names)]
    ids: list[str] = []
    for number, node in enumerate(nodes):
        with blocking.connect(f"disque://{node.host}:{node.port}?replicate=3") as store:
            for name in names:
                ids += store.queue(name).push_many(range(10 + number))
            ids += store.queue(names[0]).push_many(range(5), delay=1000)
    url = "disque://" + ",".join(f"{node.host}:{node.port}" for node in nodes)
    parts = parts_of({"url": url, "queues": ",".join(names)})
    assert [len({row["node"] for row in part}) for part in parts] == [1, 1, 1]
    assert Counter(row["id"] for part in parts for row in part) == Counter(ids)
    assert Counter(row["queue"] for part in parts for row in part) == {names[0]: 48, names[1]: 33}
    options = {"url": url, "queue": names[0]}
    assert len(rows_of(options, EqualTo(("state",), "scheduled"))) == 15
    (found,) = rows_of(options, In(("id",), (ids[0], "D-no-such-job")))
    assert (found["id"], found["state"], found["tries"], found["body"]) == (ids[0], "ready", 0, b"0")


@pytest.mark.system
def test_headers_and_tries_are_taken_off_the_bodies_of_a_node(nodes: list[NodeProcess]) -> None:
    url = f"disque://{nodes[0].host}:{nodes[0].port}"
    with blocking.connect(url) as store:
        queue = store.queue(next(_names))
        queue.push("plain")
        queue.push({"n": 1}, headers={"a": "b"}, tries=2)
        job = queue.reserve(0)
        assert job is not None
        job.nack()
        rows = {row["body"]: row for row in rows_of({"url": url, "queue": queue.name})}
    plain, framed = rows[b'"plain"'], rows[b'{"n":1}']
    assert (plain["headers"], plain["tries"], plain["nacks"], plain["payload"]) == ([], 1, 1, '"plain"')
    assert (framed["headers"], framed["tries"], framed["nacks"]) == ([("a", "b")], 2, 0)


@pytest.mark.system
def test_a_large_table_is_cut_into_ranges_of_ids(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_scan, "PART_BYTES", 8192)
    with blocking.connect(postgres_database) as store:
        queue = store.queue("jobs", lease=1000)
        ids = []
        for begin in range(0, 1000, 100):  # at different times, as ids go by time
            ids += queue.push_many([{"n": number} for number in range(begin, begin + 100)])
        taken = queue.reserve_many(50)
        options = {"url": postgres_database, "queue": "jobs"}
        parts = parts_of(options)
        assert len(parts) == postgres_scan.PARTS_MAX
        assert Counter(row["id"] for part in parts for row in part) == Counter(ids)
        assert sum(bool(part) for part in parts) > 1
        reserved = rows_of(options, EqualTo(("state",), "reserved"), columns="id,tries")
        assert {row["id"] for row in reserved} == {job.id for job in taken}
        assert {row["tries"] for row in reserved} == {0}
        assert len(parts_of(options, [In(("id",), tuple(ids[:3]))])) == 1
        assert {row["id"] for row in rows_of(options, In(("id",), tuple(ids[:3])))} == set(ids[:3])


@pytest.mark.parametrize(
    ("low", "high", "parts"),
    [
        ("00000000-0000-4", "ffffffff-ffff-4", 8),
        ("0193abcd-1000-4", "0193abcd-9000-4", 8),
        ("0193abcd-1000-4", "0193abcd-1002-4", 1),
        ("0193abcd-1000-4", "0193abcd-1000-4", 1),
        ("a", "z", 1),
        ("", "ffffffff-ffff-4", 1),
    ],
)
def test_ranges_are_cut_where_ids_are_numbers(low: str, high: str, parts: int) -> None:
    found = postgres_scan.cuts(low, high, 1000 * postgres_scan.PART_BYTES)
    assert len(found) == parts - 1
    assert [low, *found, high] == sorted({low, *found, high}) or low == high
    assert postgres_scan.cuts(low, high, 2 * postgres_scan.PART_BYTES - 1) == []


# In a real Spark.


@pytest.mark.system
def test_spark_pushes_filters_when_asked_to(
    spark: Any, url: str, store: blocking.Store, three_states: dict[str, str]
) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"

    def look(**options: Any) -> Any:
        return spark.read.format("penstock").options(url=url, queues="jobs,others", **options).load()

    where = "queue = 'jobs' AND state = 'ready' AND tries < 5 AND payload LIKE '%n%'"
    assert [row.id for row in look().where(where).collect()] == [three_states["ready"]]
    with pytest.raises(PySparkException, match=re.escape(setting)):
        look(pushdown=True).collect()
    spark.conf.set(setting, "true")
    try:
        assert look().where(where).rdd.getNumPartitions() == 2
        chosen = look(pushdown=True).where(where)
        assert chosen.rdd.getNumPartitions() == 1
        assert [row.id for row in chosen.collect()] == [three_states["ready"]]
        assert look(pushdown=True).count() == 4
        # A table that is read twice, which is why it isn't done by itself.
        jobs = look()
        assert jobs.where("queue = 'jobs'").union(jobs.where("queue = 'others'")).count() == 4
        first, second = look(pushdown=True), look(pushdown=True)
        assert first.where("queue = 'jobs'").union(second.where("queue = 'others'")).count() == 4
    finally:
        spark.conf.unset(setting)
    assert store.queue("jobs").total() == 3


def test_jobs_whose_node_is_away_are_read_once(start_node: StartNode) -> None:
    first, second, third = nodes = [start_node(appendonly="no", cluster_node_timeout=2000) for _ in range(3)]
    meet(*nodes)
    name = next(_names)
    for node, payloads in ((first, [1, 2]), (second, [3])):
        with blocking.connect(f"disque://{node.host}:{node.port}?replicate=3&retry=300") as store:
            store.queue(name).push_many(payloads)
    first.kill()
    options = {"url": f"disque://{second.host}:{second.port},{third.host}:{third.port}", "queue": name}
    states = {1: "away", 2: "away", 3: "ready"}
    assert sorted((row["payload"], row["state"]) for row in rows_of(options)) == [
        (str(payload), state) for payload, state in states.items()
    ]
    chosen = rows_of({**options, "pushdown": "true"}, EqualTo(("state",), "away"))
    assert {row["payload"] for row in chosen if row["state"] == "away"} == {"1", "2"}
    assert rows_of({**options, "pushdown": "true"}, EqualTo(("state",), "scheduled")) == []
