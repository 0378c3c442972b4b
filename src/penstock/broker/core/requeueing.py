"""How the holders of a job agree who queues it again.

WILLQUEUE   half a second before: whoever has it queued says so, whoever has it out with a worker says for how long, and
            whoever knows that it is done says that; of two who warn each other, one gives way
QUEUED      it is queued with the sender: others put off theirs; if two have it queued, one of them gives way
WORKING     somebody works on it: nobody queues it for its retry time, or for as long as the sender says
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core.delivery import WARN_MS, schedule
from penstock.broker.core.jobs import (
    ACKED,
    ACTIVE,
    BCAST_WILLQUEUE,
    COUNTER_MASK,
    GIVEN,
    OUT,
    QUEUED,
    WAIT_REPL,
    Job,
)
from penstock.broker.core.membership import Peer
from penstock.broker.core.node import Node
from penstock.broker.core.outbox import tell_holders
from penstock.broker.core.replication import join_holders
from penstock.broker.core.tokens import end_lease
from penstock.wire import bus

RANDOM_AT: Final = 11  # where an id's random part begins
RANDOM_BYTES: Final = 24
GRACE_MS: Final = 1000  # added to a lease that others tell of: they queue the job themselves when it ends


def gives_way(job_id: bytes, mine: bytes, theirs: bytes) -> bool:
    """Tell whether this node is the one to give a job up that another has queued, too. Differs from job to job."""
    for at in range(len(mine)):
        key = job_id[RANDOM_AT + at % RANDOM_BYTES]
        if mine[at] != theirs[at]:
            return (theirs[at] ^ key) > (mine[at] ^ key)
    return False


def _find(node: Node, peer: Peer, job_id: bytes) -> Job | None:
    """Find a job that is alive here; who asks about one that is done is told so."""
    job = node.jobs.get(job_id)
    if job is not None and job.state == ACKED:
        holders = job.holders.delivered
        node.outbox.tell(bus.SETACK, peer.alone, job_id, len(holders), 0, holders)
        return None
    if job is None and job_id in node.finished:
        holders = node.alone.delivered | peer.alone
        node.outbox.tell(bus.SETACK, peer.alone, job_id, len(holders), 0, holders)
    return job


def heard_willqueue(
    node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]
) -> None:
    """Object, if there is a reason."""
    for job_id, _ in refs:
        job = _find(node, peer, job_id)
        if job is None or job.state == WAIT_REPL:
            continue
        join_holders(node, job, peer.alone.union(nodes or ()))
        left_ms = job.requeue_at - node.now_ms
        if job.state == QUEUED:
            tell_holders(node, bus.QUEUED, job_id, job.holders.delivered)
        elif job.flags & (OUT | GIVEN) and left_ms > 0 and peer.abilities & bus.CAN_MANY:
            node.outbox.tell(bus.WORKING, peer.alone, job_id, left_ms, bus.tries_flags(job.tries))
        elif left_ms <= 2 * WARN_MS and gives_way(job_id, node.cluster.my_id, peer.id):
            _put_off(node, job, job.rules.retry_ms, True)  # we are about to do the same


def heard_queued(node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]) -> None:
    """Put off our own requeue, or give way."""
    for job_id, _ in refs:
        job = _find(node, peer, job_id)
        if job is None:
            continue
        join_holders(node, job, peer.alone.union(nodes or ()))
        if flags & bus.INCR_NACKS:
            job.nacks = (job.nacks + 1) & COUNTER_MASK
            job.flags &= ~(OUT | GIVEN)  # whoever had it gave it back there: no reason to refuse it, nor a lease
        elif flags & bus.INCR_DELIVERIES:
            job.deliveries = (job.deliveries + 1) & COUNTER_MASK
        tries = bus.tries_of(flags)
        if tries >= 0 and not job.token:
            job.tries = tries  # a fetch that was undone there
        if job.token and job.state == ACTIVE and not job.flags & OUT:
            _lose_lease(node, job)
        give_way = job.state != QUEUED or gives_way(job_id, node.cluster.my_id, peer.id)
        _put_off(node, job, job.rules.retry_ms, give_way)


def _lose_lease(node: Node, job: Job) -> None:
    """Make a token stale whose time was over (the mark `OUT` goes before that): another node has queued the job."""
    end_lease(node, job)
    if node.journal is not None:
        node.journal.changed(job)


def heard_working(node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]) -> None:
    """Leave a job to the one who works on it."""
    for job_id, left_ms in refs:
        job = _find(node, peer, job_id)
        if job is not None:
            join_holders(node, job, frozenset(nodes or peer.alone))  # one that hands it over may hold it no more
            tries = bus.tries_of(flags)
            is_again = tries > max(job.tries, 1)
            job.tries = max(job.tries, tries)
            _put_off(node, job, left_ms + GRACE_MS if left_ms else job.rules.retry_ms, True)
            # A first delivery isn't written down here: most end well, and a write for each would cost as much as the
            # job.
            if is_again and node.journal is not None:
                node.journal.changed(job)


def _put_off(node: Node, job: Job, wait_ms: int, give_way: bool) -> None:
    if not job.rules.retry_s or job.state == ACKED:
        return
    if job.state == WAIT_REPL:
        # Somebody else was faster: it begins with that (place_new). What several say of it may come in any order.
        job.requeue_at = max(node.after_retry(wait_ms), job.requeue_at)
        return
    if job.state == QUEUED and give_way:
        job.state = ACTIVE
        node.queues.by_name[job.queue].drop()
        if node.journal is not None:
            node.journal.changed(job)
    job.flags |= BCAST_WILLQUEUE
    due = node.after_retry(wait_ms)
    job.requeue_at = max(due, job.requeue_at) if job.token else due  # a lease doesn't end earlier
    schedule(node, job)
