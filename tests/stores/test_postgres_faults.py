"""PostgreSQL that goes away, refuses or is slow: what callers are told, and that no job is lost."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock.errors import (
    BadUrl,
    CallerError,
    ConnectionLost,
    OutcomeUnknown,
    PenstockError,
    StoreError,
)
from penstock.queues import blocking
from tests.processes import free_port, need_module, wait_until
from tests.servers import PostgresServer
from tests.stores.facade import Facade
from tests.stores.harness import NEVER, PATIENCE

pytestmark = pytest.mark.system

FORMS: dict[str, Callable[..., Any]] = {
    "aio": penstock.connect,
    "blocking": lambda url, **options: Facade(blocking.connect(url, **options)),
}


@pytest.fixture(params=FORMS)
def connect(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Open a store in either form."""
    return FORMS[request.param]


@pytest.fixture
def admin(postgres_database: str) -> Iterator[Any]:
    """The administrator's connection to the test's database: each statement a transaction."""
    psycopg = need_module("psycopg")
    with psycopg.connect(postgres_database, autocommit=True, application_name="admin") as connection:
        yield connection


OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'penstock'"

LISTENING = f"SELECT 1 {OTHERS} AND query LIKE 'LISTEN%'"


def end_all(admin: Any) -> int:
    """End all sessions of stores, as an administrator or a failover would; return how many."""
    pids = [pid for pid, _ in admin.execute(f"SELECT pid, pg_terminate_backend(pid) {OTHERS}").fetchall()]
    wait_until(lambda: not admin.execute("SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s)", (pids,)).fetchall())
    return len(pids)


def wait_until_blocked(admin: Any) -> None:
    """Wait until a store's statement waits for a lock."""
    wait_until(lambda: admin.execute(f"SELECT 1 {OTHERS} AND wait_event_type = 'Lock'").fetchall())


async def in_thread(call: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, call, *args)


async def test_a_waiting_caller_goes_on_after_its_sessions_were_ended(
    postgres_database: str, admin: Any, connect: Callable[..., Any]
) -> None:
    async with connect(postgres_database, poll=NEVER) as store, penstock.connect(postgres_database) as other:
        queue = store.queue("mail")
        await queue.push("before")
        assert (await queue.pop(timeout=PATIENCE)).payload == "before"
        for number in range(3):
            waiting = asyncio.create_task(queue.reserve())
            await in_thread(wait_until, lambda: admin.execute(LISTENING).fetchall())
            assert end_all(admin) >= 2
            await other.queue("mail").push(number)
            job = await asyncio.wait_for(waiting, PATIENCE)
            assert (job.payload, job.tries) == (number, 0)
            await job.ack()


async def test_a_statement_ends_though_the_event_loop_does_not_watch_its_socket_any_more(
    postgres_database: str, admin: Any
) -> None:
    """As uvloop does after an error of the socket, of which it tells once."""
    async with penstock.connect(postgres_database) as store:
        pool = store._driver._pool
        await pool.run_script("SELECT 1")
        (link,) = pool._idle
        admin.execute("SELECT pg_advisory_lock(1)")
        waiting = asyncio.create_task(pool.run_script("SELECT pg_advisory_lock(1)"))
        await asyncio.sleep(0)
        asyncio.get_running_loop().remove_reader(link._socket)
        admin.execute("SELECT pg_advisory_unlock(1)")
        async with asyncio.timeout(PATIENCE):
            await waiting


async def test_an_idle_connection_that_the_server_ends_leaves_the_event_loop_alone(
    postgres_database: str, admin: Any
) -> None:
    """The end of a connection makes its socket readable forever: a loop that goes on watching it never rests."""
    async with penstock.connect(postgres_database) as store:
        queue = store.queue("mail")
        await queue.push("one")
        (link,) = store._driver._pool._idle
        selector = asyncio.get_running_loop()._selector
        assert link.pgconn.socket in selector.get_map()
        await in_thread(end_all, admin)
        await in_thread(wait_until, lambda: link.pgconn.socket not in selector.get_map())
        assert (await queue.pop(timeout=PATIENCE)).payload == "one"


async def test_a_reserve_that_is_cut_off_is_done_again(
    postgres_database: str, admin: Any, connect: Callable[..., Any]
) -> None:
    psycopg = need_module("psycopg")
    async with connect(postgres_database, poll=0.2) as store:
        queue = store.queue("mail")
        await queue.push("kept")
        with psycopg.connect(postgres_database) as lock:
            lock.execute("LOCK TABLE _k_tbl_mail")
            waiting = asyncio.create_task(queue.reserve(timeout=PATIENCE))
            await in_thread(wait_until_blocked, admin)
            end_all(admin)
            await in_thread(wait_until_blocked, admin)  # it is tried again
        job = await waiting
        assert (job.payload, job.tries) == ("kept", 0)
        await job.ack()


