"""Pauses, counters and the directory of queues."""

from __future__ import annotations

import asyncio

import pytest

from penstock import Capability, DeadLetter
from penstock.errors import CallerError
from tests.stores.harness import PATIENCE, Place, needs


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(place: Place) -> None:
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
async def test_a_pause_outlives_who_made_it(place: Place) -> None:
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


@needs(Capability.RESERVE)
async def test_counters(place: Place) -> None:
    async with place.connect() as store:
        dead = DeadLetter(queue=place.new_name("dead"))
        queue = store.queue(place.new_name(), dead_letter=dead, lease=1000)
        await queue.push("popped")
        await queue.push_many(["acked", "nacked", "failed"])
        await queue.pop(timeout=PATIENCE)
        jobs = [await queue.reserve(timeout=PATIENCE) for _ in range(3)]
        await jobs[0].ack()
        await jobs[1].nack(delay=1000)
        await jobs[2].fail()
        counted = await queue.stats()
        expected = {"put": 4, "get": 1, "reserve": 3, "commit": 1, "rollback": 1, "deadletter": 1}
        assert {name: counted.get(name, 0) for name in expected} == expected
        assert (await store.queue(dead.queue).stats())["put"] == 1


async def test_counters_of_all_connections_come_together(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push(1)
        async with place.connect() as other:
            await other.queue(queue.name).push_many([2, 3])
        assert (await queue.stats())["put"] == 3


async def test_counters_are_written_soon_by_themselves(aio_place: Place) -> None:
    async with aio_place.connect() as store, aio_place.connect() as other:
        queue = store.queue(aio_place.new_name())
        await queue.push(1)
        async with asyncio.timeout(PATIENCE):
            while (await other.queue(queue.name).stats()).get("put") != 1:  # noqa: ASYNC110 - nobody would set an event
                await asyncio.sleep(0.02)


async def test_queues_are_listed(place: Place) -> None:
    async with place.connect() as store:
        full, used = store.queue(place.new_name("full")), store.queue(place.new_name("used"))
        for queue in (full, used):
            await queue.push(1)
        await used.pop(timeout=PATIENCE)
        names = await store.queues()
        assert {full.name, used.name} <= set(names)
        assert names == sorted(set(names))


async def test_queues_are_made_anew_as_they_were(place: Place) -> None:
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
            assert known[queue.name]["counters"]["put"] >= 1
            assert (known[queue.name]["paused"], known[plain.name]["paused"]) == (False, True)
            made = (await other.recreate())[queue.name]
        assert (made.dead_letter, made.lease, made.codec, made.poll_s) == (limit, 77, "text", 11)
        await plain.resume()


async def test_namespaces_have_counters_of_their_own(place: Place) -> None:
    async with place.connect() as store, place.connect(name=place.new_name("other")) as other:
        queue = store.queue(place.new_name())
        await queue.push(1)
        await other.queue(queue.name).push(2)
        assert (await queue.stats())["put"] == 1
        assert await queue.total() == 2


@pytest.mark.parametrize("name", ["", "x" * 1025])
async def test_a_queue_needs_a_name(place: Place, name: str) -> None:
    async with place.connect() as store:
        with pytest.raises(CallerError, match="name"):
            store.queue(name)
