"""Node Keuss and we on the same queues in Redis, at the same time, in both directions.

Both versions of Keuss, with redis-pubsub and redis stats, in our namespace; we in the blocking form, and in the other
one where the forms differ: in how they wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import DeadLetter
from penstock.errors import LeaseLost
from penstock.queues import aio, blocking
from tests.interop.keuss_peer import (
    NEW,
    OLD,
    KeussElement,
    KeussFactory,
    KeussPeer,
    redis_options,
    redis_pubsub,
    redis_stats,
)
from tests.processes import wait_until
from tests.servers import RedisServer

pytestmark = pytest.mark.interop

VERSIONS = [NEW, OLD]
PATIENCE = 30.0
PATIENCE_MS = 30_000
NEVER = 300.0  # a poll interval that no test lives to see
PAYLOADS: list[Any] = [{"a": 1, "arr": [], "deep": {"x": [1.5, "é", None, True]}}, ["x", {}], "text", "a/b", 12, 0.25]

OpenKeuss = Callable[..., KeussFactory]


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


def opener(keuss: KeussPeer, server: RedisServer, version: str) -> OpenKeuss:
    """Opens factories of Keuss that hear us and share their statistics."""

    def open_one(backend: str = "redis-oq", **options: Any) -> KeussFactory:
        return keuss.open(
            backend,
            redis_options(server),
            version=version,
            signaller=redis_pubsub(server),
            stats=redis_stats(server),
            pollInterval=int(NEVER * 1000),
            **options,
        )

    return open_one


@pytest.fixture
def open_keuss(keuss: KeussPeer, redis_server: RedisServer, version: str) -> OpenKeuss:
    """Either version of Keuss."""
    return opener(keuss, redis_server, version)


@pytest.fixture
def open_new(keuss: KeussPeer, redis_server: RedisServer) -> OpenKeuss:
    """The newer one, for what the older does not know."""
    return opener(keuss, redis_server, NEW)


def url_of(server: RedisServer, scheme: str = "redis+oq") -> str:
    return f"{scheme}://{server.host}:{server.port}/0"


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[blocking.Store]:
    with blocking.connect(url_of(redis_server), poll=NEVER) as store:
        yield store


@pytest.fixture
def lists(redis_server: RedisServer) -> Iterator[blocking.Store]:
    with blocking.connect(url_of(redis_server, "redis+list"), poll=NEVER) as store:
        yield store


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# Push and pop


@pytest.mark.parametrize("backend", ["redis-oq", "redis-list"])
def test_what_one_pushes_the_other_pops(
    open_keuss: OpenKeuss, store: blocking.Store, lists: blocking.Store, backend: str, queue_name: str
) -> None:
    theirs = open_keuss(backend).queue(queue_name)
    ours = (store if backend == "redis-oq" else lists).queue(queue_name)
    for payload in PAYLOADS:
        ours.push(payload)
        assert theirs.pop(PATIENCE_MS).payload == payload
        theirs.push(payload)
        job = ours.pop(timeout=PATIENCE)
        assert (job.payload, job.tries, job.headers) == (payload, 0, {})
    assert (theirs.size(), ours.size()) == (0, 0)


@pytest.mark.parametrize("backend", ["redis-oq", "redis-list"])
def test_bytes_and_headers_go_both_ways(
    open_new: OpenKeuss, store: blocking.Store, lists: blocking.Store, backend: str, queue_name: str
) -> None:
    theirs = open_new(backend).queue(queue_name)
    ours = (store if backend == "redis-oq" else lists).queue(queue_name)
    for body in (b"\x00\xff\x01", b"", bytes(range(256))):
        ours.push(body, headers={"h": 1, "g": "x"})
        element = theirs.pop(PATIENCE_MS)
        if backend == "redis-list":
            assert abs(element.hdrs.pop("x-penstock-created") - now_ms()) < PATIENCE_MS
        assert (element.payload, element.hdrs) == (body, {"h": 1, "g": "x"})
        theirs.push(body, hdrs={"h": 2})
        job = ours.pop(timeout=PATIENCE)
        assert (job.body, job.headers, job.created) == (body, {"h": 2}, None)


BUFFERS = [(b'{"a": 1}', {"a": 1}), (b"text", "text"), (b"\x00\xff", b"\x00\xff"), (b"", "")]


@pytest.mark.parametrize("backend", ["redis-oq", "redis-list"])
@pytest.mark.parametrize(("buffer", "payload"), BUFFERS)
def test_a_buffer_is_read_as_any_bytes_are(
    open_new: OpenKeuss,
    store: blocking.Store,
    lists: blocking.Store,
    backend: str,
    queue_name: str,
    buffer: bytes,
    payload: Any,
) -> None:
    ours = (store if backend == "redis-oq" else lists).queue(queue_name)
    open_new(backend).queue(queue_name).push(buffer)
    job = ours.pop(timeout=PATIENCE)
    assert (job.payload, type(job.payload), job.body) == (payload, type(payload), buffer)


@pytest.mark.parametrize(("buffer", "payload"), BUFFERS)
def test_a_buffer_stays_one_through_nack_dead_letters_and_redrive(
    open_new: OpenKeuss, store: blocking.Store, queue_name: str, buffer: bytes, payload: Any
) -> None:
    dead = store.queue(f"{queue_name}-dead")
    ours = store.queue(queue_name, dead_letter=DeadLetter(3, queue=dead.name))
    theirs, theirs_dead = open_new().queue(queue_name), open_new().queue(dead.name)
    theirs.push(buffer)
    ours.reserve(timeout=PATIENCE).nack()
    element = theirs.reserve(PATIENCE_MS)  # what we gave back
    assert element.payload == buffer
    theirs.ko(element, now_ms())
    ours.reserve(timeout=PATIENCE).nack()  # its last try
    (job,) = dead.peek()
    assert (job.payload, job.body) == (payload, buffer)
    element = theirs_dead.reserve(PATIENCE_MS)
    assert element.payload == buffer
    theirs_dead.ko(element, now_ms())
    assert dead.redrive() == 1
    assert theirs.pop(PATIENCE_MS).payload == buffer


def test_a_text_that_looks_like_json_stays_a_text(open_new: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    theirs, ours = open_new().queue(queue_name), store.queue(queue_name)
    for text in ('{"a": 1}', "1", '"quoted"', "null"):
        theirs.push(text)
        job = ours.reserve(timeout=PATIENCE)
        assert job.payload == text
        job.nack()
        assert theirs.pop(PATIENCE_MS).payload == text


def test_the_list_is_one_order_for_both(open_keuss: OpenKeuss, lists: blocking.Store, queue_name: str) -> None:
    theirs, ours = open_keuss("redis-list").queue(queue_name), lists.queue(queue_name)
    assert [theirs.push(0), ours.push(1), theirs.push(2), ours.push(3)] == [1, "2", 3, "4"]
    got = [ours.pop(0).payload, theirs.pop(PATIENCE_MS).payload, ours.pop(0).payload, theirs.pop(PATIENCE_MS).payload]
    assert got == [0, 1, 2, 3]


def test_half_a_surrogate_pair_trips_nobody(open_keuss: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    ours.push({"half": "\ud800"})
    element = theirs.reserve(PATIENCE_MS)
    assert "�" in element.payload["half"]
    assert theirs.ok(element) is True


# Schedules


def test_times_are_the_same_for_both(open_keuss: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    ours.push("ours", delay=0.5)
    theirs.push("theirs", delay=0.7)
    assert (ours.scheduled(), theirs.sched_size()) == (2, 2)
    assert theirs.next_t() == round(ours.next_mature() * 1000)
    begun = now_ms()
    element = theirs.pop(PATIENCE_MS)
    assert (element.payload, now_ms() >= element.mature_ms, element.mature_ms > begun) == ("ours", True, True)
    assert ours.pop(timeout=PATIENCE).payload == "theirs"


def test_a_far_time_is_the_same_for_both(open_keuss: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    ours.push("x", at=2_000_000_000.5)
    assert theirs.next_t() == 2_000_000_000_500
    theirs.push("y", mature=1_900_000_000)
    assert ours.next_mature() == 1_900_000_000
    assert [job.mature for job in ours.peek(state="scheduled")] == [1_900_000_000, 2_000_000_000.5]


def test_a_time_long_ago_blocks_nobody(open_keuss: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    ours.push("old", at=5)
    theirs.push("new")
    assert [theirs.pop(PATIENCE_MS).payload for _ in range(2)] == ["old", "new"]


# Reservations


def test_we_reserve_and_node_commits(open_keuss: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    job_id = ours.push("x")
    job = ours.reserve(timeout=PATIENCE)
    assert theirs.reserve(50) is None
    assert theirs.ok(job_id) is True
    with pytest.raises(LeaseLost):
        job.ack()
    assert (ours.total(), theirs.total_size()) == (0, 0)


def test_node_reserves_and_we_see_it(open_keuss: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    theirs.push({"n": 1234567890123456, "none": []})
    element = theirs.reserve(PATIENCE_MS)
    assert tuple(ours.sizes()) == (1, 0, 0, 1)
    assert ours.reserve(timeout=0) is None
    (seen,) = ours.peek(state="reserved")
    assert seen.id == element.id
    assert ours.remove(seen.id) == [False]
    assert ours.purge() == 0
    assert theirs.ok(element) is True


def test_what_node_returns_comes_with_one_try_more(
    open_keuss: OpenKeuss, store: blocking.Store, queue_name: str
) -> None:
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    ours.push("x")
    assert theirs.ko(theirs.reserve(PATIENCE_MS), now_ms()) is True
    job = ours.reserve(timeout=PATIENCE)
    assert (job.payload, job.tries) == ("x", 1)
    job.nack()
    element = theirs.reserve(PATIENCE_MS)
    assert (element.payload, element.tries) == ("x", 2)
    assert theirs.ko(element, now_ms()) is True
    job = ours.reserve(timeout=PATIENCE)
    assert job.tries == 3
    job.ack()
    assert theirs.total_size() == 0


def test_we_end_by_id_what_node_reserved(open_keuss: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    theirs.push({"n": 1})
    element = theirs.reserve(PATIENCE_MS)
    ours.nack(element.id)
    assert theirs.ok(element) is False
    again = theirs.reserve(PATIENCE_MS)
    assert (again.id, again.tries) == (element.id, 1)
    ours.ack(again.id)
    assert theirs.total_size() == 0


def test_the_type_of_a_queue_is_said_as_keuss_says_it(
    open_new: OpenKeuss, store: blocking.Store, lists: blocking.Store, queue_name: str
) -> None:
    for ours, backend in ((store, "redis-oq"), (lists, "redis-list")):
        assert ours.queue(queue_name).type == open_new(backend).queue(queue_name).status()["type"]


def test_a_list_knows_no_more_than_that_of_node(open_new: OpenKeuss, lists: blocking.Store, queue_name: str) -> None:
    theirs, ours = open_new("redis-list").queue(queue_name), lists.queue(queue_name)
    ours.push(1)
    assert (ours.next_mature(), ours.reserved()) == (theirs.next_t(), theirs.resv_size()) == (None, None)


def test_node_returns_what_we_reserved(open_keuss: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    job_id = ours.push("x")
    job = ours.reserve(timeout=PATIENCE)
    assert theirs.ko(job_id, now_ms()) is True
    for end in (job.ack, job.nack, job.extend, job.fail):
        with pytest.raises(LeaseLost):
            end()
    assert ours.reserve(timeout=PATIENCE).tries == 1


def test_a_token_is_stale_once_node_took_the_job_over(
    open_keuss: OpenKeuss, store: blocking.Store, queue_name: str
) -> None:
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    ours.push("x")
    job = ours.reserve(timeout=PATIENCE, lease=0.05)
    element = theirs.reserve(PATIENCE_MS)
    assert element.payload == "x"
    for end in (job.ack, job.nack, job.extend, job.fail):
        with pytest.raises(LeaseLost):
            end()
    assert theirs.ok(element) is True


def test_we_take_over_what_node_let_run_out_and_count_it(
    open_keuss: OpenKeuss, store: blocking.Store, queue_name: str
) -> None:
    theirs, ours = open_keuss(reserve_delay=0.2).queue(queue_name), store.queue(queue_name)
    theirs.push("x")
    theirs.reserve(PATIENCE_MS)
    job = ours.reserve(timeout=PATIENCE)
    assert (job.payload, job.tries) == ("x", 1)
    job.ack()


def test_a_lease_that_we_extend_holds_against_node(
    open_keuss: OpenKeuss, store: blocking.Store, queue_name: str
) -> None:
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    ours.push("x")
    job = ours.reserve(timeout=PATIENCE, lease=0.2)
    job.extend(100)
    assert theirs.reserve(500) is None
    job.ack()


def test_what_lua_did_to_a_payload_is_node_own(open_keuss: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    """Our steps leave a payload alone; Keuss' first reserve changes what it stores."""
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    payload = {"n": 1234567890123456, "none": [], "pi": 3.141592653589793}
    theirs.push(payload)
    for _ in range(3):
        job = ours.reserve(timeout=PATIENCE)
        assert job.payload == payload
        job.nack()
    assert theirs.reserve(PATIENCE_MS).payload == payload
    (damaged,) = ours.peek(state="reserved")
    assert damaged.payload == {"n": 1.2345678901235e15, "none": {}, "pi": 3.1415926535898}


