"""How the holders of a job agree on the one that queues it again.

WILLQUEUE   sent half a second before the requeue. A holder that has the job queued answers QUEUED, one whose client
            works on it answers WORKING with the time left, one that knows its end answers SETACK. Of two holders that
            warn each other, one gives way
QUEUED      the sender has queued the job: others postpone their own requeue; if two have it queued, one gives way. If
            the sender has given the job away since, the job may arrive before this message; its counters show that
WORKING     a client works on the job: no holder queues it for its retry time, or for the time that the sender says
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core.acks import tell_acked
from penstock.broker.core.delivery import WARN_MS, schedule, tell_queued
from penstock.broker.core.jobs import (
    ACKED,
    ACTIVE,
    BCAST_WILLQUEUE,
    COUNTER_MASK,
    GIVEN,
    MOVED,
    OUT,
    OUT_THERE,
    QUEUED,
    TAKING,
    WAIT_REPL,
    Job,
)
from penstock.broker.core.membership import Peer
from penstock.broker.core.node import Node
from penstock.broker.core.owners import set_owner
from penstock.broker.core.replication import join_holders
from penstock.broker.core.tokens import end_lease
from penstock.wire import bus

RANDOM_AT: Final = 11  # where an id's random part begins
RANDOM_BYTES: Final = 24
GRACE_MS: Final = 1000  # added to a lease of another node, which queues the job itself when the lease ends


def gives_way(job_id: bytes, mine: bytes, theirs: bytes) -> bool:
    """Whether this node gives way to another one for this job. The answer varies from job to job."""
    for at in range(len(mine)):
        key = job_id[RANDOM_AT + at % RANDOM_BYTES]
        if mine[at] != theirs[at]:
            return (theirs[at] ^ key) > (mine[at] ^ key)
    return False


def find_unfinished(node: Node, peer: Peer, job_id: bytes) -> Job | None:
    """Find a job; the peer is told with SETACK if it is acked or finished here."""
    job = node.jobs.get(job_id)
    if job is not None and job.state == ACKED:
        tell_acked(node, peer, job_id, job)
        return None
    if job is None and job_id in node.finished:
        tell_acked(node, peer, job_id, None)
    return job


def on_willqueue(node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]) -> None:
    """WILLQUEUE: object if there is a reason."""
    for job_id, _ in refs:
        job = find_unfinished(node, peer, job_id)
        if job is None or job.state == WAIT_REPL:
            continue
        join_holders(node, job, peer.alone.union(nodes or ()))
        left_ms = job.requeue_at - node.now_ms
        if job.state == QUEUED:
            tell_queued(node, job)
        elif job.flags & (OUT | GIVEN) and left_ms > 0 and peer.abilities & bus.CAN_MANY:
            node.outbox.add_reference(bus.WORKING, peer.alone, job_id, left_ms, bus.tries_flags(job.tries))
        elif left_ms <= 2 * WARN_MS and gives_way(job_id, node.cluster.my_id, peer.id):
            put_off(node, job, job.rules.retry_ms, True)  # this node was about to queue it too


def on_queued(node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]) -> None:
    """QUEUED: postpone the requeue here, or give way."""
    for job_id, counters in refs:
        job = find_unfinished(node, peer, job_id)
        if job is None:
            continue
        join_holders(node, job, peer.alone.union(nodes or ()))
        if flags & bus.INCR_NACKS and _is_past(job, counters):
            continue
        if flags & bus.INCR_NACKS:
            job.nacks = (job.nacks + 1) & COUNTER_MASK
            job.flags &= ~(OUT | GIVEN)  # its client has nacked it there: no reason to refuse it, and no lease here
        elif flags & bus.INCR_DELIVERIES:
            job.deliveries = (job.deliveries + 1) & COUNTER_MASK
        tries = bus.tries_of(flags)
        if tries >= 0 and not job.token:
            job.tries = tries  # a fetch was undone there
        if job.token and job.state == ACTIVE and not job.flags & OUT:
            _lose_lease(node, job)
        if flags & bus.TAKEN and _keeps(node, peer, job):
            continue
        give_way = job.state != QUEUED or gives_way(job_id, node.cluster.my_id, peer.id)
        put_off(node, job, job.rules.retry_ms, give_way)
        if job.state == ACTIVE:
            set_owner(node, job, peer.id)
            job.flags &= ~OUT_THERE


def _keeps(node: Node, peer: Peer, job: Job) -> bool:
    """Whether a job stays here though another node took it over; that node is told."""
    left_ms = job.requeue_at - node.now_ms
    if job.state == ACTIVE and job.flags & OUT and left_ms > 0:
        node.outbox.add_reference(bus.WORKING, peer.alone, job.id, left_ms, bus.tries_flags(job.tries))
        return True
    if job.state == QUEUED and not gives_way(job.id, node.cluster.my_id, peer.id):
        tell_queued(node, job, 0, peer.alone)
        return True
    return False


def _is_past(job: Job, counters: int) -> bool:
    """Whether a job was sent to this node after the nack that a QUEUED reports, and is queued or out here since.

    For nacks only: two nodes may queue a job after its retry time at once, and count the same delivery.
    """
    is_here = job.state == QUEUED or (job.state == ACTIVE and bool(job.flags & OUT))
    return is_here and bool(job.flags & MOVED) and bus.includes(job.nacks, job.deliveries, counters)


def _lose_lease(node: Node, job: Job) -> None:
    """Make the token of an expired lease stale: another node has queued the job. (`OUT` is cleared before that.)"""
    end_lease(node, job)
    if node.journal is not None:
        node.journal.changed(job)


def on_working(node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]) -> None:
    """WORKING: leave a job to the client that works on it."""
    for job_id, left_ms in refs:
        job = find_unfinished(node, peer, job_id)
        if job is not None:
            join_holders(node, job, frozenset(nodes or peer.alone))  # a node that drains may not hold it any more
            tries = bus.tries_of(flags)
            is_again = tries > max(job.tries, 1)
            job.tries = max(job.tries, tries)
            put_off(node, job, left_ms + GRACE_MS if left_ms else job.rules.retry_ms, True)
            if job.state == ACTIVE:
                set_owner(node, job, peer.id)
                job.flags |= OUT_THERE
            # A first delivery isn't journaled: most succeed, and a record for each would cost as much as the job.
            if is_again and node.journal is not None:
                node.journal.changed(job)


def put_off(node: Node, job: Job, wait_ms: int, give_way: bool) -> None:
    if not job.rules.retry_s or job.state == ACKED:
        return
    if job.state == WAIT_REPL:
        # Another holder was faster (see place_new). The messages of several nodes may come in any order.
        job.requeue_at = max(node.after_retry(wait_ms), job.requeue_at)
        return
    if job.state == QUEUED and give_way:
        job.state = ACTIVE
        node.queues.by_name[job.queue].drop()
        if node.journal is not None:
            node.journal.changed(job)
    job.flags = job.flags & ~TAKING | BCAST_WILLQUEUE
    due = node.after_retry(wait_ms)
    job.requeue_at = max(due, job.requeue_at) if job.token else due  # a lease doesn't end earlier
    schedule(node, job)
