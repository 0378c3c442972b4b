"""One connection of the event loop, with a transport that a test holds in its hands."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.addresses import Address
from penstock.client.aio.connection import PipelinedConnection
from penstock.client.attempts import NotSent
from penstock.client.connection import encode
from penstock.client.requests import Request
from penstock.errors import BadReply, ConnectionLost, TimedOut
from tests.unit.client.nodes import run

ADDRESS = Address("10.0.0.1", 7711)
QUIET, OTHER_END = socket.socketpair()  # nothing is ever sent on it


class Transport:
    """Takes what is written, and closes when it is told to."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_gone = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.is_gone

    def abort(self) -> None:
        self.is_gone = True

    close = abort

    def get_extra_info(self, name: str) -> Any:
        return self

    def fileno(self) -> int:
        return QUIET.fileno()


def connected(orphaned: Callable[..., None] = lambda *_: None) -> tuple[PipelinedConnection, Transport]:
    connection, transport = PipelinedConnection(ADDRESS, orphaned), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]  # it has all that is used
    return connection, transport


def ask(connection: PipelinedConnection, name: str = "QLEN", seconds: float = 60.0) -> asyncio.Task[list[Any]]:
    return asyncio.create_task(connection.exchange(Request((name, "q")), seconds, 0.0))


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_what_has_not_left_when_the_link_is_lost_was_certainly_not_sent() -> None:
    async def scenario() -> None:
        connection, transport = connected()
        sent = ask(connection, "ADDJOB")
        await turn()
        unsent = ask(connection, "ADDJOB")
        await asyncio.sleep(0)
        connection.connection_lost(None)
        results = await asyncio.gather(sent, unsent, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionLost, NotSent]
        assert transport.written == [encode(("ADDJOB", "q"))]

    run(scenario())


def test_nothing_is_written_to_a_link_that_is_closing() -> None:
    async def scenario() -> None:
        connection, transport = connected()
        task = ask(connection)
        await asyncio.sleep(0)
        transport.is_gone = True
        await turn()
        connection.connection_lost(None)
        with pytest.raises(NotSent):
            await task
        assert transport.written == []
        with pytest.raises(NotSent, match="There is no connection to 10"):
            await ask(connection)

    run(scenario())


def test_time_runs_for_the_first_in_line_only_and_again_with_every_reply() -> None:
    async def scenario() -> None:
        connection, transport = connected()
        patient, hasty = ask(connection, seconds=60.0), ask(connection, seconds=0.3)
        await asyncio.sleep(0.4)
        assert not transport.is_gone
        connection.data_received(b":1\r\n")
        assert await patient == [1]
        await turn()
        assert not transport.is_gone
        await asyncio.sleep(0.4)
        assert transport.is_gone
        connection.connection_lost(None)
        with pytest.raises(TimedOut, match=r"No answer from 10\.0\.0\.1:7711 within 0\.3 s"):
            await hasty

    run(scenario())


def test_the_time_of_one_request_is_not_that_of_the_next() -> None:
    async def scenario() -> None:
        connection, transport = connected()
        hasty = ask(connection, seconds=0.2)
        await turn()
        connection.data_received(b":1\r\n")
        assert await hasty == [1]
        patient = ask(connection, seconds=60.0)
        await asyncio.sleep(0.3)
        assert not transport.is_gone
        connection.data_received(b":2\r\n")
        assert await patient == [2]

    run(scenario())


def test_a_request_that_may_take_forever_is_not_given_up() -> None:
    async def scenario() -> None:
        connection, transport = connected()
        task = ask(connection, seconds=float("inf"))
        await asyncio.sleep(0.05)
        assert not transport.is_gone
        connection.data_received(b":1\r\n")
        assert await task == [1]

    run(scenario())


def test_an_error_that_answers_nothing_is_reported_as_the_reason_of_the_end() -> None:
    async def scenario() -> None:
        connection, _ = connected()
        connection.data_received(b"-ERR max number of clients reached\r\n")
        task = ask(connection)
        await turn()
        connection.connection_lost(None)
        with pytest.raises(ConnectionLost, match="max number of clients reached"):
            await task

    run(scenario())


def test_any_other_reply_that_answers_nothing_ends_the_link() -> None:
    async def scenario() -> None:
        connection, transport = connected()
        connection.data_received(b":1\r\n")
        assert transport.is_gone

    run(scenario())


def test_what_is_no_reply_ends_the_link_for_all() -> None:
    async def scenario() -> None:
        connection, transport = connected()
        tasks = [ask(connection), ask(connection)]
        await turn()
        connection.data_received(b"HTTP/1.1 400\r\n")
        assert transport.is_gone
        connection.connection_lost(None)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [BadReply, BadReply]

    run(scenario())


def test_replies_in_pieces_are_put_together() -> None:
    async def scenario() -> None:
        connection, _ = connected()
        task = asyncio.create_task(connection.exchange(Request(("A",), ("B",)), 60.0, 0.0))
        await turn()
        for byte in b"*1\r\n$1\r\nx\r\n:5\r\n":
            connection.data_received(bytes([byte]))
        assert await task == [[b"x"], 5]

    run(scenario())


def test_a_caller_that_waits_for_an_empty_line_hears_of_its_end_too() -> None:
    async def scenario() -> None:
        connection, _ = connected()
        await connection.drain()  # nothing is under way
        task = ask(connection)
        await turn()
        drained = asyncio.create_task(connection.drain())
        await turn()
        assert not drained.done()
        connection.connection_lost(OSError(104, "Connection reset by peer"))
        await drained
        with pytest.raises(ConnectionLost, match="Connection reset by peer"):
            await task

    run(scenario())


def test_a_batch_is_sent_at_once_if_nothing_is_under_way() -> None:
    async def scenario() -> None:
        connection, transport = connected()
        first = ask(connection, "ADDJOBS")
        await asyncio.sleep(0)  # the task runs; the turn isn't over
        assert transport.written == [encode(("ADDJOBS", "q"))]
        second, third = ask(connection, "ADDJOBS"), ask(connection, "ADDJOBS")
        await asyncio.sleep(0)
        assert len(transport.written) == 1  # they wait for the end of the turn, together
        await turn()
        assert transport.written[1:] == [encode(("ADDJOBS", "q")) * 2]
        connection.data_received(b":1\r\n:2\r\n:3\r\n")
        assert [await first, await second, await third] == [[1], [2], [3]]

    run(scenario())
