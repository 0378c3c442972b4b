"""Batch reads of a cluster, a part for each node: a job that several nodes hold is returned by one of them."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import pytest

from penstock.queues import aio
from penstock.queues.scan import Wanted
from tests.conftest import StartNode
from tests.processes import NodeProcess, meet
from tests.stores.harness import PATIENCE
from tests.stores.original_node import OriginalNode, understanding
from tests.stores.test_scan import look, states_of

pytestmark = pytest.mark.system

_names = (f"queue-{number}" for number in count(1))


def at(*nodes: NodeProcess) -> Any:
    return aio.connect("disque://" + ",".join(f"{node.host}:{node.port}" for node in nodes), replicate=3)


def id_of(node: NodeProcess) -> str:
    found: str = node.call("CLUSTER", "MYID").decode()
    return found


async def test_jobs_that_all_nodes_hold_are_shown_once(nodes: list[NodeProcess]) -> None:
    name = next(_names)
    expected: dict[str, str] = {}
    for node in nodes:
        async with at(node) as store:
            queue = store.queue(name, lease=1000)
            expected |= dict.fromkeys(await queue.push_many(range(20)), "ready")
            expected |= dict.fromkeys(await queue.push_many(range(20), delay=1000), "scheduled")
            job = await queue.reserve(timeout=PATIENCE)
            expected[job.id] = "reserved"
    async with at(*nodes) as store:
        rows = await look(store, name)
        assert states_of(rows) == expected
        assert len(rows) == len(expected)
        assert {row["node"] for row in rows} == {id_of(node) for node in nodes}
        parts = await store._driver.parts([name], Wanted())
        assert len(parts) == 3
        found = await look(store, name, wanted=Wanted(ids=tuple(expected)))
        assert states_of(found) == expected
        assert len(found) == len(expected)


async def test_a_job_that_was_given_back_for_later_is_shown_where_it_waits(nodes: list[NodeProcess]) -> None:
    name = next(_names)
    async with at(nodes[0]) as store:
        job_id = await store.queue(name).push("work")
    async with at(nodes[1]) as other:  # the job goes there, as nobody else asks for it
        job = await other.queue(name).reserve(timeout=PATIENCE)
        await job.nack(delay=1000)
        rows = await look(other, name)
        assert [(row["id"], str(row["state"]), row["nacks"]) for row in rows] == [(job_id, "scheduled", 1)]
        assert 900 < rows[0]["mature_ms"] / 1000 - (await other._driver.now_ms()) / 1000 <= 1001


async def test_a_delayed_job_is_shown_once_when_its_maker_is_gone(start_node: StartNode) -> None:
    nodes = [start_node(appendonly="no", cluster_node_timeout=2000) for _ in range(3)]
    meet(*nodes)
    name = next(_names)
    async with at(nodes[0]) as store:
        ids = await store.queue(name).push_many(range(50), delay=1000)
    nodes[0].kill()
    async with at(*nodes[1:]) as store:
        rows = await look(store, name)
        assert Counter(row["id"] for row in rows) == Counter(ids)


async def test_originals_show_what_waits(tmp_path_factory: pytest.TempPathFactory) -> None:
    node = OriginalNode(tmp_path_factory.mktemp("original"), appendonly="no")
    node.start()
    try:
        with understanding(node):
            async with aio.connect(f"disque://{node.host}:{node.port}") as store:
                queue = store.queue(next(_names))
                ids = [*await queue.push_many(range(30)), *await queue.push_many(range(3), delay=1000)]
                held = await queue.reserve(timeout=PATIENCE)
                expected = {job_id: "ready" if at < 30 else "scheduled" for at, job_id in enumerate(ids)}
                del expected[held.id]  # an original doesn't tell who has a job
                assert states_of(await look(store, queue.name)) == expected
                found = await look(store, queue.name, wanted=Wanted(ids=(ids[0], ids[5], ids[31])))
                assert states_of(found) == {ids[5]: "ready", ids[31]: "scheduled"} | (
                    {} if held.id == ids[0] else {ids[0]: "ready"}
                )
    finally:
        node.kill()
