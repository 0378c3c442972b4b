# Written by scripts/blocking from ../aio/pool.py: change that, then run `make blocking`.
"""A few connections to one PostgreSQL, opened when they are needed, and the statements that go over them.

A call takes a connection, runs one statement, and puts the connection back. A connection that the server closed while
it was idle is noticed before it is used, so a restart of the server costs nobody an error. One that breaks under a
statement is thrown away, and the caller gets the error that says what can be known (`errors`). A forked process leaves
the connections of its parent alone, and opens its own.

Options, in the URL's query or as arguments: `connections`, the maximum number of them; all others are libpq's. Works
with PostgreSQL 12 and later. A pooler in between must keep a session together (pgbouncer: session mode), as there are
settings, prepared statements and LISTEN.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from penstock.errors import CallerError
from penstock.queues.options import StoreURL
from penstock.queues.stores.postgres.blocking.link import INTERRUPTED, Gate, PostgresLink, Undo
from penstock.queues.stores.postgres.errors import COLLISIONS, failed, failed_connect, unreadable
from penstock.queues.stores.postgres.session import Rows
from penstock.queues.stores.postgres.sql import SESSION, set_shift

CONNECTIONS = 8
CONNECTIONS_MAX = 100  # a server has 100 by default
TRIES_MAX = 10  # of a statement that collides with others

# Settings of libpq, unless the URL has them: a server that can't be reached is noticed, at once or later.
DEFAULTS = {
    "application_name": "penstock",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}

_left_to_parent: list[PostgresLink] = []  # never closed here: that would end the parent's sessions


class Pool:
    """The connections of one store. Any number of tasks may use it."""

    def __init__(self, address: StoreURL, extra: Mapping[str, Any], shift_ms: Callable[[], int] = lambda: 0) -> None:
        """`shift_ms` returns what tests add to the clock: the trigger for unique keys reads it from the session."""
        self.url = address.url
        self._conninfo, self._limit = _read_address(address, extra)
        self._shift_ms = shift_ms
        self._idle: list[PostgresLink] = []
        self._gate = Gate(self._limit)
        self._pid = os.getpid()

    def open(self) -> None:
        """Check that the server can be reached."""
        self._check_process()
        with self._gate:
            self._idle.append(self._take())

    def close(self) -> None:
        """Close the idle connections; others are closed when their statement is done."""
        self._check_process()
        self._limit = 0
        while self._idle:
            self._idle.pop().close()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            _left_to_parent.extend(self._idle)
            self._idle = []
            self._gate = Gate(self._limit)
            self._pid = os.getpid()

    def connect(self) -> PostgresLink:
        """Return a new connection, which belongs to the caller."""
        try:
            link = PostgresLink.connect(self._conninfo)
        except psycopg.Error as problem:
            raise failed_connect(problem, self.url) from problem
        self._configure(link, SESSION)
        return link

    def _configure(self, link: PostgresLink, script: str) -> None:
        try:
            link.run_script(script)
        except BaseException as problem:
            link.close()
            if isinstance(problem, psycopg.Error):
                raise failed(problem, self.url, True, False) from problem
            raise

    def _take(self) -> PostgresLink:
        link: PostgresLink | None = None
        while self._idle and link is None:
            link = self._idle.pop()
            if not link.session.is_quiet:
                link.close()
                link = None
        if link is None:
            link = self.connect()
        shift_ms = self._shift_ms()
        if link.shift_ms != shift_ms:
            self._configure(link, set_shift(shift_ms))
            link.shift_ms = shift_ms
        return link

    def _put_back(self, link: PostgresLink) -> None:
        if self._limit and link.session.is_idle:
            self._idle.append(link)
        else:
            link.close()

    def run(self, statement: str, *values: str | None, is_once: bool = False, undo: Undo | None = None) -> Rows:
        """Run one statement; return its rows.

        `is_once`: it must not be done twice. `undo` gets the rows if the caller is interrupted before it has them.
        """
        self._check_process()
        tries = 0
        while True:
            tries += 1
            with self._gate:
                link = self._take()
                try:
                    return link.run(statement, values)
                except psycopg.Error as problem:
                    if problem.sqlstate not in COLLISIONS or tries == TRIES_MAX:
                        raise failed(problem, self.url, link.session.is_broken, is_once) from problem
                    continue
                except INTERRUPTED as problem:
                    interrupted = problem
                    late, link.late = link.late, []
                finally:
                    self._put_back(link)
            if late and undo is not None:
                undo(late)
            raise interrupted

    def run_script(self, text: str) -> Rows:
        """Run several statements without values, as one transaction; return the rows of the last."""
        self._check_process()
        with self._gate:
            link = self._take()
            try:
                return link.run_script(text)
            except psycopg.Error as problem:
                raise failed(problem, self.url, link.session.is_broken, False) from problem
            finally:
                self._put_back(link)


def _read_address(address: StoreURL, extra: Mapping[str, Any]) -> tuple[str, int]:
    """Return the settings of libpq, and the maximum number of connections."""
    given = {**DEFAULTS, **address.rest, **extra}
    connections = given.pop("connections", CONNECTIONS)
    try:
        limit = int(connections)
    except ValueError:
        limit = 0
    if not 1 <= limit <= CONNECTIONS_MAX:
        raise CallerError(
            f"{address.url}: connections must be a whole number from 1 to {CONNECTIONS_MAX}, got {connections!r}"
        )
    try:
        return make_conninfo(address.full, client_encoding="utf8", **given), limit
    except psycopg.Error as problem:
        raise unreadable(problem, address) from None