@pytest.mark.parametrize("way", ["push", "pop"])
async def test_the_outcome_of_what_must_not_be_done_twice_is_reported_as_unknown(
    postgres_database: str, admin: Any, connect: Callable[..., Any], way: str
) -> None:
    psycopg = need_module("psycopg")
    async with connect(postgres_database) as store:
        queue = store.queue("mail")
        await queue.push("one")
        call = {"push": lambda: queue.push_many(["two"]), "pop": lambda: queue.pop(timeout=PATIENCE)}[way]
        with psycopg.connect(postgres_database) as lock:
            lock.execute("LOCK TABLE _k_tbl_mail")
            doing = asyncio.create_task(in_thread(asyncio.run, call()) if isinstance(store, Facade) else call())
            await in_thread(wait_until_blocked, admin)
            end_all(admin)
            with pytest.raises(OutcomeUnknown, match="went away before it answered"):
                await doing
        assert await queue.total() == 1


@pytest.mark.parametrize("way", ["ack", "nack", "extend"])
async def test_what_may_be_done_again_is_a_lost_connection(postgres_database: str, admin: Any, way: str) -> None:
    psycopg = need_module("psycopg")
    async with penstock.connect(postgres_database) as store:
        queue = store.queue("mail")
        await queue.push("one")
        job = await queue.reserve(timeout=PATIENCE)
        with psycopg.connect(postgres_database) as lock:
            lock.execute("LOCK TABLE _k_tbl_mail")
            doing = asyncio.create_task(getattr(job, way)())
            await in_thread(wait_until_blocked, admin)
            end_all(admin)
            with pytest.raises(ConnectionLost, match="went away"):
                await doing
        await getattr(job, way)()


@pytest.mark.parametrize("way", ["pop", "reserve"])
async def test_a_call_that_is_cancelled_returns_what_came_too_late(
    postgres_database: str, admin: Any, way: str
) -> None:
    psycopg = need_module("psycopg")
    async with penstock.connect(postgres_database) as store:
        queue = store.queue("mail")
        await queue.push("kept", tries=2)
        with psycopg.connect(postgres_database) as lock:
            lock.execute("LOCK TABLE _k_tbl_mail")
            driver = store._driver
            call = driver.pop("mail", 1) if way == "pop" else driver.reserve("mail", 1, 100_000)
            doing = asyncio.create_task(call)
            await in_thread(wait_until_blocked, admin)
            doing.cancel()
            await asyncio.sleep(0.1)
            assert not doing.done()  # it waits for the server's word
        with pytest.raises(asyncio.CancelledError):
            await doing
        job = await queue.reserve(0)
        assert (job.payload, job.tries) == ("kept", 2)


def test_a_loop_that_ends_in_the_middle_of_a_pop_loses_nothing(postgres_database: str, admin: Any) -> None:
    psycopg = need_module("psycopg")
    lock = psycopg.connect(postgres_database)

    async def main() -> None:
        store = penstock.connect(postgres_database)
        await store.open()
        queue = store.queue("mail")
        await queue.push("kept")
        lock.execute("LOCK TABLE _k_tbl_mail")
        waiting = asyncio.create_task(queue.pop())  # noqa: F841, RUF006 - the loop ends it
        await in_thread(wait_until_blocked, admin)
        threading.Timer(0.2, lock.close).start()

    asyncio.run(main())
    wait_until(lambda: admin.execute("SELECT count(*) FROM _k_tbl_mail").fetchone() == (1,))


def test_a_forked_child_has_connections_of_its_own(postgres_database: str) -> None:
    with blocking.connect(postgres_database, poll=NEVER) as store:
        queue = store.queue("mail")
        queue.push("parent")
        assert queue.reserve(0.01).payload == "parent"
        assert queue.reserve(0.01) is None  # now it has a connection that listens

        def session() -> int:
            return store._driver._pool.run("SELECT pg_backend_pid()")[0][0]

        mine = session()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                assert queue.pop(0.01) is None
                queue.push("child")
                assert session() != mine
                store.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert session() == mine  # the child has not closed it
        assert queue.pop(timeout=PATIENCE).payload == "child"


async def test_a_server_that_is_not_there_or_lets_nobody_in(
    postgres_server: PostgresServer, connect: Callable[..., Any]
) -> None:
    async def opened(url: str, **options: Any) -> None:
        async with connect(url, **options):
            pass

    with pytest.raises(ConnectionLost, match="can't be reached"):
        await opened(f"postgresql://127.0.0.1:{free_port()}/x")
    with pytest.raises(StoreError, match="database"):
        await opened(postgres_server.url("nowhere"))
    with pytest.raises(StoreError, match="role"):
        await opened(postgres_server.url().replace("penstock@", "nobody:secret@"))
    with pytest.raises(BadUrl, match="nosuchoption"):
        await opened(postgres_server.url() + "?nosuchoption=1")
    for wrong in ("0", "101", "many"):
        with pytest.raises(CallerError, match="connections"):
            await opened(postgres_server.url(), connections=wrong)


