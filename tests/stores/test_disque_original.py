"""A store on nodes that are like those of the original Disque: no tokens, no claims, and nothing that they don't know.

There is no original among our tests: see `original_node`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock import Capability, DeadLetter, JobState, Push
from penstock.errors import CallerError, LeaseLost, Unsupported
from penstock.queues import aio, blocking
from tests.processes import NodeProcess, meet
from tests.stores.harness import PATIENCE
from tests.stores.original_node import OriginalNode, understanding

pytestmark = pytest.mark.system

_names = (f"queue-{number}" for number in count(1))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OriginalNode]:
    node = OriginalNode(tmp_path_factory.mktemp("original"), appendonly="no")
    node.start()
    yield node
    node.kill()


@pytest.fixture(autouse=True)
def watched(node: OriginalNode) -> Iterator[None]:
    with understanding(node):
        yield


def url_of(node: NodeProcess) -> str:
    return f"disque://{node.host}:{node.port}?lease=100"


async def test_it_has_neither_tokens_nor_claims(node: OriginalNode) -> None:
    async with aio.connect(url_of(node)) as store:
        assert not {Capability.TOKEN, Capability.CLAIM} & store.capabilities
        assert {Capability.RESERVE, Capability.EXTEND, Capability.DELAY, Capability.REMOVE} <= store.capabilities
        with pytest.raises(Unsupported, match="claim"):
            await store.queue(next(_names)).claim("key", 1)
        with pytest.raises(CallerError, match="does not show the jobs that workers have"):
            await store.names_in_events()
    with blocking.connect(url_of(node)) as store:
        assert Capability.TOKEN not in store.capabilities


async def test_jobs_are_pushed_reserved_and_ended(node: OriginalNode) -> None:
    async with aio.connect(url_of(node)) as store:
        queue = store.queue(next(_names))
        await queue.push_many([*range(5), Push("later", delay=50), Push("last", headers={"a": 1})])
        jobs = await queue.reserve_many(10, PATIENCE)
        assert [job.payload for job in jobs] == [0, 1, 2, 3, 4, "last"]
        assert jobs[-1].headers == {"a": 1}
        assert await queue.ack_many(jobs[:2]) == [True, True]
        assert await queue.ack_many(jobs[:3]) == [False, False, True]
        with pytest.raises(LeaseLost):
            await jobs[0].ack()
        await jobs[3].nack()
        assert (await queue.pop(timeout=PATIENCE)).tries == 1
        node.shift(51)
        assert (await queue.pop(timeout=PATIENCE)).payload == "later"


async def test_a_job_comes_back_when_its_retry_time_after_the_delivery_is_over(node: OriginalNode) -> None:
    async with aio.connect(url_of(node)) as store:
        queue = store.queue(next(_names))
        await queue.push("work")
        node.shift(90)
        job = await queue.reserve(timeout=PATIENCE)
        node.shift(90)  # more than the retry time since it was queued
        assert await queue.reserve(timeout=0) is None
        await job.extend()
        node.shift(90)
        assert await queue.reserve(timeout=0) is None
        node.shift(20)
        again = await queue.reserve(timeout=PATIENCE)
        assert (again.id, again.tries) == (job.id, 1)
        await again.ack()
        with pytest.raises(LeaseLost):
            await job.extend()


async def test_a_nack_with_a_delay_is_ready_at_once_and_a_release_counts(node: OriginalNode) -> None:
    async with aio.connect(url_of(node)) as store:
        queue = store.queue(next(_names))
        await queue.push("work")
        await (await queue.reserve(timeout=PATIENCE)).nack(delay=1000)
        job = await queue.reserve(timeout=PATIENCE)
        assert job.tries == 1
        await queue.release_many([job])
        assert (await queue.reserve(timeout=PATIENCE)).tries == 2


async def test_dead_letters_go_and_come_back(node: OriginalNode) -> None:
    limit = DeadLetter(1, next(_names))
    async with aio.connect(url_of(node)) as store:
        queue = store.queue(next(_names), dead_letter=limit)
        await queue.push_many(["a", "b"])
        for _ in range(2):
            await (await queue.reserve(timeout=PATIENCE)).nack(error="no")
        dead = store.queue(limit.queue)
        assert [job.payload async for job in dead.jobs()] == ["a", "b"]
        held = await dead.reserve(timeout=PATIENCE)
        assert await dead.redrive() == 1
        assert (await queue.pop(timeout=PATIENCE)).payload == "b"
        await held.ack()
        assert await dead.total() == 0


async def test_what_can_be_seen_is_counted_and_removed(node: OriginalNode) -> None:
    async with aio.connect(url_of(node)) as store:
        queue = store.queue(next(_names))
        ids = await queue.push_many([*range(4), Push("later", delay=50)])
        held = await queue.reserve(timeout=PATIENCE)
        assert tuple(await queue.sizes()) == (4, 3, 1, None)
        assert await queue.reserved() is None
        assert [job.payload for job in await queue.peek(state=None)] == [1, 2, 3, "later"]
        assert [job.payload for job in await queue.peek(state=JobState.SCHEDULED)] == ["later"]
        assert await queue.remove(*ids[:2]) == [False, True]
        assert await queue.purge() == 3
        assert await queue.total() == 0
        assert queue.name in await store.queues()
        await held.ack()
        await queue.pause()
        assert await queue.paused()
        await queue.resume()


def test_the_blocking_form_does_the_same(node: OriginalNode) -> None:
    with blocking.connect(url_of(node)) as store:
        queue = store.queue(next(_names))
        queue.push_many(range(10))
        done: Counter[Any] = Counter()
        while jobs := queue.reserve_many(3):
            done.update(job.payload for job in jobs)
            assert all(queue.ack_many(jobs))
        assert done == Counter(range(10))


async def test_one_original_among_the_nodes_decides_for_all(node: OriginalNode, tmp_path: Path) -> None:
    for name in ("ours", "other"):
        (tmp_path / name).mkdir()
    ours = NodeProcess(tmp_path / "ours", appendonly="no").start()
    other = OriginalNode(tmp_path / "other", appendonly="no")
    other.start()
    try:
        async with aio.connect(url_of(ours)) as store:
            assert Capability.TOKEN in store.capabilities
        meet(ours, other)
        async with aio.connect(url_of(ours)) as store:
            assert Capability.TOKEN not in store.capabilities
    finally:
        ours.kill()
        other.kill()
