"""Work for the next batch of a stream, in a thread of the driver's Python process, while a batch runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class BackgroundWork(Generic[Result]):
    """One piece of work at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._result: Result | None = None
        self._problem: BaseException | None = None

    def start(self, work: Callable[[], Result]) -> None:
        """Begin some work, after what was begun before."""
        self.take()
        self._thread = threading.Thread(target=self._run, args=(work,), name="penstock-background", daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Result]) -> None:
        try:
            self._result = work()
        except BaseException as problem:  # raised where the result is taken
            self._problem = problem

    @property
    def is_busy(self) -> bool:
        """Whether it works at this moment."""
        return self._thread is not None and self._thread.is_alive()

    def take(self) -> Result | None:
        """Wait for the work and return its result, once; raises what it raised."""
        if self._thread is None:
            return None
        self._thread.join()
        self._thread = None
        result, problem, self._result, self._problem = self._result, self._problem, None, None
        if problem is not None:
            raise problem
        return result
