"""One connection to PostgreSQL, and what else differs between the two forms of the library.

A task that is cancelled while the server works for it waits for the answer all the same, up to 5 seconds: the answer
says what was done, and so what must be undone.

The event loop watches the socket from the first statement on, not per statement: that would cost two system calls each
time. What the server sends without a request goes to `on_input`; without one, the connection is no longer watched, and
the pool finds out before the next use. uvloop stops watching a socket after an error, which it reports once: what comes
after that would never be read. So a statement that takes long looks at its socket now and then.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.abc import PQGen
from psycopg.waiting import READY_R, READY_W, WAIT_W

from penstock.queues.stores.postgres.session import PostgresSession, Rows

Run = Callable[..., Awaitable[Rows]]  # runs a statement on a queue's table
Undo = Callable[[Rows], Awaitable[None]]  # takes back what a statement returned

Gate = asyncio.Semaphore
INTERRUPTED = asyncio.CancelledError
LOOK_S = 1.0  # between two looks at the socket of a statement that takes long
PATIENCE_S = 5.0  # a statement takes milliseconds; a server that is silent for longer will not answer any more


class PostgresLink:
    """A connection. One task at a time may use it."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection  # it closes the socket when nobody has it any more
        self.pgconn = connection.pgconn
        self.session = PostgresSession(connection.pgconn)
        self.shift_ms = 0  # as the session knows it
        self.late: Rows = []  # what came after the caller was cancelled
        self.on_input: Callable[[], None] | None = None
        self._steps: PQGen[Rows] | None = None  # of the statement that runs
        self._answer: asyncio.Future[Rows] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # that watches the socket
        self._socket = -1
        self._is_writing = False
        self._looking: asyncio.TimerHandle | None = None

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
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._watch(loop)
        self._steps = steps
        self._answer = loop.create_future()
        self._on_ready(None)
        try:
            return await self._answer
        except asyncio.CancelledError:
            if self._answer.cancelled():
                self._answer = loop.create_future()
            with suppress(psycopg.Error, TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    self.late = await self._answer
            raise
        finally:
            self._steps = self._answer = None

    def _on_ready(self, ready: int | None) -> None:
        """Go on with the statement; `ready` says what the socket is ready for, None at the beginning."""
        if self._steps is None or self._answer is None:
            if self.on_input is None:
                self._unwatch()
            else:
                self.on_input()
        elif not self._answer.done():  # a task that was cancelled comes back for the rest
            try:
                wanted = next(self._steps) if ready is None else self._steps.send(ready)
            except StopIteration as end:
                self._answer.set_result(end.value)
            except Exception as problem:
                if self.session.is_broken:
                    self._unwatch()  # at once: libpq has closed the socket, and the next one may get its number
                self._answer.set_exception(problem)
            else:
                if bool(wanted & WAIT_W) != self._is_writing:
                    self._watch_writing(not self._is_writing)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._unwatch()
        self._loop = loop
        self._socket = self.pgconn.socket
        loop.add_reader(self._socket, self._on_ready, READY_R)
        self._looking = loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """Go on with a statement whose socket can be read, though nobody has said so."""
        loop = self._loop
        if loop is None:
            return
        if self._answer is not None and not self._answer.done() and not self.session.has_no_input:
            self._watch(loop)
            self._on_ready(READY_R)
        else:
            self._looking = loop.call_later(LOOK_S, self._look)

    def _watch_writing(self, is_writing: bool) -> None:
        """A batch that is larger than the buffers is sent in pieces."""
        if self._loop is not None:
            self._is_writing = is_writing
            if is_writing:
                self._loop.add_writer(self._socket, self._on_ready, READY_W)
            else:
                self._loop.remove_writer(self._socket)

    def _unwatch(self) -> None:
        loop, self._loop, self._is_writing = self._loop, None, False
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._socket)
            loop.remove_writer(self._socket)

    def close(self) -> None:
        """End the session."""
        self._unwatch()
        self.pgconn.finish()
