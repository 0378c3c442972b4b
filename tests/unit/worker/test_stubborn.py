"""Handlers that await and won't be cancelled: given up like functions that hang, and no process waits for them."""

import asyncio
import logging

import pytest

from penstock import Fixed, Job, JobState, Worker, blocking
from penstock.queues.dead_letter import ERROR
from penstock.worker.logs import facts_of
from penstock.worker.runners import CANCEL_S
from tests.unit.worker.virtual_time import VirtualLoop, memory_store, virtual


async def hang(*, until: asyncio.Event | None = None) -> None:
    """Wait, whoever cancels."""
    until = asyncio.Event() if until is None else until
    while not until.is_set():
        try:
            await until.wait()
        except asyncio.CancelledError:
            continue


@virtual
async def test_one_that_overruns_its_time_limit_has_failed_and_frees_its_place() -> None:
    async with memory_store() as store:
        await store.queue("mail").push_many(["hangs", *range(20)])
        end = asyncio.Event()
        ended: list[bool] = []

        async def handle(job: Job) -> None:
            if job.payload == "hangs":
                await hang(until=end)
                ended.append(job.lost)

        worker = Worker(store, "mail", handle, concurrency=1, time_limit=5, max_tries=1)
        async with asyncio.timeout(1000):
            summary = await worker.run(until_empty=True)
        (job,) = await store.dead_letters().peek()
        assert job.headers[ERROR] == "it took longer than its time limit of 5 s, and went on after it was cancelled"
        assert (summary.done, summary.failed, worker.is_stuck) == (20, 1, False)
        # Its late end changes nothing.
        end.set()
        await asyncio.sleep(1)
        assert (ended, worker.summary.done) == ([True], 20)


@virtual
async def test_its_lease_is_kept_while_it_may_tidy_up() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push("x")

        async def handle(job: Job) -> None:
            await hang()

        worker = Worker(store, "mail", handle, time_limit=5, lease=3, backoff=Fixed(600))
        run = asyncio.create_task(worker.run())
        await asyncio.sleep(5 + CANCEL_S - 1)
        assert (await queue.reserved(), worker.summary.retried) == (1, 0)
        await asyncio.sleep(2)
        assert (await queue.scheduled(), worker.summary.retried) == (1, 1)
        worker.stop()
        await run


@virtual
async def test_one_that_returns_after_its_time_limit_has_overrun_it() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")

        async def handle(job: Job) -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                return  # its work is not done

        summary = await Worker(store, "mail", handle, time_limit=5, max_tries=1).run(until_empty=True)
        (job,) = await store.dead_letters().peek()
        assert job.headers[ERROR] == "it took longer than its time limit of 5 s"
        assert summary.done == 0


@virtual
async def test_one_that_ends_its_job_itself_after_its_time_limit_has_its_way() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")

        async def handle(job: Job) -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await job.fail("half done")

        await Worker(store, "mail", handle, time_limit=5).run(until_empty=True)
        assert [job.headers[ERROR] for job in await store.dead_letters().peek()] == ["half done"]


@virtual
async def test_a_worker_with_too_many_of_them_ends_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with memory_store() as store:
        await store.queue("mail").push_many(range(5))

        async def handle(job: Job) -> None:
            await hang()

        worker = Worker(store, "mail", handle, concurrency=2, time_limit=5, max_stuck=0, backoff=Fixed(600))
        async with asyncio.timeout(1000):
            await worker.run()
        assert worker.is_stuck
        left = await store.queue("mail").peek(100, state=None)
        assert sorted(job.tries for job in left if job.state is JobState.SCHEDULED) == [1, 1]
    assert "stuck" in [facts_of(record).get("event") for record in caplog.records]


@pytest.mark.parametrize("time_limit", [None, 1])
def test_a_program_ends_though_handlers_go_on(time_limit: float | None) -> None:
    async def main() -> None:
        async with memory_store() as store:
            await store.queue("mail").push_many(range(3))

            async def handle(job: Job) -> None:
                if len(begun := [*begun_so_far, job]) == 3:
                    asyncio.get_running_loop().call_later(100, worker.stop)
                begun_so_far[:] = begun
                await hang()

            begun_so_far: list[Job] = []
            worker = Worker(store, "mail", handle, time_limit=time_limit, shutdown_timeout=1, backoff=Fixed(600))
            await worker.run()

    # What is left of it must not be waited for.
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def test_main_ends_though_a_handler_goes_on_and_catches_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.worker.run.CANCEL_S", 0.05)

    async def handle(job: Job) -> None:
        worker.stop(now=True)
        while True:
            try:
                await asyncio.sleep(3600)
            except BaseException:  # as `except:` does
                continue

    with blocking.connect("memory:stubborn") as store:
        store.queue("mail").push("x")
        worker = Worker(store.url, "mail", handle)
        assert worker.main().returned == 1
