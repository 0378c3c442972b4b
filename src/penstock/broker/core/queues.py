"""A queue of one node: its waiting jobs in order, its waiting clients, its pause state and counters.

Order is creation time, then id: a job that comes back goes to the front of younger ones. New jobs nearly always come
with growing creation times, so they are appended to a deque; the rest goes to a small heap beside it, and the next job
is the smaller of both heads.

A job taken out of the middle (DEQUEUE, an ack, expiry) leaves its entry behind, marked LISTED on the job. An entry is
valid while its job is queued, so a job that is queued again before its entry was met needs no second one: its place
is the same. When more entries are stale than valid, the order is rebuilt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, merge, nlargest, nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.broker.core.jobs import ACTIVE, DELIVERED, IMPORTED, LISTED, OUT, QUEUED, Job

if TYPE_CHECKING:
    from penstock.broker.core.federation import Exchange
    from penstock.broker.core.waiters import Waiter

PAUSED_IN: Final = 1
PAUSED_OUT: Final = 2
PAUSE_NAMES: Final = (b"none", b"in", b"out", b"all")
# A queue with its dict entries, deque and heap; a deque alone takes 600 bytes.
QUEUE_BYTES: Final = 1200
ANY_BYTES: Final = 1 << 60
STALE_MIN: Final = 64  # stale entries below which a rebuild isn't considered

# The number tells two entries of one id apart: a job that was sent away may come back as another record.
_Late = tuple[int, bytes, int, Job]


class Queue:
    """One queue. `length` is the number of jobs waiting; only core.delivery changes it."""

    __slots__ = (
        "_jobs",
        "_late",
        "_late_count",
        "_newest",
        "accessed_ms",
        "created_ms",
        "exchange",
        "expired",
        "index",
        "jobs_in",
        "jobs_out",
        "length",
        "name",
        "pause",
        "waiters",
    )

    def __init__(self, name: bytes, now_ms: int, index: int) -> None:
        self.name = name
        self.index = index  # its place in the list that QSCAN walks
        self.created_ms = now_ms
        self.accessed_ms = now_ms
        self.length = 0
        self.pause = 0
        self.jobs_in = 0
        self.jobs_out = 0
        self.expired = 0  # jobs that expired here before they were acknowledged
        self.waiters: dict[Waiter, None] = {}  # first come, first served
        self.exchange: Exchange | None = None  # with other nodes, once there was any
        self._jobs: deque[Job] = deque()
        self._late: list[_Late] = []
        self._late_count = 0
        self._newest = 0

    def extend(self, jobs: list[Job]) -> None:
        """Put new jobs, already marked LISTED and in order, into their places: nearly always at the end."""
        self.length += len(jobs)
        if jobs[0].ctime > self._newest or not self._jobs:
            self._jobs.extend(jobs)
            self._newest = jobs[-1].ctime
        else:
            for job in jobs:
                self._late_count += 1
                heappush(self._late, (job.ctime, job.id, self._late_count, job))

    def insert(self, job: Job) -> None:
        """Put a job, just made queued, into its place."""
        if job.flags & LISTED:
            self.length += 1
            return
        job.flags |= LISTED
        self.extend([job])

    def take(self, most: int, bytes_max: int = ANY_BYTES) -> list[Job]:
        """Take the next jobs out, for delivery: they are active, DELIVERED and OUT then.

        At most `most` of them; the one whose body and queue name exceed `bytes_max` in total is the last.
        """
        jobs, late = self._jobs, self._late
        name_bytes = len(self.name)
        taken: list[Job] = []
        while most > 0 and (jobs or late):
            if late and not (jobs and (jobs[0].ctime, jobs[0].id) < late[0][:2]):
                job = heappop(late)[3]
            else:
                job = jobs.popleft()
            if job.state == QUEUED:
                job.state = ACTIVE
                job.flags = job.flags & ~(LISTED | IMPORTED) | DELIVERED | OUT
                taken.append(job)
                most -= 1
                bytes_max -= name_bytes + len(job.body)
                if bytes_max < 0:
                    break
            else:
                job.flags &= ~LISTED
        self.length -= len(taken)
        return taken

    def drop(self) -> None:
        """Count a job out that has left the state queued by another way than `take`."""
        self.length -= 1
        stale = len(self._jobs) + len(self._late) - self.length
        if stale > STALE_MIN and stale > self.length:
            self._rebuild()

    def _rebuild(self) -> None:
        for order in (self._jobs, (entry[3] for entry in self._late)):
            for job in order:
                if job.state != QUEUED:
                    job.flags &= ~LISTED
        self._jobs = deque(job for job in self._jobs if job.flags & LISTED)
        self._late = [entry for entry in self._late if entry[3].flags & LISTED]
        heapify(self._late)

    def clear(self) -> None:
        """Remove all entries, also those of jobs that have left the queue."""
        for job in self._jobs:
            job.flags &= ~LISTED
        for entry in self._late:
            entry[3].flags &= ~LISTED
        self._jobs.clear()
        self._late.clear()
        self.length = 0

    def oldest(self, most: int) -> Iterator[Job]:
        """Look at the first jobs, without touching them."""
        valid = ((job.ctime, job.id, 0, job) for job in self._jobs if job.state == QUEUED)
        late = nsmallest(most, (entry for entry in self._late if entry[3].state == QUEUED)) if self._late else []
        return islice((entry[3] for entry in merge(valid, late)), most)

    def newest(self, most: int) -> Iterator[Job]:
        """Look at the last jobs, newest first, without touching them."""
        valid = ((job.ctime, job.id, 0, job) for job in reversed(self._jobs) if job.state == QUEUED)
        late = nlargest(most, (entry for entry in self._late if entry[3].state == QUEUED)) if self._late else []
        return islice((entry[3] for entry in merge(valid, late, reverse=True)), most)
