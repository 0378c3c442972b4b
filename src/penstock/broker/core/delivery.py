"""Queueing, fetching and requeueing: the life of a job between its add and its end.

`enqueue`, `dequeue` and `fetch` are the only ways in and out of a queue; `wake` is what happens at a job's time.
A job with retry 0 is delivered at most once: its fetch is written down as its removal, and it never comes back. Only a
fetch whose reply surely never left this node did not happen: `unfetch`.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core import refusals
from penstock.broker.core.acks import collect
from penstock.broker.core.jobs import (
    ACKED,
    ACTIVE,
    AHEAD,
    BCAST_QUEUED,
    BCAST_WILLQUEUE,
    COUNTER_MASK,
    DELIVERED,
    GIVEN,
    IMPORTED,
    LISTED,
    OUT,
    QUEUED,
    RETURNING,
    Job,
    Rules,
    begin,
    is_given_back,
    is_out,
    tries_before,
)
from penstock.broker.core.node import NS_PER_MS, Node
from penstock.broker.core.outbox import tell_holders
from penstock.broker.core.queues import PAUSED_IN, PAUSED_OUT, Queue
from penstock.broker.core.refusals import Refused
from penstock.broker.core.removal import remove
from penstock.broker.core.tokens import end_lease
from penstock.wire import bus

ALL: Final = -1
WARN_MS: Final = 500  # other holders hear of a requeue this long before it


def schedule(node: Node, job: Job) -> None:
    """Set a job's timer to the first thing that will happen to it."""
    at_ms = job.expires_at
    if job.requeue_at and job.state != ACKED:
        due = job.requeue_at
        if job.flags & BCAST_WILLQUEUE and len(job.holders.delivered) > 1:
            due -= WARN_MS
        at_ms = min(at_ms, due)
    node.timers.set(job, at_ms)


def first_state(node: Node, rules: Rules) -> tuple[int, int, int]:
    """Give the state, flags and requeue time with which a new job begins."""
    if rules.delay_s:
        # One more, since the clock is cut to milliseconds: a delay may end late, never early.
        return ACTIVE, 0, node.now_ms + rules.delay_s * 1000 + 1
    if rules.retry_ms:
        return QUEUED, BCAST_QUEUED | BCAST_WILLQUEUE | LISTED, node.after_retry(rules.retry_ms)
    return QUEUED, BCAST_QUEUED | LISTED, 0


def place_new(node: Node, jobs: list[Job]) -> None:
    """Let jobs begin their life, now that enough nodes hold them; they were added alike."""
    elsewhere = [job for job in jobs if job.requeue_at > node.now_ms]
    for job in elsewhere:  # while it waited for copies, another holder has queued it or works on it
        job.state, job.flags = ACTIVE, BCAST_QUEUED | BCAST_WILLQUEUE
        schedule(node, job)
        if node.journal is not None:
            node.journal.added([job])
            node.journal.changed(job)
    if elsewhere:
        jobs = [job for job in jobs if job.state != ACTIVE]
        if not jobs:
            return
    first = jobs[0]
    state, flags, requeue_at = first_state(node, first.rules)
    for job in jobs:
        job.state, job.flags, job.requeue_at = state, flags, requeue_at
        schedule(node, job)
    if state == QUEUED:
        queue_new(node, node.queue(first.queue), jobs)
    if node.journal is not None:
        node.journal.added(jobs)


def queue_new(node: Node, queue: Queue, jobs: list[Job]) -> None:
    """Put new jobs, marked as queued and listed, into their queue."""
    queue.extend(jobs)
    queue.accessed_ms = node.now_ms
    queue.jobs_in += len(jobs)
    if (queue.waiters or queue.exchange is not None) and not queue.pause & PAUSED_OUT:
        node.ready[queue] = None


def can_queue(job: Job) -> bool:
    """Tell whether a job may go to its queue now."""
    return job.state == ACTIVE and (job.rules.retry_s > 0 or not job.flags & DELIVERED)


