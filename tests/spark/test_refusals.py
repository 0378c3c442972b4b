"""What `format("penstock")` refuses when a query is made: options that mean nothing there, and columns that aren't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from penstock.errors import CallerError
from penstock.spark.looking import QueueLook
from penstock.spark.settings import read_settings
from penstock.spark.source import PenstockSource

IDS = StructType([StructField("id", StringType())])
BODIES = StructType([StructField("body", StringType())])


def made(use: str, url: str, schema: StructType | None = None, **options: str) -> Any:
    """What Spark asks the source for."""
    source = PenstockSource({"url": url, **options})
    if use == "look":
        return source.reader(schema or IDS)
    if use == "stream":
        return source.streamReader(schema or IDS)
    return source.writer(schema or BODIES, False) if use == "write" else source.streamWriter(schema or BODIES, False)


@pytest.mark.parametrize(
    ("use", "options", "complaint"),
    [
        ("stream", {"queue": "a", "queues": "b"}, "the option queues is for spark.read, and not for spark.readStream"),
        ("stream", {"queue": "a", "states": "ready"}, "the option states is for spark.read"),
        ("stream", {"queue": "a", "pushdown": "true"}, "the option pushdown is for spark.read"),
        ("look", {"queue": "a", "queues": "b"}, "both of the options queue and queues"),
        ("look", {"queue": "a", "states": ""}, "states is empty"),
        ("look", {"queue": "a", "LEASE": "5"}, "the option lease is for spark.readStream, and not for spark.read"),
        ("write", {"queue": "a", "columns": "id"}, "the option columns is for spark.read and spark.readStream"),
        ("stream write", {"queue": "a", "states": "ready"}, "the option states"),
    ],
)
def test_options_that_would_be_ignored_are_refused(url: str, use: str, options: dict[str, str], complaint: str) -> None:
    with pytest.raises(CallerError, match=complaint):
        made(use, url, **options)


@pytest.mark.parametrize("use", ["look", "stream", "write", "stream write"])
def test_memory_is_refused_as_spark_has_several_processes(use: str) -> None:
    with pytest.raises(CallerError, match="lives in one process"):
        made(use, "memory:jobs", queue="a")


@pytest.mark.parametrize("use", ["look", "stream", "write", "stream write"])
def test_a_store_that_processes_share_is_taken(url: str, use: str) -> None:
    made(use, url, queue="a")


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [("id,id", "names id twice"), (" , ", "names no column"), ("", "names no column"), ("id,foo", "no column foo")],
)
def test_columns_that_can_not_be_are_refused_by_their_names(url: str, columns: str, complaint: str) -> None:
    with pytest.raises(CallerError, match=complaint):
        PenstockSource({"url": url, "columns": columns}).schema()


@pytest.mark.parametrize("use", ["look", "stream"])
@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        (StructField("foo", IntegerType()), "no column foo"),
        (StructField("tries", StringType()), "the column tries is of type int, not string"),
    ],
)
def test_a_schema_of_other_columns_is_refused(url: str, use: str, field: StructField, complaint: str) -> None:
    with pytest.raises(CallerError, match=complaint):
        made(use, url, StructType([*IDS.fields, field]), queue="a")


def test_a_look_at_a_file_that_is_not_there_makes_none(tmp_path: Path) -> None:
    look = QueueLook(read_settings({"url": f"sqlite:///{tmp_path}/typo.db", "queue": "a"}), ["id"])
    with pytest.raises(CallerError, match="there is no file"):
        look.partitions()
    assert list(tmp_path.iterdir()) == []
