"""What a drain must not write over: folders of batches that are done, and those of other drains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

from pyspark.errors import StreamingQueryException

from penstock import blocking
from penstock.cli.main import main
from penstock.errors import CallerError, OperatorError
from penstock.spark import draining
from penstock.spark.draining import start_drain, wait_for
from tests.spark.reading import numbers_in

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


def test_a_folder_is_left_if_it_has_the_batch_or_the_batch_has_nothing(spark: Any, tmp_path: Path) -> None:
    def batch(*ids: str) -> Any:
        return spark.createDataFrame([(one, b"") for one in ids], "id string, body binary")

    folder = tmp_path / "batch=0"
    assert not draining._has_it(batch(), str(folder))
    batch("a", "b", "c").write.parquet(str(folder))
    # Some were taken by another worker, when the lease was over: they are in the folder, and stay there.
    assert draining._has_it(batch("a", "c"), str(folder))
    assert draining._has_it(batch(), str(folder))
    (folder / "_SUCCESS").unlink()
    assert not draining._has_it(batch("a", "c"), str(folder))
    assert draining._has_it(batch(), str(folder))


def test_a_folder_with_other_jobs_stops_the_drain_before_any_is_lost(
    spark: Any, url: str, store: blocking.Store, out: Path
) -> None:
    push(store, 1, 2)
    drain(spark, url, out)
    (out / "batch=0").rename(out / "batch=1")
    push(store, 3)
    with pytest.raises(StreamingQueryException, match="holds jobs of another drain"):
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
    with pytest.raises(CallerError, match="not its log"), draining.held(str(out)):
        pass
    assert numbers_in(out) == [1, 2]
    assert store.queue("jobs").size() == 1


def test_a_second_drain_into_a_directory_is_refused_until_the_first_has_ended(out: Path) -> None:
    refused = pytest.raises(CallerError, match="another drain writes into")
    with draining.held(str(out)), refused, draining.held(str(out)):
        pass
    with draining.held(str(out)):
        pass


def test_a_directory_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = pytest.raises(OperatorError, match=f"can't write into {tmp_path}/file/out")
    with refused, draining.held(f"{tmp_path}/file/out"):
        pass


def test_the_command_line_refuses_a_second_drain_as_a_mistake_of_the_user(
    url: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with draining.held(str(out)), pytest.raises(SystemExit) as end:
        main(["spark", "drain", url, "jobs", "--to", f"parquet:{out}"])
    assert end.value.code == 2
    assert "another drain writes into" in capsys.readouterr().err


def test_a_drain_of_a_wrong_path_is_refused_and_leaves_nothing_there(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs").mkdir()
    with pytest.raises(SystemExit) as end:
        main(["spark", "drain", f"sqlite:///{tmp_path}/jobs/jbos.db", "mail", "--to", f"parquet:{out}"])
    assert end.value.code == 2
    assert "jbos.db doesn't exist: check the path" in capsys.readouterr().err
    assert list((tmp_path / "jobs").iterdir()) == []
