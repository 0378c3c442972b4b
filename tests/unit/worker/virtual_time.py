"""An event loop whose clock jumps: tests of hours take no time, and nothing depends on how busy the machine is.

When nobody has anything to do until a timer is due, the clock is set to that time. For code without threads.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import penstock
from penstock import Store

START_S = 1_000_000.0
STUCK_S = 10.0  # of real time without anything to do and without a timer: whoever waits, waits forever


class _Selector:
    """A selector that waits for nothing but the clock."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.now_s = START_S

    def select(self, timeout: float | None = None) -> list[Any]:
        events = self._selector.select(0)
        if not events and timeout is None:
            events = self._selector.select(STUCK_S)
            assert events, "everybody waits for something that never comes"
        if not events and timeout:
            self.now_s += timeout
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in virtual time."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **named))

    return run


def memory_store(**options: Any) -> Store:
    """A store of its own whose clock is the loop's."""
    store = penstock.connect("memory:", **options)
    loop = asyncio.get_running_loop()
    driver: Any = store._driver
    driver.inner.now_ms = lambda: round(loop.time() * 1000)
    return store
