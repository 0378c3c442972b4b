"""Huey on Redis.

It has no call for many jobs: each call of a task enqueues one. Threads are what it advises when in doubt, and one is
its default (four are no faster with no-ops). Results that nobody wants are off, and so is the scheduler of periodic
tasks, as there are none.
"""

from __future__ import annotations

from huey import RedisHuey

from bench.queue_peers.peer import Peer, Worker, keeps_results, mark_done, mark_latency, redis_port

huey = RedisHuey("bench", port=redis_port(), results=keeps_results())


@huey.task()
def done() -> int | None:
    mark_done()
    return 1 if keeps_results() else None


@huey.task()
def timed(sent_ns: int) -> None:
    mark_latency(sent_ns)


def enqueue(count: int) -> None:
    for _ in range(count):
        done()


def _worker(kind: str) -> Worker:
    what = ["--worker-type", kind, "--workers", "1"]
    return Worker(["huey_consumer", "bench.queue_peers.huey_peer.huey", "--quiet", "--no-periodic", *what])


PEER = Peer(
    "huey",
    enqueue,
    timed,
    {"1 thread": _worker("thread"), "1 process": _worker("process")},
)
