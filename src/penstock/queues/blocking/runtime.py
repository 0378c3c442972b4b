"""The names of `penstock.queues.aio.runtime` for programs without an event loop, where calls come one at a time."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Once:
    """Calls a function once. Concurrent callers wait; after a failure the next caller retries."""

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


class Coalescer(Generic[Item, Result]):
    """Sends each item at once: there is nothing to wait for."""

    def __init__(self, send: Callable[[list[Item]], list[Result]], batch_max: int) -> None:
        self._send = send

    def add(self, item: Item) -> Result:
        """Return one item's result."""
        return self._send([item])[0]

    def finish(self) -> None:
        """Nothing is ever under way."""


def to_the_end(work: Result, undo: Callable[[Result], object]) -> Result:
    """Return the work's result: it is done by now, as nobody can cancel it."""
    return work
