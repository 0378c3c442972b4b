"""What becomes of a job: returned from, raised from, overrun, lost."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from penstock import DeadLetter, Fail, Fixed, Job, Retry, Store, Worker
from penstock.errors import LeaseLost
from penstock.queues.dead_letter import ERROR, TRACEBACK, TRIES
from tests.unit.worker.virtual_time import memory_store, virtual


async def dead(store: Store) -> list[Job]:
    return await store.dead_letters().peek(state=None)


@virtual
async def test_a_handler_that_returns_acks_its_job() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push({"to": "ann"})
        seen = []

        async def handle(job: Job) -> None:
            seen.append((job.payload, await queue.reserved()))

        summary = await Worker(store, "mail", handle).run(until_empty=True)
        assert seen == [({"to": "ann"}, 1)]
        assert (summary.done, await queue.total()) == (1, 0)


@virtual
async def test_a_job_whose_handler_raises_comes_back_after_the_back_off() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push("x")
        begun: list[tuple[int, float]] = []

        async def handle(job: Job) -> None:
            begun.append((job.tries, asyncio.get_running_loop().time()))
            if job.tries < 2:
                raise ValueError("not yet")
            worker.stop()

        worker = Worker(store, "mail", handle, backoff=lambda tries: 100.0 * (tries + 1))
        summary = await worker.run()
        assert [tries for tries, _ in begun] == [0, 1, 2]
        assert [round(b - a) for (_, a), (_, b) in pairwise(begun)] == [100, 200]
        assert (summary.done, summary.retried) == (1, 2)


@virtual
async def test_the_last_try_ends_in_the_dead_letters_with_the_error() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("poison")

        async def handle(job: Job) -> None:
            raise ValueError("no such address")

        summary = await Worker(store, "mail", handle, max_tries=3, backoff=Fixed(0)).run(until_empty=True)
        (job,) = await dead(store)
        assert job.payload == "poison"
        assert (job.headers[ERROR], job.headers[TRIES]) == ("ValueError: no such address", 2)
        assert (summary.retried, summary.failed) == (2, 1)
        assert await store.queue("mail").total() == 0


@virtual
async def test_a_dead_letter_has_the_last_lines_of_the_traceback() -> None:
    async with memory_store() as store:
        await store.queue("mail").push_many(["raises", "fails"])

        async def handle(job: Job) -> None:
            try:
                raise ValueError("no such address")
            except ValueError as problem:
                if job.payload == "fails":
                    raise Fail("gone") from problem
                raise

        await Worker(store, "mail", handle, max_tries=1).run(until_empty=True)
        for job in await dead(store):
            assert "in handle" in job.headers[TRACEBACK]
            assert "ValueError: no such address" in job.headers[TRACEBACK]
            assert job.headers[ERROR] == {"raises": "ValueError: no such address", "fails": "gone"}[job.payload]


@virtual
async def test_each_of_many_dead_letters_has_its_own_error() -> None:
    async with memory_store() as store:
        await store.queue("mail").push_many([1, 2, 3])

        async def handle(job: Job) -> None:
            raise ValueError(f"number {job.payload}")

        await Worker(store, "mail", handle, dead_letter=DeadLetter(1, "grave")).run(until_empty=True)
        jobs = await store.queue("grave").peek()
        assert {job.payload: job.headers[ERROR] for job in jobs} == {
            number: f"ValueError: number {number}" for number in (1, 2, 3)
        }


@virtual
async def test_retry_chooses_the_delay() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")
        begun = []

        async def handle(job: Job) -> None:
            begun.append(asyncio.get_running_loop().time())
            if len(begun) == 1:
                raise Retry("the server is full", delay=4321)
            worker.stop()

        worker = Worker(store, "mail", handle, backoff=Fixed(1))
        summary = await worker.run()
        assert round(begun[1] - begun[0]) == 4321
        assert (summary.done, summary.retried) == (1, 1)


@virtual
async def test_retry_counts_as_a_try() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")

        async def handle(job: Job) -> None:
            raise Retry("never again", delay=0)

        await Worker(store, "mail", handle, max_tries=2).run(until_empty=True)
        (job,) = await dead(store)
        assert job.headers[ERROR] == "never again"


def test_a_delay_that_is_none_is_refused_where_it_is_raised() -> None:
    from penstock.errors import CallerError

    with pytest.raises(CallerError, match="delay must be 0 to 3153600000 seconds, got -1"):
        Retry(delay=-1)


@virtual
async def test_fail_goes_to_the_dead_letters_whatever_tries_are_left() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")

        async def handle(job: Job) -> None:
            raise Fail("the address isn't an address")

        summary = await Worker(store, "mail", handle, max_tries=100).run(until_empty=True)
        (job,) = await dead(store)
        assert job.headers[ERROR] == "the address isn't an address"
        assert (summary.failed, summary.retried) == (1, 0)


@virtual
async def test_fail_in_the_queue_of_dead_letters_returns_the_job() -> None:
    async with memory_store() as store:
        grave = store.dead_letters()
        await grave.push("x")

        async def handle(job: Job) -> None:
            raise Fail("still dead")

        await Worker(store, grave.name, handle, backoff=Fixed(60)).run(until_empty=True)
        assert (await grave.sizes()).scheduled == 1


@virtual
async def test_a_handler_that_overruns_its_time_limit_is_cancelled_and_has_failed() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")
        ended = []

        async def handle(job: Job) -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append(asyncio.get_running_loop().time())

        began = asyncio.get_running_loop().time()
        await Worker(store, "mail", handle, time_limit=5, max_tries=1).run(until_empty=True)
        (job,) = await dead(store)
        assert [round(at - began) for at in ended] == [5]
        assert job.headers[ERROR] == "it took longer than its time limit of 5 s"


@virtual
async def test_a_handlers_own_timeout_is_not_taken_for_the_limit() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")

        async def handle(job: Job) -> None:
            raise TimeoutError("the mail server")

        await Worker(store, "mail", handle, time_limit=5, max_tries=1).run(until_empty=True)
        assert [job.headers[ERROR] for job in await dead(store)] == ["TimeoutError: the mail server"]


@pytest.mark.parametrize("problem", [SystemExit("bye"), KeyboardInterrupt(), asyncio.CancelledError("by myself")])
def test_a_handler_cannot_take_the_worker_with_it(problem: BaseException) -> None:
    @virtual
    async def test() -> None:
        async with memory_store() as store:
            await store.queue("mail").push_many(["bad", "good"])

            async def handle(job: Job) -> None:
                if job.payload == "bad":
                    raise problem

            summary = await Worker(store, "mail", handle, max_tries=1).run(until_empty=True)
            assert (summary.done, summary.failed) == (1, 1)

    test()


@virtual
async def test_an_error_whose_text_cannot_be_made_is_an_error_like_others() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async with memory_store() as store:
        await store.queue("mail").push("x")

        async def handle(job: Job) -> None:
            raise OddError

        await Worker(store, "mail", handle, max_tries=1).run(until_empty=True)
        assert [job.headers[ERROR] for job in await dead(store)] == ["OddError"]


@pytest.mark.parametrize("how", ["ack", "nack", "fail"])
def test_a_handler_may_end_its_job_itself(how: str) -> None:
    @virtual
    async def test() -> None:
        async with memory_store() as store:
            queue = store.queue("mail")
            await queue.push("x")
            errors: list[BaseException] = []

            async def handle(job: Job) -> None:
                arguments: dict[str, Any] = {"nack": {"delay": 60}}.get(how, {})
                await getattr(job, how)(**arguments)

            worker = Worker(store, "mail", handle, on_error=lambda job, error: errors.append(error))
            summary = await worker.run(until_empty=True)
            assert (summary.done, summary.lost, errors) == (1, 0, [])
            assert (await queue.scheduled(), len(await dead(store))) == {
                "ack": (0, 0), "nack": (1, 0), "fail": (0, 1)
            }[how]  # fmt: skip

    test()


@virtual
async def test_a_job_that_another_has_ended_is_lost_and_no_success() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push("x")
        errors: list[BaseException] = []

        async def handle(job: Job) -> None:
            # As if the lease had been over, and another worker had been there.
            assert await store._driver.ack("mail", [job.as_lease]) == [True]

        worker = Worker(store, "mail", handle, on_error=lambda job, error: errors.append(error))
        summary = await worker.run(until_empty=True)
        assert (summary.done, summary.lost) == (0, 1)
        assert [type(error) for error in errors] == [LeaseLost]
