"""A pipeline that runs while its links change: no job is lost, and none is done twice."""

import asyncio
from typing import Any

import pytest

from penstock import Job
from penstock.errors import BadRecipe, CallerError
from penstock.pipelines import Pipeline
from tests.unit.worker.virtual_time import memory_store, virtual


def passing(payload: Any) -> None:
    """Let jobs go on."""


def recipe(**links: dict[str, Any]) -> dict[str, Any]:
    return {"links": {name: {"function": passing, "takes": "payload", **row} for name, row in links.items()}}


async def until(condition: Any) -> None:
    while not await condition():  # noqa: ASYNC110 - the store has no event for a size
        await asyncio.sleep(0.1)


async def has(store: Any, queue: str, count: int) -> bool:
    total: int = await store.queue(queue).total()
    return total == count


@virtual
async def test_a_paused_link_takes_no_jobs_and_goes_on_when_it_is_resumed() -> None:
    async with memory_store() as store:

        async def link(job: Job) -> None: ...

        row = {"from": "a", "to": "b", "function": link, "takes": "job"}
        pipeline = Pipeline.from_recipe(recipe(first=row), store=store)
        running = asyncio.create_task(pipeline.run())
        await store.queue("a").push(1)
        await until(lambda: has(store, "b", 1))
        pipeline.change(recipe(first={**row, "paused": True}))
        await asyncio.sleep(100)
        await store.queue("a").push(2)
        await asyncio.sleep(100)
        assert await has(store, "a", 1)
        pipeline.change(recipe(first=row))
        await until(lambda: has(store, "b", 2))
        pipeline.stop()
        assert (await running)["first"].done == 2


@virtual
async def test_a_link_that_is_added_runs_and_one_that_is_dropped_leaves_its_jobs() -> None:
    async with memory_store() as store:

        async def link(job: Job) -> None: ...

        first, second = ({"from": x, "to": y, "function": link, "takes": "job"} for x, y in ("ab", "bc"))
        pipeline = Pipeline.from_recipe(recipe(first=first), store=store)
        running = asyncio.create_task(pipeline.run())
        await store.queue("a").push(1)
        await until(lambda: has(store, "b", 1))
        pipeline.change(recipe(first=first, second=second))
        await until(lambda: has(store, "c", 1))
        pipeline.change(recipe(second=second))
        await asyncio.sleep(100)
        await store.queue("a").push(2)
        await asyncio.sleep(100)
        assert await has(store, "a", 1)
        assert await pipeline.unread() == {"a": 1, "c": 1}
        pipeline.stop()
        await running


@virtual
async def test_jobs_under_way_in_a_link_that_is_changed_end_there() -> None:
    async with memory_store() as store:
        began: list[Any] = []

        async def slow(job: Job) -> None:
            began.append(job.payload)
            await asyncio.sleep(500)  # far longer than a pipeline that stops would wait

        row = {"from": "a", "to": "b", "function": slow, "takes": "job", "concurrency": 1}
        pipeline = Pipeline.from_recipe(recipe(first=row), store=store)
        running = asyncio.create_task(pipeline.run())
        await store.queue("a").push_many([1, 2, 3])
        await asyncio.sleep(10)
        assert began == [1]
        pipeline.change(recipe(first={**row, "concurrency": 2}))
        await asyncio.sleep(10)
        assert began == [1, 2, 3]  # the new worker has begun with the others
        await until(lambda: has(store, "b", 3))
        pipeline.stop()
        summary = (await running)["first"]
        assert (summary.done, summary.returned, summary.lost) == (3, 0, 0)
        assert began == [1, 2, 3]


@virtual
async def test_a_pipeline_that_stops_gives_jobs_their_time_and_then_returns_them() -> None:
    async with memory_store() as store:

        async def slow(job: Job) -> None:
            await asyncio.sleep(job.payload)

        row = {"from": "a", "to": "b", "function": slow, "takes": "job"}
        pipeline = Pipeline.from_recipe(recipe(first=row), store=store, shutdown_timeout=20)
        await store.queue("a").push_many([10, 1000])
        running = asyncio.create_task(pipeline.run())
        await asyncio.sleep(1)
        pipeline.stop()
        summary = (await running)["first"]
        assert (summary.done, summary.returned) == (1, 1)
        assert await has(store, "a", 1)
        assert await has(store, "b", 1)


@virtual
async def test_a_run_that_is_cancelled_returns_its_jobs() -> None:
    async with memory_store() as store:

        async def slow(job: Job) -> None:
            await asyncio.sleep(1000)

        pipeline = Pipeline(store)
        pipeline.link("a", to="b")(slow)
        await store.queue("a").push(1)
        running = asyncio.create_task(pipeline.run())
        await asyncio.sleep(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await store.queue("a").sizes()).ready == 1


@virtual
async def test_only_the_chosen_links_run() -> None:
    async with memory_store() as store:

        async def link(job: Job) -> None: ...

        pipeline = Pipeline(store)
        pipeline.link("a", to="b", name="first")(link)
        pipeline.link("b", to="c", name="second")(link)
        await store.queue("a").push(1)
        running = asyncio.create_task(pipeline.run(links=["first"]))
        await until(lambda: has(store, "b", 1))
        pipeline.stop()
        await running
        assert await has(store, "c", 0)
        with pytest.raises(CallerError, match="links must be among first, second, got third"):
            await pipeline.run(links=["third"])


@virtual
async def test_a_change_that_is_wrong_changes_nothing() -> None:
    async with memory_store() as store:
        row = {"from": "a", "to": "b"}
        pipeline = Pipeline.from_recipe(recipe(first=row), store=store)
        with pytest.raises(BadRecipe, match=r"links.first.to"):
            pipeline.change(recipe(first={**row, "to": 3}))
        with pytest.raises(CallerError, match=r"links.first.function: there is no module 'no_such_module'"):
            pipeline.change(recipe(first={**row, "function": "no_such_module:f"}))
        assert pipeline.links["first"].targets == ("b",)


@virtual
async def test_a_worker_that_can_not_go_on_ends_the_pipeline_with_its_error() -> None:
    async with memory_store() as store:
        pipeline = Pipeline.from_recipe(recipe(first={"from": "a", "to": "b", "function": passing}), store=store)

        async def refuse(*_: Any) -> None:
            raise CallerError("no such queue")

        store._driver.reserve = refuse  # type: ignore[method-assign]  # a store that refuses every call
        with pytest.raises(CallerError, match="no such queue"):
            await pipeline.run()


def test_two_links_can_not_have_one_name() -> None:
    pipeline = Pipeline("memory:")
    pipeline.link("a", to="b")(passing)
    with pytest.raises(CallerError, match="has a link 'passing' already"):
        pipeline.link("b", to="c")(passing)


@virtual
async def test_status_has_depths_rates_errors_and_the_oldest_job() -> None:
    async with memory_store() as store:

        async def link(job: Job) -> None:
            if job.payload == "bad":
                raise ValueError("no luck")

        pipeline = Pipeline(store)
        pipeline.link("a", to="b", name="first", max_tries=1)(link)
        await store.queue("a").push_many(["good", "bad", "good"])
        await pipeline.run(until_empty=True)
        await store.queue("a").push("waits")
        (status,) = await pipeline.status()
        assert (status.link, status.queue, status.targets) == ("first", "a", ("b",))
        assert (status.ready, status.scheduled, status.reserved, status.done) == (1, 0, 0, 2)
        assert (status.failed, status.dead, status.rate) == (1, 1, None)
        assert status.oldest is not None
        assert await pipeline.unread() == {"b": 2}
        assert (await pipeline.status(interval=1.0))[0].rate == 0.0
