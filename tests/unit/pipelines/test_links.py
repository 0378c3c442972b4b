"""What becomes of a job by what the function of its link returned: the table of `results`."""

import asyncio
from typing import Any

import pytest

from penstock import Fail, Fixed, Job, Store
from penstock.errors import CallerError
from penstock.pipelines import DROP, Later, Link, Move, Pipeline
from penstock.queues.dead_letter import ERROR, FROM_QUEUE
from penstock.queues.push import UNCHANGED
from tests.unit.worker.virtual_time import memory_store, virtual

DIRECT = Link("first", "a", ("b",), len)
CHOICE = Link("first", "a", ("b", "c"), len)
SINK = Link("first", "a", (), len)


@pytest.mark.parametrize(
    ("link", "returned", "decided"),
    [
        (DIRECT, {"n": 1}, Move("b", {"n": 1})),
        (DIRECT, None, Move("b")),
        (DIRECT, False, Move("b", False)),
        (DIRECT, 0, Move("b", 0)),
        (DIRECT, Move(payload=1, delay=2), Move("b", 1, delay=2)),
        (DIRECT, Move(to="b"), Move("b")),
        (DIRECT, DROP, DROP),
        (DIRECT, Later(5), Later(5)),
        (CHOICE, Move(to="c"), Move("c")),
        (CHOICE, Move(to=0, payload=None), Move("b", None)),
        (CHOICE, Move(to=1, headers={"x": 1}), Move("c", UNCHANGED, {"x": 1})),
        (CHOICE, DROP, DROP),
        (SINK, None, DROP),
        (SINK, {"any": "value"}, DROP),
        (SINK, Later(5), Later(5)),
    ],
    ids=repr,
)
def test_what_a_link_decides(link: Link, returned: Any, decided: Any) -> None:
    assert link.decide(returned) == decided


@pytest.mark.parametrize(
    ("link", "returned", "said"),
    [
        (CHOICE, None, r"must return Move\(to=...\) with one of b, c, DROP or Later, got NoneType"),
        (CHOICE, {"n": 1}, "got dict"),
        (CHOICE, Move(payload=1), "must move jobs to one of b, c, got to=None"),
        (CHOICE, Move(to="d"), "got to='d'"),
        (CHOICE, Move(to=2), "got to=2"),
        (CHOICE, Move(to=-1), "got to=-1"),
        (CHOICE, Move(to=True), "got to=True"),
        (DIRECT, Move(to="c"), "must move jobs to one of b, got to='c'"),
        (SINK, Move(to="b"), "is a sink"),
    ],
    ids=repr,
)
def test_what_a_link_can_not_do(link: Link, returned: Any, said: str) -> None:
    with pytest.raises(CallerError, match=said):
        link.decide(returned)


def test_a_delay_that_can_not_be_is_refused_at_once() -> None:
    with pytest.raises(CallerError, match="delay must be 0 to"):
        Later(-1)


async def payloads(store: Store, queue: str) -> list[Any]:
    return [job.payload async for job in store.queue(queue).jobs()]


@virtual
async def test_jobs_go_through_links_of_each_kind() -> None:
    async with memory_store() as store:
        pipeline = Pipeline(store)
        ended: list[int] = []

        @pipeline.link("a", to="b", takes="payload")
        async def double(number: int) -> int:
            return 2 * number

        @pipeline.link("b", to=["small", "large"])
        async def choose(job: Job) -> Move:
            return Move(to="small" if job.payload < 10 else "large", headers={"chosen": True})

        @pipeline.link("small", takes="payload")
        async def end(number: int) -> None:
            ended.append(number)

        await store.queue("a").push_many(range(10))
        summaries = await pipeline.run(until_empty=True)
        assert sorted(ended) == [0, 2, 4, 6, 8]
        assert sorted(await payloads(store, "large")) == [10, 12, 14, 16, 18]
        assert {job.headers["chosen"] async for job in store.queue("large").jobs()} == {True}
        assert {name: summary.done for name, summary in summaries.items()} == {"double": 10, "choose": 10, "end": 5}


@virtual
async def test_a_job_that_is_dropped_leaves_the_pipeline() -> None:
    async with memory_store() as store:
        pipeline = Pipeline(store)

        @pipeline.link("a", to="b", takes="payload")
        async def keep_odd(number: int) -> Any:
            return number if number % 2 else DROP

        await store.queue("a").push_many(range(4))
        await pipeline.run(until_empty=True)
        assert sorted(await payloads(store, "b")) == [1, 3]


@virtual
async def test_later_brings_a_job_back_after_its_delay() -> None:
    async with memory_store() as store:
        pipeline = Pipeline(store)
        calls: list[tuple[int, float]] = []

        @pipeline.link("a", to="b")
        async def wait(job: Job) -> Any:
            calls.append((job.tries, asyncio.get_running_loop().time()))
            return Later(1000) if job.tries == 0 else None

        await store.queue("a").push("x")
        await pipeline.run(until_empty=True)
        (first, began), (second, ended) = calls
        assert (first, second, round(ended - began)) == (0, 1, 1000)
        assert await payloads(store, "b") == ["x"]


