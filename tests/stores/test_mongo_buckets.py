"""What is the bucket store's own: leases within a bucket, pushes that share one, and buffered pushes."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Push
from penstock.errors import BadPayload, CallerError, ConnectionLost, LeaseLost
from penstock.job import Lease
from penstock.queues import aio, blocking
from penstock.queues.blocking import Queue, Store
from tests.processes import need_module, wait_until
from tests.server_fixtures import StartMongo
from tests.servers import MongoServer
from tests.stores.harness import PATIENCE

pytestmark = pytest.mark.system

QUICK = "serverSelectionTimeoutMS=200&connectTimeoutMS=200"


@pytest.fixture
def url(mongo_database: str) -> str:
    """The URL of an empty database, in this layout."""
    return mongo_database.replace("mongodb:", "mongodb+bucket:", 1)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with blocking.connect(url, lease=1000) as store:
        yield store


def _with_a_lease_over(store: Store) -> tuple[Queue, list[Any], Any]:
    """Return a queue with one bucket, three jobs of it whose leases ran out, and a fourth that is leased."""
    queue = store.queue("mail")
    queue.push_many(["a", "b", "c", "d"])
    late = queue.reserve_many(3, timeout=PATIENCE, lease=10)
    held = queue.reserve(timeout=PATIENCE)
    store.shift_clock(20)
    return queue, late, held


@pytest.mark.parametrize("how", ["ack", "pop", "remove", "reserve"])
def test_a_late_batch_ends_only_what_nobody_has_taken_since(store: Store, how: str) -> None:
    queue, late, held = _with_a_lease_over(store)
    if how == "remove":
        assert queue.remove(late[0].id) == [True]
    elif how == "pop":
        assert queue.pop(timeout=PATIENCE).payload == "a"
    else:
        again = queue.reserve(timeout=PATIENCE)
        assert again.payload == "a"
        if how == "ack":
            again.ack()
    assert queue.ack_many(late) == [False, True, True]
    assert [job.payload for job in queue.jobs()] == (["a", "d"] if how == "reserve" else ["d"])
    held.ack()
    if how == "reserve":
        again.ack()
    assert queue.total() == 0


def test_two_takes_from_one_bucket_in_one_call_are_both_leased(store: Store) -> None:
    queue = store.queue("mail")
    queue.push_many(["a", "b", "c"])
    queue.reserve(timeout=PATIENCE).nack(delay=10)  # from now on the process has b and c at hand
    store.shift_clock(20)
    jobs = store._driver.reserve("mail", 3, 1_000_000)  # work on all of them begins at once
    assert sorted(job.payload for job in jobs) == ["a", "b", "c"]
    assert tuple(queue.sizes()) == (3, 0, 0, 3)
    assert store._driver.ack("mail", [Lease(job.id, job.token) for job in jobs]) == [True] * 3


def test_a_batch_of_many_buckets_ends_only_the_leases_that_hold(store: Store) -> None:
    queue = store.queue("mail")
    queue.push_many(["a", "b"])
    queue.push_many(["c", "d"])
    late = queue.reserve_many(4, timeout=PATIENCE, lease=10)
    store.shift_clock(20)
    again = queue.reserve_many(3, timeout=PATIENCE)
    assert [job.payload for job in again] == ["a", "b", "c"]
    # An old lease and a new one of one bucket, and a bucket of which both are new.
    assert queue.ack_many([late[0], late[1], again[2], late[3]]) == [False, False, True, False]
    assert queue.ack_many([late[2], *again[:2]]) == [False, True, True]
    assert [job.payload for job in queue.jobs()] == ["d"]


def test_a_bucket_that_another_process_looks_at_is_deleted_later(store: Store, mongo_server: MongoServer) -> None:
    with mongo_server.client() as client:
        jobs = client[store._driver._link.database_name]["mail"]
        now = jobs.database.command("hello")["localTime"]
        jobs.insert_one({"b": [None], "n": 0, "mature": now, "penstock": {"count": 1, "ended": {"mark": 1}}})
        assert store.queue("mail").pop(timeout=0) is None
        assert jobs.count_documents({}) == 1
        store.shift_clock(70)
        assert store.queue("mail").pop(timeout=0) is None
        assert jobs.count_documents({}) == 0


def test_nobody_waits_for_the_end_of_a_lease_that_another_one_followed(store: Store) -> None:
    queue, _, _ = _with_a_lease_over(store)
    assert len(queue.reserve_many(3, timeout=PATIENCE)) == 3
    assert queue.next_mature() > store._driver.now_ms() / 1000 + 900


def test_a_wrong_number_of_jobs_neither_loses_one_nor_stays_for_ever(store: Store, mongo_server: MongoServer) -> None:
    queue = store.queue("mail")
    queue.push_many(["a", "b"])
    with mongo_server.client() as client:
        jobs = client[store._driver._link.database_name]["mail"]
        jobs.update_one({}, {"$set": {"n": 1}})
        queue.reserve(timeout=PATIENCE).ack()
        queue.reserve(timeout=PATIENCE).ack()
        assert queue.pop(timeout=0) is None
        jobs.insert_one({"b": [None], "n": 1, "mature": jobs.database.command("hello")["localTime"]})
        assert queue.pop(timeout=0) is None
        assert jobs.count_documents({}) == 0


def test_jobs_that_move_keep_the_time_at_which_they_were_made(store: Store, mongo_server: MongoServer) -> None:
    with mongo_server.client() as client:
        jobs = client[store._driver._link.database_name]["mail"]
        now = jobs.database.command("hello")["localTime"]
        old = need_module("bson").ObjectId("5f5e10000000000000000001")
        jobs.insert_one({"_id": old, "b": [{"__p": "old", "__h": {}}], "n": 1, "mature": now})
    store.queue("mail").reserve(timeout=PATIENCE).move("other")
    (job,) = store.queue("other").peek()
    assert job.created == old.generation_time.timestamp()
    assert job.id != f"{old}:0"


def test_pushes_of_many_threads_are_all_stored(store: Store) -> None:
    queue = store.queue("mail")
    ids: list[str] = []
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=lambda: ids.extend([queue.push(number) for number in range(100)])) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    finally:
        sys.setswitchinterval(before)
    assert len(set(ids)) == 600
    assert {job.id for job in queue.jobs()} == set(ids)


def test_large_jobs_have_buckets_that_mongodb_takes(store: Store) -> None:
    queue = store.queue("mail")
    # As BSON they are several times as large as their JSON.
    queue.push_many([[0] * 400_000] * 6)
    assert [len(job.payload) for job in queue.pop_many(6, timeout=PATIENCE)] == [400_000] * 6
    with pytest.raises(BadPayload, match="must be at most"):
        queue.push("x" * 17_000_000)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("bucket_size=0", "bucket_size must be 1 to 100000 jobs, got '0'"),
        ("bucket_wait=0", "bucket_wait must be above 0 and at most 60 seconds, got '0'"),
        ("buffered=maybe", "buffered must be yes or no, got 'maybe'"),
    ],
)
def test_options_that_are_refused(option: str, words: str) -> None:
    with pytest.raises(CallerError, match=words):
        blocking.connect(f"mongodb+bucket://h/db?{option}")


# Buffered pushes.


@pytest.mark.parametrize("end", ["drain", "close"])
async def test_a_buffered_push_returns_before_it_is_stored(url: str, mongo_server: MongoServer, end: str) -> None:
    with mongo_server.client() as client:
        async with aio.connect(f"{url}?buffered=yes&bucket_wait=60") as store:
            jobs = client[store._driver._link.database_name]["mail"]
            queue = store.queue("mail")
            ids = [await queue.push(number) for number in range(3)]
            assert jobs.count_documents({}) == 0
            if end == "drain":
                await queue.drain()
                assert jobs.count_documents({}) == 1
        (bucket,) = jobs.find()
        assert ([entry["__p"] for entry in bucket["b"]], bucket["n"]) == ([b"0", 1, 2], 3)
        assert ids == [f"{bucket['_id']}:{index}" for index in range(3)]


async def test_a_buffered_push_is_stored_after_its_time_or_when_its_bucket_is_full(url: str) -> None:
    async with aio.connect(url, poll=300) as reader, aio.connect(f"{url}?buffered=yes&bucket_wait=0.05") as store:
        await store.queue("mail").push("by time")
        assert (await reader.queue("mail").pop(timeout=PATIENCE)).payload == "by time"
    async with aio.connect(url) as reader, aio.connect(f"{url}?buffered=yes&bucket_wait=60&bucket_size=3") as store:
        queue = store.queue("mail")
        await queue.push_many([1, 2])
        assert await reader.queue("mail").total() == 0
        await queue.push(3)
        assert await reader.queue("mail").total() == 3


def test_a_buffered_push_of_a_program_without_an_event_loop_is_stored_after_its_time(url: str) -> None:
    with blocking.connect(f"{url}?buffered=yes&bucket_wait=0.05") as store:
        store.queue("mail").push("work")
        assert store.queue("mail").pop(timeout=PATIENCE).payload == "work"


def test_what_could_not_be_stored_is_tried_again(start_mongo: StartMongo, caplog: pytest.LogCaptureFixture) -> None:
    server = start_mongo()
    url = f"{server.url('mongodb+bucket')}?buffered=yes&bucket_wait=0.05&{QUICK}"
    with blocking.connect(url) as store:
        queue = store.queue("mail")
        queue.push("first")
        wait_until(queue.total)
        server.kill_hard()
        ids = store._driver._inboxes["mail"].add([_new(store, "second")], 1000, 1000, None)
        wait_until(lambda: "is kept, and stored later" in caplog.text)
        with pytest.raises(ConnectionLost):
            queue.drain()
        server.start()
        wait_until(lambda: store.queue("mail").total() == 2)
        assert [job.payload for job in store.queue("mail").jobs()] == ["second", "first"]
        assert ids[0] in {job.id for job in store.queue("mail").jobs()}


def _new(store: Store, payload: object) -> Any:
    """Return a job as a queue hands it to the driver: the server's clock can't be asked."""
    return store.queue("mail")._new(Push(payload))


def test_an_insert_whose_reply_was_lost_is_not_stored_twice(url: str) -> None:
    with blocking.connect(f"{url}?buffered=yes&bucket_wait=60") as store:
        queue = store.queue("mail")
        queue.push_many([1, 2])
        box = store._driver._inboxes["mail"]
        batch = box._batch
        box.flush()
        box._late.append(batch)  # as after an error
        queue.push(3)
        box.flush()
        assert sorted(job.payload for job in queue.jobs()) == [1, 2, 3]


def test_pushes_fail_when_too_much_is_buffered(start_mongo: StartMongo, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start_mongo()
    with blocking.connect(f"{server.url('mongodb+bucket')}?buffered=yes&bucket_wait=60&bucket_size=1&{QUICK}") as store:
        queue = store.queue("mail")
        queue.push(1)
        server.kill_hard()
        box = store._driver._inboxes["mail"]
        monkeypatch.setattr(sys.modules[type(box).__module__], "WAITING_MAX", 2)
        jobs = [_new(store, number) for number in (2, 3, 4)]
        for job in jobs[:2]:
            box.add([job], 1000, 1000, None)
        with pytest.raises(ConnectionLost):
            box.add([jobs[2]], 1000, 1000, None)
        server.start()
        box.flush()
        assert sorted(job.payload for job in queue.jobs()) == [1, 2, 3]


def test_close_does_not_raise_for_a_server_that_is_gone(
    start_mongo: StartMongo, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_mongo()
    url = f"{server.url('mongodb+bucket')}?{QUICK}"
    with (
        caplog.at_level(logging.ERROR, "penstock"),
        blocking.connect(url) as store,
        blocking.connect(f"{url}&buffered=yes&bucket_wait=60") as buffering,
    ):
        store.queue("mail").push_many([1, 2])
        store.queue("mail").reserve(timeout=PATIENCE)  # the other one is at hand
        buffering.queue("mail").push_many([3, 4, 5])
        server.kill_hard()
    assert "3 buffered jobs of 'mail' are lost" in caplog.text


# Processes that are killed.

PRODUCER = """
import sys
from penstock.queues import blocking
with blocking.connect(sys.argv[1]) as store:
    if "buffered" in sys.argv[1]:
        store.queue("mail").push_many(range(100))
        store.queue("mail").drain()
        print("drained", flush=True)
    for number in range(100_000):
        print(store.queue("mail").push(number), flush=True)
