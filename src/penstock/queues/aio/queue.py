"""A queue: what the API promises, on top of what a driver can do.

Single calls that are made at the same time go to the store as one (`coalescing`); callers that wait for jobs are served
by one pump (`fetching`).
"""

from penstock.queues.aio.adding import Adding
from penstock.queues.aio.claiming import Claiming
from penstock.queues.aio.looking import Looking
from penstock.queues.aio.taking import Taking


class Queue(Adding, Taking, Looking, Claiming):
    """A queue of a store. Made by `store.queue(name)`; any number of tasks may use one."""

    async def drain(self) -> None:
        """Finish what is under way, and end all waits: this object gives no more jobs."""
        self._is_drained = True
        for fetcher in self._fetchers.values():
            await fetcher.close(f"the queue {self.name!r} is being drained")
        await self._finish()

    async def close(self) -> None:
        """Let go of everything; the store does it for all its queues."""
        for fetcher in self._fetchers.values():
            await fetcher.close()
        await self._finish()
        await self._ear.close()

    async def _finish(self) -> None:
        for coalescer in (self._pushes, self._acks, self._nacks, self._extends):
            await coalescer.finish()
