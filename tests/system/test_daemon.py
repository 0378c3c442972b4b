"""A node in the background: whoever starts it hears whether it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import NodeProcess, free_port, wait_until

pytestmark = pytest.mark.system


class Daemon(NodeProcess):
    """A node that was started by `daemonize yes`."""

    @property
    def pidfile(self) -> Path:
        return self.directory / "pid"

    def launch(self, *more: str, pidfile: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Start it, and return how that ended."""
        argv = [sys.executable, "-m", "penstock", "server", "--port", str(self.port), "--bind", "127.0.0.1"]
        argv += ["--dir", str(self.directory), "--daemonize", "yes", "--logfile", str(self.directory / "log")]
        argv += ["--pidfile", str(pidfile or self.pidfile), *more]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    def pid(self) -> int:
        return int(self.pidfile.read_text())


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    node = Daemon(tmp_path, free_port())
    yield node
    if node.pidfile.exists():
        os.kill(node.pid(), signal.SIGKILL)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_daemon_is_ready_when_its_start_returns_and_cleans_up_when_it_is_stopped(daemon: Daemon) -> None:
    done = daemon.launch()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert daemon.call("PING") == b"PONG"
    pid = daemon.pid()
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: is_gone(pid))
    assert not daemon.pidfile.exists()


def test_a_second_daemon_in_the_same_directory_fails_and_leaves_the_pidfile_alone(daemon: Daemon) -> None:
    assert daemon.launch().returncode == 0
    pid = daemon.pid()
    second = daemon.launch()
    assert second.returncode == 1
    assert f"the node did not start: see {daemon.directory / 'log'}" in second.stderr
    assert "is locked by another node" in (daemon.directory / "log").read_text()
    assert daemon.pid() == pid
    assert daemon.call("PING") == b"PONG"


def test_a_pidfile_that_cant_be_written_stops_the_start(daemon: Daemon) -> None:
    done = daemon.launch(pidfile=daemon.directory / "missing" / "pid")
    assert done.returncode == 1
    assert "can't write the pidfile" in (daemon.directory / "log").read_text()


def test_a_journal_that_cant_be_loaded_stops_the_start(daemon: Daemon) -> None:
    (daemon.directory / "disque.aof").write_bytes(b"no journal\r\n")
    assert daemon.launch().returncode == 1
    assert "can't start" in (daemon.directory / "log").read_text()
    assert not daemon.pidfile.exists()
