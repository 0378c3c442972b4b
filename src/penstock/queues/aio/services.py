"""What a queue has beside its jobs: signals, statistics, and counters on their way there."""

from collections.abc import Sequence
from contextlib import suppress

from penstock.errors import ConnectionLost
from penstock.queues import registry
from penstock.queues.aio.counters import Counters
from penstock.queues.aio.driver import Driver
from penstock.queues.aio.runtime import Once
from penstock.queues.aio.signal import LocalSignal, Signal
from penstock.queues.aio.stats import MemoryStats, Stats
from penstock.queues.options import parse

FORM = __name__.split(".")[2]  # aio or blocking


class Services:
    """The signals, statistics and counters of queues.

    A store has them for all its queues. A queue that was made with `signal` or `stats` has its own, opened when they
    are first used; what is the same as the store's is shared with it.
    """

    def __init__(
        self,
        driver: Driver,
        namespace: str,
        signal: str | None,
        stats: str | None,
        of_store: "Services | None" = None,
    ) -> None:
        self.urls = (signal, stats)
        self.open = Once(self._open)
        self.signal: Signal
        self.signals_itself: bool  # the driver sends signals along with what it stores
        self.stats: Stats
        self.stats_are_own: bool  # they are in the store itself
        self.counters: Counters
        self._made: list[Signal | Stats] = []
        self._own_counters: Counters | None = None
        if of_store is not None and of_store.urls[0] == signal:
            self.signal, self.signals_itself = of_store.signal, of_store.signals_itself
        else:
            self.signal, self.signals_itself = _signal_of(driver, signal)
            self._made.append(self.signal)
        if of_store is not None and of_store.urls[1] == stats:
            self.stats, self.stats_are_own, self.counters = of_store.stats, of_store.stats_are_own, of_store.counters
        else:
            self.stats, self.stats_are_own = _stats_of(driver, namespace, stats)
            self._made.append(self.stats)
            self.counters = self._own_counters = Counters(self.stats, driver.counts)

    async def try_open(self) -> None:
        """Open them unless they can't be reached: jobs on their way must not wait for signals and statistics."""
        if not self.open.is_done:
            with suppress(ConnectionLost):
                await self.open()

    async def _open(self) -> None:
        opened: list[Signal | Stats] = []
        try:
            for one in self._made:
                await one.open()
                opened.append(one)
        except BaseException:
            for one in opened:
                await one.close()
            raise

    async def close(self) -> None:
        """Write the counters, and close the connections."""
        if not self.open.is_done:
            return
        if self._own_counters is not None:
            await self._own_counters.close()
        for one in self._made:
            await one.close()


def _signal_of(driver: Driver, url: str | None) -> tuple[Signal, bool]:
    """Return the signal, and whether the driver sends it by itself."""
    if url is None:
        own = driver.own_signal()
        return (LocalSignal(driver.place), False) if own is None else (own, True)
    address, _, extra = parse(url, {})
    if address.scheme == "local":
        return LocalSignal(driver.place), False
    return registry.find("signals", address.scheme, FORM)(address, extra), False


def _stats_of(driver: Driver, namespace: str, url: str | None) -> tuple[Stats, bool]:
    """Return the statistics, and whether they are in the store itself."""
    if url is None:
        own = driver.own_stats()
        return (MemoryStats(driver.place, namespace), False) if own is None else (own, True)
    address, _, extra = parse(url, {})
    if address.scheme == "memory":
        return MemoryStats(driver.place, namespace), False
    return registry.find("stats", address.scheme, FORM)(address, extra, namespace), False


class Channel:
    """The channel of one queue: where consumers hear that a job is or will be ready."""

    def __init__(self, driver: Driver, services: Services, namespace: str, queue: str) -> None:
        self.name = f"keuss:signal:{namespace}:{queue}"
        self._driver = driver
        self._services = services
        self.of_store = self.name if services.signals_itself else None  # the store signals along with what it stores

    async def announce(self, delay_ms: int = 0, times_ms: Sequence[int | None] = ()) -> None:
        """Signal that a job is ready after a delay, or at the first of these times."""
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
        await signal.send(self.name, str(soonest))

    async def send_paused(self, paused: bool) -> None:
        """Signal that the queue was paused or resumed."""
        await self._services.signal.send(self.name, f"p {'true' if paused else 'false'}")
