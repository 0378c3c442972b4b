"""A proxy that cuts a link at the worst moment: the server has got what it was sent, and its answer gets lost."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from tests.processes import NodeProcess
from tests.servers import RedisServer


class CuttingProxy:
    """Passes everything on, until it is told to cut the next exchange that holds a word."""

    def __init__(self, server: RedisServer | NodeProcess, replace: tuple[bytes, bytes] = (b"", b"")) -> None:
        self._server = server
        self._replace = replace  # a word that clients say, and one of the same length that the server is told instead
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._word: bytes | None = None
        self._is_swallowing = False
        self.cut = 0
        self._sockets: list[socket.socket] = [self._listener]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._sockets:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()

    def cut_next(self, word: bytes, *, swallow: bool = False) -> None:
        """Cut the next exchange in which a client says this word; `swallow`: the server never gets it."""
        self._is_swallowing = swallow
        self._word = word

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((self._server.host, self._server.port))
                self._sockets += [client, server]
                threading.Thread(target=self._pass, args=(client, server), daemon=True).start()

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        answers = threading.Thread(target=self._pass_back, args=(server, client), daemon=True)
        answers.start()
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                if self._word is not None and self._word in data:
                    self._word = None
                    self._cut(client, server, data)
                    return
                server.sendall(data.replace(*self._replace) if self._replace[0] else data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _cut(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        client.shutdown(socket.SHUT_RDWR)
        if not self._is_swallowing:
            with contextlib.suppress(OSError):
                server.sendall(data)
                server.recv(1)  # it has been done when there is an answer
        server.close()
        self.cut += 1

    @staticmethod
    def _pass_back(server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)
