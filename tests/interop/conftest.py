"""Fixtures for interop tests: Node Keuss as a peer, and queue names that no other test uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.interop.keuss_peer import KeussPeer

_numbers = count(1)


@pytest.fixture(scope="module")
def keuss() -> Iterator[KeussPeer]:
    """One Node process for all tests of a module; each opens factories of its own in it."""
    with KeussPeer() as peer:
        yield peer


@pytest.fixture
def start_keuss() -> Iterator[Callable[[], KeussPeer]]:
    """Start Node processes of a test's own, to be killed."""
    peers: list[KeussPeer] = []

    def start() -> KeussPeer:
        peers.append(KeussPeer())
        return peers[-1]

    yield start
    for peer in peers:
        peer.stop()


@pytest.fixture
def queue_name() -> str:
    """The name of a queue that no other test uses."""
    return f"interop-{next(_numbers)}"
