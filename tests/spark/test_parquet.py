"""Folders of Parquet files: a lost checkpoint loses no job, and a merge of small ones loses and doubles none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

import pyarrow as pa
import pyarrow.parquet

from penstock import blocking
from penstock.errors import CallerError
from penstock.spark import parquet
from penstock.spark.parquet import merge, to_parquet
from tests.spark.parquet_rows import numbers_in

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

MERGING = Path(__file__).with_name("merging.py")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def folder(directory: Path, number: int, *ids: str, **columns: Any) -> Path:
    """The finished folder of a batch."""
    made = directory / f"batch={number}"
    made.mkdir(parents=True)
    pa.parquet.write_table(pa.table({"id": list(ids), **columns}), made / "part-0.parquet")
    (made / "_SUCCESS").touch()
    return made


def ids_in(directory: Path) -> list[str]:
    return sorted(pa.parquet.read_table(directory)["id"].to_pylist())


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("_"))


# Merging.


def test_small_folders_are_merged_into_one_named_after_the_last(tmp_path: Path) -> None:
    for number in range(4):
        folder(tmp_path, number, f"{number}a", f"{number}b")
    unfinished = folder(tmp_path, 4, "4a")
    (unfinished / "_SUCCESS").unlink()
    folder(tmp_path, 5, "5a")
    merge(tmp_path, 5)
    assert names_in(tmp_path) == ["batch=3", "batch=4", "batch=5"]
    assert ids_in(tmp_path) == ["0a", "0b", "1a", "1b", "2a", "2b", "3a", "3b", "4a", "5a"]
    (unfinished / "_SUCCESS").touch()
    merge(tmp_path, 6)
    assert names_in(tmp_path) == ["batch=5"]
    assert parquet._covered(tmp_path / "batch=5") == [0, 1, 2, 3, 4, 5]
    assert len(ids_in(tmp_path)) == 10


def test_large_folders_and_those_with_other_columns_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "SMALL_BYTES", 5000)
    for number in (0, 2):
        folder(tmp_path, number, f"{number}")
    folder(tmp_path, 1, "1", body=[os.urandom(10_000)])
    folder(tmp_path, 3, "3", tries=[1])
    merge(tmp_path, 4)
    assert names_in(tmp_path) == ["batch=1", "batch=2", "batch=3"]
    assert ids_in(tmp_path) == ["0", "1", "2", "3"]


def test_old_times_become_times_in_utc(tmp_path: Path) -> None:
    for number, is_old in enumerate((True, False)):
        made = folder(tmp_path, number, str(number))
        table = pa.table({"id": [str(number)], "created": pa.array([NOON], pa.timestamp("us", "UTC"))})
        pa.parquet.write_table(table, made / "part-0.parquet", use_deprecated_int96_timestamps=is_old)
    merge(tmp_path, 2)
    file = pa.parquet.ParquetFile(tmp_path / "batch=1" / "part-00000.parquet")
    assert str(file.schema.column(1).logical_type).startswith("Timestamp(isAdjustedToUTC=true, timeUnit=microseconds")
    assert file.read()["created"].to_pylist() == [NOON, NOON]


def test_a_merge_that_is_killed_anywhere_loses_and_doubles_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, MERGING, tmp_path], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    kills = [json.loads(line) for line in done.stdout.splitlines()]
    assert {tuple(ids) for ids, _ in kills} == {("0a", "0b", "1a", "1b", "2a", "2b")}
    assert [names for _, names in kills][:1] == [["batch=0", "batch=1", "batch=2"]]
    assert {tuple(names) for _, names in kills} == {("batch=0", "batch=1", "batch=2"), ("batch=2",)}
    assert len(kills) > 10


# In Spark.


def run_now(spark: Any, url: str, handle: Any, checkpoint: Path, **options: Any) -> None:
    given = {"url": url, "queue": "jobs", **options}
    rows = spark.readStream.format("penstock").options(**given).load()
    writer = rows.writeStream.foreachBatch(handle).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize("options", [{}, {"owner": "reports"}])
def test_a_lost_checkpoint_loses_no_job(
    spark: Any, url: str, store: blocking.Store, tmp_path: Path, options: dict[str, str]
) -> None:
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    for numbers in (range(3), range(3, 5), range(5, 6)):
        store.queue("jobs").push_many({"n": number} for number in numbers)
        run_now(spark, url, to_parquet(str(out), lambda batch: batch.select("id", "body")), checkpoint, **options)
        shutil.rmtree(checkpoint)
    assert store.queue("jobs").total() == 0
    assert numbers_in(out) == list(range(6))


def test_a_batch_that_is_run_again_is_written_once(spark: Any, tmp_path: Path) -> None:
    def batch(run: str, *ids: str) -> Any:
        return spark.createDataFrame([(one, f"spark:{run}:1") for one in ids], "id string, claim string")

    def check(*runs: str) -> None:
        assert names_in(tmp_path) == [f"run={run}" for run in runs]

    write = to_parquet(str(tmp_path), lambda rows: rows.select("id"))
    write(batch("x", "a", "b", "c"), 0)
    write(batch("x", "a", "c"), 0)  # another worker took one of them when the lease was over: it stays in the folder
    write(batch("x"), 0)
    check("x")
    assert ids_in(tmp_path) == ["a", "b", "c"]
    (tmp_path / "run=x" / "batch=0" / "_SUCCESS").unlink()  # the driver died in the middle of it
    write(batch("x", "a", "c"), 0)
    assert ids_in(tmp_path) == ["a", "c"]
    write(batch("x", "d"), 0)
    write(batch("x", "d"), 0)
    write(batch("y", "e"), 0)
    check("x", "x-2", "y")
    assert ids_in(tmp_path) == ["a", "c", "d", "e"]
    # As `isolating` does it: halves, and after a crash the batch as a whole.
    write(batch("z", "g", "h"), 0)
    write(batch("z", "i"), 0)
    write(batch("z", "g", "h", "i"), 0)
    write(batch("z", "h", "i", "j"), 0)
    check("x", "x-2", "y", "z", "z-2", "z-3")
    assert ids_in(tmp_path) == ["a", "c", "d", "e", "g", "h", "i", "j"]
    # A batch that was merged is known by the folder that has it now.
    merged = tmp_path / "run=y"
    write(batch("y", "f"), 1)
    merge(merged, 2)
    write(batch("y", "e"), 0)
    assert names_in(merged) == ["batch=1"]
    with pytest.raises(CallerError, match="must have the column id"):
        to_parquet(str(tmp_path), lambda rows: rows.select("claim"))(batch("x", "a"), 0)
    with pytest.raises(CallerError, match="must be that of the stream"):
        write(batch("x", "a").selectExpr("id", "'mine' AS claim"), 0)
    with pytest.raises(CallerError, match="must have the column claim"):
        write(batch("x", "a").select("id"), 0)
