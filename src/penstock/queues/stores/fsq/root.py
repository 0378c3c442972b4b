"""The directory of all queues, and how calls work on it: one at a time, with the store's own settings of FSQ."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from penstock.errors import StoreError
from penstock.fsq import constants
from penstock.fsq.directory import DirectorySession
from penstock.fsq.errors import FSQError, describe

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Root:
    """One root. Every call that touches a queue goes through `guard`."""

    def __init__(self, path: str, sync: bool = True) -> None:
        self.path = path
        self.sync = sync
        self.forget_lock()

    def forget_lock(self) -> None:
        """In a forked child another thread of the parent may have held the lock."""
        self._lock = threading.RLock()

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Use the settings of FSQ that this store has of its own."""
        changed = {"FSQ_ROOT": self.path} if self.sync else {"FSQ_ROOT": self.path, "FSQ_SYNC": 0}
        with constants.using(**changed):
            yield

    def guard(self, call: Callable[Arguments, Result], *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        """Return the result of a call; errors of the system are raised as StoreError."""
        with self._lock, self.settings(), DirectorySession():
            try:
                return call(*args, **named)
            except (FSQError, OSError) as problem:
                raise StoreError(f"fsq:{self.path}: {_described(problem)}") from problem


class HasRoot(Protocol):
    """What has guarded methods."""

    root: Root


Owner = TypeVar("Owner", bound=HasRoot)


def guarded(
    method: Callable[Concatenate[Owner, Arguments], Result],
) -> Callable[Concatenate[Owner, Arguments], Result]:
    """Let a method go through the guard of its object's root."""

    def call(self: Owner, /, *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        return self.root.guard(method, self, *args, **named)

    return wraps(method)(call)


def _described(problem: OSError) -> str:
    """Return an error's text with the path that it is about."""
    path = None if isinstance(problem, FSQError) else problem.filename
    return f"{path}: {describe(problem)}" if path else describe(problem)
