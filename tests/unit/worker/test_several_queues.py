"""A worker of several queues, some of which are empty."""

from __future__ import annotations

import asyncio

import pytest

from penstock import Job, Worker
from tests.unit.worker.virtual_time import memory_store, virtual

SOON_S = 1.0  # an empty queue must not hold up the others for longer


@pytest.mark.parametrize("queues", [["a", "b"], ["b", "a"], ["a", "b", "c"]])
@virtual
async def test_an_empty_queue_does_not_hold_up_the_others(queues: list[str]) -> None:
    async with memory_store() as store:
        done = asyncio.Event()

        async def handler(job: Job) -> None:
            done.set()

        await store.queue("b").push(1)
        worker = Worker(store, queues, handler)
        task = asyncio.create_task(worker.run())
        async with asyncio.timeout(SOON_S):
            await done.wait()
        worker.stop()
        await task
