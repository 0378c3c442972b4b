"""The calls of our queues, measured as `bench.queue_peers` measures those of Keuss: same fields, same calls in flight.

    .venv/bin/python -m bench.queue_rates redis+oq                  one line of JSON
    .venv/bin/python -m bench.queue_rates postgresql --jobs 5000

`push_per_s`, `pop_per_s` and `reserve_ok_per_s` are single calls with 50 under way, on uvloop as the worker runs them;
signals and statistics are the store's own, which other processes see. Those with `many` in their name are calls of 100
jobs, one after the other. Redis and the broker keep nothing on the disk, PostgreSQL and SQLite have their defaults.
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
from bench.queue_worker import store_url
from bench.servers import NotRunError, stop_on_sigterm

STORES = ("redis+list", "redis+oq", "postgresql", "disque", "sqlite", "memory")
IN_FLIGHT = 50
MANY = 100
PAYLOAD = {"n": 1}  # as Keuss is given it
WAIT_S = 10.0

Call = Callable[[], Awaitable[object]]


async def rate(count: int, call: Call, jobs: int = 1) -> float:
    """How many jobs a second, of calls with so many each, 50 of them under way at any time."""
    left = count // jobs

    async def some() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await call()

    began_s = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))
    return count / (time.perf_counter() - began_s)


async def rate_in_turn(count: int, call: Call) -> float:
    """How many jobs a second, of calls of 100 one after the other."""
    began_s = time.perf_counter()
    for _ in range(count // MANY):
        await call()
    return count / (time.perf_counter() - began_s)


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

        async def reserve_and_ack_many() -> None:
            taken = await queue.reserve_many(MANY, timeout=WAIT_S)
            if len(taken) != MANY or not all(await queue.ack_many(taken)):
                raise NotRunError("jobs were missing")

        async def push() -> object:
            return await queue.push(PAYLOAD)

        async def push_many() -> object:
            return await queue.push_many([PAYLOAD] * MANY)

        async def pop() -> None:
            if await queue.pop(timeout=WAIT_S) is None:
                raise NotRunError("a job was missing")

        figures = {"push_per_s": await rate(jobs, push), "pop_per_s": await rate(jobs, pop)}
        figures["push_many_per_s"] = await rate(jobs, push_many, MANY)
        if can_reserve:
            figures["reserve_ok_per_s"] = await rate(jobs, reserve_and_ack)
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
        return uvloop.run(measure(url, jobs))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Measures the calls of our queues; prints one line of JSON.")
    parser.add_argument("store", choices=STORES)
    parser.add_argument("--jobs", type=int, default=20_000)
    chosen = parser.parse_args()
    stop_on_sigterm()
    try:
        print(json.dumps({"jobs": chosen.jobs, **run(chosen.store, chosen.jobs)}))
    except NotRunError as error:
        print(f"{chosen.store}: not run: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