async def test_a_password_is_in_no_error(postgres_server: PostgresServer) -> None:
    url = postgres_server.url("nowhere").replace("penstock@", "penstock:secret@")
    with pytest.raises(PenstockError) as raised:
        async with penstock.connect(url):
            pass
    assert "secret" not in str(raised.value)


@pytest.fixture
def poor(admin: Any, postgres_database: str) -> Iterator[str]:
    """The URL of a role without rights."""
    admin.execute("CREATE ROLE poor LOGIN")
    yield postgres_database.replace("penstock@", "poor@")
    admin.execute("DROP OWNED BY poor")
    admin.execute("DROP ROLE poor")


async def test_the_error_for_a_role_without_rights_says_which_it_needs(postgres_database: str, poor: str) -> None:
    async with penstock.connect(poor) as store:
        with pytest.raises(StoreError, match=r"permission denied.*CREATE on the schema"):
            await store.queue("mail").push(1)
    async with penstock.connect(postgres_database) as store:
        await store.queue("mail").push(1)
    async with penstock.connect(poor, stats="memory:") as store:
        with pytest.raises(StoreError, match=r"permission denied.*_k_tbl_QUEUE"):
            await store.queue("mail").push(1)


async def test_rights_on_tables_that_are_there_are_enough(postgres_database: str, poor: str, admin: Any) -> None:
    async with penstock.connect(postgres_database) as store:
        await store.queue("mail").push("rich", unique="theirs")
        await store.queue("__deadletter__").push(0, delay=1000)
        await store.queue("mail").claim("their claim", 1)
        await store.queue("mail").nack_claim("their claim")
    admin.execute("DROP TRIGGER penstock_ended ON _k_tbl_mail")
    admin.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO poor")
    async with penstock.connect(poor) as store:
        queue = store.queue("mail")
        first = await queue.push("poor", unique="ours", unique_for=50)
        assert {job.payload for job in await queue.claim("our claim", 5)} == {"rich", "poor"}
        assert await queue.ack_claim("our claim") == 2
        # Without the right to make a trigger, an end counts from when it is noticed.
        store.shift_clock(1000)
        assert await queue.push("poor", unique="ours") == first
        store.shift_clock(51)
        assert await queue.push("poor", unique="ours") != first
        await (await queue.reserve(0)).fail("no")
        assert await queue.total() == 0


async def test_a_server_that_takes_no_writes(postgres_database: str, admin: Any) -> None:
    async with penstock.connect(postgres_database) as store:
        await store.queue("mail").push(1)
    admin.execute(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', "
        "current_database()); END $$"
    )
    async with penstock.connect(postgres_database, stats="memory:") as store:
        with pytest.raises(StoreError, match="target_session_attrs"):
            await store.queue("mail").push(1)


async def test_a_statement_that_takes_too_long_for_the_server(postgres_database: str, admin: Any) -> None:
    psycopg = need_module("psycopg")
    async with penstock.connect(postgres_database, options="-c statement_timeout=300") as store:
        queue = store.queue("mail")
        await queue.push(1)
        with psycopg.connect(postgres_database) as lock:
            lock.execute("LOCK TABLE _k_tbl_mail")
            with pytest.raises(StoreError, match="statement_timeout"):
                await queue.push(2)
        assert await queue.total() == 1


async def test_statements_that_collide_are_done_again(postgres_database: str, admin: Any) -> None:
    """Two that lock the same jobs the other way round: PostgreSQL ends one of them, and it is ours."""
    psycopg = need_module("psycopg")
    async with penstock.connect(postgres_database) as store:
        queue = store.queue("mail")
        await queue.push_many([1, 2])
        jobs = sorted(await queue.reserve_many(2), key=lambda job: job.id)
        with psycopg.connect(postgres_database) as other:
            other.execute("SET deadlock_timeout = '60s'")
            other.execute("SELECT 1 FROM _k_tbl_mail WHERE _id = %s FOR UPDATE", (jobs[1].id,))
            doing = asyncio.create_task(queue.ack_many(jobs))
            await in_thread(wait_until_blocked, admin)
            await in_thread(lambda: other.execute("SELECT 1 FROM _k_tbl_mail WHERE _id = %s FOR UPDATE", (jobs[0].id,)))
        assert await doing == [True, True]
