"""Node Keuss 2.0.6 (bucket-mongo-safe) and Penstock (mongodb+bucket) on one MongoDB: each works on the other's jobs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.errors import LeaseLost
from penstock.job import JobState
from penstock.queues import blocking
from penstock.queues.blocking import Queue, Store
from penstock.queues.dead_letter import DeadLetter
from tests.interop.keuss_peer import KeussError, KeussFactory, KeussPeer, KeussQueue, mongo_capped, mongo_options
from tests.processes import wait_until
from tests.servers import MongoServer

pytestmark = pytest.mark.interop

PATIENCE = 20.0
PATIENCE_MS = 20_000
CHANNEL = "signal_collection"
# Milliseconds: what Keuss keeps in memory is stored soon.
SOON = {"bucket_max_wait": 20, "state_flush_period": 20}
LEASE_S = 60


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Both:
    """One queue, seen from both sides."""

    ours: Queue
    theirs: KeussQueue
    store: Store
    factory: KeussFactory
    jobs: Any  # its collection

    def bucket(self) -> dict[str, Any]:
        """Return the only bucket, once it is stored."""
        (found,) = wait_until(lambda: list(self.jobs.find()))
        return found


def _factory(keuss: KeussPeer, server: MongoServer, name: str) -> KeussFactory:
    return keuss.open(
        "bucket-mongo-safe",
        mongo_options(server, name),
        signaller=mongo_capped(server, name, CHANNEL),
        reserve_delay=LEASE_S,
        pollInterval=100,
        deadletter={"queue": "dead", "max_ko": 1},
        **SOON,
    )


@pytest.fixture
def name() -> str:
    return f"interop_buckets_{now_ms()}"


@pytest.fixture
def both(keuss: KeussPeer, mongo_server: MongoServer, name: str) -> Iterator[Both]:
    factory = _factory(keuss, mongo_server, name)
    options = {"lease": LEASE_S, "poll": 0.1, "dead_letter": DeadLetter(max_ko=1, queue="dead"), "channel": CHANNEL}
    url = mongo_server.url("mongodb+bucket", name)
    with blocking.connect(url, **options) as store, mongo_server.client() as client:
        yield Both(store.queue("mail"), factory.queue("mail"), store, factory, client[name]["mail"])
    factory.close()


PAYLOADS: list[Any] = [{"a": 1, "list": [1, "zwei", []], "o": {}, "null": None}, "text", 4.5, 2**40, True, b"\x00\xff"]


def test_payloads_and_headers_in_both_directions(both: Both) -> None:
    headers = {"h": 1, "text": "Grüße"}
    for payload in PAYLOADS:
        job_id = both.ours.push(payload, headers=headers)
        element = both.theirs.pop(PATIENCE_MS)
        assert (element.id, element.payload, element.hdrs, element.tries) == (job_id, payload, headers, 0)
        element_id = both.theirs.push(payload, hdrs=headers)
        job = both.ours.pop(timeout=PATIENCE)
        assert (job.id, job.payload, job.headers, job.tries) == (element_id, payload, headers, 0)
    wait_until(lambda: both.jobs.count_documents({}) == 0)


@pytest.mark.parametrize(("payload", "seen"), [(0, b"0"), (False, b"false"), ("", b'""')])
def test_what_keuss_misreads_is_stored_as_bytes(both: Both, payload: Any, seen: bytes) -> None:
    both.ours.push(payload)
    assert both.theirs.pop(PATIENCE_MS).payload == seen
    both.theirs.push(payload)
    job = both.ours.pop(timeout=PATIENCE)
    assert (job.payload, type(job.payload)) == (payload, type(payload))


def test_documents_and_indexes_are_alike(both: Both, mongo_server: MongoServer) -> None:
    both.ours.push({"a": 1}, headers={"h": 1}, delay=100)
    both.theirs.push({"a": 1}, hdrs={"h": 1}, delay=100)
    ours, theirs = wait_until(lambda: both.jobs.count_documents({}) == 2 and list(both.jobs.find().sort("_id")))
    assert {field: type(value) for field, value in ours.items()} == {field: type(v) for field, v in theirs.items()}
    assert ours["b"] == theirs["b"] == [{"__p": {"a": 1}, "__h": {"h": 1}}]
    indexes = both.jobs.index_information()
    assert indexes.pop("penstock.next_1")["sparse"]  # ours: jobs that are ready within buckets that are reserved
    with mongo_server.client() as client:
        other = both.factory.queue("other")
        other.push(1)
        made = client[both.jobs.database.name]["other"].index_information()
    assert indexes == made


def test_reservations_of_each_are_kept_by_the_other(both: Both) -> None:
    both.ours.push_many(["one", "two"])
    job = both.ours.reserve(timeout=PATIENCE)
    assert both.theirs.reserve(300) is None
    assert (both.theirs.size(), both.theirs.resv_size(), both.theirs.total_size()) == (0, 2, 2)
    both.ours.reserve(timeout=PATIENCE).ack()
    job.nack()
    element = both.theirs.reserve(PATIENCE_MS)
    assert (element.id, element.payload, element.tries) == (job.id, "one", 1)
    assert both.ours.reserve(timeout=0) is None
    assert tuple(both.ours.sizes()) == (1, 0, 0, 1)
    with pytest.raises(LeaseLost):
        job.ack()
    assert both.theirs.ko(element, now_ms() - 1) is True
    job = both.ours.reserve(timeout=PATIENCE)
    assert job.tries == 2
    assert both.theirs.ok(job.id) is False  # it no longer has the bucket
    job.ack()
    assert both.jobs.count_documents({}) == 0


def test_a_half_done_bucket_goes_on_at_the_other_side(both: Both) -> None:
    both.theirs.push("a")
    both.theirs.push("b")
    both.theirs.push("c")
    wait_until(lambda: both.ours.total() == 3)
    first, second, third = (both.theirs.reserve(PATIENCE_MS) for _ in range(3))
    assert both.theirs.ok(first) is True
    assert both.theirs.ko(second, now_ms() - 1) is True
    assert both.theirs.ko(third, now_ms() - 1) is True
    jobs = [both.ours.reserve(timeout=PATIENCE) for _ in range(2)]
    assert sorted((job.payload, job.tries) for job in jobs) == [("b", 1), ("c", 1)]
    assert both.ours.ack_many(jobs) == [True, True]
    assert both.ours.total() == 0


def test_schedules_and_removals_of_each_are_seen_by_the_other(both: Both) -> None:
    later = now_ms() + 100_000
    removed = both.ours.push("ours", at=later / 1000)
    assert both.theirs.next_t() == later
    assert both.theirs.remove(removed) is True
    element_id = both.theirs.push("theirs", delay=100)
    (job,) = wait_until(lambda: both.ours.peek(state=JobState.SCHEDULED))
    assert (job.id, both.ours.remove(element_id)) == (element_id, [True])
    assert both.theirs.total_size() == 0
    both.store.shift_clock(200)
    assert both.ours.pop(timeout=0) is None
    assert both.jobs.count_documents({}) == 0  # also the one that Keuss emptied and left


def test_dead_letters_of_each_are_the_others(both: Both) -> None:
    both.ours.push("ours", headers={"h": 1})
    for _ in range(3):
        both.theirs.ko(both.theirs.reserve(PATIENCE_MS), now_ms() - 1)
    dead = both.store.queue("dead")
    (letter,) = wait_until(dead.peek)
    assert (letter.payload, letter.headers["x-dl-from-queue"], letter.headers["h"]) == ("ours", "mail", 1)
    assert dead.redrive() == 1
    assert both.theirs.pop(PATIENCE_MS).payload == "ours"
    both.theirs.push("theirs")
    for _ in range(3):
        both.ours.reserve(timeout=PATIENCE).nack()
    element = both.factory.queue("dead").pop(PATIENCE_MS)
    assert (element.payload, element.hdrs["x-dl-from-queue"], element.hdrs["x-dl-tries"]) == ("theirs", "mail", 2)


def test_jobs_of_both_go_to_consumers_of_both_at_the_same_time(both: Both) -> None:
    count = 150
    taken: list[Any] = []
    is_over = threading.Event()

    def consume(take: Callable[[], Any], end: Callable[[Any], Any]) -> None:
        while not is_over.is_set():
            with suppress(KeussError):  # the end of a wait
                if (job := take()) is not None:
                    taken.append(job.payload)
                    end(job)

    def ended(element: Any) -> None:
        assert both.theirs.ok(element) is True

    consumers = [
        (lambda: both.ours.reserve(timeout=1), lambda job: job.ack()),
        (lambda: both.ours.pop(timeout=1), lambda job: None),
        # Without a limit: Keuss may give an element to a wait whose time is over.
        (both.theirs.reserve, ended),
        (both.theirs.pop, lambda element: None),
    ]
    threads = [threading.Thread(target=consume, args=consumer) for consumer in consumers]
    for thread in threads:
        thread.start()
    for number in range(count):
        both.theirs.push(f"theirs {number}")
        if number % 10 == 0:
            both.ours.push_many([f"ours {at}" for at in range(number, number + 10)])
    wait_until(lambda: len(taken) >= 2 * count, PATIENCE)
    is_over.set()
    wait_until(lambda: both.theirs.cancel() or not any(thread.is_alive() for thread in threads), PATIENCE)
    wanted = Counter([f"{side} {number}" for side in ("ours", "theirs") for number in range(count)])
    assert Counter(taken) == wanted
    wait_until(lambda: both.jobs.count_documents({}) == 0)


def test_the_bucket_of_a_killed_node_process_comes_to_us(
    both: Both, start_keuss: Callable[[], KeussPeer], mongo_server: MongoServer, name: str
) -> None:
    both.ours.push_many(range(1, 6))
    peer = start_keuss()
    theirs = _factory(peer, mongo_server, name).queue("mail")
    first, second = theirs.reserve(PATIENCE_MS), theirs.reserve(PATIENCE_MS)
    assert (first.payload, theirs.ok(first), second.payload) == (1, True, 2)
    wait_until(lambda: both.bucket()["n"] == 4)
    peer.kill_hard()
    assert both.ours.reserve(timeout=0) is None
    both.store.shift_clock(LEASE_S + 1)
    jobs = both.ours.reserve_many(10, timeout=PATIENCE)
    assert [(job.payload, job.tries) for job in jobs] == [(number, 1) for number in (2, 3, 4, 5)]
    assert both.ours.ack_many(jobs) == [True] * 4
    assert both.jobs.count_documents({}) == 0


def test_what_we_leave_in_a_bucket_comes_to_node_when_the_leases_are_over(both: Both) -> None:
    both.ours.push_many([1, 2, 3])
    both.ours.reserve(timeout=PATIENCE, lease=1).ack()
    both.ours.reserve(timeout=PATIENCE, lease=1)
    elements = [both.theirs.reserve(PATIENCE_MS) for _ in range(2)]
    assert [element.payload for element in elements] == [2, 3]
    assert [both.theirs.ok(element) for element in elements] == [True, True]
    wait_until(lambda: both.jobs.count_documents({}) == 0)
