"""Jobs in PostgreSQL: what is stored, to the letter, what is read, and in which order."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

import penstock
from penstock.errors import BadPayload, CallerError
from penstock.queues import aio, blocking
from penstock.queues.stores.postgres import session
from penstock.queues.stores.postgres.aio import driver as postgres_driver
from penstock.queues.stores.postgres.sql import ScanStart
from tests.servers import PostgresServer
from tests.stores.facade import Facade
from tests.stores.harness import PATIENCE
from tests.stores.postgres_query import columns, indexes, rows

pytestmark = pytest.mark.system

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
FAR = 2_000_000_000.5  # in 2033


@pytest.fixture
def url(postgres_database: str, database: Any) -> str:
    return postgres_database


async def test_the_table_is_keuss_table(url: str, database: Any) -> None:
    async with penstock.connect(url) as store:
        await store.queue("Mail-Box").push(1)
    assert columns(database, "_k_tbl_Mail-Box") == [
        ("_id", "character varying", 64, "NO", None),
        ("_pl", "jsonb", None, "YES", None),
        ("mature", "timestamp with time zone", None, "NO", "CURRENT_TIMESTAMP"),
        ("tries", "integer", None, "NO", "0"),
        ("reserved", "timestamp with time zone", None, "YES", None),
    ]
    assert indexes(database, "_k_tbl_Mail-Box") == [
        'CREATE INDEX "idx_""_k_tbl_Mail-Box""_mature" ON public."_k_tbl_Mail-Box" USING btree (mature)',
        'CREATE UNIQUE INDEX "_k_tbl_Mail-Box_pkey" ON public."_k_tbl_Mail-Box" USING btree (_id)',
    ]


async def test_jobs_are_stored_as_keuss_does(url: str, database: Any) -> None:
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        ids = [
            await queue.push({"to": "tom", "list": []}, at=FAR, tries=2, headers={"h": 1}),
            await queue.push(b"\x00\xff\x01", at=FAR + 1),
            await queue.push("text", at=FAR + 2),
        ]
    assert all(re.fullmatch(UUID, job_id) for job_id in ids)
    select = "SELECT _id, _pl, extract(epoch FROM mature)::float, tries, reserved FROM _k_tbl_mail ORDER BY mature"
    assert rows(database, select) == [
        (ids[0], {"payload": {"to": "tom", "list": []}, "hdrs": {"h": 1}}, FAR, 2, None),
        (ids[1], {"payload": "AP8B", "hdrs": {}, "type": "buffer"}, FAR + 1, 0, None),
        (ids[2], {"payload": "text", "hdrs": {}}, FAR + 2, 0, None),
    ]


async def test_a_reservation_is_written_as_keuss_does(url: str, database: Any) -> None:
    look = """SELECT tries, reserved IS NULL, round(extract(epoch FROM mature - now()) / 10) * 10,
        extract(epoch FROM mature - reserved)::float FROM _k_tbl_mail"""
    async with penstock.connect(url, lease=70) as store:
        queue = store.queue("mail")
        await queue.push("x")
        job = await queue.reserve(timeout=PATIENCE)
        assert rows(database, look) == [(1, False, 70, 70.0)]
        assert job.tries == 0
        await job.extend(200)
        assert rows(database, look)[0][:3] == (1, False, 200)
        await job.nack(delay=100)
        assert rows(database, look) == [(1, True, 100, None)]


async def test_a_job_that_nobody_got_is_back_in_its_place(url: str, database: Any) -> None:
    look = "SELECT _id, mature, tries, reserved FROM _k_tbl_mail ORDER BY mature"
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        await queue.push_many(["first", "second"])
        before = rows(database, look)
        await queue.release_many(await queue.reserve_many(1))
        assert rows(database, look) == before
        driver = store._driver
        await driver.put_back("mail", await driver.pop("mail", 1))
        assert rows(database, look) == before


async def test_a_batch_keeps_its_order_across_rounds(url: str) -> None:
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        await queue.push_many(range(2500))
        await queue.push_many(range(2500, 3000), at=store._driver.shift_ms + 1.0)
        early = [job.payload for job in await queue.pop_many(500)]
        late: list[int] = []
        while jobs := await queue.reserve_many(700):
            late += [job.payload for job in jobs]
        assert early == list(range(2500, 3000))
        assert late == list(range(2500))


async def test_leases_that_end_together_come_back_in_order(url: str) -> None:
    async with penstock.connect(url) as store:
        queue = store.queue("mail", lease=60)
        await queue.push_many(range(300))
        assert len(await queue.reserve_many(300)) == 300
        store.shift_clock(61)
        again = await queue.reserve_many(300)
        assert [job.payload for job in again] == list(range(300))
        assert {job.tries for job in again} == {1}


async def test_numbers_of_others_are_read_to_the_last_digit(url: str, database: Any) -> None:
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        await queue.push(0, delay=1000)
        for place, number in enumerate(["12345678901234567890.5", "9007199254740993", "1e25"]):
            database.execute(
                "INSERT INTO _k_tbl_mail VALUES (%s, %s::jsonb, now() - %s * interval '1 s', 0)",
                (f"id{place}", json.dumps({"payload": "N"}).replace('"N"', number), 100 - place),
            )
        found = [job.payload for job in await queue.pop_many(10)]
        assert found == [12345678901234567890.5, 9007199254740993, 10**25]


async def test_what_python_can_not_read_stops_no_queue(url: str, database: Any) -> None:
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        await queue.push("behind")
        element = f'{{"payload": {"1" * 5000}}}'  # more digits than Python reads
        database.execute("INSERT INTO _k_tbl_mail VALUES ('id', %s::jsonb, now() - interval '1 hour', 0)", (element,))
        job = await queue.reserve(timeout=PATIENCE)
        assert (job.payload, job.body) == (element, element.encode())
        await job.fail("unreadable")
        (dead,) = await store.dead_letters().peek()
        assert (dead.id, dead.body) == ("id", element.encode())
        assert (await queue.pop(timeout=PATIENCE)).payload == "behind"


async def test_what_others_left_out_is_empty(url: str, database: Any) -> None:
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        await queue.push(0, delay=1000)
        texts = ['{"payload": 1}', "{}", None, "[1]", '{"payload": "abcde", "type": "buffer", "hdrs": null}']
        for place, text in enumerate(texts):
            database.execute(
                "INSERT INTO _k_tbl_mail VALUES (%s, %s::jsonb, now() - %s * interval '1 s')",
                (f"i{place}", text, 50 - place),
            )
        found = await queue.pop_many(10)
        assert [(job.payload, job.headers) for job in found] == [
            (1, {}),
            (None, {}),
            (None, {}),
            ([1], {}),
            ("abcde", {}),
        ]


async def test_ids_of_others_are_no_danger(url: str, database: Any) -> None:
    odd = ['"', "\\", "'; DROP TABLE x", "ü", "x" * 64]
    async with penstock.connect(url, lease=60) as store:
        queue = store.queue("mail")
        await queue.push(0, delay=1000)
        for job_id in odd:
            database.execute("INSERT INTO _k_tbl_mail (_id, _pl) VALUES (%s, '{}')", (job_id,))
        assert await queue.remove(odd[0], "\0", "none") == [True, False, False]
        jobs = await queue.reserve_many(10)
        assert {job.id for job in jobs} == set(odd[1:])
        assert await queue.extend_many(jobs) == [True] * 4
        assert await queue.ack_many(jobs) == [True] * 4


async def test_a_token_that_is_none_of_ours_changes_nothing(url: str, database: Any) -> None:
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        await queue.push(1)
        job = await queue.reserve(0)
        token = job.stored.token
        for wrong in ("", "x", "1.2", "1.1.1", f"{token}.9", f"9{token}", "\0", None):
            job.stored.token = wrong
            assert await queue.ack_many([job]) == [False]
            assert await queue.nack_many([job]) == [False]
            assert await queue.extend_many([job]) == [False]
        job.stored.token = token
        # Another reservation that happens to end in the same microsecond.
        database.execute("UPDATE _k_tbl_mail SET tries = tries + 1")
        assert await queue.ack_many([job]) == [False]
        database.execute("UPDATE _k_tbl_mail SET tries = tries - 1")
        assert await queue.ack_many([job]) == [True]


@pytest.mark.parametrize("namespace", ["N", "n" * 80])
async def test_a_signal_comes_through_a_channel_with_any_name(url: str, namespace: str) -> None:
    async with (
        penstock.connect(url, namespace=namespace, poll=300) as here,
        aio.connect(url, namespace=namespace) as there,
    ):
        queue = here.queue("q" * 56)
        waiting = asyncio.create_task(queue.pop())
        await asyncio.sleep(0.2)
        await there.queue("q" * 56).push("come")
        assert (await asyncio.wait_for(waiting, PATIENCE)).payload == "come"


async def test_statistics_may_live_in_another_database(url: str, postgres_server: PostgresServer) -> None:
    elsewhere = postgres_server.create_database("stats_elsewhere")
    async with penstock.connect(url, stats=elsewhere, signal=elsewhere) as store:
        queue = store.queue("mail")
        await queue.push(1)
        await queue.pause()
        assert (await queue.stats())["push"] == 1
    async with penstock.connect(url, stats=elsewhere) as store:
        assert await store.queue("mail").paused()


async def test_libpq_gets_what_the_url_says(postgres_server: PostgresServer) -> None:
    """A socket's folder in the query, and nothing between the slashes."""
    query = f"host={postgres_server.directory}&port={postgres_server.port}&user={postgres_server.user}"
    async with penstock.connect(f"postgresql:///postgres?{query}&application_name=mine&lease=7") as store:
        queue = store.queue("over-a-socket")
        await queue.push(1)
        assert (await queue.reserve(0)).lease == 7
        with postgres_server.connect() as admin:
            assert rows(admin, "SELECT client_addr FROM pg_stat_activity WHERE application_name = 'mine'")[0] == (None,)


