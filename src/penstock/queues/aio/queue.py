"""A queue: what the API promises, on top of what a driver can do.

Single calls that are made at the same time go to the store as one (`runtime.Coalescer`); callers that wait for jobs are
served by one `Fetcher` for each way of taking them.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, overload
from weakref import WeakSet

from penstock.codec import check_codec
from penstock.errors import CallerError, ConnectionLost, LeaseLost
from penstock.job import Consumer, JobState, Lease, Mark, NewJob, Sizes, StoredJob
from penstock.queues.aio.dead_letters import DeadLetters, redrive
from penstock.queues.aio.driver import Driver
from penstock.queues.aio.fetcher import Fetcher
from penstock.queues.aio.job import Job
from penstock.queues.aio.runtime import Coalescer, Once
from penstock.queues.aio.services import Channel, Pause
from penstock.queues.aio.signal import SignalListener
from penstock.queues.aio.stats import shown
from penstock.queues.aio.taker import Taker
from penstock.queues.backoff import Backoff
from penstock.queues.capabilities import Capability, require
from penstock.queues.dead_letter import DEAD_LETTER_QUEUE, DeadLetter, Error
from penstock.queues.options import checked_lease
from penstock.queues.push import Duration, Push, is_number, milliseconds, new_job, plain_seconds, point_ms

if TYPE_CHECKING:
    from penstock.queues.aio.store import Store

NAME_BYTES_MAX = 1024  # of a queue; PostgreSQL takes fewer, and says so
SHOWN_MAX = 80  # characters of a wrong name in an error
PAGE = 500  # jobs read in one round trip


class Queue:
    """A queue of a store. Made by `store.queue(name)`; any number of tasks may use one."""

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
        driver = store._driver
        _check_name("a queue name", name, driver)
        if dead_letter is not None:
            # Now, not when the first job is given up: a worker would end then, with reserved jobs.
            _check_name("the name of the dead-letter queue", dead_letter.queue, driver)
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
        self._services = services = store._services_of(name)
        self._counters = services.counters
        self._channel = Channel(driver, services, store.namespace, name)
        self._listener = SignalListener(services.signal, self._channel.name, self._heard)
        self._pause = Pause(driver, services, name, self._listener, self.poll_s)
        self._dead_letters = DeadLetters(store, name, dead_letter)
        self._taker = Taker(store, name, self._counters, self._channel, self._pause, self._dead_letters)
        self._fetchers: dict[tuple[int | None, bool], Fetcher] = {}  # by lease, and whether all jobs begin at once
        self._pushes: Coalescer[NewJob, str] = Coalescer(self._push_now, driver.batch_max)
        self._acks: Coalescer[Lease, bool] = Coalescer(self._ack_now, driver.batch_max)
        self._nacks: Coalescer[tuple[Lease, int], bool] = Coalescer(self._nack_now, driver.batch_max)
        self._extends: Coalescer[tuple[Lease, int, bool], str | None] = Coalescer(self._extend_now, driver.batch_max)
        self._variants: WeakSet[Queue] = WeakSet()  # made by `with_options`
        self._is_drained = False
        self._register = Once(self._make_known)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} of {self.store.url}>"

    @property
    def type(self) -> str:
        """What kind of queue it is: `redis:oq`, `redis:list` and `postgres:simple` as Keuss says it, or `disque`,
        `fsq`, `memory`, `sqlite`."""
        return self.store._driver.type

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

    async def push(
        self,
        payload: Any,
        *,
        delay: Duration = 0,
        mature: float | datetime | None = None,
        tries: int = 0,
        headers: Mapping[str, Any] | None = None,
        ttl: Duration | None = None,
        retry: Duration | None = None,
        replicate: int | None = None,
        unique: str | None = None,
        unique_for: Duration = 0,
        connection: Any = None,
    ) -> str:
        """Store a job; gives its id.

        Times are seconds or timedeltas; `mature` is a unix time, or a datetime that has a time zone.
        With `unique`, the id of the job that already has the key, if there is one, or was within `unique_for` seconds.
        With `connection`, within the transaction that is open there.
        """
        self._check_not_drained()
        job = self._new(Push(payload, delay, mature, tries, headers, ttl, retry, replicate, unique, unique_for))
        if connection is not None:
            return (await self._push_within(connection, [job]))[0]
        return await self._pushes.add(job)

    async def push_many(self, payloads: Iterable[Any], *, connection: Any = None, **options: Any) -> list[str]:
        """Store many jobs, 1,000 a round trip; gives their ids. A payload with options of its own is a `Push`."""
        self._check_not_drained()
        items = list(payloads)
        is_short = connection is None and not options and self.store._driver.takes_bodies
        if is_short and set(map(type, items)) <= {bytes}:
            return await self._push_bodies(items)
        jobs = [self._new(item if isinstance(item, Push) else Push(item, **options)) for item in items]
        if connection is not None:
            return await self._push_within(connection, jobs)
        ids: list[str] = []
        for begin in range(0, len(jobs), self._driver.batch_max):
            ids += await self._push_now(jobs[begin : begin + self._driver.batch_max])
        return ids

    async def _push_bodies(self, bodies: Sequence[bytes]) -> list[str]:
        """Without an object for each: that would cost more than all else."""
        ids: list[str] = []
        for begin in range(0, len(bodies), self._driver.batch_max):
            await self._register()
            added = await self._driver.push_bodies(self.name, bodies[begin : begin + self._driver.batch_max])
            self._counters.count(self.name, "put", len(added))
            await self._channel.announce()
            ids += added
        return ids

    def _new(self, push: Push) -> NewJob:
        driver = self.store._driver
        job = new_job(push, self.codec, driver.capabilities, self.store.url)
        driver.prepare(job)
        return job

    async def _push_now(self, jobs: Sequence[NewJob]) -> list[str]:
        await self._register()
        ids = await self._driver.push(self.name, jobs, self._channel.of_store)
        added = _added(jobs, ids)
        self._counters.count(self.name, "put", len(added))
        if added and self._channel.of_store is None:
            await self._channel.announce(min(job.delay_ms for job in added), [job.mature_ms for job in added])
        return ids

    async def _push_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[str]:
        # The caller's transaction may hold a lock that the store's own connection would wait for, so that one writes
        # nothing now: the queue is made known by its next user. What the store counts by itself is counted within the
        # transaction. Statistics elsewhere count the push although it may be rolled back: nobody tells them.
        self._require(Capability.TRANSACTION)
        ids = await self._driver.push_within(connection, self.name, jobs)
        self._counters.count(self.name, "put", len(_added(jobs, ids)))
        return ids

    @overload
    async def pop(self, timeout: None = None, *, waiter: object = None, consumer: str | None = None) -> Job: ...
    @overload
    async def pop(self, timeout: Duration, *, waiter: object = None, consumer: str | None = None) -> Job | None: ...
    async def pop(
        self, timeout: Duration | None = None, *, waiter: object = None, consumer: str | None = None
    ) -> Job | None:
        """Take a job out of the store: at most once. None when the time (seconds; None for ever) is over."""
        jobs = await self.pop_many(1, timeout, waiter=waiter, consumer=consumer)
        return jobs[0] if jobs else None

    async def pop_many(
        self,
        count: int,
        timeout: Duration | None = 0,
        *,
        waiter: object = None,
        consumer: str | None = None,
    ) -> list[Job]:
        """Take one to `count` jobs; none when the time is over."""
        return [Job(self, stored) for stored in await self._fetch(None, count, timeout, waiter, consumer)]

    @overload
    async def reserve(
        self,
        timeout: None = None,
        *,
        lease: Duration | None = None,
        waiter: object = None,
        consumer: str | None = None,
    ) -> Job: ...
    @overload
    async def reserve(
        self,
        timeout: Duration,
        *,
        lease: Duration | None = None,
        waiter: object = None,
        consumer: str | None = None,
    ) -> Job | None: ...
    async def reserve(
        self,
        timeout: Duration | None = None,
        *,
        lease: Duration | None = None,
        waiter: object = None,
        consumer: str | None = None,
    ) -> Job | None:
        """Lease a job: it comes back when the lease ends before `ack`. None when the time is over."""
        jobs = await self.reserve_many(1, timeout, lease=lease, waiter=waiter, consumer=consumer)
        return jobs[0] if jobs else None

    async def reserve_many(
        self,
        count: int,
        timeout: Duration | None = 0,
        *,
        lease: Duration | None = None,
        waiter: object = None,
        consumer: str | None = None,
        begin: int | None = None,
    ) -> list[Job]:
        """Lease one to `count` jobs; none when the time is over.

        Each is a try: the delivery counts, also if the lease runs out. With `begin`, only the first ones count from now
        on, and of these only jobs that don't come back from a lease that ran out: `job.has_begun` says which. The
        others count from when `extend_many` or `ack_many` says that work on them has begun.
        """
        self._require(Capability.RESERVE)
        seconds = self.lease if lease is None else checked_lease(lease)
        stored = await self._fetch(milliseconds("lease", seconds), count, timeout, waiter, consumer, begin)
        return [Job(self, one, seconds) for one in stored]

    @asynccontextmanager
    async def reserving(
        self,
        timeout: Duration | None = None,
        *,
        lease: Duration | None = None,
    ) -> AsyncIterator[Job | None]:
        """Reserve a job for a block: acked when it ends, given back when it raises. None when the time is over."""
        job = await self.reserve(timeout, lease=lease)
        if job is None:
            yield None
            return
        async with job:
            yield job

    async def _fetch(
        self,
        lease_ms: int | None,
        count: int,
        timeout: Duration | None,
        waiter: object,
        consumer: str | None,
        begin: int | None = None,
    ) -> list[StoredJob]:
        if count < 1:
            raise CallerError(f"count={count}: ask for at least one job")
        wait_s = None if timeout is None else _wait_seconds(timeout)
        self._check_not_drained()
        self.store.check_open()
        await self._register()
        way = lease_ms, begin is None
        fetcher = self._fetchers.get(way)
        if fetcher is None:
            fetcher = self._fetchers[way] = Fetcher(self._taker, lease_ms, self._listener, self.poll_s)
        return await fetcher.get(count, wait_s, waiter, consumer, begin)

    async def release_many(self, jobs: Iterable[Job]) -> None:
        """Give back jobs that were reserved and not begun: they are ready at once, and no try is counted."""
        self._require(Capability.RESERVE)
        stored = [job.stored for job in jobs]
        for begin in range(0, len(stored), self._driver.batch_max):
            await self._taker.return_unseen(0, stored[begin : begin + self._driver.batch_max])

    async def ack(self, job: Job | str) -> None:
        """Acknowledge a reserved job: it is done, and goes.

        By id alone this is unfenced: the job is ended whoever has it reserved, also if the lease that you had is over
        and another worker runs the job by now. LeaseLost is raised if nobody has it reserved.
        """
        self._require(Capability.RESERVE)
        if isinstance(job, str):
            job = await self._reserved_job(job)
        if not await self._acks.add(_leases([job], "ack")[0]):
            raise _lost(job.id, self.name, "acked")

    async def ack_many(self, jobs: Iterable[Job], begun: Iterable[Job] = ()) -> list[bool]:
        """End many jobs; return for each whether it was still this worker's.

        `begun` are other jobs, reserved with `begin`, on which work has begun since.
        """
        self._require(Capability.RESERVE)
        begun = list(begun)
        ended = await self._ack_now(_leases(list(jobs), "ack_many"), _leases(begun, "ack_many"))
        for job in begun:
            job.stored.has_begun = True
        return ended

    async def _ack_now(self, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        ended: list[bool] = []
        batch_max = self._driver.batch_max
        for at in range(0, max(len(leases), len(begun)), batch_max):
            ended += await self._driver.ack(self.name, leases[at : at + batch_max], begun[at : at + batch_max])
        self._counters.count(self.name, "commit", sum(ended))
        return ended

    async def ack_by_token(self, job_id: str, token: str) -> None:
        """Acknowledge a job that somebody reserved, by its id and the token of its lease."""
        self._require(Capability.RESERVE)
        if not await self._acks.add(Lease(job_id, token)):
            raise _lost(job_id, self.name, "acked")

    async def nack(
        self, job: Job | str, delay: Duration | None = None, error: Error = "", *, at: float | datetime | None = None
    ) -> None:
        """Return a reserved job to its queue, or, after its last try, move it to the dead letters.

        It is ready after `delay` seconds (by default those of the back-off), or at the time `at`. By id alone this is
        unfenced, as `ack` is. `error` is a text or an exception.
        """
        self._require(Capability.RESERVE)
        delay = await self._delay_until(delay, at)
        if isinstance(job, str):
            if not self._driver.delays_by_id:
                if delay:
                    raise CallerError(f"nack by id alone takes no delay on {self.store.url}: give the reserved job")
                delay = 0
            job = await self._reserved_job(job)
        _leases([job], "nack")
        if self._dead_letters.is_last_try(job.tries):
            done = (await self._dead_letters.add([job.stored], [error]))[0]
        else:
            done = await self._nacks.add((job.as_lease, self._delay_ms(job.tries, delay)))
        if not done:
            raise _lost(job.id, self.name, "given back")

    async def nack_many(
        self,
        jobs: Iterable[Job],
        delay: Duration | None = None,
        error: Error = "",
        *,
        at: float | datetime | None = None,
    ) -> list[bool]:
        """Return many jobs to their queue; gives for each whether it was still this worker's."""
        self._require(Capability.RESERVE)
        jobs = list(jobs)
        _leases(jobs, "nack_many")
        delay = await self._delay_until(delay, at)
        last = [job for job in jobs if self._dead_letters.is_last_try(job.tries)]
        others = [job for job in jobs if not self._dead_letters.is_last_try(job.tries)]
        outcome: dict[Job, bool] = {}
        if last:
            moved = await self._dead_letters.add([job.stored for job in last], [error] * len(last))
            outcome.update(zip(last, moved, strict=True))
        items = [(job.as_lease, self._delay_ms(job.tries, delay)) for job in others]
        for begin in range(0, len(items), self._driver.batch_max):
            batch = items[begin : begin + self._driver.batch_max]
            outcome.update(zip(others[begin : begin + len(batch)], await self._nack_now(batch), strict=True))
        return [outcome[job] for job in jobs]

    async def nack_by_token(self, job_id: str, token: str, delay: Duration | None = None, error: Error = "") -> None:
        """Return a job that somebody reserved to its queue, or, after its last try, move it to the dead letters.

        By its id and the token of its lease, for programs that have no job object.
        """
        self._require(Capability.RESERVE)
        if self._dead_letters.limit is not None or (delay is None and self.backoff is not None):
            # How often it was delivered decides about what becomes of it.
            (found,) = await self._driver.reserved(self.name, [job_id])
            if found is not None:
                found.token = token
                await self.nack(Job(self, found), delay, error)
                return
        if not await self._nacks.add((Lease(job_id, token), self._delay_ms(0, delay))):
            raise _lost(job_id, self.name, "given back")

    async def _nack_now(self, items: Sequence[tuple[Lease, int]]) -> list[bool]:
        delays = [delay for _, delay in items]
        done = await self._driver.nack(self.name, [lease for lease, _ in items], delays, self._channel.of_store)
        self._counters.count(self.name, "rollback", sum(done))
        if any(done) and self._channel.of_store is None:
            await self._channel.announce(min(delays))
        return done

    async def _delay_until(self, delay: Duration | None, at: float | datetime | None) -> Duration | None:
        """The delay that lasts until a point in time, by the store's clock."""
        if at is None:
            return delay
        if delay is not None:
            raise CallerError("give delay or at, not both")
        return max(0, point_ms("at", at) - await self._driver.now_ms()) / 1000

    def _delay_ms(self, tries: int, delay: Duration | None) -> int:
        if delay is None:
            delay = 0 if self.backoff is None else self.backoff(tries)
        return milliseconds("delay", delay) if delay else 0

    async def _reserved_job(self, job_id: str) -> Job:
        """The job that has this id, as whoever reserved it has it."""
        (stored,) = await self._driver.reserved(self.name, [job_id])
        if stored is None:
            raise LeaseLost(f"job {job_id!r} of {self.name!r} is not reserved by anybody. Nothing was changed.")
        return Job(self, stored)

    async def extend(self, job: Job, lease: Duration | None = None) -> None:
        """Keep a job for so many seconds from now."""
        self._require(Capability.EXTEND)
        _leases([job], "extend")
        seconds = checked_lease(lease if lease is not None else job.lease or self.lease)
        token = await self._extends.add((job.as_lease, milliseconds("lease", seconds), job.has_begun))
        if token is None:
            raise _lost(job.id, self.name, "kept")
        job.stored.token = token

    async def extend_many(
        self, jobs: Iterable[Job], lease: Duration | None = None, begun: Iterable[Job] = ()
    ) -> list[bool]:
        """Keep many jobs; return for each whether it was still this worker's.

        `begun` are those of them, reserved with `begin`, on which work has begun since.
        """
        self._require(Capability.EXTEND)
        jobs, begun = list(jobs), set(begun)
        items = [
            (
                held,
                milliseconds("lease", checked_lease(lease if lease is not None else job.lease or self.lease)),
                job.has_begun or job in begun,
            )
            for held, job in zip(_leases(jobs, "extend_many"), jobs, strict=True)
        ]
        tokens: list[str | None] = []
        for begin in range(0, len(items), self._driver.batch_max):
            tokens += await self._extend_now(items[begin : begin + self._driver.batch_max])
        for job, token in zip(jobs, tokens, strict=True):
            if token is not None:
                job.stored.token = token
                job.stored.has_begun = job.has_begun or job in begun
        return [token is not None for token in tokens]

    async def _extend_now(self, items: Sequence[tuple[Lease, int, bool]]) -> list[str | None]:
        leases, leases_ms, begun = zip(*items, strict=True)
        return await self._driver.extend(self.name, leases, leases_ms, begun)

    async def fail(self, job: Job, error: Error = "") -> None:
        """Move a reserved job to the dead letters, with the text or exception."""
        self._require(Capability.RESERVE)
        _leases([job], "fail")
        if not (await self._dead_letters.add([job.stored], [error]))[0]:
            raise _lost(job.id, self.name, "given up")

    async def fail_many(self, jobs: Iterable[Job], errors: Iterable[Error]) -> list[bool]:
        """Give many jobs up; gives for each whether it was still this worker's."""
        self._require(Capability.RESERVE)
        jobs = list(jobs)
        _leases(jobs, "fail_many")
        return await self._dead_letters.add([job.stored for job in jobs], list(errors))

    async def claim(self, key: str, count: int, *, lease: Duration | None = None) -> list[Job]:
        """Reserve up to `count` jobs under a key, or give those again that the key has.

        Of a paused queue, or with `count` 0, only those that the key has.
        """
        self._require(Capability.CLAIM)
        if not key or count < 0:
            raise CallerError(f"a claim needs a key and a count, not {key!r} and {count}")
        await self._register()
        seconds = self.lease if lease is None else checked_lease(lease)
        if await self._pause.holds_back():
            count = 0
        stored = await self._driver.claim(self.name, key, count, milliseconds("lease", seconds))
        return [Job(self, one, seconds) for one in await self._dead_letters.reject_exhausted(stored)]

    async def extend_claim(self, key: str, lease: Duration | None = None) -> int:
        """Keep the jobs under a key; gives how many it still has."""
        self._require(Capability.CLAIM)
        seconds = self.lease if lease is None else checked_lease(lease)
        return await self._driver.extend_claim(self.name, key, milliseconds("lease", seconds))

    async def ack_claim(self, key: str) -> int:
        """End the jobs under a key, and the key; gives how many were ended."""
        self._require(Capability.CLAIM)
        ended = await self._driver.ack_claim(self.name, key)
        self._counters.count(self.name, "commit", ended)
        return ended

    async def nack_claim(self, key: str, delay: Duration = 0) -> int:
        """Give the jobs under a key back, and end the key; gives how many."""
        self._require(Capability.CLAIM)
        delay_ms = milliseconds("delay", delay)
        given = await self._driver.nack_claim(self.name, key, delay_ms)
        if given:  # else there is nothing to wake workers for
            self._counters.count(self.name, "rollback", given)
            await self._channel.announce(delay_ms)
        return given

    async def regain(self, marks: Sequence[Mark]) -> list[Job]:
        """Reserve jobs again by their marks: those that nobody has had since. Others are left out."""
        return [Job(self, stored) for stored in await self._driver.regain(self.name, marks)]

    async def extend_marked(self, marks: Sequence[Mark]) -> float | None:
        """Extend the leases of jobs by their marks; return how many seconds the shortest has, None if none is known."""
        return await self._driver.keep(self.name, marks)

    async def ack_marked(self, marks: Sequence[Mark]) -> int:
        """Acknowledge jobs by their marks, whoever has them; return how many were not ended yet."""
        ended = await self._driver.end(self.name, marks)
        self._counters.count(self.name, "commit", ended)
        return ended

    async def peek(self, count: int = 10, *, state: JobState | str | None = JobState.READY) -> list[Job]:
        """Look at the first jobs of a state (None for all states) without touching them."""
        self._require(Capability.PEEK)
        if count < 1:
            raise CallerError(f"count={count}: look at one job at least")
        page = await self._driver.peek(self.name, _checked_state(state), count)
        return [Job(self, stored) for stored in page.jobs[:count]]  # a page may have more than was asked for

    async def jobs(self, *, state: JobState | str | None = None) -> AsyncIterator[Job]:
        """Look at all jobs of a state, or of all states, a page at a time. Jobs may come and go meanwhile."""
        self._require(Capability.PEEK)
        checked = _checked_state(state)
        cursor = None
        while True:
            page = await self._driver.peek(self.name, checked, PAGE, cursor)
            for stored in page.jobs:
                yield Job(self, stored)
            if page.cursor is None:
                return
            cursor = page.cursor

    async def remove(self, *ids: str) -> list[bool]:
        """Remove jobs that wait; gives for each whether it was there. Reserved jobs stay."""
        self._require(Capability.REMOVE)
        removed: list[bool] = []
        for begin in range(0, len(ids), self._driver.batch_max):
            removed += await self._driver.remove(self.name, ids[begin : begin + self._driver.batch_max])
        return removed

    async def purge(self) -> int:
        """Remove all jobs that nobody has reserved; gives how many."""
        return await self._driver.purge(self.name)

    async def redrive(
        self,
        where: Callable[[Job], bool] | None = None,
        *,
        to: str | None = None,
        limit: int | None = None,
        moved: Callable[[int], object] = lambda count: None,
    ) -> int:
        """Send dead letters back to the queues that they came from, or to another one; gives how many.

        Called on the queue of dead letters. `where` chooses; jobs that came from no queue stay unless `to` is given.
        `moved` hears of each page how many went.
        """
        self._require(Capability.PEEK)
        self.store.check_open()
        return await redrive(self, where, to, limit, moved)

    async def sizes(self) -> Sizes:
        """All sizes at once."""
        return await self._driver.sizes(self.name)

    async def size(self) -> int:
        """How many jobs are ready."""
        return await self._driver.ready(self.name)

    async def total(self) -> int:
        """How many jobs there are."""
        return (await self._driver.sizes(self.name)).total

    async def scheduled(self) -> int:
        """How many jobs wait for their time."""
        return (await self._driver.sizes(self.name)).scheduled

    async def reserved(self) -> int | None:
        """How many jobs are in the hands of workers; None where the store can't tell."""
        return (await self._driver.sizes(self.name)).reserved

    async def next_mature(self) -> float | None:
        """When the next job is ready, as unix time; None for an empty queue, and where jobs have no times."""
        if Capability.DELAY not in self.store.capabilities:
            return None
        next_ms = await self._driver.next_mature_ms(self.name)
        return None if next_ms is None else next_ms / 1000

    async def stats(self) -> dict[str, Any]:
        """Return the counters `push`, `pop`, `reserve`, `ack`, `nack`, `dead_letter`, and `paused` and `type`.

        On our broker there is `expired`, too. They are exact where the store counts by itself. Where statistics are
        kept elsewhere, those of other processes may be 100 ms old.
        """
        await self._counters.flush()
        await self._services.open()
        counters = shown(await self._services.stats.counters(self.name))
        own = await self._driver.counters(self.name)
        return {**counters, **own, "paused": await self.paused(), "type": self.type}

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
        self._pause.know(paused)
        await self._channel.send_paused(paused)

    async def paused(self) -> bool:
        """Whether the queue is paused, freshly read."""
        self.store.check_open()
        return await self._pause.read()

    def is_last_try(self, tries: int) -> bool:
        """Whether a job with this number of earlier deliveries is on its last try: a nack sends it to the dead
        letters."""
        return self._dead_letters.is_last_try(tries)

    @property
    def waiters(self) -> int:
        """How many callers wait for jobs of this object."""
        own = sum(fetcher.waiting for fetcher in self._fetchers.values())
        return own + sum(variant.waiters for variant in self._variants)

    def consumers(self) -> list[Consumer]:
        """Return the callers that wait for jobs of this object, each with the `consumer` label that it gave."""
        parts: list[Fetcher | Queue] = [*self._fetchers.values(), *self._variants]
        return [consumer for part in parts for consumer in part.consumers()]

    def cancel(self, waiter: object = None) -> int:
        """End waits with WaitCancelled: those that were given this `waiter`, or all. Return their number."""
        own = sum(fetcher.cancel(waiter) for fetcher in self._fetchers.values())
        return own + sum(variant.cancel(waiter) for variant in self._variants)

    async def drain(self) -> None:
        """Finish what is under way, and end all waits: from now on this object neither takes nor adds jobs.

        Reserved jobs can still be acked, extended and given back. Other objects of the queue are not affected.
        """
        self._is_drained = True
        for fetcher in self._fetchers.values():
            await fetcher.close(f"the queue {self.name!r} is being drained")
        await self._finish()
        for variant in list(self._variants):
            await variant.drain()

    async def close(self) -> None:
        """End all waits and close the queue; the store does it for all its queues."""
        for fetcher in self._fetchers.values():
            await fetcher.close()
        await self._finish()
        await self._listener.close()

    async def _finish(self) -> None:
        for coalescer in (self._pushes, self._acks, self._nacks, self._extends):
            await coalescer.finish()

    @property
    def _driver(self) -> Driver:
        return self.store._open_driver

    async def _make_known(self) -> None:
        self.store.check_open()
        await self._services.open()
        try:
            await self._services.stats.register(self.name, self.options)
        except ConnectionLost:
            # Statistics on another server that is away must not hold up jobs.
            if self._services.stats_are_own:
                raise

    def _heard(self, text: str) -> None:
        """Take a signal: `p true`, `p false`, a time, or an empty text, which means that something was missed."""
        if text.startswith("p "):
            self._pause.know(text == "p true")
        elif not text:
            self._pause.know(None)
        for fetcher in self._fetchers.values():
            fetcher.ring()

    def _check_not_drained(self) -> None:
        if self._is_drained:
            raise CallerError(f"the queue {self.name!r} was drained: make another object with store.queue()")

    def _require(self, capability: Capability) -> None:
        require(self.store._driver.capabilities, capability, self.store.url)


