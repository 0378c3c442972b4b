"""An effect in a database that happens exactly once for a job, however often the job is run.

    async with current_job().once(connection) as first:
        if first:
            await connection.execute("UPDATE accounts SET cents = cents - 500 WHERE id = 7")

The block is one transaction on a connection of the application. It begins by writing a mark for the job; the mark and
the effect are committed together or not at all. The mark has the id of the call as its primary key, so of all runs of
the job, one after the other or at the same time, one commits it, and `first` is true in that one alone:

| the other run                                    | this one                                                          |
|--------------------------------------------------|-------------------------------------------------------------------|
| has committed (and died, or lost its lease)      | `first` is false                                                  |
| is within its block                              | waits until that has ended, one way or the other                  |
| has failed, or has died within its block         | `first` is true                                                   |

A block that doesn't ask for `first` would repeat its effect, so it is rolled back, and refused.

The marks are in the table `penstock_once`, which is made when it is first needed; in MongoDB in a collection of that
name.

| column       | what                                                                                         |
|--------------|----------------------------------------------------------------------------------------------|
| `job`        | the id of the call                                                                           |
| `step`       | which of its effects, for jobs that have several; '' is the only one                         |
| `kept_until` | each new mark removes up to REMOVED_MAX whose time is over, so that the table stays bounded  |
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from importlib import import_module
from types import TracebackType
from typing import Any, NamedTuple

from penstock.errors import CallerError

KEEP_S = 30 * 24 * 3600.0  # far longer than the last try of a job is away, and long enough to redrive a dead letter
REMOVED_MAX = 2
TABLE = "penstock_once"

_SQLITE_TABLE = (
    f"""CREATE TABLE IF NOT EXISTS {TABLE} (job TEXT NOT NULL, step TEXT NOT NULL, kept_until REAL NOT NULL,
        PRIMARY KEY (job, step)) WITHOUT ROWID""",
    f"CREATE INDEX IF NOT EXISTS {TABLE}_kept_until ON {TABLE} (kept_until)",
)
_SQLITE_ADD = f"INSERT INTO {TABLE} (job, step, kept_until) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_SQLITE_REMOVE = (
    f"DELETE FROM {TABLE} WHERE (job, step) IN"
    f" (SELECT job, step FROM {TABLE} WHERE kept_until < ? ORDER BY kept_until LIMIT {REMOVED_MAX})"
)


class Package(NamedTuple):
    """A package whose connections are known, and what runs a block on them."""

    package: str
    kind: str
    module: str
    block: str


PACKAGES = (
    Package("psycopg", "AsyncConnection", "aio.once", "on_postgres"),
    Package("psycopg", "Connection", "blocking.once", "on_postgres"),
    Package("pymongo.asynchronous.client_session", "AsyncClientSession", "aio.once_mongo", "on_mongo"),
    Package("pymongo.synchronous.client_session", "ClientSession", "blocking.once_mongo", "on_mongo"),
)


class EffectMark(NamedTuple):
    """What is written for a job."""

    job: str
    step: str
    now: float
    keep: float
    database: str | None = None  # of MongoDB, whose sessions know none

    @property
    def kept_until(self) -> float:
        return self.now + self.keep


class First:
    """Whether this run of the job is the one whose effect counts: `if first:`."""

    def __init__(self, is_first: bool) -> None:
        self._is_first = is_first
        self.was_asked = False

    def __bool__(self) -> bool:
        self.was_asked = True
        return self._is_first

    def __repr__(self) -> str:
        return f"<First {self._is_first}>"


class EffectBlock:
    """The block of a job's effect: for `with`, or with an asynchronous connection for `async with`."""

    def __init__(self, connection: Any, mark: EffectMark) -> None:
        self._kind = type(connection).__name__
        self._is_sqlite = isinstance(connection, sqlite3.Connection)  # which has no asynchronous form
        self._plain: AbstractContextManager[bool] | None = None
        self._async: AbstractAsyncContextManager[bool] | None = None
        self._first = First(False)
        self._choose(connection, mark)

    def _choose(self, connection: Any, mark: EffectMark) -> None:
        if isinstance(connection, sqlite3.Connection):
            self._plain = on_sqlite(connection, mark)
            return
        for row in PACKAGES:
            package = sys.modules.get(row.package)  # whoever has a connection of it has imported it
            if package is not None and isinstance(connection, getattr(package, row.kind)):
                block = getattr(import_module(f"penstock.tasks.{row.module}"), row.block)(connection, mark)
                if row.module.startswith("aio."):
                    self._async = block
                else:
                    self._plain = block
                return
        raise CallerError(
            "connection must be one of sqlite3 or psycopg, or a session of pymongo: in it the job's mark is written "
            f"together with your own writes. Got {connection!r}"
        )

    def __enter__(self) -> First:
        if self._plain is None:
            raise CallerError(f"a connection of type {self._kind} is awaited: write `async with job.once(...)`")
        self._first = First(self._plain.__enter__())
        return self._first

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._plain is not None
        forgotten = self._forgotten(problem)
        if forgotten is not None:
            self._plain.__exit__(CallerError, forgotten, None)
            raise forgotten
        self._plain.__exit__(kind, problem, trace)

    async def __aenter__(self) -> First:
        if self._async is None:
            if not self._is_sqlite:
                raise CallerError(f"a connection of type {self._kind} blocks: write `with job.once(...)`")
            return self.__enter__()
        self._first = First(await self._async.__aenter__())
        return self._first

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._async is None:
            self.__exit__(kind, problem, trace)
            return
        forgotten = self._forgotten(problem)
        if forgotten is not None:
            await self._async.__aexit__(CallerError, forgotten, None)
            raise forgotten
        await self._async.__aexit__(kind, problem, trace)

    def _forgotten(self, problem: BaseException | None) -> CallerError | None:
        if problem is not None or self._first.was_asked:
            return None
        return CallerError(
            "the block of once() must ask whether it is the first: `with job.once(connection) as first:` and then "
            "`if first:`. It was rolled back"
        )


@contextmanager
def on_sqlite(connection: sqlite3.Connection, mark: EffectMark) -> Iterator[bool]:
    """Run a block as a transaction on a connection, or as a part of the one that is open there."""
    cursor = connection.cursor()
    cursor.row_factory = None  # the caller's own may make anything of a row
    is_part = connection.in_transaction
    # Immediate: a second run waits here, as long as the connection's own timeout allows.
    cursor.execute(f"SAVEPOINT {TABLE}" if is_part else "BEGIN IMMEDIATE")
    try:
        for statement in _SQLITE_TABLE:
            cursor.execute(statement)
        is_first = cursor.execute(_SQLITE_ADD, (mark.job, mark.step, mark.kept_until)).rowcount == 1
        if is_first:
            cursor.execute(_SQLITE_REMOVE, (mark.now,))
        yield is_first
        if not connection.in_transaction:
            raise CallerError("the block of once() must not commit or roll back: it does so itself, at its end")
        cursor.execute(f"RELEASE {TABLE}" if is_part else "COMMIT")
    except BaseException:
        if connection.in_transaction:
            if is_part:
                cursor.execute(f"ROLLBACK TO {TABLE}")
                cursor.execute(f"RELEASE {TABLE}")
            else:
                cursor.execute("ROLLBACK")
        raise
