"""Jobs by their marks, on nodes of the original Disque: for who keeps account of reserved jobs, as Spark's log does.

An original knows no claims. What it can do is to show a job by its id (SHOW), to let its retry time begin anew
(WORKING), and to end it, whoever asks (ACKJOB). Who has a job it doesn't tell. But the counters do: they grow each time
that a job goes back to its queue. A job whose counters are as they were when it was reserved is still its holder's; one
that has gone back once, and waits, has been nobody else's and can be taken out of its queue again (DEQUEUE).

A node that is away is passed over: others that hold the job may answer for it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from penstock.client.aio import ClusterClient
from penstock.client.values import Job, JobDetails
from penstock.errors import ConnectionLost
from penstock.job import Mark, StoredJob
from penstock.queues.stores.disque.aio.survey import DisqueSurvey
from penstock.queues.stores.disque.jobs import taken

_NEVER_MS = 2**62  # the end of a lease, where only the retry time of the job ends it


class DisqueMarks(DisqueSurvey):
    """`reserved`, `regain`, `keep` and `end`."""

    has_marks: ClassVar[bool] = True

    @property
    def delays_by_id(self) -> bool:
        return self._is_ours  # Disque's NACK has no delay

    async def regain(self, queue: str, marks: Sequence[Mark]) -> list[StoredJob]:
        found: dict[str, StoredJob] = {}
        async with self._clients.borrow() as client:
            views = (await self._nodes(client)).views
            known = [
                (node, details)
                for node, view in views.items()
                for details in await self._known_in_parts(view, queue, [mark.id for mark in marks])
            ]
            ended = {details.id for _, details in known if details.state == "acked"}
            by_id = {mark.id: mark for mark in marks if mark.id not in ended}
            # Where a job waits it must be taken out before anything else is done: so those nodes come first.
            for state in ("queued", "active"):
                for node, view in views.items():
                    mine = [
                        details
                        for at, details in known
                        if at == node and details.state == state and details.id not in found and details.id in by_id
                    ]
                    held = [details for details in mine if _is_still(by_id[details.id], details)]
                    for details in await self._held_again(view, held):
                        found[details.id] = _taken(details, node)
        return [found[mark.id] for mark in marks if mark.id in found]

    async def _known_in_parts(self, view: ClusterClient, queue: str, ids: Sequence[str]) -> list[JobDetails]:
        found: list[JobDetails] = []
        for begin in range(0, len(ids), self.batch_max):
            found += await self._known(view, queue, ids[begin : begin + self.batch_max])
        return found

    async def _held_again(self, view: ClusterClient, jobs: Sequence[JobDetails]) -> list[JobDetails]:
        """Those of the jobs that this caller has now."""
        free = set(await self._dequeued(view, [one.id for one in jobs if one.state == "queued"]))
        held = [one for one in jobs if one.state == "active" or one.id in free]
        await view.call_many([("WORKING", one.id) for one in held])
        return held

    async def reserved(self, queue: str, ids: Sequence[str]) -> list[StoredJob | None]:
        """Those that a node shows as active, and that don't wait for their time: their tokens are good by id alone."""
        found: dict[str, StoredJob] = {}
        async with self._clients.borrow() as client:
            now_ms = await self._time_ms(client)
            known = []
            for node, view in (await self._nodes(client)).views.items():
                details = await self._known_in_parts(view, queue, ids)
                active = [one for one in details if one.state == "active"]
                waiting = await self._scheduled(view, queue, active, now_ms)
                known += [(node, one, one.id in waiting) for one in details]
            # What one node has queued or ended is not reserved, whatever others know of it yet.
            free = {one.id for _, one, is_waiting in known if is_waiting or one.state in {"queued", "acked"}}
            for node, one, _ in known:
                if one.state == "active" and one.id not in free:
                    found.setdefault(one.id, _taken(one, node))
        return [found.get(job_id) for job_id in ids]

    async def keep(self, queue: str, marks: Sequence[Mark]) -> float | None:
        retries: list[int] = []
        async with self._clients.borrow() as client:
            for node, ids in _by_node(marks).items():
                for begin in range(0, len(ids), self.batch_max):
                    retries += await self._working(client, node, ids[begin : begin + self.batch_max])
        return min((float(retry) for retry in retries if retry), default=None)

    async def _working(self, client: ClusterClient, node: str | None, ids: Sequence[str]) -> list[int]:
        """The retry times of those jobs that were put off."""
        commands = [("WORKING", job_id) for job_id in ids]
        try:
            return _numbers(await client.at(node).without_retry().call_many(commands))
        except ConnectionLost:
            views = (await self._nodes(client)).views.values()
            return [number for view in views for number in _numbers(await view.call_many(commands))]

    async def end(self, queue: str, marks: Sequence[Mark]) -> int:
        ended = 0
        async with self._clients.borrow() as client:
            for node, ids in _by_node(marks).items():
                for begin in range(0, len(ids), self.batch_max):
                    words = ("ACKJOB", *ids[begin : begin + self.batch_max])
                    try:
                        ended += await client.at(node).without_retry().call(*words)
                    except ConnectionLost:
                        ended += await client.call(*words)  # any node takes it, and passes it on
        return ended


def _is_still(mark: Mark, details: JobDetails) -> bool:
    """Whether nobody has had a job since it was marked."""
    if mark.nacks is None or mark.additional_deliveries is None:
        return True
    returns = details.additional_deliveries - mark.additional_deliveries
    return details.nacks == mark.nacks and returns <= (details.state == "queued")


def _taken(details: JobDetails, node: str) -> StoredJob:
    job = Job(
        details.queue or "",
        details.id,
        details.body or b"",
        details.nacks,
        details.additional_deliveries,
        created_ns=details.created_ns,
        tries=details.tries,
    )
    (stored,) = taken([job], node, _NEVER_MS)
    return stored


def _by_node(marks: Iterable[Mark]) -> dict[str | None, list[str]]:
    found: dict[str | None, list[str]] = {}
    for mark in marks:
        found.setdefault(mark.node or None, []).append(mark.id)
    return found


def _numbers(replies: Iterable[Any]) -> list[int]:
    return [reply for reply in replies if isinstance(reply, int)]
