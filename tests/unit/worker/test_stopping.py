"""How a worker ends: gracefully, at once, cancelled; and what it had in hand goes back."""

import asyncio
import os
import signal
import threading
from contextlib import suppress

import pytest

import penstock
from penstock import Job, JobState, Queue, Store, Summary, Worker, blocking
from penstock.errors import CallerError
from penstock.queues.dead_letter import ERROR
from penstock.worker.outcomes import InFlightJob
from penstock.worker.runners import RunnerSettings, TaskRunner
from penstock.worker.settling import Settler
from tests.unit.worker.virtual_time import memory_store, virtual

PROCESS_S = 20.0  # real time, for what needs real signals


async def left(store: Store) -> list[tuple[object, int, JobState]]:
    """Payloads, tries and states of what is in the queue."""
    return [(job.payload, job.tries, job.state) for job in await store.queue("mail").peek(100, state=None)]


@virtual
async def test_running_handlers_end_and_others_do_not_begin() -> None:
    async with memory_store() as store:
        await store.queue("mail").push_many(["runs", "waits", "stays"])
        done = []

        async def handle(job: Job) -> None:
            worker.stop()
            await asyncio.sleep(20)
            done.append(job.payload)

        worker = Worker(store, "mail", handle, concurrency=1, prefetch=1)
        summary = await worker.run()
        assert done == ["runs"]
        assert sorted(await left(store)) == [("stays", 0, JobState.READY), ("waits", 0, JobState.READY)]
        assert (summary.done, summary.released, summary.returned) == (1, 1, 0)


@virtual
async def test_what_is_not_done_in_time_goes_back_at_once_and_counts_as_a_try() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("long")
        cancelled_at = []

        async def handle(job: Job) -> None:
            worker.stop()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled_at.append(asyncio.get_running_loop().time())
                raise

        worker = Worker(store, "mail", handle, shutdown_timeout=30, backoff=lambda tries: 1000.0)
        began = asyncio.get_running_loop().time()
        summary = await worker.run()
        assert [round(at - began) for at in cancelled_at] == [30]
        assert await left(store) == [("long", 1, JobState.READY)]
        assert (summary.returned, summary.retried) == (1, 0)


@virtual
async def test_a_last_try_that_is_cut_off_ends_in_the_dead_letters() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("long")

        async def handle(job: Job) -> None:
            worker.stop()
            await asyncio.sleep(3600)

        worker = Worker(store, "mail", handle, shutdown_timeout=1, max_tries=1)
        await worker.run()
        assert await left(store) == []
        (job,) = await store.dead_letters().peek()
        assert "stopped" in job.headers[ERROR]


@virtual
async def test_a_handler_that_ends_well_though_it_was_cancelled_is_done() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")

        async def handle(job: Job) -> None:
            worker.stop()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.sleep(1)  # it brings its work to a good end

        worker = Worker(store, "mail", handle, shutdown_timeout=1)
        summary = await worker.run()
        assert (summary.done, await left(store)) == (1, [])


@virtual
async def test_a_handler_that_cannot_be_cancelled_does_not_hold_up_the_end() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")
        ended = asyncio.Event()

        async def handle(job: Job) -> None:
            worker.stop()
            end = asyncio.get_running_loop().time() + 500
            while asyncio.get_running_loop().time() < end:
                try:
                    await asyncio.sleep(100)
                except asyncio.CancelledError:
                    continue
            ended.set()

        worker = Worker(store, "mail", handle, shutdown_timeout=1)
        summary = await worker.run()
        assert not ended.is_set()
        assert (summary.returned, await left(store)) == (1, [("x", 1, JobState.READY)])
        # Its late end changes nothing.
        await ended.wait()
        await asyncio.sleep(1)
        assert (summary.done, await left(store)) == (0, [("x", 1, JobState.READY)])


@virtual
async def test_the_second_request_to_stop_returns_everything_at_once() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")

        async def handle(job: Job) -> None:
            worker.stop()
            await asyncio.sleep(3600)

        worker = Worker(store, "mail", handle, shutdown_timeout=1000)
        began = asyncio.get_running_loop().time()
        run = asyncio.create_task(worker.run())
        await asyncio.sleep(5)
        assert not run.done()
        worker.stop(now=True)
        await run
        assert asyncio.get_running_loop().time() - began < 6
        assert await left(store) == [("x", 1, JobState.READY)]


@virtual
async def test_a_worker_that_is_stopped_before_it_runs_takes_nothing() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")
        worker = Worker(store, "mail", _fail)
        worker.stop()
        assert await worker.run() == Summary(seconds=worker.summary.seconds)
        assert await left(store) == [("x", 0, JobState.READY)]


@virtual
async def test_a_run_that_is_cancelled_returns_everything() -> None:
    async with memory_store() as store:
        await store.queue("mail").push_many(["runs", "waits"])
        began = asyncio.Event()

        async def handle(job: Job) -> None:
            began.set()
            await asyncio.sleep(3600)

        worker = Worker(store, "mail", handle, concurrency=1, prefetch=1)
        run = asyncio.create_task(worker.run())
        await began.wait()
        run.cancel()
        cancelled_at = asyncio.get_running_loop().time()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert asyncio.get_running_loop().time() - cancelled_at < 1
        assert sorted(await left(store)) == [("runs", 1, JobState.READY), ("waits", 0, JobState.READY)]


