"""The benchmark of Spark counts right; no Spark is needed for that."""

from __future__ import annotations

import json
import sys

import pytest

from bench import spark, spark_sessions
from bench.report import Bar, Line
from bench.rounds import Rounds
from bench.servers import PENSTOCK, NotRunError
from bench.spark_sessions import Million, Stream, parts_of
from bench.spark_world import cpu_s

DURATIONS = {
    "latestOffset": 150,
    "queryPlanning": 90,
    "walCommit": 40,
    "addBatch": 500,
    "commitOffsets": 60,
    "triggerExecution": 850,
}


def test_a_rate_that_is_wanted_at_least():
    assert Line("row", ours=[15_000.0], bar=Bar(ours_min=15_000)).verdict() == "met"
    assert Line("row", ours=[14_999.0], bar=Bar(ours_min=15_000)).verdict() == "MISSED"
    assert Bar(ours_min=15_000).text("/s") == "≥ 15.0k/s"


def test_no_two_rows_of_spark_have_the_same_name():
    assert len({row.name for row in spark.ROWS}) == len(spark.ROWS)


def test_the_parts_of_a_batch_are_all_of_it():
    steps = [
        {"step": "ack", "s": 0.05},
        {"step": "plan", "s": 0.03},
        *[{"step": "read", "s": 0.01}] * 8,  # of two batches, by two workers
    ]
    parts = parts_of([{"durationMs": DURATIONS}], steps, batches=2)
    whole_ms = parts.pop("batch_ms")
    assert sum(parts.values()) == pytest.approx(whole_ms) == pytest.approx(850)
    assert (parts["ack_ms"], parts["claim_ms"], parts["partitions_ms"]) == pytest.approx((50, 100, 30))
    assert (parts["plan_ms"], parts["read_ms"], parts["write_ms"]) == pytest.approx((90, 20, 450))
    assert (parts["logs_ms"], parts["rest_ms"]) == pytest.approx((100, 10))


def test_a_row_of_spark_whose_session_failed_says_why(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise NotRunError("no Spark here")

    monkeypatch.setattr(spark_sessions, "spark", fail)
    rounds: Rounds[dict[str, float]] = Rounds(True, PENSTOCK)
    rounds.run([Stream("sqlite"), Million()], rounds=2)
    verdicts = {spark.line_of(row, rounds).verdict() for row in spark.ROWS if row.session in rounds.failures}
    assert verdicts == {
        "not run: sqlite into Parquet: no Spark here",
        "not run: a million jobs: no Spark here",
    }


def test_ratios_are_taken_round_by_round():
    rounds: Rounds[dict[str, float]] = Rounds(True, PENSTOCK)
    session = Stream("sqlite")
    rounds.results[session] = [
        {"jobs_per_s": 10.0, "loop_jobs_per_s": 20.0, "cpu_us": 30.0, "loop_cpu_us": 15.0},
        {"jobs_per_s": 30.0, "loop_jobs_per_s": 30.0, "cpu_us": 10.0, "loop_cpu_us": 15.0},
    ]
    row = next(row for row in spark.ROWS if row.session == session)
    line = spark.line_of(row, rounds)
    assert (line.ratios(), line.cpu_ratios) == ([0.5, 1.0], [0.5, 1.5])
    assert spark.cpu_table([row], rounds).rows == [[row.name, "20.0", "15.0"]]


def test_processor_time_is_that_of_children_too():
    before_s = cpu_s()
    code = "sum(range(30_000_000))"
    import subprocess

    with subprocess.Popen([sys.executable, "-c", f"{code}; input()"], stdin=subprocess.PIPE) as child:
        while cpu_s() - before_s < 0.1:
            assert child.poll() is None
        child.communicate(b"\n")
    assert cpu_s() - before_s >= 0.1


def test_figures_go_into_the_json_file(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    figures = {"jobs_per_s": 20_000.0, "loop_jobs_per_s": 10_000.0, "cpu_us": 5.0, "loop_cpu_us": 5.0, "ack_ms": 3.0}
    monkeypatch.setattr(Stream, "run", lambda *_: figures)
    files = [str(tmp_path / "out.json"), str(tmp_path / "out.md")]
    command = ["spark", "--rounds", "1", "--only", "^sqlite", "--json", files[0], "--markdown", files[1]]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(spark, "machine", lambda _: {"beanstalkd": "none"})
    monkeypatch.setattr(spark, "stop_on_sigterm", lambda: None)
    spark.main()
    assert json.loads((tmp_path / "out.json").read_text())["figures"] == {"sqlite into Parquet": [figures]}
    assert "### Where the time of a batch" in (tmp_path / "out.md").read_text()
    assert "20.0k/s" in capsys.readouterr().out