def enqueue(node: Node, job: Job, nack: bool = False) -> bool:
    """Put an active job into its queue; False if it may not go there."""
    if not can_queue(job):
        return False
    if job.token:
        end_lease(node, job)
    # The end of a delay is written down with the job already; everything else that queues it is news.
    is_news = nack or bool(job.flags & (DELIVERED | BCAST_QUEUED)) or job.requeue_at > node.now_ms
    job.state = QUEUED
    job.flags &= ~(OUT | GIVEN | IMPORTED)  # whoever queues it now, it is no longer what another node gave us
    if job.rules.retry_s:
        job.flags |= BCAST_WILLQUEUE
        job.requeue_at = node.after_retry(job.rules.retry_ms)
    else:
        job.requeue_at = 0
    if nack:
        job.nacks = (job.nacks + 1) & COUNTER_MASK
        tell_holders(node, bus.QUEUED, job.id, job.holders.delivered, bus.INCR_NACKS)
    elif job.flags & BCAST_QUEUED:
        job.deliveries = (job.deliveries + 1) & COUNTER_MASK
        tell_holders(node, bus.QUEUED, job.id, job.holders.delivered, bus.INCR_DELIVERIES)
    else:
        job.flags |= BCAST_QUEUED
        if job.flags & RETURNING:
            tell_holders(node, bus.QUEUED, job.id, job.holders.delivered)
    job.flags &= ~RETURNING
    queue = node.queue(job.queue)
    queue.insert(job)
    queue.accessed_ms = node.now_ms
    queue.jobs_in += 1
    if (queue.waiters or queue.exchange is not None) and not queue.pause & PAUSED_OUT:
        node.ready[queue] = None
    schedule(node, job)
    if is_news and node.journal is not None:
        node.journal.changed(job)
    return True


def dequeue(node: Node, job: Job) -> bool:
    """Take a queued job out of its queue without delivering it."""
    if job.state != QUEUED:
        return False
    job.state = ACTIVE
    node.queues.by_name[job.queue].drop()
    if node.journal is not None:
        node.journal.changed(job)
    return True


def fetch(node: Node, queue: Queue, most: int, lease_ms: int = 0, begin_max: int = ALL) -> list[Job]:
    """Take the next jobs of a queue for a client, with a lease if it asked for one.

    Work on the first `begin_max` of them begins at once, but for those that were queued before; or on all of them.
    They are fewer than `most` where their bodies would be too much for one reply.
    """
    jobs = queue.take(most, node.memory.reply_bytes_max)
    if jobs:
        queue.accessed_ms = node.now_ms
        queue.jobs_out += len(jobs)
    if lease_ms:
        for place, job in enumerate(jobs):
            job.token = node.new_token()
            if begin_max < 0 or (place < begin_max and not job.deliveries):
                begin(job)
            else:
                job.flags |= AHEAD
            lease(node, job, lease_ms)
    if queue.exchange is not None and not queue.length:
        node.ready[queue] = None  # more may be had from other nodes
    if node.journal is not None:
        node.journal.delivered(jobs)
    return jobs


def unfetch(node: Node, job: Job) -> bool:
    """Undo the fetch of a job whose reply never left this node; False if something else has become of it.

    Nobody has seen the job, so nothing is counted, and one that may be delivered only once still may.
    """
    if job.state != ACTIVE or not job.flags & OUT:
        return False
    job.state = QUEUED
    job.flags &= ~OUT if job.rules.retry_s else ~(OUT | DELIVERED)
    if job.token:
        job.tries = tries_before(job)
        end_lease(node, job)
        job.requeue_at = 0
        if job.rules.retry_s:  # others wait for the end of the lease
            job.flags |= BCAST_WILLQUEUE
            job.requeue_at = node.after_retry(job.rules.retry_ms)
            tell_holders(node, bus.QUEUED, job.id, job.holders.delivered, bus.tries_flags(job.tries))
        schedule(node, job)
    queue = node.queue(job.queue)
    queue.insert(job)
    queue.jobs_out -= 1
    if (queue.waiters or queue.exchange is not None) and not queue.pause & PAUSED_OUT:
        node.ready[queue] = None
    if node.journal is not None:
        node.journal.undelivered(job)
    return True


