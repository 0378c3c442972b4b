# Written by scripts/blocking from src/penstock/queues/aio/queue.py: change that, then run `make blocking`.
"""A queue: what the API promises, on top of what a driver can do.

Single calls that are made at the same time go to the store as one (`coalescing`); callers that wait for jobs are served
by one pump (`fetching`).
"""

from penstock.queues.blocking.adding import Adding
from penstock.queues.blocking.claiming import Claiming
from penstock.queues.blocking.looking import Looking
from penstock.queues.blocking.taking import Taking


class Queue(Adding, Taking, Looking, Claiming):
    """A queue of a store. Made by `store.queue(name)`; any number of tasks may use one."""

    def drain(self) -> None:
        """Finish what is under way, and end all waits: this object gives no more jobs."""
        self._is_drained = True
        for fetcher in self._fetchers.values():
            fetcher.close(f"the queue {self.name!r} is being drained")
        self._finish()

    def close(self) -> None:
        """Let go of everything; the store does it for all its queues."""
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._finish()
        self._ear.close()

    def _finish(self) -> None:
        for coalescer in (self._pushes, self._acks, self._nacks, self._extends):
            coalescer.finish()
