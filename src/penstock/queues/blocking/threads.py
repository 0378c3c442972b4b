"""Runs a blocking call: here it is just called, under a lock, since threads may share a store."""

import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class OneThread:
    """One call at a time."""

    def __init__(self, name: str) -> None:
        self._lock = threading.RLock()

    def run(self, call: Callable[Arguments, Result], *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        """The call's result."""
        with self._lock:
            return call(*args, **named)

    def close(self) -> None:
        """Nothing to end."""
