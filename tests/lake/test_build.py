"""Segments into the table of events, each event once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import CallerError, OperatorError
from penstock.events import Kind
from penstock.lake import build as build_module
from penstock.lake.build import build
from penstock.lake.coverage import Coverage
from penstock.lake.schemas import EVENTS, TableSchema
from penstock.lake.segments import last_seq, plan, segment_files
from penstock.lake.table import LakeTable, Stale
from tests.lake.conftest import Recorder


def seqs(lake: Path, *columns: str) -> list[Any]:
    table = LakeTable(lake, EVENTS)
    rows = table.arrow(table.snapshot().files, columns or ("writer", "epoch", "seq")).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=lambda row: [(value is not None, value) for value in row])


def test_each_event_is_there_once_however_often_it_is_built(
    spark: Any, events: Path, lake: Path, recorder: Recorder
) -> None:
    recorder.life("j1", 0)
    recorder.close()
    assert build(spark, events, lake).events == 3
    assert build(spark, events, lake).events == 0
    second = Recorder(events)
    second.life("j2", 10)
    second.put(Kind.SAMPLE, None, 60, None, size=1)
    second.close()
    assert build(spark, events, lake).events == 4
    lives = [(job, kind, "2026-03-10") for job in ("j1", "j2") for kind in ("acked", "added", "reserved")]
    assert seqs(lake, "job", "kind", "day") == [(None, "sample", "2026-03-10"), *lives]


def test_all_fields_of_an_event_arrive(spark: Any, events: Path, lake: Path, recorder: Recorder) -> None:
    recorder.put(Kind.FAILED, "j1", 5, 1, attempt=3, worker="w", error="Boom: é", size=9, to_queue="dead", until=8)
    recorder.put(Kind.ACKED, "j2", 5, None, queue=None)
    recorder.close()
    build(spark, events, lake)
    table = LakeTable(lake, EVENTS)
    first, second = sorted(table.arrow(table.snapshot().files).to_pylist(), key=lambda row: row["seq"])
    assert (first["kind"], first["attempt"], first["worker"], first["error"]) == ("failed", 3, "w", "Boom: é")
    assert (first["size"], first["to_queue"], first["queue"], first["day"]) == (9, "dead", "mail", "2026-03-10")
    assert [first[name].isoformat()[11:19] for name in ("at", "created", "until")] == [
        "12:00:05",
        "12:00:01",
        "12:00:08",
    ]
    assert (second["created"], second["queue"], second["worker"], second["size"]) == (None, None, None, None)
    assert second["day"] == "unknown"


def test_a_limit_cuts_a_segment_into_several_commits(spark: Any, events: Path, lake: Path, recorder: Recorder) -> None:
    for number in range(5):
        recorder.life(f"j{number}", number)
    recorder.close()
    sizes: list[int] = []
    assert build(spark, events, lake, limit=6, progress=sizes.append).commits == 3
    assert sizes == [6, 6, 3]
    assert [seq for _, _, seq in seqs(lake)] == list(range(1, 16))


def test_a_build_ends_with_what_was_there_when_it_began(
    spark: Any, events: Path, lake: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.life("j1", 0)
    recorder.close()
    daily = build_module.daily

    def goes_on(rows: Any, files: int = 1) -> Any:
        more = Recorder(events)
        more.life("later", 9)
        more.close()
        return daily(rows, files)

    monkeypatch.setattr(build_module, "daily", goes_on)
    assert [build(spark, events, lake).events for _ in range(2)] == [3, 3]


def test_a_segment_that_comes_late_is_read(spark: Any, events: Path, lake: Path) -> None:
    recorder = Recorder(events, segment_s=0)  # each flush is a segment
    for number in range(3):
        recorder.life(f"j{number}", number)
        recorder.flush()
    recorder.close()
    files = segment_files(events)
    late = files[1].path
    late.rename(late.with_suffix(".away"))
    assert build(spark, events, lake).events == 6
    note = LakeTable(lake, EVENTS).snapshot().note
    assert Coverage.from_json(note["covered"]).gaps() == [("node-1", files[0].epoch, (4, 6))]
    late.with_suffix(".away").rename(late)
    assert build(spark, events, lake).events == 3
    assert [seq for _, _, seq in seqs(lake)] == list(range(1, 10))


def test_a_torn_tail_is_read_when_it_is_whole(spark: Any, events: Path, lake: Path, recorder: Recorder) -> None:
    recorder.life("j1", 0)
    recorder.close()
    (file,) = segment_files(events)
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[: -104 - 50])  # without the end of the epoch, and with half an event
    assert build(spark, events, lake).events == 2
    file.path.write_bytes(whole)
    assert build(spark, events, lake).events == 1
    assert [seq for _, _, seq in seqs(lake)] == [1, 2, 3]


def test_of_two_builders_one_plans_again(
    spark: Any, events: Path, lake: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.life("j1", 0)
    recorder.close()
    inner = []

    def another_first(rows: Any, files: int = 1) -> Any:
        monkeypatch.undo()
        inner.append(build(spark, events, lake).events)  # between the other's snapshot and its commit
        return daily(rows, files)

    daily = build_module.daily
    monkeypatch.setattr(build_module, "daily", another_first)
    assert build(spark, events, lake).events == 0
    assert inner == [3]
    assert [seq for _, _, seq in seqs(lake)] == [1, 2, 3]
    table = LakeTable(lake, EVENTS)
    on_disk = {str(path.relative_to(table.path)) for path in table.path.rglob("*.parquet") if "_delta" not in str(path)}
    assert on_disk == {file.path for file in table.snapshot().files}, "files that were not committed are gone"


def test_a_commit_on_an_old_snapshot_is_refused(lake: Path) -> None:
    table = LakeTable(lake, EVENTS)
    table.create()
    old = table.snapshot()
    table.commit(old, [], {"covered": {}})
    with pytest.raises(Stale, match="version 1 now, the commit was for 0"):
        table.commit(old, [], {"covered": {}})


def test_files_of_a_build_that_was_killed_are_in_no_table(
    spark: Any, events: Path, lake: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.life("j1", 0)
    recorder.close()

    def killed(*_: Any, **__: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            build(spark, events, lake)
    assert seqs(lake) == []
    assert build(spark, events, lake).events == 3
    assert len(seqs(lake)) == 3


def test_older_code_refuses_a_table_with_a_new_column(lake: Path) -> None:
    LakeTable(lake, EVENTS).create()
    older = TableSchema(EVENTS.name, "", "day", tuple(column for column in EVENTS.columns if column.name != "until"))
    with pytest.raises(OperatorError, match=r"columns that this version of Penstock doesn't know \(until\): update"):
        LakeTable(lake, older).snapshot()


def test_a_lake_of_an_older_version_gets_the_new_column(
    spark: Any, events: Path, lake: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = EVENTS._replace(columns=tuple(column for column in EVENTS.columns if column.name != "until"))
    recorder.put(Kind.ADDED, "j1", 0, until=9)
    recorder.flush()
    with monkeypatch.context() as patch:
        patch.setattr(build_module, "EVENTS", older)
        assert build(spark, events, lake).events == 1
    recorder.put(Kind.ADDED, "j2", 1, until=9)
    recorder.close()
    assert [until for (until,) in seqs(lake, "until")] == [None], "what is there is read before it is written to"
    assert build(spark, events, lake).events == 1
    assert [job for job, until in seqs(lake, "job", "until") if until is None] == ["j1"]
    table = LakeTable(lake, EVENTS)
    frame = table.dataframe(spark, table.snapshot().files)
    assert {row.job for row in frame.where("until is not null").collect()} == {"j2"}
    with pytest.raises(OperatorError, match="update Penstock"):
        LakeTable(lake, older).snapshot()


def test_a_disk_that_can_not_be_written_to_is_named_and_nothing_is_left(
    spark: Any, events: Path, lake: Path, recorder: Recorder
) -> None:
    recorder.life("j1", 0)
    recorder.close()
    table = LakeTable(lake, EVENTS)
    table.create()
    (table.path / "_staging").write_text("a file where a folder should be: also root can't write into it")
    with pytest.raises(OperatorError, match=r"the lake can't be written to: .*events"):
        build(spark, events, lake)
    assert seqs(lake) == []
    (table.path / "_staging").unlink()
    assert build(spark, events, lake).events == 3
    assert list((table.path / "_staging").iterdir()) == []


def test_a_directory_without_events_is_refused(spark: Any, tmp_path: Path, lake: Path) -> None:
    with pytest.raises(CallerError, match="the directory of events must exist, got"):
        build(spark, tmp_path / "none", lake)


def test_the_log_is_read_by_spark_deltalake_and_duckdb_also_without_its_checkpoint(
    spark: Any, events: Path, lake: Path, recorder: Recorder
) -> None:
    import duckdb
    from deltalake import DeltaTable

    recorder.life("j1", 0)
    recorder.close()
    build(spark, events, lake)
    table = LakeTable(lake, EVENTS)
    table.checkpoint()
    again = Recorder(events, "node-2")
    again.put(Kind.ADDED, "j2", 0)
    again.close()
    assert build(spark, events, lake).events == 1
    checkpoints = list((table.path / "_delta_log").glob("*checkpoint*"))
    assert len(checkpoints) == 2
    for path in checkpoints:
        path.unlink()
    assert build(spark, events, lake).events == 0, "there is nothing else that a build remembers"
    assert table.dataframe(spark, table.snapshot().files).count() == 4
    theirs = DeltaTable(str(table.path)).to_pyarrow_table(filters=[("kind", "=", "acked")])
    assert theirs.column("job").to_pylist() == ["j1"]
    files = DeltaTable(str(table.path)).file_uris()
    text = (
        "select job, count(*) from read_parquet($files, hive_partitioning=true) where day = '2026-03-10' group by job"
    )
    assert sorted(duckdb.execute(text, {"files": files}).fetchall()) == [("j1", 3), ("j2", 1)]
    (away,) = table.path.glob("_delta_log/*0.json")
    away.unlink()
    with pytest.raises(OperatorError, match=r"the log of .*events can't be read"):
        table.snapshot()


def test_a_segment_that_is_deleted_while_it_is_planned_has_no_events(events: Path, recorder: Recorder) -> None:
    recorder.life("j1", 0)
    recorder.close()
    (file,) = segment_files(events)
    assert last_seq(file) == 3
    file.path.unlink()
    assert last_seq(file) == 0
    assert plan([file], Coverage()) == []


def test_a_plan_of_a_lake_that_has_everything_is_empty(events: Path, recorder: Recorder) -> None:
    recorder.life("j1", 0)
    recorder.close()
    covered = Coverage()
    (one,) = plan(segment_files(events), covered)
    covered.add(one.writer, one.epoch, one.first, one.last)
    shutil.copytree(events / "node-1", events / "copy")  # another file of the same writer and epoch
    assert [piece.writer for piece in plan(segment_files(events), covered)] == ["copy"]
