"""Stand-ins for the nodes of a cluster, and both forms of the cluster client, for tests that hold for either."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Self

from penstock.client import ClusterClient
from penstock.client import blocking as blocking_form
from tests.processes import wait_until
from tests.unit.client.scripted_server import Answer, Scripted

SCENARIO_SECONDS = 20.0
_numbers = itertools.count(1)


def bulk(*words: bytes | str | int) -> bytes:
    """Return an array of bulks and integers."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        if isinstance(word, int):
            parts.append(b":%d\r\n" % word)
        else:
            raw = word.encode() if isinstance(word, str) else word
            parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


def array(*items: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(items), b"".join(items))


def job_id(node: FakeNode, retry: int = 1) -> str:
    """Return an id of a job that this node has made."""
    return f"D-{node.id[:8]}-{next(_numbers):024d}-{'05a1' if retry else '05a0'}"


def job(node: FakeNode, name: str = "q", body: str = "body", token: int | None = None, retry: int = 1) -> bytes:
    """Return the reply to a GETJOB that found one."""
    tail = [] if token is None else [str(token)]
    return array(bulk(name, job_id(node, retry), body, *tail))


NO_JOB = b"*-1\r\n"


class FakeNode(Scripted):
    """A server that answers HELLO like a node of a cluster, and everything else as its `answers` say.

    An answer is bytes, a function of the request, None to close the connection, or b"" for silence; a list of these is
    used up one by one, and its last item stays.
    """

    def __init__(self, letter: str = "a", **answers: Any) -> None:
        self.id = letter * 40
        self.answers: dict[str, Any] = answers
        self.priority = 1
        self.peers: list[FakeNode] = []
        self.priorities: dict[str, int] = {}  # of others, as this node sees them
        self.told_port: int | None = None
        super().__init__(self._answer, socket.create_server(("127.0.0.1", 0)))
        self._port = self._listener.getsockname()[1]

    @property
    def port(self) -> int:
        return self._port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _answer(self, request: list[bytes]) -> bytes | None:
        name = request[0].decode().upper()
        given = self.answers.get(name, self._hello() if name == "HELLO" else b"+OK\r\n")
        if isinstance(given, list):
            given = given.pop(0) if len(given) > 1 else given[0]
        answer: bytes | None = given(request) if callable(given) else given
        return answer

    def _hello(self) -> bytes:
        rows = [bulk(self.id, "", str(self.port), str(self.priority))]
        for peer in self.peers:
            priority = self.priorities.get(peer.id, peer.priority)
            rows.append(bulk(peer.id, "127.0.0.1", str(peer.told_port or peer.port), str(priority)))
        return array(b":1\r\n", b"$40\r\n%b\r\n" % self.id.encode(), *rows)

    def asked(self, *names: str) -> list[list[str]]:
        """Return the requests with these names, or all but HELLO."""
        words = [[word.decode() for word in request] for request in self.requests]
        return [request for request in words if (request[0] in names if names else request[0] != "HELLO")]

    def wait_for(self, name: str, count: int = 1) -> None:
        """Wait until `count` requests of a name have come."""
        wait_until(lambda: len(self.asked(name)) >= count, 10.0)

    def cut(self, at: int) -> None:
        """End one connection, by the order in which they came."""
        self._links[at].shutdown(socket.SHUT_RDWR)

    def down(self) -> None:
        """Be gone: refuse connections, and end those there are."""
        # To close a socket on which a thread waits in accept would leave it open.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()

    def up(self) -> None:
        """Be back, at the same place."""
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # it is down already
            self.down()


def cluster(*nodes: FakeNode) -> tuple[FakeNode, ...]:
    """Let nodes know each other."""
    for node in nodes:
        node.peers = [peer for peer in nodes if peer is not node]
    return nodes


class AsIfAsync:
    """The blocking client with methods that can be awaited, so that one scenario is for both forms."""

    def __init__(self, client: blocking_form.ClusterClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        if not inspect.ismethod(value):
            return value
        if inspect.isgeneratorfunction(value):

            async def walk(*args: Any, **options: Any) -> AsyncIterator[Any]:
                for item in value(*args, **options):
                    yield item

            return walk

        async def call(*args: Any, **options: Any) -> Any:
            return value(*args, **options)

        return call

    async def __aenter__(self) -> AsIfAsync:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.close()


FORMS: dict[str, Callable[..., Any]] = {
    "async": ClusterClient,
    "blocking": lambda *args, **options: AsIfAsync(blocking_form.ClusterClient(*args, **options)),
}


def run(scenario: Awaitable[Any] | Coroutine[Any, Any, Any]) -> Any:
    """Run a scenario to its end, which must come soon."""

    async def limited() -> Any:
        async with asyncio.timeout(SCENARIO_SECONDS):
            return await scenario

    return asyncio.run(limited())


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


__all__ = ["FORMS", "NO_JOB", "Answer", "Clock", "FakeNode", "array", "bulk", "cluster", "job", "job_id", "run"]
