"""A store that is away: said once, waited for with growing pauses, and said once when it is back."""

from __future__ import annotations

import asyncio

from penstock.queues.dead_letter import described
from penstock.worker.events import say

FIRST_PAUSE_S = 0.25
PAUSE_S_MAX = 5.0  # a store that is back waits no longer for its worker


class Trouble:
    """What is wrong with a store at the moment, if anything."""

    def __init__(self, what: str, pause_s_max: float = PAUSE_S_MAX) -> None:
        self._what = what  # is tried
        self._pause_s = 0.0
        self._pause_s_max = min(pause_s_max, PAUSE_S_MAX)

    def met(self, problem: Exception) -> None:
        """It could not be done."""
        if not self._pause_s:
            text = described(problem)
            say("trouble", f"{self._what} failed, and is tried again until it works. {text}", error=text)
        self._pause_s = min(self._pause_s_max, 2 * self._pause_s or FIRST_PAUSE_S)

    async def wait_out(self, problem: Exception) -> None:
        """It could not be done: wait before the next attempt."""
        self.met(problem)
        await asyncio.sleep(self._pause_s)

    def over(self) -> None:
        """It was done."""
        if self._pause_s:
            self._pause_s = 0.0
            say("recovered", f"{self._what} works again.")
