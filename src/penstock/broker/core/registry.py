"""Where a node finds its jobs and queues by name, and walks over all of them with a cursor.

Jobs are spread over small dicts, the pages, by two characters of their id's random part. One dict of a million entries
stops the node for 50 ms and more when it grows; a thousand small ones grow one at a time. They are also what a scan
goes by: a job never changes its page, so whoever walks all pages meets every job that was there all the time.

Queues are few and looked up with every add, so they stand in one dict, and in a list for the scan. A removed queue's
place is taken by the list's last one; the scan goes from the end to the start, so what moves to a lower place is
still ahead of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from penstock.broker.core.jobs import Job
from penstock.broker.core.queues import Queue

# with 64 different characters in front: 1,024 pages are used
PAGES_A_ROW: Final = 16
PAGE_MASK: Final = 15
PAGES_PER_COUNT: Final = 10  # a scan call looks at ten times as many pages as it wants elements, at most

JobTest = Callable[[Job], bool]
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

    def scan(self, cursor: int, count: int | None, wanted: JobTest) -> tuple[int, list[Job]]:
        """Give the next cursor (0 at the end) and some jobs; count None means everything that is left.

        A cursor is the place of the next page. Empty pages cost next to nothing and don't count.
        """
        found: list[Job] = []
        pages_left = None if count is None else max(1, PAGES_PER_COUNT * count)
        for at in range(min(cursor, len(self.flat)), len(self.flat)):
            page = self.flat[at]
            if not page:
                continue
            if count is not None and (pages_left == 0 or len(found) >= max(1, count)):
                return at, found
            found += [job for job in page.values() if wanted(job)]
            if pages_left is not None:
                pages_left -= 1
        return 0, found


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
        """Give up to so many queues beginning at a place, round the end: a sample for eviction."""
        order = self._order
        if not order:
            return []
        start %= len(order)
        return (order[start : start + most] + order[: max(0, start + most - len(order))])[: len(order)]

    def scan(self, cursor: int, count: int | None, wanted: QueueTest) -> tuple[int, list[Queue]]:
        """Give the next cursor (0 at the end) and some queues; count None means everything that is left."""
        order = self._order
        at = min(cursor, len(order)) if cursor else len(order)
        budget = at if count is None else max(1, PAGES_PER_COUNT * count)
        found: list[Queue] = []
        while at > 0 and budget > 0:
            at -= 1
            budget -= 1
            if wanted(order[at]):
                found.append(order[at])
                if count is not None and len(found) >= count:
                    break
        return at, found
