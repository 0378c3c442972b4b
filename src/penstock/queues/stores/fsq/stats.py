"""Counters and options of queues: a small file for each namespace, beside the queue.

    .penstock/stats/NAMESPACE.json     JSON: counters, options
    .penstock/stats.lock               locked while one is changed

They are not synced: after a power failure counts may be missing. A queue that isn't installed yet has nothing beside
it: its options are kept in memory until it is. Pauses are not here: those are the down files of the queues.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.codec import from_json, to_json
from penstock.fsq.files import read_note
from penstock.queues.blocking.stats import COUNTERS, Stats
from penstock.queues.stores.fsq.directory import QueueDirectory
from penstock.queues.stores.fsq.names import directory_of
from penstock.queues.stores.fsq.own_files import locked, write_whole
from penstock.queues.stores.fsq.root import Root, guarded


class DirectoryStats(Stats):
    """The statistics of one namespace."""

    def __init__(self, root: Root, queue_dir_of: Callable[[str], QueueDirectory], namespace: str) -> None:
        self.root = root
        self._queue_dir_of = queue_dir_of
        self._file = f"{directory_of(namespace)}.json"
        self._options: dict[str, Mapping[str, Any]] = {}  # of queues that are not installed yet

    def _where(self, queue_dir: QueueDirectory) -> str:
        return f"{queue_dir.area.side}/stats"

    def _read(self, queue: str) -> dict[str, Any]:
        where = self._where(self._queue_dir_of(queue))
        with suppress(OSError, ValueError):
            found = from_json(read_note(f"{where}/{self._file}"))
            if isinstance(found, dict):
                return found
        return {}

    def _change(self, queue: str, change: Callable[[dict[str, Any]], None]) -> None:
        queue_dir = self._queue_dir_of(queue)
        queue_dir.area.make(self._where(queue_dir), is_safe=False)
        with locked(f"{queue_dir.area.side}/stats.lock"):
            known = self._read(queue)
            change(known)
            write_whole(f"{self._where(queue_dir)}/{self._file}", to_json(known).encode(), is_safe=False)

    def settle(self, queue: str) -> None:
        """Write down what was kept until the queue was installed."""
        if queue in self._options and self._queue_dir_of(queue).is_there():
            self.register(queue, self._options.pop(queue))

    @guarded
    def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        for queue, counters in counts.items():
            if self._queue_dir_of(queue).is_there():
                self._change(queue, partial(_add, counters))
                self.settle(queue)

    @guarded
    def counters(self, queue: str) -> dict[str, int]:
        stored = self._read(queue).get("counters", {})
        return {**dict.fromkeys(COUNTERS, 0), **{name: int(value) for name, value in stored.items()}}

    @guarded
    def register(self, queue: str, options: Mapping[str, Any]) -> None:
        if not self._queue_dir_of(queue).is_there():
            if options or queue not in self._options:
                self._options[queue] = dict(options)
        elif options and self._read(queue).get("options") != options:
            self._change(queue, lambda known: known.update(options=dict(options)))

    @guarded
    def options(self, queue: str) -> dict[str, Any]:
        return dict(self._read(queue).get("options") or self._options.get(queue, {}))

    def queues(self) -> list[str]:
        return sorted(self._options)


def _add(counters: Mapping[str, int], known: dict[str, Any]) -> None:
    sums = known.setdefault("counters", {})
    for counter, by in counters.items():
        sums[counter] = sums.get(counter, 0) + by
