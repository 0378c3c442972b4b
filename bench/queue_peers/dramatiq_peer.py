"""Dramatiq on Redis.

It has no call for many jobs: each is sent by itself. A process of its worker has eight threads, and takes two jobs
for each at a time; a variable of the environment makes that more, which helps where jobs are short.
"""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from bench.queue_peers.peer import Peer, Worker, keeps_results, mark_done, mark_latency, redis_url

broker = RedisBroker(url=redis_url())
if keeps_results():
    broker.add_middleware(Results(backend=RedisBackend(url=redis_url())))
dramatiq.set_broker(broker)
KEPT = {"store_results": True} if keeps_results() else {}


@dramatiq.actor(max_retries=0, **KEPT)
def done() -> int | None:
    mark_done()
    return 1 if keeps_results() else None


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
