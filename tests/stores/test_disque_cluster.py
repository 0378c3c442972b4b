"""The store of our broker on three nodes: what is counted once, what is found anywhere, and what outlives a node."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

import penstock
from penstock import DeadLetter, JobState, Push
from penstock.errors import ConnectionLost, LeaseLost, OutcomeUnknown, StoreError
from penstock.queues import aio, blocking
from penstock.queues.scan import Same, Wanted
from tests.conftest import StartNode
from tests.processes import NodeProcess, meet, wait_until
from tests.stores.harness import PATIENCE

pytestmark = pytest.mark.system

_names = (f"queue-{number}" for number in count(1))


@pytest.fixture
def mortal_nodes(start_node: StartNode) -> list[NodeProcess]:
    """Three nodes that know each other, of which some may die."""
    started = [start_node(appendonly="no", cluster_node_timeout=2000) for _ in range(3)]
    meet(*started)
    return started


def url_of(*nodes: NodeProcess) -> str:
    return "disque://" + ",".join(f"{node.host}:{node.port}" for node in nodes)


def id_of(node: NodeProcess) -> str:
    found: str = node.call("CLUSTER", "MYID").decode()
    return found


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is true."""
    async with asyncio.timeout(PATIENCE):
        while not await what():  # noqa: ASYNC110 - nobody tells when it is
            await asyncio.sleep(0.01)


async def at_each(nodes: list[NodeProcess], **options: Any) -> list[Any]:
    """A store on each of the nodes: clients move for a reason only."""
    stores = [aio.connect(url_of(node), **options) for node in nodes]
    for store in stores:
        await store.open()
    return stores


async def test_jobs_are_counted_and_shown_once(nodes: list[NodeProcess]) -> None:
    stores = await at_each(nodes, replicate=3)
    name = next(_names)
    for number, store in enumerate(stores):
        await store.queue(name).push_many([Push(number), Push(number + 10), Push(number + 100, delay=1000)])
    held = [await store.queue(name, lease=1000).reserve(timeout=PATIENCE) for store in stores]
    for store in stores:
        queue = store.queue(name)
        assert tuple(await queue.sizes()) == (9, 3, 3, 3)
        assert await queue.size() == 3
        jobs = [job async for job in queue.jobs()]
        assert len({job.id for job in jobs}) == len(jobs) == 9
        assert Counter(job.state for job in jobs) == {"ready": 3, "scheduled": 3, "reserved": 3}
        scheduled = await queue.peek(state=JobState.SCHEDULED)
        assert sorted(job.payload for job in scheduled) == [100, 101, 102]
        assert name in await store.queues()
    assert all(await stores[0].queue(name).ack_many(held))
    assert await stores[1].queue(name).purge() == 6
    assert await stores[2].queue(name).total() == 0
    for store in stores:
        await store.close()


async def test_jobs_of_a_dead_node_are_counted_and_shown_once(mortal_nodes: list[NodeProcess]) -> None:
    first, second, third = mortal_nodes
    name = next(_names)
    async with aio.connect(url_of(first), replicate=3, retry=300) as store:
        await store.queue(name).push_many([Push(0), Push(1), Push(2, delay=1), Push(3, delay=1000)])
        await store.queue(name).push_many([Push(4, replicate=1)])
    async with aio.connect(url_of(second)) as store:
        await store.queue(name).push_many([10, 11])
        assert await store.queue(name).size() >= 5
    first.kill()
    for node in (second, third):
        async with aio.connect(url_of(node)) as store:
            queue = store.queue(name)
            await asyncio.to_thread(wait_until, lambda: _now_due(second))
            assert await queue.size() == 5  # but not the one that only the dead node had
            assert tuple(await queue.sizes()) == (6, 5, 1, 0)
            jobs = await queue.peek(10)
            assert sorted(job.payload for job in jobs) == [0, 1, 2, 10, 11]
            assert Counter(job.state for job in jobs) == {"away": 3, "ready": 2}
            assert sorted(job.payload for job in await queue.peek(10, state="away")) == [0, 1, 2]
            everything = [job async for job in queue.jobs()]
            assert len({job.id for job in everything}) == len(everything) == 6
            rows = await _scanned(store, name)
            assert sorted(rows) == ["away", "away", "away", "ready", "ready", "scheduled"]
    first.start()


