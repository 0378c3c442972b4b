"""Where a node finds its jobs and queues by name, and walks over all of them with a cursor.

Jobs are spread over small dicts by two characters of their random part. One dict of a million entries stops the node
for 50 ms and more when it grows; 4,096 small ones grow one at a time. They are also the pages of a scan: a job never
changes its page, so whoever walks all pages meets every job that was there all the time.

Queues are few and looked up with every add, so they stand in one dict, and in a list for the scan. A removed queue's
place is taken by the list's last one; the scan goes from the end to the start, so what moves to a lower place is
still ahead of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from penstock.broker.core.jobs import Job
from penstock.broker.core.queues import Queue

PAGES_PER_COUNT = 10  # a scan call looks at ten times as many pages as it wants elements, at most

JobTest = Callable[[Job], bool]
QueueTest = Callable[[Queue], bool]


class JobTable:
    """All jobs of a node by id."""

    __slots__ = ("_order", "count", "pages")

    def __init__(self) -> None:
        self.pages: dict[bytes, dict[bytes, Job]] = {}
        self.count = 0
        self._order: list[bytes] = []  # the pages' keys, sorted, for the cursor

    def get(self, job_id: bytes) -> Job | None:
        """Find a job."""
        page = self.pages.get(job_id[11:13])
        return page.get(job_id) if page is not None else None

    def put(self, job: Job) -> None:
        """Register a job."""
        job_id = job.id
        page = self.pages.get(job_id[11:13])
        if page is None:
            page = self.add_page(job_id)
        page[job_id] = job
        self.count += 1

    def add_page(self, job_id: bytes) -> dict[bytes, Job]:
        """Make the page on which a job will stand."""
        self._order = []
        page: dict[bytes, Job] = {}
        self.pages[job_id[11:13]] = page
        return page

    def remove(self, job: Job) -> None:
        """Unregister a job that is there."""
        del self.pages[job.id[11:13]][job.id]
        self.count -= 1

    def clear(self) -> None:
        """Forget all jobs."""
        self.pages = {}
        self._order = []
        self.count = 0

    def __iter__(self) -> Iterator[Job]:
        for page in self.pages.values():
            yield from page.values()

    def __contains__(self, job_id: bytes) -> bool:
        return self.get(job_id) is not None

    def page_keys(self) -> list[bytes]:
        """Give the keys of all pages, in a fixed order."""
        if not self._order:
            self._order = sorted(self.pages)
        return self._order

    def scan(self, cursor: int, count: int | None, wanted: JobTest) -> tuple[int, list[Job]]:
        """Give the next cursor (0 at the end) and some jobs; count None means everything that is left.

        A cursor is the key of the next page as a number, plus one, so it holds when pages are added.
        """
        order = self.page_keys()
        start = bisect_left(order, min(cursor - 1, 0xFFFF).to_bytes(2, "big")) if cursor else 0
        found: list[Job] = []
        last = len(order) if count is None else min(len(order), start + max(1, PAGES_PER_COUNT * count))
        for at in range(start, last):
            found += [job for job in self.pages[order[at]].values() if wanted(job)]
            if count is not None and len(found) >= count:
                last = at + 1
                break
        return (int.from_bytes(order[last], "big") + 1 if last < len(order) else 0), found


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
