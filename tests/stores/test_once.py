"""`once` on connections of PostgreSQL and MongoDB, as an application may have set them up."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from penstock.errors import CallerError
from penstock.tasks.once import KEEP_S, EffectBlock, EffectMark
from tests.processes import need_module
from tests.servers import MongoServer, PostgresServer

pytestmark = pytest.mark.system


def mark(job: str, now: float | None = None, keep: float = KEEP_S, database: str | None = None) -> EffectMark:
    return EffectMark(job, "", time.time() if now is None else now, keep, database)


def marks(connection: Any) -> list[str]:
    with connection.cursor(row_factory=need_module("psycopg.rows").tuple_row) as cursor:
        return sorted(job for (job,) in cursor.execute("SELECT job FROM penstock_once").fetchall())


def test_a_connection_of_any_setup_has_the_effect_once(postgres_database: str) -> None:
    psycopg, rows = need_module("psycopg"), need_module("psycopg.rows")
    options = {"autocommit": True, "row_factory": rows.dict_row, "cursor_factory": psycopg.RawCursor}
    with psycopg.connect(postgres_database, **options) as connection:
        seen = []
        for _ in range(2):
            with EffectBlock(connection, mark("a")) as first:
                seen.append(bool(first))
        with suppress(ValueError), EffectBlock(connection, mark("b")) as first:
            assert first
            raise ValueError("no")
        assert seen == [True, False]
        assert marks(connection) == ["a"]


def test_many_first_runs_make_the_table_together(postgres_database: str) -> None:
    psycopg = need_module("psycopg")
    problems: list[BaseException] = []
    begin = threading.Barrier(8)

    def run(job: str) -> None:
        try:
            with psycopg.connect(postgres_database) as connection:
                begin.wait(30)
                with EffectBlock(connection, mark(job)) as first:
                    assert first
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert problems == []
    with psycopg.connect(postgres_database) as connection:
        assert marks(connection) == [str(number) for number in range(8)]


def test_the_table_of_postgresql_is_bounded(postgres_database: str) -> None:
    psycopg = need_module("psycopg")
    with psycopg.connect(postgres_database) as connection:
        for at in range(12):
            with EffectBlock(connection, mark(f"{at:02}", now=1e9 + at, keep=3)) as first:
                assert first
        assert marks(connection) == ["08", "09", "10", "11"]


def test_who_may_not_make_the_table_is_told_how(postgres_server: PostgresServer, postgres_database: str) -> None:
    psycopg = need_module("psycopg")
    name = postgres_database.rpartition("/")[2]
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(f'CREATE ROLE "weak {name}" LOGIN')
        connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    weak = psycopg.connect(host=postgres_server.host, port=postgres_server.port, user=f"weak {name}", dbname=name)
    with weak, pytest.raises(CallerError, match="may run: CREATE TABLE IF NOT EXISTS penstock_once"):
        EffectBlock(weak, mark("a")).__enter__()


async def test_each_form_of_a_connection_has_its_own_block(postgres_database: str) -> None:
    psycopg = need_module("psycopg")
    async with await psycopg.AsyncConnection.connect(postgres_database) as connection:
        with pytest.raises(CallerError, match="write `async with"):
            EffectBlock(connection, mark("a")).__enter__()
        async with EffectBlock(connection, mark("a")) as first:
            assert first
        with pytest.raises(CallerError, match="must ask whether it is the first"):
            async with EffectBlock(connection, mark("b")):
                await connection.execute("CREATE TABLE gone (n int)")
        cursor = await connection.execute("SELECT to_regclass('gone')")
        assert await cursor.fetchone() == (None,)
    with psycopg.connect(postgres_database) as plain:
        with pytest.raises(CallerError, match="write `with"):
            await EffectBlock(plain, mark("a")).__aenter__()
        assert marks(plain) == ["a"]


def test_a_session_of_mongodb_needs_a_database_and_transactions(
    mongo_server: MongoServer, mongo_standalone: MongoServer, mongo_database: str
) -> None:
    name = mongo_database.rpartition("/")[2]
    with mongo_server.client() as client, client.start_session() as session:
        with pytest.raises(CallerError, match="once\\(\\) needs to know the database"):
            EffectBlock(session, mark("a")).__enter__()
        seen = []
        for _ in range(2):
            with EffectBlock(session, mark("a", database=name)) as first:
                seen.append(bool(first))
        with EffectBlock(session, mark("b", database=name)) as first, session.client.start_session() as other:
            assert first
            assert other.client[name]["penstock_once"].count_documents({}) == 1  # nobody sees it before the commit
        assert seen == [True, False]
        assert client[name]["penstock_once"].count_documents({}) == 2
    with mongo_standalone.client() as client, client.start_session() as session:
        block = EffectBlock(session, mark("a", database=name))
        with pytest.raises(CallerError, match="once\\(\\) needs transactions"):
            block.__enter__()