_DUE: dict[str, float] = {}


def _now_due(node: NodeProcess) -> bool:
    """Whether a delay of a second, begun before the first call, is over."""
    seconds = float(node.call("TIME")[0])
    return seconds > _DUE.setdefault(node.host + str(node.port), seconds) + 1


async def _scanned(store: Any, name: str) -> list[str]:
    """The states of all jobs of a queue, as a batch read has them."""
    wanted = Wanted()
    found: list[str] = []
    for part in await store.scan_parts([name], wanted):
        cursor = None
        while True:
            rows = await store.scan(part, wanted, 100, cursor)
            states = rows.columns.get("state", [])
            found += [states.value] * rows.count if isinstance(states, Same) else list(states)
            cursor = rows.cursor
            if cursor is None:
                break
    return found


async def test_a_value_is_the_newest_one_that_any_node_has(nodes: list[NodeProcess]) -> None:
    stores = await at_each(nodes)
    keys = [f"{next(_names)}-{number}" for number in range(20)]
    for turn, store in enumerate(stores):
        await asyncio.gather(*(store.put_value(key, f"{key} {turn}", ttl=60) for key in keys))
        for reader in stores:
            assert [await reader.value(key) for key in keys] == [f"{key} {turn}" for key in keys]
    assert [sum(node.call("QLEN", f"__value__:{key}") for node in nodes) for key in keys] == [1] * 20
    # While a text is replaced there are two, which may be on two nodes.
    created: dict[tuple[int, bytes], str] = {}  # times are in milliseconds: of one the id decides
    for node, text in zip(nodes, ("first", "second", "third"), strict=True):
        job_id = node.call("ADDJOB", f"__value__:{keys[0]}", text, 0, "REPLICATE", 1)
        fields = node.call("SHOW", job_id)
        created[fields[fields.index(b"ctime") + 1], job_id] = text
    assert {await store.value(keys[0]) for store in stores} == {created[max(created)]}
    await stores[1].remove_value(keys[0])
    assert {await store.value(keys[0]) for store in stores} == {None}
    for store in stores:
        await store.close()


async def test_values_outlive_a_node(mortal_nodes: list[NodeProcess]) -> None:
    first, second, third = mortal_nodes
    keys = [f"{next(_names)}-{number}" for number in range(5)]
    async with aio.connect(url_of(first)) as store:
        await asyncio.gather(*(store.put_value(key, "before", ttl=600) for key in keys))
    first.kill()
    async with aio.connect(url_of(second)) as store, aio.connect(url_of(third)) as other:
        assert [await store.value(key) for key in keys] == ["before"] * 5
        await asyncio.gather(*(store.put_value(key, "after", ttl=600) for key in keys[1:]))
        assert [await other.value(key) for key in keys] == ["before"] + ["after"] * 4
        await other.remove_value(keys[4])
        assert await store.value(keys[4]) is None
    first.start()


async def test_a_lease_of_one_node_is_ended_through_another(nodes: list[NodeProcess]) -> None:
    first, second, _ = stores = await at_each(nodes)
    name = next(_names)
    await first.queue(name).push_many(range(3))
    jobs = [await first.queue(name, lease=1000).reserve(timeout=PATIENCE) for _ in range(3)]
    there = second.queue(name)
    # The same leases, in the hands of a client that is on another node.
    assert await second._driver.ack(name, [jobs[0].as_lease]) == [True]
    assert await second._driver.ack(name, [jobs[0].as_lease]) == [False]
    assert await second._driver.extend(name, [jobs[1].as_lease], [1000]) != [None]
    assert await second._driver.nack(name, [jobs[1].as_lease, jobs[2].as_lease], [0, 0], None) == [True, True]
    assert sorted([(await there.pop(timeout=PATIENCE)).payload for _ in range(2)]) == [1, 2]
    for store in stores:
        await store.close()


