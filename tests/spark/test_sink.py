"""Writers driven by hand, without a session: Arrow batches go in, jobs are in the queue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from penstock import blocking
from penstock.errors import CallerError, Unsupported
from penstock.spark.settings import read_settings
from penstock.spark.sink import QueueStreamWriter, QueueWriter
from tests.spark.stream_driver import task_of


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    """As in a worker: there is a task, of a partition."""
    with task_of(None, 0, 0):
        yield


def writer_of(url: str, batch: pa.RecordBatch, *, queue: str | None = "jobs", **options: str) -> QueueWriter:
    given = {"url": url, **options} if queue is None else {"url": url, "queue": queue, **options}
    settings = read_settings(given, needs_queue=queue is not None)
    return QueueWriter(settings, from_arrow_schema(batch.schema), overwrite=False)


def write(url: str, *batches: pa.RecordBatch, queue: str | None = "jobs", **options: str) -> int:
    return writer_of(url, batches[0], queue=queue, **options).write(iter(batches)).jobs


def bodies(store: blocking.Store, queue: str = "jobs") -> list[bytes]:
    return [job.body for job in store.queue(queue).jobs()]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_bodies_are_stored_as_they_are_and_texts_as_utf8(url: str, store: blocking.Store, kind: Any) -> None:
    texts = ["", "one", "zwölf", '{"n": 1}']
    values = texts if "string" in str(kind) else [text.encode() for text in texts]
    assert write(url, pa.record_batch({"body": pa.array(values, kind)})) == 4
    assert bodies(store) == [text.encode() for text in texts]


def test_a_part_of_a_batch_is_that_part(url: str, store: blocking.Store) -> None:
    batch = pa.record_batch({"body": pa.array([b"a", b"bb", b"", b"ccc", b"d"])})
    write(url, batch.slice(1, 3))
    assert bodies(store) == [b"bb", b"", b"ccc"]


def test_a_batch_without_rows_adds_nothing(url: str, store: blocking.Store) -> None:
    assert write(url, pa.record_batch({"body": pa.array([], pa.binary())})) == 0
    assert bodies(store) == []


@pytest.mark.parametrize("name", ["body", "payload"])
def test_a_row_without_a_body_is_refused(url: str, store: blocking.Store, name: str) -> None:
    with pytest.raises(CallerError, match=f"a job must have a body, got a row with null in {name}"):
        write(url, pa.record_batch({name: pa.array(["a", None])}))


def test_rows_of_several_batches_have_keys_of_their_own(url: str, store: blocking.Store) -> None:
    batch = pa.record_batch({"body": pa.array([b"a", b"b"])})
    assert write(url, batch, batch) == 4
    assert bodies(store) == [b"a", b"b", b"a", b"b"]


def test_a_task_that_runs_again_adds_nothing(url: str, store: blocking.Store) -> None:
    batch = pa.record_batch({"body": pa.array([b"a", b"b"])})
    writer = writer_of(url, batch)
    writer.write(iter([batch]))
    writer.write(iter([batch]))
    assert bodies(store) == [b"a", b"b"]


def test_each_write_outside_of_a_stream_adds_its_rows(url: str, store: blocking.Store) -> None:
    for _ in range(2):
        write(url, pa.record_batch({"body": pa.array([b"a", b"a"])}))
    assert bodies(store) == [b"a", b"a", b"a", b"a"]


@pytest.mark.parametrize(
    ("batch", "options", "found"), [(5, {}, 2), (6, {}, 4), (5, {"writeName": "reminders"}, 4)], ids=str
)
def test_a_write_within_foreach_batch_adds_nothing_when_its_batch_is_run_again(
    url: str, store: blocking.Store, batch: int, options: dict[str, str], found: int
) -> None:
    rows = pa.record_batch({"body": pa.array([b"a", b"a"])})
    with task_of("query", 5, 0):
        write(url, rows)
    with task_of("query", batch, 0):
        write(url, rows, **options)
    assert len(bodies(store)) == found


@pytest.mark.parametrize(("options", "found"), [({}, []), ({"uniqueFor": "3600"}, []), ({"uniqueFor": "0"}, [b"a"])])
def test_keys_are_kept_after_the_end_of_a_job_as_long_as_unique_for_says(
    url: str, store: blocking.Store, options: dict[str, str], found: list[bytes]
) -> None:
    rows = pa.record_batch({"body": pa.array([b"a"]), "key": pa.array([1])})
    write(url, rows, uniqueColumn="key", **options)
    assert store.queue("jobs").pop(0) is not None
    write(url, rows, uniqueColumn="key", **options)
    assert bodies(store) == found


def test_a_row_key_stands_for_the_row_and_is_not_part_of_the_job(url: str, store: blocking.Store) -> None:
    rows = pa.record_batch({"n": pa.array([1, 1]), "place": pa.array(["file:0", "file:1"])})
    counts = [write(url, rows, rowKeyColumn="place") for _ in range(2)]
    assert (counts, payloads(store)) == ([2, 0], [{"n": 1}, {"n": 1}])


def test_a_null_body_leaves_the_row_to_the_payload(url: str, store: blocking.Store) -> None:
    columns = {"body": pa.array([None, b"raw"]), "payload": pa.array(['{"n": 1}', None])}
    write(url, pa.record_batch(columns))
    assert bodies(store) == [b'{"n": 1}', b"raw"]


def test_a_row_with_a_key_of_its_own_is_added_once(url: str, store: blocking.Store) -> None:
    columns = {"body": pa.array([b"a", b"b", b"c", b"d"]), "order": pa.array([7, 7, None, None])}
    write(url, pa.record_batch(columns), uniqueColumn="order")
    assert bodies(store) == [b"a", b"c", b"d"]


def test_only_jobs_that_were_added_are_counted(url: str, store: blocking.Store, tmp_path: Path) -> None:
    batch = pa.record_batch({"body": pa.array(["a", "b", "c"]), "key": pa.array(["k1", "k2", "k2"])})
    counts = []
    for _ in range(2):
        writer = writer_of(url, batch, countFile=f"{tmp_path}/count", uniqueColumn="key")
        writer.commit([writer.write(iter([batch])), None])
        counts.append((tmp_path / "count").read_text())
    assert counts == ["2", "0"]


def test_the_option_queue_goes_before_the_column(url: str, store: blocking.Store) -> None:
    write(url, pa.record_batch({"queue": pa.array(["source", None]), "body": pa.array([b"a", b"b"])}), queue="target")
    assert bodies(store, "target") == [b"a", b"b"]
    assert bodies(store, "source") == []


def test_without_the_option_the_column_says_the_queue(url: str, store: blocking.Store) -> None:
    rows = pa.record_batch({"queue": pa.array(["one", "two", "one"]), "n": pa.array([1, 2, 3])})
    write(url, rows, queue=None)
    assert [job.payload for job in store.queue("one").jobs()] == [{"n": 1}, {"n": 3}]
    assert [job.payload for job in store.queue("two").jobs()] == [{"n": 2}]


def test_a_row_without_a_queue_is_refused(url: str, store: blocking.Store) -> None:
    with pytest.raises(CallerError, match="the column queue must have a name in each row"):
        write(url, pa.record_batch({"queue": pa.array(["one", None]), "body": pa.array(["a", "b"])}), queue=None)


def test_columns_with_the_names_of_options_are_data(url: str, store: blocking.Store) -> None:
    flight = {"flight": "LH1", "delay": 95, "ttl": 3.5, "retry": "no", "headers": "x", "unique": False, "queue": "B7"}
    write(url, pa.RecordBatch.from_pylist([flight, flight]))
    assert payloads(store) == [flight, flight]
    assert store.queue("jobs").size() == 2


def test_columns_that_options_name_say_how_a_job_is_added(url: str, store: blocking.Store) -> None:
    columns = {
        "n": pa.array([1, 2, 3]),
        "wait": pa.array([None, 0.0, 3600.0]),
        "labels": pa.array([[("h", "1")], None, []], pa.map_(pa.string(), pa.string())),
    }
    write(url, pa.record_batch(columns), delayColumn="wait", headersColumn="labels")
    assert [(job.payload, job.headers) for job in store.queue("jobs").peek()] == [
        ({"n": 1}, {"h": "1"}),
        ({"n": 2}, {}),
    ]
    assert store.queue("jobs").scheduled() == 1


@pytest.mark.parametrize("option", ["delayColumn", "ttlColumn", "retryColumn", "headersColumn", "uniqueColumn"])
def test_an_option_that_names_no_column_is_refused_before_a_task_runs(url: str, option: str) -> None:
    with pytest.raises(CallerError, match=f"{option} must name a column of the rows \\(n\\), got 'wait'"):
        writer_of(url, pa.record_batch({"n": pa.array([1])}), **{option: "wait"})


@pytest.mark.parametrize(
    ("option", "kind"), [("uniqueColumn", "unique"), ("delayColumn", "delay"), ("ttlColumn", "ttl")]
)
def test_what_the_store_lacks_is_refused_before_a_task_runs(option: str, kind: str) -> None:
    # Nothing listens there: it is not asked.
    with pytest.raises(Unsupported, match=f"lacks {kind}"):
        writer_of("redis+list://127.0.0.1:1/0", pa.record_batch({"n": pa.array([1])}), **{option: "n"})


def test_rows_with_neither_body_nor_payload_are_json_objects(url: str, store: blocking.Store) -> None:
    write(url, pa.record_batch({"n": pa.array([1, 2]), "name": pa.array(["x", None])}))
    assert [job.payload for job in store.queue("jobs").jobs()] == [{"n": 1, "name": "x"}, {"n": 2, "name": None}]


def payloads(store: blocking.Store) -> list[Any]:
    return [job.payload for job in store.queue("jobs").jobs()]


@pytest.mark.parametrize("name", ["attrs", "body", "payload"])
def test_maps_are_objects_however_deep_they_lie(url: str, store: blocking.Store, name: str) -> None:
    plain = pa.map_(pa.string(), pa.string())
    kind = pa.struct([("at", plain), ("all", pa.list_(plain)), ("by", pa.map_(pa.int64(), plain))])
    value = {"at": [("a", "b")], "all": [[("c", "d")], []], "by": [(1, [("e", "f")])]}
    write(url, pa.record_batch({name: pa.array([value], kind)}))
    expected = {"at": {"a": "b"}, "all": [{"c": "d"}, {}], "by": {"1": {"e": "f"}}}
    assert payloads(store) == [{name: expected} if name == "attrs" else expected]


def test_times_and_decimals_are_what_spark_makes_of_them_in_json(url: str, store: blocking.Store) -> None:
    moment = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
    columns = {
        "at": pa.array([moment, None], pa.timestamp("us", tz="Europe/Berlin")),
        "plain": pa.array([datetime(2026, 1, 31), None], pa.timestamp("us")),  # noqa: DTZ001 - a time without a zone
        "day": pa.array([date(2026, 1, 31), None]),
        "price": pa.array([Decimal("12.30"), Decimal("7.00")], pa.decimal128(18, 2)),
        "days": pa.array([[date(2026, 1, 31)], None]),
    }
    write(url, pa.record_batch(columns))
    first = {
        "at": "2026-01-31T12:00:00.250Z",
        "plain": "2026-01-31T00:00:00.000",
        "day": "2026-01-31",
        "price": 12.3,
        "days": ["2026-01-31"],
    }
    assert payloads(store) == [first, {"at": None, "plain": None, "day": None, "price": 7, "days": None}]


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        (pa.array([b"a"]), "the column x must be of a type that JSON has, got binary"),
        (pa.array([[b"a"]]), r"the column x\[\] must be of a type that JSON has, got binary"),
        (pa.array([{"y": b"a"}]), "the column x.y must be of a type that JSON has, got binary"),
        (
            pa.array([[(1.5, "a")]], pa.map_(pa.float64(), pa.string())),
            "the column x must have texts or whole numbers as keys, got map<double,string>",
        ),
        (pa.array([1], pa.duration("us")), "the column x must be of a type that JSON has, got interval"),
    ],
)
def test_types_that_json_lacks_are_refused_before_a_task_runs(url: str, column: pa.Array, complaint: str) -> None:
    with pytest.raises(CallerError, match=complaint):
        writer_of(url, pa.record_batch({"x": column}))


@pytest.mark.parametrize(
    "column", [pa.array([float("nan")]), pa.array([[float("inf")]]), pa.array([Decimal("0.12345678901234567890")])]
)
def test_values_that_json_lacks_are_refused_by_their_column(url: str, column: pa.Array) -> None:
    with pytest.raises(CallerError, match="the column x"):
        write(url, pa.record_batch({"x": column}))


@pytest.mark.parametrize(
    ("option", "column", "complaint"),
    [
        ("headersColumn", pa.array(["a"]), "x must be a map of texts, got the type string"),
        ("delayColumn", pa.array(["5"]), "x must be a number of seconds, got the type string"),
        ("ttlColumn", pa.array([True]), "x must be a number of seconds, got the type boolean"),
    ],
)
def test_options_of_another_type_are_refused_before_a_task_runs(
    url: str, option: str, column: pa.Array, complaint: str
) -> None:
    with pytest.raises(CallerError, match=complaint):
        writer_of(url, pa.record_batch({"body": pa.array(["a"]), "x": column}), **{option: "x"})


def test_a_queue_that_is_not_a_text_is_refused_before_a_task_runs(url: str) -> None:
    with pytest.raises(CallerError, match="queue must be a text with the name of a queue, got the type bigint"):
        writer_of(url, pa.record_batch({"body": pa.array(["a"]), "queue": pa.array([5])}), queue=None)


@pytest.mark.parametrize(("options", "found"), [({"uniqueColumn": "id"}, 4), ({}, 5)])
def test_rows_that_come_in_other_partitions_are_known_by_their_own_key_alone(
    url: str, store: blocking.Store, options: dict[str, str], found: int
) -> None:
    rows = pa.record_batch({"id": pa.array(["1", "2", "3", "4"]), "body": pa.array(["a", "b", "same", "same"])})
    settings = read_settings({"url": url, "queue": "jobs", **options})
    writer = QueueStreamWriter(settings, from_arrow_schema(rows.schema))

    def run(*borders: int) -> None:
        for number, (begin, end) in enumerate(pairwise(borders)):
            with task_of("query", 0, number):
                writer.write(iter([rows.slice(begin, end - begin)]))

    run(0, 2, 4)
    run(0, 3, 4)
    assert len(bodies(store)) == found
