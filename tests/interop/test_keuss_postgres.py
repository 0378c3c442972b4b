"""Node Keuss 2.0.6 and Penstock on one PostgreSQL: each works on the other's jobs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.errors import LeaseLost
from penstock.job import JobState
from penstock.queues import blocking
from penstock.queues.blocking import Queue, Store
from penstock.queues.dead_letter import DeadLetter
from tests.interop.keuss_peer import (
    KeussElement,
    KeussPeer,
    KeussQueue,
    postgres_options,
    redis_pubsub,
    redis_stats,
)
from tests.processes import wait_until
from tests.servers import PostgresServer, RedisServer

pytestmark = pytest.mark.interop

PATIENCE = 20.0
PATIENCE_MS = 20_000
FAR_S = 2_000_000_000.5  # in 2033
DEAD = {"queue": "dead", "max_ko": 1}  # as Keuss says it: the third failure is the last


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Both:
    """One queue, seen from both sides."""

    ours: Queue
    theirs: KeussQueue
    store: Store
    database: Any

    def columns(self) -> list[tuple[Any, ...]]:
        """What anybody can see of the tables."""
        select = """SELECT table_name, column_name, data_type, character_maximum_length, is_nullable, column_default
            FROM information_schema.columns WHERE table_name LIKE '\\_k\\_%' ORDER BY table_name, ordinal_position"""
        return list(self.database.execute(select).fetchall())

    def indexes(self) -> list[str]:
        select = "SELECT indexdef FROM pg_indexes WHERE tablename LIKE '\\_k\\_%' ORDER BY 1"
        return [row[0] for row in self.database.execute(select).fetchall()]


@pytest.fixture
def both(keuss: KeussPeer, postgres_server: PostgresServer, postgres_database: str) -> Iterator[Both]:
    name = postgres_database.rpartition("/")[2]
    factory = keuss.open(
        "postgres", postgres_options(postgres_server, name), reserve_delay=60, pollInterval=200, deadletter=DEAD
    )
    options = {"lease": 60, "poll": 0.2, "dead_letter": DeadLetter(max_ko=1, queue="dead")}
    with blocking.connect(postgres_database, **options) as store, postgres_server.connect(name) as database:
        yield Both(store.queue("mail"), factory.queue("mail"), store, database)
    factory.close()


PAYLOADS: list[Any] = [
    {"a": 1, "list": [1, "zwei", []], "o": {}},
    ["x", None],
    "text",
    "",
    4.5,
    0,
    True,
    b"\x00\xff\x01",
    b"",
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=repr)
def test_payloads_and_headers_in_both_directions(both: Both, payload: Any) -> None:
    headers = {"h": 1, "text": "Grüße"}
    job_id = both.ours.push(payload, headers=headers)
    element = both.theirs.pop(PATIENCE_MS)
    assert (element.id, element.payload, element.hdrs, element.tries) == (job_id, payload, headers, 0)
    element_id = both.theirs.push(payload, hdrs=headers)
    job = both.ours.pop(timeout=PATIENCE)
    assert (job.id, job.headers, job.tries, job.created) == (element_id, headers, 0, None)
    read = payload if payload != b"" else ""  # no bytes are text, too
    assert (job.payload, type(job.payload)) == (read, type(read))


@pytest.mark.parametrize(
    ("buffer", "payload"), [(b'{"a": 1}', {"a": 1}), (b"text", "text"), (b"\x00\xff", b"\x00\xff"), (b"", "")]
)
def test_a_buffer_stays_one_through_nack_dead_letters_and_redrive(
    both: Both, keuss: KeussPeer, postgres_server: PostgresServer, buffer: bytes, payload: Any
) -> None:
    both.theirs.push(buffer)
    job = both.ours.reserve(timeout=PATIENCE)
    assert (job.payload, type(job.payload), job.body) == (payload, type(payload), buffer)
    job.nack()
    element = both.theirs.reserve(PATIENCE_MS)  # what we gave back
    assert element.payload == buffer
    both.theirs.ko(element, now_ms() - 1)
    both.ours.reserve(timeout=PATIENCE).nack()  # its last try
    dead = both.store.queue("dead")
    (job,) = dead.peek()
    assert (job.payload, job.body) == (payload, buffer)
    (stored,) = both.database.execute("SELECT _pl->>'type' FROM _k_tbl_dead").fetchone()
    assert stored == "buffer"
    assert dead.redrive() == 1
    assert both.theirs.pop(PATIENCE_MS).payload == buffer


def test_the_tables_that_each_makes_are_the_same(
    keuss: KeussPeer, postgres_server: PostgresServer, postgres_database: str
) -> None:
    other = postgres_server.create_database(f"{postgres_database.rpartition('/')[2]}_theirs")
    names = ['odd "Name"', "x" * 56]
    with blocking.connect(postgres_database) as store:
        for name in names:
            store.queue(name).push(1)
    factory = keuss.open("postgres", postgres_options(postgres_server, other.rpartition("/")[2]))
    for name in names:
        factory.queue(name)
    factory.close()
    seen = []
    for url in (postgres_database, other):
        with postgres_server.connect(url.rpartition("/")[2]) as database:
            both = Both(None, None, None, database)  # type: ignore[arg-type]  # only the tables matter here
            seen.append((both.columns(), both.indexes()))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 10


def test_jobs_come_in_the_order_of_their_maturity(both: Both) -> None:
    now = time.time()
    for number in range(6):
        when = now - 10 + number
        both.ours.push(number, at=when) if number % 2 else both.theirs.push(number, mature=when)
    assert [both.ours.pop(timeout=PATIENCE).payload for _ in range(3)] == [0, 1, 2]
    assert [both.theirs.pop(PATIENCE_MS).payload for _ in range(3)] == [3, 4, 5]


def test_a_schedule_holds_on_both_sides(both: Both) -> None:
    both.ours.push("ours", at=FAR_S)
    both.theirs.push("theirs", mature=FAR_S + 1)
    assert (both.theirs.sched_size(), both.theirs.next_t()) == (2, int(FAR_S * 1000))
    assert (both.ours.scheduled(), both.ours.next_mature()) == (2, FAR_S)
    assert both.ours.pop(timeout=0) is None
    assert both.theirs.pop(50) is None
    both.ours.push("soon", delay=0.3)
    began = now_ms()
    assert both.theirs.pop(PATIENCE_MS).payload == "soon"
    assert now_ms() - began > 200
    both.theirs.push("soon too", delay=0.3)
    assert both.ours.pop(timeout=PATIENCE).payload == "soon too"


def test_what_one_reserved_the_other_does_not_get(both: Both) -> None:
    both.ours.push("a")
    assert both.ours.reserve(timeout=PATIENCE).payload == "a"
    assert both.theirs.pop(50) is None
    assert (both.theirs.resv_size(), both.theirs.total_size(), both.theirs.size()) == (1, 1, 0)
    both.theirs.push("b")
    assert both.theirs.reserve(PATIENCE_MS).payload == "b"
    assert both.ours.pop(timeout=0) is None
    assert both.ours.sizes() == (2, 0, 0, 2)
    assert [job.state for job in both.ours.peek(5, state=None)] == [JobState.RESERVED] * 2


def test_we_end_by_id_what_node_reserved(both: Both) -> None:
    assert both.ours.type == both.theirs.status()["type"]
    both.theirs.push("a")
    element = both.theirs.reserve(PATIENCE_MS)
    both.ours.nack(element.id)
    assert both.theirs.ok(element) is False
    again = both.theirs.reserve(PATIENCE_MS)
    assert (again.id, again.tries) == (element.id, 1)
    both.ours.ack(again.id)
    assert both.theirs.ok(again) is False


def test_node_commits_what_we_reserved(both: Both) -> None:
    job_id = both.ours.push("x")
    job = both.ours.reserve(timeout=PATIENCE)
    assert both.theirs.ok(job_id) is True
    with pytest.raises(LeaseLost):
        job.ack()
    assert both.ours.total() == 0


def test_node_returns_what_we_reserved_and_our_lease_is_over(both: Both) -> None:
    job_id = both.ours.push("x")
    stale = both.ours.reserve(timeout=PATIENCE)
    assert both.theirs.ko(job_id, now_ms() - 1) is True
    element = both.theirs.reserve(PATIENCE_MS)
    assert (element.id, element.tries) == (job_id, 1)
    for call in (stale.ack, stale.nack, stale.extend, lambda: stale.fail("late")):
        with pytest.raises(LeaseLost):
            call()
    assert both.theirs.ok(element) is True


def test_a_lease_that_ran_out_goes_to_node_and_ours_is_stale(both: Both) -> None:
    both.ours.push("x")
    stale = both.ours.reserve(timeout=PATIENCE, lease=0.1)
    element = both.theirs.reserve(PATIENCE_MS)
    assert (element.payload, element.tries) == ("x", 1)
    assert both.ours.ack_many([stale]) == [False]
    assert both.theirs.ko(element, now_ms() - 1) is True
    assert both.ours.reserve(timeout=PATIENCE).tries == 2


def test_tries_are_counted_across_both(both: Both) -> None:
    both.theirs.push("x", tries=1)
    assert (
        both.theirs.ko(both.theirs.reserve(PATIENCE_MS).id, now_ms() - 1) is True
    )  # an id alone is never a dead letter
    job = both.ours.reserve(timeout=PATIENCE)
    assert job.tries == 2
    both.ours.release_many([job])
    assert both.theirs.reserve(PATIENCE_MS).tries == 2


def test_dead_letters_of_ours_are_readable_there(both: Both, keuss: KeussPeer) -> None:
    job_id = both.ours.push({"poison": True}, headers={"mine": "x"})
    for _ in range(3):
        both.ours.reserve(timeout=PATIENCE).nack(error="no such address")
    (row,) = both.database.execute("SELECT _id FROM _k_tbl_dead").fetchall()
    assert row[0] == job_id
    (dead,) = both.store.queue("dead").peek()
    headers = {"mine": "x", "x-dl-from-queue": "mail", "x-dl-tries": 2, "x-dl-error": "no such address"}
    assert {**dead.headers, "x-dl-t": None} == {**headers, "x-dl-t": None}


def test_dead_letters_of_keuss_are_redriven_by_us(both: Both) -> None:
    both.theirs.push("poison", hdrs={"mine": 1})
    results = [both.theirs.ko(both.theirs.reserve(PATIENCE_MS), now_ms() - 1) for _ in range(3)]
    assert results == [True, True, "deadletter"]
    dead = both.store.queue("dead")
    (job,) = dead.peek()
    assert (job.payload, job.headers["x-dl-from-queue"], job.headers["x-dl-tries"]) == ("poison", "mail", 2)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", job.headers["x-dl-t"])
    assert dead.redrive() == 1
    element = both.theirs.pop(PATIENCE_MS)
    assert (element.payload, element.tries, element.hdrs) == ("poison", 0, {"mine": 1})


def test_each_removes_what_the_other_pushed(both: Both) -> None:
    ours, theirs = both.ours.push("ours", delay=100), both.theirs.push("theirs", delay=100)
    assert both.theirs.remove(ours) is True
    assert both.ours.remove(theirs) == [True]
    reserved = both.ours.push("reserved")
    both.ours.reserve(timeout=PATIENCE)
    assert both.theirs.remove(reserved) is False


def test_a_unique_key_is_free_again_when_node_ended_the_job(both: Both) -> None:
    first = both.ours.push("x", unique="order-17", unique_for=3600)
    second = both.ours.push("y", unique="order-18")
    assert both.ours.push("x", unique="order-17") == first
    assert {both.theirs.pop(PATIENCE_MS).id, both.theirs.pop(PATIENCE_MS).id} == {first, second}
    assert both.ours.push("y", unique="order-18") != second
    assert both.ours.push("x", unique="order-17") == first  # for an hour after its end
    both.store.shift_clock(3601)
    assert both.ours.push("x", unique="order-17") != first


def test_a_claim_is_nothing_to_node(both: Both) -> None:
    both.ours.push_many([1, 2, 3])
    assert len(both.ours.claim("batch", 2)) == 2
    assert both.theirs.pop(PATIENCE_MS).payload == 3
    assert both.theirs.pop(50) is None
    assert both.ours.ack_claim("batch") == 2


def test_node_reads_jobs_of_every_life(both: Both) -> None:
    """Pushed, extended, given back, released, moved, redriven: Keuss sees an element like its own."""
    both.ours.push("x", headers={"h": 1})
    job = both.ours.reserve(timeout=PATIENCE)
    job.extend(100)
    job.nack()
    both.ours.release_many(both.ours.reserve_many(1))
    both.ours.reserve(timeout=PATIENCE).fail("no")
    both.store.queue("dead").redrive()
    element = both.theirs.reserve(PATIENCE_MS)
    assert (element.payload, element.tries, element.hdrs) == ("x", 0, {"h": 1})
    assert sorted(element.raw) == ["_id", "hdrs", "mature", "payload", "reserved", "tries"]
    assert both.theirs.ok(element) is True


def test_both_work_on_one_queue_at_the_same_time(both: Both) -> None:
    """Every job goes to one of them. Keuss' pops have no time limit: after one they might take a job in the dark."""
    waiting = [both.theirs.begin_pop(reserve=bool(number % 2)) for number in range(40)]
    taken: list[int] = []
    for begin in range(0, 120, 10):
        both.ours.push_many(range(begin, begin + 5))
        for number in range(begin + 5, begin + 10):
            both.theirs.push(number)
        jobs = both.ours.reserve_many(7)
        assert both.ours.ack_many(jobs) == [True] * len(jobs)
        taken += [job.payload for job in jobs]
    for raw in (one.result(PATIENCE) for one in waiting):
        element = KeussElement.of(raw)
        taken.append(element.payload)
        if element.raw["reserved"] is not None:
            assert both.theirs.ok(element) is True
    taken += [job.payload for job in both.ours.pop_many(120)]
    assert sorted(taken) == list(range(120))
    assert both.ours.total() == 0


def test_wake_ups_pauses_and_counters_are_shared_through_redis(
    keuss: KeussPeer, postgres_server: PostgresServer, postgres_database: str, redis_server: RedisServer
) -> None:
    name = postgres_database.rpartition("/")[2]
    shared = {"signaller": redis_pubsub(redis_server), "stats": redis_stats(redis_server)}
    factory = keuss.open("postgres", postgres_options(postgres_server, name), name=name, pollInterval=300_000, **shared)
    theirs = factory.queue("mail")
    url = redis_server.url
    with blocking.connect(postgres_database, namespace=name, signal=url, stats=url, poll=300) as store:
        ours = store.queue("mail")
        waiting = theirs.begin_pop()
        wait_until(lambda: theirs.consumers() == 1)
        ours.push("wake up")
        assert KeussElement.of(waiting.result(PATIENCE)).payload == "wake up"
        ours.pause()
        assert theirs.paused() is True
        assert theirs.pause(False) is False
        wait_until(lambda: not ours.paused())
        theirs.push("for us")
        assert ours.pop(timeout=PATIENCE).payload == "for us"
        wait_until(lambda: {"push": 2, "pop": 2}.items() <= ours.stats().items())
        assert theirs.stats() == {"put": 2, "get": 2}
    factory.close()
