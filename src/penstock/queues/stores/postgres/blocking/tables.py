# Written by scripts/blocking from ../aio/tables.py: change that, then run `make blocking`.
"""The tables of queues, and those that only Penstock uses: they are made when they are first needed.

A push makes the table of its queue; for all others a queue without a table is empty. A table that was dropped meanwhile
is made again in the same way.
"""

import random
from contextlib import suppress

from penstock.errors import PenstockError, StoreError
from penstock.queues.stores.postgres.blocking.link import Undo
from penstock.queues.stores.postgres.blocking.pool import Pool
from penstock.queues.stores.postgres.errors import MADE_BY_OTHERS, NO_TABLE, code_of
from penstock.queues.stores.postgres.names import index_of, other_index_of, quoted
from penstock.queues.stores.postgres.session import Rows
from penstock.queues.stores.postgres.sql import (
    COLUMNS,
    CREATION,
    CREATION_LOCK,
    DELTAS_TABLE,
    DESCRIBE,
    FOLD,
    FOLD_EVERY,
    FOLD_ROWS_MAX,
    IS_TAKEN,
    IS_THERE,
    QUEUES_TABLE,
    ScanStart,
    Statements,
    creation,
)


class KeussTable:
    """What a store knows of the table of one queue."""

    __slots__ = ("counts", "is_known", "queue", "scan_start", "sql")

    def __init__(self, queue: str, namespace: str | None) -> None:
        """The statements count in the namespace, if one is given."""
        self.queue = queue
        self.sql = Statements.of(queue, namespace)
        self.counts = namespace is not None
        self.is_known = False  # the table was found or made
        self.scan_start = ScanStart()


class Tables:
    """Runs statements on tables, and makes those that are missing."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._own: set[str] = set()  # tables of Penstock that were found or made
        self._to_fold = 0  # statements that count, until the next fold

    def run(
        self,
        table: KeussTable,
        statement: str,
        *values: str | None,
        is_push: bool = False,
        is_once: bool = False,
        undo: Undo | None = None,
        target: KeussTable | None = None,
    ) -> Rows:
        """Run a statement on the table of a queue. If it is missing, a push makes it, and others return no rows.

        `target` is the table of another queue that the statement writes to.
        """
        was_known = table.is_known
        if not was_known and not self.find(table, is_push):
            return []
        if target is not None and not target.is_known:
            self.find(target, True)
        # Before the statement, not after it: a caller that is cancelled here has not got any jobs.
        if table.counts and self._is_fold_due():
            self._fold()
        try:
            return self._pool.run(statement, *values, is_once=is_once, undo=undo)
        except StoreError as problem:
            if not was_known or code_of(problem) != NO_TABLE:
                raise
        table.is_known = False
        if target is not None:
            target.is_known = False
        self._make_own_again()
        return self.run(table, statement, *values, is_push=is_push, is_once=is_once, undo=undo, target=target)

    def find(self, table: KeussTable, is_wanted: bool) -> bool:
        """Whether the table of a queue is there; it is made if it is wanted."""
        name = table.sql.table
        columns, has_index = (self._pool.run(DESCRIBE, name))[0]
        if columns is not None:
            self._check_columns(name, dict(column.split(" ", 1) for column in columns))
        elif not is_wanted:
            return False
        if columns is None or not has_index:
            index = index_of(table.queue)
            if (self._pool.run(IS_TAKEN, quoted(index), name))[0][0]:
                index = other_index_of(table.queue)
            try:
                self.create(creation(table.queue, index))
            except StoreError:
                # A table of others without its index is slow, but right.
                if columns is None:
                    raise
        table.is_known = True
        return True

    def _check_columns(self, name: str, columns: dict[str, str]) -> None:
        for column, kind in COLUMNS.items():
            if columns.get(column) != kind:
                raise StoreError(
                    f"{self._pool.url} has a table {name} that is not as Keuss 2.0.4 and later makes it: the column "
                    f"{column} must be {kind}, got {columns.get(column, 'no such column')}. Rename the table, or use "
                    "the queue another name."
                )

    def create(self, script: str) -> None:
        """Make tables, indexes and triggers. Others may make the same at the same time."""
        try:
            self._pool.run_script(f"{CREATION_LOCK} {script}")
        except StoreError as problem:
            if code_of(problem) not in MADE_BY_OTHERS:
                raise

    def make_own(self, name: str) -> None:
        """Make a table of Penstock, unless it is there."""
        if name in self._own:
            return
        is_there, schema = (self._pool.run(IS_THERE, name))[0]
        if not is_there:
            self.create(CREATION[name].replace("{schema}", str(schema)))
        self._own.add(name)

    def _make_own_again(self) -> None:
        """Make those tables of Penstock again that were dropped."""
        self._to_fold = 0
        for name in tuple(self._own):
            self._own.discard(name)
            self.make_own(name)

    def run_own(self, name: str, statement: str, *values: str | None, is_once: bool = False) -> Rows:
        """Run a statement on a table of Penstock, which is made if it is missing."""
        self.make_own(name)
        try:
            return self._pool.run(statement, *values, is_once=is_once)
        except StoreError as problem:
            if code_of(problem) != NO_TABLE:
                raise
        self._make_own_again()
        return self._pool.run(statement, *values, is_once=is_once)

    def make_countable(self) -> None:
        """Make the tables that counting needs, and fold the counters now and then."""
        if self._is_fold_due():
            self._fold()

    def _is_fold_due(self) -> bool:
        self._to_fold -= 1
        return self._to_fold < 0

    def _fold(self) -> None:
        if DELTAS_TABLE not in self._own:
            self.make_own(QUEUES_TABLE)
            self.make_own(DELTAS_TABLE)
            # The first fold comes by chance, so that what many short-lived processes counted is folded, too.
            self._to_fold = random.randrange(FOLD_EVERY)
            return
        self._to_fold = FOLD_EVERY - 1
        with suppress(PenstockError):
            self._pool.run(FOLD, str(FOLD_ROWS_MAX))
