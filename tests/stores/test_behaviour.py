"""What every store promises: jobs come out as they went in, in order and never early, in both forms of the library."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import Capability, Push
from penstock.errors import CallerError
from tests.stores.harness import NEVER, PATIENCE, Differs, Place, needs

NAMES = ["Ünï côdé 队列", "a:b", "{tag}", "it's", 'say "hi"', "with space", "-dash", "p.q/r%s", "UPPER"]


async def test_jobs_come_out_in_the_order_they_went_in(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        for number in range(20):
            await queue.push(number)
        assert [(await queue.pop(timeout=PATIENCE)).payload for _ in range(20)] == list(range(20))


async def test_a_popped_job_is_gone(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        await queue.push("once")
        assert (await queue.pop(timeout=PATIENCE)).payload == "once"
        assert await other.queue(queue.name).pop(timeout=0) is None
        assert await queue.total() == 0


async def test_an_empty_queue_returns_nothing(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        assert await queue.pop(timeout=0) is None
        assert await queue.pop(timeout=0.05) is None
        assert await queue.pop_many(10) == []


async def test_queues_are_apart(place: Place) -> None:
    async with place.connect() as store:
        red, green = store.queue(place.new_name("red")), store.queue(place.new_name("green"))
        await red.push("for red")
        assert await green.pop(timeout=0) is None
        assert (await red.pop(timeout=PATIENCE)).payload == "for red"


@pytest.mark.parametrize("stem", NAMES)
async def test_a_queue_may_have_any_name(place: Place, stem: str) -> None:
    async with place.connect() as store:
        name = place.new_name(stem)
        queue, other = store.queue(name), store.queue(name.swapcase())
        await queue.push(1)
        assert await other.pop(timeout=0) is None
        assert name in await store.queues()
        assert (await queue.pop(timeout=PATIENCE)).payload == 1


@needs(Capability.RESERVE)
async def test_push_returns_the_id_that_the_job_has(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        ids = [await queue.push(number) for number in range(3)]
        ids += await queue.push_many(range(3, 6))
        assert len(set(ids)) == 6
        jobs = [await queue.reserve(timeout=PATIENCE) for _ in ids]
        assert [job.id for job in jobs] == ids


async def test_many_jobs_are_pushed_and_popped_in_order(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        count = 2 * store._driver.batch_max + 7
        ids = await queue.push_many(range(count))
        assert len(ids) == count
        popped: list[Any] = []
        while jobs := await queue.pop_many(count):
            popped += [job.payload for job in jobs]
        assert popped == list(range(count))


async def test_push_many_of_nothing_is_nothing(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        assert await queue.push_many([]) == []
        assert await queue.total() == 0


@needs(Capability.DELAY)
async def test_jobs_of_one_push_many_may_have_options_of_their_own(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many([Push("later", delay=place.unit), "now"])
        assert (await queue.pop(timeout=PATIENCE)).payload == "now"
        await place.advance(place.unit)
        assert (await queue.pop(timeout=PATIENCE)).payload == "later"


@needs(Capability.DELAY)
async def test_a_delayed_job_is_never_early(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        before = place.now()
        await queue.push("later", delay=place.unit)
        consumer = other.queue(queue.name)
        assert await consumer.pop(timeout=0) is None
        if place.can_shift:
            await place.advance(place.unit - 1)
            assert await consumer.pop(timeout=0) is None
            await place.advance(1)
        job = await consumer.pop(timeout=PATIENCE)
        assert job.payload == "later"
        assert place.now() >= before + place.unit - 0.002  # the clocks of server and test are cut to milliseconds


@needs(Capability.DELAY)
async def test_a_job_may_have_a_point_in_time(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("number", at=place.now() + place.unit)
        await queue.push("date", at=datetime.fromtimestamp(place.now() + place.unit, UTC))
        assert await queue.pop(timeout=0) is None
        await place.advance(place.unit + 1)
        jobs = [await queue.pop(timeout=PATIENCE) for _ in range(2)]
        assert sorted(job.payload for job in jobs) == ["date", "number"]


@needs(Capability.DELAY)
async def test_a_point_in_time_that_is_over_is_now(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("past", at=place.now() - 1000)
        assert (await queue.pop(timeout=PATIENCE)).payload == "past"


@needs(Capability.DELAY, Capability.RESERVE, Capability.EXTEND)
async def test_times_may_be_timedeltas(place: Place) -> None:
    unit = timedelta(seconds=place.unit)
    async with place.connect(poll=timedelta(seconds=NEVER), lease=timedelta(hours=1)) as store:
        assert store.queue("other").lease == 3600
        queue = store.queue(place.new_name(), lease=10 * unit, poll=timedelta(seconds=NEVER))
        assert (queue.lease, queue.poll_s) == (10 * place.unit, NEVER)
        await queue.push("work", delay=unit)
        assert await queue.pop(timeout=timedelta(0)) is None
        await place.advance(place.unit)
        job = await queue.reserve(timeout=timedelta(seconds=PATIENCE), lease=unit)
        await job.extend(3 * unit)
        await place.advance(2 * place.unit)
        await job.nack(delay=unit)  # its first lease would be over
        assert await queue.reserve(timeout=0) is None
        await place.advance(place.unit)
        assert (await queue.reserve_many(1, timedelta(seconds=PATIENCE)))[0].payload == "work"


@needs(Capability.CLAIM)
async def test_times_of_claims_may_be_timedeltas(place: Place) -> None:
    unit = timedelta(seconds=place.unit)
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        assert len(await queue.claim("key", 1, lease=unit)) == 1
        assert await queue.extend_claim("key", 3 * unit) == 1
        await place.advance(2 * place.unit)
        assert await queue.reserve(timeout=0) is None
        assert await queue.nack_claim("key", unit) == 1
        assert await queue.scheduled() == 1


@needs(Capability.TTL, Capability.RETRY)
async def test_a_ttl_and_a_retry_time_may_be_timedeltas(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work", ttl=timedelta(days=3), retry=timedelta(minutes=6))
        assert await queue.total() == 1


@needs(Capability.UNIQUE)
async def test_the_time_of_a_unique_key_may_be_a_timedelta(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        first = await queue.push("one", unique="key", unique_for=timedelta(seconds=place.unit))
        await queue.pop(timeout=PATIENCE)
        assert await queue.push("two", unique="key") == first
        await place.advance(place.unit + 1)
        assert await queue.push("three", unique="key") != first


@needs(Capability.DELAY)
async def test_who_matures_first_comes_first(place: Place) -> None:
    place.need(Differs.ORDER)
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        for delay in (3, 1, 2):
            await queue.push(delay, delay=delay * place.unit)
        await queue.push(0)
        await place.advance(3 * place.unit)
        assert [job.payload for job in await queue.pop_many(4)] == [0, 1, 2, 3]


async def test_a_job_may_begin_with_tries(place: Place) -> None:
    place.need(Differs.NO_TRIES_AT_PUSH)
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("tried", tries=3)
        assert (await queue.pop(timeout=PATIENCE)).tries == 3


@needs(Capability.RESERVE)
async def test_both_forms_share_the_queues(place: Place) -> None:
    async with place.connect_aio() as one, place.connect_blocking() as two:
        here = one.queue(place.new_name())
        there = two.queue(here.name)
        await here.push("from async")
        await there.push("from blocking")
        assert (await there.reserve(timeout=PATIENCE)).payload == "from async"
        assert (await here.reserve(timeout=PATIENCE)).payload == "from blocking"


async def test_a_store_can_be_opened_again_and_finds_its_jobs(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("kept")
    async with place.connect() as store:
        assert (await store.queue(queue.name).pop(timeout=PATIENCE)).payload == "kept"


async def test_a_closed_store_refuses(place: Place) -> None:
    store = place.connect()
    queue = store.queue(place.new_name())
    with pytest.raises(CallerError, match="not open"):
        await queue.push(1)
    async with store:
        await queue.push(1)
    for call in (lambda: queue.push(2), lambda: queue.pop(timeout=0), queue.total, store.queues):
        with pytest.raises(CallerError, match="not open"):
            await call()
    with pytest.raises(CallerError, match="closed"):
        await store.open()
