"""How those who supervise a worker see that it lives: by HTTP, and by systemd's notifications.

HTTP, for Kubernetes and load balancers: with `--health 0.0.0.0:8080` every request is answered by 200, or by 503 if a
process is stuck, with a JSON object that has the counts of the worker. A process whose event loop is blocked answers
nothing, which a probe takes for a failure after its own timeout.

systemd: where it has set NOTIFY_SOCKET (`Type=notify`) it is told when the worker has begun and when it stops; with
`WatchdogSec=` it is told regularly that the worker lives, so that it restarts one that is stuck.

At most CONNECTIONS_MAX are open at once, each for REQUEST_S_MAX: whoever reaches the port can't use up the descriptors
of the worker, and a probe gets in: one more closes the oldest.

With several processes the supervisor answers for all of them: it hears from each every second, and one that has been
silent for SILENT_S_MAX is stuck. A store that is away is not a reason: to restart a worker brings no store back.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from penstock.errors import CallerError, OperatorError

SILENT_S_MAX = 30.0
REQUEST_S_MAX = 5.0
CONNECTIONS_MAX = 64  # probes come one by one
REQUEST_BYTES_MAX = 16 * 1024
BEGUN_LOOK_S = 0.1
LOCALHOST = "127.0.0.1"

# What is answered: `healthy`, and facts for people.
Report = Callable[[], Mapping[str, Any]]


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `8080` or `0.0.0.0:8080`."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise CallerError(f"--health must be a port or HOST:PORT, such as 8080 or 0.0.0.0:8080, got {text!r}")
    return host.strip("[]") or LOCALHOST, int(port)


@asynccontextmanager
async def reporting(address: tuple[str, int] | None, report: Report) -> AsyncIterator[None]:
    """Answer by HTTP at an address, and notify systemd if it has started this process, while a block runs."""
    loop = asyncio.get_running_loop()
    server = None
    if address is not None:
        try:
            server = await asyncio.start_server(_Answering(report).answer, *address, limit=REQUEST_BYTES_MAX)
        except OSError as problem:
            raise OperatorError(
                f"the health check can't listen on {address[0]}:{address[1]}: {problem.strerror}"
            ) from problem
    notifying = loop.create_task(_notify(report)) if os.environ.get("NOTIFY_SOCKET") else None
    try:
        yield
    finally:
        if notifying is not None:
            notifying.cancel()
            _send("STOPPING=1")
        if server is not None:
            server.close()


class _Answering:
    """Answers the requests of probes."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._open: dict[asyncio.WriteTransport, None] = {}  # the oldest first

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close the connection."""
        if len(self._open) >= CONNECTIONS_MAX:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.abort()
        self._open[writer.transport] = None
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(self._reply())
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()  # `close` would wait for a client that doesn't read
        finally:
            self._open.pop(writer.transport, None)

    def _reply(self) -> bytes:
        told = self._report()
        body = json.dumps(told).encode() + b"\n"
        status = "200 OK" if told["healthy"] else "503 Service Unavailable"
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"{head}Connection: close\r\n\r\n".encode() + body


async def _notify(report: Report) -> None:
    """Notify systemd that the worker has begun, and then that it lives, twice in the time that it allows."""
    pause = _watchdog_pause()
    has_begun = False
    while not has_begun or pause is not None:
        if report()["healthy"]:
            _send("WATCHDOG=1" if has_begun else "READY=1")
            has_begun = True
        await asyncio.sleep(BEGUN_LOOK_S if pause is None else pause)


def _watchdog_pause() -> float | None:
    allowed, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    is_for_us = allowed.isdecimal() and pid in ("", str(os.getpid()))
    return int(allowed) / 1e6 / 2 if is_for_us else None


def _send(text: str) -> None:
    path = os.environ["NOTIFY_SOCKET"]
    address = f"\0{path[1:]}" if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.setblocking(False)
        to.sendto(text.encode(), address)
