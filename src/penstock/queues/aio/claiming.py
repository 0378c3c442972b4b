"""Many jobs leased under one key."""

from penstock.errors import CallerError
from penstock.queues.aio.ending import Ending
from penstock.queues.aio.job import Job
from penstock.queues.capabilities import Capability
from penstock.queues.options import checked_lease
from penstock.queues.push import Duration, milliseconds


class Claiming(Ending):
    """`claim` and its kin: what a batch of Spark holds."""

    async def claim(self, key: str, count: int, *, lease: Duration | None = None) -> list[Job]:
        """Reserve up to `count` jobs under a key, or give those again that the key has.

        Of a paused queue, or with `count` 0, only those that the key has.
        """
        self._require(Capability.CLAIM)
        if not key or count < 0:
            raise CallerError(f"a claim needs a key and a count, not {key!r} and {count}")
        await self._register()
        seconds = self.lease if lease is None else checked_lease(lease)
        if await self._is_paused():
            count = 0
        stored = await self._driver.claim(self.name, key, count, milliseconds("lease", seconds))
        return [Job(self, one, seconds) for one in await self._bury_spent(stored)]

    async def extend_claim(self, key: str, lease: Duration | None = None) -> int:
        """Keep the jobs under a key; gives how many it still has."""
        self._require(Capability.CLAIM)
        seconds = self.lease if lease is None else checked_lease(lease)
        return await self._driver.extend_claim(self.name, key, milliseconds("lease", seconds))

    async def ack_claim(self, key: str) -> int:
        """End the jobs under a key, and the key; gives how many were ended."""
        self._require(Capability.CLAIM)
        ended = await self._driver.ack_claim(self.name, key)
        self.store._counting_of(self.name).count(self.name, "commit", ended)
        return ended

    async def nack_claim(self, key: str, delay: Duration = 0) -> int:
        """Give the jobs under a key back, and end the key; gives how many."""
        self._require(Capability.CLAIM)
        delay_ms = milliseconds("delay", delay)
        given = await self._driver.nack_claim(self.name, key, delay_ms)
        if given:  # else there is nothing to wake workers for
            self.store._counting_of(self.name).count(self.name, "rollback", given)
            await self._tell(delay_ms)
        return given
