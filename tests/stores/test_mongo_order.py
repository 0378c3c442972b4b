"""What is the store of ordered jobs' own: jobs of one key come one after the other, whatever happens to them."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from penstock import Capability
from penstock.errors import BadPayload, LeaseLost, Unsupported
from penstock.job import JobState
from penstock.queues import aio, blocking
from penstock.queues.blocking import Queue, Store
from tests.processes import wait_until
from tests.servers import MongoServer
from tests.stores.harness import PATIENCE

pytestmark = pytest.mark.system


@pytest.fixture
def url(mongo_database: str) -> str:
    """The URL of an empty database, in this layout."""
    return mongo_database.replace("mongodb:", "mongodb+intraorder:", 1)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with blocking.connect(url, lease=1000, dead_letter="2,dead") as store:
        yield store


def _documents(store: Store, server: MongoServer, queue: str = "mail") -> list[dict[str, Any]]:
    with server.client() as client:
        return list(client[store._driver._link.database_name][queue].find())


def _of(key: object, *numbers: int) -> list[dict[str, Any]]:
    return [{"iid": key, "n": number} for number in numbers]


def _take(queue: Queue) -> Any:
    return queue.reserve(timeout=PATIENCE)


async def test_order_by_key_is_kept_with_several_workers_nacks_and_leases_that_end(url: str) -> None:
    """A worker now and then gives a job back, or keeps it until its lease is over: the next of its key waits."""
    keys, count = [f"key{number}" for number in range(5)], 12
    chance = random.Random(1)
    taken: list[Any] = []
    done: set[Any] = set()

    async def work() -> None:
        async with aio.connect(url, lease=0.3, poll=0.1) as store:
            queue = store.queue("mail")
            while len(done) < len(keys) * count:
                job = await queue.reserve(timeout=0.2)
                if job is None:
                    continue
                taken.append(job)
                what = chance.random()
                with suppress(LeaseLost):  # a busy machine may take longer than the lease
                    if what < 0.2:
                        await job.nack()
                    elif what > 0.26:
                        await job.ack()
                        done.add(job)

    async with aio.connect(url) as store:
        jobs = [{"iid": key, "n": number} for number in range(count) for key in keys]
        for job in jobs:
            await store.queue("mail").push(job)
        await asyncio.gather(*(work() for _ in range(4)))
        assert await store.queue("mail").total() == 0
    # By the beginning of the leases under which they were done: acks of two workers may be heard in another order.
    for key in keys:
        assert [job.payload["n"] for job in taken if job in done and job.payload["iid"] == key] == list(range(count))


WORKER = """
import sys
from penstock.queues import blocking
with blocking.connect(sys.argv[1], lease=1000) as store:
    queue = store.queue("mail")
    queue.reserve(timeout=30).ack()
    print(queue.reserve(timeout=30).payload["n"], flush=True)
    sys.stdin.read()
