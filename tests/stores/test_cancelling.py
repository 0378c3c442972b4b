"""A task that is cancelled never takes a job with it, whenever that happens."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from typing import Any

import pytest

from penstock import Capability
from penstock.errors import CallerError, WaitCancelled
from penstock.queues import aio
from tests.stores.harness import PATIENCE, Place, needs

ROUNDS = 300 if os.environ.get("PENSTOCK_LONG") else 40


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _ended(task: asyncio.Task[Any]) -> Any:
    """What a task gave before it was cancelled, if it did."""
    try:
        return await asyncio.wait_for(task, PATIENCE)
    except asyncio.CancelledError:
        return None


@pytest.mark.parametrize("way", ["pop", pytest.param("reserve", marks=needs(Capability.RESERVE))])
async def test_a_wait_that_is_cancelled_loses_no_job(aio_place: Place, way: str) -> None:
    """The cancel comes some turns of the loop, or some time, before or after the push; others may wait, too."""
    chance = random.Random(17)
    async with aio_place.connect() as store, aio_place.connect() as other:
        queue = store.queue(aio_place.new_name(), lease=1000)
        there = other.queue(queue.name)
        taken: Counter[int] = Counter()
        for number in range(ROUNDS):
            tasks = [
                asyncio.create_task(getattr(queue, way)(timeout=chance.choice([0, 0.01, None])))
                for _ in range(chance.randint(1, 3))
            ]
            await _turns(chance.randint(0, 4))
            push = asyncio.create_task(there.push(number))
            await (asyncio.sleep(chance.random() * 0.01) if chance.random() < 0.5 else _turns(chance.randint(0, 12)))
            for task in tasks:
                task.cancel()
            await push
            for job in [await _ended(task) for task in tasks]:
                if job is not None:
                    taken[job.payload] += 1
                    if way == "reserve":
                        await job.ack()
        while sum(taken.values()) < ROUNDS:
            job = await asyncio.wait_for(queue.pop(), PATIENCE)
            taken[job.payload] += 1
            assert job.tries == 0
        assert taken == Counter(range(ROUNDS))
        assert await queue.total() == 0


async def test_a_pop_that_is_cancelled_loses_no_job(aio_place: Place) -> None:
    """The same, for stores that can't reserve, with jobs that are there before."""
    chance = random.Random(18)
    async with aio_place.connect() as store:
        queue = store.queue(aio_place.new_name())
        await queue.push_many(range(ROUNDS))
        taken: Counter[int] = Counter()
        for _ in range(ROUNDS):
            task = asyncio.create_task(queue.pop(timeout=PATIENCE))
            await (asyncio.sleep(chance.random() * 0.003) if chance.random() < 0.3 else _turns(chance.randint(0, 12)))
            task.cancel()
            job = await _ended(task)
            if job is not None:
                taken[job.payload] += 1
        while sum(taken.values()) < ROUNDS:
            taken[(await asyncio.wait_for(queue.pop(), PATIENCE)).payload] += 1
        assert taken == Counter(range(ROUNDS))


@needs(Capability.RESERVE)
async def test_a_cancelled_batch_loses_no_job(aio_place: Place) -> None:
    chance = random.Random(19)
    async with aio_place.connect() as store:
        queue = store.queue(aio_place.new_name(), lease=1000)
        await queue.push_many(range(ROUNDS))
        taken: list[Any] = []
        for _ in range(ROUNDS):
            task = asyncio.create_task(queue.reserve_many(3, PATIENCE))
            await _turns(chance.randint(0, 12))
            task.cancel()
            taken += await _ended(task) or []
            if len(taken) >= ROUNDS:
                break
        while len(taken) < ROUNDS:
            taken += await asyncio.wait_for(queue.reserve_many(ROUNDS, PATIENCE), PATIENCE)
        assert sorted(job.payload for job in taken) == list(range(ROUNDS))
        assert {job.tries for job in taken} == {0}


