"""The calls of our queues, measured as `bench.queue_peers` measures those of Keuss: same fields, same calls in flight.

    .venv/bin/python -m bench.queue_rates redis+oq                  one line of JSON
    .venv/bin/python -m bench.queue_rates postgresql --jobs 5000
    .venv/bin/python -m bench.queue_rates --url mongodb://localhost/empty    a server that runs already

`push_per_s`, `pop_per_s` and `reserve_ok_per_s` are single calls with 50 under way, on uvloop as the worker runs them;
signals and statistics are the store's own, which other processes see. Those with `many` in their name are calls of 100
jobs, 50 calls under way or, with `in_turn`, one after the other. `push_in_turn_per_s` is one push after the other, each
awaited; `push_blocking_in_turn_per_s` is the same in the blocking form. Redis and the broker keep nothing on the disk,
PostgreSQL and SQLite have their defaults. `cpu_us_NAME` is the processor time of this process for each job of a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

import penstock
import penstock.blocking
from bench.queue_worker import store_url
from bench.servers import NotRunError, stop_on_sigterm

STORES = ("redis+list", "redis+oq", "postgresql", "disque", "sqlite", "memory")
IN_FLIGHT = 50
MANY = 100
PAYLOAD = {"n": 1}  # as Keuss is given it
WAIT_S = 10.0

Call = Callable[[], Awaitable[object]]


async def rate(count: int, call: Call, jobs: int = 1) -> float:
    """Return the jobs a second of calls with `jobs` jobs each, 50 calls under way at any time.

    A call that returns a number had that many jobs: the rest is left for others.
    """
    left = count

    async def some() -> None:
        nonlocal left
        while left > 0:
            left -= jobs
            done = await call()
            if isinstance(done, int):
                left += jobs - done

    began_s = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))
    return count / (time.perf_counter() - began_s)


async def rate_in_turn(count: int, call: Call, jobs: int = MANY) -> float:
    """Return how many jobs a second, of calls of `jobs` one after the other."""
    began_s = time.perf_counter()
    left = count
    while left > 0:
        done = await call()
        left -= done if isinstance(done, int) else jobs
    return count / (time.perf_counter() - began_s)


def blocking_rate_in_turn(url: str, count: int) -> float:
    """Return how many single pushes a second, one after the other, in the blocking form; the jobs are removed."""
    with penstock.blocking.connect(url) as store:
        queue = store.queue("blocking-rates")
        queue.push(PAYLOAD)  # connects, and makes the queue known
        began_s = time.perf_counter()
        for _ in range(count):
            queue.push(PAYLOAD)
        ended_s = time.perf_counter()
        queue.purge()
    return count / (ended_s - began_s)


async def measure(url: str, jobs: int) -> dict[str, float]:
    """All figures of a store."""
    async with penstock.connect(url) as store:
        queue = store.queue("rates")
        can_reserve = penstock.Capability.RESERVE in store.capabilities

        async def reserve_and_ack() -> None:
            job = await queue.reserve(timeout=WAIT_S)
            if job is None:
                raise NotRunError("a job was missing")
            await job.ack()  # raises if it is no longer ours

        async def reserve_and_ack_many() -> int:
            taken = await queue.reserve_many(MANY, timeout=WAIT_S)
            if not taken or not all(await queue.ack_many(taken)):
                raise NotRunError("jobs were missing")
            return len(taken)

        async def push() -> object:
            return await queue.push(PAYLOAD)

        async def push_many() -> object:
            return await queue.push_many([PAYLOAD] * MANY)

        async def pop() -> None:
            if await queue.pop(timeout=WAIT_S) is None:
                raise NotRunError("a job was missing")

        figures: dict[str, float] = {}
        for name, call in {"push": push, "pop": pop}.items():
            began_s = time.process_time()
            figures[f"{name}_per_s"] = await rate(jobs, call)
            figures[f"cpu_us_{name}"] = (time.process_time() - began_s) / jobs * 1e6
        figures["push_in_turn_per_s"] = await rate_in_turn(jobs // 4, push, 1)
        await rate(jobs // 4, pop)
        figures["push_many_per_s"] = await rate(jobs, push_many, MANY)
        if can_reserve:
            began_s = time.process_time()
            figures["reserve_ok_per_s"] = await rate(jobs, reserve_and_ack)
            figures["cpu_us_reserve_ok"] = (time.process_time() - began_s) / jobs * 1e6
            figures["push_many_in_turn_per_s"] = await rate_in_turn(jobs, push_many)
            figures["reserve_ok_many_per_s"] = await rate(jobs, reserve_and_ack_many, MANY)
            await rate(jobs, push_many, MANY)
            figures["reserve_ok_many_in_turn_per_s"] = await rate_in_turn(jobs, reserve_and_ack_many)
        else:
            await rate(jobs, pop)
            figures["push_many_in_turn_per_s"] = await rate_in_turn(jobs, push_many)
            await rate(jobs, pop)
        if await queue.size() != 0:
            raise NotRunError("jobs are left")
        return figures


def run(kind: str, jobs: int) -> dict[str, float]:
    """The figures of a store of its own."""
    with tempfile.TemporaryDirectory(prefix="queue-rates-") as directory, store_url(kind, Path(directory)) as url:
        return run_at(url, jobs)


def run_at(url: str, jobs: int) -> dict[str, float]:
    """The figures of a store that is there."""
    figures = uvloop.run(measure(url, jobs))
    figures["push_blocking_in_turn_per_s"] = blocking_rate_in_turn(url, jobs // 4)
    return figures


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Measures the calls of our queues; prints one line of JSON.")
    parser.add_argument("store", nargs="?", choices=STORES)
    parser.add_argument("--url", help="in place of a store that is started here: one that is empty")
    parser.add_argument("--jobs", type=int, default=20_000)
    chosen = parser.parse_args()
    if (chosen.store is None) == (chosen.url is None):
        parser.error("either a store or --url must be given")
    stop_on_sigterm()
    try:
        figures = run(chosen.store, chosen.jobs) if chosen.url is None else run_at(chosen.url, chosen.jobs)
        print(json.dumps({"jobs": chosen.jobs, **figures}))
    except NotRunError as error:
        print(f"{chosen.store or chosen.url}: not run: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
