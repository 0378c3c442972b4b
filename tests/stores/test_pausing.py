"""Pauses, counters and the directory of queues."""

from __future__ import annotations

import pytest

from penstock import Capability, DeadLetter
from penstock.errors import CallerError
from tests.stores.harness import PATIENCE, Place, needs


async def test_a_paused_queue_returns_nothing_until_it_is_resumed(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        await queue.pause()
        assert await queue.paused()
        assert await queue.pop(timeout=0) is None
        assert await queue.pop(timeout=0.1) is None
        await queue.push("more")
        assert await queue.total() == 2
        await queue.resume()
        assert not await queue.paused()
        assert (await queue.pop(timeout=PATIENCE)).payload == "work"


@needs(Capability.RESERVE)
async def test_jobs_of_a_paused_queue_can_be_ended(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many(["one", "two"])
        jobs = [await queue.reserve(timeout=PATIENCE) for _ in range(2)]
        await queue.pause()
        await jobs[0].ack()
        await jobs[1].nack()
        assert await queue.reserve(timeout=0) is None
        await queue.resume()
        assert (await queue.reserve(timeout=PATIENCE)).tries == 1


async def test_another_connection_sees_the_pause(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        there = other.queue(queue.name)
        await queue.push("work")
        await queue.pause()
        assert await there.paused()
        assert await there.pop(timeout=0) is None
        await there.resume()
        assert not await queue.paused()
        assert (await queue.pop(timeout=PATIENCE)).payload == "work"


async def test_a_resume_between_two_waits_is_noticed(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        there = other.queue(queue.name)
        await queue.push("work")
        await there.pause()
        assert await queue.pop(timeout=0) is None
        await there.resume()
        assert (await queue.pop(timeout=PATIENCE)).payload == "work"


async def test_a_pause_is_of_one_queue(place: Place) -> None:
    async with place.connect() as store:
        queue, other = store.queue(place.new_name()), store.queue(place.new_name())
        await other.push("work")
        await queue.pause()
        assert (await other.pop(timeout=PATIENCE)).payload == "work"


@needs(Capability.SHARED_PAUSE)
async def test_a_pause_outlives_its_maker(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push("work")
        await queue.pause()
    async with place.connect() as store:
        queue = store.queue(queue.name)
        assert await queue.pop(timeout=0) is None
        assert await queue.paused()
        await queue.resume()
        assert (await queue.pop(timeout=PATIENCE)).payload == "work"


async def test_queues_are_listed(place: Place) -> None:
    async with place.connect() as store:
        full, used = store.queue(place.new_name("full")), store.queue(place.new_name("used"))
        for queue in (full, used):
            await queue.push(1)
        await used.pop(timeout=PATIENCE)
        names = await store.queues()
        assert {full.name, used.name} <= set(names)
        assert names == sorted(set(names))


async def test_queues_are_made_again_as_they_were(place: Place) -> None:
    limit = DeadLetter(4, place.new_name("dead"))
    async with place.connect() as store:
        queue = store.queue(place.new_name(), dead_letter=limit, lease=77, codec="text", poll=11)
        await queue.push("work")
        plain = store.queue(place.new_name())
        await plain.push(1)
        await plain.pause()
        async with place.connect() as other:
            # Without options, what is known stays.
            await other.queue(queue.name).push("more")
            known = await other.topology()
            assert known[queue.name]["counters"]["push"] >= 1
            assert (known[queue.name]["paused"], known[plain.name]["paused"]) == (False, True)
            made = (await other.recreate())[queue.name]
        assert (made.dead_letter, made.lease, made.codec, made.poll_s) == (limit, 77, "text", 11)
        await plain.resume()


@pytest.mark.parametrize("name", ["", "x" * 1025])
async def test_a_queue_needs_a_name(place: Place, name: str) -> None:
    async with place.connect() as store:
        with pytest.raises(CallerError, match="name"):
            store.queue(name)
