"""Forgetting jobs: one way out of the node for expiry, deletion, eviction and finished acks."""

from __future__ import annotations

from penstock.broker.core.jobs import ACKED, GONE, JOB_BYTES, QUEUED, Job
from penstock.broker.core.node import Node
from penstock.broker.core.tokens import end_lease


def remove(node: Node, job: Job) -> None:
    """Forget a job, whatever its state, and write that down unless its ack was written already."""
    state = job.state
    job.state = GONE
    if state == QUEUED:
        node.queues.by_name[job.queue].drop()
    node.timers.cancel(job)
    node.jobs.remove(job)
    node.memory.used_bytes -= JOB_BYTES + len(job.body)
    job.body = b""  # a queue's order and the timers may point to the record for a while yet
    if job.token:
        end_lease(node, job)
    if state != ACKED and node.journal is not None:
        node.journal.removed(job.id)


def remove_all(node: Node) -> None:
    """Forget all jobs and queues for good: that is written down, too."""
    if node.journal is not None:
        for job in node.jobs:
            if job.state != ACKED:
                node.journal.removed(job.id)
        for queue in node.queues.by_name.values():
            if queue.pause:
                node.journal.paused(queue.name, 0)
    forget_all(node)


def forget_all(node: Node) -> None:
    """Empty the node. Clients that wait on a queue are answered as at their timeout."""
    for job in node.jobs:
        job.state = GONE
        job.claim = None  # which would keep job and claim alive in a cycle
        node.timers.cancel(job)
    waiters = list(dict.fromkeys(w for queue in node.queues.by_name.values() for w in queue.waiters))
    node.jobs.clear()
    node.queues.clear()
    node.claims.clear()
    node.ready.clear()
    node.memory.used_bytes = node.memory.base_bytes
    for waiter in waiters:
        node.timers.cancel(waiter)
        waiter.queues = ()
        node.port.answer(waiter, None)
