"""A few connections to one PostgreSQL, opened when they are needed, and what goes over them.

A call takes a connection, sends one statement, and gives the connection back. A connection that the server closed while
nobody used it is noticed before it is used, so a server that was restarted costs nobody an error; one that breaks under
a statement is thrown away, and the caller is told what can be known (`errors`). A process
that was forked leaves its parent's connections alone, and opens its own.

Options, in the URL's query or as arguments: `connections`, how many there may be at a time; the rest is libpq's. It
works with PostgreSQL 12 and later. A pooler in between must keep a session together (pgbouncer: session mode), as
there are settings, prepared statements and LISTEN.
"""

import os
import random
import select
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import AsyncRawCursor
from psycopg.conninfo import make_conninfo
from psycopg.pq import ConnStatus, TransactionStatus

from penstock.errors import BadUrl, CallerError, PenstockError, StoreError
from penstock.queues.options import Address
from penstock.queues.stores.postgres.aio.link import INTERRUPTED, Gate, Link, Rows, Undo
from penstock.queues.stores.postgres.errors import COLLISIONS, MADE_BY_OTHERS, NO_TABLE, failed, failed_connect
from penstock.queues.stores.postgres.side_tables import (
    CREATION,
    DELTAS,
    FOLD,
    FOLD_EVERY,
    FOLD_ROWS_MAX,
    IS_THERE,
    LOCK,
    SHIFT,
)
from penstock.queues.stores.postgres.sql import PREPARE

CONNECTIONS = 8
CONNECTIONS_MAX = 100  # a server has 100 by default
PREPARED_MAX = 300  # statements that the server keeps ready for a connection: those of some twenty queues
TRIES_MAX = 10  # of a statement that collides with others

# What libpq is told unless the URL has it: a server that can't be reached is noticed, be it when connecting or later.
DEFAULTS = {
    "application_name": "penstock",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}

_left_to_parent: list[Link] = []  # never closed here: that would end the parent's sessions


def code_of(problem: BaseException) -> str:
    """PostgreSQL's code of an error that was translated."""
    return getattr(problem.__cause__, "sqlstate", None) or ""


def read_address(address: Address, extra: Mapping[str, Any]) -> tuple[str, int]:
    """What libpq is told, and how many connections there may be."""
    given = {**DEFAULTS, **address.rest, **extra}
    try:
        limit = int(given.pop("connections", CONNECTIONS))
    except ValueError as problem:
        raise CallerError(f"{address.url}: connections is a number, and {problem}") from problem
    if not 1 <= limit <= CONNECTIONS_MAX:
        raise CallerError(f"{address.url}: connections={limit} is none of 1 to {CONNECTIONS_MAX}")
    try:
        return make_conninfo(address.full, client_encoding="utf8", **given), limit
    except psycopg.Error as problem:
        raise BadUrl(f"{address.url} can't be read: {' '.join(str(problem).split())}") from problem


async def connect(conninfo: str, url: str) -> Link:
    """A connection in which each statement is a transaction."""
    try:
        link = await Link.connect(conninfo, autocommit=True)
    except psycopg.Error as problem:
        raise failed_connect(problem, url) from problem
    try:
        await AsyncRawCursor(link).execute(PREPARE)
    except psycopg.Error as problem:
        await link.close()
        raise failed(problem, url, True, False) from problem
    link.prepared_max = PREPARED_MAX
    return link


def is_quiet(link: Link) -> bool:
    """Whether a connection that nobody used is as it was left. What a server says unasked is mostly good-bye."""
    pgconn = link.pgconn
    if pgconn.status != ConnStatus.OK or pgconn.transaction_status != TransactionStatus.IDLE:
        return False
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    return not poll.poll(0)


