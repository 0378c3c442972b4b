"""Signals in MongoDB, as Keuss' mongo-capped has them: documents in a capped collection, which listeners tail.

| field | value |
|---|---|
| `_id` | ObjectId |
| `event` | `keuss:signal:NAMESPACE:QUEUE` |
| `message` | when a job is ready, a number of ms (BSON double); or `p true`, `p false`: paused, or resumed |

The collection `default` of the database `DATABASE_signal` is capped at 5 MiB, and made with just the options that Keuss
gives, by whoever needs it first. A capped collection that is empty can't be tailed, so the first listener inserts a
document with only `dummy`.

Keuss listens to what has a greater `_id` than the newest document, and so misses messages of machines whose clocks are
behind. Here a listener reads in the order of insertion: up to the document that was the newest when it began it hears
nothing, and all that comes behind.

Change streams would be there on replica sets, and are not faster: from the insert to the listener, 300 messages each by
turns on one server, 1.3 to 1.5 ms in the median by the capped collection and 2.1 to 2.6 by a change stream, which waits
for a majority; 370 to 490 and 450 to 560 microseconds of the listener's processor time a message.

On MongoDB 6, mubsub 1.8 (which Keuss 2.0.6 uses) can't start to listen where the collection exists already: it takes
the server's words for an error. Names that end in `collection` are not affected, so with Node beside Penstock there,
give both such a name: `channel` in Keuss' `signaller.opts`, `channel=` in our URL.
"""

import math
import re
from collections.abc import Iterable
from typing import Any

CHANNEL = "default"
CAPPED: dict[str, Any] = {"capped": True, "size": 5 * 1024 * 1024}
NOT_CAPPED = 2  # the server's code for a tailable cursor on a collection that isn't
AWAIT_MS = 1000  # how long the server holds back an empty reply to a listener
RETRY_S = 0.5  # between two attempts to listen, in asyncio


def message_of(text: str) -> float | str:
    """Return a text as Keuss stores it: times as numbers."""
    return float(text) if text.isdigit() else text


def text_of(message: object) -> str | None:
    """Return what a document says; None for what Keuss would not take for a signal either."""
    if isinstance(message, bool):
        return None
    if isinstance(message, int | float):
        return str(int(message)) if math.isfinite(message) else None
    return message if isinstance(message, str) else None


def front_of(channel: str) -> str:
    """Return the part of a channel's name that all queues of a namespace share."""
    return ":".join(channel.split(":", 3)[:3]) + ":"


def wanted(fronts: Iterable[str], start: object) -> dict[str, Any]:
    """Return a filter for the signals of some namespaces, and for the document where listening begins."""
    pattern = "|".join(sorted(re.escape(front) for front in fronts))
    return {"$or": [{"event": {"$regex": f"^(?:{pattern})"}}, {"_id": start}]}
