"""Counters, the pause flag and the options of every queue in one namespace: also the directory of queues.

Keuss' counters: put, get, reserve, commit, rollback, deadletter.
"""

from collections.abc import Mapping
from typing import Any

COUNTERS = ("put", "get", "reserve", "commit", "rollback", "deadletter")


class Stats:
    """What every place for statistics can do."""

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """Let go."""

    async def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Add to counters: queue -> counter -> how much. One round trip for all of them."""
        raise NotImplementedError

    async def counters(self, queue: str) -> dict[str, int]:
        """The counters of a queue; those that were never used may be missing."""
        raise NotImplementedError

    async def register(self, queue: str, options: Mapping[str, Any]) -> None:
        """Make a queue known. Empty options leave those alone that are there."""
        raise NotImplementedError

    async def options(self, queue: str) -> dict[str, Any]:
        """The options that the queue was made known with."""
        raise NotImplementedError

    async def queues(self) -> list[str]:
        """The queues that are known in this namespace."""
        raise NotImplementedError

    async def paused(self, queue: str) -> bool:
        """Whether the queue is paused."""
        raise NotImplementedError

    async def set_paused(self, queue: str, paused: bool) -> None:
        """Pause or resume."""
        raise NotImplementedError
