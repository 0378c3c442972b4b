"""Memory: what is accounted, and the levels of pressure. What is given up under it is in `eviction`.

Accounted is what grows with use: jobs, queues and the buffers of connections, each at what it really takes in this
process. The interpreter itself isn't, so that a limit of a few megabytes means a few megabytes of jobs.

Level 1, above 75 %: new jobs are kept by other nodes, copies are refused, idle queues go after 10 s.
Level 2, above 95 %: before each command, jobs that nobody needs any more are evicted (acked ones, and delivered ones of
retry 0); if that isn't enough, commands that need memory are refused.
"""

from __future__ import annotations

from typing import Final

MAXMEMORY_DEFAULT: Final = 1 << 30
WARN_PERCENT: Final = 75
FULL_PERCENT: Final = 95
# An empty node: its tables and caches. Small on purpose, see above.
BASE_BYTES: Final = 100_000


class Memory:
    """What is used, and the limits."""

    __slots__ = (
        "_sample_at",
        "base_bytes",
        "evict",
        "full_bytes",
        "max_bytes",
        "peak_bytes",
        "used_bytes",
        "warn_bytes",
    )

    def __init__(self, max_bytes: int = MAXMEMORY_DEFAULT, evict: bool = True) -> None:
        self.base_bytes = BASE_BYTES
        self.used_bytes = BASE_BYTES
        self.peak_bytes = BASE_BYTES
        self.evict = evict  # policy `acks`; False is `noeviction`
        self._sample_at = 0
        self.limit(max_bytes)

    def limit(self, max_bytes: int) -> None:
        """Set the limit; 0 means no refusals, but permanent pressure, as operators know it."""
        self.max_bytes = max_bytes
        self.warn_bytes = max_bytes // 100 * WARN_PERCENT
        self.full_bytes = max_bytes // 100 * FULL_PERCENT

    def level(self) -> int:
        """Give the level of pressure: 0, 1 or 2."""
        return (self.used_bytes > self.warn_bytes) + (self.used_bytes > self.full_bytes)

    def next_sample(self, step: int) -> int:
        """Walk round the tables, a step at a time."""
        self._sample_at += step
        return self._sample_at
