"""Extends the leases of a batch while it runs, in a thread of the driver's Python process.

It has a connection of its own, so that a long call of the query doesn't delay it. No error ends it: while the query
runs it tries again, at first soon. It ends with the process; then the leases end by themselves.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.queues.blocking import Store, connect
from penstock.spark.settings import QuerySettings

RETRY_S = 2.0  # after leases could not be extended
STOP_S = 5.0  # that an extension under way gets when the query stops

# Extends leases; returns the seconds until the next time, None for a third of the lease.
Extend = Callable[[Store], float | None]

log = logging.getLogger("penstock.spark")


class LeaseKeeper:
    """Calls `extend` again and again, from `start` to `stop`."""

    def __init__(self, settings: QuerySettings, extend: Extend, first_s: float) -> None:
        self._settings = settings
        self._extend = extend
        self._first_s = first_s
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, if it doesn't run yet."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-leases", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop, after the extension that is under way: then no lease is extended any more."""
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
                pause_s = min(pause_s, self._extend(store) or pause_s)
            except Exception as problem:
                # The store may be reachable again before the leases end: then they must be extended soon.
                pause_s = min(pause_s, RETRY_S)
                is_known = isinstance(problem, PenstockError)
                log.warning(
                    "the leases of %s could not be extended, next try in %g s: %s",
                    self._settings.queue,
                    pause_s,
                    problem if is_known else f"{type(problem).__name__}: {problem}",
                    exc_info=not is_known,
                )
                if store is not None and not is_known:
                    # The error may have left it in any state.
                    _close(store)
                    store = None
        if store is not None:
            _close(store)


def _close(store: Store) -> None:
    try:
        store.close()
    except Exception as problem:
        log.warning("a connection could not be closed: %s", problem)
