"""The health check and clients that are no probes."""

from __future__ import annotations

import asyncio

import pytest

from penstock.worker import health
from tests.processes import HOST, free_port

REQUEST = b"GET / HTTP/1.1\r\n\r\n"


async def answer_to(port: int, data: bytes) -> bytes:
    """Return what is answered before the connection is closed."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(data)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_clients_that_ask_nothing_make_room_for_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "REQUEST_S_MAX", 1000.0)
    asyncio.run(_ask_beside_silent_ones(free_port()))


async def _ask_beside_silent_ones(port: int) -> None:
    async with asyncio.timeout(60), health.reporting((HOST, port), lambda: {"healthy": True}):
        silent = [await asyncio.open_connection(HOST, port) for _ in range(health.CONNECTIONS_MAX + 5)]
        assert (await answer_to(port, REQUEST)).startswith(b"HTTP/1.1 200 OK\r\n")
        for reader, _ in silent[:6]:  # the oldest: five for those that came later, and one for the probe
            assert await reader.read() == b""
        assert not silent[6][0].at_eof()
        for _, writer in silent:
            writer.close()


def test_a_request_that_never_ends_is_closed() -> None:
    asyncio.run(_ask_beside_a_long_request(free_port()))


async def _ask_beside_a_long_request(port: int) -> None:
    async with asyncio.timeout(60), health.reporting((HOST, port), lambda: {"healthy": True}):
        assert await answer_to(port, b"GET / HTTP/1.1\r\nX: " + b"x" * 1_000_000) == b""
        assert (await answer_to(port, REQUEST)).startswith(b"HTTP/1.1 200 OK\r\n")
