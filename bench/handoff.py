"""How long a producer and a consumer wait in a cluster at rest, one job at a time.

The consumer is blocked in GETJOB on one node while the producer adds on another: the time runs from the ADDJOB that
leaves to the job that arrives. Pauses between jobs are random, so that they keep no step with the nodes' timers.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from bench.commands import BODY_64, JOB_ID
from bench.servers import HOST, NotRunError, Server, encode

PAUSE_S_MIN, PAUSE_S_MAX = 0.02, 0.06
WARM_UP = 5
REPLY_TIMEOUT_S = 30.0
LINES_OF_A_JOB = 8  # of GETJOB's reply: *1, *3, then length and text of queue, id and body


class Caller:
    """One connection that asks and waits, with replies known by their number of lines."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection((HOST, server.port), REPLY_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """End the connection."""
        self.socket.close()

    def send(self, request: bytes) -> None:
        """Send a request."""
        self.socket.sendall(request)

    def reply(self, lines: int) -> bytes:
        """Wait for `lines` lines; an error or silence ends the run."""
        data = b""
        while data.count(b"\n") < lines:
            try:
                more = self.socket.recv(1 << 14)
            except TimeoutError as error:
                raise NotRunError(f"no reply for {REPLY_TIMEOUT_S:.0f} s") from error
            data += more
            if not more or data.startswith(b"-"):
                raise NotRunError(f"the server answered {data[:80]!r}")
        return data


@contextmanager
def _pair(producer: Server, consumer: Server) -> Iterator[tuple[Caller, Caller]]:
    with closing(Caller(producer)) as adding, closing(Caller(consumer)) as getting:
        yield adding, getting


def _add(queue: str, replicate: int) -> bytes:
    return encode("ADDJOB", queue, BODY_64, "0", "REPLICATE", str(replicate))


def _get(queue: str) -> bytes:
    return encode("GETJOB", "FROM", queue)


def _acknowledge(getting: Caller, job: bytes) -> None:
    found = JOB_ID.search(job)
    if found is None:
        raise NotRunError(f"GETJOB was answered by {job[:80]!r}")
    getting.send(encode("ACKJOB", found[0]))
    getting.reply(1)


def to_waiting_consumer(producer: Server, consumer: Server, samples: int, replicate: int, fresh: bool) -> list[float]:
    """Milliseconds from an add to a consumer that waits for it elsewhere; `fresh`: each on a queue never seen."""
    found = []
    with _pair(producer, consumer) as (adding, getting):
        for number in range(samples + WARM_UP):
            queue = f"handoff-{replicate}-{number}" if fresh else f"handoff-{replicate}"
            getting.send(_get(queue))
            time.sleep(random.uniform(PAUSE_S_MIN, PAUSE_S_MAX))
            begin_s = time.perf_counter()
            adding.send(_add(queue, replicate))
            job = getting.reply(LINES_OF_A_JOB)
            found.append((time.perf_counter() - begin_s) * 1000)
            adding.reply(1)
            _acknowledge(getting, job)
    return found[WARM_UP:]


def to_late_consumer(producer: Server, consumer: Server, samples: int, replicate: int) -> list[float]:
    """Milliseconds from a GETJOB to a job that waits on another node, each on a queue never seen."""
    found = []
    with _pair(producer, consumer) as (adding, getting):
        for number in range(samples):
            queue = f"late-{replicate}-{number}"
            adding.send(_add(queue, replicate))
            adding.reply(1)
            time.sleep(random.uniform(PAUSE_S_MIN, PAUSE_S_MAX))
            begin_s = time.perf_counter()
            getting.send(_get(queue))
            job = getting.reply(LINES_OF_A_JOB)
            found.append((time.perf_counter() - begin_s) * 1000)
            _acknowledge(getting, job)
    return found


def one_by_one(server: Server, request: bytes, samples: int) -> list[float]:
    """Milliseconds of a request with a reply of one line, on one connection, each after the reply to the last."""
    found = []
    with closing(Caller(server)) as caller:
        for _ in range(samples):
            begin_s = time.perf_counter()
            caller.send(request)
            caller.reply(1)
            found.append((time.perf_counter() - begin_s) * 1000)
    return found
