"""Jobs in this process's memory: for tests, for trying out, and for work that may go with the process.

A queue is a dict of jobs by id and a heap of (maturity, order of arrival, id). A job's entry in the heap is the one
that has its present maturity; others are left over from before, and are skipped when they come up.

    jobs       id -> Entry
    heap       (mature_ms, number, id)
    unique     key -> (id, unique_for_ms, end of the job in ms, or None while it is there)
    claims     key -> ids; a job is still under the key if its entry says so
    values     key -> (text, end in ms), of the whole store
"""

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.codec import from_json, to_json
from penstock.job import JobMove, JobState, Lease, NewJob, Sizes, StoredJob
from penstock.queues.blocking.driver import Driver, Page
from penstock.queues.capabilities import STANDARD, Capability
from penstock.queues.options import Options, StoreURL

# Entries of a heap, and unique keys, that nobody needs: beyond that, and twice those in use, they are thrown out.
_LEFT_OVER_MAX = 1000


@dataclass(slots=True)
class _Entry:
    """A job, and where it stands."""

    id: str
    body: bytes
    headers: str  # as JSON: nobody changes what is stored
    tries: int
    mature_ms: int
    created_ms: int
    number: int
    token: str | None = None  # of a reserved job, also after its lease is over
    unique: str | None = None
    claim: str | None = None  # the key that holds it
    ahead: int = 0  # of a lease that has not begun: 1, and 1 more for each such lease just before it that ran out

    def stored(self, state: JobState) -> StoredJob:
        return StoredJob(
            self.id,
            self.body,
            headers=from_json(self.headers) if self.headers else {},
            tries=self.tries,
            mature_ms=self.mature_ms,
            recorded_ms=self.created_ms,
            token=self.token,
            state=state,
            has_begun=not self.ahead,
        )


@dataclass(slots=True)
class _MemoryQueue:
    jobs: dict[str, _Entry] = field(default_factory=dict)
    heap: list[tuple[int, int, str]] = field(default_factory=list)
    unique: dict[str, tuple[str, int, int | None]] = field(default_factory=dict)
    claims: dict[str, list[str]] = field(default_factory=dict)

    def place(self, entry: _Entry) -> None:
        """Put a job into the heap."""
        heapq.heappush(self.heap, (entry.mature_ms, entry.number, entry.id))
        if len(self.heap) > 2 * len(self.jobs) + _LEFT_OVER_MAX:
            self.heap = [(job.mature_ms, job.number, job.id) for job in self.jobs.values()]
            heapq.heapify(self.heap)

    def first(self) -> _Entry | None:
        """The job that matures first."""
        while self.heap:
            mature_ms, _, job_id = self.heap[0]
            entry = self.jobs.get(job_id)
            if entry is not None and entry.mature_ms == mature_ms:
                return entry
            heapq.heappop(self.heap)
        return None

    def leased(self, lease: Lease) -> _Entry | None:
        """The job of a lease: one without a token is for a job that nobody ever took, or that was given back."""
        entry = self.jobs.get(lease.id)
        return entry if entry is not None and entry.token == lease.token else None

    def end(self, entry: _Entry, now_ms: int) -> None:
        """A job goes."""
        del self.jobs[entry.id]
        if entry.unique is not None:
            job_id, unique_for_ms, _ = self.unique[entry.unique]
            self.unique[entry.unique] = (job_id, unique_for_ms, now_ms)

    def holder(self, key: str, now_ms: int) -> str | None:
        """The id of the job that has a unique key, if it is taken."""
        job_id, unique_for_ms, ended_ms = self.unique.get(key, ("", 0, 0))
        return job_id if ended_ms is None or now_ms < ended_ms + unique_for_ms else None

    def take_key(self, key: str, job: NewJob, now_ms: int) -> None:
        """Note who has a unique key."""
        self.unique[key] = (job.id, job.unique_for_ms, None)
        if len(self.unique) > 2 * len(self.jobs) + _LEFT_OVER_MAX:
            self.unique = {one: self.unique[one] for one in self.unique if self.holder(one, now_ms) is not None}


