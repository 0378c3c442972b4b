"""Fixtures for tests of one real node: a raw connection to the module's node, and a queue that no other test uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

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
