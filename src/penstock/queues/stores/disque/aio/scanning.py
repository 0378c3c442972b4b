"""Walks over the jobs of a queue, node by node and state by state.

Each node knows the jobs that wait there, and has copies of some that wait elsewhere. A job is `queued` or `reserved` on
one node; it is `scheduled` on all that hold it, and the one that made it speaks for them.

JSCAN goes through all jobs of a node, whatever their queue, a page at a time: ten times as many jobs as its COUNT says,
at most. The node answers nobody else meanwhile.
"""

from typing import NamedTuple

from penstock.client.aio import ClusterClient
from penstock.client.values import JobDetails, job_details, text
from penstock.job import JobState, StoredJob
from penstock.queues.aio.driver import Page
from penstock.queues.stores.disque.aio.base import DisqueBase
from penstock.queues.stores.disque.jobs import is_before_its_time, is_made_by, shown

PAGE_COUNT = 1000  # jobs on a page; a node that goes through ten times as many is busy for 5 to 10 ms
# Ready jobs that are shown in their order, for each page costs as much as all before it. Others come as a scan meets
# them.
ORDERED_MAX = 10_000

# States in the order in which a walk takes them, in the words of our nodes.
WORDS = {JobState.READY: "queued", JobState.SCHEDULED: "scheduled", JobState.RESERVED: "reserved"}
# Those of Disque know no more than `active`, and of such a job only whether its first delay is over.
ORIGINAL_WORDS = {JobState.READY: "queued", JobState.SCHEDULED: "active"}


class _Stop(NamedTuple):
    """A state at a node."""

    state: JobState
    node: str
    view: ClusterClient


class _Walk(NamedTuple):
    """How far a walk has come: as a text, the cursor of a page."""

    stop: int
    scan: int = 0
    seen: int = 0  # ready jobs that were on the pages before
    last: str = ""  # the last of them, by time of creation and id

    @classmethod
    def read(cls, cursor: str) -> "_Walk":
        stop, scan, seen, last = cursor.split(" ", 3)
        return cls(int(stop), int(scan), int(seen), last)

    def __str__(self) -> str:
        return f"{self.stop} {self.scan} {self.seen} {self.last}"

    @property
    def is_in_order(self) -> bool:
        """Whether the next page is of ready jobs in their order."""
        return self.stop == 0 and self.scan == 0 and self.seen < ORDERED_MAX


class DisqueScanning(DisqueBase):
    """`peek`, and what counts and removes jobs that are not at hand."""

    async def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None = None) -> Page:
        async with self._clients.borrow() as client:
            views = (await self._nodes(client)).views
            now_ms = await self._time_ms(client)
            stops = [
                _Stop(one, node, view)
                for one in (ORIGINAL_WORDS, WORDS)[self._is_ours]
                if state in (None, one)
                for node, view in views.items()
            ]
            jobs: list[StoredJob] = []
            walk = _Walk(0) if cursor is None else _Walk.read(cursor)
            if state in (None, JobState.READY) and walk.is_in_order:
                jobs, walk = await self._page_in_order(views, queue, count, walk, now_ms)
            while walk.stop < len(stops) and len(jobs) < count:
                found, walk = await self._step(stops, walk, queue, views, now_ms)
                jobs += found
        if walk.stop < len(stops):
            return Page(jobs, str(walk))
        if cursor is None:  # all there are: so they can be put in order
            jobs.sort(key=lambda job: 0 if job.state is JobState.READY else job.mature_ms or 0)
        return Page(jobs, None)

    async def _page_in_order(
        self, views: dict[str, ClusterClient], queue: str, count: int, walk: _Walk, now_ms: int
    ) -> tuple[list[StoredJob], _Walk]:
        """The next jobs that are ready, oldest first; QPEEK begins at the front each time."""
        rows: list[tuple[str, StoredJob]] = []
        is_all = True
        for node, view in views.items():
            wanted = walk.seen + count + 1
            ids = [job.id for job in await view.peek(queue, wanted)]
            is_all = is_all and len(ids) < wanted
            if walk.seen and len(views) == 1 and len(ids) >= walk.seen and walk.last.endswith(ids[walk.seen - 1]):
                ids = ids[walk.seen :]  # nothing has gone meanwhile
            for reply in await view.call_many([("SHOW", job_id) for job_id in ids]):
                if isinstance(reply, list):  # it may be gone by now
                    details = job_details(reply)
                    rows.append((_rank(details), shown(details, JobState.READY, node, now_ms)))
        rows = sorted([row for row in rows if row[0] > walk.last], key=lambda row: row[0])
        page = rows[:count]
        jobs = [job for _, job in page]
        if is_all and len(page) == len(rows):
            return jobs, _Walk(len(views))  # behind the stops for ready jobs
        return jobs, walk._replace(seen=walk.seen + len(page), last=page[-1][0] if page else walk.last)

    async def _step(
        self, stops: list[_Stop], walk: _Walk, queue: str, views: dict[str, ClusterClient], now_ms: int
    ) -> tuple[list[StoredJob], _Walk]:
        """The next page of a scan."""
        state, node, view = stops[walk.stop]
        word = (ORIGINAL_WORDS, WORDS)[self._is_ours][state]
        options = ("COUNT", PAGE_COUNT, "QUEUE", queue, "STATE", word, "REPLY", "all")
        scan, rows = await view.call("JSCAN", walk.scan, *options)
        found = [job_details(row) for row in rows]
        if state is JobState.READY:
            found = [details for details in found if _rank(details) > walk.last]
        elif state is JobState.SCHEDULED:
            found = [details for details in found if self._speaks(node, details, views, now_ms)]
        following = walk._replace(stop=walk.stop + 1, scan=0) if scan == b"0" else walk._replace(scan=int(scan))
        return [shown(details, state, node, now_ms) for details in found], following

    def _speaks(self, node: str, details: JobDetails, views: dict[str, ClusterClient], now_ms: int) -> bool:
        """Whether this node is the one that shows a scheduled job, of all that hold it."""
        if not self._is_ours and not is_before_its_time(details, now_ms):
            return False
        makers = [other for other in views if is_made_by(details.id, other)]
        return node in makers or not makers or not is_before_its_time(details, now_ms)

    async def _ids(self, view: ClusterClient, queue: str, state: JobState, now_ms: int) -> list[str]:
        """The ids of a node's jobs in a state."""
        is_active = state is JobState.SCHEDULED and not self._is_ours
        word = (ORIGINAL_WORDS, WORDS)[self._is_ours][state]
        options = ("COUNT", PAGE_COUNT, "QUEUE", queue, "STATE", word)
        found: list[str] = []
        scan = b"0"
        while True:
            if is_active:
                scan, rows = await view.call("JSCAN", scan, *options, "REPLY", "all")
                details = [job_details(row) for row in rows]
                found += [one.id for one in details if is_before_its_time(one, now_ms)]
            else:
                scan, rows = await view.call("JSCAN", scan, *options)
                found += [text(row) for row in rows]
            if scan == b"0":
                return found


def _rank(details: JobDetails) -> str:
    """The place of a ready job, as a text that sorts."""
    return f"{details.created_ns:020d}.{details.id}"