"""


def test_order_is_kept_when_a_worker_is_killed(store: Store, url: str) -> None:
    queue = store.queue("mail")
    queue.push_many(_of("a", 1, 2, 3))
    argv = [sys.executable, "-c", WORKER, url]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "2\n"
        process.send_signal(signal.SIGKILL)
    assert queue.reserve(timeout=0) is None
    store.shift_clock(1001)
    for number, tries in [(2, 1), (3, 0)]:
        job = _take(queue)
        assert (job.payload["n"], job.tries) == (number, tries)
        job.ack()


def test_a_push_changes_neither_the_lease_nor_the_time_of_the_first_job(store: Store) -> None:
    queue = store.queue("mail")
    queue.push({"iid": "a", "n": 1}, delay=100)
    queue.push({"iid": "a", "n": 2})
    assert queue.reserve(timeout=0) is None
    assert tuple(queue.sizes()) == (2, 0, 2, 0)
    store.shift_clock(101)
    job = _take(queue)
    queue.push({"iid": "a", "n": 3}, delay=5000)
    assert queue.reserve(timeout=0) is None
    assert tuple(queue.sizes()) == (3, 0, 2, 1)
    job.ack()
    assert _take(queue).payload["n"] == 2


def test_a_late_worker_cannot_end_the_next_job_of_the_key(store: Store) -> None:
    queue = store.queue("mail")
    queue.push_many(_of("a", 1, 2))
    late = _take(queue)
    store.shift_clock(1001)
    _take(queue).ack()
    second = _take(queue)
    for call in (late.ack, late.nack, late.extend):
        with pytest.raises(LeaseLost):
            call()
    assert queue.ack_many([late, second]) == [False, True]
    assert queue.total() == 0


async def test_the_end_of_a_job_wakes_who_waits_for_the_next_one_of_its_key(url: str) -> None:
    async with aio.connect(url, poll=300) as one, aio.connect(url, poll=300) as other:
        await one.queue("mail").push_many(_of("a", 1, 2))
        first = await one.queue("mail").reserve(timeout=PATIENCE)
        driver, sleeps = other._driver, asyncio.Event()
        ask = driver.next_mature_ms

        async def observed(queue: str) -> int | None:
            found = await ask(queue)
            sleeps.set()  # until then, as it knows no better
            return found

        driver.next_mature_ms = observed  # what it does stays the same
        waits = asyncio.create_task(other.queue("mail").reserve(timeout=300))
        await sleeps.wait()
        await first.ack()
        async with asyncio.timeout(PATIENCE):
            assert (await waits).payload["n"] == 2


def test_dead_letters_are_ordered_too_and_come_back_in_order(store: Store) -> None:
    queue, dead = store.queue("mail"), store.queue("dead")
    queue.push_many(_of("a", 1, 2, 3))
    for _ in range(3):
        _take(queue).nack()
        _take(queue).nack()
    assert [job.payload["n"] for job in dead.peek()] == [1, 2, 3]
    assert dead.redrive() == 3
    assert dead.total() == 0
    for number in (1, 2, 3):
        job = _take(queue)
        assert job.payload["n"] == number
        job.ack()


def test_a_job_in_the_middle_is_removed_and_the_others_stay(store: Store, mongo_server: MongoServer) -> None:
    queue = store.queue("mail")
    ids = queue.push_many(_of("a", 1, 2, 3, 4))
    assert len(set(ids)) == 4
    held = _take(queue)
    assert queue.remove(ids[0]) == [False]
    assert queue.remove(ids[2]) == [True]
    assert [(job.payload["n"], job.state) for job in queue.jobs()] == [
        (1, JobState.RESERVED),
        (2, JobState.SCHEDULED),
        (4, JobState.SCHEDULED),
    ]
    assert queue.purge() == 2
    held.ack()
    assert _documents(store, mongo_server) == []


def test_a_pop_whose_caller_is_gone_leaves_the_order_as_it_was(store: Store) -> None:
    queue = store.queue("mail")
    queue.push_many(_of("a", 1, 2))
    taken = store._driver.pop("mail", 1)
    store._driver.put_back("mail", taken)
    assert [queue.pop(timeout=PATIENCE).payload["n"] for _ in range(2)] == [1, 2]
    queue.push_many(_of("a", 1, 2))
    taken = store._driver.pop("mail", 1)
    held = _take(queue)
    store._driver.put_back("mail", taken)
    held.ack()
    assert queue.pop(timeout=PATIENCE).payload["n"] == 1
    assert queue.total() == 0


@pytest.mark.parametrize("key", ["text", "with:colon", "=", 42, 4.5, "a:0199f0a5-0000-5000-8000-000000000000"])
def test_keys_of_any_form(store: Store, key: object) -> None:
    queue = store.queue("mail")
    ids = queue.push_many(_of(key, 1, 2))
    assert [job.id for job in queue.jobs()] == ids
    for _ in range(2):
        job = _take(queue)
        job.extend(500)
        assert queue.ack_many([job]) == [True]
    assert queue.total() == 0


@pytest.mark.parametrize(
    "job_id",
    ['={"$gt": ""}', '={"$ne": null}', '={"$regex": "."}', '={"$oid": "x"}', "=[1]", '={"$numberDecimal": "x"}'],
)  # fmt: skip
def test_an_id_is_never_read_as_a_filter(store: Store, job_id: str) -> None:
    queue = store.queue("mail")
    pushed = queue.push({"iid": "a"})
    assert queue.remove(job_id, f"{job_id}:{pushed.rpartition(':')[2]}") == [False, False]
    job = _take(queue)
    assert queue.remove(job_id, reserved=True) == [False]
    with pytest.raises(LeaseLost):
        queue.ack_by_token(f"{job_id}:{pushed.rpartition(':')[2]}", job.token)
    job.ack()


def test_jobs_without_a_key_and_keys_that_cannot_be(store: Store, url: str) -> None:
    queue = store.queue("mail")
    queue.push_many([{"iid": ""}, {"iid": None}, {}, "text"])
    assert len(queue.reserve_many(10, timeout=PATIENCE)) == 4
    with pytest.raises(BadPayload, match="iid of a payload"):
        queue.push({"iid": {"a": 1}})
    with pytest.raises(Unsupported) as refused:
        queue.push(1, unique="key")
    assert refused.value.capability == Capability.UNIQUE
    with blocking.connect(f"{url}?key=customer") as other:
        other.queue("shop").push_many([{"customer": 7, "n": 1}, {"customer": 7, "n": 2}])
        assert len(other.queue("shop").reserve_many(2, timeout=PATIENCE)) == 1


async def test_two_that_push_the_first_job_of_a_key_at_the_same_time_lose_none(url: str) -> None:
    async with aio.connect(url) as one, aio.connect(url) as other:
        for number in range(20):
            queues = [store.queue("mail") for store in (one, other) for _ in range(2)]
            await asyncio.gather(*(queue.push({"iid": f"key{number}"}) for queue in queues))
        assert await one.queue("mail").total() == 80


def test_empty_documents_of_keuss_make_nobody_busy(store: Store, mongo_server: MongoServer) -> None:
    with mongo_server.client() as client:
        jobs = client[store._driver._link.database_name]["mail"]
        now = client.admin.command("hello")["localTime"]
        jobs.insert_one({"_id": "old", "q": [], "qcnt": 0, "mature": now, "tries": 1})
        assert store.queue("mail").next_mature() is None
        assert store.queue("mail").pop(timeout=0) is None
        store.queue("mail").push({"iid": "old"})
        assert wait_until(lambda: store.queue("mail").pop(timeout=1)).payload == {"iid": "old"}
