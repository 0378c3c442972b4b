"""`postgresql://user:password@host:port/database`: jobs in PostgreSQL, in the tables of Keuss 2.0.4 and later.

| what | name | see, in `penstock.queues.stores.postgres` |
|---|---|---|
| jobs of a queue | table `_k_tbl_QUEUE`: `_id`, `_pl`, `mature`, `tries`, `reserved` | `sql`, `element` |
| their order | index `idx_"_k_tbl_QUEUE"_mature` on `mature` | `names` |
| queues, options, pauses | table `penstock_queues`: namespace, queue, options, paused | `sql` |
| counters | table `penstock_counters`: namespace, queue, counter, value | `sql` |
| | table `penstock_counter_deltas`: the same columns, what was counted since | |
| claims | table `penstock_claims`: queue, key, ids, reserved | `sql` |
| unique keys | table `penstock_unique`: queue, key, id, keep_ms, free_at | `sql` |
| | indexes `penstock_unique_id` and `penstock_unique_free_at` | |
| ends of jobs with keys | trigger `penstock_ended` on a queue's table, and its function | `sql` |
| signals | LISTEN and NOTIFY on `keuss:signal:NAMESPACE:QUEUE` | `names` |

The table of a queue is made by its first push, the others when they are first needed. Every call is one statement for
the whole batch, and each statement a transaction of its own, except for a push on a connection of the caller. All times
are the server's. What to know:

- Keuss stores payloads as jsonb: numbers are exact, but objects lose the order of their keys. A payload with a zero
  byte or half a surrogate pair in a text is stored as bytes, and read as the same payload; headers with these are
  refused.
- A queue name must be at most 56 bytes. Case and special characters count.
- A lease's token is the stored end of the reservation, and the tries: whatever a Node peer does to the job makes it
  stale.
- The time of a unique key begins with the end of its job, also if a Node peer ends it, as a trigger notes it. To make
  the trigger takes the right to make triggers on the table (its owner has it); without it, the time begins when the key
  is next pushed.
- A push or pop whose connection breaks before the answer raises OutcomeUnknown: it may have been done. All other calls
  can be repeated, and consumers that wait do so by themselves.
- Options of its own: `connections` (8), the maximum number of connections, and all of libpq's (`sslmode`,
  `target_session_attrs`, several hosts, ...).
- PostgreSQL must be 12 or newer. A pooler in between must keep sessions together (pgbouncer: session mode).
"""

import json
import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.rows import tuple_row

from penstock.errors import CallerError, StoreError
from penstock.job import JobMove, JobState, Lease, NewJob, Sizes, StoredJob, id_time_ms
from penstock.queues import scan
from penstock.queues.aio.driver import Driver, NewValue, Page
from penstock.queues.capabilities import STANDARD, Capability
from penstock.queues.lease_token import LeaseToken
from penstock.queues.options import Options, StoreURL
from penstock.queues.stores.postgres.aio.link import Run, Undo
from penstock.queues.stores.postgres.aio.pool import Pool
from penstock.queues.stores.postgres.aio.signal import PostgresSignal
from penstock.queues.stores.postgres.aio.stats import PostgresStats
from penstock.queues.stores.postgres.aio.tables import KeussTable, Tables
from penstock.queues.stores.postgres.aio.unique import PostgresUniqueKeys
from penstock.queues.stores.postgres.element import (
    batch,
    id_batch,
    lease_batch,
    move_batch,
    packed,
    popped,
    unpacked,
)
from penstock.queues.stores.postgres.errors import SAME_KEY, code_of, failed
from penstock.queues.stores.postgres.names import channel_name, quoted, table_of
from penstock.queues.stores.postgres.scan import COMPARES, by_ids, by_range, cuts, ends, names_of
from penstock.queues.stores.postgres.session import Rows
from penstock.queues.stores.postgres.sql import (
    BEGINNING_US,
    CLAIMS_TABLE,
    NOW_MS,
    PUT_VALUE,
    PUT_VALUES,
    REMOVE_VALUE,
    TABLES,
    VALUE,
    VALUES_TABLE,
    for_queue,
    move_between,
    with_jobs,
)

BATCH_BYTES_MAX = 256 * 1024 * 1024  # of one statement: the server takes 1 GB, and both ends keep copies
_US = 1000
_RESERVED_COLUMNS = 7  # of a job from `reserve`; one from `claim` has fewer


