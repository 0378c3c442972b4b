"""The names of keys in Redis. What they contain is in the modules that use them: `ordered`, `list`, `stats`, `signal`.

A Node peer never reads our keys. In a Redis Cluster all keys of a call must be in one slot, so the name of a queue
of `redis+oq` needs a hash tag there, `{mail}` or `{mail}.dead`; Keuss' own scripts need the same. Only the default
dead-letter queue may be used by its plain name: its keys have the name `{__deadletter__}` there. A list is one key, and
so may have a plain name.
"""

import re
from functools import lru_cache

from penstock.errors import CallerError
from penstock.queues.dead_letter import DEAD_LETTER_QUEUE

OQ_INDEX = b"keuss:q:ordered_queue:index:"
OQ_HASH = b"keuss:q:ordered_queue:hash:"
LIST = b"keuss:q:list:"
STATS = b"keuss:stats:"

_OQ_PREFIXES = (
    OQ_INDEX,
    OQ_HASH,
    b"penstock:oq:unique:",
    b"penstock:oq:unique-ids:",
    b"penstock:oq:unique-ends:",
    b"penstock:oq:signalled:",
    b"penstock:oq:claimed:",
)
_TAG = re.compile(rb"{([^}]+)}")
_GLOB = re.compile(rb"([*?\[\]\\])")


@lru_cache(1024)
def oq_keys(queue: str, stats: bytes | None) -> tuple[bytes, ...]:
    """Return the keys of a queue in the order of `queue.lua`.

    `stats` is the key of its counters; None: the script counts nothing.
    """
    name = queue.encode()
    keys = tuple(prefix + name for prefix in _OQ_PREFIXES)
    return (*keys, keys[0] if stats is None else stats)


def claim_key(queue: str, key: str) -> bytes:
    """Return the key of a claim. The length keeps apart what colons in names would not."""
    name = queue.encode()
    return b"penstock:oq:claim:%d:%b:%b" % (len(name), name, key.encode())


@lru_cache(1024)
def list_keys(queue: str, stats: bytes | None) -> tuple[bytes, bytes, bytes]:
    """Return the list, the mark of a repeated signal, and the counters (None: the script counts nothing).

    The first two are in one slot of a Cluster: see `check_list_name`.
    """
    name = queue.encode()
    key = LIST + name
    signalled = b"penstock:list:signalled:" + (b"{%b}" % key if tag_of(queue) is None else name)
    return key, signalled, key if stats is None else stats


def check_list_name(queue: str, where: str) -> None:
    """Raise CallerError for a name that a list can't have in a Cluster.

    A name without a hash tag is put as a tag into our own key, whole: a closing brace in it would cut the tag short.
    """
    if "}" in queue:
        check_tag(queue, where)


@lru_cache(1024)
def stats_key(namespace: str, queue: str) -> bytes:
    """Return the key of a queue's statistics."""
    return b"%b%b:%b" % (STATS, namespace.encode(), queue.encode())


@lru_cache(1024)
def counters_key(namespace: str, name: str, is_cluster: bool) -> bytes | None:
    """Return the key of the counters that a queue's scripts write; None if it is not in the slot of the jobs."""
    key = stats_key(namespace, name)
    return None if is_cluster and tag_of(key) != (tag_of(name) or b"") else key


def name_in_cluster(queue: str) -> str:
    """Return the name that a queue has in its keys in a Cluster."""
    return f"{{{queue}}}" if queue == DEAD_LETTER_QUEUE else queue


def queue_in_cluster(name: str) -> str:
    """Return the queue that has a name in its keys in a Cluster."""
    return DEAD_LETTER_QUEUE if name == name_in_cluster(DEAD_LETTER_QUEUE) else name


def tag_of(key: str | bytes) -> bytes | None:
    """Return the hash tag of a key or queue: what is between the first brace and the next closing one."""
    name = key.encode() if isinstance(key, str) else key
    begin = name.find(b"{")
    found = _TAG.match(name, begin) if begin >= 0 else None
    return None if found is None else found[1]


def check_tag(queue: str, where: str) -> None:
    """Raise CallerError for a name that a queue can't have in a Cluster."""
    if tag_of(queue) is None:
        raise CallerError(
            f"{where} is a Redis Cluster: there a queue's name needs a hash tag, as in '{{{queue}}}', so that all its "
            "keys are on one node. Queues between which jobs move in one step share a tag: '{mail}' and '{mail}.dead'"
        )


def pattern_of(prefix: bytes) -> bytes:
    """Return the pattern with which SCAN finds all keys that begin with a prefix."""
    return _GLOB.sub(rb"\\\1", prefix) + b"*"
