"""No second job under one key, while the first exists and for a while after."""

from __future__ import annotations

import pytest

from penstock import Capability, Push
from tests.stores.harness import PATIENCE, Place, needs

pytestmark = needs(Capability.UNIQUE)


async def test_a_key_returns_the_first_jobs_id_while_that_job_waits(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        first = await queue.push("first", unique="order-17")
        assert await queue.push("second", unique="order-17") == first
        assert await other.queue(queue.name).push("third", unique="order-17") == first
        assert await queue.total() == 1
        assert (await queue.pop(timeout=PATIENCE)).payload == "first"


async def test_other_keys_and_jobs_without_one_are_free(place: Place) -> None:
    async with place.connect() as store:
        queue, other = store.queue(place.new_name()), store.queue(place.new_name())
        ids = [await queue.push(number, unique=key) for number, key in enumerate(["a", "b", None, None])]
        ids.append(await other.push(5, unique="a"))
        assert len(set(ids)) == 5
        assert await queue.total() == 4


@needs(Capability.RESERVE, Capability.DELAY)
async def test_a_key_is_taken_in_every_state_of_its_job(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        first = await queue.push("work", unique="key", delay=place.unit)
        assert await queue.push("scheduled", unique="key") == first
        await place.advance(place.unit)
        job = await queue.reserve(timeout=PATIENCE, lease=1000)
        assert await queue.push("reserved", unique="key") == first
        await job.nack(delay=place.unit)
        assert await queue.push("given back", unique="key") == first
        await place.advance(place.unit)
        await queue.reserve(timeout=PATIENCE, lease=place.unit)
        await place.advance(place.unit)
        assert await queue.push("lease over", unique="key") == first
        assert await queue.total() == 1


@pytest.mark.parametrize("end", ["pop", "ack", "remove", "purge"])
async def test_a_key_is_free_after_the_end_of_its_job(place: Place, end: str) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        first = await queue.push("first", unique="key")
        if end == "pop":
            await queue.pop(timeout=PATIENCE)
        elif end == "ack":
            await (await queue.reserve(timeout=PATIENCE)).ack()
        elif end == "remove":
            assert await queue.remove(first) == [True]
        else:
            assert await queue.purge() == 1
        second = await queue.push("second", unique="key")
        assert second != first
        assert await queue.push("third", unique="key") == second
        assert (await queue.pop(timeout=PATIENCE)).payload == "second"


async def test_a_key_stays_taken_for_so_long_after_the_end_of_its_job(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        first = await queue.push("first", unique="key", unique_for=2 * place.unit)
        await place.advance(place.unit)
        await other.queue(queue.name).pop(timeout=PATIENCE)
        await place.advance(place.unit)
        assert await queue.push("second", unique="key") == first
        assert await queue.total() == 0
        await place.advance(place.unit)
        assert await queue.push("third", unique="key") != first
        assert (await queue.pop(timeout=PATIENCE)).payload == "third"


async def test_of_equal_keys_in_one_batch_the_first_wins(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        old = await queue.push("old", unique="a")
        ids = await queue.push_many(
            [Push("1", unique="a"), Push("2", unique="b"), Push("3"), Push("4", unique="b"), Push("5", unique="a")]
        )
        assert ids[0] == ids[4] == old
        assert ids[1] == ids[3]
        assert len(set(ids)) == 3
        jobs = [await queue.pop(timeout=PATIENCE) for _ in range(3)]
        assert [job.payload for job in jobs] == ["old", "2", "3"]


@needs(Capability.RESERVE)
async def test_a_try_more_changes_nothing_for_the_key(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        first = await queue.push("work", unique="key")
        for _ in range(2):
            await (await queue.reserve(timeout=PATIENCE)).nack()
        assert await queue.push("again", unique="key") == first
        await (await queue.reserve(timeout=PATIENCE)).ack()
        assert await queue.push("again", unique="key") != first


async def test_only_jobs_that_were_stored_are_counted(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many([Push(number, unique="key") for number in range(3)])
        assert (await queue.stats())["push"] == 1
