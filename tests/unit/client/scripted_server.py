"""A server whose answers a test writes, on a socket of its own."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import hiredis

Answer = Callable[[list[bytes]], bytes | None]


class Scripted:
    """A server that answers each request by a function; None closes the connection, b"" says nothing.

    `farewell` is sent when the other end says that it sends no more.
    """

    def __init__(self, answer: Answer, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[list[bytes]] = []
        self.connections = 0
        self.ended = 0
        self.farewell = b""
        self.answer, self._listener, self._tls = answer, listener, tls
        self._links: list[socket.socket] = []
        self._begin()

    def _begin(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            if link.family == socket.AF_INET:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        reader = hiredis.Reader()
        try:
            if self._tls is not None:
                link = self._tls.wrap_socket(link, server_side=True)
            self._links.append(link)
            while data := link.recv(65536):
                reader.feed(data)
                while (request := reader.gets()) is not False:
                    self.requests.append(request)
                    reply = self.answer(request)
                    if reply is None:
                        return
                    # Blocks while the client takes nothing, and reads nothing meanwhile.
                    link.sendall(reply)
            if self.farewell:
                link.sendall(self.farewell)
        except OSError:
            return
        finally:
            link.close()
            self.ended += 1

    def send(self, data: bytes, at: int = 0) -> None:
        """Say something now, on the first connection or another."""
        self._links[at].sendall(data)

    def hang_up(self) -> None:
        links, self._links = self._links, []
        for link in links:
            with suppress(OSError):  # it is closed already
                link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@contextmanager
def server(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    scripted = Scripted(answer, socket.create_server(("127.0.0.1", 0)), tls)
    try:
        yield scripted
    finally:
        scripted.close()


def always(reply: bytes) -> Answer:
    return lambda _request: reply
