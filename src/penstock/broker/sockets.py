"""Sockets of clients and of other nodes, read and written in rounds.

All sockets are in one epoll, and the event loop watches only that epoll. When it has events, a round begins: everything
that has arrived is read and run, then all replies are sent. With one asyncio transport per client, each client would
end a turn of its own, and the transport would cost as much as the command. Here fifty clients share one turn, one
write to the journal and one check of the timers.

A socket is plain or TLS, and was accepted or is being opened by us; `wants` has the events that it waits for.
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
READ_BYTES_MAX: Final = 1 << 20  # for a client that fills its reads: it sends a large body
EVENTS_A_ROUND: Final = 512  # then replies are sent, and the next round serves the others
SEND_BYTES_A_ROUND: Final = 1 << 20  # over TLS, to one peer
ACCEPTS_A_ROUND: Final = 64
UNSENT_BYTES_HIGH: Final = 1 << 20  # above this, `on_send_blocked` is called
UNSENT_PIECE_BYTES: Final = 240  # memory of each unsent piece beside its bytes: its object, and a view of it
HANDSHAKE_SECONDS: Final = 10.0
LINGER_SECONDS: Final = 1.0  # how long a peer may take to see that we have closed
CLOSING_SECONDS: Final = 60.0  # how long it may take to read what is left for it before that

_GONE: Final = select.EPOLLHUP | select.EPOLLERR
_AGAIN: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Handler(Protocol):
    """What is done with the data and events of a socket (connection.Connection, bus_sockets.BusLink)."""

    def on_accept(self, sock: EpollSocket) -> None:
        """The socket exists, accepted or being opened by us. Nothing can be sent or received on it yet."""

    def on_open(self, sock: EpollSocket) -> None:
        """The connection is there, after the TLS handshake if there is one."""

    def on_data(self, data: bytes) -> None:
        """Bytes have arrived."""

    def on_send_blocked(self) -> None:
        """More than UNSENT_BYTES_HIGH is unsent: the peer doesn't read."""

    def on_send_resumed(self) -> None:
        """All of it is sent: the peer reads again."""

    def on_sent(self) -> None:
        """Some of the unsent bytes were sent."""

    def on_tls_error(self, problem: str) -> None:
        """The TLS handshake failed; `on_close` follows."""

    def on_close(self) -> None:
        """The connection is closed, or could not be opened."""