class Pool:
    """Connections to one place. Any number of tasks may use it."""

    def __init__(self, address: Address, extra: Mapping[str, Any]) -> None:
        self.url = address.url
        self.conninfo, self._limit = read_address(address, extra)
        self.shift_ms = 0  # what tests add to the clock: the trigger for unique keys must know
        self._idle: list[Link] = []
        self._gate = Gate(self._limit)
        self._pid = os.getpid()
        self._made: set[str] = set()
        # The first time comes by chance, so that what many short-lived processes counted is folded, too.
        self._to_fold = random.randint(1, FOLD_EVERY)

    async def open(self) -> None:
        """See whether the server is there."""
        self._check_process()
        async with self._gate:
            self._idle.append(await self._ready())

    async def close(self) -> None:
        """Close all connections that are not in use; others go when their statement is done."""
        self._check_process()
        self._limit = 0
        while self._idle:
            await self._idle.pop().close()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            _left_to_parent.extend(self._idle)
            self._idle = []
            self._gate = Gate(self._limit)
            self._pid = os.getpid()

    async def _ready(self) -> Link:
        while self._idle:
            link = self._idle.pop()
            if is_quiet(link):
                return link
            await link.close()
        return await connect(self.conninfo, self.url)

    async def _done(self, link: Link) -> None:
        if self._limit and link.pgconn.transaction_status == TransactionStatus.IDLE:
            self._idle.append(link)
        else:
            await link.close()

    async def run(self, statement: str, *values: str | None, is_once: bool = False, undo: Undo | None = None) -> Rows:
        """Do one statement; give its rows. `undo` is given them if the caller was interrupted meanwhile."""
        late: Rows = []
        left = TRIES_MAX
        while True:
            left -= 1
            try:
                return await self._run(statement, values, is_once, late)
            except StoreError as problem:
                if code_of(problem) not in COLLISIONS or not left:
                    raise
            except INTERRUPTED:
                if late and undo is not None:
                    await undo(late)
                raise

    async def _run(self, statement: str, values: tuple[str | None, ...], is_once: bool, late: Rows) -> Rows:
        self._check_process()
        async with self._gate:
            link = await self._ready()
            cursor = AsyncRawCursor(link)
            try:
                if link.shift_ms != self.shift_ms:
                    await AsyncRawCursor(link).execute(SHIFT, (str(self.shift_ms),))
                    link.shift_ms = self.shift_ms
                await cursor.execute(statement, values, prepare=True)
                return await cursor.fetchall() if cursor.description else []
            except INTERRUPTED:
                if cursor.description and not link.closed:
                    late += await cursor.fetchall()
                raise
            except psycopg.Error as problem:
                raise failed(problem, self.url, link.closed, is_once) from problem
            finally:
                await self._done(link)

    async def script(self, text: str) -> Rows:
        """Do several statements without values as one transaction; give the rows of the last."""
        self._check_process()
        async with self._gate:
            link = await self._ready()
            cursor = AsyncRawCursor(link)
            try:
                await cursor.execute(text)
                while cursor.nextset():
                    pass
                return await cursor.fetchall() if cursor.description else []
            except psycopg.Error as problem:
                raise failed(problem, self.url, link.closed, False) from problem
            finally:
                await self._done(link)

    async def create(self, text: str) -> None:
        """Make tables and the like. Whoever makes the same at the same time is welcome."""
        try:
            await self.script(f"{LOCK} {text}")
        except StoreError as problem:
            if code_of(problem) not in MADE_BY_OTHERS:
                raise

    async def make_sure(self, table: str) -> None:
        """See that one of our own tables is there."""
        if table in self._made:
            return
        is_there, schema = (await self.run(IS_THERE, table))[0]
        if not is_there:
            await self.create(CREATION[table].replace("{schema}", str(schema)))
        self._made.add(table)

    async def look_again(self) -> None:
        """Make those of our own tables again that somebody took away."""
        made, self._made = self._made, set()
        for table in made:
            await self.make_sure(table)

    async def make_countable(self) -> None:
        """See that there is a table for what the next statement counts, and fold it now and then."""
        if DELTAS not in self._made:
            await self.make_sure("penstock_queues")
            await self.make_sure(DELTAS)
        self._to_fold -= 1
        if self._to_fold <= 0:
            self._to_fold = FOLD_EVERY
            with suppress(PenstockError):
                await self.run(FOLD, str(FOLD_ROWS_MAX))

    async def run_beside(self, table: str, statement: str, *values: str | None, is_once: bool = False) -> Rows:
        """Do a statement on a table of ours, which is made if it isn't there, or no longer."""
        await self.make_sure(table)
        try:
            return await self.run(statement, *values, is_once=is_once)
        except StoreError as problem:
            if code_of(problem) != NO_TABLE:
                raise
        await self.look_again()
        return await self.run(statement, *values, is_once=is_once)
