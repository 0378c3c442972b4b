"""A broker of a few commands that loses nothing: what it hands out was sent, and who hung up gets nothing more."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Self

import hiredis

from tests.unit.client.nodes import NO_JOB, array, bulk

NODE_ID = "a" * 40


class TinyBroker:
    """One queue, and clients that wait for it, in the event loop of the test."""

    def __init__(self) -> None:
        self.queue: deque[str] = deque()
        self.handed = 0
        self.given_back = 0
        self._waiters: deque[tuple[asyncio.StreamWriter, bool]] = deque()
        self._numbers = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = hiredis.Reader()
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                decoder.feed(data)
                while (request := decoder.gets()) is not False:
                    words = [word.decode() for word in request]
                    getattr(self, f"_{words[0].lower()}")(writer, words)
        self._waiters = deque(waiter for waiter in self._waiters if waiter[0] is not writer)
        writer.close()

    def _hello(self, writer: asyncio.StreamWriter, words: list[str]) -> None:
        port = self.address.partition(":")[2]
        writer.write(array(b":1\r\n", b"$40\r\n%b\r\n" % NODE_ID.encode(), bulk(NODE_ID, "", port, "1")))

    def _addjob(self, writer: asyncio.StreamWriter, words: list[str]) -> None:
        self._numbers += 1
        job_id = f"D-{NODE_ID[:8]}-{self._numbers:024d}-05a1"
        writer.write(b"+%b\r\n" % job_id.encode())
        self._enqueue(job_id)

    def _enqueue(self, job_id: str) -> None:
        self.queue.append(job_id)
        if self._waiters:
            writer, leased = self._waiters.popleft()
            self._deliver(writer, leased)

    def _deliver(self, writer: asyncio.StreamWriter, leased: bool) -> None:
        self.handed += 1
        writer.write(array(bulk("q", self.queue.popleft(), "body", *(["17"] if leased else []))))

    def _getjob(self, writer: asyncio.StreamWriter, words: list[str]) -> None:
        leased = "LEASE" in words
        if self.queue:
            self._deliver(writer, leased)
        elif "NOHANG" in words:
            writer.write(NO_JOB)
        else:
            self._waiters.append((writer, leased))

    def _nack(self, writer: asyncio.StreamWriter, words: list[str]) -> None:
        self.given_back += 1
        writer.write(b":1\r\n")
        self._enqueue(words[1])

    def _release(self, writer: asyncio.StreamWriter, words: list[str]) -> None:
        writer.write(b"-ERR unknown command 'RELEASE'\r\n")

    def _nacklease(self, writer: asyncio.StreamWriter, words: list[str]) -> None:
        self.given_back += 1
        writer.write(b"*1\r\n+OK\r\n")
        self._enqueue(words[2])
