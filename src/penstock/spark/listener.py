"""Acks the last batch of queries that end by `trigger(once=True)` or `query.stop()`.

A stream acks a batch when Spark asks it for the next one. A query that ends without asking again leaves the jobs of its
last batch reserved, though they are done: the next start from the same checkpoint acks them; without one they are
delivered again when their lease ends. Spark reports a batch after it has logged it as done, so a listener can ack it,
too.

    spark.streams.addListener(AckListener("redis+oq://localhost/0"))    # for all queries on this store
    ack_last_batch(query, "redis+oq://localhost/0")                     # for one that has ended

It runs in the process that made the query, which must reach the store. Where it can't (Connect clients without access
to the store; a driver that is killed between the log and the report), the jobs wait for the next start, as above.
"""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from penstock.errors import PenstockError
from penstock.queues.blocking import Store, connect
from penstock.spark.claims import HELD, Offset, claim_keys, marks_in
from penstock.spark.streaming import is_same_store, store_address

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("penstock.spark")


class AckListener(StreamingQueryListener):
    """Acks the jobs of each batch of this session's queries on one store, as soon as Spark has logged it as done."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._address = store_address(url)
        self._store: Store | None = None
        self._lock = threading.Lock()  # Spark may call from several threads

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: no batch is done yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        offsets = _done(event.progress, self._address)
        if not offsets:
            return
        with self._lock:
            try:
                if self._store is None:
                    self._store = connect(self._url)
                self._store.open()
                _ack(self._store, offsets)
            except PenstockError as problem:
                log.warning("a batch could not be acked now; its query will ack it: %s", problem)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: all batches are acked."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: the last progress came before."""

    def close(self) -> None:
        """Close the connection to the store. The next batch opens it again."""
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None


def ack_last_batch(query: StreamingQuery, url: str) -> int:
    """Ack the jobs of the last batch that a query has finished; returns how many were not acked yet."""
    progress = query.lastProgress
    offsets = [] if progress is None else _done(progress, store_address(url))
    if not offsets:
        return 0
    with connect(url) as store:
        return _ack(store, offsets)


def _done(progress: StreamingQueryProgress, address: str) -> list[Offset]:
    """Return the end offsets of a report that are of this store."""
    found = []
    for source in progress.sources:
        offset = _offset(source.endOffset)
        if offset is not None and is_same_store(offset["store"], address):
            found.append(offset)
    return found


def _offset(text: Any) -> Offset | None:
    """Return an offset of ours; None for those of other sources."""
    try:
        offset = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None
    is_ours = isinstance(offset, dict) and {"run", "seq", "queue", "store"} <= offset.keys()
    return offset if is_ours and offset["seq"] else None


def _ack(store: Store, offsets: list[Offset]) -> int:
    acked = 0
    for offset in offsets:
        queue = store.queue(offset["queue"])
        if HELD in offset:
            acked += queue.ack_marked(marks_in(offset))
        else:
            acked += sum(queue.ack_claim(key) for key in claim_keys(offset))
    return acked
