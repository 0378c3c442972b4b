"""kill -9 of enqueuers and scanners under load: nothing acknowledged is lost, nothing is doubled, nothing is torn."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from penstock import fsq
from penstock.fsq import auditing
from tests.fsq import programs
from tests.processes import wait_until

ROUNDS = 100 if os.environ.get("PENSTOCK_LONG") == "1" else 20

# Each says what it was told, after it was told: one line, written at once.
ENQUEUER = """
import os, sys
from penstock import fsq
number = 0
while True:
    name = fsq.senqueue("mail", b"data of %d " % number * 50, "n", number)
    os.write(1, name.encode() + b"\\n")
    number += 1
"""
SCANNER = """
import os, sys
from penstock import fsq
while True:
    for item in fsq.scan("mail", max_tries=0):
        data = item.item.read()
        os.write(1, b"began " + item.name.job_id.encode() + b" %d\\n" % len(data))
        fsq.success(item)
        os.write(1, b"done " + item.name.job_id.encode() + b"\\n")
"""


def start(program: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as stream:
        return subprocess.Popen([sys.executable, "-c", program], env=programs.environment(), stdout=stream)


def whole_lines(log: Path) -> list[str]:
    return [line[:-1] for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_when_processes_are_killed(root: Path, queue: str, tmp_path: Path) -> None:
    chance = random.Random(7)
    made, ran = tmp_path / "made", tmp_path / "ran"
    ran.touch()
    for _ in range(ROUNDS):
        before = made.stat().st_size if made.exists() else 0, ran.stat().st_size
        children = [start(ENQUEUER, made), start(SCANNER, ran), start(SCANNER, ran)]
        try:
            wait_until(lambda sizes=before: made.stat().st_size > sizes[0] and ran.stat().st_size > sizes[1])
            time.sleep(chance.uniform(0, 0.1))  # so that the kill comes at any point
        finally:
            for child in children:
                child.kill()
                child.wait()
    enqueued = {fsq.construct([]) + "_".join(_job(name)) for name in whole_lines(made)}
    waiting = _jobs(root / "mail/queue")
    finished = _jobs(root / "mail/done")
    assert enqueued <= waiting | finished, "an acknowledged item is lost"
    assert waiting & finished == set(), "an item is done and waits"
    assert os.listdir(root / "mail/fail") == []
    done = Counter(line.split(" ")[1] for line in whole_lines(ran) if line.startswith("done "))
    assert set(done.values()) <= {1}, "an item was done twice"
    assert set(done) <= finished
    began = Counter(line.split(" ")[1] for line in whole_lines(ran) if line.startswith("began "))
    assert sum(began.values()) - len(began) <= 2 * ROUNDS, "only a killed scanner makes an item be run again"
    for name in os.listdir(root / "mail/queue"):
        number = name.rpartition("_")[2].encode()
        assert (root / "mail/queue" / name).read_bytes() == b"data of %s " % number * 50
    _clean_up(root)


def _job(name: str) -> list[str]:
    fields = name.split("_")[1:]
    return fields[:4] + fields[5:]


def _jobs(directory: Path) -> set[str]:
    return {"_" + "_".join(_job(name)) for name in os.listdir(directory)}


def _clean_up(root: Path) -> None:
    """What the killed ones left is found and repaired, and then everything can be run."""
    assert [reason for _, reason in auditing.repair("mail", older_seconds=0) if reason] == []
    assert os.listdir(root / "mail/tmp") == []
    for item in fsq.scan("mail", max_tries=0):
        fsq.success(item)
    assert os.listdir(root / "mail/queue") == []
    assert list(auditing.audit("mail", older_seconds=0)) == []


@pytest.mark.system
def test_the_child_of_a_killed_scan_keeps_its_item(root: Path, queue: str, tmp_path: Path) -> None:
    name = fsq.senqueue(queue, "x")
    pid_file = tmp_path / "pid"
    program = f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 60"
    scan = programs.start("scan", "-m", "5", "mail", "sh", "-c", program)
    wait_until(pid_file.exists)
    child = int(pid_file.read_text())
    try:
        scan.kill()
        scan.wait()
        assert list(fsq.scan(queue)) == [], "the child has the lock"
    finally:
        os.kill(child, signal.SIGKILL)
    wait_until(lambda: [item.tries for item in fsq.scan(queue, max_tries=5)] == [1])
    with pytest.raises(fsq.FSQMaxTriesError):
        next(fsq.scan(queue, max_tries=1))
    assert os.listdir(root / "mail/fail") == [name]


@pytest.mark.system
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_scan_that_waits_for_its_rate_completes_what_ends_and_can_be_stopped(
    root: Path, queue: str, jobs: str
) -> None:
    first, second = fsq.senqueue(queue, ""), fsq.senqueue(queue, "")
    scan = programs.start("scan", "-r", "0.001", "-j", jobs, "mail", "true")
    try:
        wait_until(lambda: os.listdir(root / "mail/done") == [first])
        scan.send_signal(signal.SIGTERM)
        assert scan.wait(programs.SECONDS_MAX) == 111
    finally:
        scan.kill()
        scan.wait()
    assert os.listdir(root / "mail/queue") == [second]


@pytest.mark.system
def test_the_last_item_of_a_slow_scan_ends_it_at_once(root: Path, queue: str) -> None:
    name = fsq.senqueue(queue, "")
    assert programs.run("scan", "-r", "0.001", "mail", "true").returncode == 0
    assert os.listdir(root / "mail/done") == [name]


@pytest.mark.system
def test_a_worker_that_dies_by_a_signal_ends_the_scan(root: Path, queue: str) -> None:
    first, second = fsq.senqueue(queue, ""), fsq.senqueue(queue, "")
    done = programs.run("scan", "mail", "sh", "-c", "kill -9 $$")
    assert done.returncode == 111
    assert f"{first}: processing terminated by signal 9; aborting".encode() in done.stderr
    assert os.listdir(root / "mail/fail") == [first]
    assert os.listdir(root / "mail/queue") == [second]


@pytest.mark.system
def test_a_scan_that_is_stopped_finishes_what_it_began(root: Path, queue: str, tmp_path: Path) -> None:
    first, second = fsq.senqueue(queue, ""), fsq.senqueue(queue, "")
    ready, go = tmp_path / "ready", tmp_path / "go"
    program = f"touch {ready}; while [ ! -e {go} ]; do sleep 0.02; done"
    scan = programs.start("scan", "mail", "sh", "-c", program)
    wait_until(ready.exists)
    scan.send_signal(signal.SIGTERM)
    go.touch()
    assert scan.wait(programs.SECONDS_MAX) == 111
    assert os.listdir(root / "mail/done") == [first]
    assert os.listdir(root / "mail/queue") == [second]
