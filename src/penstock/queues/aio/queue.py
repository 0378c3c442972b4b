"""A queue: what the API promises, on top of what a driver can do.

Single calls that are made at the same time go to the store as one (`runtime.Coalescer`); callers that wait for jobs are
served by one `Fetcher` for each way of taking them.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Never, overload
from weakref import WeakSet

from penstock.codec import check_codec
from penstock.errors import CallerError, ConnectionLost, LeaseLost, PenstockError
from penstock.events import Kind
from penstock.job import Consumer, JobMove, JobState, Lease, Mark, NewJob, Sizes, StoredJob
from penstock.queues.aio.dead_letters import DeadLetters, redrive, stored_body
from penstock.queues.aio.driver import Driver
from penstock.queues.aio.fetcher import Fetcher
from penstock.queues.aio.job import Job
from penstock.queues.aio.runtime import Coalescer, Once
from penstock.queues.aio.services import Channel
from penstock.queues.aio.signal import SignalListener
from penstock.queues.aio.stats import shown
from penstock.queues.aio.taker import Pause, Taker
from penstock.queues.backoff import Backoff
from penstock.queues.capabilities import Capability, lacking
from penstock.queues.dead_letter import DEAD_LETTER_QUEUE, DeadLetter, Error, check_error
from penstock.queues.events import StoreEvents
from penstock.queues.options import Limit, checked_dead_letter, checked_lease
from penstock.queues.push import (
    RENAMED,
    UNCHANGED,
    Duration,
    Push,
    Transfer,
    check_claim_key,
    check_text,
    is_number,
    is_text,
    milliseconds,
    move_key,
    new_job,
    plain_seconds,
    point_ms,
    shortened,
    unexpected_keyword,
)

if TYPE_CHECKING:
    from penstock.queues.aio.store import Store

NAME_BYTES_MAX = 1024  # of a queue; PostgreSQL takes fewer, and says so
PAGE = 500  # jobs read in one round trip
# How long a move of two steps that was cut off can be repeated without a second job. Leases are far shorter.
MOVE_KEY_MS = 3_600_000
REMOVALS_MAX = 3  # attempts to remove a reserved job: its token changes with each extension, which are far rarer


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
            # Now, not at the first dead letter: that would end a worker that has reserved jobs.
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
        dead_letter: Limit | None = None,
        lease: Duration | None = None,
        backoff: Backoff | None = None,
    ) -> "Queue":
        """Return another object of this queue with other options; those left out are this one's.

        `cancel` and `drain` of this object apply to the other one, too.
        """
        variant = Queue(
            self.store,
            self.name,
            dead_letter=self.dead_letter if dead_letter is None else checked_dead_letter(dead_letter),
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
        at: float | datetime | None = None,
        tries: int = 0,
        headers: Mapping[str, Any] | None = None,
        ttl: Duration | None = None,
        retry: Duration | None = None,
        replicate: int | None = None,
        unique: str | None = None,
        unique_for: Duration = 0,
        connection: Any = None,
        **unknown: Never,
    ) -> str:
        """Store a job; return its id.

        Times are seconds or timedeltas; `at` is a unix time, or a datetime that has a time zone.
        With `unique`, the id of the job that already has the key, if there is one, or was within `unique_for` seconds.
        With `connection`, within the transaction that is open there.
        """
        if unknown:
            raise unexpected_keyword("push", unknown, RENAMED)
        self._check_not_drained()
        job = self._new(Push(payload, delay, at, tries, headers, ttl, retry, replicate, unique, unique_for))
        if connection is not None:
            return (await self._push_within(connection, [job]))[0]
        return await self._pushes.add(job)

    async def push_many(self, payloads: Iterable[Any], *, connection: Any = None, **options: Any) -> list[str]:
        """Store many jobs, 1,000 a round trip; return their ids. A payload with options of its own is a `Push`."""
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
        """Push bodies without an object for each, which would cost more than all else."""
        ids: list[str] = []
        for begin in range(0, len(bodies), self._driver.batch_max):
            await self._register()
            batch = bodies[begin : begin + self._driver.batch_max]
            added = await self._driver.push_bodies(self.name, batch)
            if self._events is not None:
                self._events.pushed_bodies(self.name, added, batch)
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
        if not self._register.is_done:
            await self._register()
        ids = await self._driver.push(self.name, jobs, self._channel.of_store)
        added = _added(jobs, ids)
        self._counters.count(self.name, "put", len(added))
        if self._events is not None:
            pairs = zip(ids, jobs, strict=True)
            self._events.pushed(self.name, [pair for pair in pairs if pair[1].unique is None or pair[1].id == pair[0]])
        if added and self._channel.of_store is None:
            await self._channel.announce(min(job.delay_ms for job in added), [job.mature_ms for job in added])
        return ids

    async def _push_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[str]:
        # The caller's transaction may hold a lock that the store's own connection would wait for, so that one writes
        # nothing now: the queue is made known by its next user. What the store counts by itself is counted within the
        # transaction. Statistics elsewhere count the push although it may be rolled back.
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
        """Take a job out of the store: at most once. None when the time (seconds; None forever) is over."""
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
        """Reserve a job for a block: acked when it ends, nacked when it raises. None when the time is over."""
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
            raise CallerError(f"count must be 1 or more, got {count}")
        wait_s = None if timeout is None else _wait_seconds(timeout)
        self._check_not_drained()
        self.store.check_open()
        if not self._register.is_done:
            await self._register()
        way = lease_ms, begin is None
        fetcher = self._fetchers.get(way)
        if fetcher is None:
            fetcher = self._fetchers[way] = Fetcher(self._taker, lease_ms, self._listener, self.poll_s)
        jobs = await fetcher.get(count, wait_s, waiter, consumer, begin)
        if self._events is not None:
            self._events.reserved(self.name, jobs, lease_ms, consumer)
        return jobs

    async def release_many(self, jobs: Iterable[Job]) -> None:
        """Return reserved jobs on which work has not begun: they are ready at once, and no try is counted."""
        self._require(Capability.RESERVE)
        stored = [job.stored for job in jobs]
        for begin in range(0, len(stored), self._driver.batch_max):
            await self._taker.return_unseen(0, stored[begin : begin + self._driver.batch_max])
        self._note(Kind.REQUEUED, stored)

    async def ack(self, job: Job | str) -> None:
        """Acknowledge a reserved job: it is done, and is removed.

        By id alone this is unfenced: the job is ended whoever has it reserved, also if the lease that you had is over
        and another worker runs the job by now. LeaseLost is raised if nobody has it reserved.
        """
        self._require(Capability.RESERVE)
        if isinstance(job, str):
            job = await self._reserved_job(job)
        if not await self._acks.add(_leases([job], "ack")[0]):
            raise _lost(job.id, self.name, "acked")
        self._note(Kind.ACKED, [job.stored])

    async def ack_many(self, jobs: Iterable[Job], begun: Iterable[Job] = ()) -> list[bool]:
        """Acknowledge many jobs; return for each whether its lease still held.

        `begun` are other jobs, reserved with `begin`, on which work has begun since.
        """
        self._require(Capability.RESERVE)
        jobs, begun = list(jobs), list(begun)
        ended = await self._ack_now(_leases(jobs, "ack_many"), _leases(begun, "ack_many"))
        self._note(Kind.ACKED, [job.stored for job, is_ended in zip(jobs, ended, strict=True) if is_ended])
        for job in begun:
            job.stored.has_begun = True
        return ended

    async def _ack_now(self, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        ended: list[bool] = []
        batch_max = self._driver.batch_max
        for at in range(0, max(len(leases), len(begun)), batch_max):
            ended += await self._driver.ack(self.name, leases[at : at + batch_max], begun[at : at + batch_max])
        self._counters.count(self.name, "commit", sum(ended))
        await self._announce_freed()
        return ended

    async def _announce_freed(self) -> None:
        """Wake consumers if the end of jobs has made others ready."""
        freed = self._driver.freed
        if self.name in freed:
            freed.discard(self.name)
            await self._channel.announce()

    async def ack_by_token(self, job_id: str, token: str) -> None:
        """Acknowledge a job that somebody reserved, by its id and the token of its lease."""
        self._require(Capability.RESERVE)
        check_text("a job id", job_id)
        check_text("a token", token)
        if not await self._acks.add(Lease(job_id, token)):
            raise _lost(job_id, self.name, "acked")
        self._note(Kind.ACKED, [job_id])

    async def nack(
        self, job: Job | str, delay: Duration | None = None, error: Error = "", *, at: float | datetime | None = None
    ) -> None:
        """Return a reserved job to its queue, or, after its last try, move it to the dead letters.

        It is ready after `delay` seconds (by default those of the back-off), or at the time `at`. By id alone this is
        unfenced, as `ack` is. `error` is a text or an exception.
        """
        self._require(Capability.RESERVE)
        check_error(error)
        delay = await self._delay_until(delay, at)
        if isinstance(job, str):
            if not self._driver.delays_by_id:
                if delay:
                    raise CallerError(f"nack by id alone takes no delay on {self.store.url}: pass the reserved job")
                delay = 0
            job = await self._reserved_job(job)
        _leases([job], "nack")
        if self._dead_letters.is_last_try(job.tries):
            done = (await self._dead_letters.add([job.stored], [error]))[0]
        else:
            delay_ms = self._delay_ms(job.tries, delay)
            done = await self._nacks.add((job.as_lease, delay_ms))
            if done:
                self._note(Kind.NACKED, [job.stored], delay_ms, error)
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
        """Return many jobs to their queue. The result says for each whether its lease still held."""
        self._require(Capability.RESERVE)
        check_error(error)
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
            done = await self._nack_now(batch)
            for job, (_, delay_ms), is_done in zip(others[begin : begin + len(batch)], batch, done, strict=True):
                outcome[job] = is_done
                if is_done:
                    self._note(Kind.NACKED, [job.stored], delay_ms, error)
        return [outcome[job] for job in jobs]

    async def nack_by_token(self, job_id: str, token: str, delay: Duration | None = None, error: Error = "") -> None:
        """Return a job that somebody reserved to its queue, or, after its last try, move it to the dead letters.

        By its id and the token of its lease, for programs that have no job object.
        """
        self._require(Capability.RESERVE)
        check_error(error)
        check_text("a job id", job_id)
        check_text("a token", token)
        if self._dead_letters.limit is not None or (delay is None and self.backoff is not None):
            # The number of its deliveries decides whether this was its last try.
            (found,) = await self._driver.reserved(self.name, [job_id])
            if found is not None:
                found.token = token
                await self.nack(Job(self, found), delay, error)
                return
        delay_ms = self._delay_ms(0, delay)
        if not await self._nacks.add((Lease(job_id, token), delay_ms)):
            raise _lost(job_id, self.name, "given back")
        self._note(Kind.NACKED, [job_id], delay_ms, error)

    async def _nack_now(self, items: Sequence[tuple[Lease, int]]) -> list[bool]:
        delays = [delay for _, delay in items]
        done = await self._driver.nack(self.name, [lease for lease, _ in items], delays, self._channel.of_store)
        self._counters.count(self.name, "rollback", sum(done))
        if any(done) and self._channel.of_store is None:
            await self._channel.announce(min(delays))
        return done

    @property
    def _events(self) -> StoreEvents | None:
        return self.store._events

    def _note(self, kind: Kind, jobs: Sequence[StoredJob | str], delay_ms: int = 0, error: Error = "") -> None:
        """Record an event of jobs, if events are recorded. Where the node records, only errors are news."""
        if self._events is not None:
            for job in jobs:
                self._events.record(kind, self.name, job, delay_ms=delay_ms, error=error, is_news=bool(error))

    def note_begun(self, job: Job) -> None:
        """Record that work on a reserved job begins now: for workers, whose run times begin here."""
        self._note(Kind.BEGUN, [job.stored])

    async def note_size(self) -> None:
        """Record how many jobs are ready."""
        if self._events is not None and not self._events.adds_only:
            self._events.sampled(self.name, await self.size())

    async def _delay_until(self, delay: Duration | None, at: float | datetime | None) -> Duration | None:
        """Return the delay until a point in time, by the store's clock."""
        if at is None:
            return delay
        if delay is not None:
            raise CallerError("either delay or at must be given, got both")
        return max(0, point_ms("at", at) - await self._driver.now_ms()) / 1000

    def _delay_ms(self, tries: int, delay: Duration | None) -> int:
        if delay is None:
            delay = 0 if self.backoff is None else self.backoff(tries)
        return milliseconds("delay", delay) if delay else 0

    async def _reserved_job(self, job_id: str) -> Job:
        """Return the reserved job with this id, with the token of its lease."""
        check_text("a job id", job_id)
        (stored,) = await self._driver.reserved(self.name, [job_id])
        if stored is None:
            raise LeaseLost(f"job {job_id!r} of {self.name!r} is not reserved by anybody. Nothing was changed.")
        return Job(self, stored)

    async def extend(self, job: Job, lease: Duration | None = None) -> None:
        """Let the lease of a job end `lease` seconds from now."""
        self._require(Capability.EXTEND)
        _leases([job], "extend")
        seconds = checked_lease(lease if lease is not None else job.lease or self.lease)
        token = await self._extends.add((job.as_lease, milliseconds("lease", seconds), job.has_begun))
        if token is None:
            raise _lost(job.id, self.name, "kept")
        job.stored.token = token
        self._note(Kind.EXTENDED, [job.stored], milliseconds("lease", seconds))

    async def extend_many(
        self, jobs: Iterable[Job], lease: Duration | None = None, begun: Iterable[Job] = ()
    ) -> list[bool]:
        """Extend the leases of many jobs; return for each whether its lease still held.

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
        for job, token, (_, lease_ms, _) in zip(jobs, tokens, items, strict=True):
            if token is not None:
                self._note(Kind.EXTENDED, [job.stored], lease_ms)
                job.stored.token = token
                job.stored.has_begun = job.has_begun or job in begun
        return [token is not None for token in tokens]

    async def _extend_now(self, items: Sequence[tuple[Lease, int, bool]]) -> list[str | None]:
        leases, leases_ms, begun = zip(*items, strict=True)
        return await self._driver.extend(self.name, leases, leases_ms, begun)

    async def fail(self, job: Job, error: Error = "") -> None:
        """Move a reserved job to the dead letters, with the text or exception."""
        self._require(Capability.RESERVE)
        check_error(error)
        _leases([job], "fail")
        if not (await self._dead_letters.add([job.stored], [error]))[0]:
            raise _lost(job.id, self.name, "given up")

    async def fail_many(self, jobs: Iterable[Job], errors: Iterable[Error]) -> list[bool]:
        """Move many reserved jobs to the dead letters; return for each whether its lease still held."""
        self._require(Capability.RESERVE)
        jobs, errors = list(jobs), list(errors)
        _leases(jobs, "fail_many")
        for error in errors:
            check_error(error)
        return await self._dead_letters.add([job.stored for job in jobs], errors)

    def moves_atomically(self, to: "str | Queue", *, changed: bool = True) -> bool:
        """Whether a move to another queue is one atomic step: the job is always in exactly one of the two.

        `changed`: with another payload, other headers or a delay. Where it isn't atomic, a move stores the job in the
        other queue before it ends it here: a crash in between leaves it in both. On `disque:` a crash of the node that
        has the job may do so, too; one of the worker doesn't.
        """
        return self.store._driver.moves_in_one_step(self.name, _name_of(to), changed)

    def transfer(
        self,
        job: Job,
        to: "str | Queue",
        *,
        payload: Any = UNCHANGED,
        headers: Mapping[str, Any] | None = None,
        delay: Duration = 0,
        at: float | datetime | None = None,
    ) -> Transfer:
        """Return a checked move of a reserved job, for `move_many`. Nothing is sent.

        Raises what `push` would raise for the payload and the options.
        """
        self._require(Capability.RESERVE)
        _leases([job], "move")
        driver, target = self.store._driver, _name_of(to)
        _check_name("the name of the target queue", target, driver)
        if target == self.name:
            raise CallerError(f"a job can't be moved to its own queue {target!r}: nack it with a delay")
        stored = job.stored
        kept = {name: value for name, value in {**stored.headers, **(headers or {})}.items() if value is not None}
        is_kept = payload is UNCHANGED
        content = (stored_body(stored) if stored.body is not None else stored.payload) if is_kept else payload
        codec = "json" if is_kept else self.codec  # what is stored is not read again by the queue's codec
        new = new_job(Push(content, delay, at, headers=kept), codec, driver.capabilities, self.store.url)
        new.id, new.created_ms = job.id, stored.created_ms
        is_changed = not is_kept or kept != stored.headers or bool(delay) or at is not None
        if driver.keys_moves and not driver.moves_in_one_step(self.name, target, is_changed):
            new.unique, new.unique_for_ms = move_key(self.name, job.id), MOVE_KEY_MS
        driver.prepare(new)
        return Transfer(job, target, new)

    async def move(
        self,
        job: Job,
        to: "str | Queue",
        *,
        payload: Any = UNCHANGED,
        headers: Mapping[str, Any] | None = None,
        delay: Duration = 0,
        at: float | datetime | None = None,
    ) -> None:
        """Move a reserved job to another queue of this store, with another payload if one is given.

        Its tries begin at 0 there; its time of creation stays, where the store keeps it. `headers` are added to those
        of the job; one that is None is removed. LeaseLost is raised, and nothing changes, if the lease is over.
        `moves_atomically` says whether it is one step.
        """
        transfer = self.transfer(job, to, payload=payload, headers=headers, delay=delay, at=at)
        if not (await self.move_many([transfer]))[0]:
            raise _lost(job.id, self.name, "moved")

    async def move_many(self, jobs: Iterable[Job | Transfer], to: "str | Queue | None" = None) -> list[bool]:
        """Move many reserved jobs of this queue; return for each whether it was still this worker's.

        A job goes to `to` as it is; one that changes, or goes elsewhere, is given as what `transfer` returns. Those of
        the same target go to the store together.
        """
        self._require(Capability.RESERVE)
        moved: dict[int, bool] = {}
        moving: list[StoredJob] = []
        by_target: dict[str, list[tuple[int, JobMove]]] = {}
        for number, one in enumerate(jobs):
            if isinstance(one, Transfer):
                transfer = one
            elif to is not None:
                transfer = self.transfer(one, to)
            else:
                raise CallerError(f"move_many must be told where jobs go: give to=, or transfers, got {one!r}")
            # The lease may have been extended since, with another token.
            step = JobMove(transfer.job.as_lease, transfer.new)
            by_target.setdefault(transfer.to, []).append((number, step))
            moving.append(transfer.job.stored)
        for target, steps in by_target.items():
            done = await self.store._move(self.name, target, [step for _, step in steps], "commit")
            if self._events is not None:
                for (number, _), is_done in zip(steps, done, strict=True):
                    if is_done:
                        self._events.record(Kind.MOVED, self.name, moving[number], to_queue=target, is_news=True)
            moved.update({number: is_done for (number, _), is_done in zip(steps, done, strict=True)})
        return [moved[number] for number in range(len(moved))]

    async def claim(self, key: str, count: int, *, lease: Duration | None = None) -> list[Job]:
        """Reserve up to `count` jobs under a key, or return those that the key has.

        Of a paused queue, or with `count` 0, only those that the key has.
        """
        count, lease_ms = await self._claim_terms(key, count, lease)
        stored = await self._driver.claim(self.name, key, count, lease_ms)
        kept = await self._dead_letters.reject_exhausted(stored)
        self._note(Kind.RESERVED, kept, lease_ms)
        return [Job(self, one, lease_ms / 1000) for one in kept]

    async def claim_unread(self, key: str, count: int, *, lease: Duration | None = None) -> int:
        """Reserve jobs under a key as `claim` does, without reading them; return how many jobs the key has.

        `claim(key, 0)` reads them, here or in another process. The limit on tries is checked there.
        """
        count, lease_ms = await self._claim_terms(key, count, lease)
        return await self._driver.claim_unread(self.name, key, count, lease_ms)

    async def _claim_terms(self, key: str, count: int, lease: Duration | None) -> tuple[int, int]:
        """Return how many jobs a claim may take, and for how many milliseconds."""
        self._require(Capability.CLAIM)
        check_claim_key(key)
        if count < 0:
            raise CallerError(f"a claim must have a count of 0 or more, got {count}")
        if count:
            self._check_not_drained()
        await self._register()
        seconds = self.lease if lease is None else checked_lease(lease)
        is_held_back = await self._pause.holds_back()
        return 0 if is_held_back else count, milliseconds("lease", seconds)

    async def extend_claim(self, key: str, lease: Duration | None = None) -> int:
        """Extend the leases of the jobs under a key; return how many it still has."""
        self._require(Capability.CLAIM)
        check_claim_key(key)
        seconds = self.lease if lease is None else checked_lease(lease)
        return await self._driver.extend_claim(self.name, key, milliseconds("lease", seconds))

    async def ack_claim(self, key: str) -> int:
        """Acknowledge the jobs under a key, and end the key; return how many."""
        self._require(Capability.CLAIM)
        check_claim_key(key)
        ended = await self._driver.ack_claim(self.name, key)
        self._counters.count(self.name, "commit", ended)
        await self._announce_freed()
        return ended

    async def nack_claim(self, key: str, delay: Duration = 0) -> int:
        """Return the jobs under a key to their queue, and end the key; return how many."""
        self._require(Capability.CLAIM)
        check_claim_key(key)
        delay_ms = milliseconds("delay", delay)
        given = await self._driver.nack_claim(self.name, key, delay_ms)
        if given:  # else there is nothing to wake workers for
            self._counters.count(self.name, "rollback", given)
            await self._channel.announce(delay_ms)
        return given

    async def regain(self, marks: Sequence[Mark]) -> list[Job]:
        """Reserve jobs again by their marks: those that nobody has had since. Others are left out."""
        regained = await self._driver.regain(self.name, marks)
        self._note(Kind.RESERVED, regained)
        return [Job(self, stored) for stored in regained]

    async def extend_marked(self, marks: Sequence[Mark]) -> float | None:
        """Extend the leases of jobs by their marks; return how many seconds the shortest has, None if none is known."""
        return await self._driver.keep(self.name, marks)

    async def ack_marked(self, marks: Sequence[Mark]) -> int:
        """Acknowledge jobs by their marks, whoever has them; return how many were not ended yet."""
        ended = await self._driver.end(self.name, marks)
        self._counters.count(self.name, "commit", ended)
        if ended == len(marks):  # otherwise which ones is not known
            self._note(Kind.ACKED, [mark.id for mark in marks])
        return ended

    async def peek(self, count: int = 10, *, state: JobState | str | None = JobState.READY) -> list[Job]:
        """Return the first jobs of a state without taking them; None for all states but `done`.

        `done` are jobs that have ended, the last one first, on stores that keep them. `ready` has jobs with it that are
        `away`: on a cluster, those of a node that can't be reached.
        """
        checked = self._checked_state(state)
        if count < 1:
            raise CallerError(f"count must be 1 or more, got {count}")
        if checked is JobState.AWAY and not self._driver.has_away:
            return []
        page = await self._driver.peek(self.name, checked, count)
        return [Job(self, stored) for stored in page.jobs[:count]]  # a page may have more than were asked for

    async def jobs(self, *, state: JobState | str | None = None) -> AsyncIterator[Job]:
        """Yield all jobs of a state, a page at a time; None for all states but `done`.

        Jobs may come and go meanwhile.
        """
        checked = self._checked_state(state)
        if checked is JobState.AWAY and not self._driver.has_away:
            return
        cursor = None
        while True:
            page = await self._driver.peek(self.name, checked, PAGE, cursor)
            for stored in page.jobs:
                yield Job(self, stored)
            if page.cursor is None:
                return
            cursor = page.cursor

    def _checked_state(self, state: JobState | str | None) -> JobState | None:
        self._require(Capability.PEEK)
        try:
            checked = None if state is None else JobState(state)
        except ValueError as problem:
            raise CallerError(f"state must be one of {', '.join(JobState)}, got {state!r}") from problem
        if checked is JobState.DONE:
            self._require(Capability.HISTORY)
        return checked

    async def remove(self, *ids: str, reserved: bool = False) -> list[bool]:
        """Remove jobs that wait; return for each whether it was there. Reserved jobs stay.

        With `reserved=True` those go, too, whoever has them: a worker finds out when it next extends the lease.
        """
        self._require(Capability.REMOVE)
        for job_id in ids:
            check_text("a job id", job_id)
        removed: list[bool] = []
        for begin in range(0, len(ids), self._driver.batch_max):
            removed += await self._driver.remove(self.name, ids[begin : begin + self._driver.batch_max])
        for _ in range(REMOVALS_MAX if reserved else 0):
            left = [at for at, is_removed in enumerate(removed) if not is_removed]
            if not left:
                break
            for at in await self._end_reserved({ids[at]: at for at in left}):
                removed[at] = True
        self._note(Kind.REMOVED, [job_id for job_id, is_removed in zip(ids, removed, strict=True) if is_removed])
        return removed

    async def _end_reserved(self, places: Mapping[str, int]) -> list[int]:
        """End jobs that are reserved, or that came back from a worker meanwhile; return the places of those."""
        self._require(Capability.RESERVE)
        found = [one for one in await self._driver.reserved(self.name, list(places)) if one is not None]
        leases = [Lease(one.id, one.token) for one in found]
        ended = await self._driver.ack(self.name, leases) if leases else []
        done = [one.id for one, is_ended in zip(found, ended, strict=True) if is_ended]
        others = [job_id for job_id in places if job_id not in done]
        gone = await self._driver.remove(self.name, others) if others else []
        done += [job_id for job_id, is_gone in zip(others, gone, strict=True) if is_gone]
        await self._announce_freed()
        return [places[job_id] for job_id in done]

    async def purge(self) -> int:
        """Remove all jobs that nobody has reserved; return how many."""
        purged = await self._driver.purge(self.name)
        if self._events is not None:
            self._events.removed_many(self.name, purged)
        return purged

    async def redrive(
        self,
        where: Callable[[Job], bool] | None = None,
        *,
        to: str | None = None,
        limit: int | None = None,
        moved: Callable[[int], object] = lambda count: None,
    ) -> int:
        """Send dead letters back to the queues that they came from, or to another one; return how many.

        Called on the queue of dead letters. `where` chooses; jobs that came from no queue stay unless `to` is given.
        `moved` is called with the number of jobs of each page.
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
        """Return how many jobs are reserved; None where the store can't know."""
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
        """Pause delivery in all processes until `resume`. Jobs can still be pushed, acked and nacked."""
        await self._set_paused(True)

    async def resume(self) -> None:
        """Resume delivery."""
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

    def observe_exhausted(self, given_up: Callable[[Job, str], object]) -> None:
        """Call back with each job that this object sends to the dead letters because its worker died in its last try,
        and with the error."""
        self._dead_letters.on_exhausted = lambda stored, error: given_up(Job(self, stored), error)

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

        Jobs that were only buffered are stored; it raises if they can't be, and they are kept.
        Reserved jobs can still be acked, extended and given back. Other objects of the queue are not affected.
        """
        self._is_drained = True
        for fetcher in self._fetchers.values():
            await fetcher.close(f"the queue {self.name!r} is being drained")
        await self._finish()
        await self.store._driver.flush(self.name)
        for variant in list(self._variants):
            await variant.drain()

    async def close(self) -> None:
        """End all waits and close the queue; the store does it for all its queues."""
        for fetcher in self._fetchers.values():
            await fetcher.close()
        await self._finish()
        # While signals can still be sent. What fails now, the driver tries again when it is closed.
        with suppress(PenstockError):
            await self.store._driver.flush(self.name)
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
            fetcher.wake()

    def _check_not_drained(self) -> None:
        if self._is_drained:
            raise CallerError(f"the queue {self.name!r} was drained: make another object with store.queue()")

    def _require(self, capability: Capability) -> None:
        if capability not in self.store._driver.capabilities:
            raise lacking(capability, self.store.url)


def _check_name(what: str, name: object, driver: Driver) -> None:
    """Refuse a name that no queue can have, anywhere or in this store."""
    if not is_text(name, NAME_BYTES_MAX):
        raise CallerError(f"{what} must be 1 to {NAME_BYTES_MAX} bytes of text, got {shortened(name)}")
    if Capability.RESERVE not in driver.capabilities and name == DEAD_LETTER_QUEUE:
        return  # no job ever goes to the dead letters there
    try:
        driver.check_queue(name)
    except CallerError as problem:
        raise CallerError(f"{what} can't be used: {problem}") from problem


def _name_of(queue: "str | Queue") -> str:
    return queue.name if isinstance(queue, Queue) else queue


def _added(jobs: Sequence[NewJob], ids: Sequence[str]) -> list[NewJob]:
    """Return the jobs that are new: others found their unique key taken."""
    return [job for job, job_id in zip(jobs, ids, strict=True) if job.unique is None or job.id == job_id]


def _wait_seconds(timeout: Duration) -> float:
    value = plain_seconds(timeout)
    if not is_number(value) or not value >= 0:
        raise CallerError(f"timeout must be 0 or more seconds, or None to wait without limit, got {timeout!r}")
    return value


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
        "Nothing was changed. Use longer leases, or extend them while the job runs."
    )
