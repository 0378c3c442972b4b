"""Leases are kept while handlers run, and a lost one ends the handler."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from penstock import Fixed, Job, Worker
from penstock.errors import ConnectionLost, LeaseLost
from penstock.job import Lease
from penstock.queues.capabilities import Capability
from tests.unit.worker.driver_calls import break_off, watch
from tests.unit.worker.virtual_time import memory_store, virtual


@virtual
async def test_a_handler_may_take_much_longer_than_its_lease() -> None:
    async with memory_store() as store:
        await store.queue("mail").push_many(range(5))
        runs = []

        async def handle(job: Job) -> None:
            runs.append(job.payload)
            await asyncio.sleep(1003)

        extended = watch(store, "extend")
        summary = await Worker(store, "mail", handle, lease=30).run(until_empty=True)
        assert sorted(runs) == [0, 1, 2, 3, 4]
        assert (summary.done, summary.lost) == (5, 0)
        assert set(extended) == {5}, "all leases are made longer in one call"
        assert 1003 / 30 * 2 <= len(extended) <= 1003 / 30 * 3, "once a third of the lease has passed"


@virtual
async def test_leases_are_kept_while_the_worker_stops() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")

        async def handle(job: Job) -> None:
            worker.stop()
            await asyncio.sleep(100)

        worker = Worker(store, "mail", handle, lease=10, shutdown_timeout=200)
        summary = await worker.run()
        assert (summary.done, summary.lost) == (1, 0)


@virtual
async def test_a_handler_whose_lease_is_lost_is_cancelled_and_nothing_is_acked() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push("x")
        seen: list[object] = []

        async def handle(job: Job) -> None:
            assert await store._driver.nack("mail", [job.as_lease], [1_000_000], None) == [True]
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                seen.append(job.lost)
                raise

        acked, nacked = watch(store, "ack"), watch(store, "nack")
        worker = Worker(store, "mail", handle, lease=30, on_error=lambda job, error: seen.append(type(error)))
        summary = await worker.run(until_empty=True)
        assert seen == [True, LeaseLost]
        assert (summary.lost, summary.done) == (1, 0)
        assert (acked, len(nacked)) == ([], 1), "nothing but what took the job away"
        assert await queue.total() == 1


@virtual
async def test_a_lost_job_that_has_not_begun_is_not_run() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push_many(["first", "second"])
        runs = []

        async def handle(job: Job) -> None:
            runs.append(job.payload)
            waiting = [entry for entry in await queue.peek(state="reserved") if entry.id != job.id]
            await store._driver.nack("mail", [entry.as_lease for entry in waiting], [1_000_000] * len(waiting), None)
            await asyncio.sleep(100)

        worker = Worker(store, "mail", handle, lease=30, concurrency=1, prefetch=1)
        summary = await worker.run(until_empty=True)
        assert runs == ["first"]
        assert (summary.done, summary.lost) == (1, 1)


@virtual
async def test_a_job_that_ends_while_its_lease_is_made_longer_is_acked_with_the_new_token() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")
        extending = asyncio.Event()
        real = store._driver.extend

        async def slow(queue: str, leases: Sequence[Lease], leases_ms: Sequence[int], *more: Any) -> list[str | None]:
            tokens = await real(queue, leases, leases_ms, *more)
            extending.set()
            await asyncio.sleep(1)  # the answer is on its way
            return tokens

        store._driver.extend = slow

        async def handle(job: Job) -> None:
            await extending.wait()

        summary = await Worker(store, "mail", handle, lease=30).run(until_empty=True)
        assert (summary.done, summary.lost) == (1, 0)


@virtual
async def test_an_extension_that_fails_is_tried_again_before_the_lease_ends() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")
        to_come = break_off(store, "extend", ConnectionLost("gone"), ConnectionLost("gone"))

        async def handle(job: Job) -> None:
            await asyncio.sleep(100)

        summary = await Worker(store, "mail", handle, lease=30).run(until_empty=True)
        assert to_come == []
        assert (summary.done, summary.lost) == (1, 0)


@virtual
async def test_a_store_that_cannot_extend_is_not_asked_to(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")
        monkeypatch.setattr(type(store._driver), "capabilities", store.capabilities - {Capability.EXTEND})

        async def handle(job: Job) -> None:
            await asyncio.sleep(20)

        summary = await Worker(store, "mail", handle, lease=30).run(until_empty=True)
        assert (summary.done, caplog.messages) == (1, [])


@virtual
async def test_the_tries_of_a_worker_that_died_count() -> None:
    async with memory_store() as store:
        queue = store.queue("mail", lease=10)
        await queue.push("poison")
        # Two workers take the job and are never heard of again.
        for _ in range(2):
            assert await queue.reserve(None, lease=10)
        runs: list[Any] = []

        async def handle(job: Job) -> None:
            runs.append(job.tries)

        await asyncio.sleep(11)
        await Worker(store, "mail", handle, max_tries=2, backoff=Fixed(0)).run(until_empty=True)
        assert runs == []
        assert [job.payload for job in await store.dead_letters().peek()] == ["poison"]


@virtual
async def test_a_job_that_is_given_up_since_its_worker_died_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        job_id = await queue.push("poison")
        for _ in range(2):
            assert await queue.reserve(None, lease=10)
        await asyncio.sleep(11)

        async def handle(job: Job) -> None:
            raise AssertionError("it had all its tries")

        summary = await Worker(store, "mail", handle, max_tries=2).run(until_empty=True)
        assert (summary.failed, summary.done) == (1, 0)
        why = "the worker died, or lost its lease, on the last try"
        assert f"mail {job_id} to the dead letters after 2 deliveries: {why}" in caplog.messages
