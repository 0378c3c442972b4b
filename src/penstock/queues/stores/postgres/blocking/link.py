"""One connection to PostgreSQL, and what else is not the same in the two forms of the library."""

import threading
from collections.abc import Callable
from typing import Any

from psycopg import Connection
from psycopg.rows import TupleRow

Rows = list[tuple[Any, ...]]
Run = Callable[..., Rows]  # does a statement
Undo = Callable[[Rows], None]  # takes back what a statement gave

Gate = threading.Semaphore
INTERRUPTED = KeyboardInterrupt


class Link(Connection[TupleRow]):
    """A connection. Its owner keeps note of what it was set to."""

    shift_ms = 0
