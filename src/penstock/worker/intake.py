"""How jobs come in: as many as there are free hands for, and a few more where that helps.

A worker that asks for a job only when a handler has ended waits for the store between any two of them. So it also takes
some ahead, as many as its handlers have lately done in PREFETCH_S: hundreds of short ones, none at all of those that
take a second, since those would only be kept from other workers. What is taken ahead and can't begin within WAIT_S_MAX
goes back. Where jobs come back from workers that died, few are taken ahead: what kills workers would bring them all
back. The store is told how many of the jobs begin at once: only of these a try is counted should this worker die.

Each queue has a feeder. A feeder that finds nothing asks for one job and waits; only with jobs at hand does it ask for
more. So several queues share the free hands evenly, and an empty one takes none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Protocol

from penstock.errors import CallerError
from penstock.queues.aio import Job
from penstock.worker.reporting import HOOKS_MAX
from penstock.worker.settling import Settler
from penstock.worker.trouble import Trouble

PREFETCH_S = 0.05
PREFETCH_MAX = 1000  # jobs taken ahead: what a store gives in one call, and enough for 20,000 a second
UNSETTLED_MAX = 5000  # jobs that are done and that the store has not been told of: with more, no others are taken
WAIT_S_MAX = 1.0
# How long a feeder waits for a job in one call. Then it asks again, and learns of a store that is away.
ASK_S = 10.0
LOOK_S = 0.1  # how often empty queues are looked at while the last jobs run, when the end is wanted


class Hands(Protocol):
    """What the intake needs to know of the worker."""

    concurrency: int
    prefetch: int | None  # None: as many as seems right

    @property
    def in_hand(self) -> int: ...  # jobs that wait or run
    @property
    def unsettled(self) -> int: ...  # all that the store has not been told of
    @property
    def pending_hooks(self) -> int: ...
    @property
    def mean_run_s(self) -> float | None: ...
    @property
    def idle_s(self) -> float: ...  # since the last handler ended
    @property
    def is_after_death(self) -> bool: ...  # whether a job came from a worker that died, a short while ago

    def took(self, settler: Settler, jobs: list[Job]) -> None: ...


class Intake:
    """All feeders of a worker."""

    def __init__(self, hands: Hands, settlers: list[Settler]) -> None:
        self._hands = hands
        self._settlers = settlers
        self._hungry = 0  # feeders that have room to wait for, or ask for more than one job
        self._asked = 0  # jobs that feeders ask for at this moment
        self._room = asyncio.Event()
        self._changed = asyncio.Event()
        self._troubles = {
            settler: Trouble(f"Getting jobs of {settler.queue.name!r} from {settler.queue.store.url}")
            for settler in settlers
        }

    def freed(self) -> None:
        """A handler has ended, or a job was settled."""
        self._changed.set()
        if not self._room.is_set() and self.room() > 0:
            self._room.set()

    def ahead(self) -> int:
        """How many jobs to take ahead."""
        hands = self._hands
        most = hands.concurrency if hands.is_after_death else PREFETCH_MAX
        if hands.prefetch is not None:
            return min(most, hands.prefetch) if hands.is_after_death else hands.prefetch
        mean_s = hands.mean_run_s
        if mean_s is None or hands.idle_s > PREFETCH_S:
            return 0
        return min(most, int(hands.concurrency * PREFETCH_S / max(mean_s, 1e-6)))

    def room(self) -> int:
        """How many jobs are wanted now: 0 where it pays to wait for a few more free places."""
        hands = self._hands
        if hands.unsettled > UNSETTLED_MAX or hands.pending_hooks >= HOOKS_MAX:
            return 0
        wanted = hands.concurrency + self.ahead()
        room = wanted - hands.in_hand - self._asked
        has_idle_hands = hands.in_hand + self._asked < hands.concurrency
        return room if has_idle_hands or room > wanted // 2 else 0

    async def feed(self, settler: Settler) -> None:
        """Take jobs of one queue, until cancelled."""
        is_alone = len(self._settlers) == 1
        trouble = self._troubles[settler]
        while True:
            try:
                found = await self._ask_for_share(settler, ASK_S if is_alone else 0)
                if not found and not is_alone:
                    await self._wait_for_first(settler)
            except CallerError:
                raise
            except Exception as problem:  # whatever a store's driver raises, the worker goes on
                await trouble.wait_out(problem)
            else:
                trouble.over()

    async def _ask_for_share(self, settler: Settler, timeout_s: float) -> int:
        self._hungry += 1
        try:
            room = await self._wait_for_room()
            return await self._ask(settler, -(-room // self._hungry), timeout_s)
        finally:
            self._hungry -= 1

    async def _wait_for_first(self, settler: Settler) -> None:
        """An empty queue: one job will do, and it comes on top of what other queues give."""
        begin = min(1, self._idle_hands())
        self._take(settler, await settler.queue.reserve_many(1, ASK_S, lease=settler.lease, begin=begin))

    def _idle_hands(self) -> int:
        """How many handlers could begin at once, beside those of jobs that are on their way."""
        return max(0, self._hands.concurrency - self._hands.in_hand - self._asked)

    async def _wait_for_room(self) -> int:
        while (room := self.room()) <= 0:
            self._room.clear()
            await self._room.wait()
        return room

    async def _ask(self, settler: Settler, count: int, timeout_s: float) -> int:
        begin = min(count, self._idle_hands())
        self._asked += count
        try:
            jobs = await settler.queue.reserve_many(count, timeout_s, lease=settler.lease, begin=begin)
        finally:
            self._asked -= count
        self._take(settler, jobs)
        return len(jobs)

    def _take(self, settler: Settler, jobs: list[Job]) -> None:
        if jobs:
            self._hands.took(settler, jobs)

    async def feed_until_empty(self) -> None:
        """Take jobs of all queues until none has one that is ready, and none is in this worker's hands."""
        turns = deque(self._settlers)
        giving = set(self._settlers)  # those that gave a job when they were last asked
        while True:
            was_quiet = self._hands.unsettled == self._hands.pending_hooks == 0
            self._changed.clear()
            found = 0
            for _ in range(len(turns)):
                room = self.room()
                if room <= 0:
                    break  # whose turn it is is asked first when there is room again
                settler = turns[0]
                turns.rotate(-1)
                count = await self._look_at(settler, -(-room // max(1, len(giving))))
                (giving.add if count else giving.discard)(settler)
                found += count
            if not found and was_quiet:
                return
            if not found:
                await self._wait_for_change()

    async def _look_at(self, settler: Settler, count: int) -> int:
        try:
            found = await self._ask(settler, count, 0)
        except CallerError:
            raise
        except Exception as problem:  # the same
            await self._troubles[settler].wait_out(problem)
            return 1  # whether it is empty isn't known
        self._troubles[settler].over()
        return found

    async def _wait_for_change(self) -> None:
        """A job that ends may have pushed others, and one that runs may do so, too."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._changed.wait()
