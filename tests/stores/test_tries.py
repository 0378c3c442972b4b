"""Tries: a delivery counts once work on the job began, also where its worker died; what only waited there doesn't."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Capability, DeadLetter
from penstock.job import JobState
from penstock.queues.dead_letter import ERROR, TRIES, UNBEGUN_MAX
from tests.stores.harness import PATIENCE, Differs, Place, needs


async def reserve(queue: Any, place: Place, count: int, begin: int | None, lease: float | None = None) -> list[Any]:
    """Reserve jobs, in the order in which they were pushed."""
    jobs = await queue.reserve_many(count, PATIENCE, lease=place.unit if lease is None else lease, begin=begin)
    assert len(jobs) == count
    return sorted(jobs, key=lambda job: job.payload)


@needs(Capability.RESERVE)
async def test_a_lease_that_runs_out_before_work_began_costs_no_try(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(["a", "b", "c"])
        jobs = await reserve(queue, place, 3, begin=1)
        assert [job.has_begun for job in jobs] == [True, False, False]
        await place.advance(place.unit)
        again = await reserve(queue, place, 3, begin=0)
        assert [(job.payload, job.tries) for job in again] == [("a", 1), ("b", 0), ("c", 0)]
        assert [job.stored.unbegun for job in again] == [0, 1, 1]
        assert {job.stored.is_back for job in again} == {True}


@needs(Capability.RESERVE)
async def test_a_job_that_comes_back_begins_only_when_that_is_said(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        for unbegun in range(3):
            (job,) = await reserve(queue, place, 1, begin=int(unbegun > 0))
            assert (job.has_begun, job.tries, job.stored.unbegun) == (False, 0, unbegun)
            await place.advance(place.unit)
        job = await queue.reserve(timeout=PATIENCE)
        assert (job.has_begun, job.tries, job.stored.unbegun) == (True, 0, 3)


@needs(Capability.RESERVE, Capability.EXTEND)
async def test_an_extend_says_that_work_has_begun(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(["a", "b"])
        a, b = await reserve(queue, place, 2, begin=0)
        # Longer than the reserve's lease: one renewed to the same end would end a millisecond later, in Redis for one.
        assert await queue.extend_many([a, b], 2 * place.unit, begun=[a]) == [True, True]
        assert (a.has_begun, b.has_begun) == (True, False)
        await place.advance(2 * place.unit)
        again = await reserve(queue, place, 2, begin=0)
        assert [(job.tries, job.stored.unbegun) for job in again] == [(1, 0), (0, 1)]


@needs(Capability.RESERVE)
async def test_an_ack_says_that_work_on_others_has_begun(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(["a", "b", "c"])
        a, b, c = await reserve(queue, place, 3, begin=1)
        assert await queue.ack_many([a], begun=[b]) == [True]
        assert (b.has_begun, c.has_begun) == (True, False)
        await place.advance(place.unit)
        again = await reserve(queue, place, 2, begin=0)
        assert [(job.payload, job.tries, job.stored.unbegun) for job in again] == [("b", 1, 0), ("c", 0, 1)]


@needs(Capability.RESERVE)
async def test_an_ack_of_nothing_says_that_work_has_begun(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        (job,) = await reserve(queue, place, 1, begin=0)
        assert await queue.ack_many([], begun=[job]) == []
        assert job.has_begun
        await place.advance(place.unit)
        assert (await reserve(queue, place, 1, begin=0))[0].tries == 1


@needs(Capability.RESERVE)
async def test_a_job_on_which_work_has_not_begun_is_ended_by_its_id(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(["a", "b"])
        a, b = await reserve(queue, place, 2, begin=0)
        await queue.ack(a.id)
        await queue.nack(b.id, 0)
        (again,) = await reserve(queue, place, 1, begin=None)
        assert (again.payload, again.tries) == ("b", 1)
        await again.ack()
        assert await queue.total() == 0


@needs(Capability.RESERVE)
async def test_leases_that_end_before_work_began_bring_no_job_to_the_dead_letters_by_a_nack(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=DeadLetter(2, place.new_name()))
        job_id = await queue.push("work")
        for _ in range(2):
            await reserve(queue, place, 1, begin=0)
            await place.advance(place.unit)
        await reserve(queue, place, 1, begin=None)
        await queue.nack(job_id, 0)
        (job,) = await reserve(queue, place, 1, begin=None)
        assert (job.payload, job.tries) == ("work", 1)


@needs(Capability.RESERVE, Capability.EXTEND)
@pytest.mark.parametrize("end", ["ack", "nack", "fail", "extend"])
async def test_the_token_stays_good_when_work_begins(place: Place, end: str) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(["a", "b"])
        a, b = await reserve(queue, place, 2, begin=1, lease=1000)
        token = b.token
        assert await queue.ack_many([a], begun=[b]) == [True]
        assert b.token == token
        await getattr(b, end)()


@needs(Capability.RESERVE)
async def test_a_token_of_a_lease_that_ran_out_begins_nothing(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(["a", "b"])
        _, stale = await reserve(queue, place, 2, begin=0)
        await place.advance(place.unit)
        a, b = await reserve(queue, place, 2, begin=0)
        assert await queue.ack_many([a], begun=[stale]) == [True]
        await place.advance(place.unit)
        (again,) = await reserve(queue, place, 1, begin=0)
        assert (again.id, again.tries, again.stored.unbegun) == (b.id, 0, 2)


@needs(Capability.RESERVE)
async def test_a_job_that_is_given_back_unbegun_is_as_before(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        await reserve(queue, place, 1, begin=0)
        await place.advance(place.unit)
        await queue.release_many(await reserve(queue, place, 1, begin=0))
        (job,) = await reserve(queue, place, 1, begin=1)
        assert job.tries == 0
        if Differs.STAYS_BACK not in place.kind.differs:
            assert (job.has_begun, job.stored.is_back, job.stored.unbegun) == (True, False, 0)


@needs(Capability.RESERVE)
async def test_a_nack_counts_whether_work_was_said_to_have_begun_or_not(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        (job,) = await reserve(queue, place, 1, begin=0)
        await job.nack()
        (job,) = await reserve(queue, place, 1, begin=1)
        assert (job.has_begun, job.tries, job.stored.is_back) == (True, 1, False)


@needs(Capability.RESERVE)
async def test_pop_after_a_lease_that_had_not_begun_shows_no_try(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        await reserve(queue, place, 1, begin=0)
        await place.advance(place.unit)
        assert (await queue.pop(timeout=PATIENCE)).tries == 0


@needs(Capability.RESERVE, Capability.PEEK)
async def test_peek_shows_the_tries_before_the_present_lease(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(["a", "b"])
        await reserve(queue, place, 2, begin=1)
        seen = sorted((job.payload, job.tries, job.state) for job in await queue.peek(10, state=None))
        assert seen == [("a", 0, JobState.RESERVED), ("b", 0, JobState.RESERVED)]


@needs(Capability.RESERVE)
async def test_deaths_before_work_began_have_a_limit_of_their_own(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=DeadLetter(1, place.new_name()))
        await queue.push("work")
        for _ in range(3):
            (job,) = await reserve(queue, place, 1, begin=0)
            assert job.tries == 0
            await place.advance(place.unit)
        assert (await reserve(queue, place, 1, begin=0))[0].stored.unbegun == 3


@needs(Capability.RESERVE)
async def test_a_job_whose_workers_always_die_before_it_begins_is_given_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert UNBEGUN_MAX == 1000
    monkeypatch.setattr("penstock.queues.dead_letter.UNBEGUN_MAX", 2)
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=DeadLetter(1, place.new_name()))
        await queue.push("work")
        for _ in range(2):
            await reserve(queue, place, 1, begin=0)
            await place.advance(place.unit)
        assert await queue.reserve(timeout=0) is None
        dead = await store.queue(queue.dead_letter.queue).pop(timeout=PATIENCE)
        error = "was reserved 2 times by workers that died before its handler began"
        assert (dead.headers[ERROR], dead.headers[TRIES]) == (error, 0)


@needs(Capability.RESERVE)
@pytest.mark.parametrize("ends_by", ["nack", "death"])
async def test_a_dead_letter_has_the_number_of_deliveries_before_the_last(place: Place, ends_by: str) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=DeadLetter(3, place.new_name()))
        await queue.push("work")
        for _ in range(3):
            job = await queue.reserve(timeout=PATIENCE, lease=place.unit)
            if ends_by == "nack":
                await job.nack()
            else:
                await place.advance(place.unit)
        assert await queue.reserve(timeout=0) is None
        assert (await store.queue(queue.dead_letter.queue).pop(timeout=PATIENCE)).headers[TRIES] == 2
