"""One blocking connection to one node: send commands, read replies.

It connects on first use and again after a loss, but never sends a command twice: after ConnectionLost only the caller
knows whether its command may be executed again. Replies are int, bytes, None, list or ReplyError (simple and bulk
strings are both bytes; pass `decoder=ReplyReader` where the difference matters).

    with Connection("127.0.0.1", 7711) as node:
        job_id = node.execute("ADDJOB", "mail", b"hello", 0)
        ids = node.pipeline([("ADDJOB", "mail", str(n), 0) for n in range(1000)])
"""

import select
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self

import hiredis

from penstock.errors import (
    AuthenticationError,
    BadReply,
    CallerError,
    ConnectionLost,
    ReplyError,
    TimedOut,
)
from penstock.wire.reply_reader import NOTHING

Word = str | bytes | bytearray | memoryview | int | float
Command = Sequence[Word]

DEFAULT_PORT = 7711
# A host that doesn't answer must not block a program for the minutes that the system's own retries take.
CONNECT_SECONDS_MAX = 10.0
READ_BYTES = 64 * 1024
# A pipeline is sent in slices of this size, each followed by reading its replies. A slice fits into the socket buffers
# of both ends, so it can always be sent, even to a server that has stopped reading until its replies are taken.
PIPELINE_SLICE_BYTES = 64 * 1024


class Decoder(Protocol):
    """What reads replies for a Connection: hiredis' Reader, or our ReplyReader."""

    def feed(self, data: bytes, /) -> None:
        """Add what came from the socket."""

    def gets(self) -> Any:
        """Return the next whole reply, or NOTHING."""


def hiredis_decoder() -> Decoder:
    """Return the fast decoder, with our errors; the text of an error may have any bytes."""
    return hiredis.Reader(protocolError=BadReply, replyError=ReplyError, errors="replace", notEnoughData=NOTHING)


class Connection:
    """A connection to `host:port`, or to the unix socket at `path`. Not for use by several threads at once.

    `tls` is True (the system's certificates, or the files `ca`, `cert`, `key`) or a context of your own.
    `timeout` is the longest silence before a reply, in seconds; None waits forever, as blocking commands need.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        path: str | None = None,
        password: str | bytes | None = None,
        name: str | None = None,
        tls: bool | ssl.SSLContext = False,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        timeout: float | None = None,
        decoder: Callable[[], Decoder] = hiredis_decoder,
    ) -> None:
        self.host, self.port, self.path, self.password = host, port, path, password
        self.timeout = timeout
        self._name = name
        self._tls: ssl.SSLContext | None = None
        if tls:
            self._tls = tls if isinstance(tls, ssl.SSLContext) else tls_context(ca, cert, key)
        self._new_decoder = decoder
        self._decoder = decoder()
        self._socket: socket.socket | None = None

    @property
    def address(self) -> str:
        """`host:port` or the path of the socket, for messages."""
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def connected(self) -> bool:
        """Whether it was connected when it was last used."""
        return self._socket is not None

    def connect(self) -> None:
        """Connect, and authenticate if there is a password. Does nothing if it is connected."""
        if self._socket is not None:
            return
        self._decoder = self._new_decoder()
        try:
            self._socket = self._open()
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raise ConnectionLost(f"Could not connect to {self.address}: {reason(error)}") from error
        if self.password is not None:
            try:
                self.execute("AUTH", self.password)
            except ReplyError as error:
                self.close()
                raise AuthenticationError(str(error)) from None
        if self._name is not None:
            with suppress(ReplyError):  # a node that refuses the name serves as well
                self.execute("CLIENT", "SETNAME", self._name)

    def _open(self) -> socket.socket:
        limit = CONNECT_SECONDS_MAX if self.timeout is None else self.timeout
        if self.path:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        else:
            link = socket.create_connection((self.host, self.port), limit)
        try:
            link.settimeout(limit)
            if self.path:
                link.connect(self.path)
            else:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                link = self._tls.wrap_socket(link, server_hostname=None if self.path else self.host)
        except BaseException:
            link.close()
            raise
        return link

    def close(self) -> None:
        """Close the connection; what was sent and not answered may still be executed."""
        link, self._socket = self._socket, None
        if link is not None:
            link.close()

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def execute(self, *words: Word) -> Any:
        """Send one command and return its reply. Raises ReplyError if that is an error."""
        self.send(*words)
        reply = self.receive()
        if isinstance(reply, ReplyError):
            raise refined(reply)
        return reply

    def pipeline(self, commands: Iterable[Command]) -> list[Any]:
        """Send many commands at once and return their replies in order, error replies as values."""
        replies: list[Any] = []
        for payload, count in slices(commands):
            self.send_bytes(payload)
            replies += [self.receive() for _ in range(count)]
        return replies

    def send(self, *words: Word) -> None:
        """Send one command; each needs one `receive` (or more, for MONITOR)."""
        self.send_bytes(encode(words))

    def send_bytes(self, data: bytes) -> None:
        """Send commands that are encoded already."""
        self.connect()
        assert self._socket is not None
        try:
            self._socket.settimeout(self.timeout)
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def receive(self) -> Any:
        """Wait for the next reply and return it; an error reply is returned, not raised."""
        if self._socket is None:
            raise ConnectionLost(f"There is no connection to {self.address}, so no reply to wait for.")
        try:
            while (reply := self._decoder.gets()) is NOTHING:
                self._socket.settimeout(self.timeout)
                data = self._socket.recv(READ_BYTES)
                if not data:
                    raise self._lost(None)
                self._decoder.feed(data)
        except OSError as error:
            raise self._lost(error) from error
        except BadReply as error:
            self.close()
            raise BadReply(f"{self.address} does not answer like a Penstock node: {error}") from error
        return reply

    def alive(self) -> bool:
        """Whether the server has not closed the connection, as far as is known here. Closes this end if it has."""
        if self._socket is None:
            return False
        if not _has_data(self._socket):
            return True
        self._socket.settimeout(0)
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            data = b""
        if data:
            self._decoder.feed(data)
        else:
            self.close()
        return bool(data)

    def hang_up(self) -> None:
        """Close our direction. What the node sends before it closes its own can still be received."""
        if self._socket is not None:
            try:
                # That of a TLS socket would forget how to read.
                socket.socket.shutdown(self._socket, socket.SHUT_WR)
            except OSError as error:
                raise self._lost(error) from error

    def detach(self) -> socket.socket:
        """Return the open socket; from then on the caller reads and writes it."""
        self.connect()
        link, self._socket = self._socket, None
        assert link is not None
        return link

    def _lost(self, error: OSError | None) -> ConnectionLost:
        self.close()
        if isinstance(error, TimeoutError):
            return TimedOut(f"No answer from {self.address} within {self.timeout} s.")
        why = reason(error) if error else "the server closed it"
        return ConnectionLost(f"Lost the connection to {self.address}: {why}")


def _has_data(link: socket.socket) -> bool:
    """Whether a read would not wait. Cheaper than a read, where there mostly is nothing."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return bool(poll.poll(0)) or (isinstance(link, ssl.SSLSocket) and bool(link.pending()))


