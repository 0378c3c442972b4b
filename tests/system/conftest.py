"""Fixtures for tests of one real node: a raw connection to the module's node, a queue that no other test uses, and
peers around a node of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.bus_cluster import BusCluster
from tests.bus_peer import BusPeer
from tests.processes import NodeProcess
from tests.raw_link import RawLink

_numbers = count(1)


@pytest.fixture
def open_link(shared_node: NodeProcess) -> Iterator[Callable[[], RawLink]]:
    """Open raw connections to the node of this module; all are closed at the end of the test."""
    links: list[RawLink] = []

    def open_one() -> RawLink:
        links.append(RawLink(shared_node))
        return links[-1]

    yield open_one
    for link in links:
        link.close()


@pytest.fixture
def link(open_link: Callable[[], RawLink]) -> RawLink:
    """One raw connection to the node of this module."""
    return open_link()


@pytest.fixture
def queue() -> bytes:
    """The name of a queue that no other test uses."""
    return b"queue-%d" % next(_numbers)


@pytest.fixture
def start_cluster(
    start_node: Callable[..., NodeProcess], start_peer: Callable[..., BusPeer]
) -> Iterator[Callable[..., BusCluster]]:
    """Start a real node with given directives, and peers that join it."""
    clusters: list[BusCluster] = []

    def start(peers: int = 1, **directives: object) -> BusCluster:
        clusters.append(BusCluster(start_node(**{"appendonly": "no", **directives}), start_peer))
        for _ in range(peers):
            clusters[-1].join()
        return clusters[-1]

    yield start
    for cluster in clusters:
        cluster.close()
