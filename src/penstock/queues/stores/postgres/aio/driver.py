"""`postgresql://user:password@host:port/database`: jobs in PostgreSQL, in the tables of Keuss 2.0.4 and later.

| what | name | see, in `penstock.queues.stores.postgres` |
|---|---|---|
| jobs of a queue | table `_k_tbl_QUEUE`: `_id`, `_pl`, `mature`, `tries`, `reserved` | `statements`, `elements` |
| their order | index `idx_"_k_tbl_QUEUE"_mature` on `mature` | `names` |
| queues, options, pauses | table `penstock_queues`: namespace, queue, options, paused | `side_tables` |
| counters | table `penstock_counters`: namespace, queue, counter, value | `side_tables` |
| | table `penstock_counter_deltas`: the same, what was counted since | |
| claims | table `penstock_claims`: queue, key, ids, reserved | `side_tables` |
| unique keys | table `penstock_unique`: queue, key, id, keep_ms, free_at | `side_tables` |
| | indexes `penstock_unique_id` and `penstock_unique_free_at` | |
| ends of jobs with keys | trigger `penstock_ended` on a queue's table, and its function | `side_tables` |
| signals | LISTEN and NOTIFY on `keuss:signal:NAMESPACE:QUEUE` | `names` |

A queue's table is made by its first push, ours when they are first needed. Every call is one statement for the whole
batch, and each statement a transaction of its own, but for what is pushed on a connection of the caller's. All times
are the server's. What to know:

- Keuss keeps payloads as jsonb: numbers are exact, but objects lose the order of their names. A payload with a zero
  byte or half a character in a text is kept as bytes, and read as the same payload; headers with these are refused.
- A queue's name has at most 56 bytes. Case and odd characters count.
- A lease's token is the stored end of the reservation, and the tries: whatever a Node peer does to the job makes it
  stale.
- A unique key's time begins with its job's end, whoever ends it, as a trigger notes it. Making that takes the right to
  make triggers on the table (its owner has it); without, the time begins when the key is next asked for.
- A push or pop whose connection breaks before the answer is an OutcomeUnknown: it may have been done. All else can be
  done again, and consumers that wait do so by themselves.
- Options of its own: `connections` (8), how many there may be at a time, and all of libpq's (`sslmode`,
  `target_session_attrs`, several hosts, ...).
- PostgreSQL must be 12 or newer. A pooler in between must keep sessions together (pgbouncer: session mode).
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from penstock.job import JobState, Lease, Move, Sizes, StoredJob
from penstock.queues.aio.driver import Page
from penstock.queues.capabilities import Capability
from penstock.queues.stores.postgres.aio.claims import PostgresClaims
from penstock.queues.stores.postgres.aio.link import Rows, Undo
from penstock.queues.stores.postgres.aio.scan import PostgresLooks
from penstock.queues.stores.postgres.aio.signal import PostgresSignal
from penstock.queues.stores.postgres.aio.stats import PostgresStats
from penstock.queues.stores.postgres.aio.unique import PostgresKeys
from penstock.queues.stores.postgres.element import Token, id_batch, lease_batch, move_batch, popped, unpacked
from penstock.queues.stores.postgres.floors import NOTHING_US
from penstock.queues.stores.postgres.names import channel_name, quoted, table_of
from penstock.queues.stores.postgres.sql import NOW_MS, TABLES, for_queue, moving, with_jobs

_US = 1000


class PostgresDriver(PostgresKeys, PostgresClaims, PostgresLooks):
    """Jobs in PostgreSQL."""

    type: ClassVar[str] = "postgres:simple"

    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.DELAY,
            Capability.RESERVE,
            Capability.EXTEND,
            Capability.TOKEN,
            Capability.CLAIM,
            Capability.PEEK,
            Capability.REMOVE,
            Capability.HEADERS,
            Capability.UNIQUE,
            Capability.ATOMIC_MOVE,
            Capability.TRANSACTION,
            Capability.SHARED_PAUSE,
        }
    )

    def own_signal(self) -> PostgresSignal:
        return PostgresSignal(self.address, self.extra, self._pool)

    def own_stats(self) -> PostgresStats:
        return PostgresStats(self.address, self.extra, self.options.name, self._pool)

    async def now_ms(self) -> int:
        return int((await self._pool.run(NOW_MS, self._shift))[0][0])

    async def pop(self, queue: str, count: int, wait_ms: int = 0) -> list[StoredJob]:
        async def undo(rows: Rows) -> None:
            await self.put_back(queue, [self._popped(row) for row in rows])

        rows = await self._take(queue, self._sql(queue).pop, count, 3, undo)
        return [self._popped(row) for row in rows]

    @staticmethod
    def _popped(row: tuple[Any, ...]) -> StoredJob:
        payload, headers = unpacked(row[1])
        raw = popped(*row)
        return StoredJob(row[0], payload=payload, headers=headers, tries=row[2], mature_ms=row[3] // _US, raw=raw)

    async def reserve(
        self, queue: str, count: int, lease_ms: int, wait_ms: int = 0, begin: int | None = None
    ) -> list[StoredJob]:
        async def undo(rows: Rows) -> None:
            await self.release(queue, [Lease(row[0], self._leased(row).token) for row in rows])

        sql = self._sql(queue)
        if begin is None:
            rows = await self._take(queue, sql.reserve, count, 4, undo, str(lease_ms))
        else:
            rows = await self._take(queue, sql.reserve_ahead, count, 4, undo, str(lease_ms), str(begin))
        return [self._leased(row) for row in rows]

    async def _take(self, queue: str, statement: str, count: int, mature: int, undo: Undo, *values: str) -> Rows:
        """Ready jobs in their order; `mature` is the column that has it. Only a pop has no more values than these."""
        floor = self._floor(queue)
        begin_us = floor.begin(time.monotonic())
        given = (self._shift, str(count), str(begin_us), *values)
        rows = await self._run(queue, statement, *given, is_once=not values, undo=undo)
        floor.took([row[mature] for row in rows])
        if len(rows) < count and begin_us != NOTHING_US:
            floor.lower()
            if not rows:
                return await self._take(queue, statement, count, mature, undo, *values)
        return sorted(rows, key=lambda row: (row[mature], row[0]))

    async def release(self, queue: str, leases: Sequence[Lease]) -> None:
        self._floor(queue).lower()
        await self._run(queue, self._sql(queue).release, lease_batch(leases))

    async def ack(self, queue: str, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        sql = self._sql(queue)
        if begun:
            values = self._shift, lease_batch(leases), lease_batch(begun)
            rows = await self._run(queue, sql.ack_and_begin, *values)
        else:
            rows = await self._run(queue, sql.ack, lease_batch(leases))
        return self._done((lease.id for lease in leases), rows)

    @staticmethod
    def _done(ids: Iterable[str], rows: Rows) -> list[bool]:
        """For each id whether a row tells of it. Of several with the same, the first has it."""
        left = {row[0] for row in rows}
        done = []
        for job_id in ids:
            done.append(job_id in left)
            left.discard(job_id)
        return done

    async def nack(
        self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None
    ) -> list[bool]:
        name = None if channel is None else channel_name(channel)
        rows = await self._run(queue, self._sql(queue).nack, self._shift, lease_batch(leases, delays_ms), name)
        return self._done((lease.id for lease in leases), rows)

    async def extend(
        self, queue: str, leases: Sequence[Lease], leases_ms: Sequence[int], begun: Sequence[bool] = ()
    ) -> list[str | None]:
        rows = await self._run(queue, self._sql(queue).extend, self._shift, lease_batch(leases, leases_ms, begun))
        ends: dict[str, int] = dict(rows)
        tokens: list[str | None] = []
        for lease in leases:
            old = Token.read(lease.token)
            end_us = ends.pop(lease.id, None)
            tokens.append(None if old is None or end_us is None else str(old._replace(mature_us=end_us)))
        return tokens

    async def move(
        self, queue: str, to: str, moves: Sequence[Move], channel: str | None, counter: str | None = None
    ) -> list[bool]:
        if to not in self._known:
            await self._find_table(to, True)
        template = moving(counter if self.counts(queue) else None, self.counts(to))
        statement = for_queue(template, queue, self.counts_in, to)
        name = None if channel is None else channel_name(channel)
        rows = await self._run(queue, statement, self._shift, move_batch(moves), name)
        return self._done((move.lease.id for move in moves), rows)

    async def remove(self, queue: str, ids: Sequence[str]) -> list[bool]:
        rows = await self._run(queue, self._sql(queue).remove, self._shift, id_batch(ids))
        return self._done(ids, rows)

    async def purge(self, queue: str) -> int:
        rows = await self._run(queue, self._sql(queue).purge, self._shift)
        return int(rows[0][0]) if rows else 0

    async def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None = None) -> Page:
        after_us, _, after_id = (cursor or f"{NOTHING_US}:").partition(":")
        statement = self._sql(queue).peek_at(state)
        rows = await self._run(queue, statement, self._shift, after_us, after_id, str(count + 1))
        jobs = [self._seen(row) for row in rows[:count]]
        return Page(jobs, f"{rows[count - 1][3]}:{rows[count - 1][0]}" if len(rows) > count else None)

    async def reserved(self, queue: str, ids: Sequence[str]) -> list[StoredJob | None]:
        rows = await self._run(queue, self._sql(queue).reserved, self._shift, id_batch(ids))
        found = {}
        for job_id, element, tries, mature_us, reserved_us, _ in rows:
            # Also one whose lease is over is as its worker had it, while nobody has taken it since.
            found[job_id] = self._seen((job_id, element, tries, mature_us, reserved_us, True))
        return [found.get(job_id) for job_id in ids]

    @staticmethod
    def _seen(row: tuple[Any, ...]) -> StoredJob:
        job_id, element, tries, mature_us, reserved_us, is_later = row
        payload, headers = unpacked(element)
        state = JobState.READY
        is_ahead = reserved_us is not None and reserved_us > mature_us
        if is_later:
            state = JobState.SCHEDULED if reserved_us is None else JobState.RESERVED
        return StoredJob(
            job_id,
            payload=payload,
            headers=headers,
            tries=tries - (is_ahead or state is JobState.RESERVED),
            mature_ms=mature_us // _US,
            token=None if reserved_us is None else str(Token(mature_us, tries, reserved_us)),
            state=state,
            has_begun=not is_ahead,
        )

    async def sizes(self, queue: str) -> Sizes:
        if queue not in self._known and not await self._find_table(queue, False):
            return Sizes(0, 0, 0, 0)
        return Sizes(*(await self._pool.script(self._sql(queue).sizes(self.shift_ms)))[0])

    async def next_mature_ms(self, queue: str) -> int | None:
        rows = await self._run(queue, self._sql(queue).next_mature)
        return -(-rows[0][0] // _US) if rows else None  # rounded up: it is not ready before

    async def queues(self) -> list[str]:
        names = [row[0] for row in await self._pool.run(TABLES)]
        if not names:
            return []
        tables = [quoted(table_of(name)) for name in names]
        return sorted(row[0] for row in await self._pool.run(with_jobs(tables), *names))
