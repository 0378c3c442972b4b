# Written by scripts/blocking from ../aio/store.py: change that, then run `make blocking`.
"""A store: where queues live, found by its URL."""

from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from penstock.errors import CallerError, ConnectionLost
from penstock.queues import registry
from penstock.queues.backoff import Backoff
from penstock.queues.blocking.counting import Counting
from penstock.queues.blocking.driver import Driver
from penstock.queues.blocking.once import Once
from penstock.queues.blocking.queue import Queue
from penstock.queues.blocking.signals.base import Signal
from penstock.queues.blocking.signals.local import LocalSignal
from penstock.queues.blocking.stats.base import Stats, shown
from penstock.queues.blocking.stats.memory import MemoryStats
from penstock.queues.capabilities import Capability
from penstock.queues.dead_letter import DeadLetter
from penstock.queues.options import Limit, Options, checked_dead_letter, parse
from penstock.queues.push import Duration, plain_seconds

FORM = __name__.split(".")[2]  # blocking or blocking


class Services:
    """What queues have beside their jobs: signals, statistics, and the counters that are on their way there.

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
        self.signals_itself: bool
        self.stats: Stats
        self.stats_are_own: bool
        self.counting: Counting | None = None  # None: the store's
        self._made: list[Signal | Stats] = []
        if of_store is not None and of_store.urls[0] == signal:
            self.signal, self.signals_itself = of_store.signal, of_store.signals_itself
        else:
            self.signal, self.signals_itself = _signal_of(driver, signal)
            self._made.append(self.signal)
        if of_store is not None and of_store.urls[1] == stats:
            self.stats, self.stats_are_own = of_store.stats, of_store.stats_are_own
        else:
            self.stats, self.stats_are_own = _stats_of(driver, namespace, stats)
            self._made.append(self.stats)
            self.counting = Counting(self.stats, driver.counts)

    def try_open(self) -> None:
        """Open them unless they can't be reached: jobs on their way must not wait for signals and statistics."""
        if not self.open.is_done:
            with suppress(ConnectionLost):
                self.open()

    def _open(self) -> None:
        opened: list[Signal | Stats] = []
        try:
            for one in self._made:
                one.open()
                opened.append(one)
        except BaseException:
            for one in opened:
                one.close()
            raise

    def close(self) -> None:
        """Write the counters, and let go of the connections."""
        if not self.open.is_done:
            return
        if self.counting is not None:
            self.counting.close()
        for one in self._made:
            one.close()


def _signal_of(driver: Driver, url: str | None) -> tuple[Signal, bool]:
    """The bus, and whether the driver sends on it by itself."""
    if url is None:
        own = driver.own_signal()
        return (LocalSignal(driver.place), False) if own is None else (own, True)
    address, _, extra = parse(url, {})
    if address.scheme == "local":
        return LocalSignal(driver.place), False
    return registry.find("signals", address.scheme, FORM)(address, extra), False


def _stats_of(driver: Driver, namespace: str, url: str | None) -> tuple[Stats, bool]:
    """Where the statistics are, and whether that is the store itself."""
    if url is None:
        own = driver.own_stats()
        return (MemoryStats(driver.place, namespace), False) if own is None else (own, True)
    address, _, extra = parse(url, {})
    if address.scheme == "memory":
        return MemoryStats(driver.place, namespace), False
    return registry.find("stats", address.scheme, FORM)(address, extra, namespace), False


