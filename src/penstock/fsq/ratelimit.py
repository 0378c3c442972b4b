"""Limits an iterator to N items per period."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class RatelimitedIterator(Generic[T]):
    """Yields the first item at once, and each later one not before its slot. Lost time is caught up."""

    def __init__(
        self,
        qty: float,
        period: float,
        iterator: Iterable[T],
        clock_func: Callable[[], float] = time.monotonic,
        sleep_func: Callable[[float], object] = time.sleep,
        allow_negative_sleep: bool = False,
    ) -> None:
        if qty <= 0:
            raise ValueError(f"a rate must be above 0, got {qty}")
        self._interval = period / qty
        self._iterator = iter(iterator)
        self._clock = clock_func
        self._sleep = sleep_func
        self._allow_negative_sleep = allow_negative_sleep
        self._slot: float | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        item = next(self._iterator)
        if self._slot is None:
            self._slot = self._clock()
        else:
            self._slot += self._interval
            rest = self._slot - self._clock()
            if rest > 0 or self._allow_negative_sleep:
                self._sleep(rest)
        return item


def ratelimited(qty: float, period: float, iterable: Iterable[T]) -> RatelimitedIterator[T]:
    """Return an iterator that takes `period` seconds for each `qty` items."""
    return RatelimitedIterator(qty, period, iterable)
