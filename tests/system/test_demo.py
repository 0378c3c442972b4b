"""`make demo`: what a newcomer sees first. It must work, tell the truth, and leave nothing behind."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.blocking import connect
from tests.processes import free_port, need_module, wait_until

# Each starts three nodes and more; with Spark it is a minute on a machine that is busy with other things.
pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 300.0
NODES = 3


def argv(*options: object) -> list[str]:
    """The command, on ports that no other test has."""
    return [sys.executable, str(ROOT / "scripts" / "demo"), "--port", str(free_port(NODES)), *map(str, options)]


def processes_of(folder: str) -> list[str]:
    """Command lines of processes that have a folder in theirs, or in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            texts = [(path / name).read_bytes().replace(b"\0", b" ") for name in ("cmdline", "environ")]
        except OSError:
            continue  # it has ended meanwhile, or is another user's
        if any(os.fsencode(folder) in text for text in texts):
            found.append(texts[0].decode("utf-8", "replace"))
    return found


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment whose temporary files lie in one directory: afterwards it is empty and nobody knows of it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    yield {**os.environ, "TMPDIR": str(folder)}
    assert list(folder.iterdir()) == []
    assert processes_of(str(folder)) == []


def run(environment: dict[str, str], *options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv(*options), env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )


def start(environment: dict[str, str], *options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(argv(*options), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_tour_ends_with_every_job_in_parquet_and_in_the_lake(environment: dict[str, str], tmp_path: Path) -> None:
    need_module("pyspark")
    done = run(environment, "--jobs", 900, "--rate", 60, "--lake", tmp_path / "kept", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    summary: dict[str, Any] = json.loads(done.stdout)
    assert (summary["ok"], summary["drained_by"], summary["lost"], summary["unknown"]) == (True, "spark", 0, 0)
    assert summary["acknowledged"] == summary["orders"] == 900
    assert summary["rows"] == 900 + sum(summary["duplicates"].values())
    assert summary["left_in_queues"] == 0
    assert re.fullmatch(r"node-[123]", summary["killed"])
    assert summary["node_down_seconds"] > 0
    assert min(summary["rates"].values()) > 0
    assert (summary["lake"], summary["report"]) == (f"{tmp_path}/kept/lake", f"{tmp_path}/kept/report.html")
    assert "orders" in Path(summary["report"]).read_text("utf-8")
    from deltalake import DeltaTable

    jobs = DeltaTable(summary["lake"] + "/jobs").to_pyarrow_table(columns=["queue", "outcome"]).to_pylist()
    acked = sum(row == {"queue": "orders", "outcome": "acked"} for row in jobs)
    assert acked >= 850, "what the node that was killed had not written is missing, and no more"


def test_without_spark_the_tour_goes_on_and_says_why(environment: dict[str, str], tmp_path: Path) -> None:
    """On a terminal, with its colours and a table that shows the dead node."""
    (tmp_path / "pyspark.py").write_text("raise ImportError('no Spark in this test')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**environment, "TERM": "xterm-256color", "COLUMNS": "120", "PYTHONPATH": path}
    environment.pop("NO_COLOR", None)
    ours, theirs = pty.openpty()
    shown = b""
    command = argv("--jobs", 600, "--rate", 100)
    with subprocess.Popen(command, env=environment, stdout=theirs, stderr=theirs) as demo:
        os.close(theirs)
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # the other end of a terminal is gone
            pass
        assert demo.wait(SECONDS_MAX) == 0
    os.close(ours)
    assert b"\x1b[1;36m1. A cluster of three nodes" in shown
    assert re.search(rb"\x1b\[1;31m *down\x1b\[0m", shown)
    assert b"There is no Spark for this: no Spark in this test" in shown
    assert b"Nothing was lost." in shown


def test_a_job_that_gets_lost_is_reported(environment: dict[str, str]) -> None:
    """Somebody else takes a job out of a queue. In a pipe, the tour is plain text, in order."""
    environment = {**environment, "TERM": "xterm-256color"}
    with start(environment, "--jobs", 600, "--rate", 100, "--no-spark", "--patience", 8) as demo:
        assert demo.stdout is not None
        begin = ""
        while (found := re.search(r"JOBS='(.*)'", begin)) is None:
            line = demo.stdout.readline()
            assert line, begin
            begin += line
        with connect(found[1]) as store:
            assert store.queue("shipped").pop(timeout=60) is not None
        # Not by communicate: it would pass over what readline has read ahead.
        shown = begin + demo.stdout.read()
        assert demo.stderr is not None
        complaint = demo.stderr.read()
    assert (demo.returncode, complaint) == (1, "")
    assert re.search(r"^  lost +[1-9]", shown, re.MULTILINE)
    assert "Nothing was lost" not in shown
    assert "\x1b" not in shown
    assert re.findall(r"^(\d)\. ", shown, re.MULTILINE) == ["1", "2", "3", "4", "5", "6", "7"]
    assert re.findall(r"^  \$ (\w+(?: [a-z]+)?)", shown, re.MULTILINE) == [
        "penstock cluster",
        "JOBS",
        "penstock worker",
        "penstock move",
        "penstock push",
        "kill",
        "penstock cluster",
    ]
    assert "nodes up: 2 of 3" in shown


def test_ctrl_c_while_spark_runs_leaves_nothing(environment: dict[str, str]) -> None:
    need_module("pyspark")
    with start(environment) as demo:
        wait_until(lambda: any("SparkSubmit" in line for line in processes_of(environment["TMPDIR"])), 120)
        demo.send_signal(signal.SIGINT)
        _, complaint = demo.communicate(timeout=SECONDS_MAX)
    assert demo.returncode == 1
    assert complaint == "demo: interrupted; everything is stopped, and nothing is left behind\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_while_nodes_start_leaves_nothing(environment: dict[str, str], number: signal.Signals) -> None:
    with start(environment, "--no-spark") as demo:
        wait_until(lambda: any("penstock server" in line for line in processes_of(environment["TMPDIR"])))
        demo.send_signal(number)
        demo.send_signal(number)  # whoever is impatient
        _, complaint = demo.communicate(timeout=SECONDS_MAX)
    assert demo.returncode == 1
    assert complaint == "demo: interrupted; everything is stopped, and nothing is left behind\n"


def test_a_part_that_dies_ends_the_tour_with_its_name(environment: dict[str, str]) -> None:
    def workers() -> list[int]:
        """The process that sees to the workers: the first of its session."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            pid = int(path.parent.name)
            try:
                words = path.read_bytes().split(b"\0")
                is_ours = os.fsencode(environment["TMPDIR"]) in (path.parent / "environ").read_bytes()
                if b"worker" in words and is_ours and os.getsid(pid) == pid:
                    found.append(pid)
            except OSError:
                continue
        return found

    with start(environment, "--no-spark") as demo:
        (pid,) = wait_until(workers)
        os.kill(pid, signal.SIGKILL)
        _, complaint = demo.communicate(timeout=SECONDS_MAX)
    assert demo.returncode == 1
    assert complaint.startswith("demo: failed: `penstock worker` ")
    assert "ended with code -9" in complaint


def test_a_cluster_that_can_not_be_made_says_why(environment: dict[str, str]) -> None:
    done = run(environment, "--port", 65535)
    assert done.returncode == 1
    assert done.stderr.startswith("demo: failed: `penstock cluster create` ended with code 2:\n")
    assert "--base-port must be 1 to" in done.stderr
