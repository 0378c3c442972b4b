"""Fixtures for all tests: real nodes, peers on the bus and servers of others, started on demand and always ended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.bus_peer import BusPeer
from tests.processes import NodeProcess

pytest_plugins = ["tests.server_fixtures"]

# On a machine that is busy with other things an example may take any time. What hangs ends by the time-out of its test.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")

# A shell that runs the tests in its background has them ignore Ctrl-C, and all that they start, too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

StartNode = Callable[..., NodeProcess]
StartPeer = Callable[..., BusPeer]


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    """Start real nodes with given directives; each gets a directory of its own."""
    nodes: list[NodeProcess] = []

    def start(wait: bool = True, **directives: object) -> NodeProcess:
        directory = tmp_path / f"node{len(nodes)}"
        directory.mkdir()
        node = NodeProcess(directory, **directives)
        nodes.append(node)
        return node.start(wait)

    yield start
    for node in nodes:
        node.kill()


@pytest.fixture
def node(start_node: StartNode) -> NodeProcess:
    """A real node with default settings."""
    return start_node()


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One real node without a journal for all tests of a module: use queue names of your own."""
    process = NodeProcess(tmp_path_factory.mktemp("node"), appendonly="no").start()
    yield process
    process.kill()


@pytest.fixture
def start_peer() -> Iterator[StartPeer]:
    """Start peers on the cluster bus; at the end of the test none of them may have seen a violation."""
    peers: list[BusPeer] = []

    def start(**options: Any) -> BusPeer:
        peers.append(BusPeer(**options))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()
    assert [violation for peer in peers for violation in peer.violations] == []