class PostgresDriver(Driver):
    """Jobs in PostgreSQL."""

    type: ClassVar[str] = "postgres:simple"

    capabilities: ClassVar[frozenset[Capability]] = STANDARD | {Capability.TRANSACTION}
    keeps_payloads: ClassVar[bool] = True
    can_count: ClassVar[bool] = True
    puts_values_together: bool = True
    compares: ClassVar[frozenset[str]] = COMPARES

    def __init__(self, address: StoreURL, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        self._pool = Pool(address, extra, lambda: self.shift_ms)
        self._tables = Tables(self._pool)
        self._unique = PostgresUniqueKeys(self._pool, self._tables)
        self._queues: dict[str, KeussTable] = {}
        self._run_push = partial(self._tables.run, is_push=True, is_once=True)

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    def own_signal(self) -> PostgresSignal:
        return PostgresSignal(self.address, self.extra, self._pool)

    def own_stats(self) -> PostgresStats:
        return PostgresStats(self.address, self.extra, self.options.namespace, self._tables)

    def check_queue(self, queue: str) -> None:
        table_of(queue)

    def _table(self, queue: str) -> KeussTable:
        table = self._queues.get(queue)
        if table is None or table.counts != self.counts(queue):
            table = self._queues[queue] = KeussTable(queue, self.counts_in if self.counts(queue) else None)
        return table

    @property
    def _shift(self) -> str:
        """What tests add to the clock, as the first value of statements."""
        return str(self.shift_ms)

    async def now_ms(self) -> int:
        return int((await self._pool.run(NOW_MS, self._shift))[0][0])

    async def put_values(self, values: Sequence[NewValue]) -> None:
        if any("\0" in one.key or "\0" in one.text for one in values):  # only that one is refused
            for one in values:
                await self.put_value(*one)
            return
        last = {one.key: {"k": one.key, "v": one.text, "t": one.ttl_ms} for one in values}
        records = json.dumps([last[key] for key in sorted(last)])
        await self._tables.run_own(VALUES_TABLE, PUT_VALUES, records, self._shift)

    async def put_value(self, key: str, value: str, ttl_ms: int) -> None:
        await self._tables.run_own(VALUES_TABLE, PUT_VALUE, key, value, str(ttl_ms), self._shift)

    async def value(self, key: str) -> str | None:
        rows = await self._tables.run_own(VALUES_TABLE, VALUE, key, self._shift)
        return str(rows[0][0]) if rows else None

    async def remove_value(self, key: str) -> None:
        await self._tables.run_own(VALUES_TABLE, REMOVE_VALUE, key)

    # Jobs into a queue.

    def prepare(self, job: NewJob) -> None:
        job.prepared = packed(job)

    async def push(self, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        return await self._push(self._run_push, self._table(queue), jobs, channel)

    async def push_within(self, connection: Any, queue: str, jobs: Sequence[NewJob]) -> list[str]:
        if not isinstance(connection, AsyncConnection):
            kinds = (AsyncConnection.__name__, type(connection).__name__)
            raise CallerError("connection must be an open {} of psycopg, got {}".format(*kinds))
        if connection.closed:
            raise CallerError("connection must be open, got one that is closed. Nothing was pushed.")
        table = self._table(queue)
        if not table.is_known:
            await self._tables.find(table, True)  # on a connection of ours: it stays after a rollback of the caller's
        if table.counts:
            await self._tables.make_countable()

        async def run(_: KeussTable, statement: str, *values: str | None) -> Rows:
            cursor = AsyncRawCursor(connection, row_factory=tuple_row)
            try:
                await cursor.execute(statement, values)
                return await cursor.fetchall()
            except psycopg.Error as problem:
                raise failed(problem, self.address.url, connection.closed, True) from problem

        channel = f"keuss:signal:{self.options.namespace}:{queue}" if self.options.signal is None else None
        ids: list[str] = []
        for begin in range(0, len(jobs), self.batch_max):
            ids += await self._push(run, table, jobs[begin : begin + self.batch_max], channel)
        return ids

    async def _push(self, run: Run, table: KeussTable, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        size = 0
        has_keys = False
        for job in jobs:
            size += len(job.prepared)
            has_keys = has_keys or job.unique is not None
            if job.mature_ms is not None or job.delay_ms < 0:
                table.scan_start.reset()
        if size > BATCH_BYTES_MAX and len(jobs) > 1:
            half = len(jobs) // 2
            first = await self._push(run, table, jobs[:half], channel)
            return first + await self._push(run, table, jobs[half:], channel)
        name = None if channel is None else channel_name(channel)
        if has_keys:
            return await self._unique.push(run, table, jobs, self._shift, name)
        await run(table, table.sql.push, self._shift, batch([job.prepared for job in jobs]), name)
        return [job.id for job in jobs]

    # Jobs out of a queue.

    async def pop(self, queue: str, count: int, wait_ms: int = 0) -> list[StoredJob]:
        async def undo(rows: Rows) -> None:
            await self.put_back(queue, [_popped(row) for row in rows])

        table = self._table(queue)
        return [_popped(row) for row in await self._take(table, table.sql.pop, count, 3, undo)]

    async def put_back(self, queue: str, jobs: Sequence[StoredJob]) -> None:
        table = self._table(queue)
        table.scan_start.reset()
        await self._run_push(table, table.sql.put_back, batch([job.raw for job in jobs]))
        await self._unique.retake(queue, (job.id for job in jobs))

    async def reserve(
        self, queue: str, count: int, lease_ms: int, wait_ms: int = 0, begin: int | None = None
    ) -> list[StoredJob]:
        async def undo(rows: Rows) -> None:
            await self.release(queue, [Lease(row[0], _leased(row).token) for row in rows])

        table = self._table(queue)
        if begin is None:
            rows = await self._take(table, table.sql.reserve, count, 4, undo, str(lease_ms))
        else:
            rows = await self._take(table, table.sql.reserve_ahead, count, 4, undo, str(lease_ms), str(begin))
        return [_leased(row) for row in rows]

    async def _take(self, table: KeussTable, statement: str, count: int, mature: int, undo: Undo, *values: str) -> Rows:
        """Return ready jobs in their order; `mature` is the column that has it. Only a pop has no more values."""
        begin_us = table.scan_start.begin(time.monotonic())
        given = (self._shift, str(count), str(begin_us), *values)
        rows = await self._tables.run(table, statement, *given, is_once=not values, undo=undo)
        table.scan_start.took([row[mature] for row in rows])
        if len(rows) < count and begin_us != BEGINNING_US:
            table.scan_start.reset()
            if not rows:
                return await self._take(table, statement, count, mature, undo, *values)
        return sorted(rows, key=lambda row: (row[mature], row[0]))

    async def release(self, queue: str, leases: Sequence[Lease]) -> None:
        table = self._table(queue)
        table.scan_start.reset()
        await self._tables.run(table, table.sql.release, lease_batch(leases))

    # Reserved jobs.

    async def ack(self, queue: str, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        table = self._table(queue)
        if begun:
            values = self._shift, lease_batch(leases), lease_batch(begun)
            rows = await self._tables.run(table, table.sql.ack_and_begin, *values)
        else:
            rows = await self._tables.run(table, table.sql.ack, lease_batch(leases))
        return _done([lease.id for lease in leases], rows)

    async def nack(
        self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None
    ) -> list[bool]:
        table = self._table(queue)
        values = self._shift, lease_batch(leases, delays_ms), None if channel is None else channel_name(channel)
        rows = await self._tables.run(table, table.sql.nack, *values)
        return _done([lease.id for lease in leases], rows)

    async def extend(
        self, queue: str, leases: Sequence[Lease], leases_ms: Sequence[int], begun: Sequence[bool] = ()
    ) -> list[str | None]:
        table = self._table(queue)
        rows = await self._tables.run(table, table.sql.extend, self._shift, lease_batch(leases, leases_ms, begun))
        until: dict[str, int] = dict(rows)
        tokens: list[str | None] = []
        for lease in leases:
            old = LeaseToken.read(lease.token)
            end_us = until.pop(lease.id, None)
            tokens.append(None if old is None or end_us is None else str(old._replace(mature=end_us)))
        return tokens

    async def move(
        self, queue: str, to: str, moves: Sequence[JobMove], channel: str | None, counter: str | None = None
    ) -> list[bool]:
        table, target = self._table(queue), self._table(to)
        statement = for_queue(move_between(counter if table.counts else None, target.counts), queue, self.counts_in, to)
        values = self._shift, move_batch(moves), None if channel is None else channel_name(channel)
        rows = await self._tables.run(table, statement, *values, target=target)
        return _done([move.lease.id for move in moves], rows)

    async def reserved(self, queue: str, ids: Sequence[str]) -> list[StoredJob | None]:
        table = self._table(queue)
        found = {}
        for job_id, element, tries, mature_us, reserved_us, _ in await self._tables.run(
            table, table.sql.reserved, self._shift, id_batch(ids)
        ):
            # A job whose lease has run out is as its worker had it, while nobody has taken it since.
            found[job_id] = _read(job_id, element, tries, mature_us, reserved_us, True)
        return [found.get(job_id) for job_id in ids]

    # Claims.

    async def claim(self, queue: str, key: str, count: int, lease_ms: int) -> list[StoredJob]:
        rows = await self._claim(queue, key, count, lease_ms, self._table(queue).sql.claim)
        if rows and rows[-1][-1]:
            again = await self._renew_claim(queue, key, lease_ms, self._table(queue).sql.claim_again)
            return [_leased(row) for row in sorted(again, key=lambda row: row[-1])]
        return [_leased(row) for row in sorted(rows[:-1], key=lambda row: (row[4], row[0]))]

    async def claim_unread(self, queue: str, key: str, count: int, lease_ms: int) -> int:
        rows = await self._claim(queue, key, count, lease_ms, self._table(queue).sql.claim_unread)
        if rows and rows[-1][-1]:
            return await self.extend_claim(queue, key, lease_ms)
        return _count(rows)

    async def _claim(self, queue: str, key: str, count: int, lease_ms: int, sql: str) -> Rows:
        await self._tables.make_own(CLAIMS_TABLE)
        try:
            return await self._tables.run(self._table(queue), sql, self._shift, queue, key, str(count), str(lease_ms))
        except StoreError as problem:
            if code_of(problem) != SAME_KEY:
                raise
            return [(True,)]  # another session began the same claim at the same moment

    async def _renew_claim(self, queue: str, key: str, lease_ms: int, sql: str) -> Rows:
        await self._tables.make_own(CLAIMS_TABLE)
        return await self._tables.run(self._table(queue), sql, self._shift, queue, key, str(lease_ms))

    async def extend_claim(self, queue: str, key: str, lease_ms: int) -> int:
        return _count(await self._renew_claim(queue, key, lease_ms, self._table(queue).sql.extend_claim))

    async def ack_claim(self, queue: str, key: str) -> int:
        await self._tables.make_own(CLAIMS_TABLE)
        table = self._table(queue)
        return _count(await self._tables.run(table, table.sql.ack_claim, queue, key))

    async def nack_claim(self, queue: str, key: str, delay_ms: int) -> int:
        await self._tables.make_own(CLAIMS_TABLE)
        table = self._table(queue)
        return _count(await self._tables.run(table, table.sql.nack_claim, self._shift, queue, key, str(delay_ms)))

    # What is in a queue.

    async def remove(self, queue: str, ids: Sequence[str]) -> list[bool]:
        table = self._table(queue)
        return _done(ids, await self._tables.run(table, table.sql.remove, self._shift, id_batch(ids)))

    async def purge(self, queue: str) -> int:
        table = self._table(queue)
        return _count(await self._tables.run(table, table.sql.purge, self._shift))

    async def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None = None) -> Page:
        table = self._table(queue)
        after_us, _, after_id = (cursor or f"{BEGINNING_US}:").partition(":")
        values = self._shift, after_us, after_id, str(count + 1)
        rows = await self._tables.run(table, table.sql.peek(state), *values)
        jobs = [_read(*row) for row in rows[:count]]
        return Page(jobs, f"{rows[count - 1][3]}:{rows[count - 1][0]}" if len(rows) > count else None)

    async def parts(self, queues: Sequence[str], wanted: scan.Wanted) -> list[scan.Part]:
        found: list[scan.Part] = []
        for queue in queues:
            table = self._table(queue)
            rows = await self._tables.run(table, ends(table.sql.table), table.sql.table)
            if not rows or rows[0][0] is None:
                continue
            if wanted.ids is not None:
                found.append(scan.Part((queue,)))
                continue
            low, high, size = rows[0]
            places = [low, *cuts(low, high, size), high]
            for number, (begin, end) in enumerate(pairwise(places), 2):
                found.append(scan.Part((queue,), json.dumps([begin, end, number == len(places)])))
        return found

    async def scan_page(self, part: scan.Part, wanted: scan.Wanted, count: int, cursor: str | None = None) -> scan.Rows:
        (queue,) = part.queues
        table = self._table(queue)
        if wanted.ids is not None:
            statement = by_ids(table.sql.table, wanted)
            rows = await self._tables.run(table, statement, self._shift, id_batch(wanted.ids))
        else:
            begin, end, is_last = json.loads(part.place)
            statement = by_range(table.sql.table, wanted, cursor is None, is_last)
            values = self._shift, begin if cursor is None else cursor, end, str(count)
            rows = await self._tables.run(table, statement, *values)
        if not rows:
            return scan.NOTHING
        columns: dict[str, scan.Column] = dict(zip(names_of(wanted), zip(*rows, strict=True), strict=True))
        if "element" in columns:
            elements = [unpacked(text) for text in columns.pop("element")]
            columns["payload"] = [payload for payload, _ in elements]
            columns["headers"] = [headers for _, headers in elements]
        if "created_ms" in wanted.columns:
            columns["created_ms"] = [id_time_ms(job_id) for job_id in columns["id"]]
        columns["queue"] = scan.Same(queue)
        is_over = wanted.ids is not None or len(rows) < count
        return scan.Rows(len(rows), columns, None if is_over else rows[-1][0])

    async def sizes(self, queue: str) -> Sizes:
        table = self._table(queue)
        if not table.is_known and not await self._tables.find(table, False):
            return Sizes(0, 0, 0, 0)
        return Sizes(*(await self._pool.run_script(table.sql.sizes(self.shift_ms)))[0])

    async def next_mature_ms(self, queue: str) -> int | None:
        table = self._table(queue)
        rows = await self._tables.run(table, table.sql.next_mature)
        return -(-rows[0][0] // _US) if rows else None  # rounded up: it is not ready before

    async def queues(self) -> list[str]:
        names = [row[0] for row in await self._pool.run(TABLES)]
        if not names:
            return []
        tables = [quoted(table_of(name)) for name in names]
        return sorted(row[0] for row in await self._pool.run(with_jobs(tables), *names))


def _popped(row: tuple[Any, ...]) -> StoredJob:
    payload, headers = unpacked(row[1])
    raw = popped(*row)
    return StoredJob(row[0], payload=payload, headers=headers, tries=row[2], mature_ms=row[3] // _US, raw=raw)


def _leased(row: tuple[Any, ...]) -> StoredJob:
    """Return a job that was just reserved: id, `_pl`, tries as they are now, the lease's end, the maturity before.

    One from `reserve` also has the number of leases in a row that ran out before work began, and whether it begins now.
    """
    payload, headers = unpacked(row[1])
    unbegun, has_begun = row[5:7] if len(row) == _RESERVED_COLUMNS else (None, True)
    return StoredJob(
        row[0],
        payload=payload,
        headers=headers,
        tries=row[2] - 1,
        mature_ms=row[3] // _US,
        token=str(LeaseToken(row[3], row[2], row[4])),
        state=JobState.RESERVED,
        has_begun=has_begun,
        is_back=unbegun is not None,
        unbegun=unbegun or 0,
    )


def _read(
    job_id: str, element: str | None, tries: int, mature_us: int, reserved_us: int | None, is_later: bool
) -> StoredJob:
    """Return a job that was read and not changed."""
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
        token=None if reserved_us is None else str(LeaseToken(mature_us, tries, reserved_us)),
        state=state,
        has_begun=not is_ahead,
    )


def _done(ids: Iterable[str], rows: Rows) -> list[bool]:
    """Return for each id whether there is a row for it. Of several that are equal, the first has it."""
    left = {row[0] for row in rows}
    done = []
    for job_id in ids:
        done.append(job_id in left)
        left.discard(job_id)
    return done


def _count(rows: Rows) -> int:
    return int(rows[0][0]) if rows else 0
