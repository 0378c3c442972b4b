"""Settings of an app: arguments of `App`, then the environment, then a file, then the default.

    setting   argument    variable           in penstock.toml, or in [tool.penstock] of pyproject.toml
    url       url         PENSTOCK_URL       url = "sqlite:///shop.db"
    queue     queue       PENSTOCK_QUEUE     queue = "default"
    queues    queues      PENSTOCK_QUEUES    queues = {video = 2, mail = 20}; as a variable: video=2,mail=20
    unknown   unknown     PENSTOCK_UNKNOWN   unknown = "wait"
    results   results     PENSTOCK_RESULTS   results = "redis://localhost:6379/1"

The files are those of the current directory; penstock.toml goes before pyproject.toml. `hooks` and `context` are
arguments only: they are objects of the program, which no text can name without importing it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import CallerError
from penstock.queues.options import without_password
from penstock.queues.registry import is_store_url

UNKNOWN = ("wait", "fail")  # what becomes of a job whose task the app doesn't have
OWN_FILE, PROJECT_FILE = "penstock.toml", "pyproject.toml"


class Value(NamedTuple):
    """A setting that is in force, and where it came from."""

    name: str
    value: Any  # of the type that `App` takes
    origin: str

    @property
    def shown(self) -> str:
        """The value as it may be shown: without a password."""
        if self.value is None:
            return ""
        if isinstance(self.value, Mapping):
            return ",".join(f"{name}={count}" for name, count in self.value.items())
        return without_password(self.value) if is_store_url(self.value) else self.value


def _url(origin: str, value: Any) -> str:
    if not isinstance(value, str) or not is_store_url(value):
        shown = without_password(value) if isinstance(value, str) else value
        raise CallerError(f"{origin} must be the URL of a store, such as sqlite:///shop.db, got {shown!r}")
    return value


def _queue(origin: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise CallerError(f"{origin} must be the name of a queue, got {value!r}")
    return value


def _queues(origin: str, value: Any) -> dict[str, int]:
    text = value if isinstance(value, str) else None
    if text is not None:
        pairs = [part.rpartition("=") for part in text.split(",")]
        value = {name.strip(): int(count) if count.strip().isdecimal() else count for name, _, count in pairs}
    if not isinstance(value, Mapping):
        raise CallerError(f"{origin} must be queues and their concurrency, such as video=2,mail=20, got {value!r}")
    for name, count in value.items():
        if not isinstance(name, str) or not name or type(count) is not int or count < 1:
            shown = f"{name!r}: {count!r}" if text is None else f"{text!r}; write video=2,mail=20"
            raise CallerError(f"{origin} must have a concurrency of 1 or more for each name, got {shown}")
    return dict(value)


def _unknown(origin: str, value: Any) -> str:
    if value not in UNKNOWN:
        raise CallerError(f'{origin} must be "wait" or "fail", got {value!r}')
    return str(value)


class TaskSetting(NamedTuple):
    """A row of the table."""

    check: Callable[[str, Any], Any]
    default: Any = None


SETTINGS = {
    "url": TaskSetting(_url),
    "queue": TaskSetting(_queue, "default"),
    "queues": TaskSetting(_queues),
    "unknown": TaskSetting(_unknown, "wait"),
    "results": TaskSetting(_url),
}


def find(name: str, given: Any = None) -> Value:
    """Return what a setting is, checked; `given` is the argument of the app."""
    check = SETTINGS[name].check
    if given is not None:
        return Value(name, check(name, given), "App(...)")
    variable = f"PENSTOCK_{name.upper()}"
    text = os.environ.get(variable)
    if text:
        return Value(name, check(variable, text), variable)
    for file, table in _files():
        if name in table:
            return Value(name, check(f"{name} in {file}", table[name]), file)
    return Value(name, SETTINGS[name].default, "default")


def _files() -> list[tuple[str, Mapping[str, Any]]]:
    """Return the files of the current directory that have settings, the first one before the others."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for file in (OWN_FILE, PROJECT_FILE):
        path = Path(file)
        if not path.is_file():
            continue
        try:
            table: Any = tomllib.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as problem:
            if file == PROJECT_FILE:
                continue  # others complain about it
            raise CallerError(f"{file} can't be read: {problem}") from problem
        if file == PROJECT_FILE:
            table = table.get("tool", {}).get("penstock", {})
        unknown = sorted(table.keys() - SETTINGS)
        if unknown:
            raise CallerError(f"{file} has no setting {unknown[0]!r}; there are {', '.join(SETTINGS)}")
        found.append((file, table))
    return found
