"""One connection to PostgreSQL, and what else differs between the two forms of the library.

Ctrl-C cancels the statement on the server, and waits for the answer: it says what was done before that, and so what
must be undone.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import psycopg
from psycopg import Connection, waiting
from psycopg.abc import PQGen
from psycopg.rows import TupleRow

from penstock.queues.stores.postgres.session import PostgresSession, Rows

Run = Callable[..., Rows]  # runs a statement on a queue's table
Undo = Callable[[Rows], None]  # takes back what a statement returned

Gate = threading.Semaphore
INTERRUPTED = KeyboardInterrupt
PATIENCE_S = 5.0  # for a server to take the request to cancel
_CHECK_S = 0.1  # how often a wait looks for Ctrl-C


class PostgresLink:
    """A connection. One thread at a time may use it."""

    def __init__(self, connection: Connection[TupleRow]) -> None:
        self._connection = connection
        self.pgconn = connection.pgconn
        self.session = PostgresSession(connection.pgconn)
        self.shift_ms = 0  # as the session knows it
        self.late: Rows = []  # what came after the caller was interrupted

    @classmethod
    def connect(cls, conninfo: str) -> "PostgresLink":
        """Open a connection in which each statement is a transaction."""
        return cls(Connection.connect(conninfo, autocommit=True))

    def run(self, statement: str, values: Sequence[str | None] = ()) -> Rows:
        """Run one statement; return its rows."""
        return self._exchange(self.session.run(statement, values))

    def run_script(self, text: str) -> Rows:
        """Run several statements without values, as one transaction; return the rows of the last."""
        return self._exchange(self.session.run_script(text))

    def _exchange(self, steps: PQGen[Rows]) -> Rows:
        socket = self.pgconn.socket
        try:
            return waiting.wait(steps, socket, _CHECK_S)
        except KeyboardInterrupt:
            with suppress(psycopg.Error):
                self._connection.cancel_safe(timeout=PATIENCE_S)
                self.late = waiting.wait(steps, socket, _CHECK_S)
            raise

    def close(self) -> None:
        """End the session."""
        self.pgconn.finish()
