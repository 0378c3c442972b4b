"""Names in PostgreSQL, which cuts every name after 63 bytes.

| what | name |
|---|---|
| table of a queue | `_k_tbl_QUEUE`, as Keuss has it |
| its index | `idx_"_k_tbl_QUEUE"_mature`, quotes included, as Keuss has it |
| its index, if another queue has that name | `penstock_mature_` and a hash of the queue's name |
| channel of LISTEN and NOTIFY | `keuss:signal:NAMESPACE:QUEUE`, as Keuss has it in Redis |
| channel with a longer name | `keuss:signal:` and a hash of the whole |

A table name that is cut would be shared by two queues, so longer ones are refused. An index name that is cut may be
taken by the index of another queue; Keuss never uses the name of an index. Keuss has no signals in PostgreSQL.
"""

import hashlib
from functools import lru_cache

from penstock.errors import CallerError

NAME_BYTES_MAX = 63
TABLE = "_k_tbl_"
QUEUE_BYTES_MAX = NAME_BYTES_MAX - len(TABLE)
CHANNEL = "keuss:signal:"
_HASH_BYTES = 20  # enough to rule out collisions


def quoted(name: str) -> str:
    """Return a name as an identifier in SQL, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as a literal in SQL, whatever is in it and however the server reads backslashes."""
    check_zero_bytes(text)
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def check_zero_bytes(queue: str) -> None:
    """Raise CallerError for a name that no text of PostgreSQL can have."""
    if "\0" in queue:
        raise CallerError(f"a queue name on PostgreSQL must be without zero bytes, got {queue!r}")


def table_of(queue: str) -> str:
    """Return the name of a queue's table."""
    check_zero_bytes(queue)
    try:
        length = len(queue.encode())
    except UnicodeEncodeError as problem:
        raise CallerError(f"a queue name on PostgreSQL must be valid Unicode, got {queue!r}: {problem}") from problem
    if length > QUEUE_BYTES_MAX:
        raise CallerError(
            f"a queue name on PostgreSQL must be at most {QUEUE_BYTES_MAX} bytes, got {length} bytes in {queue!r}. "
            "A longer one would be cut, and share its table with others."
        )
    return TABLE + queue


def index_of(queue: str) -> str:
    """Return the name of its index, as Keuss makes it and PostgreSQL cuts it."""
    return f"idx_{quoted(table_of(queue))}_mature".encode()[:NAME_BYTES_MAX].decode(errors="ignore")


def other_index_of(queue: str) -> str:
    """Return the name of its index if another queue's has that name."""
    return "penstock_mature_" + _hash(queue)


@lru_cache(1024)
def channel_name(channel: str) -> str:
    """Return a channel's name as PostgreSQL can have it."""
    if len(channel.encode()) <= NAME_BYTES_MAX:
        return channel
    return CHANNEL + _hash(channel)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).hexdigest()