@needs(Capability.RESERVE)
async def test_a_wait_in_wait_for_loses_no_job(aio_place: Place) -> None:
    async with aio_place.connect() as store:
        queue = store.queue(aio_place.new_name(), lease=1000)
        for number in range(20):
            wait = asyncio.create_task(asyncio.wait_for(queue.reserve(), 0.002))
            await asyncio.sleep(0.0018)
            await queue.push(number)
            try:
                job = await wait
            except TimeoutError:
                job = await asyncio.wait_for(queue.reserve(), PATIENCE)
            assert (job.payload, job.tries) == (number, 0)
            await job.ack()


async def test_a_push_that_is_cancelled_is_stored_once_or_not_at_all(aio_place: Place) -> None:
    chance = random.Random(20)
    async with aio_place.connect() as store:
        queue = store.queue(aio_place.new_name())
        sure: set[int] = set()
        for number in range(ROUNDS):
            task = asyncio.create_task(queue.push(number))
            await _turns(chance.randint(0, 6))
            task.cancel()
            if await _ended(task) is not None:
                sure.add(number)
        await queue.push("end")
        stored = []
        while (job := await queue.pop(timeout=PATIENCE)).payload != "end":
            stored.append(job.payload)
        assert len(stored) == len(set(stored))
        assert sure <= set(stored)


async def test_calls_at_the_same_time_all_get_what_is_theirs(aio_place: Place) -> None:
    async with aio_place.connect() as store:
        queue = store.queue(aio_place.new_name())
        count = store._driver.batch_max + 50
        ids = await asyncio.gather(*(queue.push(number) for number in range(count)))
        assert len(ids) == count
        jobs = await asyncio.gather(*(queue.pop(timeout=0) for _ in range(count)))
        assert sorted(job.payload for job in jobs) == list(range(count))


@needs(Capability.RESERVE, Capability.EXTEND)
async def test_ends_at_the_same_time_all_count(aio_place: Place) -> None:
    async with aio_place.connect() as store:
        queue = store.queue(aio_place.new_name(), lease=1000)
        await queue.push_many(range(60))
        jobs = await asyncio.gather(*(queue.reserve(timeout=PATIENCE) for _ in range(60)))
        by_payload = {job.payload: job for job in jobs}
        ends = [
            by_payload[number].ack()
            if number % 3 == 0
            else by_payload[number].nack()
            if number % 3 == 1
            else by_payload[number].extend(1000)
            for number in range(60)
        ]
        await asyncio.gather(*ends)
        assert await queue.total() == 40
        again = await asyncio.gather(*(queue.reserve(timeout=PATIENCE) for _ in range(20)))
        assert sorted(job.payload for job in again) == list(range(1, 60, 3))
        assert await queue.reserve(timeout=0) is None


async def test_a_drain_is_done_when_nothing_is_under_way(aio_place: Place) -> None:
    async with aio_place.connect() as store, aio_place.connect() as other:
        for turns in range(12):
            queue = store.queue(aio_place.new_name())
            await queue.push("work")
            wait = asyncio.create_task(queue.pop(timeout=PATIENCE))
            await _turns(turns)
            await queue.drain()
            (outcome,) = await asyncio.gather(wait, return_exceptions=True)
            assert isinstance(outcome, aio.Job | WaitCancelled | CallerError), outcome
            assert await other.queue(queue.name).total() == (0 if isinstance(outcome, aio.Job) else 1)


async def test_closing_in_the_middle_loses_no_job(aio_place: Place) -> None:
    chance = random.Random(21)
    name = aio_place.new_name()
    async with aio_place.connect() as other:
        await other.queue(name).push_many(range(30))
        got: list[Any] = []
        for _ in range(10):
            async with aio_place.connect() as store:
                queue = store.queue(name)
                tasks = [asyncio.create_task(queue.pop(timeout=PATIENCE)) for _ in range(2)]
                await _turns(chance.randint(0, 10))
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                # Some were served, some were told that the store was closed, some came too late to begin.
                assert isinstance(outcome, aio.Job | WaitCancelled | CallerError), outcome
                got += [outcome.payload] if isinstance(outcome, aio.Job) else []
        while len(got) < 30:
            got.append((await asyncio.wait_for(other.queue(name).pop(), PATIENCE)).payload)
        assert sorted(got) == list(range(30))
