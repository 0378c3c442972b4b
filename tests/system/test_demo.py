"""`make demo`: what a newcomer sees first. It must work, tell the truth, and leave nothing behind."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import free_port, wait_until

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
ARGV = [sys.executable, str(ROOT / "scripts" / "demo.py")]
SECONDS_MAX = 15.0


def processes_that_mention(text: str) -> list[str]:
    """Command lines of all processes in which a text stands."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue  # it has ended meanwhile
        if text in line:
            found.append(line)
    return found


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment whose temporary files lie in one directory: afterwards it is empty and nobody works in it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    yield {**os.environ, "TMPDIR": str(folder)}
    assert list(folder.iterdir()) == []
    assert processes_that_mention(str(folder)) == []


def test_the_demo_shows_that_nothing_is_lost(environment: dict[str, str]) -> None:
    began = time.monotonic()
    done = subprocess.run(ARGV, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    balances = re.findall(r"(\d+) added = (\d+) done \+ (\d+) waiting \+ (\d+) with workers", done.stdout)
    assert balances == [("12", "3", "7", "2"), ("12", "3", "7", "2"), ("12", "11", "0", "1")]
    assert "nacks: 1" in done.stdout
    assert "kill -9" in done.stdout
    assert time.monotonic() - began < SECONDS_MAX


def test_in_a_pipe_the_demo_is_plain_text(environment: dict[str, str]) -> None:
    done = subprocess.run(
        ARGV, env={**environment, "TERM": "xterm-256color"}, capture_output=True, timeout=50, check=False
    )
    assert b"\x1b" not in done.stdout


def test_on_a_terminal_the_demo_has_colours(environment: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    shown = b""
    environment = {**environment, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(ARGV, env=environment, stdout=theirs, stderr=theirs) as demo:
        os.close(theirs)
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # the other end of a terminal is gone
            pass
        assert demo.wait(50) == 0
    os.close(ours)
    assert b"\x1b[1;36m1. Add jobs" in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_cleans_up(environment: dict[str, str], number: signal.Signals) -> None:
    with subprocess.Popen(ARGV, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as demo:
        wait_until(lambda: processes_that_mention(environment["TMPDIR"]))
        demo.send_signal(number)
        _, complaint = demo.communicate(timeout=50)
    assert demo.returncode == 1
    assert complaint == "demo: interrupted; the node is stopped and nothing is left behind\n"


def test_a_demo_whose_node_can_not_start_says_why(environment: dict[str, str]) -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        argv = [*ARGV, "--port", str(port)]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("demo: failed: the node ended with code 1:\n")
    assert re.search(rf"can't listen on .*port {port}", done.stderr)
