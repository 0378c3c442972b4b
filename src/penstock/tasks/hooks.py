"""Hooks: small classes of the application around every task, as middleware.

    class Timing:
        def before(self, call): ...          # the function is about to be called
        def after(self, call, result): ...   # it has returned
        def failed(self, call, error): ...   # it has raised; `error` is the exception
        def pushed(self, call): ...          # in the program that pushes

Each method may be left out. They are plain functions and must be quick; those around a task run where it does: in the
event loop, or in its thread. `before` and `pushed` are called in the order of the hooks, the others in reverse. What a
hook raises is logged, and costs no job.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, NamedTuple

from penstock.errors import CallerError
from penstock.worker.reporting import call_hook

METHODS = ("before", "after", "failed", "pushed")


class PushedCall(NamedTuple):
    """A call that was pushed."""

    task: str
    id: str
    queue: str
    args: dict[str, Any]  # as they are stored


class Hooks:
    """Some hooks, in their order."""

    def __init__(self, hooks: Iterable[object]) -> None:
        self._hooks = list(hooks)
        for hook in self._hooks:
            found = [getattr(hook, name) for name in METHODS if hasattr(hook, name)]
            if isinstance(hook, type) or not found:
                raise CallerError(f"a hook must be an object with one of {', '.join(METHODS)}, got {hook!r}")
            if any(map(inspect.iscoroutinefunction, found)):
                raise CallerError(f"the methods of a hook must be plain functions, got `async def` in {hook!r}")
        self._of = {name: [getattr(hook, name) for hook in self._hooks if hasattr(hook, name)] for name in METHODS}

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def and_also(self, hooks: Iterable[object]) -> Hooks:
        """Return these hooks and others behind them."""
        others = list(hooks)
        return Hooks([*self._hooks, *others]) if others else self

    def pushed(self, call: object) -> None:
        for hook in self._of["pushed"]:
            call_hook(hook, call)

    def before(self, call: object) -> None:
        for hook in self._of["before"]:
            call_hook(hook, call)

    def after(self, call: object, result: object) -> None:
        for hook in reversed(self._of["after"]):
            call_hook(hook, call, result)

    def failed(self, call: object, error: BaseException) -> None:
        for hook in reversed(self._of["failed"]):
            call_hook(hook, call, error)
