"""A queue: what the API promises, on top of what a driver can do.

Single calls that are made at the same time go to the store as one (`coalescing`); callers that wait for jobs are served
by one pump (`fetching`).
"""

from typing import Any
from weakref import WeakSet

from penstock.job import Consumer
from penstock.queues.aio.adding import Adding
from penstock.queues.aio.claiming import Claiming
from penstock.queues.aio.looking import Looking
from penstock.queues.aio.taking import Taking
from penstock.queues.backoff import Backoff
from penstock.queues.dead_letter import DeadLetter


class Queue(Adding, Taking, Looking, Claiming):
    """A queue of a store. Made by `store.queue(name)`; any number of tasks may use one."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._variants: WeakSet[Queue] = WeakSet()  # made by `with_options`

    def with_options(
        self,
        *,
        dead_letter: DeadLetter | None = None,
        lease: float | None = None,
        backoff: Backoff | None = None,
    ) -> "Queue":
        """Return another object of this queue with other options; those left out are this one's.

        `cancel` and `drain` of this object apply to the other one, too.
        """
        variant = Queue(
            self.store,
            self.name,
            dead_letter=self.dead_letter if dead_letter is None else dead_letter,
            lease=self.lease if lease is None else lease,
            codec=self.codec,
            backoff=self.backoff if backoff is None else backoff,
            poll=self.poll_s,
            options=self.options,
        )
        self._variants.add(variant)
        self.store._track(variant)
        return variant

    @property
    def waiters(self) -> int:
        """How many callers wait for jobs of this object."""
        return super().waiters + sum(variant.waiters for variant in self._variants)

    def consumers(self) -> list[Consumer]:
        """The callers that wait for jobs of this object, each with the `consumer` label that it gave."""
        return [*super().consumers(), *(one for variant in self._variants for one in variant.consumers())]

    def cancel(self, waiter: object = None) -> int:
        """End waits with WaitCancelled: those that were given this `waiter`, or all. Returns how many."""
        return super().cancel(waiter) + sum(variant.cancel(waiter) for variant in self._variants)

    async def drain(self) -> None:
        """Finish what is under way, and end all waits: this object neither gives nor takes jobs any more.

        Reserved jobs can still be acked, extended and given back. Other objects of the queue are not affected.
        """
        self._is_drained = True
        for fetcher in self._fetchers.values():
            await fetcher.close(f"the queue {self.name!r} is being drained")
        await self._finish()
        for variant in list(self._variants):
            await variant.drain()

    async def close(self) -> None:
        """Let go of everything; the store does it for all its queues."""
        for fetcher in self._fetchers.values():
            await fetcher.close()
        await self._finish()
        await self._ear.close()

    async def _finish(self) -> None:
        for coalescer in (self._pushes, self._acks, self._nacks, self._extends):
            await coalescer.finish()
