"""Reads jobs of a cluster without taking them: pages of one queue (`peek`), and scans of whole queues.

A scan has one part for each node, which goes through its own jobs once (JSCAN) and shows each in the state that it has
at that moment. Of a job that is on several nodes, one shows it:

    ready       the node in whose queue it is
    reserved    the node that gave it to a worker
    scheduled   where it was returned with a delay; before its first delivery the node that created it, and if that
                can't be reached, or has handed it on, the first by id of those which can be, and have it
    away        if the node that has it can't be reached, the first by id of the other nodes that have a copy

Limits: a job that goes to another node during the scan may be shown twice, or not at all. In a partition of the cluster
two nodes may each have queued a job, and then both show it. So they may if a job that is away was given to a third node
for its clients just before. What only a node holds that could not be reached when the
parts were made is not shown. A node that is lost later makes the scan fail. An original node shows no reserved jobs.

A page costs its node time, in which it answers nobody else. So the first pages are small, and they grow while they are
answered quickly.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

from penstock.client.aio import ClusterClient
from penstock.client.values import JobDetails, job_details
from penstock.job import JobState, StoredJob
from penstock.queues.aio.driver import Page
from penstock.queues.scan import NOTHING, Part, Rows, Wanted
from penstock.queues.stores.disque.aio.link import DisqueLink
from penstock.queues.stores.disque.aio.nodes import PAGE_COUNT, Nodes
from penstock.queues.stores.disque.jobs import is_before_its_time, is_created_by, stored_job
from penstock.queues.stores.disque.rows import Row, columns_of_rows, delayed, of_queues, row_of

# Ready jobs that are shown in order, since each page costs as much as all before it. Others come as a scan finds them.
ORDERED_MAX = 10_000
_MISSING = "!"  # before the id of a node that can't be reached, in the place of a part
_SHOW_AWAY = frozenset({JobState.READY, JobState.AWAY})
PAGE_S = 0.04  # the longest time for a page, as it is seen here: the node's own share of it is about a half


class _ScanStep(NamedTuple):
    """A state at a node."""

    state: JobState
    node: str
    view: ClusterClient


class _Position(NamedTuple):
    """The position of a peek: as a text, the cursor of a page."""

    step: int
    scan: int = 0
    seen: int = 0  # ready jobs that were on the pages before
    last: str = ""  # the last of them, by time of creation and id

    @classmethod
    def read(cls, cursor: str) -> "_Position":
        step, scan, seen, last = cursor.split(" ", 3)
        return cls(int(step), int(scan), int(seen), last)

    def __str__(self) -> str:
        return f"{self.step} {self.scan} {self.seen} {self.last}"

    @property
    def is_in_order(self) -> bool:
        """Whether the next page is of ready jobs in order."""
        return self.step == 0 and self.scan == 0 and self.seen < ORDERED_MAX


class Scan:
    """`peek`, `parts` and `scan_page` of the driver."""

    def __init__(self, link: DisqueLink, nodes: Nodes) -> None:
        self._link, self._nodes = link, nodes

    # Pages of one queue

    async def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None) -> Page:
        with self._link.client() as client:
            views, missing = await self._nodes.find(client)
            if not self._nodes.know_away:
                missing = []
            now_ms = await self._nodes.time_ms(client)
            wanted = [one for one in self._nodes.state_words if state in (None, one)]
            if missing and state in (None, JobState.READY, JobState.AWAY):
                wanted.insert(state is not JobState.AWAY, JobState.AWAY)  # after those that are ready
            steps = [_ScanStep(one, node, view) for one in wanted for node, view in views.items()]
            jobs: list[StoredJob] = []
            position = _Position(0) if cursor is None else _Position.read(cursor)
            if state in (None, JobState.READY) and position.is_in_order:
                jobs, position = await self._page_in_order(views, queue, count, position, now_ms)
            while position.step < len(steps) and len(jobs) < count:
                found, position = await self._page_of_step(steps, position, queue, views, missing, now_ms)
                jobs += found
        if position.step < len(steps):
            return Page(jobs, str(position))
        if cursor is None:  # all there are: so they can be put in order
            jobs.sort(key=lambda job: 0 if job.state is JobState.READY else job.mature_ms or 0)
        return Page(jobs, None)

    async def _page_in_order(
        self, views: dict[str, ClusterClient], queue: str, count: int, position: _Position, now_ms: int
    ) -> tuple[list[StoredJob], _Position]:
        """Return the next ready jobs, oldest first; QPEEK begins at the front each time."""
        rows: list[tuple[str, StoredJob]] = []
        is_all = True
        for node, view in views.items():
            wanted = position.seen + count + 1
            ids = [job.id for job in await view.peek(queue, wanted)]
            is_all = is_all and len(ids) < wanted
            seen = position.seen
            if seen and len(views) == 1 and len(ids) >= seen and position.last.endswith(ids[seen - 1]):
                ids = ids[seen:]  # nothing has gone meanwhile
            for reply in await view.call_many([("SHOW", job_id) for job_id in ids]):
                if isinstance(reply, list):  # it may be gone by now
                    details = job_details(reply)
                    rows.append((_rank(details), stored_job(details, JobState.READY, node, now_ms)))
        rows = sorted([row for row in rows if row[0] > position.last], key=lambda row: row[0])
        page = rows[:count]
        jobs = [job for _, job in page]
        if is_all and len(page) == len(rows):
            return jobs, _Position(len(views))  # after the steps for ready jobs
        last = page[-1][0] if page else position.last
        return jobs, position._replace(seen=position.seen + len(page), last=last)

    async def _page_of_step(
        self,
        steps: list[_ScanStep],
        position: _Position,
        queue: str,
        views: dict[str, ClusterClient],
        missing: Sequence[str],
        now_ms: int,
    ) -> tuple[list[StoredJob], _Position]:
        """Return the next page of a scan."""
        state, node, view = steps[position.step]
        chosen = _away(missing) if state is JobState.AWAY else ["STATE", self._nodes.state_words[state]]
        words: list[str | int] = ["JSCAN", position.scan, "COUNT", PAGE_COUNT, "QUEUE", queue, *chosen, "REPLY", "all"]
        cursor, rows = await view.call(*words)
        found = [job_details(row) for row in rows]
        if state is JobState.READY:
            found = [details for details in found if _rank(details) > position.last]
        elif state is JobState.SCHEDULED:
            found = [details for details in found if self._shows(node, details, views, now_ms)]
        following = position._replace(scan=int(cursor))
        if cursor == b"0":
            following = position._replace(step=position.step + 1, scan=0)
        return [stored_job(details, state, node, now_ms) for details in found], following

    def _shows(self, node: str, details: JobDetails, views: dict[str, ClusterClient], now_ms: int) -> bool:
        """Whether this node is the one that shows a scheduled job, of all that hold it."""
        if not is_before_its_time(details, now_ms):
            return self._nodes.are_ours
        creators = [other for other in views if is_created_by(details.id, other)]
        holders = sorted(views.keys() & set(details.nodes_delivered))
        return node in creators or (not creators and holders[:1] in ([node], []))

    # Whole queues, a part for each node

    async def parts(self, queues: Sequence[str]) -> list[Part]:
        with self._link.client() as client:
            views, missing = await self._nodes.find(client)
        nodes = list(views)
        away = [_MISSING + node for node in missing] if self._nodes.know_away else []
        # Each part has the ids of all nodes: they decide together which one shows a job.
        return [Part(tuple(queues), " ".join([node, *nodes, *away])) for node in nodes] if queues else []

    async def scan_page(self, part: Part, wanted: Wanted, count: int, cursor: str | None) -> Rows:
        if not wanted.states:
            return NOTHING
        node, *others = part.place.split(" ")
        nodes = [other for other in others if not other.startswith(_MISSING)]
        missing = [other.removeprefix(_MISSING) for other in others if other.startswith(_MISSING)]
        if not wanted.states.intersection(_SHOW_AWAY):
            missing = []
        if wanted.states == {JobState.AWAY} and not missing:
            return NOTHING
        with self._link.client() as client:
            view = client.at(node)
            now_ms = 0 if wanted.states == {JobState.READY} and not missing else await self._nodes.time_ms(view)
            found, following = await self._rows(view, part, wanted, missing, count, cursor, now_ms)
            rows = await self._without_copies(client, node, nodes, found, now_ms)
        if not rows:
            return Rows(0, {}, following)
        return Rows(len(rows), columns_of_rows(rows, node, now_ms), following)

    async def _rows(
        self,
        view: ClusterClient,
        part: Part,
        wanted: Wanted,
        missing: Sequence[str],
        count: int,
        cursor: str | None,
        now_ms: int,
    ) -> tuple[Sequence[Row], str | None]:
        """Return the next rows of a part, and its cursor: that of the node, and the size of the next page."""
        if wanted.ids is not None:
            return await self._rows_by_id(view, part, wanted, missing, now_ms), None
        scan, size = (0, min(count, PAGE_COUNT)) if cursor is None else map(int, cursor.split(" "))
        words: list[str | int] = ["JSCAN", scan, "COUNT", size]
        if len(part.queues) == 1:
            words += ["QUEUE", part.queues[0]]
        words += _away(missing)
        for state in wanted.states - {JobState.AWAY}:
            # Of an original, reserved jobs come as active ones, and are left out by `_rows_of_original`.
            words += ["STATE", self._nodes.state_words.get(state, "active")]
        began = time.monotonic()
        reply, rows = await view.call(*words, "REPLY", "compact" if self._nodes.are_ours else "all")
        took_s = time.monotonic() - began
        if not self._nodes.are_ours:
            rows = _rows_of_original([job_details(row) for row in rows], wanted, now_ms)
        if len(part.queues) > 1:
            rows = of_queues(rows, part.queues)
        following = min(count, size * 2) if took_s < PAGE_S / 2 else max(1, size // 2) if took_s > PAGE_S else size
        return rows, None if reply == b"0" else f"{int(reply)} {following}"

    async def _rows_by_id(
        self, view: ClusterClient, part: Part, wanted: Wanted, missing: Sequence[str], now_ms: int
    ) -> list[Row]:
        """Return the rows of jobs by their ids. An active job may be reserved or scheduled: both are scanned."""
        rows: list[Row] = []
        for queue in part.queues:
            known = await self._nodes.details(view, queue, wanted.ids or ())
            if not self._nodes.are_ours:
                rows += _rows_of_original(known, wanted, now_ms)
                continue
            if JobState.READY in wanted.states:
                rows += [row_of(one, JobState.READY) for one in known if one.state == "queued"]
            active = [one for one in known if one.state == "active"]
            away = {JobState.AWAY} if missing else set()
            for state in (wanted.states - _SHOW_AWAY | away) if active else ():
                if state is JobState.AWAY:
                    ids = set(await self._nodes.away_ids(view, queue, missing))
                else:
                    ids = set(await self._nodes.ids(view, queue, state, now_ms))
                rows += [row_of(one, state) for one in active if one.id in ids]
        return rows

    @staticmethod
    async def _without_copies(
        client: ClusterClient, node: str, nodes: Sequence[str], rows: Sequence[Row], now_ms: int
    ) -> Sequence[Row]:
        """Return the rows without jobs that another node shows: before its delay is over, each holder has a copy."""
        before: dict[str, list[str]] = {}
        for job_id in delayed(rows, now_ms):
            holders = sorted(nodes, key=lambda other: (not is_created_by(job_id, other), other))
            for other in holders[: holders.index(node)]:
                before.setdefault(other, []).append(job_id)
        elsewhere: set[str] = set()
        for other, copies in before.items():
            ids = [job_id for job_id in copies if job_id not in elsewhere]
            replies = await client.at(other).call_many([("SHOW", job_id) for job_id in ids])
            elsewhere.update(job_id for job_id, reply in zip(ids, replies, strict=True) if isinstance(reply, list))
        return [row for row in rows if row[0].decode() not in elsewhere] if elsewhere else rows


def _rows_of_original(found: Sequence[JobDetails], wanted: Wanted, now_ms: int) -> list[Row]:
    """Return the rows of jobs whose state an original node knows: queued, or before the end of the delay."""
    rows = []
    for details in found:
        if details.state == "queued" and JobState.READY in wanted.states:
            rows.append(row_of(details, JobState.READY))
        elif details.state == "active" and JobState.SCHEDULED in wanted.states:
            if is_before_its_time(details, now_ms):
                rows.append(row_of(details, JobState.SCHEDULED))
    return rows


def _away(missing: Sequence[str]) -> list[str]:
    """Return the options of JSCAN for jobs of nodes that can't be reached."""
    return [word for node in missing for word in ("AWAY", node)]


def _rank(details: JobDetails) -> str:
    """Return the place of a ready job, as a text that sorts."""
    return f"{details.created_ns:020d}.{details.id}"
