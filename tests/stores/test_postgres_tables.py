"""Tables in PostgreSQL: what they are called, when they are made, and what is read of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import penstock
from penstock.errors import BadPayload, CallerError, StoreError
from penstock.queues.stores.postgres.aio import unique as postgres_keys
from penstock.queues.stores.postgres.names import index_of, table_of
from penstock.queues.stores.postgres.sql import IS_TAKEN, creation
from tests.processes import need_module, wait_until
from tests.stores.harness import PATIENCE
from tests.stores.postgres_query import columns, indexes, rows

pytestmark = pytest.mark.system

ODD_NAMES = [
    "UPPER and lower",
    'with "quotes"',
    "it's",
    "per%cent %s $1 {table} {where}",
    "back\\slash; DROP TABLE x --",
    "Grüße/世界",
    "dot.dot",
    "x" * 56,
    "ü" * 28,
]


@pytest.fixture
def url(postgres_database: str, database: Any) -> str:
    return postgres_database


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_any_name_is_a_queue(url: str, database: Any, name: str) -> None:
    async with penstock.connect(url) as store, penstock.connect(url) as other:
        queue = store.queue(name)
        await queue.push(1, unique="key")
        await (await queue.reserve(timeout=PATIENCE)).fail("no")
        await store.dead_letters().redrive()
        assert await store._driver.queues() == [name]
        assert await queue.sizes() == (1, 1, 0, 0)
        waiting = other.queue(name)
        assert (await waiting.pop(timeout=PATIENCE)).payload == 1
    assert len(columns(database, "_k_tbl_" + name)) == 5


@pytest.mark.parametrize("name", ["x" * 57, "ü" * 29, "zero\0byte", "half \ud800"])
async def test_a_name_that_postgresql_can_not_have_is_refused(url: str, name: str) -> None:
    async with penstock.connect(url) as store:
        with pytest.raises(CallerError, match="a queue name") as told:
            await store.queue(name).push(1)
        assert not isinstance(told.value, BadPayload)


async def test_queues_with_long_names_that_begin_alike_have_an_index_each(url: str, database: Any) -> None:
    names = ["n" * 52 + "1", "n" * 52 + "2"]
    assert index_of(names[0]) == index_of(names[1])
    async with penstock.connect(url) as store:
        for name in names:
            await store.queue(name).push(1)
            assert sum("(mature)" in text for text in indexes(database, table_of(name))) == 1
            assert await store.queue(name).size() == 1


async def test_a_table_without_its_index_gets_it(url: str, database: Any) -> None:
    async with penstock.connect(url) as store:
        await store.queue("mail").push(1)
        database.execute('DROP INDEX "idx_""_k_tbl_mail""_mature"')
    async with penstock.connect(url) as store:
        await store.queue("mail").push(2)
    assert len(indexes(database, "_k_tbl_mail")) == 2


@pytest.mark.parametrize(
    "columns",
    ["a int", "_id varchar(64) PRIMARY KEY, _pl json, mature timestamptz, tries integer, reserved timestamptz"],
)
async def test_a_table_of_another_form_is_refused(url: str, database: Any, columns: str) -> None:
    database.execute(f"CREATE TABLE _k_tbl_mail ({columns})")
    async with penstock.connect(url) as store:
        for call in (lambda queue: queue.push(1), lambda queue: queue.pop(0), lambda queue: queue.size()):
            with pytest.raises(StoreError, match=r"not as Keuss 2\.0\.4 and later makes it"):
                await call(store.queue("mail"))


async def test_a_queue_whose_table_was_dropped_starts_again(url: str, database: Any) -> None:
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        await queue.push(1)
        database.execute("DROP TABLE _k_tbl_mail")
        assert await queue.pop(0) is None
        await queue.push(2)
        database.execute("DROP TABLE _k_tbl_mail")
        await queue.push(3)
        assert (await queue.pop(0)).payload == 3


async def test_a_dead_letter_queue_whose_table_was_dropped_starts_again(url: str, database: Any) -> None:
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        await queue.push_many([1, 2])
        await (await queue.reserve(timeout=PATIENCE)).fail("no")
        database.execute("DROP TABLE _k_tbl___deadletter__")
        await (await queue.reserve(timeout=PATIENCE)).fail("no")
        assert [dead.payload for dead in await store.dead_letters().peek()] == [2]


async def test_reading_makes_no_table(url: str, database: Any) -> None:
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        assert [await queue.pop(0), await queue.reserve(0), await queue.peek(), await queue.purge()] == [
            None,
            None,
            [],
            0,
        ]
        assert await queue.sizes() == (0, 0, 0, 0)
        assert await queue.next_mature() is None
        assert await queue.remove("x") == [False]
    assert columns(database, "_k_tbl_mail") == []


async def test_ours_alone_is_made_when_it_is_needed(url: str, database: Any) -> None:
    def made() -> list[str]:
        found = rows(
            database, "SELECT relname FROM pg_class WHERE relname LIKE 'penstock%%' AND relkind = 'r' ORDER BY 1"
        )
        return [row[0] for row in found]

    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        await queue.push(1)
        assert made() == ["penstock_counter_deltas", "penstock_counters", "penstock_queues"]
        await queue.push(2, unique="key")
        await queue.claim("batch", 1)
        assert made() == [
            "penstock_claims",
            "penstock_counter_deltas",
            "penstock_counters",
            "penstock_queues",
            "penstock_unique",
        ]
        await store.queue("other").push(1)
        triggers = rows(database, "SELECT tgrelid::regclass::text, tgname FROM pg_trigger WHERE NOT tgisinternal")
        assert triggers == [("_k_tbl_mail", "penstock_ended")]


async def test_own_tables_that_were_dropped_are_made_again(url: str, database: Any) -> None:
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        await queue.push(1, unique="key")
        job = await queue.reserve(0)
        database.execute("DROP TABLE penstock_unique, penstock_counters, penstock_queues")
        await job.ack()  # through the trigger, which has lost its table
        await queue.pause()
        assert await queue.paused()
        await queue.resume()
        first = await queue.push(2, unique="key")
        assert await queue.push(3, unique="key") == first
        await queue.claim("batch", 1)
        database.execute("DROP TABLE penstock_claims")
        assert await queue.ack_claim("batch") == 0
        assert await queue.claim("batch", 1) == []


async def test_no_statement_reads_a_whole_table(url: str, database: Any) -> None:
    """PostgreSQL keeps the plans that it makes while a table is empty."""
    look = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = '_k_tbl_mail'"
    async with penstock.connect(url) as store:
        await store.queue("mail").push(1)
    database.execute("ANALYZE _k_tbl_mail")  # so it knows how small it is
    made = rows(database, look)
    async with penstock.connect(url, connections=1) as store:
        queue = store.queue("mail")
        for count in (0, 1, 0, 1, 0, 1, 0, 1, 2000):
            await queue.push_many(range(count))
            jobs = await queue.reserve_many(3 + count // 2)
            await queue.extend_many(jobs)
            await queue.nack_many(jobs[:1])
            await queue.ack_many(jobs[1:])
            await queue.pop(0)
            await queue.peek(3)
            await queue.next_mature()
            await queue.remove(*(job.id for job in jobs))
    assert rows(database, look) == made


async def test_many_that_make_the_same_queue_at_the_same_time(url: str, database: Any) -> None:
    stores = [penstock.connect(url) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    try:
        await asyncio.gather(*(store.queue("mail").push(1, unique=str(n)) for n, store in enumerate(stores)))
        assert await stores[0].queue("mail").total() == 6
    finally:
        for store in stores:
            await store.close()
    assert len(indexes(database, "_k_tbl_mail")) == 2


async def test_a_peer_that_makes_the_index_while_we_check(
    url: str, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with penstock.connect(url) as store:
        pool = store._driver._pool
        run = pool.run

        async def run_late(statement: str, *values: Any, **named: Any) -> Any:
            if statement == IS_TAKEN:
                database.execute(creation("mail", index_of("mail")))
            return await run(statement, *values, **named)

        monkeypatch.setattr(pool, "run", run_late)
        await store.queue("mail").push(1)
    assert len(indexes(database, "_k_tbl_mail")) == 2


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_peer_that_makes_the_table_in_the_same_moment(url: str, database: Any, end: str) -> None:
    psycopg = need_module("psycopg")
    async with penstock.connect(url) as store:
        with psycopg.connect(url) as peer:
            peer.execute(creation("mail", index_of("mail")))
            pushing = asyncio.create_task(store.queue("mail").push("x"))
            blocked = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'penstock' AND wait_event_type = 'Lock'"
            await asyncio.get_running_loop().run_in_executor(None, wait_until, lambda: rows(database, blocked))
            getattr(peer, end)()
        await pushing
        assert (await store.queue("mail").pop(0)).payload == "x"


async def test_keys_that_nobody_needs_are_forgotten(url: str, database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_keys, "REMOVAL_EVERY", 1)
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        await queue.push_many([penstock.Push(n, unique=f"done {n}", unique_for=50) for n in range(5)])
        await queue.pop_many(5)
        await queue.push(0, unique="there")
        store.shift_clock(40)
        await queue.push(0, unique="kept")
        assert len(rows(database, "SELECT key FROM penstock_unique")) == 7
        store.shift_clock(100)
        await queue.push(0, unique="new")
        assert {key for (key,) in rows(database, "SELECT key FROM penstock_unique")} == {"there", "kept", "new"}
