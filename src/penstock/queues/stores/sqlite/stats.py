"""Counters, pauses and options of queues, in the file that has the jobs (its tables are drawn in `driver`)."""

from collections.abc import Mapping
from typing import Any

from penstock.codec import from_json, to_json
from penstock.queues.blocking.stats import COUNTERS, Stats
from penstock.queues.stores.sqlite.file import SqliteFile

# In the schema that a caller's connection has the file as, or in the file itself.
ADD = (
    "INSERT INTO {}penstock_counters (namespace, queue, counter, value) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (namespace, queue, counter) DO UPDATE SET value = value + excluded.value"
)
_REGISTER = (
    "INSERT INTO penstock_queues (namespace, queue, options) VALUES (?, ?, ?)"
    " ON CONFLICT (namespace, queue) DO UPDATE SET options = excluded.options"
)
_PAUSE = (
    "INSERT INTO penstock_queues (namespace, queue, paused) VALUES (?, ?, ?)"
    " ON CONFLICT (namespace, queue) DO UPDATE SET paused = excluded.paused"
)
_ONE = "WHERE namespace = ? AND queue = ?"


class SqliteStats(Stats):
    """The statistics of one namespace."""

    def __init__(self, file: SqliteFile, namespace: str) -> None:
        self._file = file
        self._namespace = namespace

    def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        rows = [
            (self._namespace, queue, counter, by)
            for queue, counters in counts.items()
            for counter, by in counters.items()
            if by
        ]
        with self._file.writing() as connection:
            connection.executemany(ADD.format(""), rows)

    def counters(self, queue: str) -> dict[str, int]:
        statement = f"SELECT counter, value FROM penstock_counters {_ONE}"
        return {**dict.fromkeys(COUNTERS, 0), **dict(self._file.read(statement, (self._namespace, queue)))}

    def register(self, queue: str, options: Mapping[str, Any]) -> None:
        text = to_json(dict(options)) if options else None
        known = self._known("options", queue)
        # Mostly it is known already, and a change would be a write to the disk for each queue object of each process.
        if not known or (text is not None and known[0][0] != text):
            with self._file.writing() as connection:
                connection.execute(_REGISTER, (self._namespace, queue, text))

    def _known(self, column: str, queue: str) -> list[Any]:
        return self._file.read(f"SELECT {column} FROM penstock_queues {_ONE}", (self._namespace, queue))

    def options(self, queue: str) -> dict[str, Any]:
        known = self._known("options", queue)
        return dict(from_json(known[0][0])) if known and known[0][0] else {}

    def queues(self) -> list[str]:
        statement = "SELECT queue FROM penstock_queues WHERE namespace = ? ORDER BY queue"
        return [name for (name,) in self._file.read(statement, (self._namespace,))]

    def paused(self, queue: str) -> bool:
        return (1,) in self._known("paused", queue)

    def set_paused(self, queue: str, paused: bool) -> None:
        with self._file.writing() as connection:
            connection.execute(_PAUSE, (self._namespace, queue, int(paused)))
