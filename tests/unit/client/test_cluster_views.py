"""The same client with other rules: one node only, without retries; and several commands in one call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import Job, Lease
from penstock.errors import ReplyError, Unreachable
from tests.unit.client.nodes import AsIfAsync, FakeNode, cluster, run

Open = Callable[..., Any]
ID = "D-aaaaaaaa-000000000000000000000001-05a1"


def test_one_node_may_be_asked_for_everything(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            for number, node in enumerate((a, b), 1):
                only = view(client, node.id)
                assert await only.qlen("q") == number
                assert [name async for name in only.queues()] == [node.id[0]]
                assert await only.ack(ID) == number
            assert await client.qlen("q") == 1
        assert [words[0] for words in b.asked()] == ["QLEN", "QSCAN", "ACKJOB"]

    with FakeNode("a", QLEN=b":1\r\n", ACKJOB=b":1\r\n") as a, FakeNode("b", QLEN=b":2\r\n", ACKJOB=b":2\r\n") as b:
        for node in cluster(a, b):
            node.answers["QSCAN"] = b"*2\r\n$1\r\n0\r\n*1\r\n$1\r\n%b\r\n" % node.id[:1].encode()
        run(scenario())


def view(client: Any, node: str | None = None, *, retries: bool = True) -> Any:
    """A client with other rules, of either form."""
    plain = getattr(client, "_client", client) if type(client) is AsIfAsync else client
    other = plain.at(node)
    if not retries:
        other = other.without_retry()
    return other if plain is client else AsIfAsync(other)


def test_a_node_that_can_not_be_reached_raises_at_once_without_retry(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address, timeout=60) as client:
            await client.qlen("q")
            b.down()
            hasty = view(client, b.id, retries=False)
            began = time.monotonic()
            with pytest.raises(Unreachable, match=r"No node executed QLEN\. Could not connect"):
                await hasty.qlen("q")
            a.down()
            hasty = view(client, retries=False)
            with pytest.raises(Unreachable, match=r"No node executed QLEN\. "):
                await hasty.qlen("q")
            assert time.monotonic() - began < 60

    with FakeNode("a", QLEN=b":1\r\n") as a, FakeNode("b") as b:
        cluster(a, b)
        run(scenario())


def test_without_retry_every_node_is_tried_once(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client([a.address, b.address]) as client:
            hasty = view(client, retries=False)
            assert await hasty.qlen("q") == 2

    with FakeNode("a", HELLO=None) as a, FakeNode("b", QLEN=b":2\r\n") as b:
        run(scenario())


def test_replies_of_many_commands_come_in_order_with_errors_as_values(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            replies = await client.call_many([("QLEN", "x"), ("QLEN", "bad"), ("QLEN", "y")])
            assert (replies[0], replies[2]) == (1, 1)
            assert isinstance(replies[1], ReplyError)
        assert a.asked() == [["QLEN", "x"], ["QLEN", "bad"], ["QLEN", "y"]]

    with FakeNode("a", QLEN=lambda words: b"-ERR bad\r\n" if words[1] == b"bad" else b":1\r\n") as a:
        run(scenario())


def test_adds_among_many_commands_hold_up_nobody_else(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            adds = asyncio.create_task(client.call_many([("ADDJOB", "q", "body", 60_000)]))
            await asyncio.to_thread(a.wait_for, "ADDJOB")
            assert a.connections == 2  # a node lets what comes behind an add wait with it
            assert await client.qlen("q") == 1
            adds.cancel()

    with FakeNode("a", ADDJOB=b"", QLEN=b":1\r\n") as a:
        run(scenario())


def test_a_node_that_knows_no_release_counts_a_nack(open_client: Open) -> None:
    async def scenario() -> None:
        async with open_client(a.address) as client:
            job = Job("q", ID, b"body", lease=Lease(17, a.id, 1000.0), node=a.id)
            assert await client.release(job) == ["OK"]
        assert a.asked() == [["RELEASE", ID, "17"], ["NACKLEASE", "0", ID, "17"]]

    with FakeNode("a", RELEASE=b"-ERR unknown command 'RELEASE'\r\n", NACKLEASE=b"*1\r\n+OK\r\n") as a:
        run(scenario())


def test_jobs_for_a_caller_that_is_gone_are_released_without_a_word_if_the_node_can(
    open_async: Open, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            await client.qlen("q")
            task = asyncio.create_task(client.get("q", nohang=True, lease=30))
            await asyncio.to_thread(a.wait_for, "GETJOB")
            task.cancel()
            a.send(b"*1\r\n*4\r\n$1\r\nq\r\n$40\r\n%b\r\n$4\r\nbody\r\n$2\r\n17\r\n" % ID.encode())
            await asyncio.to_thread(a.wait_for, "NACKLEASE")
            assert await client.qlen("q") == 1
        assert a.asked("RELEASE", "NACKLEASE") == [["RELEASE", ID, "17"], ["NACKLEASE", "0", ID, "17"]]

    caplog.set_level(logging.WARNING, "penstock.client")
    with FakeNode("a", GETJOB=b"", QLEN=b":1\r\n", RELEASE=b"-ERR unknown command\r\n") as a:
        a.answers["NACKLEASE"] = b"*1\r\n+STALE\r\n"
        run(scenario())
    assert not caplog.records


def test_the_old_name_of_a_view_says_the_new_ones(open_client: Open) -> None:
    with pytest.raises(AttributeError, match=r"asking\(node=\.\.\.\) is now at\(node\)"):
        getattr(open_client("127.0.0.1:1"), "asking")  # noqa: B009 - the type checker knows that it is gone
