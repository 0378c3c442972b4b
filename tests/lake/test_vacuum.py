"""What a lake keeps: what is too old goes, and no answer changes; what was killed on its way is done again."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.events import Kind
from penstock.lake import build as build_module
from penstock.lake import compaction
from penstock.lake.build import build
from penstock.lake.fold import fold
from penstock.lake.quality import checks
from penstock.lake.schemas import ATTEMPTS, EVENTS, JOBS, METRIC_PARTS, WORKER_PARTS
from penstock.lake.table import LakeTable
from penstock.lake.vacuum import Keep, VacuumStep, vacuum
from tests.lake import slow_tables
from tests.lake.conftest import NOON, Recorder
from tests.lake.test_fold import rows
from tests.lake.test_tables import compare

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DAY = 86_400.0
LONG_ONLY = (1, 2) if os.environ.get("PENSTOCK_LONG") else ()
NOW = datetime.now(UTC) + timedelta(hours=1)  # commits are made by the real clock
FIRST = (NOW - NOON).days - 100  # a hundred days ago, in days after NOON
OLD, MIDDLE, TODAY = FIRST * DAY, (FIRST + 60) * DAY, (FIRST + 100) * DAY


def day(at: float) -> str:
    return f"{NOON + timedelta(seconds=at):%Y-%m-%d}"


def run(spark: Any, lake: Path, now: datetime = NOW, events: Path | None = None, **keep: timedelta) -> list[VacuumStep]:
    return vacuum(lambda: spark, lake, events, Keep(**keep), now=now)


def sums(parts: list[dict[str, Any]], *names: str) -> dict[str, tuple[int, ...]]:
    """Return the sums of an additive table, by queue or worker."""
    found: dict[str, list[int]] = {}
    for row in parts:
        total = found.setdefault(row.get("queue") or row["worker"], [0] * len(names))
        for at, name in enumerate(names):
            total[at] += row[name]
    return {key: tuple(total) for key, total in found.items() if any(total)}


METRICS = ("added", "started", "acked", "retried", "failed", "expired", "depth_change")
WORKERS = ("busy_ms", "jobs", "acked", "failures")


def check_answers(lake: Path, ever: list[dict[str, Any]]) -> None:
    """Compare the tables with a slow computation over all events that there ever were."""
    expected = slow_tables.all_tables(ever)
    for schema in (JOBS, ATTEMPTS):
        got = rows(lake, schema)
        # `events` of a job that came back after its events were dropped: how many there were before, or since.
        both = [[{**row, "events": 0} for row in some] for some in (got, expected[schema.name])]
        compare(schema.name, *both)
    assert sums(rows(lake, METRIC_PARTS), *METRICS) == sums(expected["metric_parts"], *METRICS)
    assert sums(rows(lake, WORKER_PARTS), *WORKERS) == sums(expected["worker_parts"], *WORKERS)


def old_lake(spark: Any, events: Path, lake: Path) -> None:
    """Build a lake with jobs that are 100, 40 and 0 days old."""
    recorder = Recorder(events)
    for at in (OLD, MIDDLE, TODAY):
        for number in range(3):
            recorder.life(f"j{at}-{number}", at + number * 70)
    recorder.put(Kind.ADDED, "open", OLD + 5, OLD + 5, size=3)
    recorder.put(Kind.RESERVED, "open", OLD + 7, OLD + 5, attempt=1, worker="w2")
    recorder.put(Kind.NACKED, "open", OLD + 9, OLD + 5, attempt=1, worker="w2", error="Boom: x")
    recorder.put(Kind.ADDED, "dead", OLD + 3700, OLD + 3700, size=3)
    recorder.put(Kind.RESERVED, "dead", OLD + 3701, OLD + 3700, attempt=1, worker="w2")
    recorder.put(
        Kind.FAILED, "dead", OLD + 3702, OLD + 3700, attempt=1, worker="w2", error="Boom: y", to_queue="__deadletter__"
    )
    recorder.put(Kind.SAMPLE, None, OLD + 30, None, size=1)
    recorder.put(Kind.LOST, None, OLD + 40, None, size=5, queue=None, error="the disk is slow")
    recorder.writer.seq += 4  # as a writer does after such a record
    recorder.put(Kind.SAMPLE, None, OLD + 50, None, size=1)
    recorder.close()
    build(spark, events, lake, limit=12)
    fold(spark, lake)


def test_events_leave_and_no_answer_changes_whatever_comes_late(spark: Any, events: Path, lake: Path) -> None:
    old_lake(spark, events, lake)
    ever = rows(lake, EVENTS)
    check_answers(lake, ever)
    done = {step.what: step.items for step in run(spark, lake, events=events)}
    assert done["raw segments"] == 0, "they were committed just now"
    assert done["events"] == 9 + 3 + 2 + 5, "of three jobs, the dead one, two samples, and five that were lost"
    check_answers(lake, ever)
    assert {row["job"] for row in rows(lake, EVENTS) if row["day"] == day(OLD)} == {"open"}
    spans = {(row["minute"] < NOW - timedelta(days=30), row["minutes"]) for row in rows(lake, METRIC_PARTS)}
    assert spans == {(True, 60), (False, 1)}
    assert not [one for one in checks(lake) if not one.is_ok and one.name != "depth"]

    late = Recorder(events, "node-2")
    late.put(Kind.RESERVED, "open", TODAY, OLD + 5, attempt=2, worker="w1")
    late.put(Kind.ACKED, "open", TODAY + 5, OLD + 5, attempt=2, worker="w1")
    late.put(Kind.REDRIVEN, "dead", TODAY, OLD + 3700, queue="__deadletter__", to_queue="mail")
    late.put(Kind.RESERVED, "dead", TODAY + 8, OLD + 3700, attempt=1, worker="w1")
    late.close()
    build(spark, events, lake)
    assert f"{day(OLD)}T13" in fold(spark, lake).hours
    ever += [row for row in rows(lake, EVENTS) if row["writer"] == "node-2"]
    check_answers(lake, ever)
    fold(spark, lake, everything=True)
    check_answers(lake, ever)

    later = Recorder(events, "node-3")
    later.put(Kind.ACKED, "dead", TODAY + 9, OLD + 3700, attempt=1, worker="w1")
    later.close()
    build(spark, events, lake)
    ever += [row for row in rows(lake, EVENTS) if row["writer"] == "node-3"]
    steps = run(spark, lake, NOW + timedelta(days=91))
    assert next(step.items for step in steps if step.what == "events") == len(ever) - 19 + 5 - 1
    assert rows(lake, EVENTS) == []
    check_answers(lake, ever)
    assert run(spark, lake, NOW + timedelta(days=91), files=timedelta(days=99)) == []

    run(spark, lake, NOW + timedelta(days=401))
    assert [rows(lake, schema) for schema in (JOBS, ATTEMPTS, METRIC_PARTS, WORKER_PARTS)] == [[], [], [], []]


def killed_at(commit: int, act: Callable[[], Any]) -> None:
    """Do something, and end it in place of a commit, counted from 1, as kill -9 would."""
    count = 0
    real = LakeTable.commit

    def commit_or_die(self: LakeTable, *words: Any, **named: Any) -> int:
        nonlocal count
        count += 1
        if count == commit:
            raise KeyboardInterrupt
        return real(self, *words, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LakeTable, "commit", commit_or_die)
        with pytest.raises(KeyboardInterrupt):
            act()


# 1 to 3: metric_parts, worker_parts, events.
@pytest.mark.parametrize("commit", [3, *LONG_ONLY])
def test_killed_at_a_commit_the_next_one_does_it_again(spark: Any, events: Path, lake: Path, commit: int) -> None:
    old_lake(spark, events, lake)
    ever = rows(lake, EVENTS)
    killed_at(commit, lambda: run(spark, lake))
    late = Recorder(events, "node-2")
    late.put(Kind.RESERVED, "open", TODAY, OLD + 5, attempt=2, worker="w1")
    late.put(Kind.ACKED, "open", TODAY + 1, OLD + 5, attempt=2, worker="w1")
    late.close()
    build(spark, events, lake)
    fold(spark, lake)
    ever += [row for row in rows(lake, EVENTS) if row["writer"] == "node-2"]
    assert len(rows(lake, EVENTS)) == len(ever), "no event has left"
    check_answers(lake, ever)
    run(spark, lake)
    assert {row["job"] for row in rows(lake, EVENTS) if row["day"] == day(OLD)} == {"open"}
    check_answers(lake, ever)


def test_a_build_and_a_compaction_at_once_lose_nothing(
    spark: Any, events: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(events, segment_s=0)
    for number in range(4):
        recorder.life(f"j{number}", MIDDLE + number)
        recorder.flush()
    build(spark, events, lake, limit=3)
    fold(spark, lake)
    recorder.life("late", MIDDLE + 9)
    recorder.close()
    inner = []

    def compaction_first(rows: Any, files: int = 1) -> Any:
        monkeypatch.undo()
        inner.extend(step.what for step in run(spark, lake) if step.what != "younger files")
        return daily(rows, files)

    daily = build_module.daily
    monkeypatch.setattr(build_module, "daily", compaction_first)
    assert build(spark, events, lake).events == 3
    assert "small files" in inner
    table = LakeTable(lake, EVENTS)
    assert len(table.snapshot().files) == 2, "four files became one, and the build added one"
    # The other way round: the events come while a compaction writes, and before a fold saw them.
    real = LakeTable.stage
    second = Recorder(events, "node-2")
    second.life("later", MIDDLE + 20)
    second.close()

    def build_first(self: LakeTable, staged: Any) -> Any:
        monkeypatch.undo()
        assert build(spark, events, lake).events == 3
        return real(self, staged)

    small = [one for one in compaction.small_files(lake, day(TODAY)) if one.schema is EVENTS]
    monkeypatch.setattr(LakeTable, "stage", build_first)
    assert compaction.compact(spark, lake, small[0]) == 1
    assert len(table.snapshot().files) == 2, "two files became one, and the build added one"
    # And a compaction of events that no fold has seen yet.
    (small_again,) = (one for one in compaction.small_files(lake, day(TODAY)) if one.schema is EVENTS)
    assert compaction.compact(spark, lake, small_again) == 1
    fold(spark, lake)
    assert len(rows(lake, EVENTS)) == 6 * 3
    check_answers(lake, rows(lake, EVENTS))


def test_large_partitions_become_files_of_a_limited_size(
    spark: Any, events: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(events, segment_s=0)
    for number in range(4):
        recorder.life(f"j{number}", MIDDLE + number)
        recorder.flush()
    recorder.close()
    build(spark, events, lake, limit=3)
    (small,) = compaction.small_files(lake, day(TODAY))
    monkeypatch.setattr(compaction, "TARGET_BYTES", small.size // 2)
    assert compaction.compact(spark, lake, small) == 2
    first, second = sorted(LakeTable(lake, EVENTS).snapshot().files, key=lambda file: file.low["job"])
    assert first.high["job"] < second.low["job"], "a job is in one of them"
    assert len(rows(lake, EVENTS)) == 12


def test_raw_segments_go_a_day_after_their_commit(spark: Any, events: Path, lake: Path) -> None:
    recorder = Recorder(events, segment_s=0)
    recorder.life("j1", TODAY)
    recorder.flush()
    recorder.put(Kind.ADDED, "j2", TODAY, TODAY, body=b"x")
    recorder.flush()
    assert build(spark, events, lake).events == 4
    fold(spark, lake)
    recorder.life("new", TODAY)
    recorder.flush()
    recorder.life("newest", TODAY)
    recorder.flush()
    recorder.writer._files.close(30)  # all is on disk; the writer lives on
    bad = events / "broken"
    bad.mkdir()
    (bad / f"{1:016d}-{1:016d}.events").write_bytes(b"x" * 600)
    files = sorted((events / "node-1").glob("*-*"))
    assert len(files) == 5, "four segments, and the bodies of one"
    assert run(spark, lake, events=events)[0][2] == 0
    tomorrow = NOW + timedelta(days=1)
    dry = vacuum(lambda: spark, lake, events, Keep(), now=tomorrow, dry_run=True)
    assert [(step.what, step.items) for step in dry[:2]] == [("raw segments", 2), ("unreadable segments", 1)]
    assert sorted((events / "node-1").glob("*-*")) == files, "a dry run deletes nothing"
    run(spark, lake, tomorrow, events)
    left = sorted((events / "node-1").glob("*-*"))
    assert left == files[-2:], "those that are not in the tables, and the one that is written to"
    os.close(recorder.writer._lock)
    recorder.is_open = False
    assert build(spark, events, lake).events == 6
    fold(spark, lake)
    steps = {step.what: step.items for step in run(spark, lake, NOW + timedelta(days=200), events)}
    assert (steps["raw segments"], steps["writers"]) == (2, 1), "the writer and its numbers are forgotten"
    assert LakeTable(lake, EVENTS).snapshot().note["covered"] == {}
    assert not [one for one in checks(lake) if not one.is_ok]
