"""A waiting caller is woken when there is a job. The poll interval is longer than any test: signals do it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock import Capability
from penstock.errors import CallerError, WaitCancelled
from tests.stores.harness import PATIENCE, Place, needs


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110 - nobody would set an event
            await asyncio.sleep(0.01)


async def _waiting(queue: Any, *waits: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Tasks of these waits; from the return on all of them wait, as far as can be known."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    await _until(lambda: queue.waiters >= len(tasks) or any(task.done() for task in tasks))
    await asyncio.sleep(0.1)  # no more than likely: what the tests say is true of those that come later, too
    for task in tasks:
        assert not task.done() or task.result() is None, "it waits for nothing"
    assert not any(task.done() for task in tasks)
    return tasks


async def _got(task: asyncio.Task[Any]) -> Any:
    return await asyncio.wait_for(task, PATIENCE)


async def test_a_push_of_another_connection_wakes_waiting_callers(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        for wait in (None, PATIENCE):
            (task,) = await _waiting(queue, queue.pop(wait))
            await other.queue(queue.name).push("work")
            assert (await _got(task)).payload == "work"


async def test_a_push_of_the_same_connection_wakes_waiting_callers(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        (task,) = await _waiting(queue, queue.pop())
        await store.queue(queue.name).push("work")
        assert (await _got(task)).payload == "work"


async def test_a_push_of_the_other_form_wakes_waiting_callers(place: Place) -> None:
    async with place.connect_aio() as one, place.connect_blocking() as two:
        for store, other in ((one, two), (two, one)):
            queue = store.queue(place.new_name())
            (task,) = await _waiting(queue, queue.pop())
            await other.queue(queue.name).push("work")
            assert (await _got(task)).payload == "work"


async def test_each_of_many_gets_a_job(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        tasks = await _waiting(queue, *(queue.pop() for _ in range(5)))
        await other.queue(queue.name).push_many(range(5))
        assert sorted([(await _got(task)).payload for task in tasks]) == list(range(5))


async def test_jobs_that_come_one_by_one_reach_all_waiting_callers(place: Place) -> None:
    async with place.connect() as store, place.connect() as other, place.connect() as producer:
        queue = store.queue(place.new_name())
        second = other.queue(queue.name)
        tasks = [*await _waiting(queue, queue.pop()), *await _waiting(second, second.pop())]
        for number in range(2):
            await producer.queue(queue.name).push(number)
        assert sorted([(await _got(task)).payload for task in tasks]) == [0, 1]


@needs(Capability.DELAY)
async def test_a_waiting_caller_gets_a_job_when_it_matures(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        delay = place.unit if place.coarse_seconds else 0.3
        # One that was there before the wait began, one that came later.
        await queue.push("first", delay=delay)
        (task,) = await _waiting(queue, queue.pop())
        assert (await _got(task)).payload == "first"
        (task,) = await _waiting(queue, queue.pop())
        await other.queue(queue.name).push("second", delay=delay)
        assert (await _got(task)).payload == "second"


@needs(Capability.RESERVE)
async def test_a_waiting_caller_gets_a_job_whose_lease_is_over(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        await queue.push("work")
        await other.queue(queue.name).reserve(timeout=PATIENCE, lease=place.unit if place.coarse_seconds else 0.3)
        assert (await asyncio.wait_for(queue.reserve(), PATIENCE)).tries == 1


@needs(Capability.RESERVE)
async def test_a_waiting_caller_gets_a_job_that_is_given_back(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        await queue.push("work")
        job = await other.queue(queue.name).reserve(timeout=PATIENCE, lease=1000)
        (task,) = await _waiting(queue, queue.reserve())
        await job.nack()
        assert (await _got(task)).tries == 1


@needs(Capability.CLAIM)
async def test_a_waiting_caller_gets_jobs_of_a_claim_that_is_given_back(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        await queue.push("work")
        await other.queue(queue.name).claim("key", 1, lease=1000)
        (task,) = await _waiting(queue, queue.reserve())
        await other.queue(queue.name).nack_claim("key")
        assert (await _got(task)).tries == 1


@needs(Capability.RESERVE, Capability.PEEK)
async def test_a_caller_that_waits_for_dead_letters_and_redriven_jobs_gets_them(place: Place) -> None:
    async with place.connect(dead_letter=f"1,{place.new_name('dead')}") as store, place.connect() as other:
        queue, dead = store.queue(place.new_name()), store.dead_letters()
        await queue.push("work")
        job = await queue.reserve(timeout=PATIENCE)
        there = other.queue(dead.name)
        (task,) = await _waiting(there, there.reserve(lease=1000))
        await job.fail()
        await (await _got(task)).nack()
        home = other.queue(queue.name)
        (task,) = await _waiting(home, home.reserve(lease=1000))
        assert await dead.redrive() == 1
        assert (await _got(task)).payload == "work"


async def test_a_resume_wakes_waiting_callers(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        await queue.push("work")
        await queue.pause()
        (task,) = await _waiting(queue, queue.pop())
        await other.queue(queue.name).resume()
        assert (await _got(task)).payload == "work"


async def test_a_pause_reaches_waiting_callers(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        (task,) = await _waiting(queue, queue.pop(timeout=1.0))
        there = other.queue(queue.name)
        await there.pause()
        await asyncio.sleep(0.1)
        await there.push("work")
        assert await _got(task) is None
        await there.resume()
        assert (await queue.pop(timeout=PATIENCE)).payload == "work"


@needs(Capability.RESERVE)
async def test_a_caller_that_waits_long_does_not_hold_up_others(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        (task,) = await _waiting(queue, queue.reserve())
        assert await queue.reserve(timeout=0) is None
        assert await queue.reserve(timeout=0.05) is None
        assert await queue.pop(timeout=0.05) is None
        assert not task.done()
        await queue.push("work")
        assert (await _got(task)).payload == "work"


async def test_a_wait_ends_by_its_label(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        tasks = await _waiting(queue, queue.pop(waiter="a"), queue.pop(waiter="b"), queue.pop())
        assert queue.cancel("nobody") == 0
        assert queue.cancel("a") == 1
        with pytest.raises(WaitCancelled):
            await _got(tasks[0])
        await queue.push("work")
        done, _ = await asyncio.wait(tasks[1:], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        assert [(await task).payload for task in done] == ["work"]
        assert queue.cancel() == 1
        (last,) = set(tasks[1:]) - done
        with pytest.raises(WaitCancelled):
            await _got(last)
        assert queue.waiters == 0


async def test_drain_ends_all_waits(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        tasks = await _waiting(queue, queue.pop(), queue.pop(PATIENCE))
        await queue.drain()
        for task in tasks:
            with pytest.raises(WaitCancelled, match="drained"):
                await _got(task)
        for refused in (queue.pop(timeout=0), queue.push("no"), queue.push_many(["no"]), queue.push_many([b"no"])):
            with pytest.raises(CallerError, match="drained"):
                await refused
        other = store.queue(queue.name)
        await other.push("work")
        assert (await other.pop(timeout=PATIENCE)).payload == "work"


@needs(Capability.CLAIM)
async def test_a_drained_queue_claims_no_jobs_and_returns_those_of_old_claims(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many([1, 2])
        assert len(await queue.claim("old", 1)) == 1
        await queue.drain()
        for refused in (queue.claim("new", 1), queue.claim_unread("new", 1)):
            with pytest.raises(CallerError, match="drained"):
                await refused
        assert len(await queue.claim("old", 0)) == 1
        assert await queue.ack_claim("old") == 1
        assert await store.queue(queue.name).total() == 1


@needs(Capability.RESERVE)
async def test_jobs_that_were_reserved_before_a_drain_can_be_ended(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        await queue.push_many([1, 2])
        first, second = await queue.reserve_many(2, timeout=PATIENCE)
        await queue.drain()
        await first.ack()
        await second.nack()
        assert await store.queue(queue.name).total() == 1


async def test_a_waiting_caller_is_listed_with_its_label(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        begin = time.time()
        tasks = await _waiting(queue, queue.pop(consumer="mailer-1", waiter=7), queue.pop(timeout=PATIENCE))
        first, second = sorted(queue.consumers(), key=lambda consumer: consumer.label or "", reverse=True)
        assert (first.label, first.waiter, first.is_reserving) == ("mailer-1", 7, False)
        assert (second.label, second.waiter) == (None, None)
        assert begin - 1 <= first.since <= time.time()
        await queue.push_many([1, 2])
        for task in tasks:
            await _got(task)
        assert queue.consumers() == []


@needs(Capability.RESERVE)
async def test_a_reserving_caller_is_listed_as_reserving(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())
        (task,) = await _waiting(queue, queue.reserve(consumer="mailer-2"))
        (consumer,) = queue.consumers()
        assert (consumer.label, consumer.is_reserving) == ("mailer-2", True)
        queue.cancel()
        with pytest.raises(WaitCancelled):
            await _got(task)


async def test_closing_the_store_ends_all_waits(place: Place) -> None:
    async with place.connect() as store, place.connect() as other:
        queue = store.queue(place.new_name())
        (task,) = await _waiting(queue, queue.pop())
        await store.close()
        with pytest.raises(WaitCancelled):
            await _got(task)
        await other.queue(queue.name).push("work")
        assert (await other.queue(queue.name).pop(timeout=PATIENCE)).payload == "work"


@needs(Capability.RESERVE)
async def test_workers_and_producers_at_the_same_time(place: Place) -> None:
    count = 200
    name = place.new_name()

    async def work(worker: Any, done: list[Any]) -> None:
        queue = worker.queue(name, lease=1000)
        while (job := await queue.reserve(timeout=PATIENCE)).payload != "stop":
            done.append(job.payload)
            await job.ack()
        await job.ack()

    async with place.connect() as one, place.connect() as two, place.connect() as three:
        done: list[Any] = []
        workers = [asyncio.create_task(work(store, done)) for store in (one, two, two)]
        for number in range(count):
            await three.queue(name).push(number)
        await _until(lambda: len(done) >= count or any(worker.done() for worker in workers))
        await three.queue(name).push_many(["stop"] * len(workers))
        await asyncio.gather(*workers)
        assert sorted(done) == list(range(count))
        assert await three.queue(name).total() == 0
