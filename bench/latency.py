"""How long a PING waits: the time that a server's loop is away, seen from outside.

Pings go out on a schedule of one a millisecond. A ping that could not be sent in time because the one before
was still unanswered counts from the time it was due: one stall of 50 ms is then 50 late pings, as it would be
for 50 clients, and not one. Our own oversleeping is not counted.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import subprocess
import time
from collections.abc import Callable, Iterator

from bench.commands import COMMANDS
from bench.load import redis_benchmark_command
from bench.servers import HOST, NotRunError, Server, encode

PERIOD_S = 0.001
PONG = b"+PONG\r\n"
REPLY_TIMEOUT_S = 60.0
REWRITE_CHECK_S = 0.1
REWRITE_S_MAX = 120.0
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


def pings(server: Server, done: Callable[[], bool]) -> list[float]:
    """Latencies in milliseconds, until `done` says so; it is asked every 100 ms, outside the schedule."""
    found: list[float] = []
    request = encode("PING")
    with socket.create_connection((HOST, server.port), REPLY_TIMEOUT_S) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        due_s = time.perf_counter()
        check_s = due_s + REWRITE_CHECK_S
        while True:
            now_s = time.perf_counter()
            if now_s >= check_s:
                if done():
                    return found
                due_s = now_s = time.perf_counter()
                check_s = now_s + REWRITE_CHECK_S
            if due_s > now_s:
                time.sleep(due_s - now_s)
                due_s = time.perf_counter()
            link.sendall(request)
            if link.recv(100) != PONG:
                raise NotRunError("PING was not answered by PONG")
            found.append((time.perf_counter() - due_s) * 1000)
            due_s += PERIOD_S


def settle(server: Server) -> None:
    """Waits until a rewrite that the preload set off is over, and a moment for the last fsync."""
    limit_s = time.perf_counter() + REWRITE_S_MAX
    while not _rewritten(server, limit_s):
        time.sleep(REWRITE_CHECK_S)
    time.sleep(1.5)


def idle_pings(server: Server, duration_s: float) -> list[float]:
    """Latencies while nothing else is asked of the server."""
    end_s = time.perf_counter() + duration_s
    return pings(server, lambda: time.perf_counter() >= end_s)


def loaded_pings(server: Server, command: str, duration_s: float) -> list[float]:
    """Latencies beside 50 connections that send a command of the table as fast as they can."""
    with _background_load(server, command):
        return idle_pings(server, duration_s)


def rewrite_pings(server: Server, duration_s: float) -> list[float]:
    """Latencies while the journal is rewritten, as many times over as fill the duration."""
    found: list[float] = []
    end_s = time.perf_counter() + duration_s
    while time.perf_counter() < end_s:
        answer = server.command("BGREWRITEAOF")
        if not answer.startswith(b"+"):
            raise NotRunError(f"BGREWRITEAOF answered {answer.decode()}")
        limit_s = time.perf_counter() + REWRITE_S_MAX
        found += pings(server, functools.partial(_rewritten, server, limit_s))
    return found


def _rewritten(server: Server, limit_s: float) -> bool:
    if time.perf_counter() > limit_s:
        raise NotRunError(f"a rewrite took over {REWRITE_S_MAX:.0f} s")
    return server.info("aof_rewrite_in_progress") != "1"


@contextlib.contextmanager
def _background_load(server: Server, command: str) -> Iterator[None]:
    words = COMMANDS[command].words
    assert words is not None, "only what redis-benchmark can send"
    line = redis_benchmark_command(server, words, 100_000_000, 1)
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
        if process.poll() is not None:
            raise NotRunError(f"redis-benchmark {command} ended early")
    finally:
        process.kill()
        process.wait()


def quantile(latencies: list[float], share: float) -> float:
    """The latency that this share of the pings did not exceed."""
    ordered = sorted(latencies)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
