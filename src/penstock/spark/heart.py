"""What keeps the jobs of a batch leased while it runs: a thread of the driver's Python process.

It has a connection of its own, so that a long call of the query doesn't hold it up. No error ends it: as long as the
query runs it tries again, at first soon. It ends with the process, and then the leases end by themselves.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.queues.blocking import Store, connect
from penstock.spark.settings import Settings

AGAIN_S = 2.0  # after leases could not be made longer
STOP_S = 5.0  # that a beat under way has left when the query stops

# Makes leases longer; gives how many seconds it may be until the next time, None for a third of the lease.
Beat = Callable[[Store], float | None]

log = logging.getLogger("penstock.spark")


class Heart:
    """Beats from `start` to `stop`."""

    def __init__(self, settings: Settings, beat: Beat, first_s: float) -> None:
        self._settings = settings
        self._beat = beat
        self._first_s = first_s
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, if it doesn't beat yet."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-leases", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End, after the beat that is under way: what is stopped holds on to nothing any more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _run(self) -> None:
        store: Store | None = None
        pause_s = self._first_s
        while not self._stopping.wait(pause_s):
            pause_s = self._settings.lease_s / 3
            try:
                if store is None:
                    store = connect(self._settings.url, lease=self._settings.lease_s)
                store.open()
                pause_s = min(pause_s, self._beat(store) or pause_s)
            except Exception as problem:
                # The store may come back, or be put right, before the leases end: then it must not be long until they
                # are made longer.
                pause_s = min(pause_s, AGAIN_S)
                is_known = isinstance(problem, PenstockError)
                log.warning(
                    "the leases of %s could not be extended, next try in %g s: %s",
                    self._settings.queue,
                    pause_s,
                    problem if is_known else f"{type(problem).__name__}: {problem}",
                    exc_info=not is_known,
                )
                if store is not None and not is_known:
                    # Nobody knows in which state the error has left it.
                    _close(store)
                    store = None
        if store is not None:
            _close(store)


def _close(store: Store) -> None:
    try:
        store.close()
    except Exception as problem:
        log.warning("a connection could not be closed: %s", problem)
