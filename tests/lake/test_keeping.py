"""What needs no Spark of keeping a lake: files that nobody needs, and the commands' refusals."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from penstock.cli import lake as lake_cli
from penstock.errors import CallerError, OperatorError
from penstock.lake.quality import checks, keep
from penstock.lake.schemas import CHECKS, EVENTS, FOLDED, JOBS
from penstock.lake.table import LOG, LakeTable, locked
from penstock.lake.unused import data_files, delete, logs, replaced_files
from penstock.lake.vacuum import Keep, vacuum

NOW = datetime.now(UTC)
WEEK_AGO = time.time() - 7 * 86_400


def no_spark() -> Any:
    raise AssertionError("Spark must not start")


def empty_lake(lake: Path) -> None:
    for schema in (EVENTS, *FOLDED):
        table = LakeTable(lake, schema)
        table.create()
        table.commit(table.snapshot(), [], {"events_version": 1, "covered": {}})


def put(table: LakeTable, name: str, *, is_old: bool) -> Path:
    path = table.path / "hour=2026-03-10T12" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"parquet")
    if is_old:
        os.utime(path, (WEEK_AGO, WEEK_AGO))
    return path


def add_of(path: Path, table: LakeTable) -> AddAction:
    name = str(path.relative_to(table.path))
    return AddAction(name, 7, {"hour": "2026-03-10T12"}, int(time.time() * 1000), True, '{"numRecords": 1}')


def test_files_of_no_version_go_by_their_age_and_replaced_ones_by_the_time_since(lake: Path) -> None:
    table = LakeTable(lake, JOBS)
    table.create()
    live, replaced = (put(table, f"{name}.parquet", is_old=True) for name in ("live", "replaced"))
    table.commit(table.snapshot(), [add_of(live, table), add_of(replaced, table)], {})
    snapshot = table.snapshot()
    table.commit(snapshot, [], {}, removed=[file for file in snapshot.files if "replaced" in file.path])
    killed = put(table, "killed.parquet", is_old=True)
    at_work = put(table, "at-work.parquet", is_old=False)
    staging = table.path / "_staging" / "x"
    staging.mkdir(parents=True)
    (staging / "part.parquet").write_bytes(b"x")
    unused = data_files(table, NOW - timedelta(days=1))
    assert (unused.files, unused.younger) == ((killed,), 3), "one was replaced just now, two writes may be at work"
    assert replaced_files(table) == [replaced]
    delete(unused)
    tomorrow = data_files(table, NOW + timedelta(days=1))
    assert set(tomorrow.files) == {at_work, replaced, staging}
    delete(tomorrow)
    assert list(table.path.glob("*=*/*")) == [live]
    assert not staging.exists()


def test_old_logs_go_once_a_checkpoint_has_what_they_say(lake: Path) -> None:
    table = LakeTable(lake, JOBS)
    table.create()
    live = put(table, "live.parquet", is_old=False)
    table.commit(table.snapshot(), [add_of(live, table)], {"events_version": 3})
    for number in range(3):
        table.commit(table.snapshot(), [], {"events_version": number + 4})
    for path in (table.path / LOG).glob("*"):
        os.utime(path, (WEEK_AGO, WEEK_AGO))
    old = logs(table, NOW - timedelta(days=6))
    assert len(old.files) == 4, "all but the last version"
    table.checkpoint()
    delete(old)
    assert DeltaTable(str(table.path)).version() == 4
    snapshot = table.snapshot()
    assert [file.path for file in snapshot.files] == ["hour=2026-03-10T12/live.parquet"]
    assert snapshot.note == {"events_version": 6}
    assert table.commit(snapshot, [], {"events_version": 7}) == 5


def test_a_lake_with_nothing_to_do_needs_no_spark(lake: Path) -> None:
    empty_lake(lake)
    assert vacuum(no_spark, lake, None, Keep()) == []
    assert vacuum(no_spark, lake, None, Keep(), dry_run=True) == []


def test_a_clock_that_was_set_back_is_refused(lake: Path) -> None:
    empty_lake(lake)
    with pytest.raises(OperatorError, match="the clock must not be behind the last commit"):
        vacuum(no_spark, lake, None, Keep(), now=NOW - timedelta(hours=3))


def test_each_run_of_the_checks_is_in_their_table_and_the_last_one_in_the_status(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> tuple[int, list[list[str]]]:
        code = lake_cli.run([*words, "--lake", str(lake)])
        return code, [line.split("\t") for line in capsys.readouterr().out.splitlines()]

    def quality() -> str:
        return dict(said("status")[1])["quality"]

    empty_lake(lake)
    assert quality() == "not checked: `penstock lake check`"
    assert said("check")[0] == 0
    assert quality().startswith("all checks passed, at 20")
    events = LakeTable(lake, EVENTS)
    events.commit(events.snapshot(), [], {"events_version": 2, "covered": {"n": {"1": [[2, 3]]}}, "late": 5})
    assert said("check")[0] == 1
    assert quality().startswith("failed: gaps (1), late events (5), covered (2), at 20")
    table = LakeTable(lake, CHECKS)
    rows = table.arrow(table.snapshot().files).to_pylist()
    assert len({row["at"] for row in rows}) == 2
    assert [row["found"] for row in sorted(rows, key=lambda row: row["at"]) if row["name"] == "gaps"] == [0, 1]


def test_results_of_checks_go_with_the_jobs(lake: Path) -> None:
    empty_lake(lake)
    keep(lake, checks(lake), NOW)
    table = LakeTable(lake, CHECKS)
    for days, steps, left in ((399, [], 1), (402, ["checks"], 0)):
        now = NOW + timedelta(days=days)
        done = vacuum(no_spark, lake, None, Keep(files=timedelta(days=500)), now=now)
        assert [step.what for step in done if step.what not in ("logs", "younger files")] == steps
        assert len(table.snapshot().files) == left


def test_a_lake_that_can_only_be_read_can_be_checked(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty_lake(lake)
    LakeTable(lake, CHECKS).create()
    (lake / "checks" / "_staging").write_text("a file where a folder should be: also root can't write into it")
    assert lake_cli.run(["check", "--lake", str(lake)]) == 0
    assert "The results are not kept: the lake can't be written to" in capsys.readouterr().err


def test_a_vacuum_waits_for_a_fold(lake: Path) -> None:
    empty_lake(lake)

    class Waits(Exception):
        pass

    def waits() -> None:
        raise Waits

    with locked(lake, alone=False), locked(lake, alone=False), pytest.raises(Waits):
        vacuum(no_spark, lake, None, Keep(), on_wait=waits)
    vacuum(no_spark, lake, None, Keep(), on_wait=waits)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--events-for", "999999999999999d"], "--events-for must be at most 100 years"),
        (["--jobs-for", "40000d"], "the time to keep jobs must be from 0 to 36500 days"),
        (["--jobs-for", "10d"], "jobs must be kept at least as long as events, got 10 days for jobs and 90 for events"),
        (["--raw-for", "-1d"], "--raw-for must be a time such as 60s, 15m or 1h, got '-1d'"),
        (["--minutes-for", "soon"], "--minutes-for must be a time"),
        (["--events", "/nowhere"], "the directory of events must exist, got /nowhere"),
    ],
)
def test_times_that_can_not_be_are_refused(lake: Path, words: list[str], said: str) -> None:
    empty_lake(lake)
    with pytest.raises(CallerError, match=said):
        lake_cli.run(["vacuum", "--lake", str(lake), "--dry-run", *words])


@pytest.mark.parametrize(
    "words", [["vacuum"], ["forget", "--where", "true", "--yes"], ["rebuild", "--from", "2026-01-01"]]
)
def test_a_directory_that_is_no_lake_is_refused(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "none", tmp_path, tmp_path / "file"):
        with pytest.raises(CallerError, match="the lake must have been built, got no tables in"):
            lake_cli.run([words[0], "--lake", str(place), *words[1:]])
    assert not (tmp_path / "none").exists()
    with pytest.raises(CallerError, match="must be a directory on a local or shared file system"):
        lake_cli.run([words[0], "--lake", "s3a://bucket/lake", *words[1:]])


@pytest.mark.parametrize("day", ["yesterday", "2026-1-1", "20260101", "2026-02-30", "2026-01-01T00", ""])
def test_a_day_that_is_none_is_refused(lake: Path, day: str) -> None:
    empty_lake(lake)
    with pytest.raises(CallerError, match="--from must be a day such as 2026-11-18, got"):
        lake_cli.run(["rebuild", "--lake", str(lake), "--from", day])


def test_forget_asks_or_is_told_yes(lake: Path) -> None:
    empty_lake(lake)
    with pytest.raises(CallerError, match="forget deletes permanently: add --yes, or --dry-run"):
        lake_cli.run(["forget", "--lake", str(lake), "--where", "true"])
