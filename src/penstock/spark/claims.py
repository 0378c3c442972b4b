"""What holds the jobs of a micro-batch: claims in the store, or the offset itself.

A claim is a lease on many jobs under one key, which is made of the offset's run id and number. A batch takes its jobs
in steps (`batch_size`), and each step is a claim; the offset says how many there are:

    {"run": …, "seq": 3, "queue": "mail", "store": "redis://host:6379/0", "steps": 4}

With the option `fetch=driver` the driver reads the jobs, and they go to the tasks with their partitions. With
`fetch=executors` it reads only those of the first step, for their size, and claims the others unread: each claim is a
partition, and its task reads the jobs by the claim's key. So bodies neither pass the driver nor Java on their way in.

Nodes of the original Disque have no claims. There the jobs are listed in the offset:

    {"run": …, "seq": 3, "held": {NODE: ["D-…", "D-… 1 0", …]}}

A job is listed by its id, with its two counters (nacks, additional deliveries) where they are not both 0: they show
later whether it was delivered to another worker. Spark keeps a hundred offsets and sends each to every listener, so
such a batch has 5,000 jobs at most. What follows from it:

    reserved, but not logged yet   if the driver dies here, the jobs come back when their retry time is over
    after a restart                jobs are read by their ids, and kept; those that others had are missing
    while a batch runs             their retry time is restarted (WORKING), which a node does until half of a job's ttl
                                   is over; later, jobs come back while they are worked on
    when Spark has logged it       the jobs are acked by their ids, at the next `latestOffset`

A job with retry 0 is lost if the driver dies before its batch was logged: that is what at most once means.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock import Capability
from penstock.errors import CallerError, LeaseLost
from penstock.job import Mark, StoredJob
from penstock.queues.blocking import Job, Queue, Store, connect
from penstock.queues.capabilities import require
from penstock.spark.batch_size import Backlog, BatchSteps, EvenSteps
from penstock.spark.errors import retry_while_unreachable
from penstock.spark.lease_keeper import LeaseKeeper
from penstock.spark.settings import EXECUTORS, QuerySettings

OWNERS_QUEUE = "__penstock_owners__"
STEPS = "steps"  # in an offset: the number of claims of its batch, if there are more than one
BEFORE = "before"  # in an offset that was claimed ahead: the number of claims of the batch before, which is acked later
HELD = "held"  # in an offset: its jobs, on nodes without claims
JOBS_MAX = 5_000  # in one offset: some 220 KB
ELSEWHERE_S = 2.0  # until jobs that are queued on another node are moved to the one that is asked

Offset = dict[str, Any]

log = logging.getLogger("penstock.spark")


def open_batches(settings: QuerySettings) -> ClaimedBatches | OffsetBatches:
    """Return what holds the jobs of a query's batches in this store."""
    store: Store = connect(settings.url, lease=settings.lease_s)
    retry_while_unreachable(store.open)
    if Capability.CLAIM not in store.capabilities and store.has_marks:
        return OffsetBatches(settings, store)
    require(store.capabilities, Capability.CLAIM, store.url)
    return ClaimedBatches(settings, store)


# Claims.


def claim_keys(offset: Offset) -> list[str]:
    """Return the keys of the claims that a batch has in the store."""
    return [_claim_key(offset, step) for step in range(offset.get(STEPS, 1))]


def _unfinished_keys(offset: Offset, finished: int | None) -> list[str]:
    """Return the keys of the claims that end with a batch: with those of the batch before, if they may not be ended."""
    keys = claim_keys(offset) if offset["seq"] else []
    if BEFORE in offset and (finished is None or finished < offset["seq"] - 1):
        keys = claim_keys({"run": offset["run"], "seq": offset["seq"] - 1, STEPS: offset[BEFORE]}) + keys
    return keys


def _claim_key(offset: Offset, step: int) -> str:
    return f"spark:{offset['run']}:{offset['seq']}" + (f":{step}" if step else "")


def _steps(settings: QuerySettings) -> BatchSteps | EvenSteps:
    if settings.settling_tasks is not None:
        return EvenSteps(settings.settling_tasks, settings.partition_jobs)
    return BatchSteps(settings.batch_bytes, settings.partition_jobs if settings.fetch == EXECUTORS else None)


def read_claim(queue: Queue, key: str, count: int, settings: QuerySettings) -> list[StoredJob]:
    """Return the jobs of a claim; if it doesn't exist, make it with up to `count` jobs."""
    jobs = retry_while_unreachable(lambda: queue.claim(key, count, lease=settings.lease_s))
    return [job.stored for job in jobs]


