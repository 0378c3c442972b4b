"""CLUSTER DRAIN: a node that is to leave hands over every job, until it holds none.

queued                      copies are made on other nodes, as many as the job asked for; then one of them queues it
waiting for a time          the same, with what is left of the time
out with a worker, leased   stays until its worker is done or the lease ends: only this node knows the token
out with a worker           copies are made; the others queue it when its retry time comes
at most once                one node gets it, with the order to queue it; sent once, since it may be delivered once
acked                       removed when all holders have the ack

A job is removed here when enough other nodes have confirmed it. Jobs that no node takes stay, and are tried again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from penstock.broker.core.acks import end_replication, remove, unregister
from penstock.broker.core.delivery import enqueue, schedule
from penstock.broker.core.jobs import ACTIVE, BCAST_QUEUED, DELIVERED, QUEUED, WAIT_REPL, Job
from penstock.broker.core.membership import FAIL, HANDSHAKE, LEAVING
from penstock.broker.core.node import Node
from penstock.broker.core.replication import Addition, begin, originals

HANDOVERS_MAX: Final = 2000  # under way at once: enough to keep the bus busy, few enough to leave it usable
LOOKED_AT_A_CRON: Final = 5000


def start_draining(node: Node) -> None:
    """Begin to hand over all jobs; the node is leaving then. Draining goes on after a restart (nodes.conf)."""
    node.cluster.leaving = True
    node.cluster.draining = True


def stop_draining(node: Node) -> None:
    """Keep the jobs that are still here."""
    node.cluster.draining = False
    node.drain = iter(())
    for addition in list(node.handovers):
        del node.handovers[addition]
        node.timers.cancel(addition)
        for job in addition.jobs:
            if job.state == WAIT_REPL:
                _take_back(node, addition, job)


def _take_back(node: Node, addition: Addition, job: Job) -> None:
    end_replication(node, job)
    node.timers.cancel(addition)
    if not job.rules.retry_s and addition.delivered:
        unregister(node, job)  # it belongs to the node that it was sent to, which may give it back
        return
    job.state = ACTIVE
    job.holders = node.held_by(addition.delivered | node.alone.delivered)
    if addition.enqueue_s == 0:
        enqueue(node, job)
    if not job.wake_at:
        schedule(node, job)


def drain(node: Node) -> None:
    """Ten times a second: hand over some more jobs."""
    if not node.cluster.draining:
        return
    room = min(HANDOVERS_MAX - len(node.handovers), LOOKED_AT_A_CRON)
    if room <= 0:
        return
    looked_at = 0
    ready = frozenset([peer.id for peer in node.cluster.ready])
    takers = _takers(node)
    for job in islice(node.drain, room):
        looked_at += 1
        _hand_over(node, job, ready, takers)
    if looked_at < room:
        node.drain = _walk(node)  # from the start: jobs that were out with workers may be back


def _takers(node: Node) -> int:
    """Return how many other nodes can hold a job, counting those that are unreachable for a moment."""
    return sum(not peer.flags & (FAIL | LEAVING | HANDSHAKE) for peer in node.cluster.others)


def _walk(node: Node) -> Iterator[Job]:
    for page in node.jobs.flat:
        if page:  # most are empty where there are few jobs
            yield from list(page.values())


def _hand_over(node: Node, job: Job, ready: frozenset[bytes], takers: int) -> None:
    if job.state not in (ACTIVE, QUEUED):
        return
    if job.token and job.state == ACTIVE and (job.rules.retry_s or job.requeue_at > node.now_ms):
        return
    if not job.rules.retry_s and job.flags & DELIVERED:
        remove(node, job)
        return
    enqueue_s = -1
    if job.state == QUEUED:
        enqueue_s = 0
    elif not job.flags & BCAST_QUEUED or not job.flags & DELIVERED:
        enqueue_s = max(0, -(-(job.requeue_at - node.now_ms) // 1000))
    wanted = min(job.rules.replicate, takers)
    holders = (job.holders.delivered & node.cluster.ids) - node.alone.delivered
    if job.rules.retry_s:
        # All present holders are named, also those that need not confirm: they can't learn of each other later.
        delivered = holders.union(node.choose(max(0, wanted - len(holders & ready)), holders))
    else:
        unfit = originals(node)  # they would keep it forever, and not confirm it
        delivered = frozenset(sorted(holders & ready - unfit)[:1] or node.choose(1, unfit))
        wanted = 1
    if not wanted or len(delivered & ready) < wanted:
        return  # some nodes are unreachable for a moment: fewer would hold it than its producer asked for
    if job.state == QUEUED:
        node.queues.by_name[job.queue].drop()
    job.state = WAIT_REPL
    node.timers.cancel(job)
    addition = Addition([job], delivered, wanted, external=True)
    addition.is_handover = True
    addition.enqueue_s = enqueue_s
    node.handovers[addition] = None
    begin(node, addition, frozenset())
