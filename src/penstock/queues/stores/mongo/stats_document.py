"""Statistics in MongoDB, as Keuss keeps them: one document a queue, in the collection `keuss_stats`.

| field | value |
|---|---|
| `_id` | `keuss:stats:NAMESPACE:QUEUE` |
| `ns`, `name` | the namespace and the queue's name |
| `opts` | an object: the options that the queue was registered with |
| `counters` | an object: put, get, reserve, commit, rollback, deadletter; dotted names are objects within it |
| `paused` | true or false; absent is not paused |

Streams also count for each group: `stream.GROUP.put`, and so on.

Any of them may be missing. There is no index but that of `_id`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

COLLECTION = "keuss_stats"
_PREFIX = "keuss:stats"


def stats_id(namespace: str, queue: str) -> str:
    """Return the key of a queue's document."""
    return f"{_PREFIX}:{namespace}:{queue}"


def flat(counters: object, front: str = "") -> dict[str, int]:
    """Return nested counters under dotted names. What is not a number is left out."""
    found: dict[str, int] = {}
    if isinstance(counters, Mapping):
        for name, value in counters.items():
            if isinstance(value, Mapping):
                found.update(flat(value, f"{front}{name}."))
            elif isinstance(value, int | float) and not isinstance(value, bool):
                found[front + name] = int(value)
    return found


def with_groups(counters: Mapping[str, int], groups: Sequence[str], group: str) -> dict[str, int]:
    """Return counters with those of the groups of a stream: a push is for all `groups`, all else is done by one."""
    found = dict(counters)
    for name, much in counters.items() if group else ():
        found |= {f"stream.{one}.{name}": much for one in (groups if name == "put" else (group,))}
    return found


def storable_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as an object that BSON and Node can have."""
    return {str(name): value for name, value in options.items()}