@virtual
async def test_a_stop_that_is_cancelled_hurries_and_still_returns_everything() -> None:
    async with memory_store() as store:
        await store.queue("mail").push("x")

        async def handle(job: Job) -> None:
            worker.stop()
            await asyncio.sleep(3600)

        worker = Worker(store, "mail", handle, shutdown_timeout=1000)
        run = asyncio.create_task(worker.run())
        await asyncio.sleep(5)
        run.cancel()
        began = asyncio.get_running_loop().time()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert asyncio.get_running_loop().time() - began < 1
        assert await left(store) == [("x", 1, JobState.READY)]


@virtual
async def test_a_task_that_was_made_and_has_not_begun_is_never_run() -> None:
    async with memory_store() as store:
        queue = store.queue("mail")
        await queue.push("x")
        (job,) = await queue.reserve_many(1)
        ends: list[object] = []
        tasks = TaskRunner(_fail, RunnerSettings(1, None, lambda held, problem: ends.append(problem), None, 0, print))
        held = InFlightJob(job, Settler(queue, 30, print, print, print), 0)
        tasks.start(held)
        assert tasks.cancel(held, ValueError())
        await asyncio.sleep(1)
        assert (ends, tasks.busy) == ([], 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_as_a_program_is_stopped_by_signals_and_leaves_them_as_they_were(number: signal.Signals) -> None:
    def push(job: Job) -> None:
        os.kill(os.getpid(), number)

    def own(number: int, frame: object) -> None:
        raise AssertionError("the program's own handler is not asked while a worker runs")

    before = {each: signal.signal(each, own) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        with blocking.connect(f"memory:signals-{number}") as store:
            store.queue("mail").push("x")
            assert Worker(store.url, "mail", push).main().done == 1
        assert [signal.getsignal(each) for each in before] == [own, own]
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_workers_of_a_process(number: signal.Signals) -> None:
    def own(number: int, frame: object) -> None:
        raise AssertionError("the program's own handler is not called while a worker runs")

    async def main() -> list[int]:
        async with penstock.connect("memory:") as store:
            started: set[str] = set()

            async def handle(job: Job) -> None:
                started.add(job.payload)
                if len(started) == 2:
                    os.kill(os.getpid(), number)

            for name in ("a", "b"):
                await store.queue(name).push(name)
            workers = [Worker(store, name, handle) for name in ("a", "b")]
            async with asyncio.timeout(PROCESS_S):
                return [summary.done for summary in await asyncio.gather(*(w.run(signals=True) for w in workers))]

    before = {each: signal.signal(each, own) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert asyncio.run(main()) == [1, 1]
        assert [signal.getsignal(each) for each in before] == [own, own]
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_the_third_signal_ends_all_workers_of_a_process_whose_handlers_do_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.worker.run.CANCEL_S", 3600)  # what the second signal alone would take

    async def main() -> list[int]:
        async with penstock.connect("memory:") as store:
            started: set[str] = set()
            end = asyncio.Event()

            async def handle(job: Job) -> None:
                started.add(job.payload)
                if len(started) == 2:
                    for _ in range(3):
                        os.kill(os.getpid(), signal.SIGTERM)
                while not end.is_set():
                    with suppress(asyncio.CancelledError):
                        await end.wait()

            for name in ("a", "b"):
                await store.queue(name).push(name)
            workers = [Worker(store, name, handle) for name in ("a", "b")]
            async with asyncio.timeout(PROCESS_S):
                await asyncio.gather(*(worker.run(signals=True) for worker in workers))
            end.set()
            return [await store.queue(name).reserved() or 0 for name in ("a", "b")]

    assert asyncio.run(main()) == [0, 0]


def test_a_worker_that_ends_leaves_the_signals_to_the_others() -> None:
    async def main() -> int:
        async with penstock.connect("memory:") as store:
            first = Worker(store, "a", _fail)
            second = Worker(store, "b", _fail)
            run = asyncio.create_task(second.run(signals=True))
            await first.run(until_empty=True, signals=True)
            os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(PROCESS_S):
                return (await run).done

    before = signal.getsignal(signal.SIGTERM)
    assert asyncio.run(main()) == 0
    assert signal.getsignal(signal.SIGTERM) == before


def test_signals_are_refused_outside_of_the_main_thread() -> None:
    problems: list[BaseException] = []

    def run() -> None:
        try:
            Worker("memory:", "a", _fail).main()
        except CallerError as problem:
            problems.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert [str(problem) for problem in problems] == [
        "signals=True needs the main thread: elsewhere call worker.stop()"
    ]


async def _fail(job: Job) -> None:
    raise AssertionError


@virtual
async def test_a_worker_that_has_ended_hears_no_more_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the queues that it made for itself: a store may outlive any number of workers."""
    heard: list[str] = []
    monkeypatch.setattr(Queue, "_heard", lambda self, text: heard.append(self.name))

    async def handler(job: Job) -> None: ...

    async with memory_store() as store:
        mine = store.queue("mail")
        for _ in range(3):
            await mine.push(1)
            heard.clear()
            await Worker(store, ["mail", "other"], handler).run(until_empty=True)
        await asyncio.sleep(0)
        heard.clear()
        await mine.push(2)
        await asyncio.sleep(0)
        assert heard == []
