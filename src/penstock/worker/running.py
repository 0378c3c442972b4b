"""What runs handlers: `tasks` those that await, `threads` plain ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.queues.aio import Job
from penstock.worker.held import Held

CANCEL_S = 5.0  # how long a handler that is cancelled may tidy up

# Called in the event loop with a job whose handler has ended, and with what it raised.
Finished = Callable[[Held, BaseException | None], None]
# Called before a handler; returns what is to be awaited before it begins.
OnStart = Callable[[Job], Coroutine[Any, Any, None] | None]


class Runner:
    """The base of both."""

    def __init__(self, concurrency: int, finished: Finished) -> None:
        self.concurrency = concurrency
        self.running: set[Held] = set()
        self._finished = finished

    @property
    def has_room(self) -> bool:
        """Whether another job may be started."""
        return len(self.running) < self.concurrency

    @property
    def busy(self) -> int:
        """How many handlers run."""
        return len(self.running)

    def start(self, held: Held) -> None:
        """Run the handler of a job, soon."""
        raise NotImplementedError

    def cut(self, held: Held, why: BaseException) -> bool:
        """End a handler, where that can be done. True if it had not begun: then nothing more is heard of it."""
        raise NotImplementedError

    def lose(self, held: Held) -> bool:
        """The lease of a job was lost; as `cut`."""
        raise NotImplementedError

    def take_back(self) -> list[Held]:
        """Jobs that were started and have not begun: they are no longer to be run."""
        return []

    def close(self) -> None:
        """No more jobs."""


def undone(result: object) -> TypeError | None:
    """What a handler returned may be work that nobody will do: then its job is not done."""
    if inspect.iscoroutine(result):
        result.close()  # or Python warns, long after
        return TypeError("the handler gave a coroutine that nobody awaits: write it with `async def` and `await`")
    if inspect.isgenerator(result):
        return TypeError("the handler gave a generator that nobody runs: write it without `yield`")
    if inspect.isasyncgen(result):
        return TypeError("the handler gave an async generator that nobody runs: write it without `yield`")
    if inspect.isawaitable(result):
        return TypeError("the handler gave an awaitable that nobody awaits: write it with `async def` and `await`")
    return None