def _check_name(what: str, name: object, driver: Driver) -> None:
    """Refuse a name that no queue can have, anywhere or in this store."""
    # What is not text, half of a surrogate pair for one, is left out here, and so is seen to be wrong.
    text = name.encode(errors="ignore").decode() if isinstance(name, str) else ""
    if not text or text != name or len(text.encode()) > NAME_BYTES_MAX:
        shown_name = repr(name)
        if len(shown_name) > SHOWN_MAX:
            shown_name = f"{shown_name[:SHOWN_MAX]}... ({len(text.encode())} bytes)"
        raise CallerError(f"{what} must be 1 to {NAME_BYTES_MAX} bytes of text, got {shown_name}")
    if Capability.RESERVE not in driver.capabilities and name == DEAD_LETTER_QUEUE:
        return  # nothing is ever given up there
    try:
        driver.check_queue(text)
    except CallerError as problem:
        raise CallerError(f"{what} can't be used: {problem}") from problem


def _added(jobs: Sequence[NewJob], ids: Sequence[str]) -> list[NewJob]:
    """Return the jobs that are new: others found their unique key taken."""
    return [job for job, job_id in zip(jobs, ids, strict=True) if job.unique is None or job.id == job_id]


def _wait_seconds(timeout: Duration) -> float:
    value = plain_seconds(timeout)
    if not is_number(value) or not value >= 0:
        raise CallerError(f"timeout must be 0 or more seconds, or None to wait without limit, got {timeout!r}")
    return value


def _checked_state(state: JobState | str | None) -> JobState | None:
    try:
        return None if state is None else JobState(state)
    except ValueError as problem:
        raise CallerError(f"state must be one of {', '.join(JobState)}, got {state!r}") from problem


def _leases(jobs: Sequence[Job], call: str) -> list[Lease]:
    """Return the leases of what must be reserved jobs."""
    try:
        return [job.as_lease for job in jobs]
    except AttributeError:
        or_id = ", or its id as text" if call in {"ack", "nack"} else ""
        wrong = next((job for job in jobs if not hasattr(job, "as_lease")), None)
        raise CallerError(f"{call} takes a reserved job{or_id}, got {wrong!r}") from None


def _lost(job_id: str, queue: str, done: str) -> LeaseLost:
    return LeaseLost(
        f"job {job_id} of {queue!r} can't be {done}: its lease is over, or another ended it. "
        "Nothing was changed. Give longer leases, or extend them while the job runs."
    )
