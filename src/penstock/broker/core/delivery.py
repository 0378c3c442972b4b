"""Queueing, fetching and requeueing: what happens to a job between its add and its end.

`enqueue`, `dequeue` and `fetch` are the only ways in and out of a queue; `wake` handles a job's timer.
A job of retry 0 is delivered at most once: its fetch is journaled as its removal, and it is never queued again. The one
exception is `unfetch`, for a fetch whose reply certainly never left this node.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core import refusals
from penstock.broker.core.acks import collect, remove
from penstock.broker.core.jobs import (
    ACKED,
    ACTIVE,
    AHEAD,
    BCAST_QUEUED,
    BCAST_WILLQUEUE,
    COUNTER_MASK,
    DELIVERED,
    GIVEN,
    GIVEN_BACK,
    IMPORTED,
    LISTED,
    MOVED,
    OUT,
    OUT_THERE,
    QUEUED,
    RETURNING,
    TAKING,
    Job,
    Rules,
    attempt_of,
    begin,
    is_given_back,
    is_out,
    tries_before,
)
from penstock.broker.core.node import NS_PER_MS, Node
from penstock.broker.core.outbox import NOBODY, tell_holders
from penstock.broker.core.owners import created_by, set_owner
from penstock.broker.core.queues import PAUSED_IN, PAUSED_OUT, Queue
from penstock.broker.core.refusals import Refused
from penstock.broker.core.telling import note_fetched, note_place
from penstock.broker.core.tokens import end_lease
from penstock.wire import bus

ALL: Final = -1
WARN_MS: Final = 500  # the other holders are told this long before a requeue


def schedule(node: Node, job: Job) -> None:
    """Set a job's timer: to its expiry, its requeue, or the warning before that."""
    at_ms = job.expires_at
    if job.requeue_at and job.state != ACKED:
        due = job.requeue_at
        if job.flags & BCAST_WILLQUEUE and len(job.holders.delivered) > 1:
            due -= WARN_MS
        at_ms = min(at_ms, due)
    node.timers.set(job, at_ms)


def first_state(node: Node, rules: Rules) -> tuple[int, int, int]:
    """Return the state, flags and requeue time with which a new job begins."""
    if rules.delay_s:
        # One more, since the clock is truncated to milliseconds: a delay may end late, never early.
        return ACTIVE, 0, node.now_ms + rules.delay_s * 1000 + 1
    if rules.retry_ms:
        return QUEUED, BCAST_QUEUED | BCAST_WILLQUEUE | LISTED, node.after_retry(rules.retry_ms)
    return QUEUED, BCAST_QUEUED | LISTED, 0


def place_new(node: Node, jobs: list[Job]) -> None:
    """Queue new jobs or start their delay, now that enough nodes hold them; they were added alike."""
    if node.events is not None:
        node.events.added(jobs)
    elsewhere = [job for job in jobs if job.requeue_at > node.now_ms]
    for job in elsewhere:  # another holder has queued it, or has a client work on it, while it waited for copies
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
    """Whether a job may go to its queue now."""
    return job.state == ACTIVE and (job.rules.retry_s > 0 or not job.flags & DELIVERED)