@dataclass(slots=True)
class ClaimedJobs:
    """The jobs of a claim, and when their leases were extended last."""

    jobs: list[StoredJob] | None  # None: left unread
    count: int  # that the claim still had then
    extended: tuple[float, float] = field(default_factory=lambda: (time.monotonic(), time.time()))

    @property
    def age_s(self) -> float:
        """Return the seconds since then. The wall clock counts as well: the other one stops while a machine sleeps."""
        return max(time.monotonic() - self.extended[0], time.time() - self.extended[1])


class ClaimedBatches:
    """The batches of one query as claims in its store, in the driver's process."""

    def __init__(self, settings: QuerySettings, store: Store) -> None:
        self._settings = settings
        self.store = store
        self.queue: Queue = store.queue(settings.queue)
        self.backlog = Backlog(self.queue.size, settings.jobs_min, settings.delay_s_max)
        self.leases_lost = 0
        self._open: dict[int, dict[str, ClaimedJobs]] = {}  # by number: the jobs of each claim
        self._finished: int | None = None
        self._steps = _steps(settings)
        self._owner: Job | None = None
        self._lost_owner = False
        self._has_recovered = False
        self._lease_keeper = LeaseKeeper(settings, self._extend_leases, settings.lease_s / 3)
        self._lock = threading.Lock()

    def check_owner(self, offset: Offset) -> None:
        """With the option `owner`: be the only query with this name; raise if a newer one has taken it."""
        if self._settings.owner is None:
            return
        if self._lost_owner:
            raise CallerError(
                f"owner must be a name of this query alone, got {self._settings.owner!r}, which another query has taken"
            )
        if self._owner is None:
            self._owner = retry_while_unreachable(self._claim_owner)
            self._lease_keeper.start()

    def _claim_owner(self) -> Job:
        """Return a job that stays leased while this query runs. If a newer query takes it, this one notices."""
        owners = self.store.queue(f"{OWNERS_QUEUE}:{self._settings.owner}")
        key = f"owner:{self._settings.owner}"
        held = owners.claim(key, 1, lease=self._settings.lease_s)
        if not held:
            owners.ack_claim(key)
            if not owners.total():
                owners.push(b"")
            held = owners.claim(key, 1, lease=self._settings.lease_s)
        if not held:
            raise CallerError(
                f"owner must be a name of this query alone, got {self._settings.owner!r}, which a query has that began "
                "at the same moment"
            )
        return held[0]

    def finish(self, offset: Offset) -> None:
        """End the claims of a batch that Spark has logged as done: its jobs are acked.

        Where its tasks have settled them, none is left; one that is left all the same goes back to its queue.
        """
        if offset["seq"] == self._finished:
            return  # Spark asks again and again while there are no jobs
        if offset["seq"]:
            self._steps.finished()
        end = self.queue.ack_claim if self._settings.settling_tasks is None else self.queue.nack_claim
        for key in _unfinished_keys(offset, self._finished):
            acked = retry_while_unreachable(partial(end, key))
            with self._lock:
                held = self._open.get(offset["seq"], {}).get(key)
                if held is not None and acked and self._settings.settling_tasks is None:  # else it was acked before
                    self._count_lost(held, acked)
        self._finished = offset["seq"]
        with self._lock:
            for seq in [seq for seq in self._open if seq <= offset["seq"]]:
                del self._open[seq]

    def recover(self, offset: Offset) -> bool:
        """Whether the next batch was claimed already, right before a crash. Checked once, at the first batch."""
        if self._has_recovered:
            return False
        self._has_recovered = True
        found: dict[str, ClaimedJobs] = {}
        while (claimed := self._claim(_claim_key(offset, len(found)), 0)).count:
            found[_claim_key(offset, len(found))] = claimed
        if found:
            self._hold(offset, found)
        return bool(found)

    def begin(self, offset: Offset, count: int) -> int:
        """Claim jobs for the next batch; return how many it has."""
        self._steps.begin(count)
        wanted = self._steps.next(count)
        claimed = self._first(_claim_key(offset, 0), wanted)
        found: dict[str, ClaimedJobs] = {}
        left = count
        while claimed.count:
            found[_claim_key(offset, len(found))] = claimed
            left -= claimed.count
            if claimed.jobs is None or isinstance(self._steps, EvenSteps):
                self._steps.took_unread(claimed.count)
            else:
                self._steps.took(claimed.jobs)
            is_all = claimed.count < wanted
            wanted = 0 if is_all else self._steps.next(max(0, left))
            if not wanted:
                break
            claimed = self._claim(_claim_key(offset, len(found)), wanted)
        if found and wanted:  # the last claim got nothing, or only jobs that had no tries left
            retry_while_unreachable(lambda: self.queue.nack_claim(_claim_key(offset, len(found))))
        if found:
            self._hold(offset, found)
        return count - left

    def _first(self, key: str, count: int) -> ClaimedJobs:
        """Return the first jobs of a batch: read, where their size says how many more fit."""
        ready_before = 0
        while True:
            claimed = self._read(key, count) if self._settings.settling_tasks is None else self._claim(key, count)
            ready = self.backlog.poll() if count and not claimed.count else 0
            if not ready or ready == ready_before:
                return claimed
            # The key is an old one, or got only jobs that had no tries left: it would never return a job.
            ready_before = ready
            retry_while_unreachable(lambda: self.queue.nack_claim(key))

    def _claim(self, key: str, count: int) -> ClaimedJobs:
        if self._settings.fetch != EXECUTORS:
            return self._read(key, count)
        lease_s = self._settings.lease_s
        return ClaimedJobs(None, retry_while_unreachable(lambda: self.queue.claim_unread(key, count, lease=lease_s)))

    def _read(self, key: str, count: int) -> ClaimedJobs:
        jobs = read_claim(self.queue, key, count, self._settings)
        return ClaimedJobs(jobs, len(jobs))

    def unread(self, offset: Offset) -> list[list[str]] | None:
        """Return the keys of the claims that each partition of a batch reads; None if the driver reads the jobs.

        The first claim is a small one, so it goes with the second.
        """
        if self._settings.fetch != EXECUTORS:
            return None
        if self._settings.settling_tasks is not None:
            return [[key] for key in self._claims_of(offset)]
        first, *others = ([key] for key in self._claims_of(offset))
        return [first + others[0], *others[1:]] if others else [first]

    def jobs_of(self, offset: Offset) -> dict[str, list[StoredJob]]:
        """Return the jobs of a batch by their claims: from memory, or from the store after a restart."""
        return {key: one.jobs or [] for key, one in self._claims_of(offset).items()}

    def _claims_of(self, offset: Offset) -> dict[str, ClaimedJobs]:
        self.check_owner(offset)
        with self._lock:
            held = self._open.get(offset["seq"])
        if held is None:
            # With 0, the claim gets no other jobs for those that are gone.
            held = self._hold(offset, {key: self._claim(key, 0) for key in claim_keys(offset)})
        return held

    def _hold(self, offset: Offset, claims: dict[str, ClaimedJobs]) -> dict[str, ClaimedJobs]:
        if len(claims) > 1:
            offset[STEPS] = len(claims)
        with self._lock:
            self._open[offset["seq"]] = claims
        self._lease_keeper.start()
        return claims

    def _extend_leases(self, store: Store) -> None:
        """Extend the leases of all open batches."""
        queue = store.queue(self._settings.queue)
        with self._lock:
            open_now = [one for held in self._open.values() for one in held.items()]
        for key, held in open_now:
            count = queue.extend_claim(key, self._settings.lease_s)
            with self._lock:
                self._count_lost(held, count)
        if self._owner is not None:
            try:
                store.queue(self._owner.queue.name).extend(self._owner, self._settings.lease_s)
            except LeaseLost:
                self._lost_owner = True

    def _count_lost(self, held: ClaimedJobs, count: int) -> None:
        """Count jobs that a claim has lost since the last time.

        Other workers can take them only when their leases are over. Those that are gone before went to the dead
        letters, or were acked.
        """
        gone = held.count - count
        if self._settings.settling_tasks is None and gone > 0 and held.age_s >= self._settings.lease_s:
            self.leases_lost += gone
            log.warning(
                "the leases of %d jobs of %s ended before they could be extended, and other workers have taken the "
                "jobs: they are processed twice. Set the option lease to more than %g seconds",
                gone,
                self._settings.queue,
                self._settings.lease_s,
            )
        held.count, held.extended = count, (time.monotonic(), time.time())

    def close(self) -> None:
        """Stop extending leases, and close the store."""
        self._lease_keeper.stop()
        self.store.close()


