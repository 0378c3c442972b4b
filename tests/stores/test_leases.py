"""Leases: a worker with one has the job alone, one that lost it changes nothing, and a job ends once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from penstock import Capability, DeadLetter
from penstock.errors import LeaseLost
from tests.stores.harness import PATIENCE, Place, needs

VERBS = {
    "ack": lambda job: job.ack(),
    "nack": lambda job: job.nack(),
    "extend": lambda job: job.extend(1000),
    "fail": lambda job: job.fail("too late"),
}
ENDS = ["ack", "nack", "fail"]


@needs(Capability.RESERVE)
async def test_an_acked_job_is_gone(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        job = await queue.reserve(timeout=PATIENCE)
        assert (job.payload, job.tries) == ("work", 0)
        await job.ack()
        assert await queue.total() == 0
        await place.advance(place.unit)
        assert await queue.reserve(timeout=0) is None


@needs(Capability.RESERVE)
async def test_nobody_else_gets_a_reserved_job(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        await queue.push("work")
        job = await queue.reserve(timeout=PATIENCE, lease=1000)
        for look in (queue, other.queue(queue.name)):
            assert await look.reserve(timeout=0) is None
            assert await look.pop(timeout=0) is None
        await job.ack()


@needs(Capability.RESERVE)
async def test_a_job_that_is_given_back_comes_again_with_a_try_more(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        job_id = await queue.push("work")
        for tries in range(4):
            job = await queue.reserve(timeout=PATIENCE)
            assert (job.id, job.payload, job.tries) == (job_id, "work", tries)
            await job.nack()
        assert (await queue.pop(timeout=PATIENCE)).tries == 4


@needs(Capability.RESERVE, Capability.DELAY)
async def test_a_job_that_is_given_back_with_a_delay_is_not_early(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        await (await queue.reserve(timeout=PATIENCE)).nack(delay=place.unit)
        assert await queue.reserve(timeout=0) is None
        await place.advance(place.unit)
        assert (await queue.reserve(timeout=PATIENCE)).tries == 1


@needs(Capability.RESERVE)
async def test_a_lease_that_is_over_returns_the_job_again_with_a_try_more(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        job_id = await queue.push("work")
        for tries in range(3):
            worker = (store, other)[tries % 2].queue(queue.name)
            job = await worker.reserve(timeout=PATIENCE, lease=place.unit)
            assert (job.id, job.payload, job.tries) == (job_id, "work", tries)
            await place.advance(place.unit)
        job = await queue.pop(timeout=PATIENCE)
        assert (job.id, job.tries) == (job_id, 3)
        assert await queue.total() == 0


@needs(Capability.RESERVE, Capability.DELAY)
async def test_a_lease_begins_at_the_reserve_however_old_the_job_is(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("old")
        await place.advance(3 * place.unit if place.can_shift else place.unit)
        job = await queue.reserve(timeout=PATIENCE, lease=place.unit)
        assert await queue.reserve(timeout=0) is None
        await job.ack()


@needs(Capability.RESERVE)
async def test_each_reserve_may_have_a_lease_of_its_own(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000 * place.unit)
        await queue.push_many(["long", "short"])
        await queue.reserve(timeout=PATIENCE)
        await queue.reserve(timeout=PATIENCE, lease=place.unit)
        await place.advance(place.unit)
        assert (await queue.reserve(timeout=PATIENCE)).payload == "short"
        assert await queue.reserve(timeout=0) is None


@needs(Capability.RESERVE, Capability.EXTEND, Capability.TOKEN)
@pytest.mark.parametrize("verb", VERBS)
async def test_a_stale_worker_changes_nothing(place: Place, verb: str) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        await queue.push("work")
        stale = await queue.reserve(timeout=PATIENCE, lease=place.unit)
        await place.advance(place.unit)
        mine = await other.queue(queue.name).reserve(timeout=PATIENCE, lease=1000)
        with pytest.raises(LeaseLost, match=re.escape(stale.id)):
            await VERBS[verb](stale)
        assert await queue.total() == 1
        assert await queue.reserve(timeout=0) is None
        await mine.extend(1000)
        await mine.ack()
        assert await queue.total() == 0


@needs(Capability.RESERVE, Capability.EXTEND, Capability.TOKEN)
@pytest.mark.parametrize("verb", VERBS)
async def test_a_worker_whose_job_went_back_and_out_again_is_stale(place: Place, verb: str) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push("work")
        first = await queue.reserve(timeout=PATIENCE)
        await first.nack()
        second = await queue.reserve(timeout=PATIENCE)
        with pytest.raises(LeaseLost):
            await VERBS[verb](first)
        await second.ack()


@needs(Capability.RESERVE, Capability.EXTEND, Capability.TOKEN)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("verb", VERBS)
async def test_a_job_ends_once(place: Place, end: str, verb: str) -> None:
    async with place.connect(dead_letter=f"5,{place.new_name('dead')}") as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        job = await queue.reserve(timeout=PATIENCE)
        await VERBS[end](job)
        before = await queue.total(), await store.dead_letters().total()
        with pytest.raises(LeaseLost):
            await VERBS[verb](job)
        assert (await queue.total(), await store.dead_letters().total()) == before


@needs(Capability.RESERVE)
@pytest.mark.parametrize("verb", ENDS)
async def test_a_popped_job_has_no_lease(place: Place, verb: str) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        job = await queue.pop(timeout=PATIENCE)
        with pytest.raises(LeaseLost):
            await VERBS[verb](job)


@needs(Capability.RESERVE, Capability.EXTEND)
async def test_a_lease_can_be_made_longer(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        await queue.push("work")
        job = await queue.reserve(timeout=PATIENCE, lease=place.unit)
        await job.extend(3 * place.unit)
        await place.advance(1.5 * place.unit)
        assert await other.queue(queue.name).reserve(timeout=0) is None
        await place.advance(1.5 * place.unit)
        again = await other.queue(queue.name).reserve(timeout=PATIENCE)
        assert again.tries == 1


@needs(Capability.RESERVE, Capability.EXTEND)
async def test_a_lease_that_was_made_longer_ends_the_job_as_before(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        job = await queue.reserve(timeout=PATIENCE)
        for _ in range(3):
            await job.extend(1000)
        await job.ack()
        assert await queue.total() == 0


@needs(Capability.RESERVE, Capability.EXTEND)
async def test_a_lease_can_be_made_shorter(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        job = await queue.reserve(timeout=PATIENCE, lease=1000 * place.unit)
        await job.extend(place.unit)
        await place.advance(place.unit)
        assert (await queue.reserve(timeout=PATIENCE)).tries == 1


@needs(Capability.RESERVE)
async def test_a_block_acks_at_its_end(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(["one", "two"])
        async with queue.reserving(PATIENCE) as job:
            assert job.payload == "one"
        async with await queue.reserve(timeout=PATIENCE) as job:
            assert job.payload == "two"
        assert await queue.total() == 0
        async with queue.reserving(0) as job:
            assert job is None


@needs(Capability.RESERVE)
async def test_a_block_that_raises_returns_the_job(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        with pytest.raises(ZeroDivisionError):
            async with queue.reserving(PATIENCE) as job:
                raise ZeroDivisionError(job.payload)
        with pytest.raises(ZeroDivisionError):
            async with await queue.reserve(timeout=PATIENCE) as job:
                raise ZeroDivisionError(job.payload)
        assert (await queue.reserve(timeout=PATIENCE)).tries == 2


@needs(Capability.RESERVE)
async def test_a_block_that_raises_after_its_lease_was_lost_says_what_went_wrong(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        with pytest.raises(ZeroDivisionError):
            async with queue.reserving(PATIENCE) as job:
                await _ack_and_fail(job)
        assert await queue.total() == 0


@needs(Capability.RESERVE, Capability.EXTEND, Capability.TOKEN)
async def test_batches_say_for_each_job_whether_it_was_still_held(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push_many(range(4))
        jobs = await _reserve_all(queue, 4)
        await jobs[1].ack()
        assert await queue.extend_many(jobs, 1000) == [True, False, True, True]
        await jobs[2].ack()
        assert await queue.nack_many(jobs[:3]) == [True, False, False]
        assert await queue.ack_many(jobs) == [False, False, False, True]
        assert (await queue.reserve(timeout=PATIENCE)).payload == 0
        assert await queue.total() == 1


@needs(Capability.RESERVE)
async def test_a_job_is_ended_once_by_a_batch_that_has_it_twice(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push_many(range(2))
        first, second = await _reserve_all(queue, 2)
        assert (await queue.ack_many([first, second, first]))[:2] == [True, True]
        assert await queue.total() == 0


@needs(Capability.RESERVE, Capability.EXTEND)
async def test_batches_of_any_size_end(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        count = store._driver.batch_max + 5
        await queue.push_many(range(count))
        jobs = await _reserve_all(queue, count)
        assert sorted(job.payload for job in jobs) == list(range(count))
        assert await queue.extend_many(jobs, 2000) == [True] * count
        assert await queue.nack_many(jobs) == [True] * count
        jobs = await _reserve_all(queue, count)
        assert {job.tries for job in jobs} == {1}
        assert await queue.ack_many(jobs) == [True] * count
        assert await queue.total() == 0


async def _ack_and_fail(job: Any) -> None:
    await job.ack()
    raise ZeroDivisionError


async def _reserve_all(queue: Any, count: int) -> list[Any]:
    jobs: list[Any] = []
    while len(jobs) < count:
        more = await queue.reserve_many(count - len(jobs), PATIENCE)
        assert more
        jobs += more
    return jobs


@needs(Capability.RESERVE)
async def test_who_knows_id_and_token_can_end_a_job(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name(), lease=1000)
        there = other.queue(queue.name)
        await queue.push("work")
        job = await queue.reserve(timeout=PATIENCE)
        with pytest.raises(LeaseLost, match=r"can't be acked"):
            await there.ack_by_token(job.id, "nonsense")
        await there.ack_by_token(job.id, job.token)
        assert await queue.total() == 0
        with pytest.raises(LeaseLost, match=r"can't be given back"):
            await there.nack_by_token(job.id, job.token)


@needs(Capability.RESERVE, Capability.PEEK)
async def test_a_nack_by_token_does_what_the_queue_says(place: Place) -> None:
    limit = DeadLetter(2, place.new_name("dead"))
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name(), lease=1000)
        there = other.queue(queue.name, dead_letter=limit)
        await queue.push({"n": 1})
        job = await queue.reserve(timeout=PATIENCE)
        await there.nack_by_token(job.id, job.token)
        job = await queue.reserve(timeout=PATIENCE)
        assert job.tries == 1
        with pytest.raises(LeaseLost):
            await there.nack_by_token(job.id, "nonsense", error="not mine")
        await there.nack_by_token(job.id, job.token, error="broken pipe")
        assert await queue.total() == 0
        [dead] = await store.queue(limit.queue).peek()
        assert (dead.payload, dead.headers["x-dl-error"]) == ({"n": 1}, "broken pipe")
        with pytest.raises(LeaseLost):
            await there.nack_by_token(job.id, job.token)
