"""Without an event loop there is one call at a time: nothing to collect."""

from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Coalescer(Generic[Item, Result]):
    """Sends each item at once."""

    def __init__(self, send: Callable[[list[Item]], list[Result]], batch_max: int) -> None:
        self._send = send

    def add(self, item: Item) -> Result:
        """One item's result."""
        return self._send([item])[0]

    def finish(self) -> None:
        """Nothing is ever under way."""