# Jobs in the offset, for nodes of the original Disque.


def held_of(jobs: Iterable[StoredJob]) -> dict[str, list[str]]:
    """Return jobs as an offset lists them."""
    held: dict[str, list[str]] = {}
    for job in jobs:
        nacks, deliveries = job.nacks or 0, job.additional_deliveries or 0
        text = f"{job.id} {nacks} {deliveries}" if nacks or deliveries else job.id
        held.setdefault(job.node or "", []).append(text)
    return held


def marks_in(offset: Offset) -> list[Mark]:
    """Return the jobs that an offset lists."""
    marks = []
    for node, texts in offset.get(HELD, {}).items():
        for text in texts:
            job_id, _, counters = text.partition(" ")
            nacks, _, deliveries = (counters or "0 0").partition(" ")
            marks.append(Mark(job_id, node, int(nacks), int(deliveries)))
    return marks


class OffsetBatches:
    """The batches of one query on nodes without claims, with the methods of ClaimedBatches."""

    leases_lost = 0  # such nodes don't report it

    def __init__(self, settings: QuerySettings, store: Store) -> None:
        self._settings = settings
        self.store = store
        self.queue: Queue = store.queue(settings.queue)
        self.backlog = Backlog(self.queue.size, settings.jobs_min, settings.delay_s_max)
        self._open: dict[int, tuple[list[Mark], list[StoredJob]]] = {}  # by number
        self._finished = 0
        self._steps = BatchSteps(settings.batch_bytes)
        # At once: the length of a retry time is known after its first restart.
        self._lease_keeper = LeaseKeeper(settings, self._extend_leases, 0.0)
        self._lock = threading.Lock()

    def key(self, offset: Offset) -> str:
        """Return the value of the column `claim` for a batch."""
        return f"spark:{offset['run']}:{offset['seq']}"

    def check_owner(self, offset: Offset) -> None:
        """Refuse the option `owner`, which needs claims."""
        if self._settings.owner is not None:
            raise CallerError(
                f"owner needs claims, which {self.store.url} doesn't have, as one of its nodes is an original Disque: "
                "leave the option out, and keep the query's checkpoint"
            )

    def finish(self, offset: Offset) -> None:
        """Ack a batch that Spark has logged as done."""
        marks = marks_in(offset)
        if marks and offset["seq"] != self._finished:
            retry_while_unreachable(lambda: self.queue.ack_marked(marks))
        self._finished = offset["seq"]
        with self._lock:
            for seq in [seq for seq in self._open if seq <= offset["seq"]]:
                del self._open[seq]

    def recover(self, offset: Offset) -> bool:
        """Return False: jobs that were reserved and never logged can't be found."""
        return False

    def unread(self, offset: Offset) -> None:
        """Return None: the driver reads the jobs, since an offset has no key for a task to read them by."""

    def begin(self, offset: Offset, count: int) -> int:
        """Reserve jobs for the next batch, and list them in its offset; return how many it has."""
        found: dict[str, StoredJob] = {}  # a job that came back meanwhile may come twice
        wanted = min(count, JOBS_MAX)
        self._steps.begin(wanted)
        while left := self._steps.next(wanted - len(found)):
            more = retry_while_unreachable(partial(self.queue.reserve_many, left, 0))
            if not more and not found and retry_while_unreachable(self.queue.size):
                more = retry_while_unreachable(partial(self.queue.reserve_many, left, ELSEWHERE_S))
            if not more:
                break
            found.update((job.id, job.stored) for job in more)
            self._steps.took([job.stored for job in more])
        jobs = list(found.values())
        if jobs:
            offset[HELD] = held_of(jobs)
            self._hold(offset, jobs)
        return len(jobs)

    def jobs_of(self, offset: Offset) -> dict[str, list[StoredJob]]:
        """Return the jobs of a batch: from memory, or after a restart those that it still has."""
        with self._lock:
            known = self._open.get(offset["seq"])
        if known is not None:
            return {self.key(offset): known[1]}
        marks = marks_in(offset)
        jobs = [job.stored for job in retry_while_unreachable(lambda: self.queue.regain(marks))]
        self._hold(offset, jobs)
        return {self.key(offset): jobs}

    def _hold(self, offset: Offset, jobs: list[StoredJob]) -> None:
        ids = {job.id for job in jobs}
        with self._lock:
            self._open[offset["seq"]] = [mark for mark in marks_in(offset) if mark.id in ids], jobs
        self._lease_keeper.start()

    def _extend_leases(self, store: Store) -> float | None:
        """Restart the retry times of all open batches."""
        with self._lock:
            marks = [mark for held, _ in self._open.values() for mark in held]
        retry_s = self.queue.extend_marked(marks) if marks else None
        return None if retry_s is None else retry_s / 3

    def close(self) -> None:
        """Stop extending leases, and close the store."""
        self._lease_keeper.stop()
        self.store.close()
