"""One client connection: bytes in, requests to the broker, replies out.

A plain asyncio protocol, since streams and tasks would cost more than the commands. Two brakes keep a client from
making us hold what it doesn't take: while it doesn't read its replies we don't read its requests, and while it is
blocked it may send ahead only so much.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, cast

from penstock.broker.broker import PROTECTED, REPLY_BYTES_HIGH, Broker
from penstock.broker.clients import Client
from penstock.wire.replies import error
from penstock.wire.requests import RequestReader

if TYPE_CHECKING:
    from penstock.broker.server import Server

log = logging.getLogger("penstock")

AHEAD_BYTES_MAX = 1 << 20  # what a blocked client may send ahead before we stop reading from it
REQUEST_BYTES_MAX = 1 << 30  # of one request before it is complete: the original's limit of a query buffer
TOO_MANY = b"-ERR max number of clients reached\r\n"


class Connection(asyncio.Protocol):
    """The socket of one client."""

    def __init__(self, server: Server, broker: Broker, is_unix: bool = False) -> None:
        self._server = server
        self._broker = broker
        self._is_unix = is_unix
        self._reader = RequestReader()
        self._transport: asyncio.Transport | None = None
        self._client: Client | None = None
        self._ahead_bytes = 0
        self._held = False  # reading is paused
        self._unread = False  # it takes no replies at present

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the client in, or tell it why not."""
        self._transport = stream = cast(asyncio.Transport, transport)
        broker = self._broker
        peer = stream.get_extra_info("peername")
        if peer is None and not self._is_unix:
            stream.abort()  # it was gone before we looked
            return
        if self._is_unix:
            address = f"{broker.config.unixsocket}:0"
        else:
            address = f"[{peer[0]}]:{peer[1]}" if ":" in peer[0] else f"{peer[0]}:{peer[1]}"
            self._tune(stream)
        refusal = b""
        if len(broker.clients) >= broker.config.maxclients:
            refusal = TOO_MANY
        elif not self._is_unix and self._is_stranger(peer[0]):
            refusal = PROTECTED
        if refusal:
            broker.statistics.rejected += 1
            stream.write(refusal)
            stream.close()
            return
        stream.set_write_buffer_limits(REPLY_BYTES_HIGH)
        self._client = broker.connect(address, self, self._is_unix)

    def _is_stranger(self, host: str) -> bool:
        config = self._broker.config
        if not config.protected_mode or config.requirepass:
            return False
        address = ip_address(host.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return not (mapped or address).is_loopback

    def _tune(self, stream: asyncio.Transport) -> None:
        raw = stream.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        seconds = self._broker.config.tcp_keepalive
        if seconds:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, seconds // 3))
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

    def data_received(self, data: bytes) -> None:
        """Run what is complete."""
        client, broker = self._client, self._broker
        if client is None or client.closing:
            return
        broker.statistics.input_bytes += len(data)
        requests = self._reader.feed(data)
        if requests:
            broker.run(client, requests)
        if self._reader.error is not None and _is_answered(client):
            client.out.append(error(f"ERR {self._reader.error}"))
            client.closing = True
            broker.touch(client)
        elif self._reader.pending_bytes > REQUEST_BYTES_MAX:
            log.warning("closing client %s: its request is larger than %d bytes", client.address, REQUEST_BYTES_MAX)
            client.closing = True
            self.close(now=True)
        if client.backlog:
            self._ahead_bytes += len(data)
            if self._ahead_bytes > AHEAD_BYTES_MAX:
                self._hold()
        else:
            self._ahead_bytes = 0

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        if self._client is not None:
            self._broker.disconnect(self._client)
        self._client = None
        self._transport = None

    def pause_writing(self) -> None:
        """The client doesn't read: take no more requests from it."""
        self._unread = True
        self._hold()

    def resume_writing(self) -> None:
        """The client reads again: go on with the requests it has sent already, then with new ones."""
        self._unread = False
        if self._client is not None and self._client.backlog:
            self._broker.touch(self._client)
        else:
            self.caught_up()

    def _hold(self) -> None:
        if self._transport is not None and not self._held:
            self._held = True
            self._transport.pause_reading()

    # What the broker uses of it (clients.Sink).

    def caught_up(self) -> None:
        """Read on: all that was sent ahead is run."""
        self._ahead_bytes = 0
        if self._held and not self._unread and self._transport is not None and not self._transport.is_closing():
            self._held = False
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send bytes."""
        client = self._client
        if self._transport is None or client is None:
            return
        self._transport.write(data)
        if self._reader.error is not None and _is_answered(client):
            # It waited for a job when it sent what is no request: now is the turn to tell it.
            self._transport.write(error(f"ERR {self._reader.error}"))
            client.closing = True

    def close(self, now: bool) -> None:
        """Close once everything is sent, or at once."""
        if self._transport is not None:
            if now:
                self._transport.abort()
            else:
                self._transport.close()

    def buffered_bytes(self) -> int:
        """Tell how much the peer has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def unread_bytes(self) -> int:
        """Tell how much has arrived of what could not be run yet."""
        return self._reader.pending_bytes + self._ahead_bytes

    def describe(self) -> str:
        """Give what CLIENT LIST shows of the socket."""
        raw = self._transport.get_extra_info("socket") if self._transport is not None else None
        return f"fd={raw.fileno() if raw is not None else -1}"


def _is_answered(client: Client) -> bool:
    """Tell whether nothing is under way for a client, so that a word about its stream would be the last one."""
    return not (client.closing or client.backlog or client.waiter is not None)