def lease(node: Node, job: Job, lease_ms: int) -> None:
    """Let a job's requeue clock run anew for so long, here and at the other holders.

    One that is delivered at most once isn't queued again: then nothing happens but that its lease is over.
    """
    job.requeue_at = node.now_ms + lease_ms
    job.flags |= OUT  # which went when the last one was about to end
    if job.rules.retry_s:
        job.flags |= BCAST_WILLQUEUE
        tell_holders(node, bus.WORKING, job.id, job.holders.delivered, bus.tries_flags(job.tries), lease_ms)
    schedule(node, job)


def working(node: Node, job: Job) -> int:
    """Postpone a job's next delivery by its retry time; give that time in seconds."""
    created_ms = job.ctime // NS_PER_MS
    expires_wall_ms = job.expires_at + node.wall_offset_ms
    if node.wall_ms > created_ms + (expires_wall_ms - created_ms) // 2:
        raise Refused(*refusals.TOO_LATE)
    if job.rules.retry_s and job.state in (ACTIVE, QUEUED):
        if job.state == QUEUED:
            job.state = ACTIVE
            node.queues.by_name[job.queue].drop()
        job.flags |= BCAST_WILLQUEUE
        job.requeue_at = node.after_retry(job.rules.retry_ms)
        schedule(node, job)
        tell_holders(node, bus.WORKING, job.id, job.holders.delivered)
        if node.journal is not None:
            node.journal.changed(job)
    return job.rules.retry_s


def nack_after(node: Node, job: Job, after_ms: int) -> bool:
    """Count a nack and queue the job: at once, or after a time during which it is active."""
    if not can_queue(job):
        end_lease(node, job)  # delivered for the only time: it is nobody's any more
        return False
    if not after_ms:
        return enqueue(node, job, nack=True)
    end_lease(node, job)
    job.nacks = (job.nacks + 1) & COUNTER_MASK
    job.flags = job.flags & ~BCAST_QUEUED | RETURNING  # its next queueing is this nack's, not one more delivery
    # One more, since the clock is cut to milliseconds: it may come late, never early.
    job.requeue_at = node.now_ms + after_ms + 1
    schedule(node, job)
    if len(job.holders.delivered) > 1:
        tell_holders(node, bus.QUEUED, job.id, job.holders.delivered, bus.INCR_NACKS)
        tell_holders(node, bus.WORKING, job.id, job.holders.delivered, 0, after_ms)
    if node.journal is not None:
        node.journal.changed(job)
    return True


def wake(node: Node, job: Job) -> None:
    """Do what is due for a job at this time."""
    now_ms = node.now_ms
    if job.expires_at <= now_ms:
        _count_expiry(node, job)
        remove(node, job)
        return
    if job.state == ACKED:
        collect(node, job)
        return
    if job.requeue_at and job.requeue_at <= now_ms:
        if job.state == QUEUED:
            if job.rules.retry_s:  # nobody fetched it: a new period begins, nothing is counted
                job.flags |= BCAST_WILLQUEUE
                job.requeue_at = node.after_retry(job.rules.retry_ms)
        elif job.rules.retry_s and _paused_in(node, job):
            job.requeue_at = node.after_retry(job.rules.retry_ms)
        elif enqueue(node, job):
            return
        else:
            job.requeue_at = 0
    elif job.flags & BCAST_WILLQUEUE and job.requeue_at - WARN_MS <= now_ms:
        job.flags &= ~(BCAST_WILLQUEUE | OUT | GIVEN)  # anybody's now: two who object would never end
        if job.state == ACTIVE:
            tell_holders(node, bus.WILLQUEUE, job.id, job.holders.delivered)
    schedule(node, job)


def _count_expiry(node: Node, job: Job) -> None:
    """Count a job that expires, at one of the nodes that hold it: where it waits, or where it was given to a client.

    One that may be delivered only once, and was, has not expired: its delivery was its end.
    """
    if not (job.state == QUEUED or is_out(job) or is_given_back(job)):
        return
    if not job.rules.retry_s and job.flags & DELIVERED:
        return
    node.expired_jobs += 1
    queue = node.queue(job.queue)
    queue.expired += 1
    queue.accessed_ms = node.now_ms  # or it would be forgotten with its last job, and the count with it


def _paused_in(node: Node, job: Job) -> bool:
    queue = node.queues.by_name.get(job.queue)
    return queue is not None and bool(queue.pause & PAUSED_IN)
