"""The names of keys in Redis.

| key                                 | type       | whose | what                                                    |
|-------------------------------------|------------|-------|---------------------------------------------------------|
| keuss:q:ordered_queue:index:QUEUE   | sorted set | Keuss | id -> when it is ready, or its lease is over, in ms     |
| keuss:q:ordered_queue:hash:QUEUE    | hash       | Keuss | id -> element, JSON (see `element`)                     |
| keuss:q:list:QUEUE                  | list       | Keuss | elements of redis-list; pushed left, popped right       |
| keuss:stats:NAMESPACE:QUEUE         | hash       | Keuss | name, ns, opts, counter_X, paused                       |
| keuss:signal:NAMESPACE:QUEUE        | channel    | Keuss | a time in ms, or `p true`, `p false`                    |
| penstock:oq:unique:QUEUE            | hash       | ours  | unique key -> `KEEP END ID`; END is 0 while it exists   |
| penstock:oq:unique-ids:QUEUE        | hash       | ours  | id -> unique key, while the job exists                  |
| penstock:oq:unique-ends:QUEUE       | sorted set | ours  | unique key -> when it is forgotten, in ms               |
| penstock:oq:claim:LENGTH:QUEUE:KEY  | hash       | ours  | `n`, 1 to n -> id, `whole`; LENGTH is that of QUEUE     |
| penstock:oq:claimed:QUEUE           | hash       | ours  | id -> `TOKEN KEY` of the claim that it is under         |
| penstock:oq:told:QUEUE              | string     | ours  | there for 50 ms after a signal that may be needless     |
| penstock:list:told:{LIST KEY}       | string     | ours  | the same; `told:QUEUE` if the name has a hash tag       |

A Node peer never reads what is ours. In a Redis Cluster all keys of a call must lie in one slot, so the name of a queue
of `redis+oq` needs a hash tag there, `{mail}` or `{mail}.dead`; Keuss' own scripts need the same. Only the default
queue of dead letters is found under its plain name, too: there its keys are those of `{__deadletter__}`. A list is one
key, and so may have a plain name.
"""

import re
from functools import lru_cache

from penstock.errors import CallerError
from penstock.queues.dead_letter import DEAD_LETTER_QUEUE

OQ_INDEX = b"keuss:q:ordered_queue:index:"
OQ_HASH = b"keuss:q:ordered_queue:hash:"
LIST = b"keuss:q:list:"
STATS = b"keuss:stats:"

_SIDES = (
    b"penstock:oq:unique:",
    b"penstock:oq:unique-ids:",
    b"penstock:oq:unique-ends:",
    b"penstock:oq:told:",
    b"penstock:oq:claimed:",
)
_TAG = re.compile(rb"{([^}]+)}")
_GLOB = re.compile(rb"([*?\[\]\\])")


@lru_cache(1024)
def oq_keys(queue: str, stats: bytes | None) -> tuple[bytes, ...]:
    """The keys of one queue, in the order in which scripts want them; `stats` is that of its counters, if any."""
    name = queue.encode()
    keys = tuple(prefix + name for prefix in (OQ_INDEX, OQ_HASH, *_SIDES))
    return (*keys, keys[0] if stats is None else stats)


def claim_key(queue: str, key: str) -> bytes:
    """The length keeps apart what colons in names would not."""
    name = queue.encode()
    return b"penstock:oq:claim:%d:%b:%b" % (len(name), name, key.encode())


def list_keys(queue: str, stats: bytes | None) -> tuple[bytes, bytes, bytes]:
    """The list, the key that keeps signals apart, and the counters, in the order in which scripts want them.

    The first two are in one slot of a Cluster: see `check_list_name`.
    """
    name = queue.encode()
    key = LIST + name
    told = b"penstock:list:told:" + (b"{%b}" % key if tag_of(queue) is None else name)
    return key, told, key if stats is None else stats


def check_list_name(queue: str, where: str) -> None:
    """Refuse a name that a list can't have in a Cluster.

    A name without a hash tag is put as a tag into our own key, whole, which a closing brace in it would cut short.
    """
    if "}" in queue:
        check_tag(queue, where)


def stats_key(namespace: str, queue: str) -> bytes:
    """The hash of a queue's statistics."""
    return b"%b%b:%b" % (STATS, namespace.encode(), queue.encode())


def name_in_cluster(queue: str) -> str:
    """The name that a queue's keys have in a Cluster."""
    return f"{{{queue}}}" if queue == DEAD_LETTER_QUEUE else queue


def queue_in_cluster(name: str) -> str:
    """The queue whose keys have a name in a Cluster."""
    return DEAD_LETTER_QUEUE if name == name_in_cluster(DEAD_LETTER_QUEUE) else name


def tag_of(key: str | bytes) -> bytes | None:
    """What decides about the slot of a key or queue in a Cluster: between the first brace and the next closing one."""
    name = key.encode() if isinstance(key, str) else key
    begin = name.find(b"{")
    found = _TAG.match(name, begin) if begin >= 0 else None
    return None if found is None else found[1]


def check_tag(queue: str, where: str) -> None:
    """Refuse a name that can't be used in a Cluster."""
    if tag_of(queue) is None:
        raise CallerError(
            f"{where} is a Redis Cluster: there a queue's name needs a hash tag, as in '{{{queue}}}', so that all its "
            "keys lie on one node. Queues that jobs move between at once share one: '{mail}' and '{mail}.dead'"
        )


def pattern_of(prefix: bytes) -> bytes:
    """What SCAN is told to find all names after a prefix."""
    return _GLOB.sub(rb"\\\1", prefix) + b"*"
