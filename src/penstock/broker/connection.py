"""One client connection: bytes in, requests to the broker, replies out.

Two brakes keep a client from making us hold what it doesn't take: while it doesn't read its replies we don't read its
requests, and while it is blocked it may send ahead only so much.
"""

from __future__ import annotations

import logging
import socket
from ipaddress import ip_address
from typing import Final

from penstock.broker.broker import Broker
from penstock.broker.clients import Client
from penstock.broker.links import Link
from penstock.wire.replies import error
from penstock.wire.requests import RequestReader

log = logging.getLogger("penstock")

AHEAD_BYTES_MAX: Final = 1 << 20  # what a blocked client may send ahead before we stop reading from it
REQUEST_BYTES_MAX: Final = 1 << 30  # of one request before it is complete: the original's limit of a query buffer
STRANGER_BYTES_MAX: Final = 64 << 10  # the same, of a client that has not shown the password yet
TOO_MANY: Final = b"-ERR max number of clients reached\r\n"
# What a stranger on another machine is told in protected mode.
PROTECTED: Final = (
    b"-DENIED this node runs in protected mode: it has no password, so it answers only clients on its own machine. "
    b"To use it from elsewhere, set a password (CONFIG SET requirepass), or bind it to loopback, or turn protected "
    b"mode off with CONFIG SET protected-mode no\r\n"
)


class Connection:
    """What a link is to the broker: a client that sends requests and takes replies."""

    def __init__(self, broker: Broker, is_unix: bool = False) -> None:
        self._broker = broker
        self._is_unix = is_unix
        self._reader = RequestReader()
        self._link: Link | None = None
        self._client: Client | None = None
        self._ahead_bytes = 0
        self._held = False  # reading is paused
        self._unread = False  # it takes no replies at present

    # What the link tells (links.Handler).

    def arrived(self, link: Link) -> None:
        """Wait until the client can be heard."""

    def untrusted(self, problem: str) -> None:
        """Note why TLS failed, for those who look for it."""
        log.debug("TLS handshake failed: %s", problem)

    def opened(self, link: Link) -> None:
        """Let the client in, or tell it why not."""
        self._link = link
        broker = self._broker
        refusal = b""
        try:
            address, host = self._peer(link.socket)
        except OSError:
            link.abort()  # it was gone before we looked
            return
        if len(broker.clients) >= broker.config.maxclients:
            refusal = TOO_MANY
        elif host and self._is_stranger(host):
            refusal = PROTECTED
        if refusal:
            broker.statistics.rejected += 1
            link.write(refusal)
            link.close()
            return
        self._client = broker.connect(address, self, self._is_unix)

    def _peer(self, raw: socket.socket) -> tuple[str, str]:
        """Give a client's address as it is shown, and its host, empty for a unix socket."""
        if self._is_unix:
            return f"{self._broker.config.unixsocket}:0", ""
        host, port = raw.getpeername()[:2]
        self._tune(raw)
        return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}"), host

    def _is_stranger(self, host: str) -> bool:
        config = self._broker.config
        if not config.protected_mode or config.requirepass:
            return False
        address = ip_address(host.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return not (mapped or address).is_loopback

    def _tune(self, raw: socket.socket) -> None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        seconds = self._broker.config.tcp_keepalive
        if seconds:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, seconds // 3))
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

    def received(self, data: bytes) -> None:
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
        elif self._reader.pending_bytes > STRANGER_BYTES_MAX:
            self._check_size(client)
        if client.backlog:
            self._ahead_bytes += len(data)
            if self._ahead_bytes > AHEAD_BYTES_MAX:
                self._hold()
        else:
            self._ahead_bytes = 0

    def _check_size(self, client: Client) -> None:
        """Close a client whose request is larger than we hold for it."""
        known = client.authenticated or not self._broker.config.requirepass
        size = REQUEST_BYTES_MAX if known else STRANGER_BYTES_MAX
        if self._reader.pending_bytes > size:
            log.warning("closing client %s: its request is larger than %d bytes", client.address, size)
            client.closing = True
            self.close(now=True)

    def lost(self) -> None:
        """Forget the client."""
        if self._client is not None:
            self._broker.disconnect(self._client)
        self._client = None
        self._link = None

    def overfull(self) -> None:
        """The client doesn't read: take no more requests from it."""
        self._unread = True
        self._hold()

    def drained(self) -> None:
        """The client reads again: go on with the requests it has sent already, then with new ones."""
        self._unread = False
        if self._client is not None and self._client.backlog:
            self._broker.touch(self._client)
        else:
            self.caught_up()

    def _hold(self) -> None:
        if self._link is not None and not self._held:
            self._held = True
            self._link.pause_reading()

    # What the broker uses of it (clients.Sink).

    def caught_up(self) -> None:
        """Read on: all that was sent ahead is run."""
        self._ahead_bytes = 0
        if self._held and not self._unread and self._link is not None and not self._link.is_closing:
            self._held = False
            self._link.resume_reading()

    def write(self, data: bytes) -> bool:
        """Send bytes; False if the client is gone and surely none of them left this process."""
        client = self._client
        if self._link is None or client is None or not self._link.write(data):
            return False
        if self._reader.error is not None and _is_answered(client):
            # It waited for a job when it sent what is no request: now is the turn to tell it.
            self._link.write(error(f"ERR {self._reader.error}"))
            client.closing = True
        return True

    def close(self, now: bool) -> None:
        """Close once everything is sent, or at once."""
        if self._link is not None:
            if now:
                self._link.abort()
            else:
                self._link.close()

    def buffered_bytes(self) -> int:
        """Tell how much the peer has not taken yet."""
        return self._link.unsent_bytes if self._link is not None else 0

    def unread_bytes(self) -> int:
        """Tell how much has arrived of what could not be run yet."""
        return self._reader.pending_bytes + self._ahead_bytes

    def describe(self) -> str:
        """Give what CLIENT LIST shows of the socket."""
        return f"fd={self._link.socket.fileno() if self._link is not None else -1}"


def _is_answered(client: Client) -> bool:
    """Tell whether nothing is under way for a client, so that a word about its stream would be the last one."""
    return not (client.closing or client.backlog or client.waiter is not None)
