"""Holds a link back, so that none of its targets has more than `max_waiting` ready jobs.

The target is asked for its size when as many jobs have been taken as it had room for, and once a second at least: not
for each job. Jobs that the link has in hand count as if they were there. So only what other links and processes bring
at the same time can be too many. While a target is full, it is asked again after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.errors import CallerError
from penstock.queues.aio import Queue
from penstock.worker.reporting import Outage, log_event

FRESH_S = 1.0
FULL_PAUSE_S = 0.1


class BackPressure:
    """The room that the targets of one link have."""

    def __init__(self, link: str, targets: Sequence[Queue], max_waiting: int) -> None:
        self._link = link
        self._targets = targets
        self._max_waiting = max_waiting
        self._room = 0
        self._asked_s = float("-inf")
        self._outage = Outage(f"Asking for the sizes of the targets of link {link!r}")
        self.is_full = False

    async def admit(self, count: int, in_hand: int) -> int:
        """Wait until there is room; return for how many of `count` jobs. `in_hand` are those on their way already."""
        while True:
            if self._room <= 0 or asyncio.get_running_loop().time() - self._asked_s > FRESH_S:
                await self._ask(in_hand)
            if self._room > 0:
                self._note(is_full=False)
                admitted = min(count, self._room)
                self._room -= admitted
                return admitted
            self._note(is_full=True)
            await asyncio.sleep(FULL_PAUSE_S)

    async def _ask(self, in_hand: int) -> None:
        try:
            sizes = [await queue.size() for queue in self._targets]
        except CallerError:
            raise
        except Exception as problem:  # whatever a store's driver raises: nothing is taken meanwhile
            await self._outage.wait_out(problem)
            self._room = 0
            return
        self._outage.recovered()
        self._asked_s = asyncio.get_running_loop().time()
        self._room = self._max_waiting - max(sizes) - in_hand

    def _note(self, is_full: bool) -> None:
        if is_full != self.is_full:
            self.is_full = is_full
            names = ", ".join(queue.name for queue in self._targets)
            what = (
                f"waits: {self._max_waiting} jobs or more are ready in {names}"
                if is_full
                else f"goes on: room in {names}"
            )
            log_event("held" if is_full else "resumed", f"Link {self._link} {what}.", link=self._link)
