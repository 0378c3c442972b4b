"""Forgetting jobs: one way out of the node for expiry, deletion, eviction and finished acks."""

from __future__ import annotations

from penstock.broker.core import refusals
from penstock.broker.core.jobs import ACK_NOTED, ACKED, GONE, JOB_BYTES, QUEUED, WAIT_REPL, Confirming, Job
from penstock.broker.core.node import Node
from penstock.broker.core.refusals import Refused
from penstock.broker.core.tokens import end_lease


def remove(node: Node, job: Job) -> None:
    """Forget a job, whatever its state, and write that down unless it was never written, or its end was already."""
    state = job.state
    noted = bool(job.flags & ACK_NOTED) if state == ACKED else state != WAIT_REPL or is_handover(job)
    if state == QUEUED:
        node.queues.by_name[job.queue].drop()
    elif state == WAIT_REPL:
        end_replication(node, job, Refused(*refusals.JOB_REMOVED))
    elif state == ACKED:
        node.acked.pop(job.id, None)
        node.finished.add(job.id)
    unregister(node, job)
    if job.token:
        end_lease(node, job)
    if noted and node.journal is not None:
        node.journal.removed(job.id)


def unregister(node: Node, job: Job) -> None:
    """Take a job that is in no queue out of the node's tables."""
    job.state = GONE
    holders = job.holders
    if isinstance(holders, Confirming):
        holders.addition = None  # which would keep job and addition alive in a cycle
    node.timers.cancel(job)
    node.jobs.remove(job)
    node.memory.used_bytes -= JOB_BYTES + len(job.body)
    job.body = b""  # a queue's order and the timers may point to the record for a while yet


def is_handover(job: Job) -> bool:
    """Tell whether a job waits for copies because this node drains: then it is in the journal, unlike a new one."""
    holders = job.holders
    return isinstance(holders, Confirming) and holders.addition is not None and holders.addition.is_handover


def end_replication(node: Node, job: Job, refused: Refused | None = None) -> None:
    """Let a job wait for no more copies. Its producer hears of it when the others it came with are done, too."""
    holders = job.holders
    if not isinstance(holders, Confirming) or holders.addition is None:
        return
    addition = holders.addition
    holders.addition = None
    if refused is not None:
        addition.refused[job.id] = refused
    if len(holders.confirmed) < addition.replicate:
        addition.missing -= 1
        if not addition.missing:
            node.timers.set(addition, node.now_ms)


def remove_all(node: Node) -> None:
    """Forget all jobs and queues for good: that is written down, too."""
    if node.journal is not None:
        for job in node.jobs:
            if job.state not in (ACKED, WAIT_REPL) or job.flags & ACK_NOTED or is_handover(job):
                node.journal.removed(job.id)
        for queue in node.queues.by_name.values():
            if queue.pause:
                node.journal.paused(queue.name, 0)
    forget_all(node)


def forget_all(node: Node) -> None:
    """Empty the node. Consumers that wait are answered as at their timeout, producers that their job is gone."""
    for job in node.jobs:
        if job.state == WAIT_REPL:
            end_replication(node, job, Refused(*refusals.JOB_REMOVED))
        job.state = GONE
        job.claim = None  # which would keep job and claim alive in a cycle
        node.timers.cancel(job)
    waiters = list(dict.fromkeys(w for queue in node.queues.by_name.values() for w in queue.waiters))
    for queue in node.queues.by_name.values():
        if queue.exchange is not None:
            node.timers.cancel(queue.exchange)
            queue.exchange = None
    node.jobs.clear()
    node.queues.clear()
    node.claims.clear()
    node.ready.clear()
    node.untold.clear()
    node.acked.clear()
    node.finished.clear()
    node.unannounced.clear()
    node.handovers.clear()
    node.memory.used_bytes = node.memory.base_bytes
    for waiter in waiters:
        node.timers.cancel(waiter)
        waiter.queues = ()
        node.port.answer(waiter, None)
