# Written by scripts/blocking from src/penstock/queues/aio/store.py: change that, then run `make blocking`.
"""A store: where queues live, found by its URL."""

from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from penstock.errors import CallerError
from penstock.queues import registry
from penstock.queues.backoff import Backoff
from penstock.queues.blocking.counting import Counting
from penstock.queues.blocking.driver import Driver
from penstock.queues.blocking.once import Once
from penstock.queues.blocking.queue import Queue
from penstock.queues.blocking.signals.base import Signal
from penstock.queues.blocking.signals.local import LocalSignal
from penstock.queues.blocking.stats.base import Stats
from penstock.queues.blocking.stats.memory import MemoryStats
from penstock.queues.capabilities import Capability
from penstock.queues.dead_letters import DeadLetter
from penstock.queues.options import Limit, Options, checked_dead_letter, parse
from penstock.queues.pushing import Duration, plain_seconds

FORM = __name__.split(".")[2]  # blocking or blocking


class Store:
    """A place of queues. Open it with `with`, or with `open` and `close`."""

    def __init__(self, driver: Driver, options: Options) -> None:
        self.driver = driver
        self.options = options
        self.url = driver.address.url
        self.namespace = options.name
        self.signal, self.signals_itself = self._signal()
        self.stats, self.stats_are_own = self._stats()
        self.counting = Counting(self.stats)
        self._queues: WeakSet[Queue] = WeakSet()
        self._is_closing = self._is_closed = False
        self.open = Once(self._open)

    def __repr__(self) -> str:
        return f"<Store {self.url}>"

    def _signal(self) -> tuple[Signal, bool]:
        """The bus, and whether the driver sends on it by itself."""
        url = self.options.signal
        if url is None:
            own = self.driver.own_signal()
            return (LocalSignal(self.driver.place), False) if own is None else (own, True)
        address, _, extra = parse(url, {})
        if address.scheme == "local":
            return LocalSignal(self.driver.place), False
        return registry.find("signals", address.scheme, FORM)(address, extra), False

    def _stats(self) -> tuple[Stats, bool]:
        url = self.options.stats
        if url is None:
            own = self.driver.own_stats()
            return (MemoryStats(self.driver.place, self.namespace), False) if own is None else (own, True)
        address, _, extra = parse(url, {})
        if address.scheme == "memory":
            return MemoryStats(self.driver.place, self.namespace), False
        return registry.find("stats", address.scheme, FORM)(address, extra, self.namespace), False

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this store can do."""
        return self.driver.capabilities

    def _open(self) -> None:
        if self._is_closing:
            raise CallerError(f"the store {self.url} was closed; connect anew")
        self.driver.open()
        try:
            self.signal.open()
            self.stats.open()
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
        self.signal.close()
        self.stats.close()
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
    ) -> Queue:
        """A queue by its name. It needs no creation; options that are left out are the store's.

        `dead_letter` is a DeadLetter, or the number of deliveries after which a job goes to the dead letters.
        """
        limit = self.options.dead_letter if dead_letter is None else checked_dead_letter(dead_letter)
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
        self._queues.add(queue)
        return queue

    def dead_letters(self) -> Queue:
        """The queue of dead letters."""
        return self.queue((self.options.dead_letter or DeadLetter()).queue)

    def queues(self) -> list[str]:
        """The names of all queues that have jobs, or that somebody made known in this namespace."""
        self.check_open()
        return sorted({*self.driver.queues(), *self.stats.queues()})

    def topology(self) -> dict[str, dict[str, Any]]:
        """All queues: the options that they were made known with, counters, and whether they are paused."""
        self.check_open()
        self.counting.flush()
        return {
            name: {
                "options": self.stats.options(name),
                "counters": self.stats.counters(name),
                "paused": self.paused(name),
            }
            for name in self.queues()
        }

    def paused(self, name: str) -> bool:
        """Whether a queue is paused."""
        return (self.driver if self.driver.pauses_itself else self.stats).paused(name)

    def recreate(self) -> dict[str, Queue]:
        """All known queues, made with the options that they were made known with."""
        self.check_open()
        made = {}
        for name in self.queues():
            options = self.stats.options(name)
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
