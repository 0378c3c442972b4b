"""Pushes tasks to one store. It keeps the queue objects: calls of one turn of the event loop go to the store as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import BadPayload
from penstock.job import JobState
from penstock.queues.aio import Queue, Store
from penstock.queues.capabilities import Capability, require
from penstock.queues.push import Push
from penstock.queues.scan import Wanted, found_state
from penstock.tasks.call import PreparedCall
from penstock.tasks.results import RESULT_TTL_S, is_done, shape_key, stop_key

STOP_TTL_S = 30 * 24 * 3600.0  # that it is known of a workflow that it was cancelled: longer than most wait for a step
PAGE = 1000  # jobs in one call


class TaskClient:
    """What an app needs of a store, in one event loop."""

    def __init__(self, store: Store, results: Store | None = None) -> None:
        self.store = store
        self.results = store if results is None else results  # where results are kept
        self._queues: dict[str, Queue] = {}

    def queue(self, name: str) -> Queue:
        """Return the queue; the same object for the same name."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = self.store.queue(name)
        return queue

    async def push(self, one: PreparedCall) -> str:
        """Push a call; return the id of its job."""
        await self.store.open()
        try:
            return await self.queue(one.queue).push(one.message.payload(), **one.options)
        except BadPayload as problem:
            raise one.blamed(problem) from problem

    async def push_workflow(self, one: PreparedCall, shape: str) -> str:
        """Push the first job of a workflow; return its id. `shape` is kept for its status."""
        await self.store.open()
        flow = one.message.flow
        # Within a transaction of the caller, the store's own connection must not wait for that.
        if flow is not None and "connection" not in one.options:
            await self.keep(shape_key(flow.id), shape, flow.keep)
        return await self.push(one)

    async def push_many(self, calls: Sequence[PreparedCall]) -> list[str]:
        """Push calls, those of one queue together, PAGE at a time; return the ids of their jobs in order."""
        await self.store.open()
        by_queue: dict[str, list[int]] = {}
        for at, one in enumerate(calls):
            by_queue.setdefault(one.queue, []).append(at)
        ids = [""] * len(calls)
        for name, places in by_queue.items():
            queue = self.queue(name)
            # The first jobs are run while others are written, and only some are in memory twice.
            for begin in range(0, len(places), PAGE):
                some = places[begin : begin + PAGE]
                batch: list[Any] = [calls[at].message.payload() for at in some]
                if any(calls[at].options for at in some):
                    batch = [Push(payload, **calls[at].options) for payload, at in zip(batch, some, strict=True)]
                for at, job_id in zip(some, await queue.push_many(batch), strict=True):
                    ids[at] = job_id
        return ids

    async def keep(self, key: str, record: str, ttl: float) -> None:
        """Keep the record of a call."""
        await self.results.open()
        await self.results.put_value(key, record, ttl=ttl)

    async def record(self, key: str) -> str | None:
        """Return the record of a call."""
        await self.results.open()
        return await self.results.value(key)

    async def job_state(self, queues: Sequence[str], job_id: str) -> JobState | None:
        """Return the state of a job in one of these queues; None if it is in none.

        A store that can't look a job up by its id reads all jobs of the queues.
        """
        await self.store.open()
        require(self.store.capabilities, Capability.PEEK, self.store.url)
        wanted = Wanted(columns=frozenset({"id", "state"}), ids=(job_id,))
        for part in await self.store.scan_parts(queues, wanted):
            async for rows in self.store.pages(part, wanted, PAGE):
                state = found_state(rows, job_id)
                if state is not None:
                    return state
        return None

    async def cancel(self, queues: Sequence[str], job_id: str, key: str, record: str) -> bool:
        """Remove a job from one of these queues, whoever has it, and keep that; return whether it was there."""
        await self.store.open()
        for name in queues:
            if (await self.queue(name).remove(job_id, reserved=True))[0]:
                await self.keep(key, record, RESULT_TTL_S)
                return True
        return False

    # Workflows. What decides how they go on is kept with the jobs; handles look where results are.

    async def keep_in_flow(self, key: str, record: str, ttl: float) -> None:
        """Keep the record of a part of a workflow."""
        await self.store.put_value(key, record, ttl=ttl)
        if self.results is not self.store:
            await self.keep(key, record, ttl)

    async def records_in_flow(self, keys: Sequence[str]) -> list[str | None]:
        """Return the records of parts of a workflow."""
        return [await self.store.value(key) for key in keys]

    async def count_done(self, keys: Sequence[str]) -> int:
        """Return how many of these records are results."""
        done = 0
        for key in keys:
            done += is_done(await self.record(key))
        return done

    async def cancel_flow(self, flow_id: str, key: str, record: str) -> bool:
        """Let nothing else of a workflow be started, and stop what runs."""
        await self.store.open()
        await self.store.put_value(stop_key(flow_id), "1", ttl=STOP_TTL_S)
        await self.keep_in_flow(key, record, STOP_TTL_S)
        return True

    async def is_stopped(self, flow_id: str) -> bool:
        """Whether a workflow was cancelled."""
        await self.store.open()
        return await self.store.value(stop_key(flow_id)) is not None

    async def close(self) -> None:
        """Close the stores."""
        await self.store.close()
        if self.results is not self.store:
            await self.results.close()
