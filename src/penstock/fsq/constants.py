"""The settings: what they are called, what they are by default, and how their values are read.

Each is an environment variable of the same name, read once when this module is loaded, and can be changed later with
`set_const`. A change counts from the next call on: nothing else remembers a setting. As attributes of this module
(`constants.FSQ_ROOT`) they can be read too. `using` changes some for a block of code of one thread or task, so that
several roots can be worked on at the same time.
"""

from __future__ import annotations

import codecs
import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from penstock.fsq.errors import FSQCoerceError, FSQEnvError

Value = str | int | None


def coerce_text(value: object, charset: str | None = None) -> str:
    """Turn a value into text: bytes by the charset, numbers as they are printed."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        name = charset or text_of("FSQ_CHARSET")
        try:
            return bytes(value).decode(name)
        except (UnicodeError, LookupError) as error:
            raise FSQCoerceError(errno.EINVAL, f"cannot read {bytes(value)!r} as {name}") from error
    if isinstance(value, int | float):
        return str(value)
    raise FSQCoerceError(errno.EINVAL, f"cannot turn {type(value).__name__} into text: {value!r}")


def _number(value: object) -> int:
    if not isinstance(value, str | int | float | bytes):
        raise ValueError(value)
    return int(value)


def _octal(value: object) -> int:
    if isinstance(value, int):
        return int(value)
    return int(coerce_text(value, "ascii"), 8)


def _charset(value: object) -> str:
    name = coerce_text(value, "ascii")
    try:
        codecs.lookup(name)
    except LookupError as error:
        raise ValueError(f"unknown charset {name!r}") from error
    return name


def _owner(value: object) -> str | int | None:
    """A user or group, by name or number; nothing for an empty one."""
    if value is None or value == "":
        return None
    return value if isinstance(value, int) else coerce_text(value)


class Setting(NamedTuple):
    """One row: how a value is read, the default, and what it means."""

    read: Callable[[object], Value]
    default: Value
    meaning: str


SETTINGS: dict[str, Setting] = {
    "FSQ_ROOT": Setting(coerce_text, "/var/fsq", "the directory that holds all queues"),
    "FSQ_CHARSET": Setting(_charset, "utf8", "the charset of arguments and data that are bytes"),
    "FSQ_DELIMITER": Setting(coerce_text, "_", "what separates the fields of a new name"),
    "FSQ_ENCODE": Setting(coerce_text, "%", "the escape character; everybody who shares a queue must have the same"),
    "FSQ_TIMEFMT": Setting(coerce_text, "%Y%m%d%H%M%S", "how the time in a name is written"),
    "FSQ_QUEUE": Setting(coerce_text, "queue", "the directory of waiting items"),
    "FSQ_DONE": Setting(coerce_text, "done", "the directory of items that succeeded"),
    "FSQ_FAIL": Setting(coerce_text, "fail", "the directory of items that failed for good"),
    "FSQ_TMP": Setting(coerce_text, "tmp", "the directory of items that are being written"),
    "FSQ_DOWN": Setting(coerce_text, "down", "the file that stops scanning"),
    "FSQ_TRIGGER": Setting(coerce_text, "trigger-s", "the FIFO that wakes scanners"),
    "FSQ_HOSTS": Setting(coerce_text, "hosts", "the directory of host queues"),
    "FSQ_HOSTS_TRIGGER": Setting(coerce_text, "hosts-trigger-s", "the FIFO that wakes scanners of host queues"),
    "FSQ_ITEM_USER": Setting(_owner, None, "who owns items, down files and triggers: a name or a number"),
    "FSQ_ITEM_GROUP": Setting(_owner, None, "the group of items, down files and triggers"),
    "FSQ_QUEUE_USER": Setting(_owner, None, "who owns the directories"),
    "FSQ_QUEUE_GROUP": Setting(_owner, None, "the group of the directories"),
    "FSQ_ITEM_MODE": Setting(_octal, 0o640, "the mode of items, down files and triggers, in octal"),
    "FSQ_QUEUE_MODE": Setting(_octal, 0o2770, "the mode of the directories, in octal"),
    "FSQ_SUCCESS": Setting(_number, 0, "the exit code that means success"),
    "FSQ_FAIL_TMP": Setting(_number, 111, "the exit code that means: try again"),
    "FSQ_FAIL_PERM": Setting(_number, 100, "the exit code that means: failed for good"),
    "FSQ_MAX_TRIES": Setting(_number, 1, "how often an item is tried; 0: without limit"),
    "FSQ_TTL": Setting(_number, 0, "the age in seconds from which an item is failed; 0: any age will do"),
    "FSQ_LOCK": Setting(_number, 1, "0: neither take nor respect locks"),
    "FSQ_USE_TRIGGER": Setting(_number, 0, "1: a new queue gets a trigger without being asked"),
    "FSQ_EXEC_DIR": Setting(_owner, None, "where further commands of `fsq` are"),
    "FSQ_SYNC": Setting(_number, 1, "0: what was done may be undone by a power failure. Ours"),
}

_values: dict[str, Value] = {}
_here: ContextVar[dict[str, Value] | None] = ContextVar("penstock_fsq_settings", default=None)


def _value(name: str) -> Value:
    here = _here.get()
    return here[name] if here is not None and name in here else _values[name]


@contextmanager
def using(**values: object) -> Iterator[None]:
    """Have other settings in a block; other threads and tasks don't see them."""
    for name in values:
        if name not in _values:
            raise FSQEnvError(errno.ENOENT, f"unknown setting: {name}")
    token = _here.set({**(_here.get() or {}), **{name: _converted(name, value) for name, value in values.items()}})
    try:
        yield
    finally:
        _here.reset(token)


def _converted(name: str, value: object) -> Value:
    try:
        return SETTINGS[name].read(value)
    except FSQCoerceError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise FSQEnvError(errno.EINVAL, f"invalid value for {name}: {value!r}") from error


def load(environment: Mapping[str, str]) -> None:
    """Read all settings again, from an environment."""
    fresh: dict[str, Value] = {}
    for name, row in SETTINGS.items():
        fresh[name] = _converted(name, environment[name]) if name in environment else row.default
    _values.update(fresh)


def const(name: str) -> Any:
    """Return the value of a setting."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a setting must be a str, got {type(name).__name__}")
    if name not in _values:
        raise FSQEnvError(errno.EINVAL, f"unknown setting: {name}")
    return _value(name)


def set_const(name: str, value: object) -> Any:
    """Change a setting for this process, and return the value as it is stored."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a setting must be a str, got {type(name).__name__}")
    if name not in _values:
        raise FSQEnvError(errno.ENOENT, f"unknown setting: {name}")
    _values[name] = _converted(name, value)
    return _values[name]


def text_of(name: str) -> str:
    """Return a setting that is a text."""
    return str(_value(name))


def number_of(name: str) -> int:
    """Return a setting that is a number."""
    value = _value(name)
    assert isinstance(value, int), f"{name} is not a number"
    return value


def __getattr__(name: str) -> Any:
    if name in _values:
        return _value(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


load(os.environ)
