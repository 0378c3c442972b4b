"""A worker that runs the jobs of another process' claim: each is settled by itself, as it is from a queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Capability, DeadLetter, Fail, Fixed, Job, Worker
from penstock.queues.dead_letter import ERROR
from penstock.worker.outcomes import Action, Destination, Outcome
from tests.stores.harness import BLOCKING, PATIENCE, Place, needs

pytestmark = needs(Capability.CLAIM, Capability.RESERVE)

ENOUGH = 60.0


@pytest.fixture(autouse=True)
def _in_an_event_loop(place: Place) -> None:
    if place.form == BLOCKING:
        pytest.skip("a worker runs in an event loop")


@needs(Capability.PEEK, Capability.DELAY)
async def test_each_job_of_a_claim_is_settled_though_its_leases_are_extended_meanwhile(place: Place) -> None:
    async with place.connect() as store, place.connect() as driver:
        source, target, dead = (place.new_name(name) for name in ("source", "target", "dead"))
        claims = driver.queue(source, lease=1000)
        await claims.push_many(range(10))
        assert await claims.claim_unread("k", 10) == 10

        async def handler(job: Job) -> Any:
            n = job.payload
            # Whoever holds the claim extends its leases at any time, which changes tokens. Fewer times than a worker
            # asks for new tokens: on a busy machine each extension may come between a new token and its use.
            if n % 3 == 0:
                assert await claims.extend_claim("k", 1000)
            if n == 1:
                raise ValueError("again")
            if n == 2:
                raise Fail("never")
            if n == 3:
                return Outcome(Action.NACK, 1000 * place.unit, "later")
            return Outcome(Action.MOVE, destination=Destination(target, 10 * n)) if n > 5 else None

        worker = Worker(
            store, source, handler, concurrency=3, backoff=Fixed(0), dead_letter=DeadLetter(5, dead), lease=1000
        )
        summary = await worker.run_claim("k", seconds=ENOUGH)
        assert (summary.done, summary.retried, summary.failed, summary.lost) == (7, 2, 1, 0)
        await claims.extend_claim("k", 1000)
        assert sorted([job.payload async for job in store.queue(target).jobs()]) == [60, 70, 80, 90]
        assert [job.headers[ERROR] async for job in store.queue(dead).jobs()] == ["never"]
        again = await claims.reserve(timeout=PATIENCE)
        assert (again.payload, again.tries) == (1, 1)
        assert await claims.size() == 0, "what was returned for later is not ready, though the claim was extended"
        assert await claims.nack_claim("k") == 0
        assert await claims.total() == 2


async def test_a_claim_that_is_run_again_has_only_what_is_left(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push_many(range(6))
        await queue.claim_unread("k", 6)
        ran: list[int] = []

        async def handler(job: Job) -> None:
            ran.append(job.payload)

        for job in (await queue.claim("k", 0))[:4]:
            await job.ack()
        worker = Worker(store, queue, handler)
        for done in (2, 0):
            assert (await worker.run_claim("k", seconds=ENOUGH)).done == done
        assert len(ran) == 2
        assert await queue.total() == 0


async def test_jobs_of_a_claim_that_can_not_begin_in_time_go_back_untouched(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push_many(range(6))
        await queue.claim_unread("k", 6)

        async def handler(job: Job) -> None:
            while await queue.size() < 5:  # noqa: ASYNC110 - the store is polled
                await asyncio.sleep(0)

        summary = await Worker(store, queue, handler, concurrency=1).run_claim("k", seconds=0.01)
        assert (summary.done, summary.released) == (1, 5)
        assert [(await queue.reserve(timeout=PATIENCE)).tries for _ in range(5)] == [0] * 5


async def test_the_job_that_killed_its_process_twice_is_charged_with_a_try(place: Place) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name(), lease=1000)
        await queue.push_many(range(3))
        await queue.claim_unread("k", 3)
        running = 0

        async def handler(job: Job) -> None:
            nonlocal running
            running += 1
            assert running == 1, "they run one by one"
            assert job.payload != 0
            running -= 1

        worker = Worker(store, queue, handler, backoff=Fixed(0))
        summary = await worker.run_claim("k", seconds=ENOUGH, attempt=2)
        assert (summary.done, summary.retried) == (2, 1)
        left = await queue.reserve(timeout=PATIENCE)
        assert (left.payload, left.tries) == (0, 1)


@pytest.mark.parametrize("attempt", [0, 1])
async def test_a_claim_that_is_gone_has_no_jobs(place: Place, attempt: int) -> None:
    async with place.connect() as store:
        queue = store.queue(place.new_name())

        async def handler(job: Job) -> None:
            raise AssertionError

        assert (
            sum((await Worker(store, queue, handler).run_claim("k", seconds=1, attempt=attempt)).counts().values()) == 0
        )
