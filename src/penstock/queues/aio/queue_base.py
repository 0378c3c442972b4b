"""What all parts of a queue share: its options, its pause, its signals."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.codec import check_codec
from penstock.errors import CallerError, ConnectionLost
from penstock.queues.aio.fetching import Fetcher
from penstock.queues.aio.listening import Ear
from penstock.queues.aio.once import Once
from penstock.queues.backoff import Backoff
from penstock.queues.capabilities import Capability, require
from penstock.queues.dead_letters import DEAD_LETTER_QUEUE, DeadLetter
from penstock.queues.options import checked_lease

if TYPE_CHECKING:
    from penstock.queues.aio.store import Store

NAME_BYTES_MAX = 1024  # of a queue; PostgreSQL takes fewer, and says so


class QueueBase:
    """The state of a queue object, and what the rest builds on."""

    def __init__(
        self,
        store: "Store",
        name: str,
        *,
        dead_letter: DeadLetter | None,
        lease: float,
        codec: str,
        backoff: Backoff | None,
        poll: float,
        options: Mapping[str, Any],
    ) -> None:
        if not name or len(name.encode()) > NAME_BYTES_MAX:
            raise CallerError(f"a queue's name has 1 to {NAME_BYTES_MAX} bytes")
        self.store = store
        self.name = name
        self.dead_letter = dead_letter
        self.lease = checked_lease(lease)
        self.codec = check_codec(codec)
        self.backoff = backoff
        self.poll_s = poll
        self.options = dict(options)
        self.channel = f"keuss:signal:{store.namespace}:{name}"
        self._driver = store.driver
        self._paused: bool | None = None  # None: not known
        self._paused_read = 0.0
        self._ear = Ear(store.signal, self.channel, self._heard)
        self._register = Once(self._registered)
        self._fetchers: dict[int | None, Fetcher] = {}

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} of {self.store.url}>"

    @property
    def _limit(self) -> DeadLetter | None:
        """The limit on tries, where there is one. The dead letters themselves have none."""
        limit = self.dead_letter
        if limit is None or not limit.max_tries or self.name in {limit.queue, DEAD_LETTER_QUEUE}:
            return None
        return limit

    async def pause(self) -> None:
        """Hand out no more jobs, in no process, until `resume`. Jobs can still be pushed, acked and given back."""
        await self._set_paused(True)

    async def resume(self) -> None:
        """Go on."""
        await self._set_paused(False)

    async def _set_paused(self, paused: bool) -> None:
        await self._register()
        if self._driver.pauses_itself:
            await self._driver.set_paused(self.name, paused)
            return
        await self.store.stats.set_paused(self.name, paused)
        self._know_paused(paused)
        await self.store.signal.send(self.channel, f"p {'true' if paused else 'false'}")

    async def paused(self) -> bool:
        """Whether the queue is paused, freshly read."""
        if self._driver.pauses_itself:
            return await self._driver.paused(self.name)
        self._know_paused(await self.store.stats.paused(self.name))
        return bool(self._paused)

    async def _is_paused(self) -> bool:
        """Whether it is paused, as far as was heard; read anew every poll interval, since signals may be lost."""
        if self._driver.pauses_itself:
            return False
        if self._paused is None or time.monotonic() - self._paused_read >= self.poll_s:
            return await self.paused()
        return self._paused

    def _know_paused(self, paused: bool) -> None:
        self._paused = paused
        self._paused_read = time.monotonic()

    @property
    def _channel_of_store(self) -> str | None:
        """The channel, if the store sends signals along with what it stores."""
        return self.channel if self.store.signals_itself else None

    async def _tell(self, delay_ms: int, times_ms: Sequence[int | None] = ()) -> None:
        """Signal that a job will be ready after so long, or at one of these times."""
        soonest = await self._driver.now_ms() + delay_ms
        if times_ms and None not in times_ms:
            soonest = min(time_ms for time_ms in times_ms if time_ms is not None)
        await self.store.signal.send(self.channel, str(soonest))

    def _heard(self, text: str) -> None:
        """A signal came: `p true`, `p false`, a time, or nothing, which means that something was missed."""
        if text.startswith("p "):
            self._know_paused(text == "p true")
        elif not text:
            self._paused = None
        for fetcher in self._fetchers.values():
            fetcher.ring()

    async def _registered(self) -> None:
        self.store.check_open()
        try:
            await self.store.stats.register(self.name, self.options)
        except ConnectionLost:
            # Statistics on another server that is away must not hold up jobs.
            if self.store.stats_are_own:
                raise

    def _require(self, capability: Capability) -> None:
        require(self._driver.capabilities, capability, self.store.url)
