"""What `format("penstock")` refuses when a query is made: options that mean nothing there, and columns that aren't."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from penstock import Capability
from penstock.errors import CallerError
from penstock.queues import registry
from penstock.spark.scan import QueueScan
from penstock.spark.settings import OPTIONS, read_settings
from penstock.spark.source import PenstockSource

ROOT = Path(__file__).resolve().parents[2]
IDS = StructType([StructField("id", StringType())])
BODIES = StructType([StructField("body", StringType())])


def made(use: str, url: str, schema: StructType | None = None, **options: str) -> Any:
    """What Spark asks the source for."""
    source = PenstockSource({"url": url, **options})
    if use == "read":
        return source.reader(schema or IDS)
    if use == "stream":
        return source.streamReader(schema or IDS)
    return source.writer(schema or BODIES, False) if use == "write" else source.streamWriter(schema or BODIES, False)


@pytest.mark.parametrize(
    ("use", "options", "complaint"),
    [
        ("stream", {"queue": "a", "queues": "b"}, "the option queues is for spark.read, not for spark.readStream"),
        ("stream", {"queue": "a", "states": "ready"}, "the option states is for spark.read"),
        ("stream", {"queue": "a", "pushdown": "true"}, "the option pushdown is for spark.read"),
        ("read", {"queue": "a", "queues": "b"}, "the options queue and queues can't be given together"),
        (
            "read",
            {"queue": "a", "states": ""},
            "states must name some of ready, scheduled, reserved and dead, got none",
        ),
        ("read", {"queue": "a", "LEASE": "5"}, "the option lease is for spark.readStream, not for spark.read"),
        ("write", {"queue": "a", "columns": "id"}, "the option columns is for spark.read and spark.readStream"),
        ("stream write", {"queue": "a", "states": "ready"}, "the option states"),
        ("stream write", {"queue": "a", "countFile": "n"}, "the option countFile is for a write that is not a stream"),
    ],
)
def test_options_that_would_be_ignored_are_refused(url: str, use: str, options: dict[str, str], complaint: str) -> None:
    with pytest.raises(CallerError, match=complaint):
        made(use, url, **options)


@pytest.mark.parametrize("use", ["read", "stream", "write", "stream write"])
def test_memory_is_refused_as_spark_has_several_processes(use: str) -> None:
    with pytest.raises(CallerError, match="a store that processes can share"):
        made(use, "memory:jobs", queue="a")


def test_in_a_worker_of_spark_a_refused_stream_says_why_in_its_first_call(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark loses what `streamReader` raises: it reports an UnboundLocalError."""
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # which the refusal sets
    stream = made("stream", url)
    calls: list[Callable[[], object]] = [
        stream.getDefaultReadLimit,
        stream.initialOffset,
        stream.prepareForTriggerAvailableNow,
        lambda: stream.latestOffset({}, None),
        lambda: stream.partitions({}, {}),
    ]
    for call in calls:
        with pytest.raises(CallerError, match="the format penstock needs the option queue"):
            call()
    stream.stop()
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"


@pytest.mark.parametrize("use", ["read", "stream", "write", "stream write"])
def test_a_store_that_processes_share_is_taken(url: str, use: str) -> None:
    made(use, url, queue="a")


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ("id,id", "must name each column once, got 'id,id'"),
        (" , ", "must name at least one of .*, got ' , '"),
        ("", "must name at least one of"),
        ("id,foo", "columns must name columns of .*, got foo"),
    ],
)
def test_columns_that_can_not_be_are_refused_by_their_names(url: str, columns: str, complaint: str) -> None:
    with pytest.raises(CallerError, match=complaint):
        PenstockSource({"url": url, "columns": columns}).schema()


@pytest.mark.parametrize("use", ["read", "stream"])
@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        (StructField("foo", IntegerType()), "the schema must name columns of .*, got foo"),
        (StructField("tries", StringType()), "the column tries must be of type int, got string"),
    ],
)
def test_a_schema_of_other_columns_is_refused(url: str, use: str, field: StructField, complaint: str) -> None:
    with pytest.raises(CallerError, match=complaint):
        made(use, url, StructType([*IDS.fields, field]), queue="a")


def test_a_read_of_a_file_that_is_not_there_makes_none(tmp_path: Path) -> None:
    look = QueueScan(read_settings({"url": f"sqlite:///{tmp_path}/typo.db", "queue": "a"}), ["id"])
    with pytest.raises(CallerError, match="must be a file that exists"):
        look.partitions()
    assert list(tmp_path.iterdir()) == []


def test_the_old_name_of_a_module_raises_an_error_that_says_the_new_one() -> None:
    with pytest.raises(ImportError, match=r"penstock\.spark\.failing is now penstock\.spark\.dead_letters"):
        import_module("penstock.spark.failing")


# As the page writes them. What is in SAME has another name there, or is memory, which Spark can't use.
WORDS = {"sqlite": "SQLite", "fsq": "directories", "postgresql": "PostgreSQL", "disque": "the broker"}
SAME = {"memory", "redis", "rediss", "rediss+oq", "rediss+list", "disques", "postgres"}


@pytest.mark.parametrize("scheme", sorted(registry.STORES.keys() - SAME))
def test_the_page_says_which_stores_have_claims_and_unique_keys(scheme: str) -> None:
    page = " ".join((ROOT / "docs" / "how-to" / "use-spark.md").read_text("utf-8").split())
    without_claims = page.partition("every store that has claims: all but ")[2].partition(". ")[0]
    with_keys = page.partition("or one that is made for it. ")[2].partition(" have them; ")[0]
    capabilities = registry.find("stores", scheme, "blocking").kind_of(scheme)[1]
    word = WORDS.get(scheme, f"`{scheme}:`")
    assert (word in without_claims) == (Capability.CLAIM not in capabilities)
    assert (word in with_keys) == (Capability.UNIQUE in capabilities)


def test_the_page_has_all_options() -> None:
    page = (ROOT / "docs" / "how-to" / "use-spark.md").read_text("utf-8")
    table = page.partition("\n## Options\n")[2].partition("\n### ")[0]
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE)))) == set(OPTIONS)
