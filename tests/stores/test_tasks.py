"""Tasks on every store: pushed, run, failed, looked at, cancelled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import App, Capability, chain, current_job, group
from penstock.errors import TaskCancelled, TaskFailed
from penstock.tasks import FailedCall, State
from penstock.tasks.scheduler import Scheduler
from tests.stores.harness import Place, needs


@needs(Capability.RESERVE, Capability.DELAY, Capability.VALUES)
async def test_a_call_is_run_and_its_result_read_by_any_program(aio_place: Place) -> None:
    app = App(aio_place.url, queue=aio_place.new_name(), **aio_place.kind.options)

    @app.task(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="divide", max_tries=2, backoff=0)
    def divide(a: int, b: int) -> float:
        current_job().progress(0.5)
        return a / b

    async with app:
        await app.client.store.open()
        handles = [await add.push(n, b=1) for n in range(5)]
        failing = await divide.push(1, 0)
        waiting = await add.options(delay=3600).push(1, 1)
        worker = app.worker()
        task = asyncio.create_task(worker.run())
        assert [await handle.result(timeout=30) for handle in handles] == [1, 2, 3, 4, 5]
        with pytest.raises(TaskFailed, match="ZeroDivisionError"):
            await failing.result(timeout=30)
        worker.stop()
        await task
        assert (await waiting.status()).state is State.SCHEDULED
        assert await waiting.cancel()
        assert (await waiting.status()).state is State.CANCELLED
        with pytest.raises(TaskCancelled):
            await waiting.result(timeout=0)
        assert not await waiting.cancel()
        assert not await handles[0].cancel()
        assert (await handles[0].status()).state is State.DONE
    app.close_blocking()

    other = App(aio_place.url, queue=app.queue, **aio_place.kind.options)
    other.task(name="add")(add.function)
    async with other:
        assert await other.handle(handles[2].id).result(timeout=0) == 3


@needs(Capability.RESERVE, Capability.DELAY, Capability.VALUES)
async def test_several_schedulers_push_each_run_once(aio_place: Place) -> None:
    queue = aio_place.new_name()
    apps = []
    now = datetime(2026, 3, 1, tzinfo=UTC).timestamp()

    def nightly() -> None: ...

    for _ in range(3):
        app = App(aio_place.url, queue=queue, **aio_place.kind.options)
        app.cron("0 3 * * *", name=f"nightly-{queue}", missed="all")(nightly)
        app.now = lambda: now
        await app.client.store.open()
        apps.append(app)
    schedulers = [Scheduler(app) for app in apps]
    for day in range(3):
        await asyncio.gather(*(one.step() for one in schedulers))
        await asyncio.gather(*(one.step() for one in schedulers))
        assert await apps[0].client.queue(queue).total() == day
        now += 24 * 3600
    for app in apps:
        await app.close()


@needs(Capability.RESERVE, Capability.DELAY, Capability.VALUES)
async def test_what_runs_is_cancelled_when_its_lease_is_next_extended(aio_place: Place) -> None:
    """Single calls, whose jobs are removed, and those of a group, which look for that by themselves."""
    app = App(aio_place.url, queue=aio_place.new_name(), **aio_place.kind.options)
    began: list[str] = []
    ended: list[str] = []

    @app.task(name="wait")
    async def wait() -> str:
        began.append("async")
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ended.append("async")
            raise
        return "x"

    @app.task(name="count")
    def count() -> str:
        began.append("thread")
        while not current_job().cancelled:
            time.sleep(0.01)
        ended.append("thread")
        return "a result that nobody wants"

    @app.task(name="never")
    async def never() -> None:
        began.append("never")

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - the worker tells nobody
                await asyncio.sleep(0.01)

    async with app:
        assert not await app.handle("unknown").cancel()
        handles: list[Any] = [await wait.push(), await count.push()]
        handles.append(await group([wait.call(), count.call()]).then(never.call()).push())
        worker = app.worker(lease=1.5)
        task = asyncio.create_task(worker.run())
        await until(lambda: len(began) >= 4)
        assert [await handle.cancel() for handle in handles] == [True, True, True]
        await until(lambda: len(ended) >= 4 and worker.summary.lost >= 2 and worker.summary.done >= 3)
        worker.stop()
        summary = await task
        assert (summary.retried, summary.failed) == (0, 0)
        assert sorted(set(began)) == ["async", "thread"]
        for handle in handles:
            assert (await handle.status()).state is State.CANCELLED
            with pytest.raises(TaskCancelled):
                await handle.result(timeout=0)
        assert await app.client.queue(app.queue).total() == 0


@needs(Capability.RESERVE, Capability.DELAY, Capability.VALUES)
async def test_since_when_a_call_runs_is_known_once_it_has_run_for_a_moment(aio_place: Place) -> None:
    """Of any task, also of one that keeps no results, and of a call within a workflow."""
    app = App(aio_place.url, queue=aio_place.new_name(), **aio_place.kind.options)
    began: list[float] = []
    is_over = threading.Event()

    @app.task(name="plain")
    def plain() -> None:
        began.append(time.time())
        is_over.wait()

    @app.task(name="counted")
    def counted() -> int:
        plain.function()
        return 1

    async with app:
        flow = await group([counted.call()]).push()
        handles: list[Any] = [await plain.push(), await counted.push(), app.handle(f"{flow.id}.0")]
        before = time.time()
        assert [(await handle.status()).since for handle in handles] == [None] * 3
        worker = app.worker()
        task = asyncio.create_task(worker.run())
        async with asyncio.timeout(60):
            while None in (  # noqa: ASYNC110 - the worker tells nobody
                found := [(await handle.status()).since for handle in handles]
            ):
                await asyncio.sleep(0.01)
        for handle, since in zip(handles, found, strict=True):
            assert (await handle.status()).state is State.RUNNING
            assert before - 0.1 < since <= time.time()
        assert max(found) >= max(began) - 0.1
        is_over.set()
        assert await handles[1].result(timeout=30) == 1
        assert (await handles[1].status()).since is None
        await flow.result(timeout=30)
        worker.stop()
        await task
        status = await handles[0].status()
        assert (status.state, status.since) == (State.UNKNOWN, None)


@needs(Capability.RESERVE, Capability.DELAY, Capability.VALUES)
async def test_chains_and_groups_pass_results_on_and_push_what_follows_once(aio_place: Place) -> None:
    queue = aio_place.new_name()
    app = App(aio_place.url, queue=queue, **aio_place.kind.options)
    sums: list[list[int]] = []

    @app.task(name="first")
    async def first(n: int) -> int:
        return n

    @app.task(name="double", queue=f"{queue}-b")  # a chain moves on to it
    async def double(n: int) -> int:
        return 2 * n

    @app.task(name="total")
    async def total(numbers: list[int]) -> int:
        sums.append(numbers)
        return sum(numbers)

    @app.task(name="fail", max_tries=1)
    def fail(n: int) -> int:
        raise ValueError(f"no {n}")

    failures: list[str] = []

    @app.task(name="alert")
    def alert(failed: FailedCall) -> None:
        failures.append(failed.error)

    async with app:
        assert not await app.handle("unknown").cancel()
        workers = [app.worker(lease=30) for _ in range(2)]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        pairs = group([chain(first.call(n), double.call(), double.call()) for n in range(5)])
        nested = chain(first.call(1), group([double.call(), pairs.then(total.call())]), total.call())
        bad = group([first.call(1), fail.call(2)], on_failure=alert.call()).then(total.call())
        handles = [await one.push() for one in (nested, pairs.then(total.call()))]
        failed = await bad.push()
        stopped = await first.options(delay=3600).call(1).then(double.call()).push()
        assert await stopped.cancel()
        assert [await one.result(timeout=60) for one in handles] == [42, 40]
        with pytest.raises(TaskFailed, match="ValueError: no 2"):
            await failed.result(timeout=60)
        status = await handles[1].status()
        assert (status.state, status.done, status.total) == (State.DONE, 16, 16)
        assert (await stopped.status()).state is State.CANCELLED
        async with asyncio.timeout(60):
            while not failures or await app.client.queue(queue).size():  # noqa: ASYNC110 - nobody tells when
                await asyncio.sleep(0.01)
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
        assert sorted(sums) == [[0, 4, 8, 12, 16], [0, 4, 8, 12, 16], [2, 40]]
        assert failures == ["ValueError: no 2"]
    app.close_blocking()


@needs(Capability.RESERVE, Capability.DELAY, Capability.VALUES)
async def test_a_call_of_an_unknown_task_waits_and_is_the_same_call_when_it_is_run(aio_place: Place) -> None:
    old = App(aio_place.url, queue=aio_place.new_name(), **aio_place.kind.options)
    name = f"late-{old.queue}"  # the queue of unknown tasks is one for all

    @old.task(name=f"early-{old.queue}")
    def early() -> None: ...

    new = App(aio_place.url, queue=old.queue, **aio_place.kind.options)

    @new.task(name=name)
    async def late(n: int) -> int:
        return n + 1

    async with old, new:
        call_id = (await late.push(4)).id
        await old.worker().run(until_empty=True)
        assert await old.client.queue(old.queue).total() == 0
        worker = new.worker()
        task = asyncio.create_task(worker.run())
        assert await new.handle(call_id, late).result(timeout=30) == 5
        worker.stop()
        await task
