"""A load client for what redis-benchmark cannot send: fresh job ids, and beanstalkd's protocol.

It is one process around epoll, and does per request no more than one recv, one count of line ends and one
send: requests are encoded before the clock starts, and a reply is known by its number of lines, so nothing
is parsed. Like redis-benchmark with -P, a connection sends a batch and sends the next when all of its
replies have come.

The check against wrong answers is a marker that each good reply holds exactly once (`+D-` of a job id, `:1`
of an acknowledgement): a batch whose replies do not hold it as often as there were requests stops the run.

Every run reports the processor share of client and server: a server near one full core beside a client that
is not at one is what "the client is not the limit" means; `bench.broker` also runs it beside redis-
benchmark.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from bench.servers import HOST, NotRunError, Server

# recv allocates this much and then shrinks it: from 128 KiB on, malloc would map and unmap pages each time.
RECEIVE_BYTES = 1 << 14
BUFFER_BYTES = 4 << 20
SILENCE_S_MAX = 20.0


@dataclass(frozen=True)
class Reply:
    """How a good reply looks: its line ends, and a text that occurs in it exactly once."""

    lines: int
    marker: bytes


@dataclass(frozen=True)
class Rate:
    """What a load achieved, in what time, and the processor time that both ends spent on it."""

    items: int
    wall_s: float
    server_cpu_s: float
    client_cpu_s: float

    def __add__(self, other: Rate) -> Rate:
        return Rate(
            self.items + other.items,
            self.wall_s + other.wall_s,
            self.server_cpu_s + other.server_cpu_s,
            self.client_cpu_s + other.client_cpu_s,
        )

    @property
    def items_per_s(self) -> float:
        """Items per second of wall time."""
        return self.items / self.wall_s

    @property
    def items_per_cpu_s(self) -> float:
        """Items per second of the server's processor time, at the least tick that the kernel counts."""
        return self.items / max(self.server_cpu_s, 0.01)

    @property
    def server_share(self) -> float:
        """How busy the server was; 1.0 is one core."""
        return self.server_cpu_s / self.wall_s

    @property
    def client_share(self) -> float:
        """How busy the client was; 1.0 is one core."""
        return self.client_cpu_s / self.wall_s


NOTHING = Rate(0, 0.0, 0.0, 0.0)


class _Connection:
    """One socket with the batches that it still has to send."""

    __slots__ = ("batches", "held", "lines_due", "position", "receive", "replies", "send", "sock")

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection((HOST, port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self.sock.setblocking(False)
        self.send = self.sock.send
        self.receive = self.sock.recv
        self.batches: Sequence[bytes] = ()
        self.position = 0
        self.lines_due = 0
        self.held = b""
        self.replies: list[bytes] = []


class Client:
    """A fixed set of connections to one server, used for one load after another."""

    def __init__(self, server: Server, connections: int = 50) -> None:
        self.server = server
        self.connections = [_Connection(server.port) for _ in range(connections)]
        self.epoll = select.epoll()
        self.by_fd = {link.sock.fileno(): link for link in self.connections}
        for fd in self.by_fd:
            self.epoll.register(fd, select.EPOLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.epoll.close()
        for link in self.connections:
            link.sock.close()

    def run(
        self, plans: Sequence[Sequence[bytes]], reply: Reply, depth: int, items: int
    ) -> tuple[Rate, list[list[bytes]]]:
        """Sends each connection's plan, batches of `depth` requests that are worth `items` all together.

        Returns the rate in items per second, and the raw replies of each connection.
        """
        if len(plans) != len(self.connections):
            raise ValueError("there must be one plan a connection")
        replies: list[list[bytes]] = [[] for _ in plans]
        for link, plan, kept in zip(self.connections, plans, replies, strict=True):
            link.batches, link.position, link.replies = plan, 0, kept
        server_cpu_s, client_cpu_s = self.server.cpu_s(), time.process_time()
        begin_s = time.perf_counter()
        self._exchange(reply, depth)
        wall_s = time.perf_counter() - begin_s
        client_cpu_s = time.process_time() - client_cpu_s
        return Rate(items, wall_s, self.server.cpu_s() - server_cpu_s, client_cpu_s), replies

    def _exchange(self, reply: Reply, depth: int) -> None:
        lines_a_batch, marker = reply.lines * depth, reply.marker
        poll, by_fd = self.epoll.poll, self.by_fd
        active = 0
        for link in self.connections:
            link.lines_due = lines_a_batch
            active += _send_next(link)
        while active:
            events = poll(SILENCE_S_MAX)
            if not events:
                raise NotRunError(f"no reply for {SILENCE_S_MAX:.0f} s, with {active} connections waiting")
            for fd, _ in events:
                link = by_fd[fd]
                data = link.receive(RECEIVE_BYTES)
                link.lines_due -= data.count(b"\n")
                if link.lines_due > 0:
                    if not data or data.startswith(b"-"):
                        raise NotRunError(f"the server answered {data[:80]!r}")
                    link.held += data
                    continue
                if link.held:
                    data, link.held = link.held + data, b""
                if data.count(marker) != depth or link.lines_due:
                    raise NotRunError(f"the server answered {data[:80]!r}")
                link.replies.append(data)
                link.lines_due = lines_a_batch
                if not _send_next(link):
                    active -= 1


def _send_next(link: _Connection) -> bool:
    """Sends the next batch, and says whether there was one."""
    if link.position == len(link.batches):
        return False
    batch = link.batches[link.position]
    link.position += 1
    if link.send(batch) != len(batch):
        raise NotRunError(f"a batch of {len(batch)} bytes does not fit the socket's buffer")
    return True


def even_plans(request: bytes, requests: int, depth: int, connections: int) -> list[list[bytes]]:
    """The same request for all, in whole batches: as many requests as fit evenly, at least one batch each."""
    batches = max(1, requests // (depth * connections))
    return [[request * depth] * batches for _ in range(connections)]


def grouped_plans(requests: Sequence[Sequence[bytes]], depth: int) -> list[list[bytes]]:
    """Each connection's own requests, joined to batches; what does not fill a batch is left out."""
    plans = []
    for own in requests:
        whole = len(own) - len(own) % depth
        plans.append([b"".join(own[at : at + depth]) for at in range(0, whole, depth)])
    return plans


def batches_in(plans: Sequence[Sequence[bytes]]) -> int:
    """How many batches the plans hold together."""
    return sum(len(plan) for plan in plans)
