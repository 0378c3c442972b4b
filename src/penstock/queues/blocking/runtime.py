"""The names of `penstock.queues.aio.runtime` for programs without an event loop, where calls come one at a time."""

import threading
import time
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Kind = TypeVar("Kind", bound=type)

Lock = threading.Lock
sleep = time.sleep


def opened_in_this_form(kind: Kind) -> Kind:
    """Make `async with` on objects of a class raise a TypeError that says what to write instead.

    The methods are set here and not written in the class, so that type checkers still refuse such an `async with`.
    """

    def refuse(self: object, *_: object) -> NoReturn:
        raise TypeError(f"{self!r} must be opened with `with`; in a program with asyncio, use penstock.connect")

    for name in ("__aenter__", "__aexit__"):
        setattr(kind, name, refuse)
    return kind


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

    def __init__(self, send: Callable[[list[Item]], list[Result]], batch_max: int, *, in_turn: bool = False) -> None:
        self._send = send

    def add(self, item: Item) -> Result:
        """Return one item's result."""
        return self._send([item])[0]

    def finish(self) -> None:
        """Nothing is ever under way."""


def to_the_end(work: Result, undo: Callable[[Result], object]) -> Result:
    """Return the work's result: it is done by now, as nobody can cancel it."""
    return work
