"""Something that must happen once, before all else."""

import threading
from collections.abc import Callable


class Once:
    """Calls the first time; who comes meanwhile waits; if it fails, the next one tries again."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._lock = threading.RLock()
        self.is_done = False

    def __call__(self) -> None:
        if self.is_done:
            return
        with self._lock:
            if not self.is_done:
                self._call()
                self.is_done = True
