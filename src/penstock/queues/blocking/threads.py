"""Runs a blocking call: here it is just called. Threads may share a store, since engines take one call at a time."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class OneThread:
    """The caller's thread. No lock here: one that another thread has would be held for ever in a forked child."""

    def __init__(self, name: str) -> None:
        pass

    def run(self, call: Callable[Arguments, Result], *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        """The call's result."""
        return call(*args, **named)

    def close(self) -> None:
        """Nothing to end."""
