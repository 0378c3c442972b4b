"""`penstock spark` without Spark: its settings, and how it speaks of Spark's errors."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event
from types import ModuleType

import pytest

from penstock import blocking
from penstock.cli import spark
from penstock.errors import CallerError, OperatorError


class SparkError(Exception):
    """As those of Spark are: many lines."""


SparkError.__module__ = "pyspark.errors.exceptions.captured"


class Session:
    stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """What stands in for a session."""
    made = Session()
    module = ModuleType("penstock.spark.session")
    vars(module)["local_session"] = lambda name, master, settings: made
    monkeypatch.setitem(sys.modules, "penstock.spark.session", module)
    return made


@contextmanager
def running(loud: bool) -> Iterator[Session]:
    with spark.spark_session("penstock spark", "local[1]", None, loud) as made:
        yield made


def test_a_setting_is_what_stands_before_and_after_the_first_equals_sign() -> None:
    words = ["spark.cores.max=2", "spark.driver.extraJavaOptions=-Da=b"]
    assert spark._pairs("--conf", words, "a=b") == {"spark.cores.max": "2", "spark.driver.extraJavaOptions": "-Da=b"}
    assert spark._pairs("--conf", None, "a=b") == {}


@pytest.mark.parametrize("word", ["spark.cores.max", "=2", ""])
def test_a_setting_without_a_key_or_a_value_is_refused(word: str) -> None:
    with pytest.raises(CallerError, match=f"--conf must be KEY=VALUE, as in --conf a=b, got {word}"):
        spark._pairs("--conf", [word], "a=b")


def test_of_an_error_of_spark_the_first_line_is_said(session: Session) -> None:
    with pytest.raises(OperatorError) as caught, running(loud=False):
        raise SparkError("[STREAM_FAILED] the store is gone\n  at java\n  at more java")
    assert str(caught.value) == "Spark failed: [STREAM_FAILED] the store is gone (--spark-log shows the rest)"
    assert session.stopped


TRACE = """[STREAM_FAILED] Query [id = 1] terminated with exception: Failed to plan: Traceback (most recent call last):
  File "worker.py", line 1, in main
    read()
    ^^^^^^
{} SQLSTATE: 38000
\tat org.apache.spark.Streaming.run(Streaming.scala:1)
Caused by: java.io.IOException: broken pipe
"""


@pytest.mark.parametrize(
    ("last", "kind", "said"),
    [
        ("penstock.errors.BadPayload: the column x is odd", CallerError, "the column x is odd"),
        ("penstock.errors.StoreError: disk full", OperatorError, "Spark failed: disk full"),
        ("ValueError: no number", OperatorError, "Spark failed: ValueError: no number (--spark-log shows the rest)"),
    ],
)
def test_of_a_traceback_the_sentence_at_its_end_is_said(
    session: Session, last: str, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind) as caught, running(loud=False):
        raise SparkError(TRACE.format(last))
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["drain", "sqlite:///{}/jobs.db", "jobs", "--to", "parquet:{}/out", "--lease", "0"], "the option lease"),
        (["drain", "memory:", "jobs", "--to", "parquet:{}/out"], "a store that processes can share"),
        (["fill", "memory:jobs", "jobs", "--from", "parquet:{}"], "a store that processes can share"),
        (
            ["fill", "sqlite:///{}/j.db", "jobs", "--from", "parquet:{}", "--option", "delay"],
            "--option must be KEY=VALUE",
        ),
        (
            ["fill", "sqlite:///{}/j.db", "jobs", "--from", "parquet:{}", "--option", "use=x"],
            "got use",
        ),
    ],
)
def test_options_that_can_not_be_are_refused_before_spark_starts(
    words: list[str], complaint: str, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")
    with pytest.raises(CallerError, match=complaint):
        spark.run([word.format(tmp_path) for word in words])
    assert list(tmp_path.iterdir()) == []


def test_with_its_log_an_error_of_spark_comes_whole(session: Session) -> None:
    with pytest.raises(SparkError, match="more java"), running(loud=True):
        raise SparkError("[STREAM_FAILED] the store is gone\n  at more java")
    assert session.stopped


def test_errors_of_ours_are_left_alone(session: Session) -> None:
    with pytest.raises(CallerError, match="as it was"), running(loud=False):
        raise CallerError("as it was")
    assert session.stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_query_of_a_drain_starts_stops_it(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drain = pytest.importorskip("penstock.spark.drain")
    url = f"sqlite:///{tmp_path}/jobs.db"
    with blocking.connect(url) as store:
        store.queue("q").push("work")
    stopped: list[bool] = []

    def wait_for(query: object, stop: Event, moved: object) -> None:
        stopped.append(stop.is_set())

    monkeypatch.setattr(spark, "spark_session", lambda *_: nullcontext())
    monkeypatch.setattr(drain, "start_drain", lambda *_, **__: os.kill(os.getpid(), number))
    monkeypatch.setattr(drain, "wait_for", wait_for)
    monkeypatch.setattr(drain, "end_drain", lambda *_: None)
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        # What the program has is Spark's handler, which raises.
        signal.signal(number, signal.default_int_handler)
        assert spark.run(["drain", url, "q", "--to", f"parquet:{tmp_path}/out", "--follow"]) == 0
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert stopped == [True]
