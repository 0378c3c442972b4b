"""Ids of jobs that are over, kept for a while.

A copy of a job may still be on its way when its end has reached everybody: sent again because an answer was late, or
held up on a slow link. It must not bring the job back to life. The last ids are remembered, in two generations of
which the older is dropped when the younger is full.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core.memory import Memory

GENERATION_MAX: Final = 32_768  # ids: at 1,000 finished jobs a second the last half minute, in some 5 MB
ENTRY_BYTES: Final = 120
SHARE: Final = 64  # of maxmemory, at most a part of this size goes into a generation


class Finished:
    """The jobs that ended last."""

    __slots__ = ("_memory", "_old", "_young")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def add(self, job_id: bytes) -> None:
        """Remember that a job is over."""
        if job_id in self._young:
            return
        limit = GENERATION_MAX
        if self._memory.max_bytes:
            limit = min(limit, max(64, self._memory.max_bytes // SHARE // ENTRY_BYTES))
        if len(self._young) >= limit:
            self._memory.used_bytes -= ENTRY_BYTES * len(self._old)
            self._old, self._young = self._young, set()
        self._young.add(job_id)
        self._memory.used_bytes += ENTRY_BYTES

    def clear(self) -> None:
        """Forget all."""
        self._young = set()
        self._old = set()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __contains__(self, job_id: bytes) -> bool:
        return job_id in self._young or job_id in self._old
