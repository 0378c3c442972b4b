"""Jobs into PostgreSQL, with unique keys and without, also in a transaction of the caller's."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.rows import tuple_row

from penstock.codec import to_json
from penstock.errors import CallerError, StoreError
from penstock.job import NewJob, StoredJob
from penstock.queues.stores.postgres.aio.base import PostgresBase
from penstock.queues.stores.postgres.aio.link import Rows, Run
from penstock.queues.stores.postgres.element import batch, id_batch, packed
from penstock.queues.stores.postgres.errors import failed
from penstock.queues.stores.postgres.names import channel_name
from penstock.queues.stores.postgres.side_tables import (
    HAS_TRIGGER,
    IS_THERE,
    RETAKE,
    TIDY,
    UNIQUE_PUSH,
    missed_ends,
    trigger,
)

UNIQUE = "penstock_unique"
BATCH_BYTES_MAX = 256 * 1024 * 1024  # of one statement: the server takes 1 GB, and both ends keep copies
_TIDY_EVERY = 1000  # keys between two looks for those that nobody needs any more
_TIDY_MANY = 2000  # twice as many are forgotten, so that they never pile up
_TRIGGER_AGAIN_S = 60.0  # between two tries to make a trigger


class PostgresKeys(PostgresBase):
    """`push` and its kin."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._triggers: dict[str, float] = {}  # when each queue's trigger was last looked for
        self._keys = 0

    def prepare(self, job: NewJob) -> None:
        job.prepared = packed(job)

    async def push(self, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        async def run(statement: str, *values: str | None) -> Rows:
            return await self._run(queue, statement, *values, is_push=True, is_once=True)

        return await self._push(run, queue, jobs, None if channel is None else channel_name(channel))

    async def push_within(self, connection: Any, queue: str, jobs: Sequence[NewJob]) -> list[str]:
        if not isinstance(connection, AsyncConnection):
            kinds = (AsyncConnection.__name__, type(connection).__name__)
            raise CallerError("a push in a transaction takes psycopg's {}, not {}".format(*kinds))
        if connection.closed:
            raise CallerError("the connection of the push is closed, and nothing was done: give one that is open")
        if queue not in self._known:
            await self._find_table(queue, True)  # on a connection of ours: it stays, whatever becomes of the caller's
        if self.counts(queue):
            await self._pool.make_countable()

        async def run(statement: str, *values: str | None) -> Rows:
            cursor = AsyncRawCursor(connection, row_factory=tuple_row)
            try:
                await cursor.execute(statement, values)
                return await cursor.fetchall()
            except psycopg.Error as problem:
                raise failed(problem, self.address.url, connection.closed, True) from problem

        channel = None
        if self.options.signal is None:
            channel = channel_name(f"keuss:signal:{self.options.name}:{queue}")
        given: list[str] = []
        for begin in range(0, len(jobs), self.batch_max):
            given += await self._push(run, queue, jobs[begin : begin + self.batch_max], channel)
        return given

    async def _push(self, run: Run, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        if any(job.mature_ms is not None or job.delay_ms < 0 for job in jobs):
            self._floor(queue).lower()
        if len(jobs) > 1 and sum(len(job.prepared) for job in jobs) > BATCH_BYTES_MAX:
            half = len(jobs) // 2
            first = await self._push(run, queue, jobs[:half], channel)
            return first + await self._push(run, queue, jobs[half:], channel)
        if any(job.unique is not None for job in jobs):
            return await self._push_unique(run, queue, jobs, channel)
        await run(self._sql(queue).push, self._shift, batch([job.prepared for job in jobs]), channel)
        return [job.id for job in jobs]

    async def _push_unique(self, run: Run, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        await self._make_trigger(queue)
        given = await self._ask_for_keys(run, queue, jobs, channel)
        mine = {job.id for job in jobs}
        taken = [place for place, job_id in enumerate(given) if job_id not in mine]
        if taken:
            keys = sorted({jobs[place].unique or "" for place in taken})
            records = batch(f'{{"k":{to_json(key)}}}' for key in keys)
            noted = await run(missed_ends(self._sql(queue).table), self._shift, records, queue)
            if noted[0][0]:
                again = await self._ask_for_keys(run, queue, [jobs[place] for place in taken], channel)
                for place, job_id in zip(taken, again, strict=True):
                    given[place] = job_id
        await self._tidy(len(jobs))
        return given

    async def _ask_for_keys(self, run: Run, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        records = batch([job.prepared for job in jobs])
        rows = await run(self._filled(UNIQUE_PUSH, queue), self._shift, records, channel, queue)
        return [row[0] for row in rows]

    async def _make_trigger(self, queue: str) -> None:
        """See that ends of jobs are noted. Where that isn't allowed, or the table is busy, it works without."""
        await self._pool.make_sure(UNIQUE)
        tried = self._triggers.get(queue)
        if tried is not None and time.monotonic() - tried < _TRIGGER_AGAIN_S:
            return
        self._triggers[queue] = time.monotonic()
        if queue not in self._known:
            await self._find_table(queue, True)
        table = self._sql(queue).table
        if not (await self._pool.run(HAS_TRIGGER, table))[0][0]:
            with suppress(StoreError):
                await self._pool.create(trigger(table))

    async def _tidy(self, keys: int) -> None:
        """Forget keys that are long free, now and then."""
        self._keys += keys
        if self._keys >= _TIDY_EVERY:
            self._keys = 0
            await self._pool.run(TIDY, self._shift, str(_TIDY_MANY))

    async def put_back(self, queue: str, jobs: Sequence[StoredJob]) -> None:
        self._floor(queue).lower()
        await self._run(queue, self._sql(queue).put_back, batch([job.raw for job in jobs]), is_push=True, is_once=True)
        if (await self._pool.run(IS_THERE, UNIQUE))[0][0]:
            await self._pool.run(RETAKE, queue, id_batch(job.id for job in jobs))
