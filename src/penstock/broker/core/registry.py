"""The tables of a node: jobs by id, queues by name, both with cursors for scans, and the ids of finished jobs.

Jobs are spread over small dicts, the pages, by two characters of their id's random part. One dict of a million entries
stops the node for 50 ms and more when it grows; a thousand small ones grow one at a time.

A scan goes through the pages, and through each page in the order of the next five characters of the ids. So the place
of a job follows from its id alone, and a cursor is a place: whatever comes and goes between two calls, a scan meets
every job that was there all the time. Jobs with the same place, which is rare with random ids, are returned together.
A call works on as many jobs as its count allows, and on the order of one page: a thousandth of all jobs.

Queues are few and looked up with every add, so they stand in one dict, and in a list for the scan. A removed queue's
place is taken by the list's last one; the scan goes from the end to the start, so what moves to a lower place is
still ahead of it.

A copy of a job may still be on its way when the job has ended on every node: sent again because an answer was late, or
delayed on a slow link. It must not bring the job back. So the ids of the last finished jobs are kept, in two
generations; when the younger is full, the older is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from penstock.broker.core import refusals
from penstock.broker.core.ids import is_job_id
from penstock.broker.core.jobs import Job
from penstock.broker.core.memory import Memory
from penstock.broker.core.queues import Queue
from penstock.broker.core.refusals import Refused

# with 64 different first characters: 1,024 pages are used
PAGES_A_ROW: Final = 16
PAGE_MASK: Final = 15
LOOKS_PER_COUNT: Final = 10  # a scan call checks at most ten times as many jobs or queues as it returns
SCAN_BYTES_MAX: Final = 1 << 20  # of one reply, or one element: other clients wait while it is made
PLACE_BITS: Final = 40  # of a cursor: five characters; with the number of the page it stays below 2**53
GENERATION_MAX: Final = 32_768  # ids: the last half minute at 1,000 finished jobs a second, in some 5 MB
ENTRY_BYTES: Final = 120
SHARE: Final = 64  # a generation takes at most this part of maxmemory

JobTest = Callable[[Job], bool]
JobSize = Callable[[Job], int]
QueueTest = Callable[[Queue], bool]


class JobTable:
    """All jobs of a node by id. A job stands on `pages[id[11]][id[12] & 15]`; hot loops look there themselves."""

    __slots__ = ("count", "flat", "pages")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all jobs."""
        self.pages: list[list[dict[bytes, Job]]] = [[{} for _ in range(PAGES_A_ROW)] for _ in range(256)]
        self.flat = [page for row in self.pages for page in row]
        self.count = 0

    def get(self, job_id: bytes) -> Job | None:
        """Find a job."""
        return self.pages[job_id[11]][job_id[12] & PAGE_MASK].get(job_id) if len(job_id) > 12 else None

    def find(self, job_ids: list[bytes]) -> list[Job | None]:
        """Find jobs. Refuses the whole list if one of them can't be a job id."""
        pages = self.pages
        try:
            jobs = [pages[job_id[11]][job_id[12] & PAGE_MASK].get(job_id) for job_id in job_ids]
        except IndexError:  # shorter than any id
            raise Refused(*refusals.BAD_ID) from None
        if None in jobs:
            for job, job_id in zip(jobs, job_ids, strict=True):
                if job is None and not is_job_id(job_id):
                    raise Refused(*refusals.BAD_ID)
        return jobs

    def put(self, job: Job) -> None:
        """Register a job."""
        job_id = job.id
        self.pages[job_id[11]][job_id[12] & PAGE_MASK][job_id] = job
        self.count += 1

    def remove(self, job: Job) -> None:
        """Unregister a job that is there."""
        job_id = job.id
        del self.pages[job_id[11]][job_id[12] & PAGE_MASK][job_id]
        self.count -= 1

    def __iter__(self) -> Iterator[Job]:
        for page in self.flat:
            yield from page.values()

    def __contains__(self, job_id: bytes) -> bool:
        return self.get(job_id) is not None

    def scan(
        self, cursor: int, count: int | None, wanted: JobTest, size_of: JobSize | None = None
    ) -> tuple[int, list[Job]]:
        """Return the next cursor (0 at the end) and some jobs; count None means everything that is left.

        A cursor is the number of a page and a place on it. `size_of` returns what a job adds to the reply.
        """
        found: list[Job] = []
        looks_left = 0 if count is None else max(1, LOOKS_PER_COUNT * count)
        jobs_left = 0 if count is None else max(1, count)
        bytes_left = SCAN_BYTES_MAX
        first = cursor >> PLACE_BITS
        least = cursor & ((1 << PLACE_BITS) - 1)
        for at in range(min(first, len(self.flat)), len(self.flat)):
            page = self.flat[at]
            if not page:
                continue
            last = -1
            for place, job_id in _in_order(page, least if at == first else 0):
                job = page[job_id]
                if count is not None and place != last and (not jobs_left or not looks_left):
                    return at << PLACE_BITS | place, found
                looks_left -= looks_left > 0
                if wanted(job):
                    if count is not None and size_of is not None:
                        size = size_of(job)
                        if size > bytes_left and found and place != last:
                            return at << PLACE_BITS | place, found
                        bytes_left -= size
                    found.append(job)
                    jobs_left -= jobs_left > 0
                last = place
        return 0, found


