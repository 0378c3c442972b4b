"""What is in a queue of a cluster, and how to tidy it up.

All nodes are asked; what only a node holds that can't be reached is not seen. `ready` is cheap. The others go through
all jobs of the nodes: they are for people and their tools.

A job that waits is removed in two steps. First it is taken out of its queue, so that no worker can get it any more;
then it is ended. A job whose retry time runs out in between, within a millisecond or so, could be given to a worker,
and be gone when that one is done.
"""

from collections.abc import Sequence

from penstock.client.aio import ClusterClient
from penstock.client.values import JobDetails, job_details
from penstock.job import JobState, Sizes
from penstock.queues.stores.disque.aio.base import values
from penstock.queues.stores.disque.aio.scanning import DisqueScanning
from penstock.queues.stores.disque.jobs import is_before_its_time

# Queues in which the store keeps its claims.
CLAIM_PREFIX = "__claim__:"
REMOVE_MAX = 1000  # jobs in one go
# What PAUSE answers -> what it is told to stop giving jobs out, and to go on.
STOP = {"none": "out", "in": "all", "out": "out", "all": "all"}
GO_ON = {"none": "none", "in": "in", "out": "none", "all": "in"}
PAUSED = frozenset({"out", "all"})


class DisqueLooking(DisqueScanning):
    """Sizes, removals, names and pauses."""

    async def ready(self, queue: str) -> int:
        async with self._clients.borrow() as client:
            return await self._ready(await self._views(client), queue)

    async def _views(self, client: ClusterClient) -> list[ClusterClient]:
        return list((await self._nodes(client)).views.values())

    @staticmethod
    async def _ready(views: Sequence[ClusterClient], queue: str) -> int:
        return sum([await view.qlen(queue) for view in views])

    async def sizes(self, queue: str) -> Sizes:
        async with self._clients.borrow() as client:
            views = await self._views(client)
            now_ms = await self._time_ms(client)
            ready = await self._ready(views, queue)
            scheduled: set[str] = set()
            reserved: set[str] = set()
            for view in views:
                scheduled.update(await self._ids(view, queue, JobState.SCHEDULED, now_ms))
                if self._is_ours:
                    reserved.update(await self._ids(view, queue, JobState.RESERVED, now_ms))
        scheduled -= reserved  # one that went out between the two looks
        total = ready + len(scheduled) + len(reserved)
        return Sizes(total, ready, len(scheduled), len(reserved) if self._is_ours else None)

    async def counters(self, queue: str) -> dict[str, int]:
        async with self._clients.borrow() as client:
            parts = [await view.qstat(queue) for view in await self._views(client)]
        return {"expired": sum(part.expired or 0 for part in parts if part is not None)} if self._is_ours else {}

    async def next_mature_ms(self, queue: str) -> int | None:
        if await self.ready(queue):
            return await self.now_ms()
        times: list[int] = []
        for state in (JobState.SCHEDULED, JobState.RESERVED):
            cursor = None
            while True:
                page = await self.peek(queue, state, REMOVE_MAX, cursor)
                times += [job.mature_ms for job in page.jobs if job.mature_ms is not None]
                cursor = page.cursor
                if cursor is None:
                    break
        return min(times, default=None)

    async def remove(self, queue: str, ids: Sequence[str]) -> list[bool]:
        async with self._clients.borrow() as client:
            views = await self._views(client)
            now_ms = await self._time_ms(client)
            removed: set[str] = set()
            for view in views:
                known = await self._known(view, queue, [job_id for job_id in ids if job_id not in removed])
                free = await self._dequeued(view, [one.id for one in known if one.state == "queued"])
                free += await self._scheduled(view, queue, [one for one in known if one.state == "active"], now_ms)
                removed.update(await self._ended(view, free))
        done: list[bool] = []
        for job_id in ids:  # the same one twice is there once
            done.append(job_id in removed)
            removed.discard(job_id)
        return done

    @staticmethod
    async def _known(view: ClusterClient, queue: str, ids: Sequence[str]) -> list[JobDetails]:
        """What a node knows of jobs of this queue. An id that can't be one is none that it knows."""
        replies = await view.call_many([("SHOW", job_id) for job_id in dict.fromkeys(ids)])
        details = [job_details(reply) for reply in replies if isinstance(reply, list)]
        return [one for one in details if one.queue == queue]

    @staticmethod
    async def _dequeued(view: ClusterClient, ids: Sequence[str]) -> list[str]:
        """Take jobs out of their queue: those that were still there, which nobody else can get any more."""
        counts = values(await view.call_many([("DEQUEUE", job_id) for job_id in ids]))
        return [job_id for job_id, count in zip(ids, counts, strict=True) if count]

    async def _scheduled(self, view: ClusterClient, queue: str, active: Sequence[JobDetails], now_ms: int) -> list[str]:
        """Those of a node's active jobs that wait for their time."""
        waiting = [one.id for one in active if is_before_its_time(one, now_ms)]
        if len(waiting) < len(active) and self._is_ours:  # given back for later, or with a worker
            given_back = await self._ids(view, queue, JobState.SCHEDULED, now_ms)
            waiting = list({one.id for one in active}.intersection([*waiting, *given_back]))
        return waiting

    @staticmethod
    async def _ended(view: ClusterClient, ids: Sequence[str]) -> list[str]:
        """End jobs: those that were not ended before."""
        counts = values(await view.call_many([("ACKJOB", job_id) for job_id in ids]))
        return [job_id for job_id, count in zip(ids, counts, strict=True) if count]

    async def purge(self, queue: str) -> int:
        removed: set[str] = set()
        async with self._clients.borrow() as client:
            now_ms = await self._time_ms(client)
            for view in await self._views(client):
                for state in (JobState.READY, JobState.SCHEDULED):
                    found = await self._ids(view, queue, state, now_ms)
                    ids = [job_id for job_id in found if job_id not in removed]  # nodes may have copies of one
                    for begin in range(0, len(ids), REMOVE_MAX):
                        some = ids[begin : begin + REMOVE_MAX]
                        free = await self._dequeued(view, some) if state is JobState.READY else some
                        removed.update(await self._ended(view, free))
        return len(removed)

    async def queues(self) -> list[str]:
        names: set[str] = set()
        async with self._clients.borrow() as client:
            for view in await self._views(client):
                # A name that is no UTF-8 is none that this library could ask for.
                names.update([name async for name in view.queues() if isinstance(name, str)])
        return sorted(name for name in names if not name.startswith(CLAIM_PREFIX))

    async def set_paused(self, queue: str, paused: bool) -> None:
        async with self._clients.borrow() as client:
            state = await client.pause(queue)
            await client.pause(queue, (STOP if paused else GO_ON)[state], broadcast=True)

    async def paused(self, queue: str) -> bool:
        async with self._clients.borrow() as client:
            return await client.pause(queue) in PAUSED
