"""The blocking form behind the async interface, so that one test runs on both.

What a test awaits is called at once, in the test's own thread; only calls that may wait for a job go to another thread,
as they would hold up whoever is to push it. What comes back is dressed in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from penstock.queues.blocking import Job, Queue, Store

# What isn't awaited in the async form either.
PLAIN = {
    "cancel",
    "check_open",
    "consumers",
    "dead_letters",
    "moves_atomically",
    "queue",
    "shift_clock",
    "transfer",
    "with_options",
}
MAY_WAIT = {"pop", "pop_many", "reserve", "reserve_many"}
WAITERS_MAX = 64  # threads that wait at the same time, of all tests

_threads = ThreadPoolExecutor(WAITERS_MAX, thread_name_prefix="facade")


def dress(value: Any) -> Any:
    """A store, queue or job in its async look; containers of them, too; all else as it is."""
    if isinstance(value, Store | Queue | Job):
        return Facade(value)
    if isinstance(value, list):
        return [dress(item) for item in value]
    if isinstance(value, dict):
        return {key: dress(item) for key, item in value.items()}
    return value


def undress(value: Any) -> Any:
    if isinstance(value, Facade):
        return value.inside
    if type(value) in (list, tuple):  # not a Push, which is a tuple, too
        return [undress(item) for item in value]
    return value


class Facade:
    """One object of the blocking form."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __repr__(self) -> str:
        return f"blocking {self.inside!r}"

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inside, name)
        if name == "payload":  # it may hold anything, as deep as it likes, but nothing to be dressed
            return value
        if not callable(value) or (not hasattr(value, "__self__") and name != "open"):
            return dress(value)
        if name in PLAIN:
            return lambda *args, **named: dress(value(*map(undress, args), **named))
        if name == "jobs":
            return lambda **named: _iterate(value, named)
        if name == "reserving":
            return lambda *args, **named: _entered(value, args, named)
        return lambda *args, **named: _awaited(value, name in MAY_WAIT, args, named)

    async def __aenter__(self) -> Facade:
        self.inside.__enter__()
        return self

    async def __aexit__(self, *problem: Any) -> None:
        self.inside.__exit__(*problem)


async def _awaited(call: Callable[..., Any], may_wait: bool, args: Any, named: dict[str, Any]) -> Any:
    args = [undress(arg) for arg in args]
    named = {name: undress(value) for name, value in named.items()}
    if not may_wait:
        return dress(call(*args, **named))
    return dress(await asyncio.get_running_loop().run_in_executor(_threads, lambda: call(*args, **named)))


async def _iterate(call: Callable[..., Any], named: dict[str, Any]) -> AsyncIterator[Any]:
    for item in call(**named):
        yield dress(item)


@asynccontextmanager
async def _entered(call: Callable[..., Any], args: Any, named: dict[str, Any]) -> AsyncIterator[Any]:
    with call(*args, **named) as value:
        yield dress(value)
