"""Sockets of clients and of other nodes, read and written in rounds.

One epoll holds all of them, and the event loop watches only that one. When it stirs, a round begins: everything that
has arrived is read and run, then the round ends and all replies leave. A transport of the event loop for each client
would cost as much again as the command, and would end a turn for each of them; here fifty clients share one turn, one
write to the journal and one look at the timers.

A link is plain or TLS, and was accepted or is opened by us; `wants` is what it waits for.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

log = logging.getLogger("penstock")

READ_BYTES: Final = 16 * 1024  # enough for a pipeline of hundreds of requests; larger buffers cost a page fault each
READ_BYTES_MAX: Final = 1 << 20  # for a client that fills its reads: a large body is on its way
EVENTS_A_ROUND: Final = 512  # then replies leave, and others have their turn
SEND_BYTES_A_ROUND: Final = 1 << 20  # over TLS, to one who takes it all
ACCEPTS_A_ROUND: Final = 64
UNSENT_BYTES_HIGH: Final = 1 << 20  # from here on the handler is told to stop
UNSENT_PIECE_BYTES: Final = 240  # what each piece that waits takes beside its bytes: its object, and a view of it
HANDSHAKE_SECONDS: Final = 10.0
LINGER_SECONDS: Final = 1.0  # how long a peer may take to notice that we have closed
CLOSING_SECONDS: Final = 60.0  # how long it may take to read what is left for it before that

_GONE: Final = select.EPOLLHUP | select.EPOLLERR
_AGAIN: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Handler(Protocol):
    """What is done with a link (connection.Connection, bus_links.BusLink)."""

    def arrived(self, link: Link) -> None:
        """Know the link; nothing can be sent or received on it yet."""

    def opened(self, link: Link) -> None:
        """Begin."""

    def received(self, data: bytes) -> None:
        """Take what has arrived."""

    def overfull(self) -> None:
        """Stop: the peer doesn't take what is sent to it."""

    def drained(self) -> None:
        """Go on."""

    def sent(self) -> None:
        """Know that the peer has taken some of what waited for it."""

    def untrusted(self, problem: str) -> None:
        """Hear that the TLS handshake failed; `lost` follows."""

    def lost(self) -> None:
        """End: the link is gone, or never came to be."""


