"""What becomes of the jobs that waited in the queue of a node that has failed: another holder queues them.

When a node is marked as failed (FAIL), each other holder looks for copies that waited there (core.places) and acts as
if their retry time were over: it warns the others (WILLQUEUE), and half a second later it queues the job if nobody
objects. One of them does so first, which follows from the job's id and theirs; each of the others waits a while longer,
and goes on if it has not heard by then that the job is queued. Nobody was given the job, so nothing is counted.

Not taken over are jobs that were out with a client, as far as that was told; those of a node that doesn't say so
(an original one), or of which something may have been lost; and jobs of retry 0, which have no copies. These come after
their lease or retry time, or not at all.

A node that was stopped for longer than the node timeout, or hears that it is marked as failed, may have jobs in its
queues that others have taken over. It holds back all deliveries for a moment, in which they tell.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from penstock.broker.core.delivery import WARN_MS, schedule
from penstock.broker.core.jobs import ACTIVE, BCAST_WILLQUEUE, GIVEN, OUT, OUT_THERE, TAKING, Job
from penstock.broker.core.membership import FAIL, LEAVING, PFAIL, Peer
from penstock.broker.core.node import JITTER_MS, Node
from penstock.broker.core.places import LOOKED_AT_A_CRON, all_jobs
from penstock.broker.core.requeueing import gives_way
from penstock.broker.core.waiters import serve_ready
from penstock.wire import bus

RANK_MS: Final = 1500  # between two holders: the first has warned, queued and told by then
HOLD_MS: Final = 900  # and up to a cron: a second in all


def failed(node: Node, peer: Peer) -> None:
    """A node is marked as failed."""
    node.failed[peer.id] = None
    node.takeover_ms = node.now_ms


def take_over(node: Node) -> None:
    """Ten times a second: go on taking over the jobs of nodes that have failed."""
    if not node.failed or (not node.takes_over and node.now_ms < node.takeover_ms):
        return
    peers = [node.cluster.peers.get(peer_id) for peer_id in node.failed]
    node.failed = {peer.id: None for peer in peers if peer is not None and peer.flags & FAIL}
    owners = [peer.id for peer in peers if peer is not None and peer.flags & FAIL and _tells_all(peer)]
    if not node.takes_over:
        # Again later: a copy that was on its way may have come since, and a link may have told the rest.
        node.takeover_ms = node.now_ms + node.node_timeout_ms
        node.takeover = all_jobs(node)
    node.takes_over = not node.cluster.leaving and any(holders.owner in owners for holders in node.copies)
    if not node.takes_over:
        return
    looked_at = 0
    for job in islice(node.takeover, LOOKED_AT_A_CRON):
        looked_at += 1
        if job.state == ACTIVE and job.holders.owner in owners and not job.flags & (OUT | OUT_THERE | TAKING):
            if job.rules.retry_s and not job.token:
                _take(node, job)
    node.takes_over = looked_at == LOOKED_AT_A_CRON


def _tells_all(peer: Peer) -> bool:
    """Whether a node has told where its jobs are."""
    return peer.places_known and bool(peer.abilities & bus.TAKES_OVER)


def _take(node: Node, job: Job) -> None:
    """Let the retry time of a job end now, or when its delay surely has."""
    due = node.now_ms + WARN_MS + 1 + RANK_MS * _rank(node, job)
    if job.rules.delay_s:
        due = max(due, job.requeue_at - job.rules.retry_ms + JITTER_MS + 1)
    job.flags = job.flags & ~GIVEN | TAKING
    if due < job.requeue_at:
        job.flags |= BCAST_WILLQUEUE
        job.requeue_at = due
        schedule(node, job)


def _rank(node: Node, job: Job) -> int:
    """Return how many other holders come before this node."""
    my_id, rank = node.cluster.my_id, 0
    for peer_id in job.holders.delivered:
        peer = node.cluster.peers.get(peer_id)
        if peer_id == my_id or peer is None or peer.flags & (FAIL | PFAIL | LEAVING):
            continue
        rank += bool(peer.abilities & bus.TAKES_OVER) and gives_way(job.id, my_id, peer_id)
    return rank


# The node that was away.


def hold(node: Node) -> None:
    """Deliver nothing for a moment: others may have taken over what waits here."""
    if not node.cluster.has_takers or node.cluster.size == 1 or node.now_ms < node.held_ms + node.node_timeout_ms:
        return
    node.held_ms = node.now_ms  # not again for a node timeout, though each of the others may say that it is marked
    node.holds_until_ms = node.now_ms + HOLD_MS


def end_hold(node: Node) -> None:
    """Ten times a second: deliver again, if the time is over."""
    if not node.holds_until_ms or node.now_ms < node.holds_until_ms:
        return
    node.holds_until_ms = 0
    for queue in node.queues.by_name.values():
        if queue.length and (queue.waiters or queue.exchange is not None):
            node.ready[queue] = None
    serve_ready(node)
