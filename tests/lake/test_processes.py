"""Builds as processes: killed at any point, and two at once. Each event is in the tables once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.lake.build import build
from penstock.lake.fold import fold
from penstock.lake.quality import checks
from penstock.lake.schemas import EVENTS
from penstock.lake.table import LakeTable
from tests.lake.conftest import Recorder
from tests.lake.test_fold import check_against_slow, rows
from tests.processes import NodeProcess, wait_until
from tests.system.test_node_events import OPERATIONS_BEFORE_KILL, Load

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = 20 if os.environ.get("PENSTOCK_LONG") == "1" else 3
START_S = 480.0  # of Spark, on a busy machine


def start_build(events: Path, lake: Path, *words: str) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "penstock",
            "lake",
            "build",
            "--events",
            str(events),
            "--lake",
            str(lake),
            *words,
            "--master",
            "local[1]",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        start_new_session=True,
    )


def versions(lake: Path) -> int:
    return LakeTable(lake, EVENTS).snapshot().version


def check_whole(lake: Path, jobs: int) -> None:
    found = sorted((row["writer"], row["epoch"], row["seq"]) for row in rows(lake, EVENTS))
    assert len(found) == len(set(found)) == 3 * jobs
    assert len(rows(lake)) == jobs
    check_against_slow(lake)


def test_the_tables_agree_with_what_clients_of_a_killed_node_wrote_down(spark: Any, tmp_path: Path, lake: Path) -> None:
    """What is missing is at the end of a run that was killed, and `check` counts those runs."""
    directory = tmp_path / "events"
    node = NodeProcess(tmp_path, events_dir=directory)
    loads: list[Load] = []
    try:
        for _ in range(KILLS):
            node.start()
            load = Load(node)
            loads.append(load)
            wait_until(lambda load=load: len(load.acked) >= OPERATIONS_BEFORE_KILL)
            node.kill()
            load.join()
        node.start()
        node.stop()
    finally:
        node.kill()
    build(spark, directory, lake)
    fold(spark, lake)
    jobs = {row["job"]: row for row in rows(lake)}
    added = {job for job, row in jobs.items() if row["added"] is not None}
    acked = {job for job, row in jobs.items() if row["outcome"] == "acked"}
    for load in loads:
        for told, known in ((load.added, added), (load.acked, acked)):
            missing = [job for job in told if job not in known]
            assert missing == told[len(told) - len(missing) :], "only the end of a run is missing"
    # A kill may come between the event and the reply: one of each kind and run at most.
    assert len(added - {job for load in loads for job in load.added}) <= KILLS
    assert len(acked - {job for load in loads for job in load.acked}) <= KILLS
    found = {one.name: one.found for one in checks(lake)}
    assert found["killed writers"] == KILLS
    assert [found[name] for name in ("gaps", "duplicates", "covered", "lost", "one row a job")] == [0] * 5
    check_against_slow(lake)


def test_a_build_that_is_killed_between_commits_goes_on(
    spark: Any, events: Path, lake: Path, recorder: Recorder
) -> None:
    for number in range(100):
        recorder.life(f"j{number}", number * 100)
    recorder.close()
    killed = start_build(events, lake, "--commit-events", "10")
    try:
        wait_until(lambda: versions(lake) >= 2 or killed.poll() is not None, START_S, every=0.2)
        assert killed.poll() is None, killed.stderr and killed.stderr.read()
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
    before = versions(lake)
    assert 2 <= before < 30, "it was killed on its way"
    assert build(spark, events, lake).events == 300 - 10 * before
    fold(spark, lake)
    check_whole(lake, 100)


@pytest.mark.skipif(not os.environ.get("PENSTOCK_LONG"), reason="starts Spark twice; PENSTOCK_LONG=1 runs it")
def test_two_builds_at_once_read_each_event_once(spark: Any, events: Path, lake: Path, recorder: Recorder) -> None:
    for number in range(60):
        recorder.life(f"j{number}", number * 100)
    recorder.close()
    both = [start_build(events, lake, "--commit-events", "20") for _ in range(2)]
    said = [one.communicate(timeout=800) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    counts = [int(out.split()[0]) for out, _ in said]
    assert sum(counts) == 180, said
    check_whole(lake, 60)