def enqueue(node: Node, job: Job, nack: bool = False) -> bool:
    """Put an active job into its queue; False if that is not allowed."""
    if not can_queue(job):
        return False
    if job.token:
        end_lease(node, job)
    if job.holders.owner:
        set_owner(node, job, b"")
    # The end of a delay follows from the job's own record; any other queueing must be journaled.
    is_news = nack or bool(job.flags & (DELIVERED | BCAST_QUEUED)) or job.requeue_at > node.now_ms
    job.state = QUEUED
    is_return = nack or bool(job.flags & RETURNING)
    is_taken = bool(job.flags & TAKING)
    # No longer the state in which another node had it, or gave it.
    job.flags &= ~(OUT | GIVEN | GIVEN_BACK | IMPORTED | MOVED | OUT_THERE | TAKING)
    if is_return:
        job.flags |= GIVEN_BACK
    if job.rules.retry_s:
        job.flags |= BCAST_WILLQUEUE
        job.requeue_at = node.after_retry(job.rules.retry_ms)
    else:
        job.requeue_at = 0
    if nack:
        job.nacks = (job.nacks + 1) & COUNTER_MASK
        tell_queued(node, job, bus.INCR_NACKS)
    elif is_taken:
        job.flags |= BCAST_QUEUED
        tell_queued(node, job, bus.TAKEN)
    elif job.flags & BCAST_QUEUED:
        job.deliveries = (job.deliveries + 1) & COUNTER_MASK
        tell_queued(node, job, bus.INCR_DELIVERIES)
    else:
        job.flags |= BCAST_QUEUED
        if job.flags & RETURNING:
            tell_queued(node, job)
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


def enqueue_now(node: Node, job: Job) -> bool:
    """Put an active job into its queue for a client; False if that is not allowed."""
    if not enqueue(node, job):
        return False
    if node.events is not None:
        node.events.queued(job)
    return True


def tell_queued(node: Node, job: Job, flags: int = 0, whom: frozenset[bytes] = NOBODY) -> None:
    """Send QUEUED to all holders of a job, or some, with its counters: it may reach them again before this message."""
    delivered = job.holders.delivered
    if len(delivered) > 1:
        counters = bus.counters(job.nacks, job.deliveries)
        node.outbox.add_reference(bus.QUEUED, whom or delivered, job.id, counters, flags, delivered)


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

    Work on the first `begin_max` of them begins at once (ALL: on every one), except on jobs that were delivered before.
    Fewer than `most` are taken where their bodies and queue names would be too large for one reply.
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
    elif node.cluster.has_takers:
        note_fetched(node, jobs)
    if queue.exchange is not None and not queue.length:
        node.ready[queue] = None  # other nodes may have more
    if node.journal is not None:
        node.journal.delivered(jobs)
    if node.events is not None and jobs:
        node.events.reserved(jobs)
    return jobs


def unfetch(node: Node, job: Job) -> bool:
    """Undo the fetch of a job whose reply never left this node; False if its state has changed since.

    No client has seen the job, so nothing is counted, and a job of retry 0 may still be delivered.
    """
    if job.state != ACTIVE or not job.flags & OUT:
        return False
    if node.events is not None:
        node.events.requeued(job, attempt_of(job))
    job.state = QUEUED
    job.flags &= ~OUT if job.rules.retry_s else ~(OUT | DELIVERED)
    if job.token:
        job.tries = tries_before(job)
        end_lease(node, job)
        job.requeue_at = 0
        if job.rules.retry_s:  # the other holders wait for the end of the lease
            job.flags |= BCAST_WILLQUEUE
            job.requeue_at = node.after_retry(job.rules.retry_ms)
            tell_queued(node, job, bus.tries_flags(job.tries))
        schedule(node, job)
    elif len(job.holders.delivered) > 1:
        note_place(node, job)
    queue = node.queue(job.queue)
    queue.insert(job)
    queue.jobs_out -= 1
    if (queue.waiters or queue.exchange is not None) and not queue.pause & PAUSED_OUT:
        node.ready[queue] = None
    if node.journal is not None:
        node.journal.undelivered(job)
    return True


def lease(node: Node, job: Job, lease_ms: int) -> None:
    """Start a job's retry time again, with the length of a lease, here and at the other holders.

    A job of retry 0 isn't queued again: at the end of the time only its lease ends.
    """
    job.requeue_at = node.now_ms + lease_ms
    job.flags |= OUT  # cleared when the last lease was about to end
    if job.rules.retry_s:
        job.flags |= BCAST_WILLQUEUE
        tell_holders(node, bus.WORKING, job.id, job.holders.delivered, bus.tries_flags(job.tries), lease_ms)
    schedule(node, job)