@virtual
async def test_an_error_rolls_back_with_back_off_and_then_goes_to_the_dead_letters() -> None:
    async with memory_store() as store:
        pipeline = Pipeline(store, dead_letters="given-up")

        @pipeline.link("a", to="b", max_tries=3, backoff=50)
        async def raises(job: Job) -> Any:
            if job.payload == "flaky" and job.tries == 1:
                return "done"
            raise ValueError("no luck")

        await store.queue("a").push_many(["flaky", "hopeless"])
        began = asyncio.get_running_loop().time()
        summaries = await pipeline.run(until_empty=True)
        assert asyncio.get_running_loop().time() - began >= 100
        assert await payloads(store, "b") == ["done"]
        (dead,) = await store.queue("given-up").peek(state=None)
        assert (dead.payload, dead.headers[ERROR], dead.headers[FROM_QUEUE]) == ("hopeless", "ValueError: no luck", "a")
        assert (summaries["raises"].retried, summaries["raises"].failed) == (3, 1)


@virtual
async def test_fail_goes_to_the_dead_letters_at_once_and_redrive_brings_it_back_to_its_link() -> None:
    async with memory_store() as store:
        pipeline = Pipeline(store)
        is_repaired = False

        @pipeline.link("a", to="b")
        async def fails(job: Job) -> Any:
            if not is_repaired:
                raise Fail("no such address")

        @pipeline.link("b", to="c", name="second")
        async def passes(job: Job) -> Any:
            return None

        await store.queue("a").push("x")
        await store.queue("__deadletter__").push("another's", headers={FROM_QUEUE: "elsewhere"})
        await pipeline.run(until_empty=True)
        assert await payloads(store, "__deadletter__") == ["another's", "x"]
        is_repaired = True
        assert await pipeline.redrive("second") == 0
        assert await pipeline.redrive("fails") == 1
        await pipeline.run(until_empty=True)
        assert await payloads(store, "c") == ["x"]
        assert await payloads(store, "__deadletter__") == ["another's"]


@virtual
async def test_a_result_that_can_not_be_stored_is_an_error_of_its_own_job_only() -> None:
    async with memory_store() as store:
        pipeline = Pipeline(store)

        @pipeline.link("a", to="b", max_tries=1, takes="payload")
        async def returns(number: int) -> Any:
            return {1, 2} if number == 3 else number

        await store.queue("a").push_many(range(6))
        await pipeline.run(until_empty=True)
        assert sorted(await payloads(store, "b")) == [0, 1, 2, 4, 5]
        (dead,) = await store.dead_letters().peek(state=None)
        assert dead.payload == 3
        assert dead.headers[ERROR].startswith("BadPayload")


@virtual
async def test_a_coroutine_that_nobody_awaits_is_an_error() -> None:
    async with memory_store() as store:

        async def forgotten() -> int:
            return 1

        async def returns(job: Job) -> Any:
            return forgotten()

        pipeline = Pipeline(store)
        pipeline.link("a", to="b", max_tries=1)(returns)
        await store.queue("a").push("x")
        await pipeline.run(until_empty=True)
        (dead,) = await store.dead_letters().peek(state=None)
        assert "nobody awaits" in dead.headers[ERROR]


@virtual
async def test_a_function_may_end_its_job_itself() -> None:
    async with memory_store() as store:
        pipeline = Pipeline(store)

        @pipeline.link("a", to="b")
        async def sends(job: Job) -> Any:
            await job.move("elsewhere", payload="mine")
            return "ignored"

        await store.queue("a").push("x")
        await pipeline.run(until_empty=True)
        assert (await payloads(store, "elsewhere"), await payloads(store, "b")) == (["mine"], [])


@virtual
async def test_a_link_waits_while_its_target_is_full() -> None:
    async with memory_store() as store:
        pipeline = Pipeline(store)
        most = 0

        @pipeline.link("a", to="b", max_waiting=5, concurrency=2)
        async def fast(job: Job) -> None:
            nonlocal most
            most = max(most, await store.queue("b").size())

        @pipeline.link("b", concurrency=1, backoff=1)
        async def slow(job: Job) -> None:
            await asyncio.sleep(10)

        await store.queue("a").push_many(range(40))
        await pipeline.run(until_empty=True)
        assert 0 < most <= 5
        assert await store.queue("b").total() == 0


def test_plain_functions_run_in_threads() -> None:
    async def run() -> None:
        async with memory_store() as store:
            pipeline = Pipeline(store)

            @pipeline.link("a", to="b", takes="payload", backoff=Fixed(0).seconds)
            def double(number: int) -> int:
                return number * 2

            @pipeline.link("b", to="c")
            def moves(job: Any) -> Move:
                return Move(payload=job.payload + 1)

            await store.queue("a").push_many(range(50))
            await pipeline.run(until_empty=True)
            assert sorted(await payloads(store, "c")) == [2 * number + 1 for number in range(50)]

    asyncio.run(run())
