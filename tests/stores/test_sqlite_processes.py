"""SQLite with several processes: wake-ups, forks, and kill -9 under load."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import blocking
from penstock.queues.stores.sqlite import file as sqlite_file
from tests.processes import wait_until

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 15 if os.environ.get("PENSTOCK_LONG") else 4

Start = Callable[..., Any]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start processes of `sqlite_process`; return each with the path of its log."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(role: str, url: str, queue: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = tmp_path / f"{role}{len(started)}.log"
        words = [sys.executable, "-m", "tests.stores.sqlite_process", role, url, queue, str(log)]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        started.append(subprocess.Popen(words, cwd=ROOT, env=environment))
        return started[-1], log

    yield begin
    for process in started:
        process.kill()
        process.wait()


def _lines(log: Path) -> list[str]:
    """Whole ones: the last may have been cut off."""
    return log.read_text().split("\n")[:-1] if log.exists() else []


def _wait_until_written(count: int, *logs: Path) -> None:
    """Wait until each log has `count` lines."""
    wait_until(lambda: all(len(_lines(log)) >= count for log in logs), 60.0)


async def _until_written(count: int, *logs: Path) -> None:
    await asyncio.to_thread(_wait_until_written, count, *logs)


def _is_sound(store: Any) -> bool:
    return bool(store._driver.file.read("PRAGMA integrity_check") == [("ok",)])


def test_many_may_open_a_new_file_at_the_same_time(url: str, start: Start) -> None:
    logs = [start("pop", url, "q")[1] for _ in range(4)]
    _wait_until_written(1, *logs)
    with blocking.connect(url) as store:
        store.queue("q").push_many(range(4))
    _wait_until_written(2, *logs)
    assert sorted(_lines(log)[1] for log in logs) == ["0", "1", "2", "3"]


async def test_a_process_that_waits_hears_of_a_push_and_a_resume_in_another(url: str, start: Start) -> None:
    """It would look again by itself only after five minutes."""
    async with penstock.connect(url) as store:
        queue = store.queue("q")
        for payload in ("pushed", "paused and resumed"):
            if payload != "pushed":
                await queue.pause()
                await queue.push(payload)
            _, log = start("pop", url, "q")
            await _until_written(1, log)
            await asyncio.sleep(0.3)  # likely, it waits by now
            assert _lines(log) == ["ready"]
            await (queue.push(payload) if payload == "pushed" else queue.resume())
            await _until_written(2, log)
            assert _lines(log) == ["ready", payload]


def test_a_waiting_caller_reads_no_table_unless_something_changed(url: str) -> None:
    with blocking.connect(url) as store, blocking.connect(url) as other:
        queue = store.queue("q")
        queue.pop(timeout=0)
        other.queue("another one").push(1)
        statements: list[str] = []
        store._driver.file.connection().set_trace_callback(statements.append)
        assert queue.pop(timeout=1.0) is None
        asked = Counter(statement.split()[0] for statement in statements)
        assert asked["PRAGMA"] > 5
        assert asked["SELECT"] < 12


FORKING = """
import os, sys, threading
from penstock import blocking

url = sys.argv[1]
with blocking.connect(url) as store:
    queue = store.queue("q")
    queue.push("before")
    stop = threading.Event()

    def push():
        while not stop.wait(0.001):
            queue.push("from a thread")

    thread = threading.Thread(target=push)
    thread.start()
    for number in range(10):
        child = os.fork()
        if child == 0:
            for _ in range(5):
                queue.push(f"child {number}")
            assert queue.pop(timeout=10) is not None
            store.close()
            os._exit(0)
        queue.push(f"parent {number}")
        _, status = os.waitpid(child, 0)
        assert status == 0, status
    stop.set()
    thread.join()
"""


def test_a_store_is_used_on_both_sides_of_a_fork(url: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", FORKING, url], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    with blocking.connect(url) as store:
        assert _is_sound(store)
        counted = Counter(job.payload for job in store.queue("q").jobs())
        taken = 1 + 10 + 50 - sum(count for payload, count in counted.items() if payload != "from a thread")
        assert 0 <= taken <= 10
        assert all(counted[f"child {number}"] <= 5 for number in range(10))


def test_a_connection_never_goes_through_a_fork(url: str) -> None:
    with blocking.connect(url) as store:
        store.queue("q").push(1)
        file: sqlite_file.SqliteFile = store._driver.file
        before = file.connection()
        child = os.fork()
        if child == 0:
            os._exit(0 if file._connection is None else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert file.connection() is not before
        assert store.queue("q").total() == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kill_9_under_load_loses_nothing_that_was_answered(url: str, start: Start) -> None:
    chance = random.Random(23)
    logs: list[Path] = []
    for round_number in range(ROUNDS):
        started = [start(role, url, "q") for role in ("push", "push", "work", "work")]
        logs += [log for _, log in started]
        enough = chance.randint(10, 60)
        _wait_until_written(enough, *(log for _, log in started))
        for process, _ in started if round_number % 2 else reversed(started):
            os.kill(process.pid, signal.SIGKILL)
        for process, _ in started:
            process.wait()
    lines = [line for log in logs for line in _lines(log) if line != "ready"]
    pushed = {line for line in lines if " " not in line}
    took = [line.split()[1:] for line in lines if line.startswith("took")]
    acked = [line.split()[1] for line in lines if line.startswith("acked")]
    assert len(pushed) > 100
    assert len(acked) > 50
    # While the leases hold nothing is delivered twice, and nothing is ended twice.
    assert max(Counter(job_id for job_id, _ in took).values()) == 1
    assert {tries for _, tries in took} == {"0"}
    assert max(Counter(acked).values()) == 1
    with blocking.connect(url) as store:
        assert _is_sound(store)
        store.shift_clock(100_000)
        left: dict[str, int] = {}
        while jobs := store.queue("q").pop_many(1000):
            assert not left.keys() & {job.id for job in jobs}
            left.update({job.id: job.tries for job in jobs})
    assert not left.keys() & set(acked), "what was ended came again"
    # A job that neither was ended nor is there: its worker was killed between the end and its line.
    missing = pushed - set(acked) - left.keys()
    assert missing <= {job_id for job_id, _ in took}, "what was stored is lost"
    assert len(missing) <= 2 * ROUNDS
    # A process that was killed with jobs in hand has had a try at them; one without a line was cut off before its line.
    assert all(left[job_id] == 1 for job_id, _ in took if job_id in left)
    assert sum(left.values()) <= 3 * 2 * ROUNDS