# Remove


def test_each_removes_what_the_other_pushed(open_new: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    theirs, ours = open_new().queue(queue_name), store.queue(queue_name)
    assert theirs.remove(ours.push("a")) is True
    assert ours.remove(theirs.push("b")) == [True]
    ours.push("c")
    job = ours.reserve(timeout=PATIENCE)
    assert theirs.remove(job.id) is False
    job.nack()
    assert theirs.remove(job.id) is True
    assert ours.total() == 0


# Dead letters


def test_dead_letters_of_node_are_ours_to_redrive(open_new: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    dead_name = f"{queue_name}-dead"
    factory = open_new(deadletter={"max_ko": 1, "queue": dead_name})
    theirs, ours, dead = factory.queue(queue_name), store.queue(queue_name), store.queue(dead_name)
    ours.push({"a": 1}, headers={"mine": 7})
    outcomes = [theirs.ko(theirs.reserve(PATIENCE_MS), now_ms()) for _ in range(3)]
    assert outcomes == [True, True, "deadletter"]
    (job,) = dead.peek()
    assert (job.payload, job.tries) == ({"a": 1}, 0)
    assert {"mine": 7, "x-dl-from-queue": queue_name, "x-dl-tries": 2}.items() <= job.headers.items()
    assert dead.redrive() == 1
    back = ours.reserve(timeout=PATIENCE)
    assert (back.payload, back.headers) == ({"a": 1}, {"mine": 7})


def test_our_dead_letters_are_read_by_node(open_new: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    dead_name = f"{queue_name}-dead"
    ours = store.queue(queue_name, dead_letter=DeadLetter(max_ko=1, queue=dead_name))
    theirs = open_new().queue(dead_name)
    job_id = ours.push("x", headers={"mine": 7})
    for _ in range(3):
        ours.reserve(timeout=PATIENCE).nack(error="no such address")
    element = theirs.reserve(PATIENCE_MS)
    assert (element.id, element.payload, element.tries) == (job_id, "x", 0)
    assert element.hdrs.pop("x-dl-t").endswith("Z")
    assert element.hdrs == {
        "mine": 7,
        "x-dl-from-queue": queue_name,
        "x-dl-tries": 2,
        "x-dl-error": "no such address",
    }
    assert theirs.ok(element) is True


def test_a_job_whose_node_worker_died_too_often_is_given_up(
    open_keuss: OpenKeuss, store: blocking.Store, queue_name: str
) -> None:
    dead_name = f"{queue_name}-dead"
    theirs = open_keuss(reserve_delay=0.05).queue(queue_name)
    ours = store.queue(queue_name, dead_letter=DeadLetter(1, queue=dead_name))
    theirs.push("poison")
    theirs.reserve(PATIENCE_MS)
    assert ours.reserve(timeout=0.5) is None
    (job,) = store.queue(dead_name).peek()
    assert job.payload == "poison"
    assert "died" in job.headers["x-dl-error"]


# Unique keys


def test_a_unique_key_is_free_once_node_ended_the_job(
    open_keuss: OpenKeuss, store: blocking.Store, queue_name: str
) -> None:
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    first = ours.push(1, unique="order-17")
    assert ours.push(2, unique="order-17") == first
    element = theirs.reserve(PATIENCE_MS)
    assert ours.push(3, unique="order-17") == first
    assert theirs.ok(element) is True
    second = ours.push(4, unique="order-17")
    assert second != first
    assert theirs.pop(PATIENCE_MS).payload == 4
    assert ours.push(5, unique="order-17") not in {first, second}


def test_a_claim_leaves_out_what_node_ended(open_keuss: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    ids = ours.push_many(range(3))
    assert [job.id for job in ours.claim("batch", 3)] == ids
    assert theirs.ok(ids[1]) is True
    assert [job.id for job in ours.claim("batch", 3)] == [ids[0], ids[2]]
    assert ours.ack_claim("batch") == 2
    assert theirs.total_size() == 0


# Signals


def test_node_wakes_at_our_push(open_keuss: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    waiting = theirs.begin_pop(PATIENCE_MS)
    wait_until(lambda: theirs.consumers() == 1)
    _settle(theirs)
    ours.push("wake up")
    assert KeussElement.of(waiting.result(PATIENCE)).payload == "wake up"


def test_node_wakes_at_our_nack_in_time(open_keuss: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    ours.push("x")
    job = ours.reserve(timeout=PATIENCE)
    waiting = theirs.begin_pop(PATIENCE_MS)
    wait_until(lambda: theirs.consumers() == 1)
    _settle(theirs)
    job.nack(delay=0.2)
    assert KeussElement.of(waiting.result(PATIENCE)).tries == 1


def _settle(queue: Any) -> None:
    """Let a pop that has begun find nothing, and go to sleep: its own call goes out before these."""
    for _ in range(3):
        queue.size()


def test_our_signals_have_the_texts_of_keuss(
    keuss: KeussPeer, open_keuss: OpenKeuss, store: blocking.Store, queue_name: str
) -> None:
    open_keuss().queue(queue_name)
    ours = store.queue(queue_name)
    keuss.signals()
    job_id = ours.push("x", delay=100)
    ours.pause()
    ours.resume()
    (job,) = ours.peek(state=None)
    heard: list[str] = []

    def have_all_come() -> bool:
        channel = f"keuss:signal:N:{queue_name}"
        heard.extend(said["message"] for said in keuss.signals() if said["channel"] == channel)
        return len(heard) >= 3

    wait_until(have_all_come)
    assert job.id == job_id
    assert heard == [str(job.stored.mature_ms), "p true", "p false"]


@pytest.mark.parametrize("backend", ["redis-oq", "redis-list"])
def test_we_wake_at_a_push_of_node(
    open_keuss: OpenKeuss, redis_server: RedisServer, queue_name: str, backend: str
) -> None:
    theirs = open_keuss(backend).queue(queue_name)
    url = url_of(redis_server, backend.replace("redis-", "redis+"))

    async def both() -> list[Any]:
        loop = asyncio.get_running_loop()
        with blocking.connect(url, poll=NEVER) as blocked:
            async with aio.connect(url, poll=NEVER) as store:
                one = loop.create_task(store.queue(queue_name).pop(timeout=PATIENCE))
                other = loop.run_in_executor(None, lambda: blocked.queue(queue_name).pop(timeout=PATIENCE))
                await asyncio.sleep(0.5)
                await loop.run_in_executor(None, theirs.push, "a")
                await asyncio.sleep(0.1)  # Keuss drops a signal that follows another at once
                await loop.run_in_executor(None, theirs.push, "b")
                return [(await one).payload, (await other).payload]

    assert sorted(asyncio.run(both())) == ["a", "b"]


def test_we_wake_at_a_ko_of_node(open_keuss: OpenKeuss, redis_server: RedisServer, queue_name: str) -> None:
    theirs = open_keuss().queue(queue_name)
    theirs.push("x")
    element = theirs.reserve(PATIENCE_MS)

    async def woken() -> Any:
        async with aio.connect(url_of(redis_server), poll=NEVER) as store:
            waiting = asyncio.create_task(store.queue(queue_name).reserve(timeout=PATIENCE))
            await asyncio.sleep(0.3)
            # Without a time its signal says 0; a peer that takes that for a time in the past looks at once.
            await asyncio.get_running_loop().run_in_executor(None, theirs.ko, element)
            return (await waiting).payload

    assert asyncio.run(woken()) == "x"


# Pauses


def test_our_pause_holds_for_node(open_keuss: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    theirs, ours = open_keuss().queue(queue_name), store.queue(queue_name)
    ours.pause()
    assert theirs.paused() is True
    ours.push("x")
    assert theirs.pop(200) is None
    waiting = theirs.begin_pop(PATIENCE_MS)
    wait_until(lambda: theirs.consumers() == 1)
    ours.resume()
    assert KeussElement.of(waiting.result(PATIENCE)).payload == "x"


def test_the_pause_of_node_holds_for_us(open_keuss: OpenKeuss, redis_server: RedisServer, queue_name: str) -> None:
    theirs = open_keuss().queue(queue_name)

    async def paused_and_resumed() -> Any:
        loop = asyncio.get_running_loop()
        async with aio.connect(url_of(redis_server), poll=NEVER) as store:
            ours = store.queue(queue_name)
            assert await ours.pop(timeout=0) is None
            await loop.run_in_executor(None, theirs.pause)
            await ours.push("x")
            assert await ours.pop(timeout=0.3) is None
            assert await ours.paused() is True
            waiting = loop.create_task(ours.pop(timeout=PATIENCE))
            await asyncio.sleep(0.2)
            await loop.run_in_executor(None, theirs.pause, False)
            return (await waiting).payload

    assert asyncio.run(paused_and_resumed()) == "x"


# Statistics


def test_both_count_in_the_same_place(open_new: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    factory = open_new()
    theirs, ours = factory.queue(queue_name, color="red"), store.queue(queue_name)
    ours.push("a")
    theirs.push("b")
    theirs.ok(theirs.reserve(PATIENCE_MS))
    ours.reserve(timeout=PATIENCE).ack()
    # Keuss writes its own every 100 ms; both use the same fields, and each its own words for them.
    wait_until(lambda: {"push": 2, "reserve": 2, "ack": 2}.items() <= ours.stats().items())
    assert {"put": 2, "reserve": 2, "commit": 2}.items() <= theirs.stats().items()
    assert queue_name in store.queues()
    assert queue_name in factory.list()
    known = factory.list(full=True)[queue_name]
    assert (known["name"], known["ns"], known["opts"]) == (queue_name, "N", {"color": "red"})
    assert store.topology()[queue_name]["options"] == {"color": "red"}


def test_our_options_are_read_by_node(open_new: OpenKeuss, store: blocking.Store, queue_name: str) -> None:
    store.queue(queue_name, lease=30, dead_letter=DeadLetter(3)).push("x")
    known = open_new().list(full=True)[queue_name]
    assert known["opts"] == {"lease": 30, "dead_letter": {"max_tries": 3, "queue": "__deadletter__"}}


# All at once


@pytest.mark.slow
def test_no_job_is_lost_or_done_twice_among_workers_of_both(
    open_keuss: OpenKeuss, redis_server: RedisServer, queue_name: str
) -> None:
    theirs = open_keuss().queue(queue_name)
    count = 150

    async def work() -> tuple[list[Any], list[Any]]:
        loop = asyncio.get_running_loop()
        ours_done: list[Any] = []
        theirs_done: list[Any] = []

        async def our_worker(queue: aio.Queue) -> None:
            while len(ours_done) + len(theirs_done) < 2 * count:
                job = await queue.reserve(timeout=0.2)
                if job is not None and job.tries == 0 and job.payload % 7 == 0:
                    await job.nack()
                elif job is not None:
                    await job.ack()
                    ours_done.append(job.payload)

        def their_worker() -> None:
            while len(ours_done) + len(theirs_done) < 2 * count:
                element = theirs.reserve(200)
                if element is not None and element.tries == 0 and element.payload % 5 == 0:
                    assert theirs.ko(element, now_ms()) is True
                elif element is not None:
                    assert theirs.ok(element) is True
                    theirs_done.append(element.payload)

        async with aio.connect(url_of(redis_server), poll=1) as store:
            queue = store.queue(queue_name)
            workers = [loop.create_task(our_worker(queue)) for _ in range(3)]
            workers += [loop.run_in_executor(None, their_worker) for _ in range(3)]
            for number in range(count):
                await queue.push(number)
                await loop.run_in_executor(None, theirs.push, count + number)
            await asyncio.gather(*workers)
            assert await queue.total() == 0
        return ours_done, theirs_done

    ours_done, theirs_done = asyncio.run(work())
    assert sorted(ours_done + theirs_done) == list(range(2 * count))
    assert ours_done
    assert theirs_done
