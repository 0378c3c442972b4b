"""Emptying a node that is to leave: every job is handed over, then the node holds nothing.

queued                      copies are made on other nodes, as many as the job asked for; then one of them queues it
waiting for a time          the same, with what is left of the time
out with a worker, leased   stays until its worker is done or the lease ends: only this node knows the token
out with a worker           copies are made; the others queue it when its retry time comes
at most once                one node gets it, with the order to queue it; sent once, since it may be delivered once
acked                       goes when everybody has the ack

A job leaves this node when enough others have confirmed it. Those that nobody takes stay, and are tried again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from penstock.broker.core.delivery import enqueue, schedule
from penstock.broker.core.jobs import ACTIVE, BCAST_QUEUED, DELIVERED, QUEUED, WAIT_REPL, Job
from penstock.broker.core.membership import FAIL, HANDSHAKE, LEAVING
from penstock.broker.core.node import Node
from penstock.broker.core.removal import end_replication, remove, unregister
from penstock.broker.core.replication import begin, originals
from penstock.broker.core.waiting import Addition

HANDOVERS_MAX: Final = 2000  # under way at once: enough to keep the bus busy, few enough to leave it usable
LOOKED_AT_A_CRON: Final = 5000


def start_draining(node: Node) -> None:
    """Begin to hand all jobs over; the node is leaving then. It goes on after a restart (nodes.conf)."""
    node.cluster.leaving = True
    node.cluster.draining = True


def stop_draining(node: Node) -> None:
    """Keep what is still here."""
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
        unregister(node, job)  # it belongs to the node it was sent to, which may even give it back
        return
    job.state = ACTIVE
    job.holders = node.held_by(addition.delivered | node.alone.delivered)
    if addition.enqueue_s == 0:
        enqueue(node, job)
    if not job.wake_at:
        schedule(node, job)


def drain(node: Node) -> None:
    """Ten times a second: hand some more jobs over."""
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
        node.drain = _walk(node)  # round again: what was out with a worker may be back


def _takers(node: Node) -> int:
    """Tell on how many other nodes a job can be, once those are back that are away for a moment."""
    return sum(not peer.flags & (FAIL | LEAVING | HANDSHAKE) for peer in node.cluster.others)


def _walk(node: Node) -> Iterator[Job]:
    for page in node.jobs.flat:
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
        # All who have it already are named, also those who need not confirm: they can't learn of each other from us
        # later.
        delivered = holders.union(node.choose(max(0, wanted - len(holders & ready)), holders))
    else:
        unfit = originals(node)  # they would keep it for ever, and tell nobody
        delivered = frozenset(sorted(holders & ready - unfit)[:1] or node.choose(1, unfit))
        wanted = 1
    if not wanted or len(delivered & ready) < wanted:
        return  # others are away for a moment: it would be on fewer nodes than its producer was told
    if job.state == QUEUED:
        node.queues.by_name[job.queue].drop()
    job.state = WAIT_REPL
    node.timers.cancel(job)
    addition = Addition([job], delivered, wanted, external=True)
    addition.is_handover = True
    addition.enqueue_s = enqueue_s
    node.handovers[addition] = None
    begin(node, addition, frozenset())
