"""Counters are summed here, and go to the statistics in one call, at most every 100 ms and at the end.

Nobody writes while the program does something else: sums may lie here until its next call.
"""

import os
import threading
import time

from penstock.errors import PenstockError
from penstock.queues.blocking.stats.base import Stats

FLUSH_S = 0.1


class Counting:
    """The sums of one store that are not yet written."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._sums: dict[str, dict[str, int]] = {}
        self._flushed_at = 0.0
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def count(self, queue: str, counter: str, much: int = 1) -> None:
        """Add to a counter."""
        if not much:
            return
        self.note(queue, counter, much)
        if time.monotonic() - self._flushed_at >= FLUSH_S:
            self.flush()

    def note(self, queue: str, counter: str, much: int = 1) -> None:
        """Add to a counter when others are written."""
        with self._lock:
            if self._pid != os.getpid():  # in a forked child: the sums of the parent are the parent's to write
                self._sums, self._pid = {}, os.getpid()
            sums = self._sums.setdefault(queue, {})
            sums[counter] = sums.get(counter, 0) + much

    def flush(self) -> None:
        """Write what there is. Counters that can't be written are kept for the next time: jobs matter more."""
        with self._lock:
            sums, self._sums = self._sums if self._pid == os.getpid() else {}, {}
            self._flushed_at = time.monotonic()
        if not sums:
            return
        try:
            self._stats.add(sums)
        except (PenstockError, OSError):
            with self._lock:
                for queue, counters in sums.items():
                    mine = self._sums.setdefault(queue, {})
                    for counter, much in counters.items():
                        mine[counter] = mine.get(counter, 0) + much

    def close(self) -> None:
        """Write the rest."""
        self.flush()
