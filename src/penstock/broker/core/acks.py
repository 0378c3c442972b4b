"""Acknowledging jobs.

A job that only this node holds is finished, and forgotten, with its ack. One that others may hold stays as `acked`
until all of them have the ack, so that none of them delivers it again: its confirmations are collected at growing
intervals. Nodes that the cluster has forgotten are not waited for.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core.jobs import ACKED, QUEUED, Holders, Job
from penstock.broker.core.node import Node
from penstock.broker.core.removal import remove
from penstock.broker.core.tokens import end_lease

COLLECT_MS: Final = 1000
COLLECT_MS_MAX: Final = 180_000
COLLECT_TRIES_MAX: Final = 10  # the exponent stops growing here; the interval is capped long before


def ack(node: Node, job: Job) -> bool:
    """Finish a job; False if it was acked already (then its holders are asked again)."""
    if job.state == ACKED:
        collect(node, job)
        return False
    if job.holders is node.alone:
        remove(node, job)
        return True
    was_queued = job.state == QUEUED
    job.state = ACKED
    if was_queued:
        node.queues.by_name[job.queue].drop()
    end_lease(node, job)
    if node.journal is not None:
        node.journal.removed(job.id)
    job.holders = Holders(job.holders.delivered, frozenset((node.cluster.my_id,)))
    collect(node, job)
    return True


def collect(node: Node, job: Job) -> None:
    """Forget an acked job if every holder has the ack; else try again later."""
    holders = job.holders
    if not (holders.delivered & node.cluster.known_ids()) - holders.confirmed:
        remove(node, job)
        return
    wait_ms = min(COLLECT_MS << holders.gc_tries, COLLECT_MS_MAX)
    holders.gc_tries = min(holders.gc_tries + 1, COLLECT_TRIES_MAX)
    node.timers.set(job, min(node.after_retry(wait_ms), job.expires_at))