async def test_jobs_are_removed_and_moved_wherever_they_wait(nodes: list[NodeProcess]) -> None:
    first, second, third = stores = await at_each(nodes)
    limit = DeadLetter(queue=next(_names))
    name = next(_names)
    ids = await first.queue(name).push_many([1, 2, Push(3, delay=1000)])
    assert await third.queue(name).remove(ids[0], ids[2]) == [True, True]
    queue = second.queue(name, dead_letter=limit)
    await (await queue.reserve(timeout=PATIENCE)).fail("no")
    assert await third.queue(limit.queue).redrive() == 1
    assert (await first.queue(name).pop(timeout=PATIENCE)).payload == 2
    assert await first.queue(name).total() == 0
    for store in stores:
        await store.close()


def holders_of(nodes: list[NodeProcess], job_id: str) -> list[NodeProcess]:
    return [node for node in nodes if node.call("SHOW", job_id) is not None]


async def test_a_job_is_on_two_nodes_unless_somebody_says_otherwise(nodes: list[NodeProcess]) -> None:
    async with aio.connect(url_of(*nodes)) as store:
        queue = store.queue(next(_names))
        pushed = [await queue.push(1), *await queue.push_many([1, Push(2, delay=1000), Push(3, retry=7)])]
        assert [len(holders_of(nodes, job_id)) for job_id in pushed] == [2, 2, 2, 2]
        assert len(holders_of(nodes, await queue.push(1, replicate=3))) == 3
        assert len(holders_of(nodes, await queue.push(1, replicate=1))) == 1
    with blocking.connect(url_of(*nodes)) as store:
        assert len(holders_of(nodes, store.queue(queue.name).push(1))) == 2


@pytest.mark.parametrize("is_on_it", [True, False])
async def test_one_dead_node_of_three_stops_no_push(mortal_nodes: list[NodeProcess], is_on_it: bool) -> None:
    async with aio.connect(url_of(*mortal_nodes)) as store:
        queue = store.queue(next(_names))
        await queue.push(0)
        with store._driver._link.client() as client:
            mine = client.node
        dying = next(node for node in mortal_nodes if (id_of(node) == mine) is is_on_it)
        dying.kill()
        alive = [node for node in mortal_nodes if node is not dying]
        ids = [await queue.push(number) for number in range(1, 20)]
        ids += await queue.push_many(range(20, 40))
        assert [len(holders_of(alive, job_id)) for job_id in ids] == [2] * 39


def test_one_dead_node_of_three_stops_no_push_of_the_blocking_form(mortal_nodes: list[NodeProcess]) -> None:
    mortal_nodes[2].kill()
    with blocking.connect(url_of(*mortal_nodes)) as store:
        queue = store.queue(next(_names))
        queue.push_many(range(10))
        assert queue.size() == 10


async def test_too_few_nodes_for_the_copies_are_counted_in_the_error(mortal_nodes: list[NodeProcess]) -> None:
    for node in mortal_nodes[1:]:
        node.kill()
    # Until then an add waits for them.
    wait_until(lambda: mortal_nodes[0].call("CLUSTER", "NODES").count(b"fail") == 2)
    async with aio.connect(url_of(mortal_nodes[0])) as store:
        queue = store.queue(next(_names))
        told = r"2 copies were asked for, and 1 of 3 nodes can be reached.*replicate"
        with pytest.raises(StoreError, match=told):
            await queue.push(1)
        with pytest.raises(StoreError, match=told):
            await queue.push_many([Push(1), Push(2, delay=5)])
        assert await queue.push(1, replicate=1)


