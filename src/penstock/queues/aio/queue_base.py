"""What all parts of a queue share: its options, its pause, its signals."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.codec import check_codec
from penstock.errors import CallerError, ConnectionLost
from penstock.queues.aio.driver import Driver
from penstock.queues.aio.fetching import Fetcher
from penstock.queues.aio.listening import Ear
from penstock.queues.aio.once import Once
from penstock.queues.backoff import Backoff
from penstock.queues.capabilities import Capability, require
from penstock.queues.dead_letter import DEAD_LETTER_QUEUE, DeadLetter
from penstock.queues.options import checked_lease
from penstock.queues.push import Duration, is_number, plain_seconds

if TYPE_CHECKING:
    from penstock.queues.aio.store import Store

UNHEARD_S = 0.5  # so long a pause may go unnoticed by who takes jobs without listening to signals
NAME_BYTES_MAX = 1024  # of a queue; PostgreSQL takes fewer, and says so
SHOWN_MAX = 80  # characters of a wrong name in an error


class QueueBase:
    """The state of a queue object, and what the rest builds on."""

    _is_drained = False

    def __init__(
        self,
        store: "Store",
        name: str,
        *,
        dead_letter: DeadLetter | None,
        lease: Duration,
        codec: str,
        backoff: Backoff | None,
        poll: Duration,
        options: Mapping[str, Any],
    ) -> None:
        _check_name("a queue name", name, store.driver)
        if dead_letter is not None:
            # Now, not when the first job is given up: a worker would end then, with jobs in its hands.
            _check_name("the name of the dead-letter queue", dead_letter.queue, store.driver)
        self.store = store
        self.name = name
        self.dead_letter = dead_letter
        self.lease = checked_lease(lease)
        self.codec = check_codec(codec)
        self.backoff = backoff
        self.poll_s: float = plain_seconds(poll)
        if not is_number(self.poll_s) or not self.poll_s > 0:
            raise CallerError(f"poll must be above 0 seconds, got {poll!r}")
        self.options = dict(options)
        self.channel = f"keuss:signal:{store.namespace}:{name}"
        self._paused: bool | None = None  # None: not known
        self._paused_read = 0.0
        self._paused_last: bool | None = None  # what was known last, be it still true or not
        self._services = store._services_of(name)
        self._ear = Ear(self._services.signal, self.channel, self._heard)
        self._register = Once(self._registered)
        self._fetchers: dict[tuple[int | None, bool], Fetcher] = {}

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} of {self.store.url}>"

    @property
    def type(self) -> str:
        """What kind of queue it is: `redis:oq`, `redis:list` and `postgres:simple` as Keuss says it, or `disque`,
        `fsq`, `memory`, `sqlite`."""
        return self.store.driver.type

    @property
    def _driver(self) -> Driver:
        """The store's driver, as long as the store is open."""
        self.store.check_open()
        return self.store.driver

    @property
    def _limit(self) -> DeadLetter | None:
        """The limit on tries, where there is one. The dead letters themselves have none."""
        limit = self.dead_letter
        if limit is None or not limit.max_tries or self.name in {limit.queue, DEAD_LETTER_QUEUE}:
            return None
        return limit

    def is_last_try(self, tries: int) -> bool:
        """Whether a job that was delivered so often before is on its last try: a nack sends it to the dead letters."""
        limit = self._limit
        return limit is not None and limit.is_last(tries)

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
        await self._services.stats.set_paused(self.name, paused)
        self._know_paused(paused)
        await self._services.signal.send(self.channel, f"p {'true' if paused else 'false'}")

    async def paused(self) -> bool:
        """Whether the queue is paused, freshly read."""
        if self._driver.pauses_itself:
            return await self._driver.paused(self.name)
        await self._services.open()
        self._know_paused(await self._services.stats.paused(self.name))
        return bool(self._paused)

    async def _is_paused(self) -> bool:
        """Whether it is paused, as far as was heard; read anew every poll interval, since signals may be lost."""
        if self._driver.pauses_itself:
            return False
        trusted_s = self.poll_s if self._ear.is_listening else min(self.poll_s, UNHEARD_S)
        if self._paused is not None and time.monotonic() - self._paused_read < trusted_s:
            return self._paused
        try:
            return await self.paused()
        except ConnectionLost:
            # Statistics on another server that is away don't hold up jobs: what was known last holds.
            if self._services.stats_are_own or self._paused_last is None:
                raise
            self._know_paused(self._paused_last)
            return self._paused_last

    def _know_paused(self, paused: bool) -> None:
        self._paused = self._paused_last = paused
        self._paused_read = time.monotonic()

    @property
    def _channel_of_store(self) -> str | None:
        """The channel, if the store sends signals along with what it stores."""
        return self.channel if self._services.signals_itself else None

    async def _tell(self, delay_ms: int, times_ms: Sequence[int | None] = ()) -> None:
        """Signal that a job will be ready after so long, or at one of these times."""
        signal = self._services.signal
        if signal.is_silent:
            return
        if not self._services.open.is_done:
            await self._services.try_open()
            if not self._services.open.is_done:
                return
        soonest = await self._driver.now_ms() + delay_ms
        if times_ms and None not in times_ms:
            soonest = min(time_ms for time_ms in times_ms if time_ms is not None)
        await signal.send(self.channel, str(soonest))

    def _heard(self, text: str) -> None:
        """A signal came: `p true`, `p false`, a time, or nothing, which means that something was missed."""
        if text.startswith("p "):
            self._know_paused(text == "p true")
        elif not text:
            self._paused = None
        for fetcher in self._fetchers.values():
            fetcher.ring()

    def _check_not_drained(self) -> None:
        if self._is_drained:
            raise CallerError(f"the queue {self.name!r} was drained: make another object with store.queue()")

    async def _registered(self) -> None:
        self.store.check_open()
        await self._services.open()
        try:
            await self._services.stats.register(self.name, self.options)
        except ConnectionLost:
            # Statistics on another server that is away must not hold up jobs.
            if self._services.stats_are_own:
                raise

    def _require(self, capability: Capability) -> None:
        require(self.store.driver.capabilities, capability, self.store.url)


def _check_name(what: str, name: object, driver: Driver) -> None:
    """Refuse a name that no queue can have, anywhere or in this store."""
    # What is no text, half of a surrogate pair for one, is left out here, and so is seen to be wrong.
    text = name.encode(errors="ignore").decode() if isinstance(name, str) else ""
    if not text or text != name or len(text.encode()) > NAME_BYTES_MAX:
        shown = repr(name)
        if len(shown) > SHOWN_MAX:
            shown = f"{shown[:SHOWN_MAX]}... ({len(text.encode())} bytes)"
        raise CallerError(f"{what} must be 1 to {NAME_BYTES_MAX} bytes of text, got {shown}")
    if Capability.RESERVE not in driver.capabilities and name == DEAD_LETTER_QUEUE:
        return  # nothing is ever given up there
    try:
        driver.check_queue(text)
    except CallerError as problem:
        raise CallerError(f"{what} can't be used: {problem}") from problem
