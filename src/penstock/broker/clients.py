"""A connected client as the broker sees it, and the limits on all connections together.

A connection is unauthenticated until its TLS handshake is done and its client has given the password, if there is one.
The buffers of authenticated and of unauthenticated connections are counted separately, each with a limit of its own.
Above a limit the connections with the largest buffers are closed, the oldest first among equals: a client that reads
its replies and completes its requests needs little.

`maxclients` counts both kinds. At that limit the oldest unauthenticated connection is closed for a new one, so that
idle unauthenticated connections can't keep out a client that authenticates at once.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from penstock.broker.config import Config
from penstock.broker.core.jobs import Job
from penstock.broker.core.memory import Buffers, Memory
from penstock.broker.core.node import Node
from penstock.broker.core.replication import Addition
from penstock.broker.core.waiters import Waiter
from penstock.wire.replies import NULL3, NULL_ARRAY, NULL_BULK, error
from penstock.wire.requests import ARGUMENT_BYTES, REQUEST_BYTES

log = logging.getLogger("penstock")

REPLY_ON: Final = 0
REPLY_OFF: Final = 1
REPLY_SKIP: Final = 2
REPLY_SKIP_NEXT: Final = 3
CLIENTS_A_CRON: Final = 200  # clients checked in one run of the cron
CLIENT_BYTES: Final = 3600  # a connection with its parser, buffers aside: measured with 10,000 of them
TLS_BYTES: Final = 40_000  # the same of TLS: OpenSSL's state and buffers
RELIEF: Final = 8  # above a limit an eighth of it is freed at once, since each time all connections are sorted
TOO_MANY: Final = b"-ERR max number of clients reached\r\n"


class Sink(Protocol):
    """The way back to a client: a socket, or a list in a test."""

    def write(self, data: bytes) -> bool:
        """Send bytes. False only if the client is gone and it is certain that no byte was sent."""

    def close(self, now: bool) -> None:
        """Close at once (`now`), or once everything is sent."""

    def caught_up(self) -> None:
        """The backlog has run: resume reading, if it was stopped."""

    def account(self) -> None:
        """The backlog has changed: count again what this client takes in memory."""

    def buffered_bytes(self) -> int:
        """Return how many bytes of replies are unsent."""

    def unread_bytes(self) -> int:
        """Return how many bytes of requests have arrived and could not be run yet."""

    def describe(self) -> str:
        """Return what CLIENT LIST shows of the socket: `fd=8`."""


class Client:
    """One client. Replies collect in `out`; the broker sends them once the journal is written."""

    __slots__ = (
        "active_ms",
        "address",
        "authenticated",
        "backlog",
        "backlog_bytes",
        "closing",
        "created_ms",
        "dirty",
        "handed",
        "id",
        "is_monitor",
        "is_unix",
        "last_command",
        "library",
        "moving_bytes",
        "name",
        "null",
        "null_array",
        "out",
        "over_soft_since_ms",
        "protocol",
        "reply_mode",
        "sink",
        "waiter",
    )

    def __init__(self, client_id: int, address: str, sink: Sink, now_ms: int, is_unix: bool = False) -> None:
        self.id = client_id
        self.address = address
        self.is_unix = is_unix
        self.sink = sink
        self.created_ms = now_ms
        self.active_ms = now_ms
        self.name = b""
        self.library: dict[bytes, bytes] = {}  # from CLIENT SETINFO
        self.authenticated = False
        self.is_monitor = False
        self.reply_mode = REPLY_ON
        self.last_command = "NULL"
        self.out: list[bytes] = []
        self.handed: list[Job] | None = None  # the jobs in `out`
        self.dirty = False  # in the broker's list of clients with replies to send
        self.closing = False  # no more requests are read; it closes when its replies are sent
        self.waiter: Waiter | Addition | None = None  # what it waits for
        self.backlog: list[list[bytes]] = []  # requests that wait, while it is blocked or CLIENT PAUSE holds
        self.backlog_bytes = 0  # what they take in memory
        self.moving_bytes = 0  # what the list of jobs takes that it waits to have moved
        self.over_soft_since_ms = 0  # since when its output is above the soft limit
        self.speak(2)

    def hand(self, jobs: list[Job]) -> None:
        """Note the jobs in its next reply: if the client is gone before that is sent, they are queued again."""
        if self.handed is None:
            self.handed = jobs
        else:
            self.handed += jobs

    def speak(self, protocol: int) -> None:
        """Choose between RESP2 and RESP3."""
        self.protocol = protocol
        self.null = NULL3 if protocol == 3 else NULL_BULK
        self.null_array = NULL3 if protocol == 3 else NULL_ARRAY


def requests_bytes(requests: list[list[bytes]]) -> int:
    """Return what parsed requests take in memory."""
    size = 0
    for request in requests:
        size += REQUEST_BYTES + ARGUMENT_BYTES * len(request)
        for argument in request:
            size += len(argument)
    return size


class LimitedConnection(Protocol):
    """A connection, as far as the limits need it (connection.Connection)."""

    created_ms: int
    fixed_bytes: int  # memory without its buffers
    held_bytes: int  # memory of its buffers, as counted last

    def is_authenticated(self) -> bool:
        """Whether its client has authenticated, or there is no password."""

    def let_in(self) -> None:
        """Lift the limits on what it may send."""

    def refuse(self, reply: bytes, now: bool) -> None:
        """Free its buffers, send the reply if possible, and close."""


class ConnectionLimits:
    """All connections of clients, what their buffers take, and the checks of the cron."""

    def __init__(self, clients: dict[int, Client], config: Config, node: Node) -> None:
        self._clients = clients
        self._config = config
        self._node = node
        self._left: list[Client] = []  # to be checked before the next walk over all clients
        self._accounted_bytes = 0
        self._unauthenticated: dict[LimitedConnection, None] = {}  # the oldest first
        self._authenticated: dict[LimitedConnection, None] = {}

    @property
    def _memory(self) -> Memory:
        return self._node.memory

    # Connections open, authenticate and close.

    def add(self, connection: LimitedConnection) -> bool:
        """Count a new connection as unauthenticated. False if there are too many."""
        if len(self._authenticated) + len(self._unauthenticated) >= self._config.maxclients:
            oldest = next(iter(self._unauthenticated), None)
            if oldest is None:
                return False
            self._evict(oldest, TOO_MANY, now=True)
        self._unauthenticated[connection] = None
        self._memory.unauthenticated.bytes += connection.fixed_bytes
        self._relieve(self._memory.unauthenticated)
        return True

    def let_in(self, connection: LimitedConnection) -> None:
        """Count a connection as authenticated."""
        memory = self._memory
        del self._unauthenticated[connection]
        self._authenticated[connection] = None
        memory.unauthenticated.bytes -= connection.fixed_bytes + connection.held_bytes
        memory.connection_bytes += connection.fixed_bytes
        memory.clients.bytes += connection.held_bytes
        connection.let_in()

    def remove(self, connection: LimitedConnection) -> None:
        """Stop counting a connection; harmless if that was done before."""
        memory = self._memory
        if connection in self._authenticated:
            del self._authenticated[connection]
            memory.connection_bytes -= connection.fixed_bytes
            memory.clients.bytes -= connection.held_bytes
        elif connection in self._unauthenticated:
            del self._unauthenticated[connection]
            memory.unauthenticated.bytes -= connection.fixed_bytes + connection.held_bytes
        connection.held_bytes = 0

    def set_held_bytes(self, connection: LimitedConnection, held_bytes: int) -> None:
        """Count what the buffers of a connection take now."""
        if connection in self._authenticated:
            buffers = self._memory.clients
        elif connection in self._unauthenticated:
            buffers = self._memory.unauthenticated
        else:
            return
        more = held_bytes - connection.held_bytes
        connection.held_bytes = held_bytes
        buffers.bytes += more
        if more > 0:
            self._relieve(buffers)

    def _relieve(self, buffers: Buffers) -> None:
        """Close the connections with the largest buffers, if all together are above the limit."""
        if buffers.bytes <= buffers.max_bytes:
            return
        is_authenticated = buffers is self._memory.clients
        whose = self._authenticated if is_authenticated else self._unauthenticated
        goal = buffers.max_bytes - buffers.max_bytes // RELIEF
        evicted = 0
        for connection in sorted(whose, key=lambda one: one.held_bytes, reverse=True):
            if buffers.bytes <= goal:
                break
            evicted += 1
            self._evict(connection, _too_much(buffers, is_authenticated), now=False)
        log.warning(
            "closing %d connections: the buffers of all %s together must be at most %d bytes (%s)",
            evicted,
            "clients" if is_authenticated else "unauthenticated connections",
            buffers.max_bytes,
            _directive(is_authenticated),
        )

    def _evict(self, connection: LimitedConnection, reply: bytes, now: bool) -> None:
        self.remove(connection)
        connection.refuse(reply, now)

    # Time passes.

    def cron(self) -> None:
        """Close idle clients, those that don't read and those that don't authenticate; account for buffers."""
        self._account(self._memory.connection_bytes + self._memory.clients.bytes)
        self._check_unauthenticated()
        if not self._left:
            self._left = list(self._clients.values())
        now_ms, timeout_ms = self._node.now_ms, self._config.timeout * 1000
        hard, soft, soft_s = self._config.client_output_buffer_limit
        for client in self._left[-CLIENTS_A_CRON:]:
            is_idle = client.waiter is None and not client.is_monitor and now_ms - client.active_ms > timeout_ms
            if timeout_ms and is_idle:
                client.sink.close(now=True)
                continue
            owed = client.sink.buffered_bytes()
            if owed > soft > 0:
                client.over_soft_since_ms = client.over_soft_since_ms or now_ms
            else:
                client.over_soft_since_ms = 0
            too_long = client.over_soft_since_ms and now_ms - client.over_soft_since_ms >= soft_s * 1000
            if owed > hard > 0 or too_long:
                log.warning("closing client %s: it has not read %d bytes of replies", client.address, owed)
                client.sink.close(now=True)
        del self._left[-CLIENTS_A_CRON:]

    def _check_unauthenticated(self) -> None:
        """Close connections that don't authenticate in time. Without a password all count as authenticated."""
        if not self._config.requirepass:
            for connection in [one for one in self._unauthenticated if one.is_authenticated()]:
                self.let_in(connection)
        limit_s = self._config.authentication_timeout
        while limit_s and self._unauthenticated:
            oldest = next(iter(self._unauthenticated))
            if self._node.now_ms - oldest.created_ms <= limit_s * 1000:
                break
            if oldest.is_authenticated():  # in a request that had to wait
                self.let_in(oldest)
                continue
            self._evict(oldest, error(f"ERR a client must authenticate within {limit_s} seconds"), now=True)

    def _account(self, held_bytes: int) -> None:
        self._memory.add_base(held_bytes - self._accounted_bytes)
        self._accounted_bytes = held_bytes


def _directive(is_authenticated: bool) -> str:
    return "maxmemory-clients" if is_authenticated else "maxmemory-unauthenticated"


def _too_much(buffers: Buffers, is_authenticated: bool) -> bytes:
    whose = "all clients" if is_authenticated else "all unauthenticated connections"
    return error(
        f"OOM the buffers of {whose} together must be at most {buffers.max_bytes} bytes "
        f"({_directive(is_authenticated)}), and this connection held the most"
    )