async def test_a_node_that_is_forgotten_counts_no_more(start_node: StartNode) -> None:
    here, gone = start_node(appendonly="no"), start_node(appendonly="no")
    meet(here, gone)
    gone_id = id_of(gone)
    async with aio.connect(url_of(here)) as store:
        queue = store.queue(next(_names))
        assert len(holders_of([here, gone], await queue.push(1))) == 2
        gone.kill()
        here.call("CLUSTER", "FORGET", gone_id)
        # The client still believes that there are two.
        ids = [*await queue.push_many([1, Push(2, delay=1000), 3, Push(4, replicate=1)]), await queue.push(1)]
        assert [len(holders_of([here], job_id)) for job_id in ids] == [1] * 5
        assert await queue.total() == 6


async def test_a_job_without_a_retry_has_one_copy(nodes: list[NodeProcess]) -> None:
    async with aio.connect(url_of(*nodes), replicate=3) as store:
        queue = store.queue(next(_names))
        job_id = await queue.push("once", retry=0)
        holders = [node for node in nodes if node.call("SHOW", job_id) is not None]
        assert len(holders) == 1
        assert (await queue.pop(timeout=PATIENCE)).payload == "once"


async def test_a_pause_reaches_all_nodes(nodes: list[NodeProcess]) -> None:
    first, second, _ = stores = await at_each(nodes)
    name = next(_names)
    await first.queue(name).pause()
    for store in stores:
        await until(store.queue(name).paused)
    await second.queue(name).push("work")
    assert await second.queue(name).reserve(timeout=0.1) is None
    waiting = asyncio.create_task(second.queue(name).reserve(timeout=PATIENCE))
    await first.queue(name).resume()
    assert (await waiting).payload == "work"
    for store in stores:
        await store.close()


async def test_an_ack_of_a_job_whose_node_died_goes_to_another(mortal_nodes: list[NodeProcess]) -> None:
    async with aio.connect(url_of(*mortal_nodes), replicate=2, retry=5, timeout=1) as store:
        queue = store.queue(next(_names), lease=8)
        await queue.push_many(range(4))
        jobs = await queue.reserve_many(4, PATIENCE)
        giver = next(node for node in mortal_nodes if id_of(node) == jobs[0].stored.node)
        giver.kill()
        assert await queue.ack_many(jobs[:3]) == [True] * 3
        # One whose lease would be over by now must not end what another may have.
        stale = jobs[3].as_lease._replace(token=f"{jobs[3].token.rpartition('@')[0]}@0")
        with pytest.raises(ConnectionLost):
            await store._driver.ack(queue.name, [stale])
        last = await queue.reserve(timeout=PATIENCE)
        assert (last.payload, last.tries) == (3, 1)
        await last.ack()
        with pytest.raises((ConnectionLost, LeaseLost)):
            await jobs[3].extend()


async def test_nothing_is_lost_when_a_node_dies_under_workers(mortal_nodes: list[NodeProcess]) -> None:
    jobs_total = 600
    done: Counter[int] = Counter()
    name = next(_names)

    async def produce(store: Any) -> None:
        for begin in range(0, jobs_total, 20):
            numbers = range(begin, begin + 20)
            while True:
                try:
                    await store.queue(name).push_many(numbers)
                    break
                except (OutcomeUnknown, ConnectionLost):
                    pass  # they may be there twice then, which isn't a loss
            await asyncio.sleep(0.005)

    async def work(store: Any) -> None:
        queue = store.queue(name, lease=5)
        while len(done) < jobs_total:
            for job in await queue.reserve_many(10, 0.5):
                await asyncio.sleep(0.001)
                try:
                    await job.ack()
                except (ConnectionLost, LeaseLost):
                    continue
                done[job.payload] += 1

    async def a_quarter_is_done() -> bool:
        return len(done) >= jobs_total // 4

    stores = [aio.connect(url_of(*mortal_nodes), replicate=2, retry=3, timeout=2) for _ in range(3)]
    for store in stores:
        await store.open()
    async with asyncio.timeout(50):
        tasks = [asyncio.create_task(produce(stores[0]))]
        tasks += [asyncio.create_task(work(store)) for store in stores for _ in range(2)]
        await until(a_quarter_is_done)
        mortal_nodes[1].kill()
        await asyncio.gather(*tasks)
    assert set(done) == set(range(jobs_total))
    for store in stores:
        await store.close()


