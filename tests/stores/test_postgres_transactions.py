"""A push inside the application's own transaction on PostgreSQL: the job is there when the rest is, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import penstock
from penstock.errors import CallerError, StoreError
from penstock.queues import blocking
from tests.processes import need_module
from tests.servers import PostgresServer
from tests.stores.harness import NEVER, PATIENCE

pytestmark = pytest.mark.system


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[Any]:
    """A connection of the application's: a transaction begins with its first statement."""
    psycopg = need_module("psycopg")
    connection = await psycopg.AsyncConnection.connect(url, **options)
    try:
        yield connection
    finally:
        await connection.close()


async def test_a_push_that_is_rolled_back_is_not_there(postgres_database: str) -> None:
    async with penstock.connect(postgres_database) as store, connected(postgres_database) as connection:
        queue = store.queue("mail")
        await queue.push("no", connection=connection)
        await queue.push_many(["nor", "this"], connection=connection)
        await connection.rollback()
        await queue.push("yes", connection=connection)
        await connection.commit()
        assert [job.payload for job in await queue.pop_many(10)] == ["yes"]


async def test_the_job_comes_with_the_commit_and_wakes_waiting_callers(postgres_database: str) -> None:
    async with (
        penstock.connect(postgres_database, poll=NEVER) as store,
        penstock.connect(postgres_database) as other,
        connected(postgres_database) as connection,
    ):
        queue = store.queue("mail")
        waiting = asyncio.create_task(queue.reserve())
        await connection.execute("CREATE TABLE orders (id int)")
        await connection.execute("INSERT INTO orders VALUES (17)")
        job_id = await other.queue("mail").push("order 17", connection=connection)
        assert await queue.total() == 0
        assert not waiting.done()
        await connection.commit()
        assert (await asyncio.wait_for(waiting, PATIENCE)).id == job_id


async def test_more_jobs_than_a_statement_takes(postgres_database: str) -> None:
    async with penstock.connect(postgres_database) as store, connected(postgres_database) as connection:
        ids = await store.queue("mail").push_many(range(2500), connection=connection)
        await connection.commit()
        assert len(set(ids)) == 2500
        assert await store.queue("mail").size() == 2500


async def test_a_delay_counts_from_the_push_not_from_the_transactions_beginning(postgres_database: str) -> None:
    async with penstock.connect(postgres_database) as store, connected(postgres_database) as connection:
        queue = store.queue("mail")
        await connection.execute("SELECT now(), pg_sleep(0.3)")
        before_ms = await store._driver.now_ms()
        await queue.push("late", delay=0.1, connection=connection)
        await connection.commit()
        assert await queue.next_mature() >= before_ms / 1000 + 0.1


async def test_the_applications_connection_stays_as_it_was(postgres_database: str) -> None:
    rows = need_module("psycopg.rows")
    options = {"row_factory": rows.dict_row, "autocommit": True}
    async with penstock.connect(postgres_database) as store, connected(postgres_database, **options) as connection:
        await store.queue("mail").push(1, connection=connection)
        assert await store.queue("mail").size() == 1
        cursor = await connection.execute("SELECT current_setting('enable_seqscan') AS scan")
        assert await cursor.fetchone() == {"scan": "on"}


async def test_a_unique_key_is_taken_with_the_commit(postgres_database: str) -> None:
    async with penstock.connect(postgres_database) as store, connected(postgres_database) as connection:
        queue = store.queue("mail")
        await queue.push("rolled back", unique="key", connection=connection)
        await connection.rollback()
        first = await queue.push("first", unique="key", connection=connection)
        waiting = asyncio.create_task(queue.push("second", unique="key"))
        await asyncio.sleep(0.1)
        assert not waiting.done()  # it can't be known yet whether the key is taken
        await connection.commit()
        assert await waiting == first
        assert [await queue.push("third", unique="key", connection=connection), await queue.total()] == [first, 1]


async def test_what_is_no_connection_of_psycopg_is_refused(postgres_database: str) -> None:
    psycopg = need_module("psycopg")
    async with penstock.connect(postgres_database) as store:
        for wrong in (object(), psycopg.connect(postgres_database)):
            with pytest.raises(CallerError, match="AsyncConnection"):
                await store.queue("mail").push(1, connection=wrong)
        wrong.close()


async def test_a_connection_that_is_closed_is_refused(postgres_database: str) -> None:
    async with penstock.connect(postgres_database) as store, connected(postgres_database) as connection:
        await connection.close()
        with pytest.raises(CallerError, match="must be open, got one that is closed"):
            await store.queue("mail").push(1, connection=connection)


async def test_a_connection_to_another_database_is_refused(
    postgres_database: str, postgres_server: PostgresServer
) -> None:
    async with penstock.connect(postgres_database) as store, connected(postgres_server.url()) as connection:
        with pytest.raises(StoreError, match="does not exist"):
            await store.queue("only-there").push(1, connection=connection)


def test_the_same_without_an_event_loop(postgres_database: str) -> None:
    psycopg = need_module("psycopg")
    with blocking.connect(postgres_database) as store, psycopg.connect(postgres_database) as connection:
        queue = store.queue("mail")
        queue.push("no", connection=connection)
        connection.rollback()
        with connection.transaction():
            queue.push("yes", unique="key", connection=connection)
            assert queue.total() == 0
        connection.commit()
        assert [job.payload for job in queue.pop_many(10)] == ["yes"]
        assert queue.stats()["push"] == 1  # the one that was rolled back was not counted
