"""What supervisors and programmers need of `penstock worker`: the health check, systemd's notifications, `--reload`."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import HOST, free_port, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]
SOURCE = Path(__file__).resolve().parents[2] / "src"
PATIENCE_S = 90.0  # the machine may be busy
# A process that has been silent for two seconds is stuck, in place of thirty.
PROGRAM = "import penstock.worker.supervisor as s; s.SILENT_S_MAX = 2.0; from penstock.cli.main import main; main()"

SHOP = """
import asyncio, os, time
from pathlib import Path
import penstock

app = penstock.App("sqlite:///shop.db?poll=0.05")
VERSION = 1

def note(what):
    with open("notes", "a") as file:
        file.write(f"{what} {VERSION} {os.getpid()}\\n")

@app.task
async def quick() -> None:
    note("quick")

@app.task
async def long() -> None:
    note("began")
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    note("ended")

@app.task
async def block() -> None:
    note("blocked")
    while not Path("go").exists():
        time.sleep(0.01)  # which keeps the event loop
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `penstock worker shop:app` with these words, in the folder of the test."""
    (tmp_path / "shop.py").write_text(SHOP)
    processes: list[subprocess.Popen[bytes]] = []

    def run(*words: str, **variables: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), **variables}
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "worker", "shop:app", *words], cwd=tmp_path, env=environment, stderr=log
            )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def push(folder: Path, task: str) -> None:
    code = f"import shop; shop.{task}.blocking.push()"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True)


def notes(folder: Path) -> list[list[str]]:
    path = folder / "notes"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def noted(folder: Path, what: str) -> list[str]:
    """The versions of the program that noted it."""
    return [version for name, version, _ in notes(folder) if name == what]


def health(port: int) -> tuple[int, dict[str, Any]] | None:
    """The status and the facts that are answered; None without an answer in time."""
    connection = http.client.HTTPConnection(HOST, port, timeout=1)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except OSError:
        return None
    finally:
        connection.close()


def status(port: int) -> int | None:
    told = health(port)
    return None if told is None else told[0]


def test_a_worker_whose_event_loop_is_blocked_answers_nothing(start: Start, tmp_path: Path) -> None:
    port = free_port()
    start("--health", str(port))
    wait_until(lambda: status(port) == 200, PATIENCE_S)
    push(tmp_path, "block")
    wait_until(lambda: noted(tmp_path, "blocked"), PATIENCE_S)
    assert health(port) is None
    (tmp_path / "go").touch()
    wait_until(lambda: status(port) == 200, PATIENCE_S)
    wait_until(lambda: (health(port) or (0, {"done": 0}))[1]["done"] == 1, PATIENCE_S)


def test_a_supervisor_says_which_of_its_processes_is_stuck(start: Start, tmp_path: Path) -> None:
    port = free_port()
    start("--health", f"{HOST}:{port}", "--processes", "2")
    wait_until(lambda: status(port) == 200, PATIENCE_S)
    push(tmp_path, "quick")
    wait_until(lambda: noted(tmp_path, "quick"), PATIENCE_S)
    stuck = int(notes(tmp_path)[0][2])
    os.kill(stuck, signal.SIGSTOP)
    try:
        wait_until(lambda: status(port) == 503, PATIENCE_S)
        answer = health(port)
        assert answer is not None
        assert answer[1]["healthy"] is False
        assert answer[1]["processes"] == 2
        assert len(answer[1]["stuck"]) == 1
    finally:
        os.kill(stuck, signal.SIGCONT)
    wait_until(lambda: status(port) == 200, PATIENCE_S)


def test_a_port_that_is_taken_is_said(start: Start, tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as other:
        worker = start("--health", str(other.getsockname()[1]))
        assert worker.wait(PATIENCE_S) == 1
    assert "the health check can't listen on 127.0.0.1:" in (tmp_path / "log").read_text()


def test_systemd_is_told_that_it_began_that_it_lives_and_that_it_stops(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(path))
        systemd.settimeout(PATIENCE_S)
        worker = start(NOTIFY_SOCKET=str(path), WATCHDOG_USEC="100000")

        def told() -> str:
            return systemd.recv(100).decode()

        assert [told() for _ in range(4)] == ["READY=1"] + ["WATCHDOG=1"] * 3
        push(tmp_path, "block")
        wait_until(lambda: noted(tmp_path, "blocked"), PATIENCE_S)
        systemd.settimeout(0.5)  # the time of ten of them
        silences = 0
        for _ in range(20):  # those that were sent before it was blocked come first
            try:
                told()
            except TimeoutError:
                silences += 1
                break
        assert silences
        systemd.settimeout(PATIENCE_S)
        (tmp_path / "go").touch()
        assert told() == "WATCHDOG=1"
        worker.send_signal(signal.SIGTERM)
        while (text := told()) == "WATCHDOG=1":
            pass
        assert text == "STOPPING=1"
        assert worker.wait(PATIENCE_S) == 0


def test_a_changed_file_restarts_the_worker_and_running_jobs_finish(start: Start, tmp_path: Path) -> None:
    worker = start("--reload")
    push(tmp_path, "long")
    wait_until(lambda: noted(tmp_path, "began"), PATIENCE_S)
    (tmp_path / "shop.py").write_text(SHOP.replace("VERSION = 1", "VERSION = 22"))

    def new_program_runs() -> bool:
        push(tmp_path, "quick")  # the old one may take some, until it has seen the change
        return "22" in noted(tmp_path, "quick")

    wait_until(new_program_runs, PATIENCE_S)
    assert not noted(tmp_path, "ended")
    (tmp_path / "go").touch()
    wait_until(lambda: noted(tmp_path, "ended"), PATIENCE_S)
    # The new program ran, while the old one finished what it had begun.
    assert noted(tmp_path, "began") == noted(tmp_path, "ended") == ["1"]

    (tmp_path / "shop.py").write_text("this is not Python\n")
    wait_until(lambda: "did not begin; waiting for a change" in (tmp_path / "log").read_text(), PATIENCE_S)
    (tmp_path / "shop.py").write_text(SHOP.replace("VERSION = 1", "VERSION = 333"))
    push(tmp_path, "quick")
    wait_until(lambda: noted(tmp_path, "quick")[-1] == "333", PATIENCE_S)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_S) == 0