"""

CONSUMER = """
import sys
from penstock.queues import blocking
with blocking.connect(sys.argv[1], lease=1000) as store:
    jobs = store.queue("mail").reserve_many(4, timeout=30)
    jobs[1].ack()
    jobs[2].nack(delay=500)
    print("ready", flush=True)
    sys.stdin.read()
"""


def _lines_of_a_killed(program: str, url: str, count: int) -> list[str]:
    """Run a program until it has printed some lines, kill it, and return all that it printed."""
    argv = [sys.executable, "-c", program, url]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(count)]
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
    return lines + rest.split("\n")[:-1]  # the last line may be cut


def test_a_producer_that_is_killed_loses_nothing_that_it_was_told_is_stored(store: Store, url: str) -> None:
    lines = _lines_of_a_killed(PRODUCER, url, 50)
    told = set(lines)
    found = [job.id for job in store.queue("mail").jobs()]
    assert told <= set(found)
    assert len(found) - len(told) <= 1  # the one that was under way
    assert [job.payload for job in store.queue("mail").jobs()] == list(range(len(found)))


def test_a_producer_that_is_killed_loses_only_what_was_not_yet_drained(store: Store, url: str) -> None:
    lines = _lines_of_a_killed(PRODUCER, f"{url}?buffered=yes&bucket_wait=60&bucket_size=1000", 20)
    assert lines[0] == "drained"
    payloads = [job.payload for job in store.queue("mail").jobs()]
    assert payloads[:100] == list(range(100))
    assert (len(payloads) - 100) % 1000 == 0  # what was stored since are full buckets


def test_jobs_of_a_killed_consumer_come_back(store: Store, url: str) -> None:
    queue = store.queue("mail")
    queue.push_many(range(10))
    assert _lines_of_a_killed(CONSUMER, url, 1) == ["ready"]
    # What it had at hand is not lost for the time of a lease: others take it from the bucket.
    at_once = queue.reserve_many(20, timeout=PATIENCE)
    assert [job.payload for job in at_once] == [4, 5, 6, 7, 8, 9]
    assert tuple(queue.sizes()) == (9, 0, 1, 8)
    assert queue.ack_many(at_once) == [True] * 6
    store.shift_clock(501)
    assert queue.pop(timeout=PATIENCE).payload == 2
    store.shift_clock(501)
    back = queue.reserve_many(20, timeout=PATIENCE)
    assert [(job.payload, job.tries) for job in back] == [(0, 1), (3, 1)]
    assert queue.ack_many(back) == [True] * 2
    with pytest.raises(LeaseLost):
        at_once[0].ack()
    assert queue.total() == 0
