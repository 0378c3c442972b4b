"""Writers driven by hand, without a session: Arrow batches go in, jobs are in the queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from penstock import blocking
from penstock.errors import CallerError
from penstock.spark import sink
from penstock.spark.settings import read_settings
from penstock.spark.sink import QueueWriter


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a worker: there is a task, of a partition."""
    monkeypatch.setattr(sink.TaskContext, "get", lambda: SimpleNamespace(partitionId=lambda: 0))


def writer_of(url: str, batch: pa.RecordBatch, **options: str) -> QueueWriter:
    settings = read_settings({"url": url, "queue": "jobs", **options})
    return QueueWriter(settings, from_arrow_schema(batch.schema), overwrite=False)


def write(url: str, *batches: pa.RecordBatch, **options: str) -> int:
    return writer_of(url, batches[0], **options).write(iter(batches)).jobs


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
    with pytest.raises(CallerError, match=f"{name} is null"):
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


def test_a_row_with_a_key_of_its_own_is_added_once(url: str, store: blocking.Store) -> None:
    columns = {"body": pa.array([b"a", b"b", b"c", b"d"]), "order": pa.array([7, 7, None, None])}
    write(url, pa.record_batch(columns), uniqueColumn="order")
    assert bodies(store) == [b"a", b"c", b"d"]


def test_rows_go_to_their_own_queue_with_their_own_options(url: str, store: blocking.Store) -> None:
    headers = pa.array([[("h", "1")], None, []], pa.map_(pa.string(), pa.string()))
    columns = {
        "queue": pa.array(["one", None, "one"]),
        "body": pa.array([b"a", b"b", b"c"]),
        "headers": headers,
        "delay": pa.array([None, 0.0, 3600.0]),
    }
    write(url, pa.record_batch(columns))
    assert [(job.body, job.headers) for job in store.queue("one").peek()] == [(b"a", {"h": "1"})]
    assert store.queue("one").scheduled() == 1
    assert bodies(store) == [b"b"]


def test_rows_with_neither_body_nor_payload_are_json_objects(url: str, store: blocking.Store) -> None:
    write(url, pa.record_batch({"n": pa.array([1, 2]), "name": pa.array(["x", None])}))
    assert [job.payload for job in store.queue("jobs").jobs()] == [{"n": 1, "name": "x"}, {"n": 2, "name": None}]
