"""One client connection: bytes in, requests to the broker, replies out.

Two rules bound what the node buffers for a client: while it doesn't read its replies, its requests are not read; while
it is blocked, it may send at most AHEAD_BYTES_MAX ahead. What is buffered is counted, and all clients together have a
limit (clients.py).

Before it has authenticated, a client may send only small requests. They are run one by one, since other limits hold for
the request behind AUTH.
"""

from __future__ import annotations

import logging
import socket
from ipaddress import ip_address
from typing import Final

from penstock.broker.broker import Broker
from penstock.broker.clients import CLIENT_BYTES, TLS_BYTES, TOO_MANY, Client
from penstock.broker.sockets import CLOSING_SECONDS, LINGER_SECONDS, READ_BYTES, READ_BYTES_MAX, EpollSocket
from penstock.wire.replies import error
from penstock.wire.requests import ARGUMENTS_MAX, BULK_BYTES_MAX, RequestReader

log = logging.getLogger("penstock")

AHEAD_BYTES_MAX: Final = 1 << 20  # what a blocked client may send ahead before reading stops
REQUEST_BYTES_MAX: Final = 1 << 30  # of an incomplete request: the original's limit of a query buffer
# Before authentication. AUTH and HELLO have at most 7 arguments, and a password 512 bytes.
UNAUTHENTICATED_REQUEST_BYTES_MAX: Final = 64 << 10
UNAUTHENTICATED_ARGUMENTS_MAX: Final = 16
UNAUTHENTICATED_BULK_BYTES_MAX: Final = 16 << 10
UNAUTHENTICATED_REQUESTS_MAX: Final = 100  # each is refused, and takes time from others
LATE: Final = error(f"ERR a client must authenticate with one of its first {UNAUTHENTICATED_REQUESTS_MAX} requests")
LAST_REPLIES_BYTES_MAX: Final = 64 << 10  # a client that is refused still gets replies up to this size
# The reply to clients on other machines in protected mode.
PROTECTED: Final = (
    b"-DENIED this node runs in protected mode: it has no password, so it answers only clients on its own machine. "
    b"To use it from elsewhere, set a password (CONFIG SET requirepass), or bind it to loopback, or turn protected "
    b"mode off with CONFIG SET protected-mode no\r\n"
)