class MemoryQueues:
    """The queues of one store, for any number of drivers and threads of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.queues: dict[str, _MemoryQueue] = {}
        self.numbers = itertools.count(1)
        self.values: dict[str, tuple[str, int]] = {}
        self.values_max = _LEFT_OVER_MAX  # beyond that those whose time is over are thrown out


_named: dict[str, MemoryQueues] = {}


def named_memory_store(name: str) -> MemoryQueues:
    """Return the store of a name, made when it is first asked for."""
    return _named.setdefault(name, MemoryQueues())


class MemoryDriver(Driver):
    """`memory:` is a store of its own; `memory:NAME` is shared by all of this process that name it."""

    type: ClassVar[str] = "memory"
    capabilities: ClassVar[frozenset[Capability]] = STANDARD - {Capability.SHARED_PAUSE}
    own_options: ClassVar[frozenset[str] | None] = frozenset()
    is_in_memory: ClassVar[bool] = True

    def __init__(self, address: StoreURL, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        name = address.netloc or address.path
        store = named_memory_store(name) if name else MemoryQueues()
        self._place = address.url if name else f"memory:{id(self)}"
        self._lock = store.lock
        self._queues = store.queues
        self._numbers = store.numbers
        self._store = store
        self._now: Callable[[], float] | None = None  # the time of a test

    def freeze(self, now: Callable[[], float]) -> None:
        self._now = now

    def now_ms(self) -> int:
        return super().now_ms() if self._now is None else round(self._now() * 1000) + self.shift_ms

    @property
    def place(self) -> str:
        return self._place

    def _queue(self, name: str) -> _MemoryQueue:
        return self._queues.setdefault(name, _MemoryQueue())

    def prepare(self, job: NewJob) -> None:
        job.prepared = to_json(dict(job.headers)) if job.headers else ""

    def push(self, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        now_ms = self.now_ms()
        with self._lock:
            place = self._queue(queue)
            return [self._push(place, job, now_ms) for job in jobs]

    def _push(self, place: _MemoryQueue, job: NewJob, now_ms: int) -> str:
        if job.unique is not None:
            holder = place.holder(job.unique, now_ms)
            if holder is not None:
                return holder
            place.take_key(job.unique, job, now_ms)
        mature_ms = job.mature_ms if job.mature_ms is not None else now_ms + job.delay_ms
        created_ms = now_ms if job.created_ms is None else job.created_ms
        entry = _Entry(
            job.id, job.body, job.prepared, job.tries, mature_ms, created_ms, next(self._numbers), None, job.unique
        )
        place.jobs[job.id] = entry
        place.place(entry)
        return job.id

    def pop(self, queue: str, count: int, wait_ms: int = 0) -> list[StoredJob]:
        now_ms = self.now_ms()
        popped: list[StoredJob] = []
        with self._lock:
            place = self._queue(queue)
            while len(popped) < count and (entry := place.first()) is not None and entry.mature_ms <= now_ms:
                self._end_lost_lease(entry)
                entry.ahead = 0
                place.end(entry, now_ms)
                stored = entry.stored(JobState.READY)
                stored.raw = entry
                popped.append(stored)
        return popped

    @staticmethod
    def _end_lost_lease(entry: _Entry) -> bool:
        """Whether a job still has a token: its lease ran out. It costs a try if work on the job had begun."""
        if entry.token is None:
            return False
        entry.token = entry.claim = None
        entry.tries += not entry.ahead
        return True

    def put_back(self, queue: str, jobs: Sequence[StoredJob]) -> None:
        now_ms = self.now_ms()
        with self._lock:
            place = self._queue(queue)
            for job in jobs:
                entry: _Entry = job.raw
                if entry.unique is not None and place.holder(entry.unique, now_ms) not in {None, entry.id}:
                    entry.unique = None  # another job has the key by now
                if entry.unique is not None:
                    place.unique[entry.unique] = (entry.id, place.unique.get(entry.unique, ("", 0, 0))[1], None)
                place.jobs[entry.id] = entry
                place.place(entry)

    def reserve(
        self, queue: str, count: int, lease_ms: int, wait_ms: int = 0, begin: int | None = None
    ) -> list[StoredJob]:
        now_ms = self.now_ms()
        with self._lock:
            return self._reserve(self._queue(queue), count, lease_ms, now_ms, begin)

    def _reserve(
        self, place: _MemoryQueue, count: int, lease_ms: int, now_ms: int, begin: int | None = None
    ) -> list[StoredJob]:
        taken: list[StoredJob] = []
        while len(taken) < count and (entry := place.first()) is not None and entry.mature_ms <= now_ms:
            is_back = self._end_lost_lease(entry)
            unbegun = entry.ahead if is_back else 0
            has_begun = begin is None or (not is_back and len(taken) < begin)
            entry.ahead = 0 if has_begun else unbegun + 1
            self._lease(place, entry, now_ms + lease_ms)
            job = entry.stored(JobState.RESERVED)
            job.is_back, job.unbegun = is_back, unbegun
            taken.append(job)
        return taken

    def _lease(self, place: _MemoryQueue, entry: _Entry, until_ms: int) -> None:
        entry.mature_ms = until_ms
        entry.token = f"{until_ms}.{next(self._numbers)}"
        place.place(entry)

    def release(self, queue: str, leases: Sequence[Lease]) -> None:
        now_ms = self.now_ms()
        with self._lock:
            place = self._queue(queue)
            for lease in leases:
                entry = place.leased(lease)
                if entry is not None:
                    entry.token = entry.claim = None
                    entry.ahead = 0
                    entry.mature_ms = now_ms
                    place.place(entry)

    def ack(self, queue: str, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        now_ms = self.now_ms()
        with self._lock:
            place = self._queue(queue)
            for lease in begun:
                entry = place.leased(lease) if lease.token else None
                if entry is not None:
                    entry.ahead = 0
            return [self._ack(place, lease, now_ms) for lease in leases]

    @staticmethod
    def _ack(place: _MemoryQueue, lease: Lease, now_ms: int) -> bool:
        entry = place.leased(lease) if lease.token else None
        if entry is not None:
            place.end(entry, now_ms)
        return entry is not None

    def nack(self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None) -> list[bool]:
        now_ms = self.now_ms()
        done = []
        with self._lock:
            place = self._queue(queue)
            for lease, delay_ms in zip(leases, delays_ms, strict=True):
                entry = place.leased(lease) if lease.token else None
                done.append(entry is not None)
                if entry is not None:
                    entry.token = entry.claim = None
                    entry.ahead = 0
                    entry.tries += 1
                    entry.mature_ms = now_ms + delay_ms
                    place.place(entry)
        return done

    def extend(
        self,
        queue: str,
        leases: Sequence[Lease],
        leases_ms: Sequence[int],
        begun: Sequence[bool] = (),
    ) -> list[str | None]:
        now_ms = self.now_ms()
        tokens: list[str | None] = []
        with self._lock:
            place = self._queue(queue)
            for lease, lease_ms, has_begun in zip(leases, leases_ms, begun or [False] * len(leases), strict=True):
                entry = place.leased(lease) if lease.token else None
                if entry is not None:
                    entry.ahead = 0 if has_begun else entry.ahead
                    self._lease(place, entry, now_ms + lease_ms)
                tokens.append(None if entry is None else entry.token)
        return tokens

    def move(
        self, queue: str, to: str, moves: Sequence[JobMove], channel: str | None, counter: str | None = None
    ) -> list[bool]:
        now_ms = self.now_ms()
        moved = []
        with self._lock:
            source, target = self._queue(queue), self._queue(to)
            for lease, job in moves:
                entry = source.leased(lease)
                moved.append(entry is not None)
                if entry is not None:
                    source.end(entry, now_ms)
                    self._push(target, job, now_ms)
        return moved

    def remove(self, queue: str, ids: Sequence[str]) -> list[bool]:
        now_ms = self.now_ms()
        removed = []
        with self._lock:
            place = self._queue(queue)
            for job_id in ids:
                entry = place.jobs.get(job_id)
                is_free = entry is not None and self._state(entry, now_ms) is not JobState.RESERVED
                removed.append(is_free)
                if entry is not None and is_free:
                    place.end(entry, now_ms)
        return removed

    def purge(self, queue: str) -> int:
        with self._lock:
            return sum(self.remove(queue, list(self._queue(queue).jobs)))

    @staticmethod
    def _state(entry: _Entry, now_ms: int) -> JobState:
        if entry.mature_ms <= now_ms:
            return JobState.READY
        return JobState.SCHEDULED if entry.token is None else JobState.RESERVED

    def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None = None) -> Page:
        now_ms = self.now_ms()
        with self._lock:
            entries = [
                entry
                for entry in self._queue(queue).jobs.values()
                if state is None or self._state(entry, now_ms) is state
            ]
        entries.sort(key=lambda entry: (entry.mature_ms, entry.number))
        if cursor is not None:
            after_ms, _, number = cursor.partition(":")
            entries = [entry for entry in entries if (entry.mature_ms, entry.number) > (int(after_ms), int(number))]
        page = [entry.stored(self._state(entry, now_ms)) for entry in entries[:count]]
        if len(entries) <= count:
            return Page(page, None)
        last = entries[count - 1]
        return Page(page, f"{last.mature_ms}:{last.number}")

    def reserved(self, queue: str, ids: Sequence[str]) -> list[StoredJob | None]:
        with self._lock:
            entries = [self._queue(queue).jobs.get(job_id) for job_id in ids]
            return [
                None if entry is None or entry.token is None else entry.stored(JobState.RESERVED) for entry in entries
            ]

    def sizes(self, queue: str) -> Sizes:
        now_ms = self.now_ms()
        with self._lock:
            states = [self._state(entry, now_ms) for entry in self._queue(queue).jobs.values()]
        ready, scheduled, reserved = (
            states.count(state) for state in (JobState.READY, JobState.SCHEDULED, JobState.RESERVED)
        )
        return Sizes(len(states), ready, scheduled, reserved)

    def next_mature_ms(self, queue: str) -> int | None:
        with self._lock:
            entry = self._queue(queue).first()
            return None if entry is None else entry.mature_ms

    def queues(self) -> list[str]:
        with self._lock:
            return sorted(name for name, place in self._queues.items() if place.jobs)

    def claim(self, queue: str, key: str, count: int, lease_ms: int) -> list[StoredJob]:
        now_ms = self.now_ms()
        with self._lock:
            place = self._queue(queue)
            if key in place.claims:
                return self._claimed_again(place, key, lease_ms, now_ms)
            jobs = self._reserve(place, count, lease_ms, now_ms)
            if jobs:
                place.claims[key] = [job.id for job in jobs]
            for job in jobs:
                place.jobs[job.id].claim = key
            return jobs

    def put_value(self, key: str, value: str, ttl_ms: int) -> None:
        now_ms = self.now_ms()
        with self._lock:
            values = self._store.values
            values[key] = (value, now_ms + ttl_ms)
            if len(values) > self._store.values_max:
                for old in [one for one, (_, end_ms) in values.items() if end_ms <= now_ms]:
                    del values[old]
                self._store.values_max = 2 * len(values) + _LEFT_OVER_MAX

    def value(self, key: str) -> str | None:
        with self._lock:
            value, end_ms = self._store.values.get(key, (None, 0))
        return value if self.now_ms() < end_ms else None

    def remove_value(self, key: str) -> None:
        with self._lock:
            self._store.values.pop(key, None)

    @staticmethod
    def _under(place: _MemoryQueue, key: str) -> list[_Entry]:
        """The jobs that a key still has."""
        entries = [place.jobs[job_id] for job_id in place.claims.get(key, ()) if job_id in place.jobs]
        return [entry for entry in entries if entry.claim == key]

    def _claimed_again(self, place: _MemoryQueue, key: str, lease_ms: int, now_ms: int) -> list[StoredJob]:
        entries = self._under(place, key)
        for entry in entries:
            self._lease(place, entry, now_ms + lease_ms)
        return [entry.stored(JobState.RESERVED) for entry in entries]

    def extend_claim(self, queue: str, key: str, lease_ms: int) -> int:
        now_ms = self.now_ms()
        with self._lock:
            return len(self._claimed_again(self._queue(queue), key, lease_ms, now_ms))

    def ack_claim(self, queue: str, key: str) -> int:
        with self._lock:
            return sum(self.ack(queue, self._end_claim(queue, key)))

    def nack_claim(self, queue: str, key: str, delay_ms: int) -> int:
        with self._lock:
            leases = self._end_claim(queue, key)
            return sum(self.nack(queue, leases, [delay_ms] * len(leases), None))

    def _end_claim(self, queue: str, key: str) -> list[Lease]:
        place = self._queue(queue)
        leases = [Lease(entry.id, entry.token) for entry in self._under(place, key)]
        place.claims.pop(key, None)
        return leases
