"""Virtual time: what is to happen, in order, and a digest of what did.

Time is whole microseconds from the start of a run. Nothing here or above it asks a real clock, so a run takes as long
as its events take, and the same seed gives the same events.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any

MS = 1000  # microseconds
SECOND = 1_000_000
DIGEST_BYTES = 1 << 16  # collected before they are hashed: one call for each event would cost more than the event


class Timeline:
    """The heap of events."""

    __slots__ = ("_count", "_heap", "now_us")

    def __init__(self) -> None:
        self.now_us = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, at_us: int, act: Callable[..., None], *args: Any) -> None:
        """Plan something; what is planned first for an instant happens first."""
        self._count += 1
        heappush(self._heap, (at_us, self._count, act, args))

    def after(self, wait_us: int, act: Callable[..., None], *args: Any) -> None:
        """Plan something for a while from now."""
        self._count += 1
        heappush(self._heap, (self.now_us + wait_us, self._count, act, args))

    def run(self, until_us: int) -> None:
        """Let everything happen up to a time."""
        heap = self._heap
        while heap and heap[0][0] <= until_us:
            self.now_us, _, act, args = heappop(heap)
            act(*args)
        self.now_us = until_us


class Digest:
    """The event hash: of every message, reply and timer, in order."""

    __slots__ = ("_buffer", "_hash", "events")

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self._buffer = bytearray()
        self.events = 0

    def note(self, what: bytes, data: bytes) -> None:
        """Add an event."""
        self.events += 1
        self._buffer += what
        self._buffer += data
        if len(self._buffer) >= DIGEST_BYTES:
            self._hash.update(self._buffer)
            self._buffer.clear()

    def hexdigest(self) -> str:
        """Return the hash so far."""
        self._hash.update(self._buffer)
        self._buffer.clear()
        return self._hash.hexdigest()
