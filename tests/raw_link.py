"""A socket to a node without a client in between: what was sent and what came back, byte for byte."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self

from tests.processes import NodeProcess

Word = bytes | str | int
PATIENCE_S = 30.0


def encode(*words: Word) -> bytes:
    """Return a request as an array of bulks."""
    raw = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in raw)


class RawLink:
    """One connection. `ask` gives the bytes of exactly one reply; `reply` waits for one that nobody asked for now."""

    def __init__(self, node: NodeProcess) -> None:
        self.socket = socket.create_connection((node.host, node.port), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(self, *words: Word) -> None:
        """Send a request, and don't wait for its reply."""
        self.send(encode(*words))

    def ask(self, *words: Word) -> bytes:
        self.post(*words)
        return self.reply()

    def reply(self) -> bytes:
        """Read one reply with all that is in it."""
        head = self._file.readline()
        assert head.endswith(b"\r\n"), f"the connection ended after {head!r}"
        if head[:1] not in b"$*" or head[1:2] == b"-":
            return head
        size = int(head[1:])
        if head[:1] == b"$":
            return head + self._file.read(size + 2)
        return head + b"".join(self.reply() for _ in range(size))

    def read(self, size: int) -> bytes:
        """Read `size` bytes of replies."""
        return self._file.read(size)

    def rest(self) -> bytes:
        """Read until the node closes the connection."""
        return self._file.read()