class Link:
    """One socket."""

    def __init__(
        self,
        rounds: Rounds,
        sock: socket.socket,
        handler: Handler,
        is_connecting: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._rounds = rounds
        self._socket = sock
        self._handler = handler
        self._fd = sock.fileno()
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self._is_connecting = is_connecting
        self._tls_to_be = tls  # for once it is connected
        self._is_shaking = self._tls is not None
        self.read_bytes_max = READ_BYTES_MAX  # in one go
        self._read_bytes = READ_BYTES
        self._unsent: deque[tuple[memoryview, int]] = deque()  # what is left of a piece, and its whole length
        self._unsent_bytes = 0
        self._held_bytes = 0
        self._is_reading = True
        self._is_closing = False
        self._is_overfull = False
        self._is_lingering = False
        self._wants = select.EPOLLOUT if is_connecting else select.EPOLLIN
        rounds.watch(self._fd, self._wants)

    @property
    def socket(self) -> socket.socket:
        """The socket, for its options and addresses."""
        return self._socket

    @property
    def is_tls(self) -> bool:
        """Whether it speaks TLS."""
        return self._tls is not None

    @property
    def is_closing(self) -> bool:
        """Whether it ends, now or after what is still to be sent."""
        return self._is_closing

    @property
    def unsent_bytes(self) -> int:
        """How much the peer has not taken yet."""
        return self._unsent_bytes

    @property
    def held_bytes(self) -> int:
        """What that takes in memory: a piece of which some was taken stays as a whole."""
        return self._held_bytes

    def cut_round(self) -> None:
        """End this round with this link: replies have to leave before others can be served."""
        self._rounds.is_cut = True

    def on_event(self, event: int) -> None:
        """Do what the socket is ready for."""
        if self._is_connecting:
            self._connected()
            return
        if self._is_shaking:
            self.shake_hands()
            return
        if self._is_lingering:
            self._discard()
            return
        if event & select.EPOLLOUT:
            self._send_unsent()
        if self._is_reading and event & (select.EPOLLIN | _GONE):
            self._receive()
        elif event & _GONE:
            self.abort()

    def _connected(self) -> None:
        """Begin, if the other side has taken our call."""
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.abort()
            return
        self._is_connecting = False
        if self._tls_to_be is None:
            self._watch(select.EPOLLIN)
            self._handler.opened(self)
            return
        try:
            self._tls = self._tls_to_be.wrap_socket(self._socket, do_handshake_on_connect=False)
        except (OSError, ValueError):  # gone already
            self.abort()
            return
        self._socket = self._tls
        self._is_shaking = True
        self._rounds.after(HANDSHAKE_SECONDS, self.give_up_handshake)
        self.shake_hands()

    def shake_hands(self) -> None:
        """Go on with the TLS handshake."""
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._watch(select.EPOLLIN)
        except ssl.SSLWantWriteError:
            self._watch(select.EPOLLOUT)
        except OSError as problem:
            self._handler.untrusted(str(problem))
            self.abort()
        else:
            self._is_shaking = False
            self._watch(select.EPOLLIN)
            self._handler.opened(self)

    def give_up_handshake(self) -> None:
        """End a link whose handshake takes too long."""
        if self._is_shaking:
            self.abort()

    def _receive(self) -> None:
        while True:
            try:
                data = self._socket.recv(self._read_bytes)
            except _AGAIN:
                return
            except OSError:
                self.abort()
                return
            if not data:
                self.abort()
                return
            if len(data) == self._read_bytes:
                self._read_bytes = min(self._read_bytes * 4, self.read_bytes_max)
            else:
                self._read_bytes = READ_BYTES
            self._handler.received(data)
            # What TLS has already taken from the socket, epoll doesn't know of.
            if self._tls is None or not self._is_reading or self._is_closing or not self._tls.pending():
                return

    def write(self, data: bytes) -> bool:
        """Send bytes, now as far as the peer takes them, the rest later; False if surely none of them left."""
        if self._is_closing:
            return False
        sent = 0
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except _AGAIN:
                pass
            except OSError:
                self.abort()
                return self._tls is not None  # which may have sent a part before it failed
            if sent == len(data):
                return True
        self._unsent.append((memoryview(data)[sent:], len(data)))
        self._unsent_bytes += len(data) - sent
        self._held_bytes += len(data) + UNSENT_PIECE_BYTES
        self._watch(self._wants | select.EPOLLOUT)
        if self._held_bytes > UNSENT_BYTES_HIGH and not self._is_overfull:
            self._is_overfull = True
            self._handler.overfull()
        return True

    def _send_unsent(self) -> None:
        left = SEND_BYTES_A_ROUND
        try:
            while self._unsent:
                piece, size = self._unsent[0]
                sent = self._socket.send(piece)
                self._unsent_bytes -= sent
                left -= sent
                if sent == len(piece):
                    self._unsent.popleft()
                    self._held_bytes -= size + UNSENT_PIECE_BYTES
                    continue
                self._unsent[0] = (piece[sent:], size)
                if self._tls is None or left <= 0:  # TLS takes 16 KB at a time, however much fits
                    break
        except _AGAIN:
            pass
        except OSError:
            self.abort()
            return
        self._handler.sent()
        if self._unsent:
            return
        if self._is_closing:
            self._linger()
            return
        self._watch(self._wants & ~select.EPOLLOUT)
        if self._is_overfull:
            self._is_overfull = False
            self._handler.drained()

    def pause_reading(self) -> None:
        """Leave what arrives in the socket."""
        self._is_reading = False
        self._watch(self._wants & ~select.EPOLLIN)

    def resume_reading(self) -> None:
        """Read again."""
        self._is_reading = True
        self._watch(self._wants | select.EPOLLIN)
        if self._tls is not None and self._tls.pending():
            self._rounds.later(self._receive)

    def _watch(self, wants: int) -> None:
        if wants != self._wants and self._fd >= 0:
            self._wants = wants
            self._rounds.rewatch(self._fd, wants)

    def close(self, within_s: float = CLOSING_SECONDS) -> None:
        """End once everything is sent, or after this time."""
        self._is_closing = True
        if self._unsent:
            self.pause_reading()
            self._rounds.after(within_s, self.abort)
        else:
            self._linger()

    def _linger(self) -> None:
        """Say that nothing more comes, and wait until the peer has seen it.

        To close a socket with something unread in it resets the connection, and the peer may never see our last words.
        """
        if self._fd < 0 or self._is_lingering:
            return
        self._is_lingering = True
        self._rounds.end(self._handler)
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.abort()
            return
        self._watch(select.EPOLLIN)
        self._rounds.after(LINGER_SECONDS, self.abort)

    def _discard(self) -> None:
        try:
            if not self._socket.recv(READ_BYTES):
                self.abort()
        except _AGAIN:
            pass
        except OSError:
            self.abort()

    def abort(self) -> None:
        """End at once. The handler hears of it after the round."""
        if self._fd < 0:
            return
        self._is_closing = True
        self._is_reading = False
        self._rounds.forget(self._fd)
        self._fd = -1
        self._socket.close()
        self._unsent.clear()
        self._unsent_bytes = 0
        self._held_bytes = 0
        if not self._is_lingering:
            self._rounds.end(self._handler)


class Listener:
    """A socket on which clients come in."""

    def __init__(self, sock: socket.socket, make: Callable[[], Handler], tls: ssl.SSLContext | None) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.make = make
        self.tls = tls


class Rounds:
    """All links, the listeners, and the rounds in which they are served.

    `later(f)` runs f soon after the round, `after(seconds, f)` after a time: both are the event loop's.
    """

    def __init__(
        self,
        begin: Callable[[], None],
        end: Callable[[], None],
        later: Callable[[Callable[[], None]], object],
        after: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._begin, self._end = begin, end
        self.later = later
        self.after = after
        self._epoll = select.epoll()
        self._links: dict[int, Link] = {}
        self._ended: list[Handler] = []
        self._listeners: dict[int, Listener] = {}
        self.is_cut = False  # this round ends before everybody is served

    def fileno(self) -> int:
        """Give what the event loop watches."""
        return self._epoll.fileno()

    def listen(self, listener: Listener) -> None:
        """Let clients in there."""
        self._listeners[listener.socket.fileno()] = listener
        self._epoll.register(listener.socket.fileno(), select.EPOLLIN)

    def round(self) -> None:
        """Serve everybody who is ready."""
        self._begin()
        self.is_cut = False
        links = self._links
        arrivals = []
        for fd, event in self._epoll.poll(0, EVENTS_A_ROUND):
            link = links.get(fd)
            if link is not None:
                if self.is_cut:
                    break  # the others are as ready in the next round
                link.on_event(event)
            elif fd in self._listeners:
                arrivals.append(self._listeners[fd])
        # First those who go, then those who come: there may be room for just as many.
        self._tell_ended()
        for listener in arrivals:
            self._accept(listener)
        self._end()

    def end(self, handler: Handler) -> None:
        """Tell a handler that its link is gone: soon, but not in the middle of what it may be doing now."""
        if not self._ended:
            self.later(self._tell_ended)
        self._ended.append(handler)

    def _tell_ended(self) -> None:
        ended, self._ended = self._ended, []
        for handler in ended:
            handler.lost()

    def _accept(self, listener: Listener) -> None:
        for _ in range(ACCEPTS_A_ROUND):
            try:
                sock, _ = listener.socket.accept()
            except _AGAIN:
                return
            except OSError as problem:
                if problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    log.error("a client could not be let in: %s", problem)
                return
            sock.setblocking(False)
            handler = listener.make()
            if listener.tls is None:
                link = self._links[sock.fileno()] = Link(self, sock, handler)
                handler.arrived(link)
                if not link.is_closing:
                    handler.opened(link)
                continue
            try:
                secure = listener.tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            except OSError:  # gone already
                sock.close()
                continue
            link = self._links[secure.fileno()] = Link(self, secure, handler)
            handler.arrived(link)
            if not link.is_closing:
                self.after(HANDSHAKE_SECONDS, link.give_up_handshake)
                link.shake_hands()

    def connect(self, host: str, port: int, source: str, handler: Handler, tls: ssl.SSLContext | None = None) -> None:
        """Open a link to an address, from one of ours if given. The handler hears how that ends, but not now."""
        sock: socket.socket | None = None
        try:
            sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            sock.setblocking(False)
            if source:
                sock.bind((source, 0))
            with contextlib.suppress(BlockingIOError):
                sock.connect((host, port))
        except OSError as problem:
            log.debug("can't connect to %s port %d: %s", host, port, problem)
            if sock is not None:
                sock.close()
            self.end(handler)
            return
        link = self._links[sock.fileno()] = Link(self, sock, handler, is_connecting=True, tls=tls)
        handler.arrived(link)

    def watch(self, fd: int, wants: int) -> None:
        """Begin to watch a link."""
        self._epoll.register(fd, wants)

    def rewatch(self, fd: int, wants: int) -> None:
        """Watch a link for something else."""
        self._epoll.modify(fd, wants)

    def forget(self, fd: int) -> None:
        """Watch a link no more."""
        self._epoll.unregister(fd)
        del self._links[fd]

    def close(self) -> None:
        """Let nobody in any more."""
        for fd, listener in self._listeners.items():
            self._epoll.unregister(fd)
            listener.socket.close()
        self._listeners.clear()
