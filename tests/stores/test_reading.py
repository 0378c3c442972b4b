"""Peek, sizes, remove and purge."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Capability, JobState
from penstock.errors import CallerError
from penstock.job import LIVE
from tests.stores.harness import PATIENCE, Differs, Place, needs

EVERY_STATE = needs(Capability.PEEK, Capability.RESERVE, Capability.DELAY)


async def _one_of_each(place: Place, store: Any) -> Any:
    """A queue with a job in each state, whose payload is the state's name."""
    queue = store.queue(place.new_name(), lease=1000)
    await queue.push("reserved")
    await queue.reserve(timeout=PATIENCE)
    await queue.push("ready")
    await queue.push("scheduled", delay=1000)
    return queue


@EVERY_STATE
async def test_jobs_of_each_state_can_be_read(place: Place) -> None:
    async with place.connect() as store:
        queue = await _one_of_each(place, store)
        for state in LIVE:
            (job,) = await queue.peek(state=state)
            assert (job.payload, job.state) == (state.value, state)
            assert [job.payload async for job in queue.jobs(state=state.value)] == [state.value]
        everything = {job.payload async for job in queue.jobs()}
        assert everything == {job.payload for job in await queue.peek(state=None)} == {s.value for s in LIVE}


@needs(Capability.PEEK, Capability.RESERVE, Capability.REMOVE, Capability.HISTORY)
async def test_jobs_that_have_ended_can_be_looked_at(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        ids = await queue.push_many(["popped", "acked", "removed", "left"])
        await queue.pop(timeout=PATIENCE)
        await place.advance(1)
        await (await queue.reserve(timeout=PATIENCE)).ack()
        await place.advance(1)
        assert await queue.remove(ids[2]) == [True]
        done = await queue.peek(state="done")
        assert [(job.id, job.payload, job.state) for job in done] == [
            (ids[number], payload, JobState.DONE) for number, payload in ((2, "removed"), (1, "acked"), (0, "popped"))
        ]
        assert [job.payload async for job in queue.jobs(state=JobState.DONE)] == ["removed", "acked", "popped"]
        assert [job.payload async for job in queue.jobs()] == ["left"]
        assert (await queue.sizes()).total == 1


@needs(Capability.PEEK)
async def test_a_read_changes_nothing(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(range(3))
        for _ in range(2):
            assert [job.payload for job in await queue.peek()] == [0, 1, 2]
        assert [job.payload for job in await queue.peek(2)] == [0, 1]
        assert await queue.size() == 3
        job = await queue.pop(timeout=PATIENCE)
        assert (job.payload, job.tries) == (0, 0)


@needs(Capability.PEEK)
async def test_a_read_shows_what_is_known_of_a_job(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        before = place.now() - 1
        job_id = await queue.push({"a": 1})
        (job,) = await queue.peek()
        assert (job.payload, job.headers, job.tries) == ({"a": 1}, {}, 0)
        assert job.id == ("" if place.differs(Differs.NO_IDS) else job_id)
        for time in (job.created, job.mature):
            assert time is None or before <= time <= place.now() + 1


@needs(Capability.PEEK)
async def test_a_read_goes_through_all_pages(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(range(1234))
        for state in (None, JobState.READY):
            assert [job.payload async for job in queue.jobs(state=state)] == list(range(1234))


@EVERY_STATE
async def test_pages_hold_jobs_of_one_state_only(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push_many(range(1200))
        reserved = []
        while len(reserved) < 600:
            reserved += await queue.reserve_many(600 - len(reserved), PATIENCE)
        await queue.push_many(range(2000, 2600), delay=1000)
        expected = {
            JobState.RESERVED: {job.payload for job in reserved},
            JobState.READY: set(range(1200)) - {job.payload for job in reserved},
            JobState.SCHEDULED: set(range(2000, 2600)),
        }
        for state, payloads in expected.items():
            found = [job.payload async for job in queue.jobs(state=state)]
            assert len(found) == len(payloads)
            assert set(found) == payloads


@needs(Capability.PEEK)
async def test_jobs_that_come_and_go_between_pages_do_no_harm(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(range(1100))
        seen = []
        async for job in queue.jobs():
            if not seen:
                for _ in range(10):
                    await queue.pop(timeout=PATIENCE)
                await queue.push("new")
            seen.append(job.payload)
        assert len(seen) == len(set(seen))
        assert set(range(600, 1100)) <= set(seen)


@EVERY_STATE
async def test_sizes(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = other.queue((await _one_of_each(place, store)).name)
        await queue.push("ready too")
        total, ready, scheduled, reserved = await queue.sizes()
        assert (total, ready) == (4, 2)
        assert (scheduled, reserved) in {(1, 1), (2, None)}
        assert (await queue.size(), await queue.total()) == (2, 4)
        assert (await queue.scheduled(), await queue.reserved()) == (scheduled, reserved)


@needs(Capability.RESERVE)
async def test_a_lease_that_is_over_counts_as_ready(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        await queue.reserve(timeout=PATIENCE, lease=place.unit)
        assert (await queue.size(), await queue.total()) == (0, 1)
        await place.advance(place.unit)
        assert (await queue.size(), await queue.total()) == (1, 1)


async def test_an_unknown_queue_is_empty(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        sizes = await queue.sizes()
        assert (sizes.total, sizes.ready, sizes.scheduled) == (0, 0, 0)
        assert not sizes.reserved
        assert await queue.next_mature() is None
        assert queue.name not in await store.queues()


@needs(Capability.DELAY, Capability.RESERVE)
async def test_the_time_of_the_next_job(place: Place) -> None:
    place.need(Differs.NO_NEXT_MATURE)
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        before = place.now()
        await queue.push("far", delay=1000)
        await queue.push("near", delay=100)
        assert before + 99 <= await queue.next_mature() <= place.now() + 101
        await place.advance(100)
        assert await queue.next_mature() <= place.now()
        await queue.reserve(timeout=PATIENCE, lease=500)
        assert place.now() + 490 <= await queue.next_mature() <= place.now() + 510


@EVERY_STATE
@needs(Capability.REMOVE)
async def test_jobs_that_wait_can_be_removed(place: Place) -> None:
    async with place.connect() as store:
        queue = await _one_of_each(place, store)
        ids = {job.payload: job.id async for job in queue.jobs()}
        wanted = [ids["ready"], ids["reserved"], "no-such-id", ids["scheduled"], ids["ready"]]
        assert await queue.remove(*wanted) == [True, False, False, True, False]
        assert [job.payload async for job in queue.jobs()] == ["reserved"]
        assert await queue.remove() == []


@needs(Capability.REMOVE)
async def test_any_number_of_jobs_can_be_removed(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        ids = await queue.push_many(range(store._driver.batch_max + 10))
        assert await queue.remove(*ids[1:]) == [True] * (len(ids) - 1)
        assert (await queue.pop(timeout=PATIENCE)).payload == 0
        assert await queue.total() == 0


@EVERY_STATE
async def test_purge_leaves_only_what_is_reserved(place: Place) -> None:
    async with place.connect() as store:
        queue = await _one_of_each(place, store)
        assert await queue.purge() == 2
        assert [job.payload async for job in queue.jobs()] == ["reserved"]
        assert await queue.purge() == 0


async def test_purge_of_many(place: Place) -> None:
    async with place.connect() as store:
        queue, other = store.queue(place.new_name()), store.queue(place.new_name())
        await queue.push_many(range(2500))
        await other.push("stays")
        assert await queue.purge() == 2500
        assert await queue.total() == 0
        assert await other.total() == 1


@needs(Capability.PEEK)
@pytest.mark.parametrize("call", [{"state": "lost"}, {"count": 0}, {"count": -1}])
async def test_a_read_for_what_can_not_be_is_refused(place: Place, call: dict[str, Any]) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        with pytest.raises(CallerError):
            await queue.peek(**call)


@needs(Capability.HEADERS)
async def test_a_job_knows_when_it_was_pushed(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        before = place.now() - 1
        await queue.push({"a": 1}, headers={"h": 1})
        if Capability.PEEK in store.capabilities:
            (seen,) = await queue.peek()
            assert before <= seen.created <= place.now() + 1
            assert seen.headers == {"h": 1}
        job = await queue.pop(timeout=PATIENCE)
        assert before <= job.created <= place.now() + 1
        assert job.headers == {"h": 1}


@needs(Capability.RESERVE, Capability.PEEK, Capability.DELAY)
async def test_a_job_keeps_its_time_through_tries_dead_letters_and_redrive(place: Place) -> None:
    async with place.connect(dead_letter=f"2,{place.new_name('dead')}") as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        (seen,) = await queue.peek()
        await place.advance(place.unit)
        job = await queue.reserve(timeout=PATIENCE)
        assert job.created == seen.created
        await job.nack()
        await (await queue.reserve(timeout=PATIENCE)).nack()
        (dead,) = await store.dead_letters().peek()
        own_id = {"x-dl-job"} if place.differs(Differs.OWN_IDS) else set()
        assert dead.created == seen.created
        assert set(dead.headers) == {"x-dl-from-queue", "x-dl-t", "x-dl-tries"} | own_id
        await place.advance(place.unit)
        assert await store.dead_letters().redrive() == 1
        (again,) = await queue.peek()
        if not place.differs(Differs.OWN_IDS):  # there it is a new job, whose body has no place for a time
            assert again.created == seen.created
