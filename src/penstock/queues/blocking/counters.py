"""Counters that the store doesn't write by itself are summed here, and written in one call every 100 ms.

As in `penstock.queues.aio.counters`; here a thread writes them, which runs only while there is something to write. It
is a daemon: it keeps no process alive, and `close` writes the rest.
"""

import os
import threading
from collections.abc import Callable
from weakref import WeakSet

from penstock.errors import PenstockError
from penstock.queues.blocking.stats import Stats

FLUSH_S = 0.1
RETRY_S_MAX = 5.0  # between two attempts while the statistics can't be reached


class Counters:
    """The sums of one store that are not yet written."""

    def __init__(self, stats: Stats, counts: Callable[[str], bool] = lambda queue: False) -> None:
        """`counts` is whether the store itself counts what happens in a queue."""
        self._stats = stats
        self._counts = counts
        self.observer: Callable[[str, str, int], None] | None = None  # hears of all that is counted in this process
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """Also in a forked child: the sums of the parent are the parent's to write, and it has no thread."""
        self._pid = os.getpid()
        self._sums: dict[str, dict[str, int]] = {}
        self._lock = threading.Lock()  # of the sums
        self._writing = threading.Lock()  # one writer at a time: a caller that waits for it finds all written
        self._writer: threading.Thread | None = None
        self._closing = threading.Event()

    def count(self, queue: str, counter: str, by: int = 1) -> None:
        """Add to a counter, unless the store has done so by itself."""
        if self.observer is not None:
            self.observer(queue, counter, by)
        if not by or self._counts(queue):
            return
        if self._stats.is_local:
            self._stats.count(queue, counter, by)
            return
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            self._add(queue, counter, by)
            if self._writer is None and not self._closing.is_set():
                self._writer = threading.Thread(target=self._write, name="penstock-counters", daemon=True)
                self._writer.start()

    def _add(self, queue: str, counter: str, by: int) -> None:
        sums = self._sums.setdefault(queue, {})
        sums[counter] = sums.get(counter, 0) + by

    def _write(self) -> None:
        """Write every 100 ms while there is something, and less often while the statistics can't be reached."""
        pause_s = FLUSH_S
        while True:
            self._closing.wait(pause_s)
            try:
                pause_s = FLUSH_S if self._flush() else min(2 * pause_s, RETRY_S_MAX)
            except BaseException:
                with self._lock:
                    self._writer = None  # the next count starts another
                raise
            with self._lock:
                if not self._sums or self._closing.is_set():
                    self._writer = None
                    return

    def flush(self) -> None:
        """Write what there is."""
        self._flush()

    def _flush(self) -> bool:
        """Whether all was written. What can't be is kept for the next time: jobs matter more."""
        if self._pid != os.getpid():
            self._begin()
        with self._writing:
            with self._lock:
                sums, self._sums = self._sums, {}
            if not sums:
                return True
            try:
                self._stats.add(sums)
            except BaseException as problem:
                with self._lock:
                    for queue, counters in sums.items():
                        for counter, by in counters.items():
                            self._add(queue, counter, by)
                if not isinstance(problem, PenstockError | OSError):
                    raise
                return False
        return True

    def close(self) -> None:
        """Wait for what is being written, and write the rest."""
        self._closing.set()
        self.flush()

    def hold(self) -> None:
        """Before a fork: wait for the thread's write, whose locks would be held forever in the child."""
        self._writing.acquire()

    def go_on(self) -> None:
        """After a fork, in the parent and in the child."""
        self._writing.release()


_all: WeakSet[Counters] = WeakSet()
_held: list[Counters] = []


def _before_fork() -> None:
    for counters in list(_all):
        counters.hold()
        _held.append(counters)


def _after_fork() -> None:
    while _held:
        _held.pop().go_on()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
