"""One connection to PostgreSQL, and what else is not the same in the two forms of the library.

A task that is cancelled while the server works for it waits for the answer all the same, for a while: it says what was
done, and so what must be undone. psycopg by itself would cancel the statement, and not tell whether that came too late.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection, waiting
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

Rows = list[tuple[Any, ...]]
Run = Callable[..., Awaitable[Rows]]  # does a statement
Undo = Callable[[Rows], Awaitable[None]]  # takes back what a statement gave

Gate = asyncio.Semaphore
INTERRUPTED = asyncio.CancelledError
PATIENCE_S = 5.0  # a statement takes milliseconds; a server that is silent for so long will not tell any more
_LOOK_S = 0.1  # how often psycopg looks whether it was interrupted


class Link(AsyncConnection[TupleRow]):
    """A connection. Its owner keeps note of what it was set to."""

    shift_ms = 0

    async def wait(self, gen: Any, *args: Any, **named: Any) -> Any:
        """Run one of psycopg's generators to its end."""
        if not args:
            named.setdefault("interval", _LOOK_S)
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, *args, **named)
        except asyncio.CancelledError:
            with suppress(psycopg.Error, TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await waiting.wait_async(gen, self.pgconn.socket, interval=_LOOK_S)
            raise
        finally:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()  # whatever it says next would be taken for the answer to something else
