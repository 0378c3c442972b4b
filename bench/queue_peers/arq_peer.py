"""arq, asyncio's queue on Redis.

It has no call for many jobs; `enqueue_job` is awaited for many at a time. Its worker looks into Redis every
`poll_delay`, half a second unless told otherwise, and takes 100 jobs then, or five times `max_jobs` where that is more:
as it comes, this limits its rate and its latency. "eager" has both turned up, and is what its rate is judged by.
"""

from __future__ import annotations

import asyncio
from typing import Any

from arq import create_pool
from arq.connections import ArqRedis, RedisSettings

from bench.queue_peers.peer import Peer, Worker, keeps_results, mark_done, mark_latency, redis_port

IN_FLIGHT = 50

_loop = asyncio.new_event_loop()
_pools: list[ArqRedis] = []


async def done(_: dict[str, Any]) -> int | None:
    mark_done()
    return 1 if keeps_results() else None


async def timed(_: dict[str, Any], sent_ns: int) -> None:
    mark_latency(sent_ns)


class Default:
    """What arq's worker reads; it looks at this class alone, not at those above it."""

    functions = (done, timed)
    redis_settings = RedisSettings(port=redis_port())
    keep_result = 3600 if keeps_results() else 0
    log_results = False


class Eager:
    """The same, with more jobs at a time and shorter pauses."""

    functions = (done, timed)
    redis_settings = RedisSettings(port=redis_port())
    keep_result = 3600 if keeps_results() else 0
    log_results = False
    max_jobs = 50
    poll_delay = 0.001


async def _pool() -> ArqRedis:
    if not _pools:
        _pools.append(await create_pool(RedisSettings(port=redis_port())))
    return _pools[0]


async def _enqueue(count: int) -> None:
    pool = await _pool()
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            await pool.enqueue_job("done")

    await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))


async def _send(sent_ns: int) -> None:
    await (await _pool()).enqueue_job("timed", sent_ns)


def enqueue(count: int) -> None:
    _loop.run_until_complete(_enqueue(count))


def send(sent_ns: int) -> None:
    _loop.run_until_complete(_send(sent_ns))


def _worker(settings: str) -> Worker:
    return Worker(
        ["arq", f"bench.queue_peers.arq_peer.{settings}", "--custom-log-dict", "bench.queue_peers.arq_peer.QUIET"]
    )


QUIET = {"version": 1, "root": {"level": "WARNING"}}

PEER = Peer("arq", enqueue, send, {"default": _worker("Default"), "eager": _worker("Eager")})