def encode(words: Command, errors: str = "strict") -> bytes:
    """Return a command as RESP. Texts go as UTF-8; `errors` is what is done about others, as in `str.encode`."""
    if not words:
        raise CallerError("a command must have at least one word, got none")
    plain: Any = words if isinstance(words, tuple) else tuple(words)  # as its types have it, hiredis takes one word
    try:
        packed: bytes = hiredis.pack_command(plain)
    except UnicodeEncodeError as error:
        if errors != "strict":
            return encode([word.encode("utf-8", errors) if isinstance(word, str) else word for word in words])
        raise CallerError(f"the words of a command must be str, bytes, int or float: {error}") from None
    except TypeError as error:
        if not any(isinstance(word, bytearray) for word in plain):  # which hiredis doesn't take
            raise CallerError(f"the words of a command must be str, bytes, int or float: {error}") from None
        return encode(tuple([bytes(word) if isinstance(word, bytearray) else word for word in plain]))
    return packed


def slices(commands: Iterable[Command]) -> Iterator[tuple[bytes, int]]:
    """Yield commands joined into slices of at most PIPELINE_SLICE_BYTES, a longer one alone, with their number."""
    parts: list[bytes] = []
    size = 0
    for command in commands:
        part = encode(command)
        if parts and size + len(part) > PIPELINE_SLICE_BYTES:
            yield b"".join(parts), len(parts)
            parts, size = [], 0
        parts.append(part)
        size += len(part)
    if parts:
        yield b"".join(parts), len(parts)


def refined(error: ReplyError) -> ReplyError:
    """Return an error reply as the class that fits its code."""
    return AuthenticationError(str(error)) if error.code in ("NOAUTH", "WRONGPASS") else error


def reason(error: Exception) -> str:
    """Return the text of an error of the system, without its number."""
    if isinstance(error, TimeoutError):
        return "no answer"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def tls_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Return a context that trusts the certificates of the system, or those in the file `ca`."""
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        names = ", ".join(name for name in (ca, cert, key) if name)
        raise CallerError(f"Can't use the TLS files {names}: {reason(error)}") from error
    return context
