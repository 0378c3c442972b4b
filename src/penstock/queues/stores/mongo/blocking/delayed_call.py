"""As `penstock.queues.stores.mongo.aio.delayed_call`; here a daemon thread waits, which keeps no process alive."""

import threading
from collections.abc import Callable
from contextlib import suppress

from penstock.errors import PenstockError


class DelayedCall:
    """Calls a function `seconds` after `start`. What it raises of our errors is left to its next caller."""

    def __init__(self, call: Callable[[], None], seconds: float) -> None:
        self._call = call
        self._seconds = seconds
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """Begin to wait, unless it waits already."""
        with self._lock:
            # A forked child has no thread of its parent's.
            if self._timer is None or not self._timer.is_alive():
                self._timer = threading.Timer(self._seconds, self._run)
                self._timer.daemon = True
                self._timer.start()

    def _run(self) -> None:
        with self._lock:
            self._timer = None
        with suppress(PenstockError):
            self._call()

    def close(self) -> None:
        """Don't call any more."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
