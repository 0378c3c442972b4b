"""A back-off that is wrong costs no job: it is told, and the usual one stands in for it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Job, Worker
from penstock.worker.logs import facts_of
from tests.unit.worker.virtual_time import memory_store, virtual

SOON_S = 1000.0  # of virtual time: far more than the usual back-off waits after a first try


def _raises(tries: int) -> float:
    raise IndexError("no such step")


def _ends_the_process(tries: int) -> float:
    raise SystemExit(1)


BROKEN: dict[str, Callable[[int], Any]] = {
    "raises": _raises,
    "ends the process": _ends_the_process,
    "None": lambda tries: None,
    "text": lambda tries: "5",
    "nan": lambda tries: float("nan"),
    "inf": lambda tries: float("inf"),
    "negative": lambda tries: -1,
    "far too much": lambda tries: 1e300,
}


@pytest.mark.parametrize("backoff", BROKEN.values(), ids=BROKEN)
def test_a_job_comes_back_though_the_back_off_is_wrong(
    backoff: Callable[[int], Any], caplog: pytest.LogCaptureFixture
) -> None:
    @virtual
    async def test() -> None:
        async with memory_store() as store:
            queue = store.queue("mail")
            await queue.push("x")

            async def handle(job: Job) -> None:
                raise ValueError("not now")

            async with asyncio.timeout(SOON_S):
                summary = await Worker(store, "mail", handle, backoff=backoff).run(until_empty=True)
            assert (summary.retried, await queue.scheduled()) == (1, 1)

    test()
    (said,) = [facts_of(record) for record in caplog.records if facts_of(record).get("event") == "hook"]
    assert said["queue"] == "mail"


@pytest.mark.parametrize("backoff", BROKEN.values(), ids=BROKEN)
def test_the_limit_on_tries_holds_though_the_back_off_is_wrong(backoff: Callable[[int], Any]) -> None:
    @virtual
    async def test() -> None:
        async with memory_store() as store:
            await store.queue("mail").push("x")
            tries: list[int] = []

            async def handle(job: Job) -> None:
                tries.append(job.tries)
                if len(tries) == 3:
                    worker.stop()
                raise ValueError("never")

            worker = Worker(store, "mail", handle, backoff=backoff, max_tries=3)
            async with asyncio.timeout(SOON_S):
                await worker.run()
            assert tries == [0, 1, 2]
            assert len(await store.dead_letters().peek()) == 1

    test()


def test_a_back_off_that_raises_for_one_function_in_a_thread_keeps_no_other() -> None:
    async def main() -> None:
        async with memory_store() as store:
            queue = store.queue("mail")
            await queue.push_many(range(20))

            def handle(job: Job) -> None:
                if job.payload % 2:
                    raise ValueError("odd")

            summary = await Worker(store, "mail", handle, backoff=_raises).run(until_empty=True)
            assert (summary.done, summary.retried, await queue.scheduled()) == (10, 10, 10)

    asyncio.run(main())


@virtual
async def test_a_queues_own_back_off_is_looked_at_too() -> None:
    async with memory_store() as store:
        queue = store.queue("mail", backoff=_raises)
        await queue.push("x")

        async def handle(job: Job) -> None:
            raise ValueError("not now")

        async with asyncio.timeout(SOON_S):
            summary = await Worker(store, queue, handle).run(until_empty=True)
        assert (summary.retried, await queue.scheduled()) == (1, 1)