class Store:
    """A place of queues. Open it with `with`, or with `open` and `close`."""

    def __init__(self, driver: Driver, options: Options) -> None:
        self.driver = driver
        self.options = options
        self.url = driver.address.url
        self.namespace = options.name
        self._services = Services(driver, self.namespace, options.signal, options.stats)
        self._own_services: dict[str, Services] = {}  # of queues that have their own, by name
        self.signal, self.signals_itself = self._services.signal, self._services.signals_itself
        self.stats, self.stats_are_own = self._services.stats, self._services.stats_are_own
        if self.stats_are_own and driver.can_count:
            driver.counts_in = self.namespace
        self.counting = self._services.counting or Counting(self.stats, driver.counts)
        self._queues: WeakSet[Queue] = WeakSet()
        self._is_closing = self._is_closed = False
        self.open = Once(self._open)

    def __repr__(self) -> str:
        return f"<Store {self.url}>"

    def _services_of(self, queue: str) -> Services:
        """The signals and statistics of a queue."""
        return self._own_services.get(queue, self._services)

    def _counting_of(self, queue: str) -> Counting:
        """Where what happens in a queue is counted."""
        own = self._own_services.get(queue)
        return self.counting if own is None or own.counting is None else own.counting

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this store can do."""
        return self.driver.capabilities

    def _open(self) -> None:
        if self._is_closing:
            raise CallerError(f"the store {self.url} was closed; connect anew")
        self.driver.open()
        try:
            self._services.open()
        except BaseException:
            self.driver.close()
            raise

    def check_open(self) -> None:
        """Raise if the store isn't open."""
        if self._is_closed or not self.open.is_done:
            raise CallerError(f"the store {self.url} is not open: use it in a `with` block, or call open() first")

    def close(self) -> None:
        """End all waits, write the counters, and let go of the connections."""
        if self._is_closing:
            return
        self._is_closing = True
        for queue in list(self._queues):
            queue.close()
        self._is_closed = True
        if not self.open.is_done:
            return
        self.counting.close()
        for services in {*self._own_services.values(), self._services}:
            services.close()
        self.driver.close()
        self.open.is_done = False

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def queue(
        self,
        name: str,
        *,
        dead_letter: Limit | None = None,
        lease: Duration | None = None,
        codec: str | None = None,
        backoff: Backoff | None = None,
        poll: Duration | None = None,
        signal: str | None = None,
        stats: str | None = None,
    ) -> Queue:
        """A queue by its name. It needs no creation; options that are left out are the store's.

        `dead_letter` is a DeadLetter, or the number of deliveries after which a job goes to the dead letters. `signal`
        and `stats` are URLs, as the store's options are. They hold for all objects of this queue that the store makes.
        """
        limit = self.options.dead_letter if dead_letter is None else checked_dead_letter(dead_letter)
        if signal is not None or stats is not None:
            self._serve(name, signal or self.options.signal, stats or self.options.stats)
        given = {"lease": plain_seconds(lease), "codec": codec, "poll": plain_seconds(poll)}
        named: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
        if dead_letter is not None and limit is not None:
            named["dead_letter"] = {"max_tries": limit.max_tries, "queue": limit.queue}
        poll_s = poll if poll is not None else self.options.poll
        queue = Queue(
            self,
            name,
            dead_letter=limit,
            lease=lease if lease is not None else self.options.lease,
            codec=codec if codec is not None else self.options.codec,
            backoff=backoff,
            poll=poll_s if poll_s is not None else self.driver.poll_s,
            options=named,
        )
        self._track(queue)
        return queue

    def _serve(self, name: str, signal: str | None, stats: str | None) -> None:
        """Set the signals and statistics of a queue."""
        if self._services_of(name).urls == (signal, stats):
            return
        if any(queue.name == name for queue in self._queues):
            raise CallerError(f"signal and stats must be given when the queue {name!r} is first made")
        services = next((one for one in self._own_services.values() if one.urls == (signal, stats)), None)
        if services is None:
            services = Services(self.driver, self.namespace, signal, stats, self._services)
        self._own_services[name] = services
        if services.stats is not self.stats:
            self.driver.uncounted.add(name)

    def _track(self, queue: Queue) -> None:
        """Close this object of a queue with the store."""
        self._queues.add(queue)

    def dead_letters(self) -> Queue:
        """The queue of dead letters."""
        return self.queue((self.options.dead_letter or DeadLetter()).queue)

    def exists(self) -> bool:
        """Whether there is something behind the URL: False for an SQLite file or directory that nobody has made yet."""
        self.check_open()
        return self.driver.exists()

    def queues(self) -> list[str]:
        """The names of all queues that have jobs, or that somebody made known in this namespace."""
        self.check_open()
        known = {*self.driver.queues(), *self.stats.queues()}
        for services in set(self._own_services.values()):
            services.open()
            known.update(services.stats.queues())
        return sorted(known)

    def topology(self) -> dict[str, dict[str, Any]]:
        """All queues: the options that they were made known with, counters, and whether they are paused."""
        self.check_open()
        found = {}
        for name in self.queues():
            self._counting_of(name).flush()
            stats = self._services_of(name).stats
            found[name] = {
                "options": stats.options(name),
                "counters": shown(stats.counters(name)),
                "paused": self.paused(name),
            }
        return found

    def paused(self, name: str) -> bool:
        """Whether a queue is paused."""
        self.check_open()
        if self.driver.pauses_itself:
            return self.driver.paused(name)
        services = self._services_of(name)
        services.open()
        return services.stats.paused(name)

    def recreate(self) -> dict[str, Queue]:
        """All known queues, made with the options that they were made known with."""
        self.check_open()
        made = {}
        for name in self.queues():
            options = self._services_of(name).stats.options(name)
            known = {option: options[option] for option in ("lease", "codec", "poll") if option in options}
            dead = options.get("dead_letter")
            made[name] = self.queue(name, dead_letter=dead if isinstance(dead, dict) else None, **known)
        return made

    def shift_clock(self, seconds: float) -> None:
        """For tests: let this store's time be later by so much. Only what this object asks for goes by it."""
        self.driver.shift_ms += round(seconds * 1000)


def connect(url: str, **options: Any) -> Store:
    """A store by its URL, to be opened with `with`.

    Options, in the URL's query or as arguments: `name` (namespace), `lease` and `poll` in seconds, `signal` and `stats`
    (URLs), `dead_letter`, `codec`; the rest belongs to the kind of store.
    """
    address, common, extra = parse(url, options)
    driver: Driver = registry.find("stores", address.scheme, FORM)(address, common, extra)
    return Store(driver, common)
