"""Where things are: every path in a queue is built here, from names that were checked here.

A name is plain: not empty, no `/`, no NUL, neither `.` nor `..`. So nothing that comes from a caller, from a name on
the disk or from the network can lead out of the directory it belongs to.
"""

from __future__ import annotations

import errno

from penstock.fsq.constants import coerce_text, text_of
from penstock.fsq.directory import ATTEMPTS
from penstock.fsq.errors import FSQPathError


def valid_name(name: object) -> str:
    """Return the name as text if it is a plain one."""
    text = coerce_text(name)
    if not text or text in (".", "..") or "/" in text or "\0" in text:
        raise FSQPathError(errno.EINVAL, f"illegal name: {text!r}")
    return text


def _entry(queue: object, host: object, *rest: object) -> str:
    parts = [text_of("FSQ_ROOT"), valid_name(queue)]
    if host is not None:
        parts += [valid_name(text_of("FSQ_HOSTS")), valid_name(host)]
    return "/".join([*parts, *map(valid_name, rest)])


def base(queue: object, host: object = None) -> str:
    """Return the directory of a queue, or of one of its hosts."""
    return _entry(queue, host)


def tmp(queue: object, host: object = None) -> str:
    """Return the directory where items are written."""
    return _entry(queue, host, text_of("FSQ_TMP"))


def queue(queue: object, host: object = None) -> str:
    """Return the directory of waiting items."""
    return _entry(queue, host, text_of("FSQ_QUEUE"))


def done(queue: object, host: object = None) -> str:
    """Return the directory of items that succeeded."""
    return _entry(queue, host, text_of("FSQ_DONE"))


def fail(queue: object, host: object = None) -> str:
    """Return the directory of items that failed for good."""
    return _entry(queue, host, text_of("FSQ_FAIL"))


def down(queue: object, host: object = None) -> str:
    """Return the file that stops scanning."""
    return _entry(queue, host, text_of("FSQ_DOWN"))


def item(queue: object, id: object, host: object = None) -> str:  # noqa: A002 - the original's name of the argument
    """Return the file of a waiting item."""
    return _entry(queue, host, text_of("FSQ_QUEUE"), id)


def hosts(queue: object) -> str:
    """Return the directory of the host queues."""
    return _entry(queue, None, text_of("FSQ_HOSTS"))


def trigger(queue: object, trigger: object = None) -> str:
    """Return the FIFO that wakes scanners."""
    return _entry(queue, None, text_of("FSQ_TRIGGER") if trigger is None else trigger)


def attempts(queue: object, host: object = None) -> str:
    """Return the directory of begun attempts."""
    return _entry(queue, host, ATTEMPTS)
