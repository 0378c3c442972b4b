"""`penstock worker --events`: what real workers record, one writer a process, also after kill -9."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.blocking import connect
from penstock.events import Kind, Segment, gaps, list_segments
from tests.processes import wait_until

pytestmark = [pytest.mark.system, pytest.mark.slow]

HANDLERS = """\
import os, time

def work(job):
    if job.payload == "bad" and job.tries == 0:
        raise ValueError("not yet")
    if job.payload == "slow":
        time.sleep(0.2)

def die(job):
    from penstock.events import Kind, Segment, list_segments
    while not any(Kind.BEGUN in Segment(file.path).read().kind for file in list_segments("events")):
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
"""


def run_worker(folder: Path, url: str, handler: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "handlers.py").write_text(HANDLERS)
    return subprocess.run(
        [sys.executable, "-m", "penstock", "worker", url, "q", f"handlers:{handler}", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_worker_records_the_lives_of_its_jobs(tmp_path: Path) -> None:
    url, directory = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "events"
    with connect(url) as store:
        ids = store.queue("q").push_many(["good", "bad", "slow"])
    assert run_worker(tmp_path, url, "work", "--events", str(directory), "--until-empty").returncode == 0
    wait_until(lambda: connect_and_count(url) == 1)  # the back-off of the bad one
    (writer,) = {file.writer for file in list_segments(directory)}
    (file,) = list_segments(directory)
    columns = Segment(file.path).read()
    assert gaps(directory) == []
    assert set(columns.worker) == {writer}
    by_job: dict[str | None, list[tuple[int, int, str | None]]] = {}
    for job, *event in zip(columns.job, columns.kind, columns.at, columns.error, strict=True):
        by_job.setdefault(job, []).append(tuple(event))
    for job in ids:
        assert [kind for kind, _, _ in by_job[job]][:2] == [Kind.RESERVED, Kind.BEGUN]
    assert [kind for kind, _, _ in by_job[ids[0]]] == [Kind.RESERVED, Kind.BEGUN, Kind.ACKED]
    assert by_job[ids[1]][-1][0] == Kind.NACKED
    assert by_job[ids[1]][-1][2] == "ValueError: not yet"
    (_, begun, _), (_, acked, _) = by_job[ids[2]][-2:]
    assert acked - begun >= 200_000


def connect_and_count(url: str) -> int:
    with connect(url) as store:
        return store.queue("q").total()


def test_each_process_has_a_writer(tmp_path: Path) -> None:
    url, directory = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "events"
    with connect(url) as store:
        store.queue("q").push_many(["slow"] * 40)
    options = ["--events", str(directory), "--until-empty", "--processes", "2", "--concurrency", "2"]
    assert run_worker(tmp_path, url, "work", *options).returncode == 0
    files = list_segments(directory)
    acked = [kind for file in files for kind in Segment(file.path).read().kind if kind == Kind.ACKED]
    assert len(acked) == 40
    assert len({file.writer for file in files}) == 2
    assert gaps(directory) == []


def test_a_worker_that_is_killed_leaves_what_it_had_begun(tmp_path: Path) -> None:
    url, directory = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "events"
    with connect(url) as store:
        store.queue("q").push("any")
    assert run_worker(tmp_path, url, "die", "--events", str(directory)).returncode == -9
    (gap,) = gaps(directory)
    (file,) = list_segments(directory)
    assert Segment(file.path).read().kind == [Kind.RESERVED, Kind.BEGUN]
    assert (gap.first, gap.last) == (3, None)


def test_a_worker_that_is_killed_before_its_first_event_leaves_a_gap(tmp_path: Path) -> None:
    code = "import sys, time; from penstock.events import EventWriter as W; w = W(sys.argv[1], 'w'); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    wait_until(lambda: list_segments(tmp_path))
    process.kill()
    process.wait()
    (gap,) = gaps(tmp_path)
    assert (gap.first, gap.last) == (1, None)
