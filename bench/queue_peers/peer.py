"""What the modules of Python's libraries have in common: a description of the peer, and how its handlers report.

A worker is another process, so settings travel in the environment. Handlers report by appending to files, which costs
a microsecond and works from threads and forked children alike: a byte for a no-op, eight for a latency.
"""

from __future__ import annotations

import functools
import os
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PORT_VARIABLE = "QUEUE_PEERS_REDIS_PORT"
POSTGRES_VARIABLE = "QUEUE_PEERS_POSTGRES_URL"
RESULTS_VARIABLE = "QUEUE_PEERS_RESULTS"
DONE_VARIABLE = "QUEUE_PEERS_DONE"  # the file that no-ops append to; latencies go to its neighbour
LATENCY = struct.Struct("<q")  # nanoseconds


def redis_port() -> int:
    """Where the Redis of this measurement listens."""
    return int(os.environ[PORT_VARIABLE])


def redis_url() -> str:
    return f"redis://127.0.0.1:{redis_port()}/0"


def postgres_url() -> str:
    """Where the PostgreSQL of this measurement is."""
    return os.environ[POSTGRES_VARIABLE]


def keeps_results() -> bool:
    """Whether no-ops return a number that is kept."""
    return bool(os.environ.get(RESULTS_VARIABLE))


@dataclass(frozen=True)
class Worker:
    """A way to run a worker: the words of its command, a program of this environment first, and variables."""

    words: list[str]
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Peer:
    """A library: how it is told to enqueue, and the ways to run its worker by the name of the settings."""

    package: str
    enqueue: Callable[[int], object]  # that many no-ops, the fastest way
    send: Callable[[int], object]  # one job that carries the time it was sent at
    workers: Mapping[str, Worker]  # what its documentation starts with comes first


def latency_file(done: Path) -> Path:
    return done.with_suffix(".latencies")


@functools.cache
def _files() -> tuple[int, int]:
    done = Path(os.environ[DONE_VARIABLE])
    how = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.open(done, how, 0o600), os.open(latency_file(done), how, 0o600)


def mark_done() -> None:
    """The body of a no-op."""
    os.write(_files()[0], b".")


def mark_latency(sent_ns: int) -> None:
    """The body of a job whose way is timed; the clock is one for all processes of a machine."""
    os.write(_files()[1], LATENCY.pack(time.monotonic_ns() - sent_ns))
