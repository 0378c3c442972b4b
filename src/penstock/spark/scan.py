"""A batch read of queues (`spark.read`): their jobs as a table. Nothing is reserved or changed.

Partitions follow the store: one for each node of a broker cluster, one for each queue in other stores, and several for
a large table of PostgreSQL. Each shows a job at most once, in the state that it has when it is read. Jobs come and go
meanwhile: it is not a snapshot. A task has a page or two in memory, and it ends on a busy queue, too.

Dead letters are in a queue of their own. With the state `dead`, a batch read shows those that came from its queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock import Capability
from penstock.errors import CallerError
from penstock.job import LIVE, JobState
from penstock.queues.blocking import Store, connect
from penstock.queues.capabilities import require
from penstock.queues.dead_letter import FROM_QUEUE
from penstock.queues.options import parse
from penstock.queues.scan import Part, Rows, Same, Wanted
from penstock.spark.errors import without_traceback
from penstock.spark.filters import Selection, selection_of
from penstock.spark.rows import arrow_schema, fields_of, rows_to_batch
from penstock.spark.settings import ALL, DEAD, QuerySettings

PAGE = 5_000  # jobs fetched at a time: enough that the cost of a call doesn't count
OWN_QUEUES = "__penstock_"  # prefix of the queues that Penstock itself uses


class TaskPart(NamedTuple):
    """What one task reads."""

    part: Part
    dead_from: frozenset[str] | None = None  # for dead letters: the queues that they came from


@without_traceback
class QueueScan(DataSourceReader):
    """The reader of one batch read."""

    def __init__(self, settings: QuerySettings, columns: list[str]) -> None:
        self._settings = settings
        self._columns = columns
        self._choice = Selection()

    def partitions(self) -> list[InputPartition]:
        _check_file(self._settings.url)
        with connect(self._settings.url) as store:
            require(store.capabilities, Capability.PEEK, store.url)
            queues = self._queues(store)
            found = []
            if self._wanted.states:
                found = [TaskPart(part) for part in store.scan_parts(queues, self._wanted)]
            dead = store.dead_letters().name
            if self._shows_dead and (self._choice.queues is None or dead in self._choice.queues):
                sources = frozenset(self._named(store)) - {dead}
                found += [TaskPart(part, sources) for part in store.scan_parts([dead], self._dead_wanted)]
        # Spark makes one partition with None of an empty list.
        return [InputPartition(task_part) for task_part in found] or [InputPartition(None)]

    def _named(self, store: Store) -> list[str]:
        """Return the queues of the options."""
        names = self._settings.queues or (self._settings.queue,)
        if ALL in names:
            return [name for name in store.queues(with_jobs=True) if not name.startswith(OWN_QUEUES)]
        return list(dict.fromkeys(names))

    def _queues(self, store: Store) -> list[str]:
        """Return those of them that the filters leave."""
        chosen = self._choice.queues
        return [name for name in self._named(store) if chosen is None or name in chosen]

    @property
    def _wanted(self) -> Wanted:
        chosen = self._choice
        states = frozenset(state for state in self._settings.states if chosen.states is None or state in chosen.states)
        if JobState.READY in self._settings.states and chosen.states is not None and JobState.AWAY in chosen.states:
            states |= {JobState.READY}  # a store shows them with these; Spark leaves out what isn't wanted
        ids = None if chosen.ids is None else tuple(sorted(chosen.ids))
        return Wanted(states, fields_of(self._columns), ids, chosen.limits)

    @property
    def _shows_dead(self) -> bool:
        return self._settings.has_dead and (self._choice.states is None or DEAD in self._choice.states)

    @property
    def _dead_wanted(self) -> Wanted:
        """Return what to read of dead letters: all states, and the headers, which name the queue they came from."""
        wanted = self._wanted
        return wanted._replace(states=frozenset(LIVE), columns=wanted.columns | {"headers"})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task_part: TaskPart | None = partition.value
        if task_part is None:
            return
        schema = arrow_schema(self._columns)
        with connect(self._settings.url) as store:
            wanted = self._wanted if task_part.dead_from is None else self._dead_wanted
            for rows in _ahead(store.pages(task_part.part, wanted, PAGE)):
                shown = rows if task_part.dead_from is None else _dead(rows, task_part.dead_from)
                if shown.count:
                    yield rows_to_batch(shown, schema)


@without_traceback
class FilteringScan(QueueScan):
    """The reader with the option `pushdown`. Spark rejects a reader with `pushFilters` while pushdown is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        store = connect(self._settings.url)
        self._choice = selection_of(filters, store.compares, frozenset([*store.live_states, DEAD]))
        return filters  # Spark checks all of them again


def _check_file(url: str) -> None:
    """Refuse a missing file of SQLite: opening it would create it, and a batch read changes nothing."""
    if parse(url, {})[0].scheme != "sqlite":
        return
    path = connect(url).place.partition(":")[2]
    if not Path(path).exists():
        raise CallerError(f"{url} must be a file that exists, got none at {path}")


def _ahead(pages: Iterator[Rows]) -> Iterator[Rows]:
    """Yield the same pages, each fetched while the one before is used: store and process work at the same time."""
    with ThreadPoolExecutor(1, "penstock-scan") as pool:
        coming = pool.submit(next, pages, None)
        while (rows := coming.result()) is not None:
            coming = pool.submit(next, pages, None)
            yield rows


def _dead(rows: Rows, sources: frozenset[str]) -> Rows:
    """Return the dead letters that came from one of these queues."""
    headers = rows.columns.get("headers", Same({}))
    origins = [headers.value] * rows.count if isinstance(headers, Same) else headers
    kept = [at for at, one in enumerate(origins) if one.get(FROM_QUEUE) in sources]
    columns = {
        name: column if isinstance(column, Same) else [column[at] for at in kept]
        for name, column in rows.columns.items()
    }
    return Rows(len(kept), {**columns, "state": Same(DEAD)}, rows.cursor)
