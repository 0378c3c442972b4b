"""How a process of a worker talks with its supervisor: a socket that both inherit, with lines of JSON.

A child says `{"ready": true}` once it has begun, and `{"counts": {...}}` every second and at its end. The supervisor
says a digit to stop it, one of the levels of `Worker.stop_at`: signals that follow one another closely may arrive as
one. When the supervisor is gone, however it went, the socket ends: the child stops gracefully then.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from penstock.worker.reporting import Summary

CHANNEL_VARIABLE = "PENSTOCK_WORKER_CHANNEL"
NUMBER_VARIABLE = "PENSTOCK_WORKER_NUMBER"
REPORT_S = 1.0


class Post(NamedTuple):
    """A process's place among those of its supervisor."""

    number: int
    file: int


def own_post() -> Post | None:
    """This process's place; None for a worker without a supervisor. Processes that it starts itself have none."""
    file, number = os.environ.pop(CHANNEL_VARIABLE, None), os.environ.pop(NUMBER_VARIABLE, None)
    return None if file is None or number is None else Post(int(number), int(file))


class Channel:
    """The child's end."""

    def __init__(self, post: Post, summary: Callable[[], Summary], stop_at: Callable[[int], None]) -> None:
        self._summary = summary
        self._stop_at = stop_at
        self._socket = socket.socket(fileno=post.file)
        self._socket.set_inheritable(False)
        self._socket.setblocking(False)

    async def run(self) -> None:
        """Say that the worker has begun, and then what it has done, until cancelled."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._heard)
        try:
            await self._send({"ready": True})
            while True:
                await asyncio.sleep(REPORT_S)
                await self.report()
        finally:
            loop.remove_reader(self._socket)

    async def report(self) -> None:
        """Say what has been done."""
        await self._send({"counts": self._summary().counts()})

    async def _send(self, message: dict[str, object]) -> None:
        with suppress(OSError):  # a supervisor that is gone is noticed by the reader
            await asyncio.get_running_loop().sock_sendall(self._socket, json.dumps(message).encode() + b"\n")

    def _heard(self) -> None:
        try:
            said = self._socket.recv(64)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:  # the supervisor is gone
            asyncio.get_running_loop().remove_reader(self._socket)
        self._stop_at(max((int(digit) for digit in said.decode("ascii")), default=1))
