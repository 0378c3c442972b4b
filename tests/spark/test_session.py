"""Queues in a real Spark: looks, streams, writes, dead letters, drain and fill, and the examples."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

from pyspark.errors import PySparkException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from penstock import blocking
from penstock.cli.spark import quiet
from penstock.spark.dead_letters import is_retriable, isolating, split, to_dead_letters, trying
from penstock.spark.drain import fill, start_drain, wait_for
from penstock.spark.listener import AckListener, ack_last_batch
from penstock.spark.session import DRIVER_MEMORY
from tests.processes import wait_until
from tests.spark.parquet_rows import numbers_in

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def stream(spark: Any, url: str, queue: str = "jobs", **options: Any) -> DataFrame:
    reader = spark.readStream.format("penstock").option("url", url).option("queue", queue)
    for name, value in options.items():
        reader = reader.option(name, value)
    loaded: DataFrame = reader.load()
    return loaded


def run_now(rows: DataFrame, handle: Any, checkpoint: Path) -> None:
    writer = rows.writeStream.foreachBatch(handle).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def test_a_read_shows_jobs_of_all_states_and_changes_nothing(spark: Any, url: str, store: blocking.Store) -> None:
    queue = store.queue("jobs")
    queue.push({"n": 1}, headers={"color": "red", "size": 3})
    queue.push(b"\xff\x00", delay=3600)
    queue.push("taken")
    queue.reserve_many(1)
    before = queue.sizes()
    rows = {
        row.state: row
        for row in spark.read.format("penstock").option("url", url).option("queue", "jobs").load().collect()
    }
    assert set(rows) == {"ready", "scheduled", "reserved"}
    assert rows["reserved"].payload == '{"n":1}'
    assert rows["reserved"].headers == {"color": "red", "size": "3"}
    assert (rows["scheduled"].body, rows["scheduled"].payload) == (b"\xff\x00", None)
    assert rows["ready"].queue == "jobs"
    assert queue.sizes() == before


@pytest.mark.parametrize("is_sql", [True, False])
def test_a_command_prints_no_stack_of_a_wrong_query(
    spark: Any, capfd: pytest.CaptureFixture[str], is_sql: bool
) -> None:
    with quiet(False), pytest.raises(PySparkException):
        spark.sql("select * from nope") if is_sql else spark.range(1).where("nope > 1").collect()
    assert "nope" not in capfd.readouterr().err


def test_the_driver_has_more_memory_than_spark_sets_by_itself(spark: Any) -> None:
    if os.environ.get("SPARK_DRIVER_MEMORY") != DRIVER_MEMORY:
        pytest.skip("the environment says how much")
    assert spark._jvm.java.lang.Runtime.getRuntime().maxMemory() > 1.5 * 1024**3


def test_columns_leave_bodies_out(spark: Any, url: str, store: blocking.Store) -> None:
    store.queue("jobs").push("x")
    reader = spark.read.format("penstock").option("url", url).option("queue", "jobs").option("columns", "id, tries")
    assert reader.load().columns == ["id", "tries"]
    assert reader.load().count() == 1


def test_a_drain_puts_every_job_once_into_plain_parquet(
    spark: Any, url: str, store: blocking.Store, tmp_path: Path
) -> None:
    queue = store.queue("jobs")
    queue.push_many({"n": number} for number in range(250))
    moved: list[int] = []
    wait_for(start_drain(spark, url, "jobs", f"{tmp_path}/out", jobs_max=100), moved=moved.append)
    assert (moved, queue.total()) == ([100, 100, 50], 0)
    assert numbers_in(tmp_path / "out") == list(range(250))


def test_what_was_drained_can_be_filled_in_again(spark: Any, url: str, store: blocking.Store, tmp_path: Path) -> None:
    store.queue("jobs").push_many([{"n": 1}, b"\xff", "text"], headers={"a": "1"})
    wait_for(start_drain(spark, url, "jobs", f"{tmp_path}/out"))
    assert fill(spark, url, "again", f"{tmp_path}/out").rows == 3
    keyed = spark.createDataFrame([("a", "k1"), ("b", "k2"), ("c", "k2")], "body string, key string")
    keyed.write.parquet(f"{tmp_path}/keyed")
    unique = {"uniqueColumn": "key"}
    done = fill(spark, url, "keyed", f"{tmp_path}/keyed", options=unique, count_file=f"{tmp_path}/count")
    assert (done.rows, done.added) == (3, 2)
    jobs = list(store.queue("again").jobs())
    assert sorted(job.body for job in jobs) == [b'"text"', b'{"n":1}', b"\xff"]
    assert {job.headers["a"] for job in jobs} == {"1"}


def test_a_fill_that_is_run_again_adds_what_is_missing(
    spark: Any, url: str, store: blocking.Store, tmp_path: Path
) -> None:
    # Rows that are alike, so that only their places tell them apart; and no body.
    spark.createDataFrame([("x", 95), ("x", 95), ("y", 0)], "flight string, delay int").coalesce(1).write.parquet(
        f"{tmp_path}/flights"
    )

    def run(**how: Any) -> int | None:
        return fill(spark, url, "flights", f"{tmp_path}/flights", count_file=f"{tmp_path}/count", **how).added

    assert run() == 3
    [job] = store.queue("flights").reserve_many(1)
    job.ack()
    assert run() == 0
    assert run(again=True) == 3
    assert job.payload == {"flight": "x", "delay": 95}
    assert store.queue("flights").size() == 5


def test_rows_are_written_as_jobs_with_their_own_options(spark: Any, url: str, store: blocking.Store) -> None:
    rows = spark.createDataFrame(
        [("a", 0.0, {"h": "1"}, "k1"), ("b", 3600.0, None, "k2"), ("a", 0.0, None, "k1")],
        "body string, wait double, labels map<string,string>, key string",
    )
    writer = rows.coalesce(1).write.format("penstock").option("url", url).option("queue", "jobs")
    columns = {"delayColumn": "wait", "headersColumn": "labels", "uniqueColumn": "key"}
    writer.options(**columns).mode("append").save()
    queue = store.queue("jobs")
    assert [(job.body, job.headers) for job in queue.peek()] == [(b"a", {"h": "1"})]
    assert queue.scheduled() == 1


def test_rows_without_a_body_are_json(spark: Any, url: str, store: blocking.Store) -> None:
    rows = spark.createDataFrame([("one", {"a": 1}), ("two", {})], "queue string, n map<string,int>")
    rows.write.format("penstock").option("url", url).mode("append").save()
    assert [store.queue(name).pop(0).payload for name in ("one", "two")] == [{"n": {"a": 1}}, {"n": {}}]  # type: ignore[union-attr] # there is a job


def test_sql_inserts_jobs_into_a_view(spark: Any, url: str, store: blocking.Store) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW mail USING penstock OPTIONS (url '{url}', queue 'mail')")
    spark.sql("""INSERT INTO mail (payload) VALUES ('{"to": "ann"}'), ('{"to": "bob"}')""")
    spark.sql("INSERT INTO mail (body) VALUES (X'FF00')")
    assert sorted(job.body for job in store.queue("mail").jobs()) == [b'{"to": "ann"}', b'{"to": "bob"}', b"\xff\x00"]
    assert spark.sql("SELECT count(*) FROM mail WHERE state = 'ready'").collect() == [(3,)]


def test_a_stream_of_whole_jobs_goes_to_the_queue_of_the_option(
    spark: Any, url: str, store: blocking.Store, tmp_path: Path
) -> None:
    store.queue("jobs").push_many(range(3))
    writer = stream(spark, url).writeStream.format("penstock").option("url", url).option("queue", "copies")
    query = writer.option("checkpointLocation", f"{tmp_path}/log").trigger(availableNow=True).start()
    query.awaitTermination()
    assert [store.queue(name).total() for name in ("jobs", "copies")] == [0, 3]


@pytest.mark.parametrize("by", ["write", "writeStream"])
def test_a_batch_that_is_written_to_a_queue_again_adds_no_job_twice(
    spark: Any, url: str, store: blocking.Store, tmp_path: Path, by: str
) -> None:
    store.queue("jobs").push_many(["same"] * 20)
    copies = {"url": url, "queue": "copies"}

    def write(batch: DataFrame, number: int) -> None:
        batch.select("body").write.format("penstock").options(**copies).mode("append").save()

    def write_and_fail(batch: DataFrame, number: int) -> None:
        write(batch, number)
        raise RuntimeError("the driver dies before it can log the batch")

    with pytest.raises(StreamingQueryException):
        run_now(stream(spark, url), write_and_fail, tmp_path / "checkpoint")
    assert store.queue("copies").size() == 20
    assert store.queue("jobs").sizes().reserved == 20
    if by == "write":
        run_now(stream(spark, url), write, tmp_path / "checkpoint")
    else:
        writer = stream(spark, url).select("body").writeStream.format("penstock").options(**copies)
        query = writer.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
    assert [store.queue(name).total() for name in ("jobs", "copies")] == [0, 20]


def test_a_refusal_is_one_sentence(spark: Any, url: str, tmp_path: Path) -> None:
    def look() -> None:
        spark.read.format("penstock").option("url", f"{url}.typo").option("queue", "jobs").load().collect()

    def write() -> None:
        rows = spark.createDataFrame([("a",), (None,)], "body string")
        rows.write.format("penstock").option("url", url).option("queue", "jobs").mode("append").save()

    def misspell() -> None:
        spark.read.format("penstock").option("url", url).option("queeu", "jobs").load()

    def forget() -> None:
        rows = spark.readStream.format("penstock").option("url", url).load()
        run_now(rows, lambda batch, number: None, tmp_path / "checkpoint")

    for call, sentence in (
        (look, "must be a file that exists"),
        (write, "a job must have a body"),
        (misspell, "got queeu"),
        (forget, "needs the option queue"),
    ):
        with pytest.raises(PySparkException) as caught:
            call()
        assert sentence in str(caught.value)
        assert "Traceback" not in str(caught.value)
        assert "sink.py" not in str(caught.value)


def test_jobs_that_a_function_can_not_read_go_to_the_dead_letters(
    spark: Any, url: str, store: blocking.Store, tmp_path: Path
) -> None:
    store.queue("jobs").push_many([{"n": 1}, b"{bad", {"n": 2}])
    number_of = trying(lambda body: json.loads(bytes(body))["n"], "int")
    seen: list[int] = []

    def handle(batch: DataFrame, number: int) -> None:
        good, bad = split(batch.withColumn("n", number_of("body")), "n")
        seen.extend(row.n for row in good.select("n").collect())
        assert to_dead_letters(bad, url, "jobs") == 1

    run_now(stream(spark, url), handle, tmp_path / "checkpoint")
    [dead] = store.dead_letters().peek()
    assert sorted(seen) == [1, 2]
    assert (dead.body, dead.headers["x-dl-from-queue"]) == (b"{bad", "jobs")
    assert "JSONDecodeError" in dead.headers["x-dl-error"]
    assert store.queue("jobs").total() == 0


def test_a_batch_that_fails_is_cut_until_the_job_is_found(
    spark: Any, url: str, store: blocking.Store, tmp_path: Path
) -> None:
    # More than the first claim of a batch has.
    store.queue("jobs").push_many([{"n": number} if number != 15 else b"poison" for number in range(16)])
    seen: set[int] = set()

    def write(batch: DataFrame, number: int) -> None:
        seen.update(json.loads(bytes(row.body))["n"] for row in batch.select("body").collect())

    run_now(stream(spark, url), isolating(write, url, "jobs"), tmp_path / "checkpoint")
    assert seen == set(range(15))
    assert [job.body for job in store.dead_letters().peek()] == [b"poison"]


def down(batch: DataFrame, number: int) -> None:
    raise ConnectionRefusedError("the target is down")


def test_a_query_stops_where_no_job_of_a_batch_succeeded(
    spark: Any, url: str, store: blocking.Store, tmp_path: Path
) -> None:
    store.queue("jobs").push_many(range(4))
    listener = AckListener(url)
    spark.streams.addListener(listener)
    try:
        with pytest.raises(StreamingQueryException, match="none of the 4 jobs of batch 0 could be processed"):
            run_now(stream(spark, url), isolating(down, url, "jobs"), tmp_path / "checkpoint")
    finally:
        spark.streams.removeListener(listener)
        listener.close()
    assert store.dead_letters().total() == 0
    assert store.queue("jobs").total() == 4
    # When the target is back the same jobs are processed.
    seen: list[int] = []
    run_now(stream(spark, url), lambda batch, number: seen.append(batch.count()), tmp_path / "checkpoint")
    assert (seen, store.queue("jobs").total()) == ([4], 0)


def test_an_error_that_is_named_as_retriable_stops_the_query(
    spark: Any, url: str, store: blocking.Store, tmp_path: Path
) -> None:
    """Though other jobs succeed, and though it is raised in a task."""
    store.queue("jobs").push_many([{"n": number} for number in range(4)])

    def send(n: str) -> str:
        if "3" in n:
            raise ConnectionRefusedError("the target is down")
        return n

    def handle(batch: DataFrame, number: int) -> None:
        batch.select(f.udf(send, "string")("payload")).collect()

    guarded = isolating(handle, url, "jobs", retriable=[ConnectionError])
    with pytest.raises(StreamingQueryException, match="the target is down"):
        run_now(stream(spark, url), guarded, tmp_path / "checkpoint")
    assert (store.dead_letters().total(), store.queue("jobs").total()) == (0, 4)
    run_now(stream(spark, url), isolating(handle, url, "jobs", retriable=[TimeoutError]), tmp_path / "checkpoint")
    assert [job.payload for job in store.dead_letters().peek()] == [{"n": 3}]


def test_a_single_job_is_given_up_when_it_is_said_which_errors_are_not_its_fault(
    spark: Any, url: str, store: blocking.Store, tmp_path: Path
) -> None:
    def fail(batch: DataFrame, number: int) -> None:
        raise ValueError("no good")

    store.queue("jobs").push("poison")
    run_now(stream(spark, url), isolating(fail, url, "jobs", retriable=[OSError]), tmp_path / "checkpoint")
    assert (store.dead_letters().total(), store.queue("jobs").total()) == (1, 0)


@pytest.mark.parametrize(
    ("problem", "named", "expected"),
    [
        (ConnectionRefusedError(), [ConnectionError], True),
        (ValueError(), [ConnectionError], False),
        (ValueError("java.net.ConnectException: refused"), ["java.net.ConnectException"], True),
        (PythonException("Traceback:\n  File x\nConnectionResetError: [Errno 104]\n"), [OSError], True),
        (PythonException("Traceback:\n  File x\njson.decoder.JSONDecodeError: no\n"), [ValueError], True),
        (PythonException("Traceback:\n  File x\nKeyError: 'ConnectionError'\n"), [OSError], False),
    ],
)
def test_errors_are_retriable_by_type_by_text_and_by_what_spark_says(
    problem: Exception, named: list[Any], expected: bool
) -> None:
    wrapped = RuntimeError("while writing")
    wrapped.__cause__ = problem
    assert (is_retriable(problem, named), is_retriable(wrapped, named)) == (expected, expected)


def count(batch: DataFrame, number: int) -> None:
    batch.count()


def test_a_listener_acks_the_batch_of_a_query_that_runs_once(
    spark: Any, url: str, store: blocking.Store, tmp_path: Path
) -> None:
    store.queue("jobs").push_many(range(3))
    listener = AckListener(url)
    spark.streams.addListener(listener)
    try:
        writer = stream(spark, url).writeStream.foreachBatch(count).option("checkpointLocation", f"{tmp_path}/log")
        writer.trigger(once=True).start().awaitTermination()
        wait_until(lambda: store.queue("jobs").total() == 0)
    finally:
        spark.streams.removeListener(listener)
        listener.close()


def test_the_last_batch_of_a_query_that_was_stopped_can_be_acked(
    spark: Any, url: str, store: blocking.Store, tmp_path: Path
) -> None:
    store.queue("jobs").push_many(range(3))
    writer = stream(spark, url).writeStream.foreachBatch(count).option("checkpointLocation", f"{tmp_path}/log")
    query = writer.trigger(processingTime="1 hour").start()
    try:
        wait_until(lambda: query.lastProgress, 120.0)
    finally:
        query.stop()
    assert store.queue("jobs").reserved() == 3
    assert (ack_last_batch(query, url), ack_last_batch(query, url)) == (3, 0)
    assert store.queue("jobs").total() == 0


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def keep_session(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples end the session, which here is everybody's."""
    monkeypatch.setattr(type(spark), "stop", lambda self: None)


