"""Plain functions: in threads, beside an event loop that goes on. In real time, and driven by events."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import pytest

import penstock
from penstock import Fail, Fixed, Job, JobState, Worker
from penstock.queues.dead_letter import ERROR

PATIENCE_S = 30.0


@contextmanager
def opened() -> Iterator[threading.Event]:
    """An event that is set at the end, so that no thread is left waiting."""
    event = threading.Event()
    try:
        yield event
    finally:
        event.set()


def run(
    *, push: list[object], handler: Callable[[Job], object], **options: object
) -> tuple[Worker, list[Job], list[Job]]:
    """Run until empty; return the worker, what is left, and the dead letters."""

    async def main() -> tuple[Worker, list[Job], list[Job]]:
        async with penstock.connect("memory:") as store:
            await store.queue("mail").push_many(push)
            worker = Worker(store, "mail", handler, **options)
            await worker.run(until_empty=True)
            return worker, await store.queue("mail").peek(100, state=None), await store.dead_letters().peek(100)

    return asyncio.run(main())


def test_as_many_run_at_a_time_as_wanted() -> None:
    together = threading.Barrier(4)

    def handle(job: Job) -> None:
        together.wait(PATIENCE_S)

    worker, left, _ = run(push=list(range(8)), handler=handle, concurrency=4)
    assert (worker.summary.done, left) == (8, [])


def test_never_more_run_than_wanted() -> None:
    running: set[object] = set()
    most = []

    def handle(job: Job) -> None:
        running.add(job.id)
        most.append(len(running))
        running.discard(job.id)

    run(push=list(range(500)), handler=handle, concurrency=2)
    assert len(most) == 500
    assert max(most) <= 2


def test_they_run_in_other_threads_than_the_loops() -> None:
    threads = set()

    def handle(job: Job) -> None:
        threads.add(threading.current_thread())

    run(push=[1], handler=handle)
    assert threading.main_thread() not in threads


def test_one_that_raises_is_tried_again_and_given_up() -> None:
    tries = []

    def handle(job: Job) -> None:
        tries.append(job.tries)
        raise ValueError("no such address")

    _, left, dead = run(push=["x"], handler=handle, max_tries=3, backoff=Fixed(0))
    assert (tries, left) == ([0, 1, 2], [])
    assert [job.headers[ERROR] for job in dead] == ["ValueError: no such address"]


def test_the_choices_of_a_handler_are_its_own_here_too() -> None:
    def handle(job: Job) -> None:
        raise Fail("never")

    _, _, dead = run(push=["x"], handler=handle)
    assert [job.headers[ERROR] for job in dead] == ["never"]


@pytest.mark.parametrize("problem", [SystemExit(1), KeyboardInterrupt()])
def test_one_that_ends_the_process_ends_only_its_job(problem: BaseException) -> None:
    def handle(job: Job) -> None:
        if job.payload == "bad":
            raise problem

    worker, _, dead = run(push=["bad", "good"], handler=handle, max_tries=1, concurrency=1)
    assert (worker.summary.done, len(dead)) == (1, 1)


class _Later:
    def __await__(self) -> Iterator[None]:
        yield


async def _send() -> None:
    pass


async def _send_each() -> AsyncIterator[None]:
    yield


UNDONE: dict[str, Callable[[], object]] = {
    "a coroutine": _send,
    "a generator": lambda: (number for number in range(3)),
    "an async generator": _send_each,
    "an awaitable": _Later,
}


@pytest.mark.parametrize("name", UNDONE)
def test_a_function_whose_work_is_still_to_be_done_when_it_returns_has_failed(name: str) -> None:
    worker, _, dead = run(push=["x"], handler=lambda job: UNDONE[name](), max_tries=1)
    assert worker.summary.done == 0
    assert name in dead[0].headers[ERROR]


def test_leases_are_kept_while_functions_block() -> None:
    async def main() -> None:
        async with penstock.connect("memory:") as store:
            await store.queue("mail").push("x")
            extended = threading.Event()
            real = store._driver.extend

            async def extend(*args: object) -> object:
                tokens = await real(*args)
                extended.set()
                return tokens

            store._driver.extend = extend

            def handle(job: Job) -> None:
                assert extended.wait(PATIENCE_S)

            summary = await Worker(store, "mail", handle, lease=2).run(until_empty=True)
            assert (summary.done, summary.lost) == (1, 0)

    asyncio.run(main())


def test_a_function_learns_that_its_lease_is_lost_and_is_not_acked() -> None:
    async def main() -> None:
        async with penstock.connect("memory:") as store:
            await store.queue("mail").push("x")
            loop = asyncio.get_running_loop()
            seen = []

            def handle(job: Job) -> None:
                # As another worker would do that got the job when this one's lease was over.
                taking = store._driver.nack("mail", [job.as_lease], [1_000_000], None)
                assert asyncio.run_coroutine_threadsafe(taking, loop).result(PATIENCE_S) == [True]
                waited = threading.Event()
                for _ in range(int(PATIENCE_S * 100)):
                    if job.lost:
                        break
                    waited.wait(0.01)
                seen.append(job.lost)

            summary = await Worker(store, "mail", handle, lease=2).run(until_empty=True)
            assert seen == [True]
            assert (summary.done, summary.lost) == (0, 1)
            assert [job.tries for job in await store.queue("mail").peek(state="scheduled")] == [1]

    asyncio.run(main())


def test_a_function_that_overruns_its_time_limit_has_failed_and_others_go_on() -> None:
    with opened() as end, opened() as has_been_told:
        told = []

        def handle(job: Job) -> None:
            if job.payload == "hangs":
                end.wait(PATIENCE_S)
                told.append(job.lost)
                has_been_told.set()

        worker, _, dead = run(push=["hangs", *range(20)], handler=handle, concurrency=1, time_limit=0.05, max_tries=1)
        assert [(job.payload, job.headers[ERROR]) for job in dead] == [
            ("hangs", "it took longer than its time limit of 0.05 s")
        ]
        assert (worker.summary.done, worker.is_stuck) == (20, False)
        end.set()
        assert has_been_told.wait(PATIENCE_S)
        assert told == [True]


def test_a_function_whose_lease_was_lost_before_its_turn_is_not_called() -> None:
    async def main() -> None:
        async with penstock.connect("memory:") as store:
            queue = store.queue("mail")
            await queue.push_many(["first", "second"])
            loop = asyncio.get_running_loop()
            runs = []

            async def take_away_others(job: Job) -> None:
                others = [one for one in await queue.peek(state="reserved") if one.id != job.id]
                await store._driver.nack("mail", [one.as_lease for one in others], [1_000_000] * len(others), None)

            lost = threading.Event()

            def handle(job: Job) -> None:
                runs.append(job.payload)
                asyncio.run_coroutine_threadsafe(take_away_others(job), loop).result(PATIENCE_S)
                assert lost.wait(PATIENCE_S)

            real = store._driver.extend

            async def extend(*args: object) -> list[str | None]:
                tokens = await real(*args)
                if None in tokens:
                    loop.call_later(0.05, lost.set)  # once the worker has heard of it
                return tokens

            store._driver.extend = extend
            summary = await Worker(store, "mail", handle, lease=2, concurrency=1, prefetch=1).run(until_empty=True)
            assert runs == ["first"]
            assert (summary.done, summary.lost) == (1, 1)

    asyncio.run(main())


def test_a_worker_with_too_many_functions_that_hang_ends_itself() -> None:
    async def main() -> None:
        with opened() as end:

            def handle(job: Job) -> None:
                end.wait(PATIENCE_S)

            async with penstock.connect("memory:") as store:
                await store.queue("mail").push_many(range(5))
                worker = Worker(
                    store, "mail", handle, concurrency=2, time_limit=0.05, max_stuck=0, shutdown_timeout=PATIENCE_S
                )
                await worker.run()
                assert worker.is_stuck
                left = await store.queue("mail").peek(100, state=None)
                assert sorted(job.tries for job in left) == [0, 0, 0, 1, 1]

    asyncio.run(main())


def test_what_runs_when_the_worker_must_end_goes_back_and_what_waits_has_no_try_more() -> None:
    async def main() -> None:
        with opened() as end:
            began = threading.Event()

            def handle(job: Job) -> None:
                began.set()
                end.wait(PATIENCE_S)

            async with penstock.connect("memory:") as store:
                await store.queue("mail").push_many(range(3))
                worker = Worker(store, "mail", handle, concurrency=1, prefetch=2, shutdown_timeout=0)
                running = asyncio.create_task(worker.run())
                await asyncio.to_thread(began.wait, PATIENCE_S)
                worker.stop()
                summary = await running
                left = await store.queue("mail").peek(100, state=None)
                assert sorted((job.tries, job.state) for job in left) == [
                    (0, JobState.READY), (0, JobState.READY), (1, JobState.READY)
                ]  # fmt: skip
                assert (summary.returned, summary.released) == (1, 2)

    asyncio.run(main())


def test_a_function_may_stop_its_worker() -> None:
    async def main() -> None:
        async with penstock.connect("memory:") as store:
            await store.queue("mail").push("x")
            worker = Worker(store, "mail", lambda job: worker.stop())
            assert (await worker.run()).done == 1

    asyncio.run(main())


@pytest.mark.parametrize("count", [1, 3])
def test_no_thread_is_left_when_a_worker_has_ended(count: int) -> None:
    before = set(threading.enumerate())
    run(push=list(range(10)), handler=lambda job: None, concurrency=count)
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
