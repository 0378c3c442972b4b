"""redis-oq as it lies in Redis: Keuss' bytes, what peers may have left there, and what happens on the server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DeadLetter, Push
from penstock.errors import LeaseLost, StoreError
from penstock.job import JobState
from penstock.queues.stores.redis import scripts
from penstock.queues.stores.redis.aio import ordered as redis_oq
from penstock.queues.stores.redis.keys import oq_keys
from tests.server_fixtures import StartRedis
from tests.servers import RedisServer
from tests.stores.redis_stores import FORMS, HASH, INDEX, NAMESPACE, Raw, connect, new_name, oq_url

pytestmark = pytest.mark.system

ANCIENT = 1_500_000_000_000  # years ago: the Keuss of that time would have matured it


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return oq_url(redis_server)


@pytest.fixture
def raw(redis_server: RedisServer) -> Iterator[Raw]:
    """A queue of its own, as it lies in Redis."""
    with redis_server.client() as client:
        yield Raw(client, new_name())


async def test_the_scheme_redis_means_the_ordered_queue(form: str, url: str, raw: Raw) -> None:
    async with connect(form, url.replace("redis+oq:", "redis:")) as store, connect(form, url) as named:
        job_id = await store.queue(raw.queue).push("work", delay=1000)
        (job,) = await named.queue(raw.queue).peek(state="scheduled")
        assert job.id == job_id
        assert store.capabilities == named.capabilities


# What is stored


async def test_a_fresh_job_has_keuss_fields_and_a_score_of_13_digits(form: str, url: str, raw: Raw) -> None:
    async with connect(form, url) as store:
        before = raw.now_ms()
        job_id = await store.queue(raw.queue).push({"a": 1, "arr": []}, headers={"h": 1})
        score = int(raw.score(job_id))
        assert before <= score <= raw.now_ms()
        assert raw.value(job_id).decode() == (
            f'{{"_id":"{job_id}","payload":{{"a":1,"arr":[]}},"hdrs":{{"h":1}},"mature":{score},"tries":0}}'
        )
        assert re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", job_id)
        assert raw.client.type(INDEX + raw.queue) == b"zset"
        assert raw.client.type(HASH + raw.queue) == b"hash"


async def test_bytes_are_base64_with_a_type(form: str, url: str, raw: Raw) -> None:
    async with connect(form, url) as store:
        job_id = await store.queue(raw.queue).push(b"\x00\xff\x01")
        element = raw.element(job_id)
        assert (element["payload"], element["type"]) == ("AP8B", "buffer")
        assert (await store.queue(raw.queue).pop(timeout=0)).payload == b"\x00\xff\x01"


async def test_delay_time_and_tries_are_stored_as_keuss_does(form: str, url: str, raw: Raw) -> None:
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        timed = await queue.push(1, at=2_000_000_000.5, tries=3)
        assert (raw.score(timed), raw.element(timed)["mature"], raw.element(timed)["tries"]) == (
            2_000_000_000_500,
            2_000_000_000_500,
            3,
        )
        before = raw.now_ms()
        delayed = await queue.push(2, delay=1.5)
        assert before + 1500 <= raw.score(delayed) <= raw.now_ms() + 1500


@pytest.mark.parametrize("when", [{"at": 5}, {"at": 0}], ids=["five seconds", "zero"])
async def test_no_score_is_too_short_for_keuss(form: str, url: str, raw: Raw, when: dict[str, float]) -> None:
    async with connect(form, url) as store:
        job_id = await store.queue(raw.queue).push(1, **when)
        assert raw.score(job_id) == raw.element(job_id)["mature"] == 1_000_000_000_000


async def test_each_step_of_a_job_is_stored_as_keuss_would_read_it(form: str, url: str, raw: Raw) -> None:
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        job_id = await queue.push([1, "/", 0.1])
        fresh = raw.value(job_id)
        job = await queue.reserve(timeout=0, lease=60)
        assert raw.value(job_id) == fresh[:-1] + b',"reserved":true}'
        assert raw.now_ms() + 59_000 < raw.score(job_id) <= raw.now_ms() + 60_000
        await job.extend(100)
        assert raw.now_ms() + 99_000 < raw.score(job_id) <= raw.now_ms() + 100_000
        await job.nack(delay=30)
        assert raw.value(job_id) == fresh[:-2] + b'1,"reserved":false}'
        assert raw.now_ms() + 29_000 < raw.score(job_id) <= raw.now_ms() + 30_000
        store.shift_clock(31)
        await (await queue.reserve(timeout=0)).ack()
        assert raw.client.exists(INDEX + raw.queue, HASH + raw.queue) == 0


async def test_half_a_surrogate_pair_comes_back_and_can_be_read_in_redis(form: str, url: str, raw: Raw) -> None:
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        for payload in ("\ud800", {"\udfff": ["ok", "\ud83d"]}):
            job_id = await queue.push(payload, headers={"h": "\udc00"})
            assert raw.client.eval("return cjson.decode(ARGV[1])._id", 0, raw.value(job_id)).decode() == job_id
            job = await queue.pop(timeout=0)
            assert (job.payload, job.headers) == (payload, {"h": "\udc00"})


# What Node wrote


async def test_an_element_of_node_is_read_and_only_its_end_is_changed(form: str, url: str, raw: Raw) -> None:
    text = '{"_id":"n1","payload":{"big":1234567890123456,"pi":3.141592653589793,"none":[],"s":"a/b"},'
    text += '"tries":2,"hdrs":{"h":1},"mature":1794768333830}'
    raw.put("n1", text, ANCIENT)
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        job = await queue.reserve(timeout=0)
        assert (job.id, job.tries, job.headers) == ("n1", 2, {"h": 1})
        assert job.payload == {"big": 1234567890123456, "pi": 3.141592653589793, "none": [], "s": "a/b"}
        assert raw.value("n1").decode() == text[:-1] + ',"tries":2,"reserved":true}'
        await job.nack()
        assert raw.value("n1").decode() == text[:-1] + ',"tries":3,"reserved":false}'
        again = await queue.reserve(timeout=0)
        assert (again.tries, again.payload) == (3, job.payload)


async def test_an_element_without_headers_or_tries_is_read(form: str, url: str, raw: Raw) -> None:
    raw.put("old", '{"_id":"old","payload":"x"}', ANCIENT)
    async with connect(form, url) as store:
        job = await store.queue(raw.queue).reserve(timeout=0)
        assert (job.payload, job.headers, job.tries) == ("x", {}, 0)
        await job.nack()
        assert raw.element("old") == {"_id": "old", "payload": "x", "tries": 1, "reserved": False}


@pytest.mark.parametrize(
    ("reserved", "tries", "state"),
    [(True, 4, JobState.RESERVED), (None, 4, JobState.RESERVED), (False, 4, JobState.SCHEDULED)],
)
async def test_what_lua_made_of_an_element_is_read(
    form: str, url: str, raw: Raw, reserved: bool | None, tries: int, state: JobState
) -> None:
    text = json.dumps({"reserved": reserved, "hdrs": {}, "payload": {"tries": 9}, "_id": "n", "tries": tries})
    raw.put("n", text, 4_000_000_000_000)
    async with connect(form, url) as store:
        (job,) = await store.queue(raw.queue).peek(state=None)
        assert (job.state, job.tries) == (state, tries)
        assert await store.queue(raw.queue).remove("n") == [state is not JobState.RESERVED]


async def test_a_job_that_is_long_due_is_given_out_once(form: str, url: str, raw: Raw) -> None:
    raw.put_element("old", ANCIENT)
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        job = await queue.reserve(timeout=0, lease=10)
        assert await queue.reserve(timeout=0) is None
        assert job.stored.mature_ms == int(raw.score("old")) > raw.now_ms()


async def test_whatever_a_peer_does_to_a_job_makes_the_token_stale(form: str, url: str, raw: Raw) -> None:
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        for change in (lambda i: raw.client.zincrby(INDEX + raw.queue, 1000, i), raw.remove):
            job_id = await queue.push(1)
            job = await queue.reserve(timeout=0)
            change(job_id)
            for end in (job.ack, job.nack, job.extend, job.fail):
                with pytest.raises(LeaseLost):
                    await end()


async def test_a_lease_made_again_in_the_same_moment_ends_later(form: str, url: str, raw: Raw) -> None:
    """Its end is what tells it from the one before."""
    async with connect(form, url) as store:
        queue = store.queue(raw.queue, lease=60)
        job_id = await queue.push(1)
        (job,) = await queue.claim("key", 1)
        for make_anew in (job.extend, lambda: queue.claim("key", 1), lambda: queue.extend_claim("key")):
            before = raw.score(job_id)
            store.shift_clock(-0.005)  # so that it would not, by the clock alone
            await make_anew()
            assert raw.score(job_id) > before
        assert raw.score(job_id) < raw.now_ms() + 61_000


async def test_a_claim_does_not_touch_what_another_has_claimed_since(form: str, url: str, raw: Raw) -> None:
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        await queue.push(1)
        (job,) = await queue.claim("first", 1)
        await job.nack()
        assert len(await queue.claim("second", 1)) == 1
        assert await queue.claim("first", 1) == []
        assert await queue.extend_claim("first") == 0
        assert await queue.nack_claim("first") == 0
        assert await queue.ack_claim("second") == 1
        assert raw.client.keys(f"penstock:oq:claim*{raw.queue}*") == []


# What nobody should have written

TAILS = [',"tries":9,"reserved":true}', ',"tries":9}', ',"tries":9,"reserved":true}}', '\\",\\"tries\\":9}']
HOSTILE: list[Any] = [
    *TAILS,
    {"a": 1, "tries": 9, "reserved": True},
    {"a": 1, "tries": 9},
    {"reserved": True},
    [{"tries": 9, "reserved": True}],
    {',"tries":9,"reserved":true}': ',"tries":9}'},
]


@pytest.mark.parametrize("payload", HOSTILE, ids=repr)
async def test_payloads_that_end_like_an_element_change_nothing(form: str, url: str, raw: Raw, payload: Any) -> None:
    mine: Any = None
    # With the payload at the end, where it is most likely to be mistaken, and without any tries of its own.
    for number, fields in enumerate([{"tries": 1}, {"tries": 1, "reserved": False}, {}]):
        element = {"_id": f"n{number}", **fields, "payload": payload}
        raw.put(f"n{number}", json.dumps(element, separators=(",", ":")), ANCIENT + number)
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        mine = await queue.push(payload)
        jobs = await queue.reserve_many(4)
        assert [(job.id, job.payload, job.tries) for job in jobs] == [
            ("n0", payload, 1),
            ("n1", payload, 1),
            ("n2", payload, 0),
            (mine, payload, 0),
        ]
        assert await queue.nack_many(jobs) == [True] * 4
        jobs = await queue.reserve_many(4)
        assert {(job.id, job.tries) for job in jobs} == {("n0", 2), ("n1", 2), ("n2", 1), (mine, 1)}
        assert all(job.payload == payload for job in jobs)
        assert await queue.ack_many(jobs) == [True] * 4


_texts = st.text(max_size=8) | st.sampled_from(TAILS)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts | st.sampled_from(["tries", "reserved"]), inner),
    max_leaves=8,
)
_fields = st.lists(
    st.tuples(st.just("tries"), st.integers(0, 10**12))
    | st.tuples(st.just("reserved"), st.booleans())
    | st.tuples(_texts | st.sampled_from(["payload", "hdrs"]), _values),
    max_size=6,
)
_ends = st.sampled_from([("", ""), ("\n ", " "), (" ", "\n")])

STATE = b"""
local tries, reserved, length = state(ARGV[1])
return {text(tries), reserved and 1 or 0, with_state(ARGV[1], length, tries + 1, 'true')}
"""


@settings(derandomize=True, max_examples=400, deadline=None)
@given(_fields, _ends)
def test_the_state_of_any_element_is_read_and_changed(
    redis_server: RedisServer, fields: list[tuple[str, Any]], ends: tuple[str, str]
) -> None:
    inside = ",".join(f"{json.dumps(name)}:{json.dumps(value, separators=(',', ':'))}" for name, value in fields)
    text = f"{{{inside}{ends[0]}}}{ends[1]}"
    part = (scripts.files("penstock.queues.stores.redis") / "lua" / "queue.lua").read_bytes()
    with redis_server.client() as client:
        tries, reserved, changed = client.eval(part + STATE, 8, *oq_keys("q", None), text)
    element = json.loads(text)
    assert (int(tries), reserved == 1) == (element.get("tries", 0), element.get("reserved", False))
    assert json.loads(changed) == {**element, "tries": element.get("tries", 0) + 1, "reserved": True}


GARBAGE = {
    "a text": b"garbage",
    "nothing": b"",
    "a list": b"[1]",
    "a number": b"5",
    "a string": b'"a}"',
    "half an object": b'{"_id":"x","payload":',
    "no UTF-8": b'{"payload":"\xff\xfe"}',
    "an infinite number": b'{"payload":Infinity,"tries":0}',
    "no fields": b"{}",
    "too deep": b'{"payload":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    "tries of no kind": b'{"payload":1,"tries":{"a":1},"hdrs":7}',
}


@pytest.mark.parametrize("value", GARBAGE.values(), ids=GARBAGE)
async def test_what_is_no_element_is_handed_out_and_stops_nobody(form: str, url: str, raw: Raw, value: bytes) -> None:
    raw.put("bad", value, ANCIENT)
    raw.put_element("good", ANCIENT + 1)
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        jobs = await queue.reserve_many(2)
        assert [(job.id, job.tries) for job in jobs] == [("bad", 0), ("good", 0)]
        assert [job.id for job in await queue.peek(state="reserved")] == ["bad", "good"]
        assert await queue.nack_many(jobs) == [True, True]
        jobs = await queue.reserve_many(2)
        assert {(job.id, job.tries) for job in jobs} == {("bad", 1), ("good", 1)}
        bad = next(job for job in jobs if job.id == "bad")
        assert isinstance(bad.body, bytes)
        await bad.fail("what is this?")
        (dead,) = [job for job in await store.dead_letters().peek(1000) if job.headers["x-dl-from-queue"] == raw.queue]
        assert dead.body == bad.body
        assert await store.dead_letters().remove(dead.id) == [True]


async def test_garbage_comes_as_the_bytes_that_it_is(form: str, url: str, raw: Raw) -> None:
    raw.put("bad", b"garbage\xff", ANCIENT)
    async with connect(form, url) as store:
        job = await store.queue(raw.queue).reserve(timeout=0)
        assert (job.payload, job.body) == (b"garbage\xff", b"garbage\xff")


async def test_an_id_that_is_no_text_can_be_acked(form: str, url: str, raw: Raw) -> None:
    raw.client.hset(HASH + raw.queue, b"\xff\xfe", '{"payload":1}')
    raw.client.zadd(INDEX + raw.queue, {b"\xff\xfe": ANCIENT})
    async with connect(form, url) as store:
        await (await store.queue(raw.queue).reserve(timeout=0)).ack()
        assert await store.queue(raw.queue).total() == 0


async def test_ids_without_elements_are_dropped(form: str, url: str, raw: Raw) -> None:
    for number in range(25):
        raw.client.zadd(INDEX + raw.queue, {f"orphan{number:02}": ANCIENT + number})
    raw.put_element("good", ANCIENT + 100)
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        assert [job.id for job in await queue.peek()] == ["good"]
        (job,) = await queue.reserve_many(4)
        assert job.id == "good"
        assert raw.client.zcard(INDEX + raw.queue) == 1
        await job.nack()
        raw.client.zadd(INDEX + raw.queue, {"orphan": ANCIENT})
        assert [job.id for job in await queue.pop_many(4)] == ["good"]
        assert raw.client.zcard(INDEX + raw.queue) == 0


@pytest.mark.parametrize("score", ["5000", "-7", "1e3", "1500000000000.75", "-inf"])
async def test_odd_scores_in_the_past_are_ready(form: str, url: str, raw: Raw, score: str) -> None:
    raw.put_element("odd", score)
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        assert await queue.size() == 1
        assert await queue.next_mature() <= raw.now_ms() / 1000
        job = await queue.reserve(timeout=0)
        assert job.id == "odd"
        await job.nack()
        assert len(str(int(raw.score("odd")))) == 13
        assert (await queue.pop(timeout=0)).id == "odd"


@pytest.mark.parametrize("score", ["+inf", "99999999999999999"])
async def test_odd_scores_in_the_future_wait(form: str, url: str, raw: Raw, score: str) -> None:
    raw.put_element("odd", score)
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        assert await queue.pop(timeout=0) is None
        assert await queue.next_mature() > raw.now_ms() / 1000
        assert [job.id for job in await queue.peek(state=None)] == ["odd"]
        await queue.push("news")
        assert (await queue.pop(timeout=0)).payload == "news"


# Looking


async def test_a_read_goes_on_behind_jobs_that_are_gone(form: str, url: str, raw: Raw) -> None:
    ids = [f"job{number:03}" for number in range(60)]
    for job_id in ids:
        raw.put_element(job_id, ANCIENT)  # all of the same time: only their ids tell them apart
    async with connect(form, url) as store:
        driver = (store.inside if form == "blocking" else store)._driver
        seen: list[str] = []
        cursor = None
        while True:
            page = driver.peek(raw.queue, None, 10, cursor)
            page = await page if form == "aio" else page
            seen += [job.id for job in page.jobs]
            cursor = page.cursor
            if cursor is None:
                break
            # The last ones that were seen go, and one comes before them.
            for job_id in seen[-3:]:
                raw.remove(job_id)
            raw.put_element("job000a", ANCIENT)
        assert seen == ids


async def test_sizes_distinguish_reserved_and_scheduled_up_to_a_limit(
    form: str, url: str, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        await queue.push_many(range(7))
        await queue.push_many(range(5), delay=100)
        await queue.reserve_many(3)
        module = redis_oq if form == "aio" else redis_oq_blocking()
        monkeypatch.setattr(module, "SCAN_JOBS", 2)
        assert tuple(await queue.sizes()) == (12, 4, 5, 3)
        monkeypatch.setattr(module, "COUNT_MAX", 6)
        assert tuple(await queue.sizes()) == (12, 4, 8, None)


def redis_oq_blocking() -> Any:
    from penstock.queues.stores.redis.blocking import ordered as module

    return module


# Signals


async def test_only_a_job_that_is_news_is_signalled(form: str, url: str, raw: Raw) -> None:
    channel = f"keuss:signal:{NAMESPACE}:{raw.queue}"
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        with raw.client.pubsub(ignore_subscribe_messages=True) as listener:
            listener.subscribe(channel)
            listener.get_message(timeout=5)
            later = await queue.push(1, delay=500)
            await queue.push(2, delay=1000)
            sooner = await queue.push(3, delay=100)
            await queue.push(4, delay=200)
            assert _heard(listener) == [int(raw.score(later)), int(raw.score(sooner))]
            for number in range(50):
                await queue.push(number)
            # The first was news; of the others some are told again, in case it was lost.
            assert 1 <= len(_heard(listener)) < 50


def _heard(listener: Any) -> list[int]:
    heard = []
    while (message := listener.get_message(timeout=0.2)) is not None:
        heard.append(int(message["data"]))
    return heard


async def test_a_job_given_back_and_a_dead_letter_are_signalled_in_their_queues(form: str, url: str, raw: Raw) -> None:
    async with connect(form, url) as store:
        dead = f"{raw.queue}-dead"
        queue = store.queue(raw.queue, dead_letter=DeadLetter(queue=dead))
        await queue.push_many([1, 2])
        jobs = await queue.reserve_many(2)
        with raw.client.pubsub(ignore_subscribe_messages=True) as listener:
            listener.psubscribe(f"keuss:signal:{NAMESPACE}:*")
            listener.get_message(timeout=5)
            await jobs[0].nack(delay=50)
            await jobs[1].fail("no")
            heard = [listener.get_message(timeout=5) for _ in range(2)]
        assert [message["channel"].decode().rpartition(":")[2] for message in heard] == [raw.queue, dead]
        assert int(heard[0]["data"]) == raw.score(jobs[0].id)


# Unique keys


async def test_a_key_is_free_again_once_a_peer_ended_its_job(form: str, url: str, raw: Raw) -> None:
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        # Among many others, so that it isn't found by chance.
        await queue.push_many([Push(number, unique=f"other {number}") for number in range(200)])
        first = await queue.push(1, unique="k")
        assert await queue.push(2, unique="k") == first
        raw.remove(first)
        assert await queue.push(3, unique="k") != first


async def test_a_key_is_kept_from_the_moment_that_the_end_is_noticed(form: str, url: str, raw: Raw) -> None:
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        first = await queue.push(1, unique="k", unique_for=100)
        raw.remove(first)
        store.shift_clock(1000)
        assert await queue.push(2, unique="k", unique_for=100) == first
        store.shift_clock(99)
        assert await queue.push(3, unique="k", unique_for=100) == first
        store.shift_clock(2)
        assert await queue.push(4, unique="k", unique_for=100) != first


async def test_keys_that_nobody_needs_go(form: str, url: str, raw: Raw) -> None:
    async with connect(form, url) as store:
        queue = store.queue(raw.queue)
        for number in range(40):
            raw.remove(await queue.push(number, unique=f"theirs{number}"))
        for number in range(40):
            await queue.push(number, unique=f"mine{number}", unique_for=10)
            await queue.pop(timeout=0)
        store.shift_clock(11)
        for number in range(60):
            await queue.push(number, unique=f"more{number}")
            await queue.pop(timeout=0)
        left = [raw.client.execute_command(*words) for words in _counts(raw.queue)]
        assert left == [0, 0, 0]


def _counts(queue: str) -> list[tuple[str, bytes]]:
    _, _, unique, ids, ends, *_ = oq_keys(queue, None)
    return [("HLEN", unique), ("HLEN", ids), ("ZCARD", ends)]


# The server


async def test_scripts_that_the_server_forgot_are_sent_again(form: str, start_redis: StartRedis) -> None:
    server = start_redis(appendonly="no")
    async with connect(form, oq_url(server)) as store:
        queue = store.queue("q")
        await queue.push(1)
        with server.client() as client:
            client.script_flush()
        await (await queue.reserve(timeout=0)).ack()
        assert await queue.total() == 0


async def test_a_full_redis_refuses_jobs_and_can_be_emptied(form: str, start_redis: StartRedis) -> None:
    server = start_redis(appendonly="no")
    async with connect(form, oq_url(server), stats="memory:") as store:
        queue = store.queue("q")
        await queue.push_many(range(5))
        with server.client() as client:
            client.config_set("maxmemory", 1000)
            with pytest.raises(StoreError, match="memory is full"):
                await queue.push("too much")
            jobs = await queue.reserve_many(4)
            await jobs[0].ack()
            await jobs[1].nack()
            await jobs[2].extend(100)
            await jobs[3].fail("no")
            assert await queue.claim("key", 10) != []
            assert await queue.ack_claim("key") == 2
            assert tuple(await queue.sizes()) == (1, 0, 0, 1)
            client.config_set("maxmemory", 0)
        await queue.push("again")


async def test_a_key_of_another_kind_is_reported(form: str, url: str, raw: Raw) -> None:
    raw.client.set(INDEX + raw.queue, "mine")
    async with connect(form, url) as store:
        with pytest.raises(StoreError, match="another program keeps something else"):
            await store.queue(raw.queue).push(1)
        with pytest.raises(StoreError, match="another program"):
            await store.queue(raw.queue).reserve(timeout=0)


# Statistics


async def test_statistics_lie_in_a_hash_as_keuss_has_them(form: str, url: str, raw: Raw) -> None:
    async with connect(form, url) as store:
        queue = store.queue(raw.queue, lease=30)
        await queue.push_many(range(3))
        job, other = await queue.reserve_many(2)
        await job.ack()
        await other.nack()
        await queue.pop(timeout=0)
        await queue.pause()
        await queue.stats()
    assert raw.client.hgetall(f"keuss:stats:{NAMESPACE}:{raw.queue}") == {
        b"name": raw.queue.encode(),
        b"ns": NAMESPACE.encode(),
        b"opts": b'{"lease":30}',
        b"counter_put": b"3",
        b"counter_get": b"1",
        b"counter_reserve": b"2",
        b"counter_commit": b"1",
        b"counter_rollback": b"1",
        b"paused": b"true",
    }


async def test_a_consumer_without_options_leaves_those_that_are_there(form: str, url: str, raw: Raw) -> None:
    async with connect(form, url) as store:
        await store.queue(raw.queue, lease=30).push(1)
        await store.queue(raw.queue).push(1)
        assert (await store.topology())[raw.queue]["options"] == {"lease": 30}


async def test_queues_of_other_namespaces_are_not_listed(form: str, url: str, raw: Raw) -> None:
    strange = new_name("n[a]*?")
    async with connect(form, url, namespace=strange) as store, connect(form, url, namespace=strange + "x") as other:
        for one, name in ((store, "here"), (other, "there")):
            queue = one.queue(f"{raw.queue}-{name}")
            await queue.push(1)
            await queue.pop(timeout=0)
        assert f"{raw.queue}-here" in await store.queues()
        assert f"{raw.queue}-there" not in await store.queues()
