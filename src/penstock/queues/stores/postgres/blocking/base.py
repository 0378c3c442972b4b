# Written by scripts/blocking from ../aio/base.py: change that, then run `make blocking`.
"""What all parts of the PostgreSQL store build on: its connections, and the tables of queues."""

from typing import Any, ClassVar

from penstock.errors import StoreError
from penstock.job import JobState, StoredJob
from penstock.queues.blocking.driver import Driver
from penstock.queues.options import Address, Options
from penstock.queues.stores.postgres.blocking.client import Pool, code_of
from penstock.queues.stores.postgres.blocking.link import Rows, Undo
from penstock.queues.stores.postgres.element import Token, unpacked
from penstock.queues.stores.postgres.errors import NO_TABLE
from penstock.queues.stores.postgres.floors import Floor
from penstock.queues.stores.postgres.names import index_of, other_index_of, quoted, table_of
from penstock.queues.stores.postgres.sql import COLUMNS, IS_TAKEN, LOOK, Statements, creation, for_queue

_US = 1000
_RESERVED = 7  # columns of a job that was reserved, and not by a claim


class PostgresBase(Driver):
    """Statements on the tables of queues, which are made when they are first needed."""

    keeps_payloads: ClassVar[bool] = True
    can_count: ClassVar[bool] = True

    def __init__(self, address: Address, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        self._pool = Pool(address, extra)
        self._statements: dict[str, Statements] = {}
        self._known: set[str] = set()  # queues whose table was seen
        self._floors: dict[str, Floor] = {}

    def open(self) -> None:
        self._pool.open()

    def close(self) -> None:
        self._pool.close()

    @property
    def _shift(self) -> str:
        """What tests add to the clock, as the first value of statements."""
        return str(self.shift_ms)

    def _sql(self, queue: str) -> Statements:
        statements = self._statements.get(queue)
        if statements is None:
            statements = self._statements[queue] = Statements.of(queue, self.counts_in if self.counts(queue) else None)
        return statements

    def _filled(self, statement: str, queue: str) -> str:
        """A statement with the names of a queue."""
        return for_queue(statement, queue, self.counts_in if self.counts(queue) else None)

    def check_queue(self, queue: str) -> None:
        table_of(queue)

    def _floor(self, queue: str) -> Floor:
        return self._floors.setdefault(queue, Floor())

    def _run(
        self,
        queue: str,
        statement: str,
        *values: str | None,
        is_push: bool = False,
        is_once: bool = False,
        undo: Undo | None = None,
    ) -> Rows:
        """Do a statement on a queue's table. Without the table, a push makes it, and for others there is nothing."""
        self._pool.shift_ms = self.shift_ms
        was_known = queue in self._known
        if not was_known and not self._find_table(queue, is_push):
            return []
        # Before the statement, never after it: whoever is cancelled here has not been given any jobs.
        if self.counts(queue):
            self._pool.make_countable()
        try:
            return self._pool.run(statement, *values, is_once=is_once, undo=undo)
        except StoreError as problem:
            if not was_known or code_of(problem) != NO_TABLE:
                raise
        # Somebody took the table away, or one of ours.
        self._known.discard(queue)
        self._pool.look_again()
        return self._run(queue, statement, *values, is_push=is_push, is_once=is_once, undo=undo)

    def _find_table(self, queue: str, is_wanted: bool) -> bool:
        """Whether the table is there; it is made if it is wanted."""
        table = self._sql(queue).table
        columns, has_index = (self._pool.run(LOOK, table))[0]
        if columns is not None:
            self._check_form(queue, dict(column.split(" ", 1) for column in columns))
        if columns is None and not is_wanted:
            return False
        if columns is None or not has_index:
            is_taken = (self._pool.run(IS_TAKEN, quoted(index_of(queue)), table))[0][0]
            try:
                self._pool.create(creation(queue, other_index_of(queue) if is_taken else index_of(queue)))
            except StoreError:
                # A table of others without its index is slow, but right.
                if columns is None:
                    raise
        self._known.add(queue)
        return True

    def _check_form(self, queue: str, columns: dict[str, str]) -> None:
        wrong = [name for name, kind in COLUMNS.items() if columns.get(name) != kind]
        if wrong:
            raise StoreError(
                f"{self.address.url} has a table {self._sql(queue).table} that is not as Keuss 2.0.4 and later "
                f"makes it: {wrong[0]} should be {COLUMNS[wrong[0]]}. Rename it, or give the queue another name."
            )

    @staticmethod
    def _leased(row: tuple[Any, ...]) -> StoredJob:
        """A job that was just reserved: id, `_pl`, tries as they are now, the lease's end, the maturity before.

        But for a claim's: how many leases in a row ran out before work began, and whether it begins at once.
        """
        payload, headers = unpacked(row[1])
        unbegun, has_begun = row[5:7] if len(row) == _RESERVED else (None, True)
        return StoredJob(
            row[0],
            payload=payload,
            headers=headers,
            tries=row[2] - 1,
            mature_ms=row[3] // _US,
            token=str(Token(row[3], row[2], row[4])),
            state=JobState.RESERVED,
            has_begun=has_begun,
            is_back=unbegun is not None,
            unbegun=unbegun or 0,
        )