class ClientConnection:
    """The handler of a client's socket: its requests go to the broker, and the broker's replies go back."""

    def __init__(self, broker: Broker, is_unix: bool = False) -> None:
        self._broker = broker
        self._is_unix = is_unix
        self._reader = RequestReader()
        self._sock: EpollSocket | None = None
        self._client: Client | None = None
        self._ahead_bytes = 0
        self._is_paused = False  # reading
        self._is_unread = False  # it doesn't read its replies
        self._is_let_in = False
        self._is_refused = False
        self._requests_left = UNAUTHENTICATED_REQUESTS_MAX
        self.created_ms = broker.node.now_ms
        self.fixed_bytes = CLIENT_BYTES
        self.held_bytes = 0

    # Events of the socket (sockets.Handler).

    def on_accept(self, sock: EpollSocket) -> None:
        """Count the connection, and set the limits for unauthenticated clients."""
        self._sock = sock
        self.created_ms = int(self._broker.clock() * 1000)
        if sock.is_tls:
            self.fixed_bytes += TLS_BYTES
        sock.read_bytes_max = READ_BYTES
        self._reader.restrict(UNAUTHENTICATED_ARGUMENTS_MAX, UNAUTHENTICATED_BULK_BYTES_MAX)
        if not self._broker.connections.add(self):
            self._is_refused = True
            if sock.is_tls:
                sock.abort()  # no reply can be sent before the TLS handshake

    def on_tls_error(self, problem: str) -> None:
        """Log why TLS failed."""
        log.debug("TLS handshake failed: %s", problem)

    def on_open(self, sock: EpollSocket) -> None:
        """Register the client, or refuse it with a reply. Without a password it counts as authenticated."""
        broker = self._broker
        refusal = b""
        try:
            address, host = self._peer(sock.raw)
        except OSError:
            sock.abort()  # it was gone before we looked
            return
        if self._is_refused:
            refusal = TOO_MANY
        elif host and self._is_denied(host):
            refusal = PROTECTED
        if refusal:
            broker.statistics.rejected += 1
            broker.connections.remove(self)
            sock.write(refusal)
            sock.close()
            return
        self._client = broker.connect(address, self, self._is_unix)
        if not broker.config.requirepass:
            broker.connections.let_in(self)

    def _peer(self, raw: socket.socket) -> tuple[str, str]:
        """Return a client's address as it is shown, and its host, empty for a unix socket."""
        if self._is_unix:
            return f"{self._broker.config.unixsocket}:0", ""
        host, port = raw.getpeername()[:2]
        self._tune(raw)
        return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}"), host

    def _is_denied(self, host: str) -> bool:
        """Whether protected mode refuses clients of this host."""
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

    def on_data(self, data: bytes) -> None:
        """Run the requests that are complete."""
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
                self._pause()
        else:
            self._ahead_bytes = 0
        if reader.held_bytes or client.backlog_bytes or client.moving_bytes or self.held_bytes:
            self._check_size(client)
            self.account()
        memory = broker.node.memory
        if memory.reply_bytes > memory.reply_bytes_max and self._sock is not None:
            self._sock.end_round_early()

    def _receive_unauthenticated(self, client: Client, data: bytes) -> bytes:
        """Run requests one by one until the client has authenticated; return the bytes behind that."""
        at = 0
        while not client.closing and self._reader.error is None:
            if client.authenticated:
                self._broker.connections.let_in(self)
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
        """Close a client whose incomplete request is too large."""
        size = REQUEST_BYTES_MAX if self._is_let_in else UNAUTHENTICATED_REQUEST_BYTES_MAX
        if self._reader.pending_bytes > size:
            log.warning("closing client %s: a request must be at most %d bytes", client.address, size)
            client.closing = True
            self.close(now=True)

    def on_close(self) -> None:
        """Forget the client."""
        self._broker.connections.remove(self)
        if self._client is not None:
            self._broker.disconnect(self._client)
        self._client = None
        self._sock = None
        self._reader.clear()

    def on_send_blocked(self) -> None:
        """The client doesn't read its replies: read no more requests."""
        self._is_unread = True
        self._pause()

    def on_send_resumed(self) -> None:
        """The client reads again: run its backlog, then read new requests."""
        self._is_unread = False
        if self._client is not None and self._client.backlog:
            self._broker.touch(self._client)
        else:
            self.caught_up()

    def on_sent(self) -> None:
        """Fewer bytes are unsent: count again."""
        self.account()

    # What the limits use (clients.LimitedConnection).

    def is_authenticated(self) -> bool:
        """Whether its client has authenticated, or there is no password."""
        client = self._client
        return client is not None and (client.authenticated or not self._broker.config.requirepass)

    def let_in(self) -> None:
        """Lift the limits on what it may send."""
        self._is_let_in = True
        self._reader.restrict(ARGUMENTS_MAX, BULK_BYTES_MAX)
        if self._sock is not None:
            self._sock.read_bytes_max = READ_BYTES_MAX

    def refuse(self, reply: bytes, now: bool) -> None:
        """Free its buffers, send the reply if possible, and close: at once (`now`), or when the reply is read."""
        sock, client = self._sock, self._client
        if sock is None:
            return
        self._reader.clear()
        self._is_refused = True
        if client is None or client.closing or sock.unsent_bytes or sum(map(len, client.out)) > LAST_REPLIES_BYTES_MAX:
            sock.abort()  # there is no client yet, or it has other replies to read first
            return
        client.closing = True
        client.backlog = []
        client.backlog_bytes = 0
        if now:
            sock.write(reply)
            sock.abort()
            return
        client.out.append(reply)
        self._broker.touch(client)

    def account(self) -> None:
        """Count what its buffers take now."""
        sock, client = self._sock, self._client
        held = self._reader.held_bytes
        if sock is not None:
            held += sock.held_bytes
        if client is not None:
            held += client.backlog_bytes + client.moving_bytes
        if held != self.held_bytes:
            self._broker.connections.set_held_bytes(self, held)

    def _pause(self) -> None:
        if self._sock is not None and not self._is_paused:
            self._is_paused = True
            self._sock.pause_reading()

    # What the broker uses (clients.Sink).

    def caught_up(self) -> None:
        """The backlog has run: resume reading."""
        self._ahead_bytes = 0
        self.account()
        if self._is_paused and not self._is_unread and self._sock is not None and not self._sock.is_closing:
            self._is_paused = False
            self._sock.resume_reading()

    def write(self, data: bytes) -> bool:
        """Send bytes. False only if the client is gone and it is certain that no byte was sent."""
        client = self._client
        if self._sock is None or client is None or not self._sock.write(data):
            return False
        if self._sock.held_bytes or self.held_bytes:
            self.account()
        if self._reader.error is not None and _is_answered(client):
            # It was blocked when it sent something invalid: the error follows this reply.
            self._sock.write(error(f"ERR {self._reader.error}"))
            client.closing = True
        return True

    def close(self, now: bool) -> None:
        """Close at once (`now`), or once everything is sent."""
        if self._sock is not None:
            if now:
                self._sock.abort()
            else:
                self._sock.close(LINGER_SECONDS if self._is_refused else CLOSING_SECONDS)

    def buffered_bytes(self) -> int:
        """Return how many bytes of replies are unsent."""
        return self._sock.unsent_bytes if self._sock is not None else 0

    def unread_bytes(self) -> int:
        """Return how many bytes of requests have arrived and could not be run yet."""
        return self._reader.pending_bytes + self._ahead_bytes

    def describe(self) -> str:
        """Return what CLIENT LIST shows of the socket."""
        return f"fd={self._sock.raw.fileno() if self._sock is not None else -1}"


def _is_answered(client: Client) -> bool:
    """Whether a client waits for no reply, so that an error about its input can be its last reply."""
    return not (client.closing or client.backlog or client.waiter is not None)
