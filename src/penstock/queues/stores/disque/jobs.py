"""Jobs of a node as the queue library has them, and the tokens of their leases.

A token is a text of three parts: the number that the node gave, the node's id, and when the lease ends by the clock of
this machine (monotonic milliseconds): `1881981154613002240@e5882c47...@1234567`. Only the node that gave a lease knows
its number, so what ends the job must go there; if that node is gone, the third part tells whether the lease holds.
A node of the original Disque gives no numbers: there the first part is 0, and a job is known by its id alone.

`tries` are deliveries that came before this one. Our nodes count leases under which work began. Of a job's other two
counters `nacks` grows when a worker gives it back, and `additional-deliveries` when it is queued again for any other
reason: its lease or its retry time was over, or the node that had it queued is gone. The first queueing counts as
neither, and a delayed nack as one. On a node that doesn't count leases, the sum of both is taken for the number of
earlier deliveries. What is in the sum beside tries are leases that ended before work began. Tries that a job was pushed
with are in its headers, under TRIES.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from penstock.client.values import Job, JobDetails, jobs_of
from penstock.codec import MARK, frame, unframe
from penstock.job import JobState, Lease, NewJob, StoredJob

# Headers that only this store writes, and takes off again.
TRIES = "x-penstock-tries"
CREATED = "x-penstock-created"  # of a job that moved from another queue: the node knows when it was added to this one
NO_NUMBER = "0"
_NS_PER_MS = 1_000_000


class Held:
    """Leases that one node gave, which end at the same time: the jobs of one fetch, as a rule."""

    __slots__ = ("ids", "node", "numbers", "places", "until_ms")

    def __init__(self, node: str, until_ms: int) -> None:
        self.node, self.until_ms = node, until_ms
        self.places: list[int] = []  # in what was asked
        self.ids: list[str] = []
        self.numbers: list[str] = []

    @property
    def has_numbers(self) -> bool:
        """Whether the node gave any."""
        return self.numbers[0] != NO_NUMBER

    def pairs(self, chosen: Iterable[int] | None = None) -> list[str]:
        """Ids and numbers by turns, as commands about leases take them: all, or some of them."""
        rows = range(len(self.ids)) if chosen is None else chosen
        return [word for row in rows for word in (self.ids[row], self.numbers[row])]


def token(number: int | str, node: str, until_ms: int) -> str:
    """The token of a lease."""
    return f"{number}@{node}@{until_ms}"


def held(leases: Iterable[Lease]) -> list[Held]:
    """Leases by the node that gave them. Jobs without one, or with a token that no node gave, are left out."""
    found: dict[tuple[str, bool], Held] = {}
    for place, (job_id, text) in enumerate(leases):
        number, _, tail = (text or "").partition("@")
        if not number.isdecimal():
            continue
        key = tail, number == NO_NUMBER
        group = found.get(key)
        if group is None:
            node, _, until_ms = tail.partition("@")
            if not node or not until_ms.isdecimal():
                continue
            group = found[key] = Held(node, int(until_ms))
        group.places.append(place)
        group.ids.append(job_id)
        group.numbers.append(number)
    return list(found.values())


def stored_body(job: NewJob) -> bytes:
    """What a job becomes in the node: its body, behind a frame if it has headers or tries.

    A body that needs no frame stays raw, for other clients: then when it was pushed to an earlier queue is not kept.
    """
    headers = job.headers
    if job.tries:
        headers = {**headers, TRIES: job.tries}
    if headers and job.created_ms is not None:
        headers = {**headers, CREATED: job.created_ms}
    return frame(job.body, headers)


class Opened(NamedTuple):
    """What is in the node, without its frame."""

    body: bytes
    headers: dict[str, Any]
    tries: int = 0
    created_ms: int | None = None


def opened(body: bytes) -> Opened:
    """Take a job's body out of its frame."""
    if not body.startswith(MARK):
        return Opened(body, {})
    inner, headers = unframe(body)
    tries, created_ms = headers.pop(TRIES, 0), headers.pop(CREATED, None)
    return Opened(
        inner, headers, tries if isinstance(tries, int) else 0, created_ms if isinstance(created_ms, int) else None
    )


def taken(jobs: Sequence[Job], node: str, until_ms: int) -> list[StoredJob]:
    """Jobs that a node gave, with the tokens of their leases."""
    tail = f"@{node}@{until_ms}"
    found = []
    for job in jobs:
        body, headers, tries, created_ms = opened(job.body)
        nacks, additional = job.nacks or 0, job.additional_deliveries or 0
        number = NO_NUMBER if job.lease is None else job.lease.token
        found.append(
            StoredJob(
                job.id,
                body,
                headers=headers,
                tries=tries + (nacks + additional if job.tries is None else job.tries),
                recorded_ms=_first_pushed(created_ms, job.created_ns),
                has_begun=job.has_begun,
                is_back=additional > 0,
                unbegun=0 if job.tries is None else max(0, nacks + additional - job.tries),
                token=f"{number}{tail}",
                state=JobState.RESERVED,
                nacks=nacks,
                additional_deliveries=additional,
                node=node,
                raw=job.body,
            )
        )
    return found


def _first_pushed(before_ms: int | None, created_ns: int | None) -> int | None:
    """When a job was pushed: to an earlier queue, as its frame tells, or to the node."""
    if before_ms is not None or created_ns is None:
        return before_ms
    return created_ns // _NS_PER_MS


def retaken(rows: Sequence[Any], node: str) -> list[Job | None]:
    """Jobs as LEASE gives them, None for those that could not be had."""
    return [None if row is None else jobs_of([row], node, 0.0)[0] for row in rows]


def shown(details: JobDetails, state: JobState, node: str, now_ms: int) -> StoredJob:
    """A job that was looked at."""
    body, headers, tries, created_ms = opened(details.body or b"")
    added_ms = details.created_ns // _NS_PER_MS
    mature_ms: int | None = added_ms + details.delay * 1000
    if state is not JobState.READY:
        mature_ms = None if details.next_requeue_ms is None else now_ms + details.next_requeue_ms
    return StoredJob(
        details.id,
        body,
        headers=headers,
        tries=tries + (details.nacks + details.additional_deliveries if details.tries is None else details.tries),
        mature_ms=mature_ms,
        recorded_ms=_first_pushed(created_ms, details.created_ns),
        state=state,
        nacks=details.nacks,
        additional_deliveries=details.additional_deliveries,
        node=node,
    )


def is_before_its_time(details: JobDetails, now_ms: int) -> bool:
    """Whether a job was never delivered, since its delay isn't over."""
    return now_ms < details.created_ns // _NS_PER_MS + details.delay * 1000


def is_made_by(job_id: str, node: str) -> bool:
    """Whether a node made a job: ids begin with eight characters of their maker's."""
    return job_id[2:10] == node[:8]
