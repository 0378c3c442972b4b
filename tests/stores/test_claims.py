"""Many jobs leased under one key: the same ones again while it lives, never others in their place."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Capability, DeadLetter
from penstock.errors import CallerError, LeaseLost
from tests.stores.harness import PATIENCE, Place, needs

pytestmark = needs(Capability.CLAIM, Capability.RESERVE)


def _payloads(jobs: list[Any]) -> list[Any]:
    return sorted(job.payload for job in jobs)


async def test_a_claim_returns_the_same_jobs_again(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push_many(range(5))
        first = await queue.claim("batch", 3)
        assert _payloads(first) == [0, 1, 2]
        assert {job.tries for job in first} == {0}
        again = await other.queue(queue.name, lease=1000).claim("batch", 5)
        assert sorted(job.id for job in again) == sorted(job.id for job in first)
        assert {job.tries for job in again} == {0}
        assert None not in {job.created for job in first}
        assert {job.id: job.created for job in again} == {job.id: job.created for job in first}


async def test_jobs_of_a_claim_are_reserved(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push_many(range(3))
        await queue.claim("one", 2)
        assert _payloads(await queue.claim("two", 10)) == [2]
        assert await queue.reserve(timeout=0) is None
        assert await queue.total() == 3


async def test_ack_claim_ends_the_jobs_and_the_key(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push_many(range(3))
        await queue.claim("key", 2)
        assert await queue.ack_claim("key") == 2
        assert await queue.total() == 1
        assert await queue.ack_claim("key") == 0
        assert _payloads(await queue.claim("key", 2)) == [2]


async def test_nack_claim_returns_the_jobs_and_ends_the_key(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push_many(range(3))
        await queue.claim("key", 2)
        assert await queue.nack_claim("key") == 2
        assert await queue.nack_claim("key") == 0
        jobs = [await queue.reserve(timeout=PATIENCE) for _ in range(3)]
        assert {job.payload: job.tries for job in jobs} == {0: 1, 1: 1, 2: 0}


async def test_nack_claim_may_have_a_delay(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push("work")
        await queue.claim("key", 1)
        assert await queue.nack_claim("key", delay=place.unit) == 1
        assert await queue.reserve(timeout=0) is None
        await place.advance(place.unit)
        assert (await queue.reserve(timeout=PATIENCE)).tries == 1


async def test_after_its_leases_are_over_a_claim_still_returns_what_nobody_took(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(range(3))
        await queue.claim("key", 3, lease=place.unit)
        await place.advance(place.unit)
        taken = await queue.reserve(timeout=PATIENCE, lease=1000)
        assert taken.tries == 1
        again = await queue.claim("key", 10, lease=1000)
        assert _payloads([taken, *again]) == [0, 1, 2]
        assert len(again) == 2
        assert await queue.reserve(timeout=0) is None


async def test_jobs_of_a_claim_have_the_tries_in_which_work_began(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        await queue.reserve_many(1, PATIENCE, lease=place.unit, begin=0)
        await place.advance(place.unit)
        (first,) = await queue.claim("key", 1, lease=1000)
        (again,) = await queue.claim("key", 1, lease=1000)
        assert (first.tries, again.tries) == (0, 0)


async def test_a_claim_that_is_taken_up_after_its_leases_is_the_same_try(place: Place) -> None:
    async with place.connect() as store:
        limit = DeadLetter(2, place.new_name("dead"))
        queue = store.queue(place.new_name(), lease=place.unit, dead_letter=limit)
        await queue.push("x")
        await queue.claim("first", 1)
        await place.advance(1.1 * place.unit)
        (job,) = await queue.claim("second", 1)
        assert job.tries == 1
        for _ in range(2):
            await place.advance(1.1 * place.unit)
            (again,) = await queue.claim("second", 1)
            assert (again.id, again.tries) == (job.id, 1)
        assert await store.queue(limit.queue).total() == 0


async def test_others_never_come_in_the_place_of_jobs_that_were_lost(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        await queue.push_many(["a", "b"])
        await queue.claim("key", 2, lease=place.unit)
        await place.advance(place.unit)
        thief = other.queue(queue.name)
        stolen = [await thief.reserve(timeout=PATIENCE, lease=1000) for _ in range(2)]
        await stolen[0].ack()
        await queue.push_many(["c", "d"])
        assert await queue.claim("key", 2, lease=1000) == []
        assert await queue.extend_claim("key", 1000) == 0
        assert await queue.ack_claim("key") == 0
        assert await queue.total() == 3
        await stolen[1].ack()


async def test_a_job_that_was_taken_and_given_back_has_left_the_claim(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        await queue.claim("key", 1, lease=place.unit)
        await place.advance(place.unit)
        await (await queue.reserve(timeout=PATIENCE)).nack()
        assert await queue.claim("key", 1, lease=1000) == []
        assert (await queue.reserve(timeout=PATIENCE)).tries == 2


async def test_extend_claim_keeps_the_jobs(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(range(2))
        await queue.claim("key", 2, lease=place.unit)
        assert await queue.extend_claim("key", 4 * place.unit) == 2
        await place.advance(2 * place.unit)
        assert await queue.reserve(timeout=0) is None
        assert await queue.ack_claim("key") == 2
        assert await queue.extend_claim("no such key", 1) == 0


async def test_jobs_of_a_claim_can_be_ended_one_by_one(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push_many(range(4))
        jobs = {job.payload: job for job in await queue.claim("key", 4)}
        await jobs[0].ack()
        await jobs[1].nack()
        await jobs[2].fail("no")
        assert _payloads(await queue.claim("key", 4)) == [3]
        assert await queue.ack_claim("key") == 1
        assert (await queue.reserve(timeout=PATIENCE)).payload == 1


@needs(Capability.EXTEND)
async def test_a_job_whose_lease_was_made_longer_by_itself_stays_under_its_claim(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push("work")
        (job,) = await queue.claim("key", 1)
        await job.extend()
        assert _payloads(await queue.claim("key", 1)) == ["work"]
        assert await queue.ack_claim("key") == 1


@needs(Capability.TOKEN)
async def test_jobs_that_a_claim_gave_again_belong_to_the_last_caller(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push("work")
        (old,) = await queue.claim("key", 1)
        (new,) = await queue.claim("key", 1)
        with pytest.raises(LeaseLost):
            await old.ack()
        await new.ack()


async def test_a_claim_that_found_no_job_made_no_key(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        assert await queue.claim("key", 3) == []
        await queue.push("late")
        assert _payloads(await queue.claim("key", 3)) == ["late"]


async def test_a_key_whose_jobs_all_went_stays_empty_until_it_is_ended(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push("work")
        (job,) = await queue.claim("key", 3)
        await job.ack()
        await queue.push("late")
        assert await queue.claim("key", 3) == []
        assert await queue.ack_claim("key") == 0
        assert _payloads(await queue.claim("key", 3)) == ["late"]


async def test_a_claim_of_no_jobs_returns_those_that_the_key_has(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push_many(range(2))
        assert await queue.claim("key", 0) == []
        assert _payloads(await queue.claim("key", 1)) == [0]
        assert _payloads(await queue.claim("key", 0)) == [0]


@needs(Capability.DELAY)
async def test_a_claim_returns_its_jobs_again_in_the_same_order(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name(), lease=1000)
        for name, delay in (("first", 2 * place.unit), ("second", place.unit), ("third", 0)):
            await queue.push(name, delay=delay)
        await queue.push_many(range(20))
        await place.advance(2 * place.unit)
        ids = [job.id for job in await queue.claim("key", 30)]
        assert len(ids) == 23
        assert [job.id for job in await other.queue(queue.name, lease=1000).claim("key", 30)] == ids


async def test_keys_of_two_queues_are_apart(place: Place) -> None:
    async with place.connect() as store:
        red, green = (store.queue(place.new_name(), lease=1000) for _ in range(2))
        await red.push("red")
        await green.push("green")
        assert _payloads(await red.claim("key", 1)) == ["red"]
        assert _payloads(await green.claim("key", 1)) == ["green"]
        assert await red.ack_claim("key") == 1
        assert await green.total() == 1


async def test_a_claim_larger_than_a_round_trip(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        count = store._driver.batch_max + 10
        await queue.push_many(range(count))
        assert _payloads(await queue.claim("key", count)) == list(range(count))
        assert len(await queue.claim("key", count)) == count
        assert await queue.extend_claim("key") == count
        assert await queue.ack_claim("key") == count
        assert await queue.total() == 0


@needs(Capability.PEEK)
async def test_jobs_whose_workers_died_too_often_are_given_up_in_a_claim_too(place: Place) -> None:
    limit = DeadLetter(1, place.new_name("dead"))
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=limit, lease=1000)
        await queue.push("deadly")
        await queue.reserve(timeout=PATIENCE, lease=place.unit)
        await place.advance(place.unit)
        await queue.push("harmless")
        assert _payloads(await queue.claim("key", 2)) == ["harmless"]
        assert _payloads(await queue.claim("key", 2)) == ["harmless"]
        assert _payloads(await store.queue(limit.queue).peek()) == ["deadly"]


async def test_a_paused_queue_returns_only_what_a_claim_has_already(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push_many(range(2))
        await queue.claim("old", 1)
        await queue.pause()
        assert await queue.claim("new", 1) == []
        assert _payloads(await queue.claim("old", 1)) == [0]
        await queue.resume()
        assert _payloads(await queue.claim("new", 1)) == [1]


@pytest.mark.parametrize(
    ("key", "count", "says"), [("", 1, "a claim key must be text"), ("key", -1, "must have a count of 0 or more")]
)
async def test_a_claim_needs_a_key_and_a_count(place: Place, key: str, count: int, says: str) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        assert await queue.extend_claim("no such key") == 0
        with pytest.raises(CallerError, match=says):
            await queue.claim(key, count)


@needs(Capability.CLAIM)
async def test_jobs_claimed_unread_are_read_by_their_key(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        await queue.push_many(range(7))
        assert await queue.claim_unread("k", 5) == 5
        assert (await queue.size(), await queue.reserved()) == (2, 5)
        read = await other.queue(queue.name).claim("k", 0)
        assert sorted(job.payload for job in read) == [0, 1, 2, 3, 4]
        assert await queue.claim_unread("k", 5) == 5, "the key has these already, and gets no others"
        assert await queue.ack_claim("k") == 5
        assert await queue.total() == 2


@needs(Capability.CLAIM)
async def test_nothing_to_claim_unread_makes_no_key(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        assert await queue.claim_unread("k", 5) == 0
        await queue.push("late")
        assert await queue.claim_unread("k", 0) == 0
        await queue.pause()
        assert await queue.claim_unread("k", 5) == 0
        await queue.resume()
        assert await queue.claim_unread("k", 5) == 1


@needs(Capability.CLAIM)
async def test_many_jobs_claimed_unread_are_one_claim(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(range(2500))
        assert await queue.claim_unread("k", 2400) == 2400
        assert await queue.extend_claim("k") == 2400
        assert len(await queue.claim("k", 0)) == 2400
        assert await queue.ack_claim("k") == 2400
        assert await queue.total() == 100


@needs(Capability.CLAIM, Capability.TOKEN)
async def test_a_claim_left_unread_has_leases_that_end(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(range(3))
        await queue.claim_unread("k", 3, lease=place.unit)
        await place.advance(2 * place.unit)
        taken = await queue.reserve(timeout=PATIENCE)
        assert taken is not None
        assert await queue.claim_unread("k", 3) == 2
