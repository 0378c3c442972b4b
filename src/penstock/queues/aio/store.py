"""A store: where queues live, found by its URL."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from penstock.errors import CallerError
from penstock.job import LIVE, JobMove, JobState
from penstock.queues import registry
from penstock.queues.aio.driver import Driver, NewValue
from penstock.queues.aio.queue import Queue
from penstock.queues.aio.runtime import Coalescer, Once, opened_in_this_form
from penstock.queues.aio.services import FORM, Channel, Services
from penstock.queues.aio.stats import shown
from penstock.queues.backoff import Backoff
from penstock.queues.capabilities import Capability, require
from penstock.queues.dead_letter import DeadLetter
from penstock.queues.events import StoreEvents
from penstock.queues.options import Limit, Options, checked_dead_letter, parse
from penstock.queues.push import Duration, check_text, is_text, milliseconds, plain_seconds, shortened
from penstock.queues.scan import Part, Rows, Wanted

VALUE_KEY_BYTES_MAX = 200  # a file's name in directories, which may be 255 bytes
# Attributes that were public -> what does the same.
REPLACED = {
    "driver": "scan_parts, scan, place, or methods of a queue",
    "stats": "topology(), or stats() of a queue",
    "signal": "queue(name, signal=...)",
}


@opened_in_this_form
class Store:
    """A place of queues. Open it with `async with`, or with `open` and `close`."""

    def __init__(self, driver: Driver, options: Options) -> None:
        self._driver = driver
        self.options = options
        self.url = driver.address.url
        self.namespace = options.namespace
        self._services = Services(driver, self.namespace, options.signal, options.stats)
        self._own_services: dict[str, Services] = {}  # of queues that have their own, by name
        if self._services.stats_are_own and driver.can_count:
            driver.counts_in = self.namespace
        self._values: Coalescer[NewValue, None] = Coalescer(self._put_values, driver.batch_max, in_turn=True)
        self._events: StoreEvents | None = None  # while the store is open, if events are recorded
        self._queues: WeakSet[Queue] = WeakSet()
        self._is_closing = self._is_closed = False
        self.open = Once(self._open)

    def __repr__(self) -> str:
        return f"<Store {self.url}>"

    if not TYPE_CHECKING:  # or every name would be an attribute for a type checker

        def __getattr__(self, name: str) -> Any:
            now = f": it is private; use {REPLACED[name]}" if name in REPLACED else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{now}")

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
    def claims_in_steps(self) -> bool:
        """Whether a claim leases jobs before its key is written: a failure in between leaves them to their leases."""
        return self._driver.claims_in_steps

    @property
    def keys_moves(self) -> bool:
        """Whether a move that takes two steps has a unique key: repeated after a crash, it stores no second job."""
        return self._driver.keys_moves

    @property
    def has_marks(self) -> bool:
        """Whether reserved jobs can be had again by their marks, where the store has no claims."""
        return self._driver.has_marks

    @property
    def has_shared_counters(self) -> bool:
        """Whether counters are those of all processes; otherwise each process counts for itself."""
        return self._driver.is_in_memory or not self._services.stats.is_local

    @property
    def live_states(self) -> frozenset[JobState]:
        """The states in which a job that has not ended can be on this store."""
        return frozenset([*LIVE, JobState.AWAY]) if self._driver.has_away else frozenset(LIVE)

    @property
    def compares(self) -> frozenset[str]:
        """What a scan compares by itself: columns for `Wanted.limits`, and `id` for `Wanted.ids`."""
        return self._driver.compares

    async def _open(self) -> None:
        if self._is_closing:
            raise CallerError(f"the store {self.url} was closed; connect again")
        events = None if self.options.events is None else StoreEvents(self.options.events, self._driver.place)
        try:
            await self._driver.open()
            try:
                await self._services.open()
                if events is not None:
                    events.adds_only = await self._driver.records_events()
            except BaseException:
                await self._driver.close()
                raise
        except BaseException:
            if events is not None:
                events.close()
            raise
        self._events = events

    @property
    def _open_driver(self) -> Driver:
        self.check_open()
        return self._driver

    def check_open(self) -> None:
        """Raise if the store isn't open."""
        if self._is_closed or not self.open.is_done:
            raise CallerError(f"the store {self.url} is not open: use it in a `with` block, or call open() first")

    async def close(self) -> None:
        """End all waits, write the counters, and let go of the connections."""
        if self._is_closing:
            return
        self._is_closing = True
        for queue in list(self._queues):
            await queue.close()
        self._is_closed = True
        if not self.open.is_done:
            return
        for services in {*self._own_services.values(), self._services}:
            await services.close()
        await self._driver.close()
        if self._events is not None:
            self._events.close()
            self._events = None
        self.open.is_done = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

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

    async def _move(self, queue: str, to: str, moves: Sequence[JobMove], counter: str | None) -> list[bool]:
        """Move jobs to another queue of this store, count them in both, and signal it to the other's consumers."""
        self.check_open()
        for move in moves:
            if move.job.prepared is None:
                self._driver.prepare(move.job)
        target = self._services_of(to)
        await target.try_open()
        channel = Channel(self._driver, target, self.namespace, to)
        moved: list[bool] = []
        for begin in range(0, len(moves), self._driver.batch_max):
            batch = moves[begin : begin + self._driver.batch_max]
            moved += await self._driver.move(queue, to, batch, channel.of_store, counter)
        if counter is not None:
            self._services_of(queue).counters.count(queue, counter, sum(moved))
        target.counters.count(to, "put", sum(moved))
        if any(moved) and channel.of_store is None and target.open.is_done:
            went = [move.job for move, is_moved in zip(moves, moved, strict=True) if is_moved]
            await channel.announce(min(job.delay_ms for job in went), [job.mature_ms for job in went])
        if queue in self._driver.freed:
            self._driver.freed.discard(queue)
            await Channel(self._driver, self._services_of(queue), self.namespace, queue).announce()
        return moved

    def _track(self, queue: Queue) -> None:
        """Close this object of a queue with the store."""
        self._queues.add(queue)

    def dead_letters(self) -> Queue:
        """The queue of dead letters."""
        return self.queue((self.options.dead_letter or DeadLetter()).queue)

    async def names_in_events(self) -> frozenset[str]:
        """Return what events call this store, or its nodes (`node`).

        Raises if a scan can't show every job that has not ended: a node can't be reached, or never shows all.
        """
        self.check_open()
        return await self._driver.names_in_events()

    async def exists(self) -> bool:
        """Whether there is something behind the URL: False for an SQLite file or directory that nobody has made yet."""
        self.check_open()
        return await self._driver.exists()

    async def queues(self, *, with_jobs: bool = False) -> list[str]:
        """Return the names of all queues that have jobs, or that were made known in this namespace.

        With `with_jobs`, only of those that have jobs, as far as the store can tell.
        """
        self.check_open()
        if with_jobs:
            return await self._driver.queues()
        known = {*await self._driver.queues(), *await self._services.stats.queues()}
        for services in set(self._own_services.values()):
            await services.open()
            known.update(await services.stats.queues())
        return sorted(known)

    async def topology(self) -> dict[str, dict[str, Any]]:
        """All queues: the options that they were made known with, counters, and whether they are paused."""
        self.check_open()
        found = {}
        for name in await self.queues():
            services = self._services_of(name)
            await services.counters.flush()
            stats = services.stats
            found[name] = {
                "options": await stats.options(name),
                "counters": shown(await stats.counters(name)),
                "paused": await self.paused(name),
            }
        return found

    async def paused(self, name: str) -> bool:
        """Whether a queue is paused."""
        self.check_open()
        if self._driver.pauses_itself:
            return await self._driver.paused(name)
        services = self._services_of(name)
        await services.open()
        return await services.stats.paused(name)

    async def scan_parts(self, queues: Sequence[str], wanted: Wanted) -> list[Part]:
        """Return the parts of a scan over all jobs of some queues; several processes may read them at the same time."""
        self.check_open()
        return await self._driver.parts(queues, wanted)

    async def scan(self, part: Part, wanted: Wanted, count: int, cursor: str | None = None) -> Rows:
        """Return the next jobs of a part as columns, about `count` of them; the scan ends when the cursor is None."""
        self.check_open()
        return await self._driver.scan_page(part, wanted, count, cursor)

    async def pages(self, part: Part, wanted: Wanted, count: int) -> AsyncIterator[Rows]:
        """Scan a whole part, a page of about `count` jobs at a time."""
        cursor: str | None = None
        while True:
            rows = await self.scan(part, wanted, count, cursor)
            yield rows
            cursor = rows.cursor
            if cursor is None:
                return

    async def put_value(self, key: str, value: str, *, ttl: Duration) -> None:
        """Keep a text under a key for `ttl` seconds, in place of what was there: for what belongs to jobs, as results.

        Keys are those of all programs that use the store, whatever their namespace.
        """
        check_text("a value", value)
        new = NewValue(key, value, milliseconds("ttl", ttl))
        driver = self._driver_for_values(key)
        if driver.puts_values_together:
            await self._values.add(new)
        else:
            await driver.put_value(*new)

    async def _put_values(self, values: list[NewValue]) -> list[None]:
        if len(values) == 1:
            await self._driver.put_value(*values[0])
        else:
            await self._driver.put_values(values)
        return [None] * len(values)

    async def value(self, key: str) -> str | None:
        """Return the text under a key; None if there is none, or its time is over."""
        return await self._driver_for_values(key).value(key)

    async def remove_value(self, key: str) -> None:
        """Remove what is under a key, if there is something."""
        await self._driver_for_values(key).remove_value(key)

    def _driver_for_values(self, key: str) -> Driver:
        self.check_open()
        require(self.capabilities, Capability.VALUES, self.url)
        if not is_text(key, VALUE_KEY_BYTES_MAX) or not key.isprintable():
            raise CallerError(f"a key must be 1 to {VALUE_KEY_BYTES_MAX} bytes of printable text, got {shortened(key)}")
        return self._driver

    def observe(self, counted: Callable[[str, str, int], None]) -> None:
        """Call back with queue, counter and number for all that is counted through this object; for metrics.

        Counters have the names under which they are stored: put, get, reserve, commit, rollback, deadletter.
        """
        self._services.counters.observer = counted

    async def recreate(self) -> dict[str, Queue]:
        """All known queues, made with the options that they were made known with."""
        self.check_open()
        made = {}
        for name in await self.queues():
            options = await self._services_of(name).stats.options(name)
            known = {option: options[option] for option in ("lease", "codec", "poll") if option in options}
            dead = options.get("dead_letter")
            made[name] = self.queue(name, dead_letter=dead if isinstance(dead, dict) else None, **known)
        return made

    def freeze_clock(self, now: Callable[[], float]) -> None:
        """For tests: let this store's time be what `now` returns, as unix time. Only stores without a server can."""
        self._driver.freeze(now)

    def shift_clock(self, seconds: float) -> None:
        """For tests: set this store's clock ahead by a number of seconds. Only what this object asks for goes by it."""
        self._driver.shift_ms += round(seconds * 1000)


def connect(url: str, **options: Any) -> Store:
    """A store by its URL, to be opened with `with`.

    Options, in the URL's query or as arguments: `namespace`, `lease` and `poll` in seconds, `signal` and `stats`
    (URLs), `dead_letter`, `codec`, `events` (a directory); the rest belongs to the kind of store.
    """
    address, common, extra = parse(url, options)
    driver: Driver = registry.find("stores", address.scheme, FORM)(address, common, extra)
    return Store(driver, common)


@asynccontextmanager
async def opened(store: Store | str) -> AsyncIterator[Store]:
    """Open a store. One that is given as a URL is closed at the end of the block."""
    if isinstance(store, Store):
        await store.open()
        yield store
    else:
        async with connect(store) as made:
            yield made
