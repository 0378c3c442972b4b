"""The table of events into the others: touched hours are replaced, and nothing is final."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from penstock.events import Kind
from penstock.lake import fold as fold_module
from penstock.lake.build import build
from penstock.lake.fold import fold
from penstock.lake.report import gather, render
from penstock.lake.schemas import ATTEMPTS, EVENTS, FOLDED, JOBS, METRIC_PARTS, WORKER_PARTS, TableSchema
from penstock.lake.table import LakeTable
from penstock.lake.views import register
from tests.lake import slow_tables
from tests.lake.conftest import Recorder
from tests.lake.test_tables import compare

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def rows(lake: Path, schema: Any = JOBS) -> list[dict[str, Any]]:
    table = LakeTable(lake, schema)
    return list(table.arrow(table.snapshot().files).to_pylist())


def outcomes(lake: Path) -> dict[str, tuple[str, str]]:
    return {row["job"]: (row["outcome"], row["hour"]) for row in rows(lake)}


def check_against_slow(lake: Path) -> None:
    expected = slow_tables.all_tables(rows(lake, EVENTS))
    for schema in FOLDED:
        compare(schema.name, rows(lake, schema), expected[schema.name])


def test_a_late_event_folds_its_hour_again_and_no_other(
    spark: Any, events: Path, lake: Path, recorder: Recorder
) -> None:
    recorder.life("early", 0)
    recorder.put(Kind.ADDED, "late", 7200, 7200)
    recorder.close()
    build(spark, events, lake)
    assert fold(spark, lake).hours == ("2026-03-10T12", "2026-03-10T14")
    assert outcomes(lake) == {"early": ("acked", "2026-03-10T12"), "late": ("waiting", "2026-03-10T14")}
    before = {file.partition: file.path for file in LakeTable(lake, JOBS).snapshot().files}
    assert fold(spark, lake).commits == 0, "nothing is new"
    second = Recorder(events)
    second.put(Kind.ACKED, "late", 90_000, 7200, attempt=1, worker="w1")  # a day later
    second.close()
    build(spark, events, lake)
    assert fold(spark, lake).hours == ("2026-03-10T14",)
    assert outcomes(lake)["late"] == ("acked", "2026-03-10T14")
    after = {file.partition: file.path for file in LakeTable(lake, JOBS).snapshot().files}
    assert after["2026-03-10T12"] == before["2026-03-10T12"]
    check_against_slow(lake)


def test_a_job_of_unknown_creation_moves_to_its_hour_when_that_is_told(
    spark: Any, events: Path, lake: Path, recorder: Recorder
) -> None:
    recorder.put(Kind.ACKED, "foreign", 5, None, attempt=1)
    recorder.put(Kind.ADDED, "known", 0)
    recorder.close()
    build(spark, events, lake)
    fold(spark, lake)
    assert outcomes(lake) == {"foreign": ("acked", "unknown"), "known": ("waiting", "2026-03-10T12")}
    second = Recorder(events, "node-2")
    second.put(Kind.ADDED, "foreign", 1, 1)
    second.put(Kind.ACKED, "known", 9, None, attempt=1)  # the job is known, this writer doesn't know when it was made
    second.close()
    build(spark, events, lake)
    fold(spark, lake)
    assert outcomes(lake) == {"foreign": ("acked", "2026-03-10T12"), "known": ("acked", "2026-03-10T12")}
    assert len(rows(lake)) == 2


@pytest.mark.parametrize("at", [ATTEMPTS, *([METRIC_PARTS, WORKER_PARTS] if os.environ.get("PENSTOCK_LONG") else [])])
def test_killed_between_two_commits_the_next_fold_does_the_rest(
    spark: Any, events: Path, lake: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, at: TableSchema
) -> None:
    recorder.life("j1", 0)
    recorder.close()
    build(spark, events, lake)
    commit = LakeTable.commit

    def killed(self: LakeTable, *words: Any, **named: Any) -> int:
        if self.schema is at:
            raise KeyboardInterrupt
        return commit(self, *words, **named)

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            fold(spark, lake)
    assert (len(rows(lake)), len(rows(lake, at))) == (1, 0)
    assert fold(spark, lake).commits == 4
    check_against_slow(lake)


def test_a_fold_that_is_overtaken_starts_again(
    spark: Any, events: Path, lake: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.life("j1", 0)
    recorder.close()
    build(spark, events, lake)
    replace = fold_module._replace
    inner = []

    def another_first(*words: Any) -> Any:
        monkeypatch.undo()
        inner.append(fold(spark, lake).commits)
        return replace(*words)

    monkeypatch.setattr(fold_module, "_replace", another_first)
    assert fold(spark, lake).commits == 0, "the other fold has done it"
    assert inner == [4]
    check_against_slow(lake)


def test_any_order_of_writers_epochs_and_builds_gives_the_same_tables(spark: Any, events: Path, lake: Path) -> None:
    random_ = random.Random(5)
    for number in range(2):
        for name in ("node-1", "node-2"):  # a new epoch of each writer
            recorder = Recorder(events, name, segment_s=0)
            for job in range(8):
                start = random_.randrange(7000)
                kind = random_.choice([Kind.ADDED, Kind.RESERVED, Kind.NACKED, Kind.ACKED, Kind.FAILED])
                # Creation is the same in all events of a job.
                recorder.put(
                    kind, f"j{job}", start, job * 600.0, attempt=random_.randrange(3), worker="w", error="E: x"
                )
                recorder.flush()
            recorder.put(Kind.SAMPLE, None, random_.randrange(7000), None, size=number)
            recorder.close()
        away = random_.sample(sorted(events.glob("*/*.events")), 4)
        for path in away:
            path.rename(path.with_suffix(".away"))
        build(spark, events, lake, limit=15)
        fold(spark, lake)
        for path in away:
            path.with_suffix(".away").rename(path)
    build(spark, events, lake)
    fold(spark, lake)
    assert len(rows(lake, EVENTS)) == 2 * 2 * 9
    check_against_slow(lake)


def test_a_retry_that_a_node_and_its_worker_recorded_counts_once(
    spark: Any, events: Path, lake: Path, recorder: Recorder
) -> None:
    own = Recorder(events, "worker-1")  # knows the error, which the node doesn't
    for attempt in (1, 2):
        recorder.put(Kind.RESERVED, "j1", attempt * 10, attempt=attempt, worker="w1")
        recorder.put(Kind.NACKED, "j1", attempt * 10 + 1, attempt=attempt, worker="w1")
        own.put(Kind.NACKED, "j1", attempt * 10 + 1.01, attempt=attempt, worker="w1", error="Boom: x")
    recorder.close()
    own.close()
    build(spark, events, lake)
    fold(spark, lake)
    assert sum(row["retried"] for row in rows(lake, METRIC_PARTS)) == 2
    assert [row["error"] for row in rows(lake, ATTEMPTS)] == ["Boom: x"] * 2
    check_against_slow(lake)


def test_views_answer_questions(spark: Any, events: Path, lake: Path, recorder: Recorder) -> None:
    for number in range(100):
        recorder.life(f"j{number}", number * 0.1, run=1 + number / 100)
    recorder.put(Kind.ADDED, "forgotten", 0)
    recorder.put(Kind.ADDED, "dead", 9000, 9000)
    recorder.put(Kind.RESERVED, "dead", 9000.5, 9000, attempt=1, worker="w2")
    recorder.put(Kind.FAILED, "dead", 9001, 9000, attempt=1, worker="w2", error="Boom: x", to_queue="__deadletter__")
    for kind in (Kind.ADDED, Kind.EXPIRED):  # a minute in which no delivery began or ended: there are no percentiles
        recorder.put(kind, "alone", 7200, 7200)
    recorder.close()
    build(spark, events, lake)
    fold(spark, lake)
    register(spark, lake)

    def ask(text: str) -> list[Any]:
        return [tuple(row) for row in spark.sql(text).collect()]

    assert ask("select job from stuck") == [("forgotten",)]
    assert ask("select job, last_error from dead") == [("dead", "Boom: x")]
    assert ask("select job from jobs_now") == [("forgotten",)]
    assert ask("select error_class, attempts from errors") == [("Boom", 1)]
    assert ask("select added, acked, depth from metrics order by minute limit 1") == [(101, 100, 1)]
    (p50, p99), *_ = ask("select run_p50_ms, run_p99_ms from metrics where acked > 0")
    assert abs(p50 - 1495) <= 20
    assert abs(p99 - 1985) <= 20
    assert ask("select worker, jobs, acked, failures from workers order by worker") == [
        ("w1", 100, 100, 0),
        ("w2", 1, 0, 1),
    ]
    data = gather(spark, lake)
    assert data.totals["jobs"] == 103
    assert [(row["queue"], row["acked"], row["failed"], row["waiting"]) for row in data.queues] == [("mail", 100, 1, 1)]
    assert [row["wait_p50"] is None for row in data.rates].count(True) == 1
    assert [row["job"] for row in data.stuck] == ["forgotten"]
    assert sum(row["added"] for row in data.rates) == 103
    assert "Boom" in render(data)
