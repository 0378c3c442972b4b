"""Real processes for tests: a Penstock node, and any other server, on free loopback ports.

Tests end only what they started, by its process id. A server that can't be had fails the test where CI=true, and skips
it with the reason elsewhere.
"""

from __future__ import annotations

import fcntl
import functools
import importlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, NoReturn, Self

import pytest

from penstock.client import Connection
from penstock.errors import ConnectionLost, ReplyError

# A node needs port and port + 10000, both below the range from which the system takes ports for outgoing connections.
PORTS = range(11_000, 22_000)
BUS_OFFSET = 10_000
START_SECONDS = 30.0  # on a machine that is busy with other things

_own_ports: set[int] = set()


def free_port(in_a_row: int = 1) -> int:
    """Find a port, or the first of several in a row, free together with those of the bus. No other test gets them."""
    while True:
        port = random.choice(PORTS)
        wanted = [at + bus for at in range(port, port + in_a_row) for bus in (0, BUS_OFFSET)]
        taken = list(takewhile(_take_port, wanted))
        if taken == wanted:
            return port
        for at in taken:
            _leave_port(at)


def _take_port(port: int) -> bool:
    """Keep a port for this process as long as it lives.

    Nobody listens there yet, so that tests of another process would find it free as well: a lock on the port's byte of
    a file tells them.
    """
    if port in _own_ports:
        return False
    try:
        fcntl.lockf(_port_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        return False
    _own_ports.add(port)
    return True


def _leave_port(port: int) -> None:
    _own_ports.remove(port)
    fcntl.lockf(_port_locks(), fcntl.LOCK_UN, 1, port)


@functools.cache
def _port_locks() -> int:
    return os.open(Path(tempfile.gettempdir(), f"penstock-test-ports-{os.getuid()}"), os.O_RDWR | os.O_CREAT, 0o600)


def lacking(what: str) -> NoReturn:
    """Skip a test that needs something which `make setup` installs; in CI, fail."""
    reason = f"{what} isn't installed: run `make setup`"
    pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)


def need_program(name: str) -> str:
    """Find a program, or skip (fail in CI)."""
    return shutil.which(name) or lacking(name)


def need_module(name: str) -> Any:
    """Import a package that only tests use, or skip (fail in CI)."""
    try:
        return importlib.import_module(name)
    except ImportError:
        lacking(f"the Python package {name}")


def wait_until(what: Callable[[], object], seconds: float = START_SECONDS, every: float = 0.01) -> Any:
    """Poll until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        value = what()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"still not true after {seconds} s: {what}")
        time.sleep(every)


HOST = "127.0.0.1"
STOP_SECONDS = 30.0


class ServerProcess:
    """A server: a process, its directory, its port and its log."""

    name = "server"
    stop_signal = signal.SIGTERM

    def __init__(self, directory: Path, port: int | None = None) -> None:
        self.directory = directory
        self.host = HOST
        self.port = free_port() if port is None else port
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def argv(self) -> list[str]:
        raise NotImplementedError

    @property
    def process_options(self) -> dict[str, Any]:
        """Further arguments of Popen."""
        return {}

    def is_ready(self) -> bool:
        """Whether it answers."""
        raise NotImplementedError

    def start(self, wait: bool = True) -> Self:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self.process_options
            )
        if wait:
            self.wait_until_it_answers()
        return self

    def wait_until_it_answers(self) -> None:
        wait_until(self._answers)

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            text = self.log.read_text(errors="replace")
            raise AssertionError(f"{self.name} ended with {self.process.returncode}:\n{text}")
        return self.is_ready()

    def kill_hard(self) -> None:
        """kill -9, as a power cut would; what the system has not been told to sync may still be written."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> Any:
        """End it as its administrator would."""
        if self.process is None:
            return
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill_hard()
            raise
        self.process = None

    def restart(self) -> Self:
        """Start it again on the same port and directory, after ending it if it still runs."""
        self.stop()
        return self.start()


class NodeProcess(ServerProcess):
    """A real `penstock server` in a directory of its own. Directives are given as keywords."""

    name = "the node"

    def __init__(self, directory: Path, port: int | None = None, **directives: object) -> None:
        super().__init__(directory, port)
        self.directives: dict[str, object] = {"bind": self.host, "port": self.port, "dir": directory, **directives}
        self.options: dict[str, Any] = {}  # how clients connect, where host and port are not enough
        self._connection: Connection | None = None

    @property
    def argv(self) -> list[str]:
        words = [sys.executable, "-m", "penstock", "server"]
        for name, value in self.directives.items():
            words += ["--" + name.replace("_", "-"), *str(value).split(" ")]
        return words

    def is_ready(self) -> bool:
        try:
            with self.connect() as connection:
                return connection.execute("PING") == b"PONG"
        except ConnectionLost:
            return False
        except ReplyError as error:
            return error.code != "LOADING"

    def connect(self, **options: Any) -> Connection:
        return Connection(self.host, self.port, **{"timeout": 60.0, **self.options, **options})

    def call(self, *words: Any) -> Any:
        """Run one command on a connection that is kept; an error reply is raised."""
        if self._connection is None:
            self._connection = self.connect()
        return self._connection.execute(*words)

    def info(self) -> dict[str, str]:
        """Return all of INFO as a dict."""
        lines = self.call("INFO", "all").decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def _forget_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def kill(self) -> None:
        """kill -9."""
        self._forget_connection()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self._forget_connection()
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self.process = None
        return code


def meet(*nodes: NodeProcess) -> None:
    """Make a cluster: each node is introduced to the next, and gossip does the rest."""
    ids = {node: node.call("CLUSTER", "MYID").decode() for node in nodes}

    def have_met() -> bool:
        for node, other in pairwise(nodes):
            # Again, if need be: on a busy machine a handshake may take longer than a short node timeout allows.
            if not any(line[0] == ids[other] or "handshake" in line[2] for line in node_lines(node)):
                node.call("CLUSTER", "MEET", other.host, other.port)
        return all(_sees_just(node, set(ids.values())) for node in nodes)

    wait_until(have_met)


def wait_until_met(*nodes: NodeProcess) -> None:
    """Wait until each of these nodes sees just these, and takes none for failed."""
    ids = {node.call("CLUSTER", "MYID").decode() for node in nodes}
    wait_until(lambda: all(_sees_just(node, ids) for node in nodes), 4 * START_SECONDS, every=0.1)


def node_lines(node: NodeProcess) -> list[list[str]]:
    """Read CLUSTER NODES: the fields of each line."""
    return [line.split(" ") for line in node.call("CLUSTER", "NODES").decode().splitlines()]


def _sees_just(node: NodeProcess, ids: set[str]) -> bool:
    lines = node_lines(node)
    is_well = all(line[2] in ("myself", "noflags") and line[5] == "connected" for line in lines)
    return is_well and {line[0] for line in lines} == ids


def resident_bytes(node: NodeProcess) -> int:
    """Return how much memory a node's process takes."""
    assert node.process is not None
    pages = int(Path(f"/proc/{node.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def settled_bytes(node: NodeProcess) -> int:
    """Return what a node says it uses, once that is steady: buffers are accounted for in rounds over all clients."""
    last = -1

    def is_steady() -> bool:
        nonlocal last
        before, last = last, int(node.info()["used_memory"])
        return before == last

    wait_until(is_steady, every=0.3)
    return last
