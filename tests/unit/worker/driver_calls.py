"""Records the calls of a driver, and replaces some by failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from penstock import Store

Wrapped = Callable[..., Awaitable[Any]]


def watch(store: Store, call: str) -> list[int]:
    """How many jobs each call of a driver's method was for: of ack, nack, extend, release, reserve."""
    sizes: list[int] = []
    real: Wrapped = getattr(store._driver, call)

    async def watched(queue: str, jobs: Any, *more: Any) -> Any:
        sizes.append(jobs if isinstance(jobs, int) else len(jobs))
        return await real(queue, jobs, *more)

    setattr(store._driver, call, watched)
    return sizes


def break_off(store: Store, call: str, *problems: Exception, done: bool = False) -> list[Exception]:
    """Let the next calls raise; with `done` after they did what they should. Return those that are still to come."""
    real: Wrapped = getattr(store._driver, call)
    to_come = list(problems)

    async def broken(*args: Any) -> Any:
        if not to_come:
            return await real(*args)
        if done:
            await real(*args)
        raise to_come.pop(0)

    setattr(store._driver, call, broken)
    return to_come
