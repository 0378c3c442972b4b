"""Counters: what they count, where they are exact, and how those are written that the store doesn't write by itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock import Capability, DeadLetter
from penstock.queues import aio, blocking
from penstock.queues.blocking.counters import Counters
from penstock.queues.blocking.stats import MemoryStats
from penstock.queues.stores.postgres.aio import link as postgres_link
from penstock.queues.stores.postgres.sql import FOLD_EVERY
from tests.processes import need_module, wait_until
from tests.redis_groups import RedisCluster
from tests.servers import PostgresServer, RedisServer
from tests.stores.harness import PATIENCE, Place, needs

# Stores that write a counter along with what it counts. The broker keeps none: each process has its own.
EXACT = {"memory", "sqlite", "redis+list", "redis+oq", "postgresql"}
NONE = {"push": 0, "pop": 0, "reserve": 0, "ack": 0, "nack": 0, "dead_letter": 0}

PRODUCER = """
import sys
from penstock.queues import blocking
store = blocking.connect(sys.argv[1], namespace=sys.argv[2])
store.open()
queue = store.queue(sys.argv[3])
while True:
    queue.push_many([1, 2, 3])
    print("pushed", flush=True)
"""


def counters(counted: dict[str, Any]) -> dict[str, int]:
    return {name: counted[name] for name in NONE}


@needs(Capability.RESERVE)
async def test_counters_have_the_words_of_the_api(place: Place) -> None:
    async with place.connect() as store:
        dead = DeadLetter(queue=place.new_name("dead"))
        queue = store.queue(place.new_name(), dead_letter=dead, lease=1000)
        await queue.push("popped")
        await queue.push_many(["acked", "nacked", "failed"])
        await queue.pop(timeout=PATIENCE)
        jobs = [await queue.reserve(timeout=PATIENCE) for _ in range(3)]
        await jobs[0].ack()
        await jobs[1].nack(delay=1000)
        await jobs[2].fail()
        counted = await queue.stats()
        assert counters(counted) == {"push": 4, "pop": 1, "reserve": 3, "ack": 1, "nack": 1, "dead_letter": 1}
        assert counters(await store.queue(dead.queue).stats()) == {**NONE, "push": 1}
        known = (await store.topology())[queue.name]["counters"]
        assert counters(known) == counters(counted)


async def test_stats_have_the_pause_and_the_kind_of_queue(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push(1)
        await queue.pause()
        counted = await queue.stats()
        assert (counted["paused"], counted["type"]) == (True, queue.type)
        await queue.resume()
        assert (await queue.stats())["paused"] is False


@needs(Capability.RESERVE)
async def test_what_was_undone_is_not_counted(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push_many([1, 2, 3])
        jobs = await queue.reserve_many(3, PATIENCE)
        await queue.release_many(jobs[:2])
        assert counters(await queue.stats()) == {**NONE, "push": 3, "reserve": 1}


@needs(Capability.CLAIM)
async def test_jobs_of_a_claim_count_where_the_store_counts(place: Place) -> None:
    if place.name not in EXACT - {"memory"}:
        pytest.skip("only the store knows which of a claim's jobs are new")
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push_many([1, 2, 3])
        assert len(await queue.claim("one", 2)) == 2
        assert len(await queue.claim("one", 2)) == 2  # the same once more: no new delivery
        await queue.ack_claim("one")
        await queue.claim("two", 2)
        await queue.nack_claim("two")
        assert counters(await queue.stats()) == {**NONE, "push": 3, "reserve": 3, "ack": 2, "nack": 1}


@needs(Capability.RESERVE, Capability.PEEK)
async def test_a_redriven_job_counts_where_it_comes_to(place: Place) -> None:
    async with place.connect() as store:
        dead = DeadLetter(queue=place.new_name("dead"))
        queue = store.queue(place.new_name(), dead_letter=dead)
        await queue.push("work")
        await (await queue.reserve(timeout=PATIENCE)).fail()
        assert await store.queue(dead.queue).redrive() == 1
        assert (await queue.stats())["push"] == 2
        assert counters(await store.queue(dead.queue).stats()) == {**NONE, "push": 1}


async def test_counters_of_all_connections_come_together(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push(1)
        async with place.connect() as other:
            await other.queue(queue.name).push_many([2, 3])
        assert (await queue.stats())["push"] == 3


async def test_namespaces_have_counters_of_their_own(place: Place) -> None:
    async with place.connect() as store, place.connect(namespace=place.new_name("o'the\\r")) as other:
        queue = store.queue(place.new_name())
        await queue.push(1)
        await other.queue(queue.name).push(2)
        assert (await queue.stats())["push"] == (await other.queue(queue.name).stats())["push"] == 1
        assert await queue.total() == 2


async def test_counters_are_there_with_what_they_count(place: Place) -> None:
    if place.name not in EXACT:
        pytest.skip(f"{place.name} doesn't count by itself")
    async with place.connect() as store, place.connect() as other:
        queue, seen = store.queue(place.new_name()), None
        for pushed in range(1, 4):
            await queue.push(pushed)
            seen = counters(await other.queue(queue.name).stats())
            assert seen == {**NONE, "push": pushed}
        await queue.pop(timeout=PATIENCE)
        assert counters(await other.queue(queue.name).stats()) == {**NONE, "push": 3, "pop": 1}


@pytest.mark.parametrize("name", ["sqlite", "redis+oq", "postgresql"])
def test_a_producer_that_is_killed_has_counted_what_it_pushed(name: str, request: pytest.FixtureRequest) -> None:
    place = Place(name, "blocking", request)
    queue = place.new_name()
    words = [sys.executable, "-c", PRODUCER, place.url, place.namespace, queue]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as producer:
        assert producer.stdout is not None
        for _ in range(5):
            assert producer.stdout.readline() == b"pushed\n"
        producer.kill()
    with blocking.connect(place.url, namespace=place.namespace) as store:
        assert store.queue(queue).stats()["push"] == store.queue(queue).total() >= 15


# Statistics elsewhere


async def test_counters_elsewhere_are_written_soon_by_themselves(
    place: Place, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Also in the blocking form, where nobody makes another call."""
    stats = {} if place.name == "fsq" else {"stats": redis_server.url}
    async with place.connect(**stats) as store, place.connect(**stats) as other:
        queue = store.queue(place.new_name())
        for number in range(3):
            await queue.push(number)
        async with asyncio.timeout(PATIENCE):
            while (await other.queue(queue.name).stats())["push"] != 3:  # noqa: ASYNC110 - nobody would set an event
                await asyncio.sleep(0.02)


