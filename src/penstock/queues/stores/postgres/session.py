"""One session on a PostgreSQL server: prepared statements, and results as rows.

This works on libpq itself (`psycopg.pq`), as a cursor of psycopg costs as much as all the rest of a short call. The
methods that send are generators, as those of psycopg: they yield what they wait for, and both forms of the library run
them (`link`). A statement is prepared when it is first run, and kept by the server for the next time.

All values are text, or None for NULL; the statement casts them.
"""

import select
from collections.abc import Sequence
from typing import Any

from psycopg import DataError, generators
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

Rows = list[tuple[Any, ...]]

PREPARED_MAX = 300  # statements that the server keeps ready for a session: those of some twenty queues

_SUCCESS = frozenset({ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK})


class PostgresSession:
    """The prepared statements of one connection. Outside of a call there is no transaction."""

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        self._transformer = Transformer()
        self._names: dict[str, bytes] = {}  # statement -> its name on the server, oldest first
        self._count = 0

    def run(self, statement: str, values: Sequence[str | None]) -> PQGen[Rows]:
        """Run one statement; return its rows."""
        name = self._names.get(statement)
        if name is None:
            name = yield from self._prepare(statement)
        self._pgconn.send_query_prepared(name, [None if value is None else _encoded(value) for value in values])
        return self._rows((yield from generators.execute(self._pgconn)))

    def run_script(self, text: str) -> PQGen[Rows]:
        """Run several statements without values, as one transaction; return the rows of the last."""
        self._pgconn.send_query(text.encode())
        return self._rows((yield from generators.execute(self._pgconn)))

    def _prepare(self, statement: str) -> PQGen[bytes]:
        if len(self._names) >= PREPARED_MAX:
            oldest = next(iter(self._names))
            yield from self.run_script(f"DEALLOCATE {self._names.pop(oldest).decode()}")
        self._count += 1
        name = b"penstock_%d" % self._count
        self._pgconn.send_prepare(name, statement.encode())
        self._rows((yield from generators.execute(self._pgconn)))
        self._names[statement] = name
        return name

    def _rows(self, results: list[PGresult]) -> Rows:
        for result in results:
            if result.status not in _SUCCESS:
                raise error_from_result(result)
        if results[-1].status != ExecStatus.TUPLES_OK:
            return []
        self._transformer.set_pgresult(results[-1])
        rows = self._transformer.load_rows(0, results[-1].ntuples, tuple)
        self._transformer.set_pgresult(None)  # a large result is not kept
        return rows

    @property
    def is_broken(self) -> bool:
        """Whether the connection is lost or closed."""
        return self._pgconn.status != ConnStatus.OK

    @property
    def is_idle(self) -> bool:
        """Whether the server waits for the next statement."""
        return self._pgconn.transaction_status == TransactionStatus.IDLE

    @property
    def is_quiet(self) -> bool:
        """Whether an idle connection is as it was left. A message without a request mostly says that the server ends
        the session."""
        return not self.is_broken and self.is_idle and self.has_no_input

    @property
    def has_no_input(self) -> bool:
        """Whether there is nothing to read from the socket, not even its end."""
        poll = select.poll()
        poll.register(self._pgconn.socket, select.POLLIN)
        return not poll.poll(0)


def _encoded(value: str) -> bytes:
    try:
        data = value.encode()
    except UnicodeEncodeError as problem:
        raise DataError(f"text must be valid Unicode: {problem}") from problem
    if b"\0" in data:  # libpq would cut the text there
        raise DataError("text must be without zero bytes")
    return data