def working(node: Node, job: Job) -> int:
    """Postpone a job's next delivery by its retry time; return that time in seconds."""
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
        set_owner(node, job, b"")
        schedule(node, job)
        tell_holders(node, bus.WORKING, job.id, job.holders.delivered)
        if node.journal is not None:
            node.journal.changed(job)
        if node.events is not None:
            node.events.extended(job)
    return job.rules.retry_s


def nack_after(node: Node, job: Job, after_ms: int) -> bool:
    """Count a nack and queue the job, at once or after a delay."""
    if not can_queue(job):
        end_lease(node, job)  # delivered for the only time: it belongs to no client any more
        return False
    if node.events is not None:
        node.events.nacked(job, attempt_of(job), after_ms)
    if not after_ms:
        return enqueue(node, job, nack=True)
    end_lease(node, job)
    job.nacks = (job.nacks + 1) & COUNTER_MASK
    set_owner(node, job, b"")
    job.flags = job.flags & ~BCAST_QUEUED | RETURNING  # its next queueing is that of this nack, not one more delivery
    # One more, since the clock is truncated to milliseconds: it may come late, never early.
    job.requeue_at = node.now_ms + after_ms + 1
    schedule(node, job)
    if len(job.holders.delivered) > 1:
        tell_queued(node, job, bus.INCR_NACKS)
        tell_holders(node, bus.WORKING, job.id, job.holders.delivered, 0, after_ms)
    if node.journal is not None:
        node.journal.changed(job)
    return True


def wake(node: Node, job: Job) -> None:
    """The timer of a job is due: expire, collect, warn or requeue it."""
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
            if job.rules.retry_s:  # not fetched: a new period begins, nothing is counted
                job.flags |= BCAST_WILLQUEUE
                job.requeue_at = node.after_retry(job.rules.retry_ms)
        elif job.rules.retry_s and _paused_in(node, job):
            job.requeue_at = node.after_retry(job.rules.retry_ms)
        elif _requeue(node, job):
            return
        else:
            job.requeue_at = 0
    elif job.flags & BCAST_WILLQUEUE and job.requeue_at - WARN_MS <= now_ms:
        job.flags &= ~(BCAST_WILLQUEUE | OUT | GIVEN)  # free for all: two that object to each other would never stop
        if job.state == ACTIVE:
            tell_holders(node, bus.WILLQUEUE, job.id, job.holders.delivered)
    schedule(node, job)


def _requeue(node: Node, job: Job) -> bool:
    """Queue a job whose delay, retry time or lease is over; False if that is not allowed."""
    is_first = not job.flags & BCAST_QUEUED or bool(job.flags & TAKING)
    attempt = attempt_of(job)
    if not enqueue(node, job):
        return False
    if node.events is not None:
        if is_first:
            node.events.queued(job)
        else:
            node.events.requeued(job, attempt)
    return True


def _count_expiry(node: Node, job: Job) -> None:
    """Count an expired job at one of its holders only: where it is queued, or was given to a client.

    A job that was kept out of its queue counts at the node that made it. A delivered job of retry 0 is not counted: its
    delivery was its end.
    """
    if not (job.state == QUEUED or is_out(job) or is_given_back(job) or _is_kept_out(node, job)):
        return
    if not job.rules.retry_s and job.flags & DELIVERED:
        return
    node.expired_jobs += 1
    if node.events is not None:
        node.events.expired(job)
    queue = node.queue(job.queue)
    queue.expired += 1
    queue.accessed_ms = node.now_ms  # else the queue would be dropped as idle, and its count with it


def _is_kept_out(node: Node, job: Job) -> bool:
    """Whether a job of this node is in no queue and nobody had it: its delay ended in a pause, or DEQUEUE took it."""
    if job.state != ACTIVE or job.flags & DELIVERED or job.holders.owner:
        return False
    return created_by(job.id, node.cluster.my_id)


def _paused_in(node: Node, job: Job) -> bool:
    queue = node.queues.by_name.get(job.queue)
    return queue is not None and bool(queue.pause & PAUSED_IN)
