"""Dramatiq on Redis.

It has no call for many jobs: each is sent by itself. A process of its worker has eight threads, and takes two jobs
for each at a time; a variable of the environment makes that more, which helps where jobs are short.
"""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.queue_peers.peer import Peer, Worker, mark_done, mark_latency, redis_url

dramatiq.set_broker(RedisBroker(url=redis_url()))


@dramatiq.actor(max_retries=0)
def done() -> None:
    mark_done()


@dramatiq.actor(max_retries=0)
def timed(sent_ns: int) -> None:
    mark_latency(sent_ns)


def enqueue(count: int) -> None:
    for _ in range(count):
        done.send()


WORDS = ["dramatiq", "bench.queue_peers.dramatiq_peer", "--path", ".", "--processes", "1", "--threads", "8"]

PEER = Peer(
    "dramatiq",
    enqueue,
    timed.send,
    {"default": Worker(WORDS), "prefetch 64": Worker(WORDS, {"dramatiq_queue_prefetch": "64"})},
)
