"""Which node has a job, as its other holders know: where it waits in a queue, or is out with a worker.

The owner of a copy is the node that sent it (REPLJOB), or the last that said that it has the job (QUEUED, WORKING), or
that it was given to (YOURJOBS). It is a part of the set of holders, which many jobs share, and so is the number of
copies that each queue has of it. So the jobs that nobody shows while their node can't be reached are counted without
looking at them.

Of the holders that can be reached, the first by id stands in for the owner: so each job is counted, and shown, once.
For a job that was given away, the node that gave it does so, since the others believe that it still has the job. A
message that was lost, or a job that was given to a node which some holders don't know, may make that two, or none.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.broker.core.jobs import ACTIVE, Confirming, Holders, Job, is_given_back
from penstock.broker.core.node import NS_PER_MS, Node


def set_holders(node: Node, job: Job, holders: Holders) -> None:
    """Change the holders of a job, and the counts of copies with them."""
    before = job.holders
    if before is holders:
        return
    if before.owner:
        _count(node, before, job, -1)
    job.holders = holders
    if holders.owner:
        _count(node, holders, job, 1)


def set_owner(node: Node, job: Job, owner: bytes, is_given: bool = False) -> None:
    """Note which other node has a job now; empty: this one has it, or it isn't known."""
    holders = job.holders
    if (holders.owner != owner or holders.is_given != is_given) and not isinstance(holders, Confirming):
        set_holders(node, job, node.held_by(holders.delivered, owner, is_given))


def note_copy(node: Node, job: Job) -> None:
    """Count a new copy of a job that another node has."""
    _count(node, job.holders, job, 1)


def forget_copy(node: Node, job: Job) -> None:
    """Count such a copy no more: it is removed."""
    _count(node, job.holders, job, -1)


def creator_among(job_id: bytes, delivered: frozenset[bytes]) -> bytes:
    """Return the node that made a job, if it is one of its holders."""
    return next((node_id for node_id in delivered if created_by(job_id, node_id)), b"")


def created_by(job_id: bytes, node_id: bytes) -> bool:
    """Whether a node made a job: the job's id has the first characters of the node's."""
    return node_id.startswith(job_id[2:10])


def _count(node: Node, holders: Holders, job: Job, by: int) -> None:
    counts = holders.delayed if job.rules.delay_s else holders.copies
    before = counts.get(job.queue, 0)
    if not before:
        node.copies[holders] = None
    counts[job.queue] = before + by
    if before + by:
        return
    del counts[job.queue]
    if not holders.copies and not holders.delayed:
        node.copies.pop(holders, None)


# Figures.


def away(node: Node, queue: bytes, missing: Collection[bytes]) -> tuple[int, int]:
    """Return how many jobs of a queue this node stands in for while some nodes can't be reached.

    Those that were added with a delay are counted apart: it may not be over.
    """
    due = delayed = 0
    for holders in node.copies:
        if stands_in(node, holders, missing):
            due += holders.copies.get(queue, 0)
            delayed += holders.delayed.get(queue, 0)
    return due, delayed


def stands_in(node: Node, holders: Holders, missing: Collection[bytes]) -> bool:
    """Whether the owner is missing, and this node gave it the job, or is the first of the holders that are not."""
    if holders.owner not in missing:
        return False
    return holders.is_given or min(holders.delivered.difference(missing), default=b"") == node.cluster.my_id


def is_away(node: Node, job: Job, missing: Collection[bytes]) -> bool:
    """Whether this node shows a job in place of a node that can't be reached."""
    return job.state == ACTIVE and stands_in(node, job.holders, missing) and not is_scheduled(node, job)


def is_scheduled(node: Node, job: Job) -> bool:
    """Whether a job waits for its time: its delay isn't over, or it was given back here, for later.

    A copy of a job that waits or is worked on elsewhere is neither scheduled nor reserved.
    """
    if job.state != ACTIVE or job.token:
        return False
    return is_given_back(job) or node.wall_ms < job.ctime // NS_PER_MS + job.rules.delay_s * 1000


def recounted(node: Node) -> dict[Holders, tuple[dict[bytes, int], dict[bytes, int]]]:
    """Count all copies again, for checks of the counts."""
    found: dict[Holders, tuple[dict[bytes, int], dict[bytes, int]]] = {}
    for job in node.jobs:
        if job.holders.owner:
            counts = found.setdefault(job.holders, ({}, {}))[bool(job.rules.delay_s)]
            counts[job.queue] = counts.get(job.queue, 0) + 1
    return found
