"""Pushes of one queue on their way into buckets.

Jobs go into the buckets that are being filled, and so have their ids at once. A push that has to be stored then waits
until the insert before it is done: whoever comes first then stores what has been added by all, in one insert. So the
busier a queue, the fuller its buckets, and nobody waits for others to come.

A push that has only to be buffered returns at once. Its bucket is stored when it is full or `bucket_wait` after its
first job, and tried again while that fails; at most `WAITING_MAX` full buckets wait, and pushes fail from then on. A
repeated insert finds by their ids the buckets that were stored before: only one that was stored, emptied and deleted
before its repetition is there twice. `flush` stores all, and raises if it can't. `close` does the same, but can't raise
for a server that is gone: it logs how many jobs are lost.
"""

import logging
import threading
from collections.abc import Sequence

from pymongo.errors import BulkWriteError

from penstock.errors import PenstockError
from penstock.job import NewJob
from penstock.queues.aio.runtime import Lock, to_the_end
from penstock.queues.aio.signal import Signal
from penstock.queues.stores.mongo.aio.delayed_call import DelayedCall
from penstock.queues.stores.mongo.aio.link import MongoLink
from penstock.queues.stores.mongo.buckets import BucketOptions, Filling
from penstock.queues.stores.mongo.errors import SAME_KEY

log = logging.getLogger("penstock")

WAITING_MAX = 64  # full buckets of one queue in memory, while the server can't be reached


class BucketBatch:
    """Buckets that are stored together."""

    def __init__(self, options: BucketOptions) -> None:
        self.filling = Filling(options.size, options.is_bare)
        self.channel: str | None = None
        self.is_stored = False
        self.problem: PenstockError | None = None


class Inbox:
    """The pushes of one queue, in this process."""

    def __init__(self, link: MongoLink, queue: str, options: BucketOptions, signal: Signal) -> None:
        self._link = link
        self._queue = queue
        self._options = options
        self._signal = signal
        self._lock = Lock()
        # No call waits within this one: it is for the threads of the blocking form. What is added to a batch after it
        # was taken to be stored would be lost.
        self._adding = threading.Lock()
        self._batch = BucketBatch(options)
        self._late: list[BucketBatch] = []  # buffered ones that could not be stored yet
        self._delayed_store = DelayedCall(self._store_full, options.wait_s)

    async def add(self, jobs: Sequence[NewJob], low_ms: int, high_ms: int, channel: str | None) -> list[str]:
        """Add jobs; return their ids once they are stored, or buffered."""
        if self._options.is_buffered:
            return await self._buffer(jobs, low_ms, high_ms, channel)
        batch, ids = self._fill(jobs, low_ms, high_ms, channel)
        await to_the_end(self._stored(batch), _nothing)
        if batch.problem is not None:
            raise batch.problem
        return ids

    def _fill(
        self, jobs: Sequence[NewJob], low_ms: int, high_ms: int, channel: str | None
    ) -> tuple[BucketBatch, list[str]]:
        with self._adding:
            batch = self._batch
            batch.channel = channel or batch.channel
            return batch, [batch.filling.add(job, low_ms, high_ms) for job in jobs]

    def _taken(self) -> BucketBatch:
        """Return the batch that was filled; from now on another one is."""
        with self._adding:
            batch, self._batch = self._batch, BucketBatch(self._options)
            return batch

    async def _stored(self, batch: BucketBatch) -> bool:
        """Store a batch, unless another caller has done it; whether it is stored."""
        async with self._lock:
            if not batch.is_stored and batch.problem is None:
                if batch is self._batch:
                    self._taken()
                try:
                    await self._insert(batch)
                except PenstockError as problem:
                    batch.problem = problem
        return batch.is_stored

    async def _insert(self, batch: BucketBatch, is_again: bool = False) -> None:
        """Store buckets. Those that are there already, since the reply to an earlier try was lost, are as good."""
        buckets = batch.filling.buckets
        with self._link.errors(is_once=True):
            try:
                collection = self._link.collection(self._queue)
                await collection.insert_many([bucket.document for bucket in buckets], ordered=not is_again)
            except BulkWriteError as problem:
                details = problem.details or {}
                codes = {error.get("code") for error in details.get("writeErrors", ())}
                if not is_again or codes != {SAME_KEY} or details.get("writeConcernErrors"):
                    raise
        batch.is_stored = True
        if batch.channel is not None:
            await self._signal.send(batch.channel, str(min(bucket.mature_ms for bucket in buckets)))

    async def _buffer(self, jobs: Sequence[NewJob], low_ms: int, high_ms: int, channel: str | None) -> list[str]:
        if len(self._late) >= WAITING_MAX:
            await self._store_buffered()
        batch, ids = self._fill(jobs, low_ms, high_ms, channel)
        if batch.filling.is_full:
            await self._store_full()
        else:
            self._delayed_store.start()
        return ids

    async def _store_full(self) -> None:
        """Store what is buffered, or leave it for later: its pushes are done."""
        try:
            await self._store_buffered()
        except PenstockError as problem:
            log.warning("the buffer of %r is kept, and stored later: %s", self._queue, problem)

    async def _store_buffered(self) -> None:
        """Store what is buffered. What can't be stored is kept, and tried again later."""
        async with self._lock:
            batch = self._taken()
            if batch.filling.jobs:
                self._late.append(batch)
            try:
                while self._late:
                    await self._insert(self._late[0], is_again=True)
                    del self._late[0]
            except PenstockError:
                self._delayed_store.start()
                raise

    async def flush(self) -> None:
        """Store what is buffered."""
        if self._options.is_buffered:
            await self._store_buffered()

    async def close(self) -> None:
        """Store the rest, as far as there is a server."""
        await self._delayed_store.close()
        try:
            await self.flush()
        except PenstockError as problem:
            left = sum(batch.filling.jobs for batch in self._late)
            log.error("%d buffered jobs of %r are lost: %s", left, self._queue, problem)
        await self._delayed_store.close()


async def _nothing(_: object) -> None:
    """A push is not undone: it may be stored, as its caller must expect after it was cancelled."""
