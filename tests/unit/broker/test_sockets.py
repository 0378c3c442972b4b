"""Sockets over loopback: what they hold for a peer that doesn't read."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator

import pytest

from penstock.broker.sockets import UNSENT_PIECE_BYTES, EpollSocket, Listener, SocketLoop

SIZE = 8 << 20  # more than the system keeps for both ends


class Noting:
    """A handler that notes what it is told."""

    def __init__(self) -> None:
        self.link: EpollSocket | None = None
        self.sent_calls = 0
        self.received_bytes = 0

    def on_accept(self, link: EpollSocket) -> None:
        self.link = link

    def on_open(self, link: EpollSocket) -> None: ...

    def on_data(self, data: bytes) -> None:
        self.received_bytes += len(data)

    def on_send_blocked(self) -> None: ...

    def on_send_resumed(self) -> None: ...

    def on_sent(self) -> None:
        self.sent_calls += 1

    def on_tls_error(self, problem: str) -> None: ...

    def on_close(self) -> None: ...


class Pair:
    """A link, its peer, and the loop in which it is served."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.handler = Noting()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        nothing: Callable[[], None] = lambda: None  # noqa: E731 - two callbacks that have nothing to do
        self.loop = SocketLoop(nothing, nothing, lambda f: f(), lambda s, f: self.timers.append((s, f)))
        listener = socket.create_server(("127.0.0.1", 0))
        self.loop.listen(Listener(listener, lambda: self.handler, tls))
        self.peer = socket.create_connection(listener.getsockname())
        while self.handler.link is None:
            self.loop.serve_once()
        self.link = self.handler.link

    def read(self, size: int) -> None:
        """Let the peer read this much, and the link send on."""
        self.peer.setblocking(False)
        while size > 0:
            try:
                size -= len(self.peer.recv(min(size, 65536)))
            except BlockingIOError:
                self.loop.serve_once()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.peer.close()
    pair.loop.close()


def test_a_piece_counts_as_a_whole_until_its_last_byte_is_sent(pair: Pair) -> None:
    pair.link.write(b"x" * SIZE)
    assert pair.link.held_bytes == SIZE + UNSENT_PIECE_BYTES
    unsent = pair.link.unsent_bytes
    read = 0
    while pair.link.unsent_bytes == unsent:
        pair.read(65536)
        pair.loop.serve_once()
        read += 65536
    assert pair.link.unsent_bytes
    assert pair.link.held_bytes == SIZE + UNSENT_PIECE_BYTES
    assert pair.handler.sent_calls
    pair.read(SIZE - read)
    assert pair.link.held_bytes == pair.link.unsent_bytes == 0


def test_small_pieces_count_with_what_each_takes_beside_its_bytes(pair: Pair) -> None:
    pair.link.write(b"x" * SIZE)
    before = pair.link.held_bytes
    for _ in range(100):
        pair.link.write(b"+OK\r\n")
    assert pair.link.held_bytes - before == 100 * (5 + UNSENT_PIECE_BYTES)


def test_a_peer_that_does_not_read_its_last_replies_does_not_keep_a_link_open(pair: Pair) -> None:
    pair.link.write(b"x" * SIZE)
    pair.link.close(5.0)
    ((seconds, give_up),) = pair.timers
    assert seconds == 5.0
    give_up()
    assert pair.link.held_bytes == 0
    assert pair.link.raw.fileno() == -1


def test_a_tls_handshake_that_does_not_end_is_given_up() -> None:
    pair = Pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    ((seconds, give_up),) = pair.timers
    assert seconds == 10
    assert not pair.link.is_closing
    give_up()
    assert pair.link.is_closing
    assert pair.peer.recv(1) == b""
    pair.peer.close()
    pair.loop.close()
