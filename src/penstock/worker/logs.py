"""Formats of a worker's log: lines of text for people, or lines of JSON for programs.

Records of other loggers have the same form, so that the application's own lines fit in.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from penstock.errors import printable

PER_JOB = frozenset({"retry", "failed", "lost", "returned", "hook"})
LINES_A_SECOND = 10  # of each of those: the log of a queue full of bad jobs must not slow the worker down

_COLOURS = {logging.DEBUG: "2", logging.INFO: "", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31;1"}
_EVENT_COLOURS = {"done": "32", "summary": "36"}


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the facts of a record of ours; empty for other records."""
    facts: dict[str, Any] = getattr(record, "penstock", {})
    return facts


class TextFormatter(logging.Formatter):
    """`16:04:05 mail 4711 done in 12.0 ms`, with colours if wanted."""

    def __init__(self, colours: bool, traces: bool, label: str = "") -> None:
        super().__init__()
        self._colours = colours
        self._traces = traces
        self._label = label

    def format(self, record: logging.LogRecord) -> str:
        event = facts_of(record).get("event")
        when = time.strftime("%H:%M:%S", time.localtime(record.created))
        # Our own lines have names, ids and errors that somebody else has chosen.
        text = printable(record.getMessage()) if event else f"{record.name}: {record.getMessage()}"
        front = f"{when} {self._label}" if self._label else when
        line = f"{self._painted(front, '2')} {self._painted(text, self._colour(record, event))}"
        # The traceback of a job's error is printed with --verbose only; that of the application's own records always.
        if record.exc_info and (self._traces or event is None):
            line += "\n" + self.formatException(record.exc_info)
        return line

    @staticmethod
    def _colour(record: logging.LogRecord, event: str | None) -> str:
        return _EVENT_COLOURS.get(event or "") or _COLOURS.get(record.levelno, "")

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colours and colour else text


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, event, text, and the event's facts."""

    def __init__(self, traces: bool, **always: Any) -> None:
        super().__init__()
        self._traces = traces
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        facts = facts_of(record)
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields: dict[str, Any] = {"time": when, "level": record.levelname.lower()}
        fields |= {"event": "log", "logger": record.name} if not facts else {"event": facts["event"]}
        fields |= {"text": record.getMessage(), **self._always}
        fields |= {name: value for name, value in facts.items() if value is not None}
        if record.exc_info and (self._traces or not facts):
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


class RateLimit(logging.Filter):
    """Limits the lines that are logged per job to LINES_A_SECOND of each event; the summary counts all."""

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._counts: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        event = facts_of(record).get("event", "")
        if event not in PER_JOB:
            return True
        if self._second != int(record.created):
            self._second = int(record.created)
            self._counts.clear()
        self._counts[event] = self._counts.get(event, 0) + 1
        return self._counts[event] <= LINES_A_SECOND


class EventFilter(logging.Filter):
    """Drops some events."""

    def __init__(self, events: Collection[str]) -> None:
        super().__init__()
        self._events = events

    def filter(self, record: logging.LogRecord) -> bool:
        return facts_of(record).get("event") not in self._events