def _in_order(page: dict[bytes, Job], least: int) -> list[tuple[int, bytes]]:
    """Return the jobs of a page from a place on, each with its place."""
    places = [(int.from_bytes(job_id[13:18], "big"), job_id) for job_id in page]
    return sorted([pair for pair in places if pair[0] >= least] if least else places)


class QueueTable:
    """All queues of a node by name."""

    __slots__ = ("_order", "by_name")

    def __init__(self) -> None:
        self.by_name: dict[bytes, Queue] = {}
        self._order: list[Queue] = []

    def __len__(self) -> int:
        return len(self.by_name)

    def create(self, name: bytes, now_ms: int) -> Queue:
        """Make a queue that isn't there yet."""
        queue = Queue(name, now_ms, len(self._order))
        self.by_name[name] = queue
        self._order.append(queue)
        return queue

    def remove(self, queue: Queue) -> None:
        """Forget a queue."""
        del self.by_name[queue.name]
        last = self._order.pop()
        if last is not queue:
            self._order[queue.index] = last
            last.index = queue.index

    def clear(self) -> None:
        """Forget all queues."""
        for queue in self._order:
            queue.clear()
        self.by_name.clear()
        self._order.clear()

    def some(self, start: int, most: int) -> list[Queue]:
        """Return up to `most` queues from a place on, wrapping at the end: a sample for eviction."""
        order = self._order
        if not order:
            return []
        start %= len(order)
        return (order[start : start + most] + order[: max(0, start + most - len(order))])[: len(order)]

    def scan(self, cursor: int, count: int | None, wanted: QueueTest) -> tuple[int, list[Queue]]:
        """Return the next cursor (0 at the end) and some queues; count None means everything that is left."""
        order = self._order
        at = min(cursor, len(order)) if cursor else len(order)
        budget = at if count is None else max(1, LOOKS_PER_COUNT * count)
        bytes_left = SCAN_BYTES_MAX
        found: list[Queue] = []
        while at > 0 and budget > 0:
            queue = order[at - 1]
            if wanted(queue):
                if count is not None and len(queue.name) > bytes_left and found:
                    break
                bytes_left -= len(queue.name)
                found.append(queue)
            at -= 1
            budget -= 1
            if count is not None and found and len(found) >= count:
                break
        return at, found


class Finished:
    """The ids of the jobs that finished last."""

    __slots__ = ("_memory", "_old", "_young")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def add(self, job_id: bytes) -> None:
        """Remember the id of a finished job."""
        if job_id in self._young:
            return
        limit = GENERATION_MAX
        if self._memory.max_bytes:
            limit = min(limit, max(64, self._memory.max_bytes // SHARE // ENTRY_BYTES))
        if len(self._young) >= limit:
            self._memory.used_bytes -= ENTRY_BYTES * len(self._old)
            self._old, self._young = self._young, set()
        self._young.add(job_id)
        self._memory.used_bytes += ENTRY_BYTES

    def clear(self) -> None:
        """Forget all."""
        self._young = set()
        self._old = set()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __contains__(self, job_id: bytes) -> bool:
        return job_id in self._young or job_id in self._old
