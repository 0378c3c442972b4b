"""Many tasks on one client: what shares a connection, what has its own, and how many there are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from penstock.client.aio.connection import PipelinedConnection
from penstock.errors import Unreachable
from tests.unit.client.nodes import NO_JOB, FakeNode, bulk, cluster, job, run

Open = Callable[..., Any]


def test_calls_of_one_turn_leave_in_one_write(open_async: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    made = PipelinedConnection.connection_made

    class Recorder:
        def __init__(self, transport: Any) -> None:
            self._transport = transport

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

        def write(self, data: bytes) -> None:
            writes.append(data)
            self._transport.write(data)

    monkeypatch.setattr(PipelinedConnection, "connection_made", lambda self, transport: made(self, Recorder(transport)))

    async def scenario() -> None:
        async with open_async(a.address) as client:
            await client.hello()
            writes.clear()
            lengths = await asyncio.gather(*(client.qlen(str(number)) for number in range(100)))
            assert lengths == list(range(100))
        assert len(writes) == 1

    with FakeNode("a", QLEN=lambda request: b":%b\r\n" % request[1]) as a:
        run(scenario())


def test_tasks_that_begin_together_share_the_connection(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            await asyncio.gather(*(client.qlen("q") for _ in range(20)))
        assert (a.connections, len(a.asked("HELLO"))) == (1, 1)

    with FakeNode("a", QLEN=b":1\r\n") as a:
        run(scenario())


def test_a_fetch_that_waits_holds_nobody_up(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            waits = [asyncio.create_task(client.get("q", timeout=60)) for _ in range(3)]
            await asyncio.to_thread(a.wait_for, "GETJOB", 3)
            assert await asyncio.wait_for(client.qlen("q"), 5) == 1
            release.set()
            assert [len(await wait) for wait in waits] == [1, 1, 1]

    release = threading.Event()

    def answer(_: object) -> bytes:
        release.wait(10)
        return job(a)

    with FakeNode("a", GETJOB=answer, QLEN=b":1\r\n") as a:
        run(scenario())


@pytest.mark.parametrize("options", [{"nohang": True}, {"timeout": 0}])
def test_a_fetch_that_does_not_wait_needs_no_connection_of_its_own(open_async: Open, options: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            assert await client.get("q", **options) == []
        assert a.connections == 1

    with FakeNode("a", GETJOB=NO_JOB) as a:
        run(scenario())


def test_an_add_that_waits_for_copies_holds_nobody_up(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            add = asyncio.create_task(client.add("q", "body"))
            await asyncio.to_thread(a.wait_for, "ADDJOB")
            assert await asyncio.wait_for(client.qlen("q"), 5) == 1
            release.set()
            assert await add == "D-a"

    release = threading.Event()

    def answer(_: object) -> bytes:
        release.wait(10)
        return b"+D-a\r\n"

    with FakeNode("a", ADDJOB=answer, QLEN=b":1\r\n") as a:
        run(scenario())


def test_connections_that_waited_are_used_again(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            for _ in range(5):
                await client.get("q", timeout=1)
        assert a.connections == 2

    with FakeNode("a", GETJOB=NO_JOB) as a:
        run(scenario())


def test_connections_that_the_node_has_closed_meanwhile_are_not(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            await client.get("q", timeout=1)
            hellos = len(a.asked("HELLO"))
            a.cut(1)
            await asyncio.wait_for(client._router.current.pool._idle[0].ended, 5)
            assert await client.get("q", timeout=1) == []
        assert (a.connections, len(a.asked("GETJOB")), len(a.asked("HELLO"))) == (3, 2, hellos)

    with FakeNode("a", GETJOB=NO_JOB) as a:
        run(scenario())


def test_no_more_than_so_many_wait_at_once(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address, waits_max=2) as client:
            waits = [asyncio.create_task(client.get("q", timeout=60)) for _ in range(5)]
            await asyncio.to_thread(a.wait_for, "GETJOB", 2)
            await asyncio.sleep(0.05)  # for what must not happen
            assert len(a.asked("GETJOB")) == 2
            release.set()
            assert [len(await wait) for wait in waits] == [1] * 5
        assert a.connections == 3

    release = threading.Event()

    def answer(_: object) -> bytes:
        release.wait(10)
        return job(a)

    with FakeNode("a", GETJOB=answer) as a:
        run(scenario())


def test_a_fetch_that_finds_no_free_connection_in_time_has_found_no_job(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address, waits_max=1) as client:
            first = asyncio.create_task(client.get("q", timeout=60))
            await asyncio.to_thread(a.wait_for, "GETJOB")
            assert await client.get("q", timeout=0.05) == []
            first.cancel()
        assert len(a.asked("GETJOB")) == 1

    with FakeNode("a", GETJOB=b"") as a:
        run(scenario())


def test_when_no_node_answers_tasks_do_not_wait_for_each_other_one_by_one(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(f"{a.address},{b.address}", timeout=2.0, answer_timeout=0.3) as client:
            calls = [client.qlen("q") for _ in range(10)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(result, Unreachable) and len(result.said) == 2 for result in results)
        assert a.connections + b.connections < 10

    with FakeNode("a", HELLO=b"") as a, FakeNode("b", HELLO=b"") as b:
        run(scenario())


def test_all_tasks_move_on_together_when_their_node_dies(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            await client.hello()
            a.down()
            assert await asyncio.gather(*(client.qlen("q") for _ in range(50))) == [2] * 50
        assert b.connections == 1

    with FakeNode("a", QLEN=b":1\r\n") as a, FakeNode("b", QLEN=b":2\r\n") as b:
        cluster(a, b)
        run(scenario())


def test_a_large_pipeline_of_large_replies_goes_through(open_async: Open) -> None:
    body = b"x" * 20_000

    async def scenario() -> None:
        async with open_async(a.address) as client:
            replies = await asyncio.gather(*(client.call("PING", body) for _ in range(500)))
            assert replies == [body] * 500

    with FakeNode("a", PING=lambda request: b"$%d\r\n%b\r\n" % (len(request[1]), request[1])) as a:
        run(scenario())


def test_a_node_that_takes_nothing_is_not_sent_more_and_more(open_async: Open) -> None:
    body = b"x" * 200_000

    async def scenario() -> None:
        async with open_async(a.address) as client:
            await client.hello()
            stuck = asyncio.create_task(client.call("STUCK"))
            await asyncio.to_thread(a.wait_for, "STUCK")
            calls = []
            for _ in range(100):
                calls.append(asyncio.create_task(client.call("PING", body)))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            transport = client._router.current.pool._quick._transport
            assert transport.get_write_buffer_size() < 4_000_000
            release.set()
            await asyncio.gather(stuck, *calls)

    release = threading.Event()

    def answer(_: object) -> bytes:
        release.wait(10)
        return b"+OK\r\n"

    with FakeNode("a", STUCK=answer, PING=b"+OK\r\n") as a:
        run(scenario())


def test_a_client_can_be_used_under_one_event_loop_after_another(open_async: Open) -> None:
    with FakeNode("a", QLEN=b":1\r\n") as a:
        client = open_async(a.address)
        assert [asyncio.run(client.qlen("q")) for _ in range(3)] == [1, 1, 1]
        assert a.connections == 3


def test_another_process_has_connections_of_its_own(open_async: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        client = open_async(a.address)
        await client.qlen("q")
        monkeypatch.setattr("os.getpid", lambda: 1)
        await client.qlen("q")
        assert a.connections == 2
        await client.close()

    with FakeNode("a", QLEN=b":1\r\n") as a:
        run(scenario())


def test_another_kind_of_event_loop_will_do(open_async: Open) -> None:
    async def scenario() -> None:
        async with open_async(a.address) as client:
            assert await client.add_many("q", ["1"]) == ["D-1"]
            (fetched,) = await client.get("q", timeout=5)
            assert fetched.body == b"body"
            task = asyncio.create_task(client.get("q", timeout=5))
            await asyncio.to_thread(a.wait_for, "GETJOB", 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(await client.call("GETJOB", "FROM", "q")) == 1  # for as long as it takes
            a.hang_up()
            assert await client.qlen("q") == 1

    with FakeNode("a", QLEN=b":1\r\n", ADDJOBS=bulk("D-1")) as a:
        a.answers["GETJOB"] = [lambda _: job(a), b"", lambda _: job(a)]
        uvloop.run(scenario())
