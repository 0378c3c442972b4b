"""kill -9 of the PostgreSQL server under load: it comes back, everybody goes on, and what it had taken is there."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import penstock
from penstock.errors import ConnectionLost, LeaseLost, OutcomeUnknown
from penstock.queues import blocking
from tests.processes import wait_until
from tests.servers import PostgresServer
from tests.stores.facade import Facade
from tests.stores.harness import PATIENCE

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]

KILLS = 2
LEASE = 1000.0


@dataclass
class Log:
    """What callers were told, and what workers were given. Payloads are numbers, each pushed once."""

    added: set[int] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    given: Counter[int] = field(default_factory=Counter)
    given_after_ack: list[int] = field(default_factory=list)
    is_over: bool = False


async def _produce(queue: Any, numbers: itertools.count[int], log: Log) -> None:
    while not log.is_over:
        await asyncio.sleep(0)  # the blocking form gives nobody else a turn
        batch = {next(numbers) for _ in range(5)}
        try:
            await queue.push_many(batch)
            log.added |= batch
        except OutcomeUnknown:
            log.unsure |= batch
        except ConnectionLost:
            log.refused |= batch
            await asyncio.sleep(0.05)


async def _work(queue: Any, log: Log) -> None:
    while not log.is_over:
        try:
            job = await queue.reserve(timeout=PATIENCE)
        except ConnectionLost:
            continue
        if job is not None:
            await _do(job, log)


async def _do(job: Any, log: Log) -> None:
    if job.payload in log.acked:
        log.given_after_ack.append(job.payload)
    log.given[job.payload] += 1
    while True:
        try:
            await job.ack()
            log.acked.add(job.payload)
        except LeaseLost:
            pass  # an ack whose answer was lost had been done
        except ConnectionLost:
            await asyncio.sleep(0.05)
            continue
        return


def _has_grown(log: Log, added: int, acked: int) -> bool:
    return len(log.added) > added and len(log.acked) > acked


async def _kill_and_restart(server: PostgresServer, log: Log) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(KILLS):
        is_busy = functools.partial(_has_grown, log, len(log.added) + 50, len(log.acked) + 50)
        await loop.run_in_executor(None, wait_until, is_busy)
        await loop.run_in_executor(None, server.kill_hard)
        await asyncio.sleep(0.2)
        await loop.run_in_executor(None, server.start)


@pytest.mark.parametrize("form", ["aio", "blocking"])
async def test_what_a_killed_server_had_taken_is_there(
    start_postgres: Callable[..., PostgresServer], form: str
) -> None:
    server = start_postgres()
    log = Log()
    connect = penstock.connect if form == "aio" else lambda *a, **n: Facade(blocking.connect(*a, **n))
    async with connect(server.url(), lease=LEASE, poll=0.5) as store:
        queue = store.queue("mail")
        numbers = itertools.count()
        tasks = [
            asyncio.create_task(work)
            for work in (
                *(_produce(queue, numbers, log) for _ in range(3)),
                *(_work(queue, log) for _ in range(3)),
            )
        ]
        await _kill_and_restart(server, log)
        log.is_over = True
        queue.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        store.shift_clock(LEASE)  # what was reserved when the server died
        while (job := await queue.reserve(timeout=0)) is not None:
            await _do(job, log)
        assert await queue.total() == 0
    assert log.added <= log.given.keys()
    assert log.given.keys() <= log.added | log.unsure
    assert not log.given_after_ack