async def test_counters_elsewhere_are_written_by_close(place: Place, redis_server: RedisServer) -> None:
    stats = {} if place.name == "fsq" else {"stats": redis_server.url}
    name = place.new_name()
    for number in range(5):
        async with place.connect(**stats) as store:
            await store.queue(name).push(number)
    async with place.connect(**stats) as store:
        assert (await store.queue(name).stats())["push"] == 5


def test_close_waits_for_the_counters_that_are_being_written(
    postgres_server: PostgresServer, postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that ends while its counters are being written, and an event loop that ends with it."""
    monkeypatch.setattr(postgres_link, "PATIENCE_S", 0)  # what is cancelled is lost
    psycopg = need_module("psycopg")
    url, stats = f"fsq:{tmp_path}/root", {"stats": postgres_database}
    with blocking.connect(url, **stats) as store:
        store.queue("q").push(0)
    may_end = threading.Event()
    closing = threading.Event()

    async def produce() -> None:
        async with aio.connect(url, **stats) as store:
            await store.queue("q").push(1)
            await asyncio.to_thread(may_end.wait, PATIENCE)
            asyncio.get_running_loop().call_later(0.1, closing.set)

    producer = threading.Thread(target=lambda: asyncio.run(produce()))
    waits = "SELECT count(*) FROM pg_locks JOIN pg_database AS d ON d.oid = database WHERE NOT granted AND datname = %s"
    with psycopg.connect(postgres_database) as locker, postgres_server.connect() as watcher:
        locker.execute("LOCK TABLE penstock_counter_deltas, penstock_counters")
        producer.start()
        wait_until(lambda: watcher.execute(waits, [locker.info.dbname]).fetchone()[0] > 0)
        may_end.set()
        wait_until(lambda: closing.is_set() or not producer.is_alive())
    producer.join(PATIENCE)
    with blocking.connect(url, **stats) as store:
        assert store.queue("q").stats()["push"] == 2


def test_counters_outlive_an_outage_of_their_server(start_redis: Any, tmp_path: Path) -> None:
    server = start_redis()
    with blocking.connect(f"fsq:{tmp_path}/root", stats=server.url) as store:
        queue = store.queue("q")
        queue.push(1)
        wait_until(lambda: server.client().hget("keuss:stats:N:q", "counter_put") == b"1")
        server.kill_hard()
        queue.push(2)
        server.start()
        wait_until(lambda: server.client().hget("keuss:stats:N:q", "counter_put") == b"2")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_counters_outlive_an_error_that_nobody_expects() -> None:
    written: list[int] = []

    class Broken(MemoryStats):
        is_local = False

        def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
            written.append(sum(counts["q"].values()))
            if len(written) == 1:
                raise ZeroDivisionError

    counters_here = Counters(Broken("here", "N"))
    counters_here.count("q", "put")
    wait_until(lambda: written == [1] and counters_here._writer is None)
    counters_here.count("q", "put")
    wait_until(lambda: written == [1, 2])
    counters_here.close()


def test_a_forked_child_writes_its_own_counters_only(redis_server: RedisServer, tmp_path: Path) -> None:
    with blocking.connect(f"fsq:{tmp_path}/root", stats=redis_server.url, namespace="forked") as store:
        queue = store.queue(f"q{os.getpid()}")
        queue.push_many([1, 2])
        child = os.fork()
        if not child:
            grandchild = os.fork()
            if grandchild:
                os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
            queue.push(3)
            store.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    with blocking.connect(f"fsq:{tmp_path}/root", stats=redis_server.url, namespace="forked") as store:
        assert store.queue(queue.name).stats()["push"] == 3


# Redis Cluster


@pytest.mark.parametrize("name", ["N", "na{me}space"])
def test_counters_in_a_cluster(redis_cluster: RedisCluster, name: str) -> None:
    """Exact where they lie in the slot of the jobs; a namespace with a hash tag of its own puts them into another."""
    url = "redis+oq://" + ",".join(f"{node.host}:{node.port}" for node in redis_cluster.nodes)
    queue_name = f"{{count{os.getpid()}}}{name[:2]}"
    with blocking.connect(url, namespace=name) as store, blocking.connect(url, namespace=name) as other:
        queue = store.queue(queue_name)
        queue.push_many([1, 2, 3])
        queue.reserve(timeout=PATIENCE).ack()
        queue.reserve(timeout=PATIENCE).fail("broken")
        expected = {**NONE, "push": 3, "reserve": 2, "ack": 1, "dead_letter": 1}
        if name == "N":
            assert counters(other.queue(queue_name).stats()) == expected
        wait_until(lambda: counters(other.queue(queue_name).stats()) == expected)


# PostgreSQL


def test_nobody_waits_for_the_counters_of_an_open_transaction(postgres_database: str) -> None:
    psycopg = need_module("psycopg")
    with blocking.connect(postgres_database) as store, psycopg.connect(postgres_database) as connection:
        queue = store.queue("mail")
        queue.push("in between", connection=connection)
        with blocking.connect(postgres_database) as other:
            other.queue("mail").push("not held up")
            assert other.queue("mail").stats()["push"] == 1
        connection.commit()
        assert queue.stats()["push"] == 2


def test_differences_are_folded_and_no_count_is_lost(postgres_database: str) -> None:
    psycopg = need_module("psycopg")
    each, threads = FOLD_EVERY // 2, 4

    def push() -> None:
        with blocking.connect(postgres_database) as store:
            for _ in range(each):
                store.queue("mail").push_many([1, 2])

    workers = [threading.Thread(target=push) for _ in range(threads)]
    for worker in workers:
        worker.start()
    with blocking.connect(postgres_database) as store:
        seen = 0
        while any(worker.is_alive() for worker in workers):
            now = store.queue("mail").stats()["push"]
            assert now >= seen  # a fold in between never takes anything away
            seen = now
        assert store.queue("mail").stats()["push"] == 2 * each * threads
    with psycopg.connect(postgres_database) as connection:
        rows = connection.execute("SELECT count(*) FROM penstock_counter_deltas").fetchone()[0]
        assert rows <= threads * FOLD_EVERY
        assert connection.execute("SELECT count(*) FROM penstock_counters").fetchone()[0] >= 1