class EpollSocket:
    """One socket: what is unsent on it, and what it waits for."""

    def __init__(
        self,
        loop: SocketLoop,
        raw: socket.socket,
        handler: Handler,
        is_connecting: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._loop = loop
        self._raw = raw
        self._handler = handler
        self._fd = raw.fileno()
        self._tls = raw if isinstance(raw, ssl.SSLSocket) else None
        self._is_connecting = is_connecting
        self._tls_to_be = tls  # started once it is connected
        self._is_shaking = self._tls is not None
        self.read_bytes_max = READ_BYTES_MAX  # of one read
        self._read_bytes = READ_BYTES
        self._unsent: deque[tuple[memoryview, int]] = deque()  # what is left of a piece, and its whole length
        self._unsent_bytes = 0
        self._held_bytes = 0
        self._is_reading = True
        self._is_closing = False
        self._is_overfull = False
        self._is_lingering = False
        self._wants = select.EPOLLOUT if is_connecting else select.EPOLLIN
        loop.watch(self._fd, self._wants)

    @property
    def raw(self) -> socket.socket:
        """The socket, for its options and addresses."""
        return self._raw

    @property
    def is_tls(self) -> bool:
        """Whether it uses TLS."""
        return self._tls is not None

    @property
    def is_closing(self) -> bool:
        """Whether it is closed, or will be once everything is sent."""
        return self._is_closing

    @property
    def unsent_bytes(self) -> int:
        """How many bytes are not sent yet."""
        return self._unsent_bytes

    @property
    def held_bytes(self) -> int:
        """What they take in memory: a piece that is partly sent is kept as a whole."""
        return self._held_bytes

    def end_round_early(self) -> None:
        """Make this the last socket of the round: replies must be sent before others are served."""
        self._loop.is_round_ending = True

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
        """Begin, if the connection was accepted."""
        if self._raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.abort()
            return
        self._is_connecting = False
        if self._tls_to_be is None:
            self._watch(select.EPOLLIN)
            self._handler.on_open(self)
            return
        try:
            self._tls = self._tls_to_be.wrap_socket(self._raw, do_handshake_on_connect=False)
        except (OSError, ValueError):  # gone already
            self.abort()
            return
        self._raw = self._tls
        self._is_shaking = True
        self._loop.after(HANDSHAKE_SECONDS, self.give_up_handshake)
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
            self._handler.on_tls_error(str(problem))
            self.abort()
        else:
            self._is_shaking = False
            self._watch(select.EPOLLIN)
            self._handler.on_open(self)

    def give_up_handshake(self) -> None:
        """Close the connection if its TLS handshake takes too long."""
        if self._is_shaking:
            self.abort()

    def _receive(self) -> None:
        while True:
            try:
                data = self._raw.recv(self._read_bytes)
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
            self._handler.on_data(data)
            # epoll doesn't see what TLS has already read from the socket.
            if self._tls is None or not self._is_reading or self._is_closing or not self._tls.pending():
                return

    def write(self, data: bytes) -> bool:
        """Send what the socket takes now, the rest later. False only if it is certain that no byte was sent."""
        if self._is_closing:
            return False
        sent = 0
        if not self._unsent:
            try:
                sent = self._raw.send(data)
            except _AGAIN:
                pass
            except OSError:
                self.abort()
                return self._tls is not None  # TLS may have sent a part before it failed
            if sent == len(data):
                return True
        self._unsent.append((memoryview(data)[sent:], len(data)))
        self._unsent_bytes += len(data) - sent
        self._held_bytes += len(data) + UNSENT_PIECE_BYTES
        self._watch(self._wants | select.EPOLLOUT)
        if self._held_bytes > UNSENT_BYTES_HIGH and not self._is_overfull:
            self._is_overfull = True
            self._handler.on_send_blocked()
        return True

    def _send_unsent(self) -> None:
        left = SEND_BYTES_A_ROUND
        try:
            while self._unsent:
                piece, size = self._unsent[0]
                sent = self._raw.send(piece)
                self._unsent_bytes -= sent
                left -= sent
                if sent == len(piece):
                    self._unsent.popleft()
                    self._held_bytes -= size + UNSENT_PIECE_BYTES
                    continue
                self._unsent[0] = (piece[sent:], size)
                if self._tls is None or left <= 0:  # TLS sends at most 16 KB a call
                    break
        except _AGAIN:
            pass
        except OSError:
            self.abort()
            return
        self._handler.on_sent()
        if self._unsent:
            return
        if self._is_closing:
            self._linger()
            return
        self._watch(self._wants & ~select.EPOLLOUT)
        if self._is_overfull:
            self._is_overfull = False
            self._handler.on_send_resumed()

    def pause_reading(self) -> None:
        """Stop reading: what arrives stays in the socket."""
        self._is_reading = False
        self._watch(self._wants & ~select.EPOLLIN)

    def resume_reading(self) -> None:
        """Read again."""
        self._is_reading = True
        self._watch(self._wants | select.EPOLLIN)
        if self._tls is not None and self._tls.pending():
            self._loop.later(self._receive)

    def _watch(self, wants: int) -> None:
        if wants != self._wants and self._fd >= 0:
            self._wants = wants
            self._loop.rewatch(self._fd, wants)

    def close(self, within_s: float = CLOSING_SECONDS) -> None:
        """Close once everything is sent, or after this time."""
        self._is_closing = True
        if self._unsent:
            self.pause_reading()
            self._loop.after(within_s, self.abort)
        else:
            self._linger()

    def _linger(self) -> None:
        """Shut down our side, and wait until the peer has closed its own.

        Closing a socket with unread data resets the connection, and then the peer may lose our last bytes.
        """
        if self._fd < 0 or self._is_lingering:
            return
        self._is_lingering = True
        self._loop.end(self._handler)
        try:
            self._raw.shutdown(socket.SHUT_WR)
        except OSError:
            self.abort()
            return
        self._watch(select.EPOLLIN)
        self._loop.after(LINGER_SECONDS, self.abort)

    def _discard(self) -> None:
        try:
            if not self._raw.recv(READ_BYTES):
                self.abort()
        except _AGAIN:
            pass
        except OSError:
            self.abort()

    def abort(self) -> None:
        """Close at once. `on_close` is called after the round."""
        if self._fd < 0:
            return
        self._is_closing = True
        self._is_reading = False
        self._loop.forget(self._fd)
        self._fd = -1
        self._raw.close()
        self._unsent.clear()
        self._unsent_bytes = 0
        self._held_bytes = 0
        if not self._is_lingering:
            self._loop.end(self._handler)


class Listener:
    """A listening socket, and what makes the handlers of its connections."""

    def __init__(self, raw: socket.socket, make: Callable[[], Handler], tls: ssl.SSLContext | None) -> None:
        raw.setblocking(False)
        self.socket = raw
        self.make = make
        self.tls = tls


class SocketLoop:
    """All sockets and listeners, and the rounds in which they are served.

    `later(f)` calls f soon after the round, `after(seconds, f)` after a time: both are the event loop's.
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
        self._sockets: dict[int, EpollSocket] = {}
        self._ended: list[Handler] = []
        self._listeners: dict[int, Listener] = {}
        self.is_round_ending = False  # this round ends before all sockets are served

    def fileno(self) -> int:
        """Return the file descriptor that the event loop watches."""
        return self._epoll.fileno()

    def listen(self, listener: Listener) -> None:
        """Accept connections there."""
        self._listeners[listener.socket.fileno()] = listener
        self._epoll.register(listener.socket.fileno(), select.EPOLLIN)

    def serve_once(self) -> None:
        """Run one round: serve all sockets that are ready."""
        self._begin()
        self.is_round_ending = False
        sockets = self._sockets
        arrivals = []
        for fd, event in self._epoll.poll(0, EVENTS_A_ROUND):
            sock = sockets.get(fd)
            if sock is not None:
                if self.is_round_ending:
                    break  # the others are still ready in the next round
                sock.on_event(event)
            elif fd in self._listeners:
                arrivals.append(self._listeners[fd])
        # Closed connections first: they make room for new ones.
        self._tell_ended()
        for listener in arrivals:
            self._accept(listener)
        self._end()

    def end(self, handler: Handler) -> None:
        """Call the `on_close` of a handler soon, but not while one of its own methods runs."""
        if not self._ended:
            self.later(self._tell_ended)
        self._ended.append(handler)

    def _tell_ended(self) -> None:
        ended, self._ended = self._ended, []
        for handler in ended:
            handler.on_close()

    def _accept(self, listener: Listener) -> None:
        for _ in range(ACCEPTS_A_ROUND):
            try:
                raw, _ = listener.socket.accept()
            except _AGAIN:
                return
            except OSError as problem:
                if problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    log.error("can't accept a connection: %s", problem)
                return
            raw.setblocking(False)
            handler = listener.make()
            if listener.tls is None:
                sock = self._sockets[raw.fileno()] = EpollSocket(self, raw, handler)
                handler.on_accept(sock)
                if not sock.is_closing:
                    handler.on_open(sock)
                continue
            try:
                secure = listener.tls.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
            except OSError:  # gone already
                raw.close()
                continue
            sock = self._sockets[secure.fileno()] = EpollSocket(self, secure, handler)
            handler.on_accept(sock)
            if not sock.is_closing:
                self.after(HANDSHAKE_SECONDS, sock.give_up_handshake)
                sock.shake_hands()

    def connect(self, host: str, port: int, source: str, handler: Handler, tls: ssl.SSLContext | None = None) -> None:
        """Open a connection, from the address `source` if given. The handler is called later, not during this call."""
        raw: socket.socket | None = None
        try:
            raw = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            raw.setblocking(False)
            if source:
                raw.bind((source, 0))
            with contextlib.suppress(BlockingIOError):
                raw.connect((host, port))
        except OSError as problem:
            log.debug("can't connect to %s port %d: %s", host, port, problem)
            if raw is not None:
                raw.close()
            self.end(handler)
            return
        sock = self._sockets[raw.fileno()] = EpollSocket(self, raw, handler, is_connecting=True, tls=tls)
        handler.on_accept(sock)

    def watch(self, fd: int, wants: int) -> None:
        """Begin to watch a socket."""
        self._epoll.register(fd, wants)

    def rewatch(self, fd: int, wants: int) -> None:
        """Watch a socket for other events."""
        self._epoll.modify(fd, wants)

    def forget(self, fd: int) -> None:
        """Stop watching a socket."""
        self._epoll.unregister(fd)
        del self._sockets[fd]

    def close(self) -> None:
        """Accept no more connections."""
        for fd, listener in self._listeners.items():
            self._epoll.unregister(fd)
            listener.socket.close()
        self._listeners.clear()
