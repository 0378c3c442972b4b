"""taskiq on Redis, by its package taskiq-redis.

Its page on brokers recommends the stream broker, which acknowledges, over the list. It has no call for many jobs; `kiq`
is awaited for many at a time. Its worker acknowledges when the task has been saved, by default; one process, as of the
others.
"""

from __future__ import annotations

import asyncio

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from bench.queue_peers.peer import Peer, Worker, keeps_results, mark_done, mark_latency, redis_url

IN_FLIGHT = 50

broker = RedisStreamBroker(url=redis_url())
if keeps_results():
    broker = broker.with_result_backend(RedisAsyncResultBackend(redis_url(), result_ex_time=3600))

_loop = asyncio.new_event_loop()


@broker.task(task_name="done")
async def done() -> int | None:
    mark_done()
    return 1 if keeps_results() else None


@broker.task(task_name="timed")
async def timed(sent_ns: int) -> None:
    mark_latency(sent_ns)


async def _enqueue(count: int) -> None:
    await _open()
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            await done.kiq()

    await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))


_opened: list[bool] = []


async def _open() -> None:
    if not _opened:
        await broker.startup()
        _opened.append(True)


async def _send(sent_ns: int) -> None:
    await _open()
    await timed.kiq(sent_ns)


def enqueue(count: int) -> None:
    _loop.run_until_complete(_enqueue(count))


def send(sent_ns: int) -> None:
    _loop.run_until_complete(_send(sent_ns))


WORDS = ["taskiq", "worker", "bench.queue_peers.taskiq_peer:broker", "--workers", "1", "--log-level", "WARNING"]

PEER = Peer("taskiq", enqueue, send, {"1 process": Worker(WORDS)})
