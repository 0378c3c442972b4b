"""The functions that the server offers, version 1. Every argument comes from the network: each is checked here."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from inspect import signature
from typing import Any

from penstock.fsq import control, path
from penstock.fsq.errors import FSQPathError
from penstock.fsq.names import parse
from penstock.fsq.reenqueueing import sreenqueue

API_VERSION = "1.0"


def enqueue(id: str, queue: str, data: str) -> str:  # noqa: A002 - callers may name the argument
    """Put data under a given name into a queue; an item that is there already is left as it is."""
    _text(id=id, queue=queue, data=data)
    parse(path.valid_name(id))  # a name that no scanner can read has no place in a queue
    return sreenqueue(id, data, path.valid_name(queue))


def trigger_pull(queue: str, ignore_listener: bool = False, trigger: str | None = None) -> None:
    """Wake whoever waits for a queue."""
    _text(queue=queue)
    if trigger is not None:
        _text(trigger=trigger)
    control.trigger_pull(path.valid_name(queue), ignore_listener=bool(ignore_listener), trigger=trigger)


def is_down(queue: str, host: str | None = None) -> bool:
    """Whether a queue, or one of its hosts, is down."""
    _text(queue=queue)
    if host is not None:
        _text(host=host)
    return control.is_down(path.valid_name(queue), host=host)


def api_version() -> str:
    """Return the version of these functions."""
    return API_VERSION


def _text(**values: Any) -> None:
    for name, value in values.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a text, not {type(value).__name__}")


METHODS: dict[str, Callable[..., Any]] = {
    "enqueue": enqueue,
    "trigger_pull": trigger_pull,
    "is_down": is_down,
    "api_version": api_version,
}


def methods_for(queues: Collection[str] | None) -> Mapping[str, Callable[..., Any]]:
    """Return the functions for a list of queues; for all queues if it is None."""
    if queues is None:
        return METHODS
    return {name: _limited(function, queues) for name, function in METHODS.items()}


def _limited(function: Callable[..., Any], queues: Collection[str]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        queue = signature(function).bind(*args, **named).arguments.get("queue")
        if isinstance(queue, str) and queue not in queues:
            raise FSQPathError(errno.EACCES, f"queue must be one that this server takes items for, got {queue!r}")
        return function(*args, **named)

    return call
