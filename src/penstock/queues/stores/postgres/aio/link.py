"""One connection to PostgreSQL, and what else differs between the two forms of the library.

A task that is cancelled while the server works for it waits for the answer all the same, up to 5 seconds: the answer
says what was done, and so what must be undone.

The event loop watches the socket from the first statement on, not per statement: that would cost two system calls each
time. What the server sends without a request goes to `on_input`; without one, the connection is no longer watched, and
the pool finds out before the next use.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import psycopg
from psycopg import AsyncConnection
from psycopg.abc import PQGen
from psycopg.rows import TupleRow
from psycopg.waiting import READY_R, READY_W, WAIT_W

from penstock.queues.stores.postgres.session import PostgresSession, Rows

Run = Callable[..., Awaitable[Rows]]  # runs a statement on a queue's table
Undo = Callable[[Rows], Awaitable[None]]  # takes back what a statement returned

Gate = asyncio.Semaphore
INTERRUPTED = asyncio.CancelledError
PATIENCE_S = 5.0  # a statement takes milliseconds; a server that is silent for longer will not answer any more


class PostgresLink:
    """A connection. One task at a time may use it."""

    def __init__(self, connection: AsyncConnection[TupleRow]) -> None:
        self._connection = connection  # it closes the socket when nobody has it any more
        self.pgconn = connection.pgconn
        self.session = PostgresSession(connection.pgconn)
        self.shift_ms = 0  # as the session knows it
        self.late: Rows = []  # what came after the caller was cancelled
        self.on_input: Callable[[], None] | None = None
        self._answer: asyncio.Future[int] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # that watches the socket
        self._socket = -1

    @classmethod
    async def connect(cls, conninfo: str) -> "PostgresLink":
        """Open a connection in which each statement is a transaction."""
        return cls(await AsyncConnection.connect(conninfo, autocommit=True))

    async def run(self, statement: str, values: Sequence[str | None] = ()) -> Rows:
        """Run one statement; return its rows."""
        return await self._exchange(self.session.run(statement, values))

    async def run_script(self, text: str) -> Rows:
        """Run several statements without values, as one transaction; return the rows of the last."""
        return await self._exchange(self.session.run_script(text))

    async def _exchange(self, steps: PQGen[Rows]) -> Rows:
        try:
            return await self._wait(steps)
        except asyncio.CancelledError:
            with suppress(psycopg.Error, TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    self.late = await self._wait(steps)
            raise
        finally:
            if self.session.is_broken:
                self._unwatch()  # at once: libpq has closed the socket, and the next connection may get its number

    async def _wait(self, steps: PQGen[Rows]) -> Rows:
        try:
            wanted = next(steps)
            loop = self._watch()
            while True:
                self._answer = loop.create_future()
                if wanted & WAIT_W:  # a large batch
                    loop.add_writer(self._socket, self._on_ready, READY_W)
                try:
                    ready = await self._answer
                finally:
                    self._answer = None
                    if wanted & WAIT_W:
                        loop.remove_writer(self._socket)
                wanted = steps.send(ready)
        except StopIteration as end:
            rows: Rows = end.value
            return rows

    def _watch(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._unwatch()
            self._loop = loop
            self._socket = self.pgconn.socket
            loop.add_reader(self._socket, self._on_ready, READY_R)
        return loop

    def _unwatch(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._socket)

    def _on_ready(self, ready: int) -> None:
        if self._answer is not None:
            if not self._answer.done():
                self._answer.set_result(ready)
        elif self.on_input is not None:
            self.on_input()
        else:
            self._unwatch()

    def close(self) -> None:
        """End the session."""
        self._unwatch()
        self.pgconn.finish()
