"""How things are called in PostgreSQL, which cuts every name behind 63 bytes.

Keuss puts a queue's jobs into the table `_k_tbl_QUEUE`, and an index named `idx_"_k_tbl_QUEUE"_mature`, quotes
included, upon it. A table's name that is cut would be shared by two queues, so longer ones are refused. An index's name
that is cut may be taken by the index of another queue: that one has another name then, which Keuss never asks for.

Channels of LISTEN and NOTIFY have Keuss' names for channels, `keuss:signal:NAMESPACE:QUEUE`; a longer one is
`keuss:signal:` with a hash of the whole. Keuss itself has no such signals.
"""

import hashlib

from penstock.errors import CallerError

NAME_BYTES_MAX = 63
TABLE = "_k_tbl_"
QUEUE_BYTES_MAX = NAME_BYTES_MAX - len(TABLE)
CHANNEL = "keuss:signal:"
_HASH_BYTES = 20  # chance never makes two of these equal


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL takes it, whatever is in it and however the server reads backslashes."""
    check_zero_bytes(text)
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def check_zero_bytes(queue: str) -> None:
    """Refuse a name that can't be in any text of PostgreSQL."""
    if "\0" in queue:
        raise CallerError(f"the queue {queue!r} can't be in PostgreSQL: its names have no zero bytes")


def table_of(queue: str) -> str:
    """The name of a queue's table."""
    check_zero_bytes(queue)
    try:
        length = len(queue.encode())
    except UnicodeEncodeError as problem:
        raise CallerError(f"the queue {queue!r} can't be in PostgreSQL: {problem}") from problem
    if length > QUEUE_BYTES_MAX:
        raise CallerError(
            f"the queue {queue!r} has {length} bytes in its name, and PostgreSQL has room for {QUEUE_BYTES_MAX}: "
            "behind them it would be cut, and share a table with others. Give a shorter name."
        )
    return TABLE + queue


def index_of(queue: str) -> str:
    """The name of its index, as Keuss makes it and PostgreSQL cuts it."""
    return f"idx_{quoted(table_of(queue))}_mature".encode()[:NAME_BYTES_MAX].decode(errors="ignore")


def other_index_of(queue: str) -> str:
    """A name for the index if another queue's has its name."""
    return "penstock_mature_" + _hash(queue)


def channel_name(channel: str) -> str:
    """A channel's name as PostgreSQL can have it."""
    if len(channel.encode()) <= NAME_BYTES_MAX:
        return channel
    return CHANNEL + _hash(channel)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).hexdigest()
