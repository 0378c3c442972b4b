"""The options of a task, and those of one push, as tables with their checks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypedDict

from penstock.errors import CallerError
from penstock.queues.backoff import Backoff, Exponential, Fixed
from penstock.queues.dead_letter import DeadLetter
from penstock.queues.push import Duration, is_number, plain_seconds, seconds
from penstock.tasks.workflow import FailedCall, Workflow, failure_node

MAX_TRIES = 25  # with the default back-off half a day, as of a worker
# Names that are kept for what is to come, so that no app uses them for something else.
TO_COME = {
    "rate_limit": "a limit on the rate over all workers",
    "global_concurrency": "a limit over all workers; `concurrency` is for each worker",
    "priority": "priorities; give urgent tasks a queue of their own",
    "fair": "fair shares; give each tenant a queue of its own",
}
Kinds = type[BaseException] | tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """What the decorator was given."""

    queue: str
    max_tries: int = MAX_TRIES
    time_limit: float | None = None
    retry_on: Kinds | None = None
    fail_on: Kinds = ()
    backoff: Backoff = field(default_factory=Exponential)
    deadline: float | None = None
    concurrency: int | None = None
    result_ttl: float | None = None
    isolate: bool = False
    on_failure: Workflow[FailedCall, Any] | None = None


def refuse_to_come(what: str, given: Iterable[str]) -> None:
    """Refuse the options that are to come."""
    for name in given:
        if name in TO_COME:
            raise CallerError(f"{what}: {name}= is not there yet: {TO_COME[name]}")


def checked(task: str, given: Mapping[str, Any], default_queue: str) -> TaskOptions:
    """Return the options of a task; CallerError, with the task's name, for what can't be."""
    refuse_to_come(f"task {task}", given)
    known = TaskOptions.__dataclass_fields__
    unknown = [name for name in given if name not in known]
    if unknown:
        raise TypeError(f"task {task}: there is no option {unknown[0]}=; there are {', '.join(sorted(known))}")
    options = {name: value for name, value in given.items() if value is not None}
    options.setdefault("queue", default_queue)
    try:
        return TaskOptions(**{name: _CHECKS[name](value) for name, value in options.items()})
    except CallerError as problem:
        raise CallerError(f"task {task}: {problem}") from None


def _queue(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise CallerError(f"queue must be the name of a queue, got {value!r}")
    return value


def _max_tries(value: Any) -> int:
    if not isinstance(value, int):
        raise CallerError(f"max_tries must be a number of deliveries, 0 for no limit, got {value!r}")
    return DeadLetter(value).max_tries


def _limit(name: str) -> Any:
    def check(value: Any) -> float:
        limit_s = plain_seconds(value)
        if not is_number(limit_s) or not 0 < limit_s < float("inf"):
            raise CallerError(f"{name} must be above 0 seconds, got {value!r}")
        return float(limit_s)

    return check


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 1:
        raise CallerError(f"concurrency must be 1 or more, got {value!r}")
    return value


def _kinds(name: str) -> Any:
    def check(value: Any) -> tuple[type[BaseException], ...]:
        kinds = tuple(value) if isinstance(value, Iterable) else (value,)
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise CallerError(f"{name} must be exception classes, got {kind!r}")
        return kinds

    return check


def _backoff(value: Any) -> Backoff:
    if isinstance(value, int | float):
        return Fixed(value)
    if not callable(value):
        raise CallerError(f"backoff must be seconds, Fixed(...), Exponential(...) or a function, got {value!r}")
    backoff: Backoff = value
    return backoff


def _on_failure(value: Any) -> Workflow[Any, Any]:
    failure_node("", value)  # which checks it
    found: Workflow[Any, Any] = value
    return found


_CHECKS: dict[str, Any] = {
    "queue": _queue,
    "max_tries": _max_tries,
    "time_limit": _limit("time_limit"),
    "retry_on": _kinds("retry_on"),
    "fail_on": _kinds("fail_on"),
    "backoff": _backoff,
    "deadline": _limit("deadline"),
    "concurrency": _count,
    "isolate": bool,
    "on_failure": _on_failure,
    "result_ttl": lambda value: seconds("result_ttl", value),
}


def module_of(function: Callable[..., Any]) -> str:
    """Return the name by which a worker imports the module of a function: of the program itself, its file's name."""
    module = str(getattr(function, "__module__", None) or "")
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return spec.name if spec is not None else Path(getattr(main, "__file__", "main")).stem


def task_name(function: Callable[..., Any]) -> str:
    """Return the name of a task: `module.function`."""
    name = getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]
    return f"{module_of(function)}.{name}"


class PushChoices(TypedDict, total=False):
    """The options of `task.options(...)`, for type checkers: those of `PushOptions`."""

    queue: str | None
    delay: Duration
    at: float | datetime | None
    unique: str | None
    unique_for: Duration
    ttl: Duration | None
    retry: Duration | None
    replicate: int | None
    deadline: Duration | None
    connection: Any
    on_failure: Workflow[FailedCall, Any] | None


# Options of a push that are those of `Queue.push`, and what stands for "not given".
_OF_QUEUE: dict[str, Any] = {
    "delay": 0,
    "at": None,
    "unique": None,
    "unique_for": 0,
    "ttl": None,
    "retry": None,
    "replicate": None,
    "connection": None,
}


@dataclass(frozen=True, slots=True)
class PushOptions:
    """What `task.options(...)` was given; what is None is the task's, or the queue's."""

    queue: str | None = None
    delay: Duration = 0
    at: float | datetime | None = None
    unique: str | None = None
    unique_for: Duration = 0
    ttl: Duration | None = None
    retry: Duration | None = None
    replicate: int | None = None
    deadline: Duration | None = None
    connection: Any = None
    on_failure: Workflow[FailedCall, Any] | None = None

    def __post_init__(self) -> None:
        if self.queue is not None:
            _queue(self.queue)
        if self.deadline is not None:
            seconds("deadline", self.deadline)

    @property
    def of_queue(self) -> dict[str, Any]:
        """The options of `Queue.push` that were given."""
        given = {name: getattr(self, name) for name in _OF_QUEUE}
        # A retry of 0 means something: at most once.
        return {name: value for name, value in given.items() if value is not None and value != _OF_QUEUE[name]}


NO_OPTIONS = PushOptions()
