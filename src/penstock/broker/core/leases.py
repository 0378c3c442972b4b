"""What clients do with leases and claims: ack, nack and extend by token, or by the key of a claim.

Each answer is one of the words below, so that a batch is answered job by job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.broker.core.acks import ack
from penstock.broker.core.delivery import lease, nack_after, unfetch
from penstock.broker.core.eviction import find_queues, need_memory
from penstock.broker.core.jobs import ACTIVE, AHEAD, DELIVERED, OUT, QUEUED, Job, begin
from penstock.broker.core.node import Node
from penstock.broker.core.tokens import CLAIM_BYTES, CLAIM_JOB_BYTES, holds, join_claim
from penstock.broker.core.waiters import fetch_many

DONE: Final = "OK"
STALE: Final = "STALE"
UNKNOWN: Final = "NOJOB"


def _if_held(node: Node, job_id: bytes, token: int, do: Callable[[Job], object]) -> str:
    """Do something to a job if this token holds it, and return one of the answers."""
    job = node.jobs.get(job_id)
    if job is None:
        return UNKNOWN
    if not holds(job, token):
        return STALE
    do(job)
    return DONE


def ack_lease(node: Node, job_id: bytes, token: int) -> str:
    """Acknowledge a job that this token holds."""
    return _if_held(node, job_id, token, lambda job: ack(node, job))


def nack_lease(node: Node, job_id: bytes, token: int, after_ms: int) -> str:
    """Return a job that this token holds to its queue, at once or after a delay."""
    return _if_held(node, job_id, token, lambda job: _nack(node, job, after_ms))


def _nack(node: Node, job: Job, after_ms: int) -> bool:
    if job.flags & AHEAD:
        begin(job)  # a nack means that work on it had begun
    return nack_after(node, job, after_ms)


def begin_lease(node: Node, job_id: bytes, token: int) -> str:
    """Count a try of a job that this token holds: work on it begins. The second time changes nothing."""
    return _if_held(node, job_id, token, lambda job: _begin(node, job))


def _begin(node: Node, job: Job) -> None:
    if job.flags & AHEAD:
        begin(job)
        _renew(node, job, max(1, job.requeue_at - node.now_ms))
        if node.events is not None:
            node.events.begun(job)


def extend_lease(node: Node, job_id: bytes, token: int, lease_ms: int) -> str:
    """Make a lease end `lease_ms` from now."""
    return _if_held(node, job_id, token, lambda job: _extend(node, job, lease_ms))


def release_lease(node: Node, job_id: bytes, token: int) -> str:
    """Undo the fetch of a job that this token holds and that nobody has begun: nothing is counted."""
    return _if_held(node, job_id, token, lambda job: _release(node, job))


def _release(node: Node, job: Job) -> None:
    job.flags |= OUT  # cleared when the lease is about to end
    unfetch(node, job)


def is_waiting(node: Node, job_id: bytes) -> bool:
    """Whether a job waits in its queue here."""
    job = node.jobs.get(job_id)
    return job is not None and job.state == QUEUED


def lease_one(node: Node, job_id: bytes, token: int, lease_ms: int) -> Job | None:
    """Lease a job by its id, with a new token: one that waits in its queue, or one that this token holds.

    None for any other job. A client uses it to take up the same jobs of a batch again. It doesn't count as a try.
    """
    job = node.jobs.get(job_id)
    if job is None or not (job.state == QUEUED or holds(job, token)):
        return None
    is_new = job.state == QUEUED
    if is_new:
        queue = node.queue(job.queue)
        job.state = ACTIVE
        job.flags |= DELIVERED | OUT | AHEAD
        queue.drop()
        queue.accessed_ms = node.now_ms
        queue.jobs_out += 1
    job.token = node.new_token()
    lease(node, job, lease_ms)
    if node.journal is not None:
        node.journal.delivered([job])
    if node.events is not None:
        if is_new:
            node.events.reserved([job])
        else:
            node.events.extended(job)
    return job


def _extend(node: Node, job: Job, lease_ms: int) -> None:
    _renew(node, job, lease_ms)
    if node.events is not None:
        node.events.extended(job)


def _renew(node: Node, job: Job, lease_ms: int) -> None:
    lease(node, job, lease_ms)
    if node.journal is not None:
        node.journal.changed(job)


def claim(node: Node, key: bytes, names: list[bytes], count: int, lease_ms: int) -> list[Job]:
    """Return the jobs held under a key, with a renewed lease; without any, lease up to `count` new ones."""
    held = node.claims.get(key)
    if held is not None:
        jobs = list(held.jobs.values())
        for job in jobs:
            _extend(node, job, lease_ms)
        return jobs
    if not count:
        return []
    most = min(count, sum([queue.length for queue in find_queues(node, names)]))
    if most:
        need_memory(node, CLAIM_BYTES + len(key) + CLAIM_JOB_BYTES * most)
    jobs = fetch_many(node, names, count, lease_ms)
    for job in jobs:
        join_claim(node, key, job)
        if node.journal is not None and job.rules.retry_s:
            node.journal.changed(job)
    return jobs


def held_jobs(node: Node, key: bytes) -> list[Job]:
    """Return the jobs under a key."""
    held = node.claims.get(key)
    return list(held.jobs.values()) if held is not None else []


def ack_claim(node: Node, key: bytes) -> int:
    """Acknowledge all jobs under a key; return how many."""
    return sum(ack(node, job) for job in held_jobs(node, key))


def nack_claim(node: Node, key: bytes, after_ms: int) -> int:
    """Return all jobs under a key to their queues; return how many."""
    return sum(nack_after(node, job, after_ms) for job in held_jobs(node, key))


def extend_claim(node: Node, key: bytes, lease_ms: int) -> int:
    """Renew the lease of all jobs under a key; return how many."""
    jobs = held_jobs(node, key)
    for job in jobs:
        _extend(node, job, lease_ms)
    return len(jobs)
