"""Handlers by name, and handlers that take only the payload."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import Any

from penstock.errors import CallerError
from penstock.queues.aio import Job
from penstock.queues.dead_letter import described
from penstock.worker.worker import Handler, is_async, refuse_generator

NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def load(name: str) -> Handler:
    """Return the function that `module:function` names. Modules of the current directory are found, too."""
    found = load_object(name, "a handler must be module:function, such as shop.mail:send")
    if not callable(found):
        raise CallerError(f"{name} must be a function, got {type(found).__name__}")
    handler: Handler = found
    return handler


def load_object(name: str, rule: str, kind: type | None = None) -> Any:
    """Return what `module:name` names; `rule` says what it must be, for the error."""
    if not NAME.fullmatch(name):
        raise CallerError(f"{rule}, got {name!r}")
    module_name, _, path = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found = _module(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise CallerError(f"the module {module_name} has no {path!r}{_alternatives(found, kind)}")
        found = getattr(found, part)
    return found


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name is not None and (name == problem.name or name.startswith(f"{problem.name}.")):
            text = f"there is no module {problem.name!r}, neither in {Path.cwd()} nor where Python looks for packages"
            raise CallerError(text) from problem
        raise CallerError(_blamed(name, problem)) from problem
    except Exception as problem:  # whatever the application's module does when it is imported
        raise CallerError(_blamed(name, problem)) from problem


def _blamed(name: str, problem: Exception) -> str:
    """Return the error of an import and where it arose: the last line that is not Python's own."""
    frames = [
        frame
        for frame in extract_tb(problem.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"the module {name} can't be imported: {described(problem)}{place}"


def _alternatives(found: Any, kind: type | None) -> str:
    """Return the names that could have been meant: objects of a kind, or what can be called."""
    names = sorted(
        name
        for name, value in getattr(found, "__dict__", {}).items()
        if not name.startswith("_") and (callable(value) if kind is None else isinstance(value, kind))
    )
    return f"; it has {', '.join(names[:10])}" if names else ""


def payload_handler(function: Callable[[Any], Any]) -> Handler:
    """Return a handler that calls a function, async or plain, with the payload of the job.

    `Worker(url, "mail", payload_handler(send))`
    """
    refuse_generator(function)
    if is_async(function):

        @wraps(function)
        async def awaiting(job: Job) -> Any:
            call: Awaitable[Any] = function(job.payload)
            return await call

        return awaiting

    @wraps(function)
    def plain(job: Job) -> Any:
        return function(job.payload)

    return plain
