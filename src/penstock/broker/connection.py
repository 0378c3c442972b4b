"""One client connection: bytes in, requests to the broker, replies out.

Two brakes keep a client from making us hold what it doesn't take: while it doesn't read its replies we don't read its
requests, and while it is blocked it may send ahead only so much. What it still makes us hold is counted, and there is a
limit for all clients together (housekeeping.py).

Until it has shown the password, a client may send only small requests, and they are run one by one: the next one may be
read by other rules.
"""

from __future__ import annotations

import logging
import socket
from ipaddress import ip_address
from typing import Final

from penstock.broker.broker import Broker
from penstock.broker.clients import Client
from penstock.broker.housekeeping import CLIENT_BYTES, TLS_BYTES, TOO_MANY
from penstock.broker.links import CLOSING_SECONDS, LINGER_SECONDS, READ_BYTES, READ_BYTES_MAX, Link
from penstock.wire.replies import error
from penstock.wire.requests import ARGUMENTS_MAX, BULK_BYTES_MAX, RequestReader

log = logging.getLogger("penstock")

AHEAD_BYTES_MAX: Final = 1 << 20  # what a blocked client may send ahead before we stop reading from it
REQUEST_BYTES_MAX: Final = 1 << 30  # of one request before it is complete: the original's limit of a query buffer
# Of a client that has not shown the password yet. AUTH and HELLO have at most 7 arguments, and a password 512 bytes.
UNAUTHENTICATED_REQUEST_BYTES_MAX: Final = 64 << 10
UNAUTHENTICATED_ARGUMENTS_MAX: Final = 16
UNAUTHENTICATED_BULK_BYTES_MAX: Final = 16 << 10
UNAUTHENTICATED_REQUESTS_MAX: Final = 100  # each is refused, and takes time from others
LATE: Final = error(f"ERR a client must authenticate with one of its first {UNAUTHENTICATED_REQUESTS_MAX} requests")
LAST_REPLIES_BYTES_MAX: Final = 64 << 10  # a client that is refused still gets replies up to this size
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
        self._is_let_in = False
        self._is_refused = False
        self._requests_left = UNAUTHENTICATED_REQUESTS_MAX
        self.created_ms = broker.node.now_ms
        self.fixed_bytes = CLIENT_BYTES
        self.held_bytes = 0

    # What the link tells (links.Handler).

    def arrived(self, link: Link) -> None:
        """Wait until the client can be heard, if there is a place for it."""
        self._link = link
        self.created_ms = int(self._broker.clock() * 1000)
        if link.is_tls:
            self.fixed_bytes += TLS_BYTES
        link.read_bytes_max = READ_BYTES
        self._reader.restrict(UNAUTHENTICATED_ARGUMENTS_MAX, UNAUTHENTICATED_BULK_BYTES_MAX)
        if not self._broker.housekeeping.arrive(self):
            self._is_refused = True
            if link.is_tls:
                link.abort()  # before its handshake it can't be told

    def untrusted(self, problem: str) -> None:
        """Note why TLS failed, for those who look for it."""
        log.debug("TLS handshake failed: %s", problem)

    def opened(self, link: Link) -> None:
        """Greet the client, or tell it why not; without a password it is let in."""
        broker = self._broker
        refusal = b""
        try:
            address, host = self._peer(link.socket)
        except OSError:
            link.abort()  # it was gone before we looked
            return
        if self._is_refused:
            refusal = TOO_MANY
        elif host and self._is_stranger(host):
            refusal = PROTECTED
        if refusal:
            broker.statistics.rejected += 1
            broker.housekeeping.leave(self)
            link.write(refusal)
            link.close()
            return
        self._client = broker.connect(address, self, self._is_unix)
        if not broker.config.requirepass:
            broker.housekeeping.let_in(self)

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
        reader = self._reader
        if not self._is_let_in:
            data = self._receive_unauthenticated(client, data)
        requests = reader.feed(data) if data else []
        if requests:
            broker.run(client, requests)
        if reader.error is not None and _is_answered(client):
            client.out.append(error(f"ERR {reader.error}"))
            client.closing = True
            broker.touch(client)
        if client.backlog:
            self._ahead_bytes += len(data)
            if self._ahead_bytes > AHEAD_BYTES_MAX:
                self._hold()
        else:
            self._ahead_bytes = 0
        if reader.held_bytes or client.backlog_bytes or self.held_bytes:
            self._check_size(client)
            self.account()
        memory = broker.node.memory
        if memory.reply_bytes > memory.reply_bytes_max and self._link is not None:
            self._link.cut_round()

    def _receive_unauthenticated(self, client: Client, data: bytes) -> bytes:
        """Run requests one by one until the client has authenticated; return what comes behind that."""
        at = 0
        while not client.closing and self._reader.error is None:
            if client.authenticated:
                self._broker.housekeeping.let_in(self)
                return data[at:]
            request, at = self._reader.take(data, at)
            if request is None:
                break
            if not self._requests_left:
                self.refuse(LATE, now=False)
                break
            self._requests_left -= 1
            self._broker.run(client, [request])
        return b""

    def _check_size(self, client: Client) -> None:
        """Close a client whose request is larger than we hold for it."""
        size = REQUEST_BYTES_MAX if self._is_let_in else UNAUTHENTICATED_REQUEST_BYTES_MAX
        if self._reader.pending_bytes > size:
            log.warning("closing client %s: its request is larger than %d bytes", client.address, size)
            client.closing = True
            self.close(now=True)

    def lost(self) -> None:
        """Forget the client."""
        self._broker.housekeeping.leave(self)
        if self._client is not None:
            self._broker.disconnect(self._client)
        self._client = None
        self._link = None
        self._reader.clear()

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

    def sent(self) -> None:
        """The client has taken something: what waits for it takes less."""
        self.account()

    # How it is looked after (housekeeping.Connected).

    def may_enter(self) -> bool:
        """Whether it has a client, and that has authenticated or need not."""
        client = self._client
        return client is not None and (client.authenticated or not self._broker.config.requirepass)

    def let_in(self) -> None:
        """Take all that it sends from now on."""
        self._is_let_in = True
        self._reader.restrict(ARGUMENTS_MAX, BULK_BYTES_MAX)
        if self._link is not None:
            self._link.read_bytes_max = READ_BYTES_MAX

    def refuse(self, reply: bytes, now: bool) -> None:
        """Let go of all that it holds, tell it why if that is possible, and close: `now`, or when it has read that."""
        link, client = self._link, self._client
        if link is None:
            return
        self._reader.clear()
        self._is_refused = True
        if client is None or client.closing or link.unsent_bytes or sum(map(len, client.out)) > LAST_REPLIES_BYTES_MAX:
            link.abort()  # it isn't there yet, or has other replies to read first
            return
        client.closing = True
        client.backlog = []
        client.backlog_bytes = 0
        if now:
            link.write(reply)
            link.abort()
            return
        client.out.append(reply)
        self._broker.touch(client)

    def account(self) -> None:
        """Count what it holds in memory now."""
        link, client = self._link, self._client
        held = self._reader.held_bytes
        if link is not None:
            held += link.held_bytes
        if client is not None:
            held += client.backlog_bytes
        if held != self.held_bytes:
            self._broker.housekeeping.held(self, held)

    def _hold(self) -> None:
        if self._link is not None and not self._held:
            self._held = True
            self._link.pause_reading()

    # What the broker uses of it (clients.Sink).

    def caught_up(self) -> None:
        """Read on: all that was sent ahead is run."""
        self._ahead_bytes = 0
        self.account()
        if self._held and not self._unread and self._link is not None and not self._link.is_closing:
            self._held = False
            self._link.resume_reading()

    def write(self, data: bytes) -> bool:
        """Send bytes; False if the client is gone and surely none of them left this process."""
        client = self._client
        if self._link is None or client is None or not self._link.write(data):
            return False
        if self._link.held_bytes or self.held_bytes:
            self.account()
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
                self._link.close(LINGER_SECONDS if self._is_refused else CLOSING_SECONDS)

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
