"""What a drain must not write over: folders of batches that are done, and those of other drains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

import pyarrow as pa
import pyarrow.parquet
from pyspark.errors import StreamingQueryException

from penstock import blocking
from penstock.cli.main import main
from penstock.errors import CallerError, OperatorError
from penstock.spark import parquet
from penstock.spark.drain import end_drain, locked, start_drain, wait_for
from tests.processes import wait_until
from tests.spark.parquet_rows import numbers_in

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def push(store: blocking.Store, *numbers: int) -> None:
    store.queue("jobs").push_many({"n": number} for number in numbers)


def drain(spark: Any, url: str, directory: Path, **options: Any) -> None:
    wait_for(start_drain(spark, url, "jobs", str(directory), **options))


def forget_commit(directory: Path, number: int) -> None:
    """As if the driver had died before Spark could log the batch as done."""
    commits = directory / "_penstock" / "checkpoint" / "commits"
    (commits / str(number)).unlink()
    for crc in commits.glob(".*crc"):
        crc.unlink()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_a_batch_that_is_empty_when_it_is_run_again_leaves_its_folder(
    spark: Any, url: str, store: blocking.Store, out: Path
) -> None:
    push(store, 1, 2, 3)
    drain(spark, url, out)
    forget_commit(out, 0)
    drain(spark, url, out)
    assert numbers_in(out) == [1, 2, 3]


def test_a_drain_that_goes_on_makes_few_large_files_with_times_in_utc(
    spark: Any, url: str, store: blocking.Store, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MERGE_EVERY", 2)
    push(store, *range(9))
    query = start_drain(spark, url, "jobs", str(out), follow=True, every=3600, jobs_max=2)
    try:
        wait_until(lambda: [one for one in query.recentProgress if one.batchId == 3 and one.numInputRows], 120.0)
    finally:
        query.stop()
    latest = json.loads(query.lastProgress.sources[0].latestOffset)
    end_drain(query, url)
    assert (latest["backlog"], latest["leases_lost"]) == (1, 0)
    assert store.queue("jobs").total() == 1  # it waits for another, or for an hour
    assert sorted(path.name for path in out.glob("batch=*")) == ["batch=1", "batch=2", "batch=3"]
    assert len(numbers_in(out)) == 8
    for path in out.glob("batch=*/*.parquet"):
        columns = pyarrow.parquet.ParquetFile(path).schema
        created = next(columns.column(at) for at in range(len(columns)) if columns.column(at).name == "created")
        assert "isAdjustedToUTC=true, timeUnit=microseconds" in str(created.logical_type)
    drain(spark, url, out)
    assert numbers_in(out) == list(range(9))


def test_a_merge_that_was_killed_is_finished_when_the_drain_starts(out: Path) -> None:
    for number in range(2):
        (out / f"batch={number}").mkdir(parents=True)
        pyarrow.parquet.write_table(pa.table({"id": [str(number)]}), out / f"batch={number}" / "part-0.parquet")
    parquet._prepare(out, [out / "batch=0", out / "batch=1"], pa.schema([("id", pa.string())]))
    offsets = out / "_penstock" / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").touch()
    with locked(str(out)):
        assert [path.name for path in out.glob("batch=*")] == ["batch=1"]


def test_a_folder_with_other_jobs_stops_the_drain_before_any_is_lost(
    spark: Any, url: str, store: blocking.Store, out: Path
) -> None:
    push(store, 1, 2)
    drain(spark, url, out)
    (out / "batch=0").rename(out / "batch=1")
    push(store, 3)
    with pytest.raises(StreamingQueryException, match="has jobs of another drain"):
        drain(spark, url, out)
    assert numbers_in(out) == [1, 2]
    assert store.queue("jobs").total() == 1


def test_a_folder_with_batches_and_no_log_is_refused_before_jobs_are_taken(
    spark: Any, url: str, store: blocking.Store, out: Path
) -> None:
    push(store, 1, 2)
    drain(spark, url, out)
    (out / "_penstock").rename(out.parent / "gone")
    push(store, 3)
    with pytest.raises(CallerError, match="not its log"):
        drain(spark, url, out)
    with pytest.raises(CallerError, match="not its log"), locked(str(out)):
        pass
    assert numbers_in(out) == [1, 2]
    assert store.queue("jobs").size() == 1


def test_a_second_drain_into_a_directory_is_refused_until_the_first_has_ended(out: Path) -> None:
    refused = pytest.raises(CallerError, match="another drain is writing into")
    with locked(str(out)), refused, locked(str(out)):
        pass
    with locked(str(out)):
        pass


def test_a_directory_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = pytest.raises(OperatorError, match=f"can't write into {tmp_path}/file/out")
    with refused, locked(f"{tmp_path}/file/out"):
        pass


def test_a_time_between_batches_is_for_a_drain_that_goes_on(
    url: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["spark", "drain", url, "jobs", "--to", f"parquet:{out}", "--every", "5s"])
    assert "--every needs --follow" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["spark", "drain", url, "jobs", "--to", f"parquet:{out}", "--follow", "--every", "5"])
    assert "--every must be a time such as 60s" in capsys.readouterr().err
    assert not out.exists()


def test_the_command_line_refuses_a_second_drain_as_a_mistake_of_the_user(
    url: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with blocking.connect(url) as store:
        store.queue("jobs").push(1)
    with locked(str(out)), pytest.raises(SystemExit) as end:
        main(["spark", "drain", url, "jobs", "--to", f"parquet:{out}"])
    assert end.value.code == 2
    assert "another drain is writing into" in capsys.readouterr().err


def test_a_drain_of_a_wrong_path_is_refused_and_leaves_nothing_there(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs").mkdir()
    with pytest.raises(SystemExit) as end:
        main(["spark", "drain", f"sqlite:///{tmp_path}/jobs/jbos.db", "mail", "--to", f"parquet:{out}"])
    assert end.value.code == 2
    assert "jbos.db doesn't exist: check the path" in capsys.readouterr().err
    assert list((tmp_path / "jobs").iterdir()) == []
