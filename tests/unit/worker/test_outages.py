"""A store that goes away and comes back: the worker goes on, and nothing is done twice that need not be."""

import asyncio

import pytest

from penstock import Fixed, Job, Worker
from penstock.errors import CallerError, ConnectionLost, StoreError
from tests.unit.worker.driver_calls import break_off, watch
from tests.unit.worker.virtual_time import memory_store, virtual

GONE = ConnectionLost("nobody listens")


async def _nothing(job: Job) -> None:
    pass


@virtual
async def test_acks_are_sent_again_until_the_store_answers() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push_many(range(20))
        to_come = break_off(store, "ack", *[GONE] * 10)
        summary = await Worker(store, "mail", _nothing, lease=300).run(until_empty=True)
        assert to_come == []
        assert (summary.done, summary.lost, await queue.total()) == (20, 0, 0)


@virtual
async def test_an_ack_whose_answer_got_lost_is_no_lost_lease() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")
        break_off(store, "ack", GONE, done=True)
        summary = await Worker(store, "mail", _nothing).run(until_empty=True)
        assert (summary.done, summary.lost) == (1, 0)


@virtual
async def test_leases_are_kept_while_acks_cannot_be_sent() -> None:
    async with memory_store() as store:
        await store.queue("mail").push_many(["short", "long"])
        break_off(store, "ack", *[GONE] * 100)
        extended = watch(store, "extend")

        async def handle(job: Job) -> None:
            if job.payload == "long":
                await asyncio.sleep(200)

        summary = await Worker(store, "mail", handle, lease=30).run(until_empty=True)
        assert summary.done == 2
        assert len(extended) > 200 / 30


@pytest.mark.parametrize("problem", [GONE, StoreError("read only"), OSError("whatever a driver lets through")])
def test_a_store_that_returns_no_jobs_is_asked_again(problem: Exception) -> None:
    @virtual
    async def test() -> None:
        async with memory_store() as store:
            to_come = break_off(store, "reserve", *[problem] * 5)
            done = []

            async def handle(job: Job) -> None:
                done.append(job.payload)
                worker.stop()

            worker = Worker(store, ["mail", "sms"], handle)
            run = asyncio.create_task(worker.run())
            await asyncio.sleep(100)
            assert to_come == []
            await store.queue("mail").push("x")
            await run
            assert done == ["x"]

    test()


@virtual
async def test_until_empty_does_not_take_a_store_that_is_away_for_empty() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")
        break_off(store, "reserve", *[GONE] * 5)
        summary = await Worker(store, "mail", _nothing).run(until_empty=True)
        assert summary.done == 1


@virtual
async def test_a_job_is_given_back_once_the_store_is_there() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push("x")
        break_off(store, "nack", *[GONE] * 3)

        async def handle(job: Job) -> None:
            raise ValueError

        summary = await Worker(store, "mail", handle, backoff=Fixed(60)).run(until_empty=True)
        assert (summary.retried, await queue.scheduled()) == (1, 1)


@virtual
async def test_a_worker_that_stops_does_not_wait_for_ever_for_its_store() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")
        break_off(store, "ack", *[GONE] * 10_000)

        async def handle(job: Job) -> None:
            worker.stop()

        worker = Worker(store, "mail", handle)
        began = asyncio.get_running_loop().time()
        summary = await worker.run()
        assert summary.done == 0
        assert asyncio.get_running_loop().time() - began < 60


@virtual
async def test_what_the_store_will_never_take_is_left_to_its_lease() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push("x")
        break_off(store, "ack", CallerError("this id isn't an id"))
        handled = asyncio.Event()

        async def handle(job: Job) -> None:
            handled.set()

        worker = Worker(store, "mail", handle, lease=30)
        run = asyncio.create_task(worker.run())
        await handled.wait()
        await asyncio.sleep(20)
        assert await queue.reserved() == 1
        handled.clear()
        await handled.wait()
        worker.stop()
        await run
        assert await queue.total() == 0


@pytest.mark.parametrize("call", ["ack", "nack"])
def test_what_a_mistake_in_code_keeps_from_being_sent_is_left_to_its_lease(call: str) -> None:
    @virtual
    async def test() -> None:
        async with memory_store() as store:
            await store.queue("mail").push("x")
            break_off(store, call, *[TypeError("no number")] * 10_000)

            async def handle(job: Job) -> None:
                if call == "nack":
                    raise ValueError

            async with asyncio.timeout(10):
                summary = await Worker(store, "mail", handle, lease=300).run(until_empty=True)
            assert (summary.done, summary.retried, summary.lost) == (0, 0, 1)
            assert await store.queue("mail").reserved() == 1

    test()


@virtual
async def test_what_looks_like_a_mistake_only_once_is_sent_again() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")
        # As clients of servers do when a connection goes while it is used.
        break_off(store, "ack", ValueError("I/O operation on closed file"))
        summary = await Worker(store, "mail", _nothing).run(until_empty=True)
        assert (summary.done, await store.queue("mail").total()) == (1, 0)


def test_a_store_that_cannot_be_opened_ends_the_worker() -> None:
    @virtual
    async def test() -> None:
        store = memory_store()
        break_off(store, "open", GONE)
        with pytest.raises(ConnectionLost):
            await Worker(store, "mail", _nothing).run()

    test()
