"""Jobs of a node as the queue library has them, and the tokens of their leases.

A token is a text of three parts: the number that the node gave, the node's id, and when the lease ends by the clock of
this machine (monotonic milliseconds): `1881981154613002240@e5882c47...@1234567`. Only the node that gave a lease knows
its number, so what ends the job must go there; if that node is gone, the third part shows whether the lease holds.
A node of the original Disque has no numbers: there the first part is 0, and a job is known by its id alone.

`tries` are deliveries that came before this one. Our nodes count leases under which work began. Of a job's other two
counters `nacks` grows when a worker returns it, and `additional-deliveries` when it is queued again for any other
reason: its lease or its retry time was over, or the node that had it queued is gone. The first queueing counts as
neither, and a delayed nack as one. On a node that doesn't count leases, the sum of both is taken for the number of
earlier deliveries. The sum also has leases that ended before work began. Tries that a job was pushed with are in its
headers, under TRIES.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from penstock.client.values import Job, JobDetails, jobs_of
from penstock.codec import MARK, frame, unframe
from penstock.job import JobState, Lease, NewJob, StoredJob

# Headers that only this store writes, and removes again.
TRIES = "x-penstock-tries"
CREATED = "x-penstock-created"  # of a job that moved from another queue: the node knows when it was added to this one
CLAIM_PREFIX = "__claim__:"  # of the queues in which the store keeps its claims
VALUE_PREFIX = "__value__:"  # and its values
NO_NUMBER = "0"
NOT_LEASED = 1  # a number that no lease has: with it, LEASE returns only jobs that wait
OK = b"OK"
_NS_PER_MS = 1_000_000


class LeaseGroup:
    """Leases that one node gave, which end at the same time: the jobs of one fetch, as a rule."""

    __slots__ = ("ids", "node", "numbers", "places", "until_ms")

    def __init__(self, node: str, until_ms: int) -> None:
        self.node, self.until_ms = node, until_ms
        self.places: list[int] = []  # among the leases of the call
        self.ids: list[str] = []
        self.numbers: list[str] = []

    @property
    def has_numbers(self) -> bool:
        """Whether the node gave numbers."""
        return self.numbers[0] != NO_NUMBER

    def pairs(self, chosen: Iterable[int] | None = None) -> list[str]:
        """Return ids and numbers in turn, as commands about leases take them: all, or some of them."""
        rows = range(len(self.ids)) if chosen is None else chosen
        return [word for row in rows for word in (self.ids[row], self.numbers[row])]


def token(number: int | str, node: str, until_ms: int) -> str:
    """Return the token of a lease."""
    return f"{number}@{node}@{until_ms}"


def lease_groups(leases: Iterable[Lease]) -> list[LeaseGroup]:
    """Return leases by the node that gave them. A lease without a token, or with that of no node, is left out."""
    found: dict[tuple[str, bool], LeaseGroup] = {}
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
            group = found[key] = LeaseGroup(node, int(until_ms))
        group.places.append(place)
        group.ids.append(job_id)
        group.numbers.append(number)
    return list(found.values())


def stored_body(job: NewJob) -> bytes:
    """Return the body of a job in the node: its own, in a frame if it has headers or tries.

    A body that needs no frame stays raw, for other clients: then the time of a push to an earlier queue is not kept.
    """
    headers = job.headers
    if job.tries:
        headers = {**headers, TRIES: job.tries}
    if headers and job.created_ms is not None:
        headers = {**headers, CREATED: job.created_ms}
    return frame(job.body, headers)


class UnframedBody(NamedTuple):
    """What is in the body of a job in the node."""

    body: bytes
    headers: dict[str, Any]
    tries: int = 0
    created_ms: int | None = None


def unframed(body: bytes) -> UnframedBody:
    """Return a job's body without its frame."""
    if not body.startswith(MARK):
        return UnframedBody(body, {})
    inner, headers = unframe(body)
    tries, created_ms = headers.pop(TRIES, 0), headers.pop(CREATED, None)
    return UnframedBody(
        inner, headers, tries if isinstance(tries, int) else 0, created_ms if isinstance(created_ms, int) else None
    )


def fetched_jobs(jobs: Sequence[Job], node: str, until_ms: int) -> list[StoredJob]:
    """Return jobs that a node gave, with the tokens of their leases."""
    tail = f"@{node}@{until_ms}"
    found = []
    for job in jobs:
        body, headers, tries, created_ms = unframed(job.body)
        nacks, additional = job.nacks or 0, job.additional_deliveries or 0
        number = NO_NUMBER if job.lease is None else job.lease.token
        found.append(
            StoredJob(
                job.id,
                body,
                headers=headers,
                tries=tries + (nacks + additional if job.tries is None else job.tries),
                recorded_ms=_recorded_ms(created_ms, job.created_ns),
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


def _recorded_ms(before_ms: int | None, created_ns: int | None) -> int | None:
    """Return when a job was pushed: to an earlier queue, as its frame has it, or to the node."""
    if before_ms is not None or created_ns is None:
        return before_ms
    return created_ns // _NS_PER_MS


def leased_jobs(rows: Sequence[Any], node: str) -> list[Job | None]:
    """Return the jobs of a reply to LEASE, None for those that were not leased."""
    return [None if row is None else jobs_of([row], node, 0.0)[0] for row in rows]


def stored_job(details: JobDetails, state: JobState, node: str, now_ms: int) -> StoredJob:
    """Return a job that a node showed."""
    body, headers, tries, created_ms = unframed(details.body or b"")
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
        recorded_ms=_recorded_ms(created_ms, details.created_ns),
        state=state,
        nacks=details.nacks,
        additional_deliveries=details.additional_deliveries,
        node=node,
    )


def is_before_its_time(details: JobDetails, now_ms: int) -> bool:
    """Whether a job was never delivered, since its delay isn't over.

    Creation times strictly grow, so that of a job without a delay may be ahead of the node's clock.
    """
    return details.delay > 0 and now_ms < details.created_ns // _NS_PER_MS + details.delay * 1000


def is_created_by(job_id: str, node: str) -> bool:
    """Whether a node created a job: ids begin with eight characters of their creator's."""
    return job_id[2:10] == node[:8]
