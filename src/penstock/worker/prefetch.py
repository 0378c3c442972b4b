"""Takes jobs from the queues: as many as can start at once, and some ahead of time where that helps.

A worker that asks for a job only when a handler has ended waits for the store between any two of them. So it also takes
jobs ahead, as many as its handlers have lately done in PREFETCH_S: hundreds of short ones, but none of those that take
a second, which would only be kept from other workers. A job that was taken ahead and can't begin within WAIT_S_MAX goes
back. After jobs were redelivered from workers that crashed, few are taken ahead: a job that kills its worker would
bring them all back. The reserve says how many of the jobs begin at once: only these are charged with a try should this
worker crash. It says none where jobs may have to wait for others of their kind (`Route.concurrency`).

Each queue has a task that fetches. While its queue is empty it waits for one job; only when there are jobs does it ask
for more. So several queues share the free slots evenly, and an empty one takes none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from penstock.errors import CallerError
from penstock.queues.aio import Job
from penstock.worker.reporting import HOOKS_MAX, Outage
from penstock.worker.settling import Settler

PREFETCH_S = 0.05
PREFETCH_MAX = 1000  # jobs taken ahead: what a store returns in one call, and enough for 20,000 a second
UNSETTLED_MAX = 5000  # finished jobs whose outcome is not yet in the store: beyond that no others are taken
WAIT_S_MAX = 1.0
# Timeout of one call that waits for a job. Then the store is asked again, and an outage is noticed.
RESERVE_S = 10.0
POLL_S = 0.1  # between two calls on empty queues while the last jobs run, with `until_empty`


# Awaited before jobs are taken, with their largest number and that of the jobs which the worker has; returns how many
# may be taken, at least one.
Admit = Callable[[int, int], Awaitable[int]]


class LoadInfo(Protocol):
    """How busy the worker is."""

    concurrency: int
    prefetch: int | None  # None: chosen by run times

    @property
    def in_flight(self) -> int: ...  # jobs that wait or run
    @property
    def unsettled(self) -> int: ...  # jobs whose outcome is not yet in the store
    @property
    def pending_hooks(self) -> int: ...
    @property
    def mean_run_s(self) -> float | None: ...
    @property
    def idle_s(self) -> float: ...  # since the last handler ended
    @property
    def is_after_crash(self) -> bool: ...  # whether a job was lately redelivered from a worker that crashed


class Prefetcher:
    """Takes the jobs of all queues of a worker."""

    def __init__(
        self,
        load: LoadInfo,
        settlers: list[Settler],
        on_jobs: Callable[[Settler, list[Job]], None],
        admit: Admit | None = None,
    ) -> None:
        self._load = load
        self._admit = admit
        self._settlers = settlers
        self._on_jobs = on_jobs
        self._turn = asyncio.Lock()  # queues ask in turn, first come, first served: so none starves
        self._in_line = 0  # queues that wait for their turn, or have it
        self._requested = 0  # jobs that are asked for at this moment
        self._has_room = asyncio.Event()
        self._changed = asyncio.Event()
        self._outages = {
            settler: Outage(f"Getting jobs of {settler.queue.name!r} from {settler.queue.store.url}")
            for settler in settlers
        }

    def slot_freed(self) -> None:
        """A handler has ended, or a job was settled."""
        self._changed.set()
        if not self._has_room.is_set() and self.room() > 0:
            self._has_room.set()

    def ahead(self) -> int:
        """Return how many jobs to take ahead."""
        load = self._load
        most = load.concurrency if load.is_after_crash else PREFETCH_MAX
        if load.prefetch is not None:
            return min(most, load.prefetch) if load.is_after_crash else load.prefetch
        mean_s = load.mean_run_s
        if mean_s is None or load.idle_s > PREFETCH_S:
            return 0
        return min(most, int(load.concurrency * PREFETCH_S / max(mean_s, 1e-6)))

    def room(self) -> int:
        """Return how many jobs to ask for now: 0 where it pays to wait for more free slots."""
        load = self._load
        if load.unsettled > UNSETTLED_MAX or load.pending_hooks >= HOOKS_MAX:
            return 0
        wanted = load.concurrency + self.ahead()
        room = wanted - load.in_flight - self._requested
        has_idle_slot = load.in_flight + self._requested < load.concurrency
        return room if has_idle_slot or room > wanted // 2 else 0

    async def fetch(self, settler: Settler) -> None:
        """Take jobs of one queue, until cancelled."""
        is_alone = len(self._settlers) == 1
        outage = self._outages[settler]
        while True:
            try:
                found = await self._reserve_share(settler, RESERVE_S if is_alone else 0)
                if not found and not is_alone:
                    await self._wait_for_first(settler)
            except CallerError:
                raise
            except Exception as problem:  # whatever a store's driver raises, the worker goes on
                await outage.wait_out(problem)
            else:
                outage.recovered()

    async def _reserve_share(self, settler: Settler, timeout_s: float) -> int:
        self._in_line += 1
        try:
            async with self._turn:
                room = await self._wait_for_room()
                if self._admit is not None:
                    room = min(room, await self._admit(room, self._load.unsettled))
                # What is left of the division goes to those that come back first.
                share = max(1, room // self._in_line)
        finally:
            self._in_line -= 1
        return await self._reserve(settler, share, timeout_s)

    async def _wait_for_first(self, settler: Settler) -> None:
        """Wait for one job of an empty queue. It comes on top of those of other queues."""
        if self._admit is not None:
            await self._admit(1, self._load.unsettled)
        begin = self._begin_at_once(settler, 1)
        self._pass_on(settler, await settler.queue.reserve_many(1, RESERVE_S, lease=settler.lease, begin=begin))

    def _begin_at_once(self, settler: Settler, count: int) -> int:
        """Return how many of `count` jobs begin at once, and so count a try at the reserve."""
        if not settler.leases.counts_at_reserve:
            return 0
        idle_slots = max(0, self._load.concurrency - self._load.in_flight - self._requested)
        return min(count, idle_slots)

    async def _wait_for_room(self) -> int:
        while (room := self.room()) <= 0:
            self._has_room.clear()
            await self._has_room.wait()
        return room

    async def _reserve(self, settler: Settler, count: int, timeout_s: float) -> int:
        begin = self._begin_at_once(settler, count)
        self._requested += count
        try:
            jobs = await settler.queue.reserve_many(count, timeout_s, lease=settler.lease, begin=begin)
        finally:
            self._requested -= count
            self._has_room.set()  # what was asked for and did not come is room for other queues
        self._pass_on(settler, jobs)
        return len(jobs)

    def _pass_on(self, settler: Settler, jobs: list[Job]) -> None:
        if jobs:
            self._on_jobs(settler, jobs)

    async def fetch_until_empty(self) -> None:
        """Take jobs of all queues until none is ready in any queue and none is in flight."""
        turns = deque(self._settlers)
        giving = set(self._settlers)  # those that gave a job when they were last asked
        while True:
            was_quiet = self._load.unsettled == self._load.pending_hooks == 0
            self._changed.clear()
            found = 0
            for _ in range(len(turns)):
                room = self.room()
                if room > 0 and self._admit is not None:
                    room = min(room, await self._admit(room, self._load.unsettled))
                if room <= 0:
                    break  # the queue whose turn it is comes first when there is room again
                settler = turns[0]
                turns.rotate(-1)
                count = await self._reserve_now(settler, -(-room // max(1, len(giving))))
                (giving.add if count else giving.discard)(settler)
                found += count
            if not found and was_quiet:
                return
            if not found:
                await self._wait_for_change()

    async def _reserve_now(self, settler: Settler, count: int) -> int:
        try:
            found = await self._reserve(settler, count, 0)
        except CallerError:
            raise
        except Exception as problem:  # whatever a store's driver raises, the worker goes on
            await self._outages[settler].wait_out(problem)
            return 1  # it is not known to be empty
        self._outages[settler].recovered()
        return found

    async def _wait_for_change(self) -> None:
        """Wait for a job to end. Jobs that end or run may have pushed others."""
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._changed.wait()
