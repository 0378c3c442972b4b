# Written by scripts/blocking from ../aio/store.py: change that, then run `make blocking`.
"""A store: where queues live, found by its URL."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from penstock.errors import CallerError
from penstock.job import Move
from penstock.queues import registry
from penstock.queues.backoff import Backoff
from penstock.queues.blocking.driver import Driver
from penstock.queues.blocking.queue import Queue
from penstock.queues.blocking.runtime import Once
from penstock.queues.blocking.services import FORM, Channel, Services
from penstock.queues.blocking.stats import shown
from penstock.queues.capabilities import Capability
from penstock.queues.dead_letter import DeadLetter
from penstock.queues.options import Limit, Options, checked_dead_letter, parse
from penstock.queues.push import Duration, plain_seconds
from penstock.queues.scan import Part, Rows, Wanted


class Store:
    """A place of queues. Open it with `with`, or with `open` and `close`."""

    def __init__(self, driver: Driver, options: Options) -> None:
        self._driver = driver
        self.options = options
        self.url = driver.address.url
        self.namespace = options.name
        self._services = Services(driver, self.namespace, options.signal, options.stats)
        self._own_services: dict[str, Services] = {}  # of queues that have their own, by name
        if self._services.stats_are_own and driver.can_count:
            driver.counts_in = self.namespace
        self._queues: WeakSet[Queue] = WeakSet()
        self._is_closing = self._is_closed = False
        self.open = Once(self._open)

    def __repr__(self) -> str:
        return f"<Store {self.url}>"

    def _services_of(self, queue: str) -> Services:
        """The signals and statistics of a queue."""
        return self._own_services.get(queue, self._services)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this store can do."""
        return self._driver.capabilities

    @property
    def place(self) -> str:
        """Where the jobs are: two stores with the same place are one, whatever their URLs look like."""
        return self._driver.place

    @property
    def keeps_payloads(self) -> bool:
        """Whether payloads are stored, as Keuss does; otherwise bodies are, and the queue's codec reads them."""
        return self._driver.keeps_payloads

    @property
    def batch_max(self) -> int:
        """The number of jobs that go to the store in one call; larger batches are cut."""
        return self._driver.batch_max

    @property
    def has_marks(self) -> bool:
        """Whether reserved jobs can be had again by their marks, where the store has no claims."""
        return self._driver.has_marks

    @property
    def has_shared_counters(self) -> bool:
        """Whether counters are those of all processes; otherwise each process counts for itself."""
        return self._driver.is_in_memory or not self._services.stats.is_local

    def _open(self) -> None:
        if self._is_closing:
            raise CallerError(f"the store {self.url} was closed; connect again")
        self._driver.open()
        try:
            self._services.open()
        except BaseException:
            self._driver.close()
            raise

    @property
    def _open_driver(self) -> Driver:
        self.check_open()
        return self._driver

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
        for services in {*self._own_services.values(), self._services}:
            services.close()
        self._driver.close()
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
            poll=poll_s if poll_s is not None else self._driver.poll_s,
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
            services = Services(self._driver, self.namespace, signal, stats, self._services)
        self._own_services[name] = services
        if services.stats is not self._services.stats:
            self._driver.uncounted.add(name)

    def _move(self, queue: str, to: str, moves: Sequence[Move], counter: str | None) -> list[bool]:
        """Move jobs to another queue of this store, count them in both, and signal it to the other's consumers."""
        self.check_open()
        for move in moves:
            self._driver.prepare(move.job)
        target = self._services_of(to)
        target.try_open()
        channel = Channel(self._driver, target, self.namespace, to)
        moved: list[bool] = []
        for begin in range(0, len(moves), self._driver.batch_max):
            batch = moves[begin : begin + self._driver.batch_max]
            moved += self._driver.move(queue, to, batch, channel.of_store, counter)
        if counter is not None:
            self._services_of(queue).counters.count(queue, counter, sum(moved))
        target.counters.count(to, "put", sum(moved))
        if any(moved) and channel.of_store is None and target.open.is_done:
            channel.announce()
        return moved

    def _track(self, queue: Queue) -> None:
        """Close this object of a queue with the store."""
        self._queues.add(queue)

    def dead_letters(self) -> Queue:
        """The queue of dead letters."""
        return self.queue((self.options.dead_letter or DeadLetter()).queue)

    def exists(self) -> bool:
        """Whether there is something behind the URL: False for an SQLite file or directory that nobody has made yet."""
        self.check_open()
        return self._driver.exists()

    def queues(self, *, with_jobs: bool = False) -> list[str]:
        """Return the names of all queues that have jobs, or that were made known in this namespace.

        With `with_jobs`, only of those that have jobs, as far as the store can tell.
        """
        self.check_open()
        if with_jobs:
            return self._driver.queues()
        known = {*self._driver.queues(), *self._services.stats.queues()}
        for services in set(self._own_services.values()):
            services.open()
            known.update(services.stats.queues())
        return sorted(known)

    def topology(self) -> dict[str, dict[str, Any]]:
        """All queues: the options that they were made known with, counters, and whether they are paused."""
        self.check_open()
        found = {}
        for name in self.queues():
            services = self._services_of(name)
            services.counters.flush()
            stats = services.stats
            found[name] = {
                "options": stats.options(name),
                "counters": shown(stats.counters(name)),
                "paused": self.paused(name),
            }
        return found

    def paused(self, name: str) -> bool:
        """Whether a queue is paused."""
        self.check_open()
        if self._driver.pauses_itself:
            return self._driver.paused(name)
        services = self._services_of(name)
        services.open()
        return services.stats.paused(name)

    def scan_parts(self, queues: Sequence[str], wanted: Wanted) -> list[Part]:
        """Return the parts of a scan over all jobs of some queues; several processes may read them at the same time."""
        self.check_open()
        return self._driver.parts(queues, wanted)

    def scan(self, part: Part, wanted: Wanted, count: int, cursor: str | None = None) -> Rows:
        """Return the next jobs of a part as columns, about `count` of them; the scan ends when the cursor is None."""
        self.check_open()
        return self._driver.look(part, wanted, count, cursor)

    def observe(self, counted: Callable[[str, str, int], None]) -> None:
        """Call back with queue, counter and number for all that is counted through this object; for metrics.

        Counters have the names under which they are stored: put, get, reserve, commit, rollback, deadletter.
        """
        self._services.counters.observer = counted

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
        self._driver.shift_ms += round(seconds * 1000)


def connect(url: str, **options: Any) -> Store:
    """A store by its URL, to be opened with `with`.

    Options, in the URL's query or as arguments: `name` (namespace), `lease` and `poll` in seconds, `signal` and `stats`
    (URLs), `dead_letter`, `codec`; the rest belongs to the kind of store.
    """
    address, common, extra = parse(url, options)
    driver: Driver = registry.find("stores", address.scheme, FORM)(address, common, extra)
    return Store(driver, common)