@pytest.fixture
def early_scan_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin where the last job was as soon as one was taken, and never at the beginning again by itself."""
    monkeypatch.setattr(ScanStart, "JOBS_MIN", 1)
    monkeypatch.setattr(ScanStart, "TRUST_S", 1000.0)


@pytest.mark.usefixtures("early_scan_start")
async def test_a_job_before_the_start_of_the_scan_comes_last_but_comes(url: str) -> None:
    async with penstock.connect(url) as store, penstock.connect(url) as other:
        queue = store.queue("mail")
        await queue.push_many(["a", "b", "c"])
        assert (await queue.pop(0)).payload == "a"
        await other.queue("mail").push("early", at=1)
        assert [(await queue.pop(0)).payload for _ in range(3)] == ["b", "c", "early"]


@pytest.mark.usefixtures("early_scan_start")
@pytest.mark.parametrize("way", ["push", "put_back", "release"])
async def test_what_this_process_puts_before_the_start_of_the_scan_is_seen(url: str, way: str) -> None:
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        await queue.push_many(["a", "b", "c"])
        driver = store._driver
        if way == "put_back":
            first = await driver.pop("mail", 1)
            await queue.pop(0)
            await driver.put_back("mail", first)
        elif way == "release":
            first = await queue.reserve_many(1)
            await queue.pop(0)
            await queue.release_many(first)
        else:
            await queue.pop(0)
            await queue.push("a", at=1)
        assert (await queue.pop(0)).payload == "a"


async def test_a_batch_that_is_too_large_for_a_statement_is_cut(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_driver, "BATCH_BYTES_MAX", 200)
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        ids = await queue.push_many(["x" * 100 + str(n) for n in range(9)])
        jobs = await queue.pop_many(20)
        assert [(job.id, job.payload[100:]) for job in jobs] == [(ids[n], str(n)) for n in range(9)]


@pytest.mark.parametrize("form", ["aio", "blocking"])
async def test_a_payload_that_is_larger_than_all_buffers_goes_both_ways(url: str, form: str) -> None:
    payload = "x" * 20_000_000
    connect = aio.connect if form == "aio" else lambda url: Facade(blocking.connect(url))
    async with connect(url) as store:
        queue = store.queue("mail")
        await queue.push_many([payload, 1])
        assert [job.payload for job in await queue.pop_many(2)] == [payload, 1]


async def test_the_server_keeps_a_limited_number_of_statements(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PREPARED_MAX", 5)
    async with penstock.connect(url, connections=1) as store:
        for number in range(4):
            queue = store.queue(f"mail{number % 2}")
            await queue.push(number)
            await (await queue.reserve(timeout=PATIENCE)).ack()
        kept = await store._driver._pool.run("SELECT count(*) FROM pg_prepared_statements")
        assert kept[0][0] <= 5


async def test_a_key_of_a_claim_that_postgresql_can_not_store_is_refused(url: str) -> None:
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        await queue.push(1)
        with pytest.raises(BadPayload, match="can't store this: text must be"):
            await queue.claim("zero\0byte", 1)
        assert await queue.size() == 1


async def test_a_key_is_taken_again_by_a_job_that_nobody_got(url: str) -> None:
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        first = await queue.push("x", unique="key")
        await store._driver.put_back("mail", await store._driver.pop("mail", 1))
        assert await queue.push("y", unique="key") == first


async def test_a_claim_has_nothing_that_was_given_back_and_taken_by_others(url: str) -> None:
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        await queue.push_many(["a", "b", "c"])
        claimed = await queue.claim("batch", 3)
        await queue.release_many(claimed[:1])
        await claimed[1].extend(1000)
        other = await queue.reserve(0)
        assert [job.payload for job in await queue.claim("batch", 3)] == ["b", "c"]
        assert await queue.ack_claim("batch") == 2
        assert await queue.ack_many([other]) == [True]


async def test_an_end_is_noted_by_the_stores_time(url: str) -> None:
    async with penstock.connect(url) as store:
        queue = store.queue("mail")
        first = await queue.push("x", unique="key", unique_for=100)
        job = await queue.reserve(0)
        store.shift_clock(1000)
        await job.ack()
        store.shift_clock(90)
        assert await queue.push("y", unique="key") == first
        store.shift_clock(20)
        assert await queue.push("y", unique="key") != first


async def test_names_that_are_too_long_are_refused_before_the_first_job(url: str) -> None:
    async with penstock.connect(url) as store:
        for make in (
            lambda: store.queue("q" * 60),
            lambda: store.queue("q", dead_letter=penstock.DeadLetter(3, "d" * 60)),
        ):
            with pytest.raises(CallerError, match="on PostgreSQL must be at most 56 bytes, got 60 bytes"):
                make()