async def test_what_a_claim_holds_is_known_after_its_node_died(mortal_nodes: list[NodeProcess]) -> None:
    async with aio.connect(url_of(*mortal_nodes), replicate=2, retry=60, timeout=2) as store:
        queue = store.queue(next(_names), lease=60)
        await queue.push_many(["a", "b"])
        (job,) = await queue.claim("key", 1)
        giver = next(node for node in mortal_nodes if id_of(node) == job.stored.node)
        giver.kill()
        alive = [node for node in mortal_nodes if node is not giver]
    async with aio.connect(url_of(*alive), replicate=2, timeout=2) as store:
        await store.queue(queue.name).push("c")
        with pytest.raises(ConnectionLost):  # never others in their place
            await store.queue(queue.name).claim("key", 1)
        assert (await store.queue(queue.name).claim("other key", 1))[0].payload == "c"


def test_the_blocking_form_finds_its_nodes_too(mortal_nodes: list[NodeProcess]) -> None:
    with blocking.connect(url_of(*mortal_nodes), replicate=2) as store:
        queue = store.queue(next(_names), lease=60)
        queue.push_many(range(10))
        jobs = queue.reserve_many(10, PATIENCE)
        assert tuple(queue.sizes()) == (10, 10 - len(jobs), 0, len(jobs))
        giver = next(node for node in mortal_nodes if id_of(node) == jobs[0].stored.node)
        giver.kill()
        assert all(queue.ack_many(jobs))


async def test_a_job_that_another_node_takes_over_was_not_tried(mortal_nodes: list[NodeProcess]) -> None:
    first, *others = mortal_nodes
    name = next(_names)
    async with aio.connect(url_of(first), replicate=2, lease=5) as store:
        await store.queue(name).push_many(range(10))
        assert first.call("QLEN", name) == 10
    first.kill()
    ran: list[tuple[int, int]] = []
    async with aio.connect(url_of(*others), replicate=1, lease=5) as store:
        worker = penstock.Worker(store, name, record(ran), dead_letter=DeadLetter(1, f"{name}-dead"))
        working = asyncio.get_running_loop().create_task(worker.run())
        await until(lambda: is_ended(store, name, ran, 10))
        worker.stop()
        await working
        assert sorted(ran) == [(number, 0) for number in range(10)]
        assert await store.queue(f"{name}-dead").total() == 0


def record(ran: list[tuple[int, int]]) -> Callable[[Any], Awaitable[None]]:
    """A handler that notes payloads and tries."""

    async def handle(job: Any) -> None:
        ran.append((job.payload, job.tries))

    return handle


async def is_ended(store: Any, name: str, ran: list[tuple[int, int]], count: int) -> bool:
    """Whether `count` jobs ran or are dead letters."""
    return len(ran) + int(await store.queue(f"{name}-dead").total()) >= count


async def test_a_delivery_counts_though_its_node_dies_with_the_worker(mortal_nodes: list[NodeProcess]) -> None:
    first, *others = mortal_nodes
    name = next(_names)
    async with aio.connect(url_of(first), replicate=3) as store:
        await store.queue(name).push_many(["begun", "waits"])
        jobs = await store.queue(name).reserve_many(2, PATIENCE, lease=2, begin=1)
        assert [job.has_begun for job in jobs] == [True, False]
        begun = {job.payload for job in jobs if job.has_begun}
        first.call("PING")  # what was told with the leases has left the node
    first.kill()
    async with aio.connect(url_of(*others), replicate=1) as store:
        again = [await store.queue(name).reserve(timeout=PATIENCE, lease=60) for _ in range(2)]
        assert {job.payload: job.tries for job in again} == {
            payload: int(payload in begun) for payload in ("begun", "waits")
        }