@pytest.mark.usefixtures("keep_session")
def test_the_example_that_drains_to_parquet(
    url: str, store: blocking.Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.queue("clicks").push_many({"page": number} for number in range(30))
    example("drain_to_parquet").main(url, "clicks", f"{tmp_path}/out")
    assert "30 jobs" in capsys.readouterr().out


@pytest.mark.usefixtures("keep_session")
def test_the_example_that_enriches(url: str, store: blocking.Store) -> None:
    store.queue("orders").push_many([{"item": "pear", "count": 2}, {"item": "stone", "count": 1}])
    example("enrich").main(url, "orders", "priced")
    assert [job.payload for job in store.queue("priced").jobs()] == [{"item": "pear", "count": 2, "price": 10}]
    assert [job.payload["item"] for job in store.dead_letters().jobs()] == ["stone"]


@pytest.mark.usefixtures("keep_session")
def test_the_example_that_redrives_by_sql(url: str, store: blocking.Store, capsys: pytest.CaptureFixture[str]) -> None:
    for error in ("a timeout", "no such address"):
        store.queue("mail").push(error)
        store.queue("mail").reserve(0).fail(error)  # type: ignore[union-attr] # there is a job
    example("redrive_by_sql").main(url, "error LIKE '%timeout%' AND from_queue = 'mail'")
    assert capsys.readouterr().out.endswith("1 sent back\n")
    assert [job.payload for job in store.queue("mail").jobs()] == ["a timeout"]
