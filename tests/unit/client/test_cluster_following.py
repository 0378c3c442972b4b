"""A client moves to the node that makes its jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.producers import JOBS_MIN
from tests.unit.client.nodes import Clock, FakeNode, array, bulk, cluster, job_id, run

Open = Callable[..., Any]


def jobs(maker: FakeNode, count: int) -> Callable[[object], bytes]:
    """Return a number of jobs at once that this node has made."""
    return lambda _: array(*(bulk("q", job_id(maker), "body") for _ in range(count)))


def pair(a: FakeNode, b: FakeNode, maker: FakeNode, count: int = 10) -> None:
    cluster(a, b)
    for node in (a, b):
        node.answers.update(GETJOB=jobs(maker, count), QLEN=b":1\r\n")


def test_after_a_window_of_jobs_from_another_node_the_client_is_there(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, follow_jobs=30) as client:
            await client.hello()
            for _ in range(2):
                await client.get("q", nohang=True)
            await client.qlen("q")
            assert client.node == a.id
            await client.get("q", nohang=True)
            assert client.node == a.id  # between two calls, not in one
            await client.qlen("q")
            assert client.node == b.id

    with FakeNode("a") as a, FakeNode("b") as b:
        pair(a, b, maker=b)
        run(scenario())


def test_a_window_ends_by_time_too(open_client: Open) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with open_client(a.address, follow_seconds=10, clock=clock) as client:
            await client.hello()
            await client.get("q", nohang=True)
            clock.now += 10
            await client.get("q", nohang=True)
            await client.qlen("q")
            assert client.node == b.id

    with FakeNode("a") as a, FakeNode("b") as b:
        pair(a, b, maker=b, count=JOBS_MIN)
        run(scenario())


@pytest.mark.parametrize("case", ["off", "own jobs", "unwell", "unknown"])
def test_there_are_reasons_to_stay(open_client: Open, case: str) -> None:
    async def scenario() -> None:
        async with open_client(a.address, follow_jobs=None if case == "off" else 30) as client:
            await client.hello()
            for _ in range(4):
                await client.get("q", nohang=True)
            await client.qlen("q")
            assert client.node == a.id

    with FakeNode("a") as a, FakeNode("b") as b, FakeNode("c") as c:
        makers = {"off": b, "own jobs": a, "unwell": b, "unknown": c}
        pair(a, b, maker=makers[case])
        if case == "unwell":
            a.priorities = {b.id: 10}
        run(scenario())


def test_if_the_maker_cannot_be_reached_the_client_stays_and_works(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, follow_jobs=30) as client:
            await client.hello()
            b.down()
            for _ in range(8):
                assert len(await client.get("q", nohang=True)) == 10
            assert await client.qlen("q") == 1
            assert client.node == a.id

    with FakeNode("a") as a, FakeNode("b") as b:
        pair(a, b, maker=b)
        run(scenario())


def test_after_the_move_jobs_are_counted_from_0(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, follow_jobs=30) as client:
            await client.hello()
            for _ in range(3):
                await client.get("q", nohang=True)
            await client.qlen("q")
            assert client.node == b.id
            b.answers["GETJOB"] = jobs(a, 10)
            for _ in range(2):
                await client.get("q", nohang=True)
            await client.qlen("q")
            assert client.node == b.id
            await client.get("q", nohang=True)
            await client.qlen("q")
            assert client.node == a.id

    with FakeNode("a") as a, FakeNode("b") as b:
        pair(a, b, maker=b)
        run(scenario())


def test_the_move_waits_until_nothing_is_under_way(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address, follow_jobs=10) as client:
            await client.hello()
            slow = asyncio.create_task(client.show(job_id(a)))
            await asyncio.to_thread(a.wait_for, "SHOW")
            await client.get("q", timeout=5)  # has a connection of its own
            first = asyncio.create_task(client.qlen("q"))
            await asyncio.to_thread(b.wait_for, "HELLO")
            await asyncio.sleep(0.05)  # for what must not happen
            others = [asyncio.create_task(client.qlen("q")) for _ in range(4)]
            await asyncio.sleep(0.05)
            assert client.node == a.id
            assert (a.asked("QLEN"), b.asked("QLEN")) == ([], [])
            a.send(b"$-1\r\n")
            assert await slow is None
            assert await asyncio.gather(first, *others) == [1] * 5
            assert client.node == b.id
            assert len(b.asked("QLEN")) == 5

    with FakeNode("a", SHOW=b"") as a, FakeNode("b") as b:
        pair(a, b, maker=b)
        run(scenario())
