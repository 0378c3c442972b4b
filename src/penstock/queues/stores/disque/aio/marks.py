"""Jobs by their marks, on nodes of the original Disque: for callers that keep account of reserved jobs, as Spark's log.

An original node has no claims. It can show a job by its id (SHOW), restart its retry time (WORKING), and acknowledge it
for any client (ACKJOB). It doesn't say which client has a job, but the
counters do: they grow each time that a job goes back to its queue. A job whose counters are as they were when it was
reserved is still its holder's; one that has gone back once, and waits, has not been delivered since, and can be taken
out of its queue again (DEQUEUE).

A node that can't be reached is left out: others that hold the job may answer for it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.client.aio import ClusterClient
from penstock.client.values import Job, JobDetails
from penstock.errors import ConnectionLost
from penstock.job import Mark, StoredJob
from penstock.queues.stores.disque.aio.link import DisqueLink
from penstock.queues.stores.disque.aio.nodes import Nodes
from penstock.queues.stores.disque.jobs import fetched_jobs

_NEVER_MS = 2**62  # the end of a lease, where only the retry time of the job ends it


class Marks:
    """`reserved`, `regain`, `keep` and `end` of the driver."""

    def __init__(self, link: DisqueLink, nodes: Nodes, batch_max: int) -> None:
        self._link, self._nodes, self._batch_max = link, nodes, batch_max

    async def regain(self, queue: str, marks: Sequence[Mark]) -> list[StoredJob]:
        found: dict[str, StoredJob] = {}
        with self._link.client() as client:
            views = (await self._nodes.find(client)).views
            known = [
                (node, details)
                for node, view in views.items()
                for details in await self._details(view, queue, [mark.id for mark in marks])
            ]
            ended = {details.id for _, details in known if details.state == "acked"}
            by_id = {mark.id: mark for mark in marks if mark.id not in ended}
            # A job that waits must be taken out of its queue before anything else: so those nodes come first.
            for state in ("queued", "active"):
                for node, view in views.items():
                    mine = [
                        details
                        for at, details in known
                        if at == node and details.state == state and details.id not in found and details.id in by_id
                    ]
                    unchanged = [details for details in mine if _is_unchanged(by_id[details.id], details)]
                    for details in await self._take_again(view, unchanged):
                        found[details.id] = _reserved_job(details, node)
        return [found[mark.id] for mark in marks if mark.id in found]

    async def _details(self, view: ClusterClient, queue: str, ids: Sequence[str]) -> list[JobDetails]:
        found: list[JobDetails] = []
        for some in self._batches(ids):
            found += await self._nodes.details(view, queue, some)
        return found

    def _batches(self, ids: Sequence[str]) -> Iterable[Sequence[str]]:
        return [ids[begin : begin + self._batch_max] for begin in range(0, len(ids), self._batch_max)]

    async def _take_again(self, view: ClusterClient, jobs: Sequence[JobDetails]) -> list[JobDetails]:
        """Return those of the jobs that this caller has now."""
        free = set(await self._nodes.dequeue(view, [one.id for one in jobs if one.state == "queued"]))
        held = [one for one in jobs if one.state == "active" or one.id in free]
        await view.call_many([("WORKING", one.id) for one in held])
        return held

    async def reserved(self, queue: str, ids: Sequence[str]) -> list[StoredJob | None]:
        """Return those that a node shows as active, and that don't wait for their time. Their tokens have no number."""
        found: dict[str, StoredJob] = {}
        with self._link.client() as client:
            now_ms = await self._nodes.time_ms(client)
            known = []
            for node, view in (await self._nodes.find(client)).views.items():
                details = await self._details(view, queue, ids)
                active = [one for one in details if one.state == "active"]
                waiting = await self._nodes.scheduled(view, queue, active, now_ms)
                known += [(node, one, one.id in waiting) for one in details]
            # What one node has queued or ended is not reserved, whatever others know of it yet.
            free = {one.id for _, one, is_waiting in known if is_waiting or one.state in {"queued", "acked"}}
            for node, one, _ in known:
                if one.state == "active" and one.id not in free:
                    found.setdefault(one.id, _reserved_job(one, node))
        return [found.get(job_id) for job_id in ids]

    async def keep(self, marks: Sequence[Mark]) -> float | None:
        retries: list[int] = []
        with self._link.client() as client:
            for node, ids in _by_node(marks).items():
                for some in self._batches(ids):
                    retries += await self._working(client, node, some)
        return min((float(retry) for retry in retries if retry), default=None)

    async def _working(self, client: ClusterClient, node: str | None, ids: Sequence[str]) -> list[int]:
        """Restart the retry times of jobs, and return those of the jobs that are known."""
        commands = [("WORKING", job_id) for job_id in ids]
        try:
            return _numbers(await client.at(node).without_retry().call_many(commands))
        except ConnectionLost:
            views = await self._nodes.views(client)
            return [number for view in views for number in _numbers(await view.call_many(commands))]

    async def end(self, marks: Sequence[Mark]) -> int:
        ended = 0
        with self._link.client() as client:
            for node, ids in _by_node(marks).items():
                for some in self._batches(ids):
                    try:
                        ended += await client.at(node).without_retry().call("ACKJOB", *some)
                    except ConnectionLost:
                        ended += await client.call("ACKJOB", *some)  # any node takes it, and passes it on
        return ended


def _is_unchanged(mark: Mark, details: JobDetails) -> bool:
    """Whether a job was not delivered since it was marked."""
    if mark.nacks is None or mark.additional_deliveries is None:
        return True
    returns = details.additional_deliveries - mark.additional_deliveries
    return details.nacks == mark.nacks and returns <= (details.state == "queued")


def _reserved_job(details: JobDetails, node: str) -> StoredJob:
    job = Job(
        details.queue or "",
        details.id,
        details.body or b"",
        details.nacks,
        details.additional_deliveries,
        created_ns=details.created_ns,
        tries=details.tries,
    )
    (stored,) = fetched_jobs([job], node, _NEVER_MS)
    return stored


def _by_node(marks: Iterable[Mark]) -> dict[str | None, list[str]]:
    found: dict[str | None, list[str]] = {}
    for mark in marks:
        found.setdefault(mark.node or None, []).append(mark.id)
    return found


def _numbers(replies: Iterable[Any]) -> list[int]:
    return [reply for reply in replies if isinstance(reply, int)]
