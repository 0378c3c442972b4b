"""Jobs from the journal that others may hold too: they are asked before such a job is queued here.

Somebody else may have queued it meanwhile, or given it to a worker. The jobs wait until there is a link to every node
that isn't failing, or the node timeout has passed (that is their requeue time); then WILLQUEUE is sent for each, and it
is queued half a second later if nobody objects.
"""

from __future__ import annotations

from penstock.broker.core.delivery import WARN_MS, schedule
from penstock.broker.core.jobs import ACTIVE, BCAST_WILLQUEUE
from penstock.broker.core.membership import FAIL, NOADDR, PFAIL
from penstock.broker.core.node import Node


def announce_if_linked(node: Node) -> None:
    """Ask about restored jobs now, if everybody who can answer is there."""
    if not node.unannounced:
        return
    if any(not peer.linked and not peer.flags & (FAIL | PFAIL | NOADDR) for peer in node.cluster.others):
        return
    jobs, node.unannounced = node.unannounced, []
    due = node.now_ms + WARN_MS + 1
    for job in jobs:
        if job.state == ACTIVE and job.requeue_at > due and job.flags & BCAST_WILLQUEUE:
            job.requeue_at = due
            schedule(node, job)
