"""Looks after connections: who is let in, who has to go, and what their buffers take.

A connection is unauthenticated from its arrival, in a TLS handshake or without the password, until it is let in. What
the connections of both kinds hold is counted apart, and each kind has a limit for all of them together. Beyond it those
that hold the most are closed, the oldest of equals first: a client that reads its replies and finishes its requests
holds little.

`maxclients` counts both. When it is reached, the oldest unauthenticated connection makes room for a new one, so that
idle strangers don't keep out a client that authenticates at once.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from penstock.broker.clients import Client
from penstock.broker.config import Config
from penstock.broker.core.memory import Buffers, Memory
from penstock.broker.core.node import Node
from penstock.wire.replies import error

log = logging.getLogger("penstock")

CLIENTS_A_CRON: Final = 200  # clients looked at in one cron run
CLIENT_BYTES: Final = 3600  # a connection with its parser, buffers aside: measured with 10,000 of them
TLS_BYTES: Final = 40_000  # the same of TLS: OpenSSL's state and buffers
RELIEF: Final = 8  # beyond the limit, an eighth of it is freed at once: each time all connections are looked at
TOO_MANY: Final = b"-ERR max number of clients reached\r\n"


class Connected(Protocol):
    """A connection, as it is looked after here (connection.Connection)."""

    created_ms: int
    fixed_bytes: int  # what it takes by itself
    held_bytes: int  # in its buffers, as counted last

    def may_enter(self) -> bool:
        """Whether it has a client, and that has authenticated or need not."""

    def let_in(self) -> None:
        """Take all that it sends from now on."""

    def refuse(self, reply: bytes, now: bool) -> None:
        """Let go of all that it holds, tell it why if that is possible, and close."""


class Housekeeping:
    """All connections of clients, and a round over the clients that goes on and on."""

    def __init__(self, clients: dict[int, Client], config: Config, node: Node) -> None:
        self._clients = clients
        self._config = config
        self._node = node
        self._left: list[Client] = []  # of this round
        self._accounted_bytes = 0
        self._outside: dict[Connected, None] = {}  # unauthenticated, the oldest first
        self._inside: dict[Connected, None] = {}

    @property
    def _memory(self) -> Memory:
        return self._node.memory

    # Connections come, are let in, and go.

    def arrive(self, connection: Connected) -> bool:
        """Take a connection that nothing is known of; False if there are too many."""
        if len(self._inside) + len(self._outside) >= self._config.maxclients:
            oldest = next(iter(self._outside), None)
            if oldest is None:
                return False
            self._evict(oldest, TOO_MANY, now=True)
        self._outside[connection] = None
        self._memory.unauthenticated.bytes += connection.fixed_bytes
        self._relieve(self._memory.unauthenticated)
        return True

    def let_in(self, connection: Connected) -> None:
        """Count a connection as a client's."""
        memory = self._memory
        del self._outside[connection]
        self._inside[connection] = None
        memory.unauthenticated.bytes -= connection.fixed_bytes + connection.held_bytes
        memory.connection_bytes += connection.fixed_bytes
        memory.clients.bytes += connection.held_bytes
        connection.let_in()

    def leave(self, connection: Connected) -> None:
        """Forget a connection; harmless if it is forgotten already."""
        memory = self._memory
        if connection in self._inside:
            del self._inside[connection]
            memory.connection_bytes -= connection.fixed_bytes
            memory.clients.bytes -= connection.held_bytes
        elif connection in self._outside:
            del self._outside[connection]
            memory.unauthenticated.bytes -= connection.fixed_bytes + connection.held_bytes
        connection.held_bytes = 0

    def held(self, connection: Connected, held_bytes: int) -> None:
        """Count what a connection holds in its buffers now."""
        if connection in self._inside:
            buffers = self._memory.clients
        elif connection in self._outside:
            buffers = self._memory.unauthenticated
        else:
            return
        more = held_bytes - connection.held_bytes
        connection.held_bytes = held_bytes
        buffers.bytes += more
        if more > 0:
            self._relieve(buffers)

    def _relieve(self, buffers: Buffers) -> None:
        """Close those who hold the most, if all of them hold too much."""
        if buffers.bytes <= buffers.max_bytes:
            return
        is_inside = buffers is self._memory.clients
        whose = self._inside if is_inside else self._outside
        goal = buffers.max_bytes - buffers.max_bytes // RELIEF
        evicted = 0
        for connection in sorted(whose, key=lambda one: one.held_bytes, reverse=True):
            if buffers.bytes <= goal:
                break
            evicted += 1
            self._evict(connection, _too_much(buffers, is_inside), now=False)
        log.warning(
            "%d connections are closed: the buffers of all %s together must be at most %d bytes (%s)",
            evicted,
            "clients" if is_inside else "unauthenticated connections",
            buffers.max_bytes,
            _directive(is_inside),
        )

    def _evict(self, connection: Connected, reply: bytes, now: bool) -> None:
        self.leave(connection)
        connection.refuse(reply, now)

    # Time passes.

    def cron(self) -> None:
        """Close idle clients, those that don't read and those that don't authenticate; account for buffers."""
        self._account(self._memory.connection_bytes + self._memory.clients.bytes)
        self._check_outside()
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

    def _check_outside(self) -> None:
        """Close connections that have not authenticated in time; let all in if the password was taken away."""
        if not self._config.requirepass:
            for connection in [one for one in self._outside if one.may_enter()]:
                self.let_in(connection)
        limit_s = self._config.authentication_timeout
        while limit_s and self._outside:
            oldest = next(iter(self._outside))
            if self._node.now_ms - oldest.created_ms <= limit_s * 1000:
                break
            if oldest.may_enter():  # with a request that had to wait
                self.let_in(oldest)
                continue
            self._evict(oldest, error(f"ERR a client must authenticate within {limit_s} seconds"), now=True)

    def _account(self, held_bytes: int) -> None:
        self._memory.used_bytes += held_bytes - self._accounted_bytes
        self._memory.base_bytes += held_bytes - self._accounted_bytes
        self._accounted_bytes = held_bytes


def _directive(is_inside: bool) -> str:
    return "maxmemory-clients" if is_inside else "maxmemory-unauthenticated"


def _too_much(buffers: Buffers, is_inside: bool) -> bytes:
    whose = "all clients" if is_inside else "all unauthenticated connections"
    return error(
        f"OOM the buffers of {whose} together must be at most {buffers.max_bytes} bytes ({_directive(is_inside)}), and "
        "this connection held the most"
    )
