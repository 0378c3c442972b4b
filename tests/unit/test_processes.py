"""Free ports for tests: what one test was given, no other gets, in this process or in another."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import processes
from tests.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
OTHER = """
from tests import processes
processes.PORTS = range({first}, {first} + 200)
print(*(processes.free_port() for _ in range(60)), flush=True)
input()
"""


@contextmanager
def another_process(first: int) -> Iterator[set[int]]:
    """Return the ports that another process was given, from a range that begins there; it lives until the end."""
    argv = [sys.executable, "-c", OTHER.format(first=first)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        yield {int(word) for word in process.stdout.readline().split()}
        process.communicate("\n")


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> int:
    """The first port of a small range, out of which all are taken."""
    port = free_port()
    monkeypatch.setattr(processes, "PORTS", range(port, port + 200))
    return port


def test_no_port_is_given_twice(first: int) -> None:
    ports = [free_port() for _ in range(60)]
    assert len(set(ports)) == 60


def test_no_port_is_given_to_two_processes(first: int) -> None:
    with another_process(first) as theirs:
        assert len(theirs) == 60
        assert theirs.isdisjoint(free_port() for _ in range(60))


def test_ports_in_a_row_are_free_with_those_of_the_bus(first: int) -> None:
    with socket.create_server(("127.0.0.1", first + 10_050)):
        for _ in range(10):
            port = free_port(in_a_row=5)
            assert not port <= first + 50 < port + 5
