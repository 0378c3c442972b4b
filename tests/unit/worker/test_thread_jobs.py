"""The job as a plain function has it: its calls are done when they return."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock import Summary, Worker, blocking
from penstock.errors import CallerError, LeaseLost
from penstock.queues.dead_letter import ERROR

PATIENCE_S = 30.0


def run(handler: Callable[[blocking.Job], object], look: Any = None, **options: Any) -> tuple[Summary, Any]:
    """Run one job until the queue is empty; return the summary, and what `look` finds in the store then."""

    async def main() -> tuple[Summary, Any]:
        async with penstock.connect("memory:") as store:
            await store.queue("mail").push("x")
            summary = await Worker(store, "mail", handler, **options).run(until_empty=True)
            return summary, None if look is None else await look(store)

    return asyncio.run(main())


async def _left(store: penstock.Store) -> tuple[int, int, list[str]]:
    """How many jobs are ready, and wait; and the errors of the dead letters."""
    sizes = await store.queue("mail").sizes()
    return sizes.ready, sizes.scheduled, [job.headers[ERROR] for job in await store.dead_letters().peek()]


CALLS: dict[str, tuple[Callable[[blocking.Job], object], tuple[int, int, list[str]]]] = {
    "ack": (lambda job: job.ack(), (0, 0, [])),
    "nack": (lambda job: job.nack(delay=60), (0, 1, [])),
    "fail": (lambda job: job.fail("no such address"), (0, 0, ["no such address"])),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_may_end_its_job_itself(name: str) -> None:
    call, expected = CALLS[name]
    ended: list[bool] = []

    def handle(job: blocking.Job) -> None:
        call(job)
        ended.append(job.ended)

    summary, left = run(handle, _left)
    assert (ended, left) == ([True], expected)
    assert (summary.done, summary.lost) == (1, 0)


def test_a_function_may_extend_its_lease() -> None:
    tokens: list[str | None] = []

    def handle(job: blocking.Job) -> None:
        tokens.append(job.token)
        job.extend(600)
        tokens.append(job.token)

    summary, left = run(handle, _left)
    assert tokens[0] != tokens[1]
    assert (summary.done, summary.lost, left) == (1, 0, (0, 0, []))


def test_a_job_is_a_context_manager_there() -> None:
    def handle(job: blocking.Job) -> None:
        with job:
            raise ValueError("not now")

    _, left = run(handle, _left, max_tries=1)
    assert left == (0, 0, ["ValueError: not now"])


def test_a_function_learns_when_its_job_is_no_longer_its_own() -> None:
    seen: list[type[BaseException]] = []

    def handle(job: blocking.Job) -> None:
        job.queue.ack(job)
        try:
            job.fail("too late")
        except LeaseLost as problem:
            seen.append(type(problem))

    run(handle)
    assert seen == [LeaseLost]


def test_a_function_may_push_to_its_own_and_other_queues() -> None:
    ids: list[str] = []

    def handle(job: blocking.Job) -> None:
        if job.payload == "x":
            queue: Any = job.queue
            ids.append(queue.push("y"))
            ids.append(queue.store.queue("next").push("z"))

    async def look(store: penstock.Store) -> list[str]:
        return [job.id for job in await store.queue("next").peek()]

    summary, other = run(handle, look)
    assert (summary.done, other) == (2, ids[1:])


def test_such_a_call_in_the_event_loop_is_refused_and_does_not_stop_it_for_ever() -> None:
    async def main() -> None:
        async with penstock.connect("memory:") as store:
            await store.queue("mail").push("x")
            loop = asyncio.get_running_loop()

            async def ack(job: blocking.Job) -> None:
                job.ack()

            def handle(job: blocking.Job) -> None:
                with pytest.raises(CallerError, match="event loop"):
                    asyncio.run_coroutine_threadsafe(ack(job), loop).result(PATIENCE_S)

            assert (await Worker(store, "mail", handle).run(until_empty=True)).done == 1

    asyncio.run(main())


def test_a_function_that_outlives_its_worker_is_informed() -> None:
    end, told = threading.Event(), threading.Event()

    def handle(job: blocking.Job) -> None:
        end.wait(PATIENCE_S)
        try:
            job.ack()
        except LeaseLost:
            told.set()

    try:
        run(handle, time_limit=0.05, max_tries=1)
    finally:
        end.set()
    assert told.wait(PATIENCE_S)
