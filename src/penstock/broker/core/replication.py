"""Copies of jobs on other nodes.

A producer that asked for `replicate` copies hears of its job when so many nodes have confirmed theirs. Copies go to as
many nodes as are needed at once, of those that have a link to this one, on which they can confirm; after 50 ms without
success one more node is tried, then another after growing pauses.
Those who have not confirmed are sent the job again after a second (a large one later), or when their link is a new one:
before that they are only slow, and more of the same would make them slower. If it fails, everybody who may have a copy
is told to forget it.

A node that is leaving or short of memory keeps no copy itself (external replication): it lets others hold the job,
tells one of them to queue it, and forgets it. A job of retry 0 may be delivered once only, so it goes to one node, with
the order to queue it in the same message, and is never sent a second time.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core import refusals
from penstock.broker.core.copies import Copy, copy_flags, message_record, read_copies
from penstock.broker.core.delivery import enqueue, place_new, schedule
from penstock.broker.core.jobs import (
    ACKED,
    ACTIVE,
    BCAST_QUEUED,
    BCAST_WILLQUEUE,
    GONE,
    JOB_BYTES,
    WAIT_REPL,
    Confirming,
    Job,
)
from penstock.broker.core.membership import Peer
from penstock.broker.core.node import Node
from penstock.broker.core.queues import PAUSED_IN
from penstock.broker.core.refusals import Refused
from penstock.broker.core.removal import remove, unregister
from penstock.broker.core.tokens import LEASE_MS_MAX
from penstock.broker.core.waiting import Addition
from penstock.wire import bus

EXTRA_MS: Final = 50  # without enough confirmations: one more node is tried
EXTRA_MS_MAX: Final = 1000  # and the pauses between grow up to this
RESEND_MS: Final = 1000  # without an answer: the copy may have been lost
BYTES_A_MS: Final = 10_000  # a large one may take longer on its way: a link is taken for so fast at least


# At the producer's node.


def replicate(node: Node, jobs: list[Job], external: bool, timeout_ms: int) -> Addition:
    """Send copies of new jobs, which differ in id, creation time and body only, and wait for their confirmations."""
    wanted = jobs[0].rules.replicate
    kept = frozenset() if external else node.alone.delivered
    unfit = originals(node) if external and not jobs[0].rules.retry_s else kept
    delivered = kept.union(node.choose(wanted - len(kept), unfit))
    addition = Addition(jobs, delivered, wanted, external)
    addition.deadline_ms = node.now_ms + timeout_ms if timeout_ms else 0
    begin(node, addition, kept)
    return addition


def begin(node: Node, addition: Addition, kept: frozenset[bytes]) -> None:
    """Send the first copies; whoever keeps one already has confirmed."""
    size = 0
    for job in addition.jobs:
        job.holders = Confirming(addition.delivered, set(kept), addition)
        size += len(job.body)
    addition.pause_ms = EXTRA_MS
    addition.resend_ms = RESEND_MS + size // BYTES_A_MS
    addition.sent_ms = node.now_ms
    _send(node, addition, addition.delivered, bus.QUEUE_IT if _is_once(addition) else 0)
    _set_timer(node, addition)


def originals(node: Node) -> frozenset[bytes]:
    """Give the nodes that don't know our additions to the bus."""
    return frozenset(peer.id for peer in node.cluster.others if not peer.abilities & bus.CAN_MANY)


def give_to_original(node: Node, jobs: list[Job]) -> bool:
    """Hand jobs that may be delivered once only to an original node: it queues what it is given, and confirms nothing.

    A delay would be lost with it, so such jobs can't go there. False if nobody takes them.
    """
    if jobs[0].rules.delay_s or not node.cluster.ready:
        return False
    whom = frozenset(node.choose(1, frozenset()))
    for job in jobs:
        job.holders = node.held_by(whom)
        node.outbox.give(bus.YOURJOBS, whom, message_record(node, job), copy_flags(job))
    return True


def replicate_unasked(node: Node, jobs: list[Job], external: bool) -> bool:
    """Send copies without waiting for anything; one node queues an external one. False if nobody can have it."""
    wanted = jobs[0].rules.replicate
    kept = frozenset() if external else node.alone.delivered
    once = external and not jobs[0].rules.retry_s
    chosen = node.choose(wanted - len(kept), originals(node) if once else kept)
    delivered = kept.union(chosen)
    if not delivered:
        return False
    holders = node.held_by(delivered)
    for job in jobs:
        job.holders = holders
        node.outbox.give(bus.REPLJOB, delivered, message_record(node, job), bus.NOREPLY | (bus.QUEUE_IT if once else 0))
        if external and not once:
            node.outbox.tell(bus.ENQUEUE, frozenset(chosen[:1]), job.id, job.rules.delay_s)
    return True


def _is_once(addition: Addition) -> bool:
    """Whether the jobs may be queued by one node only, and never twice."""
    return addition.external and not addition.jobs[0].rules.retry_s


def _send(node: Node, addition: Addition, whom: frozenset[bytes], flags: int) -> None:
    for job in addition.jobs:
        if job.state == WAIT_REPL:
            node.outbox.give(bus.REPLJOB, whom, message_record(node, job), flags | copy_flags(job))
            if flags & bus.QUEUE_IT and whom and addition.is_handover and node.journal is not None:
                node.journal.removed(job.id)  # it is theirs from now on: with us it must not come back


def _set_timer(node: Node, addition: Addition) -> None:
    resend_at = max(addition.sent_ms + addition.resend_ms, node.now_ms + 1)
    at_ms = min(node.now_ms + addition.pause_ms, resend_at, addition.jobs[0].expires_at)
    if addition.deadline_ms:
        at_ms = min(at_ms, addition.deadline_ms)
    node.timers.set(addition, at_ms)


def wake_addition(node: Node, addition: Addition) -> None:
    """Do what is due for jobs that wait for copies."""
    now_ms = node.now_ms
    if not addition.missing:
        _settle(node, addition)
    elif addition.jobs[0].expires_at <= now_ms:
        give_up(node, addition, refusals.JOB_REMOVED)
    elif addition.deadline_ms and addition.deadline_ms <= now_ms:
        give_up(node, addition, refusals.REPLICATION_TIMEOUT)
    else:
        _try_harder(node, addition)
        addition.pause_ms = min(addition.pause_ms * 2, EXTRA_MS_MAX)
        _set_timer(node, addition)


def _try_harder(node: Node, addition: Addition) -> None:
    """Try one more node, and send copies again to those who have not confirmed."""
    if _is_once(addition):
        if not addition.delivered:  # nobody could be reached yet
            addition.delivered = frozenset(node.choose(1, originals(node)))
            for job in addition.jobs:
                job.holders.delivered = addition.delivered
            _send(node, addition, addition.delivered, bus.QUEUE_IT)
        return
    more = node.choose(max(1, addition.replicate - len(addition.delivered)), addition.delivered)
    if more:
        addition.delivered = addition.delivered.union(more)
        addition.is_wider = True
    late = frozenset(more) | _lost(node, addition)
    for job in addition.jobs:
        if job.state != WAIT_REPL:
            continue
        holders = job.holders
        assert isinstance(holders, Confirming)
        holders.delivered = addition.delivered
        record = message_record(node, job)
        if late - holders.confirmed:
            node.outbox.give(bus.REPLJOB, late - holders.confirmed, record)
        if more and holders.confirmed:  # so that everybody knows of all holders
            node.outbox.give(bus.REPLJOB, frozenset(holders.confirmed), record, bus.NOREPLY)


def _lost(node: Node, addition: Addition) -> frozenset[bytes]:
    """Give the nodes whose copy may have been lost on the way."""
    if node.now_ms - addition.sent_ms >= addition.resend_ms:
        addition.sent_ms = node.now_ms
        return addition.delivered
    peers = node.cluster.peers
    known = [peers[node_id] for node_id in addition.delivered if node_id in peers]
    return frozenset(peer.id for peer in known if peer.linked_ms > addition.sent_ms)


def heard_gotjob(node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]) -> None:
    """Count confirmations."""
    for job_id, _ in refs:
        job = node.jobs.get(job_id)
        if job is None or job.state != WAIT_REPL:
            continue
        holders = job.holders
        assert isinstance(holders, Confirming)
        addition = holders.addition
        if addition is None or peer.id in holders.confirmed:
            continue
        holders.confirmed.add(peer.id)
        if peer.id not in holders.delivered:
            holders.delivered = addition.delivered = addition.delivered | peer.alone
            addition.is_wider = True
        if len(holders.confirmed) == addition.replicate:
            addition.missing -= 1
            if not addition.missing:
                _settle(node, addition)


def _settle(node: Node, addition: Addition) -> None:
    """End the wait: the jobs begin their life."""
    if addition.is_whole and addition.refused:
        give_up(node, addition, refusals.JOB_REMOVED)
        return
    node.timers.cancel(addition)
    node.handovers.pop(addition, None)
    jobs = [job for job in addition.jobs if job.state == WAIT_REPL]
    if jobs and addition.external:
        for job in jobs:
            _leave_to_others(node, addition, job)
    elif jobs:
        holders = node.held_by(addition.delivered)
        for job in jobs:
            job.holders = holders
        place_new(node, jobs)
    if addition.client is not None:
        node.port.added(addition)


def _leave_to_others(node: Node, addition: Addition, job: Job) -> None:
    holders = job.holders
    assert isinstance(holders, Confirming)
    if addition.is_wider:  # they can't ask us later
        node.outbox.give(bus.REPLJOB, frozenset(holders.confirmed), message_record(node, job), bus.NOREPLY)
    if not _is_once(addition) and addition.enqueue_s >= 0:
        able = sorted(holders.confirmed)
        whom = frozenset((able[node.chance(len(able))],))
        node.outbox.tell(bus.ENQUEUE, whom, job.id, addition.enqueue_s)
        if addition.enqueue_s and len(able) > 1:  # the others leave it to that one, and don't queue it before its time
            wait_ms = min(addition.enqueue_s * 1000 + job.rules.retry_ms, LEASE_MS_MAX)
            node.outbox.tell(bus.WORKING, frozenset(able) - whom, job.id, wait_ms, 0, holders.delivered)
    if addition.is_handover and not _is_once(addition) and node.journal is not None:
        node.journal.removed(job.id)
    unregister(node, job)


def give_up(node: Node, addition: Addition, reason: tuple[str, str]) -> None:
    """End the wait without success: whoever may have a copy is told to forget it."""
    node.timers.cancel(addition)
    node.handovers.pop(addition, None)
    for job in addition.jobs:
        if job.state != WAIT_REPL:
            continue
        holders = job.holders
        assert isinstance(holders, Confirming)
        if len(holders.confirmed) < addition.replicate or addition.is_whole or addition.client is None:
            addition.refused[job.id] = Refused(*reason)
            _drop(node, job)
        elif addition.external:
            _leave_to_others(node, addition, job)
        else:
            job.holders = node.held_by(addition.delivered)
            place_new(node, [job])
    if addition.client is not None:
        node.port.added(addition)


def _drop(node: Node, job: Job) -> None:
    node.outbox.tell(bus.DELJOB, job.holders.delivered, job.id)
    node.finished.add(job.id)
    unregister(node, job)


# At the nodes that hold copies.


def heard_repljob(node: Node, peer: Peer, message: bus.Message) -> None:
    """Take copies of jobs, or refuse them by silence."""
    if node.cluster.leaving or node.memory.used_bytes > node.memory.warn_bytes or node.refuses_copies:
        return
    if not message.abilities and bus.announced(message) != 1:
        return  # an original node sends one at a time: this is none
    if message.flags & bus.QUEUE_IT and not peer.hands_over(message.sequence):
        return  # it came twice, and may be queued once only
    fresh: list[Job] = []
    for copy in read_copies(node, message):
        job = node.jobs.get(copy.id)
        if job is not None:
            join_holders(node, job, copy.kind.nodes)
            job.tries = max(job.tries, bus.tries_of(message.flags))
            if job.state == ACKED:
                node.outbox.tell(bus.SETACK, peer.alone, job.id, len(job.holders.delivered), 0, job.holders.delivered)
                continue
        elif copy.id in node.finished:
            holders = node.alone.delivered | peer.alone
            node.outbox.tell(bus.SETACK, peer.alone, copy.id, len(holders), 0, holders)
            continue
        else:
            queue = node.queues.by_name.get(copy.kind.queue)
            if queue is not None and queue.pause & PAUSED_IN:
                continue
            fresh.append(register_copy(node, copy, message.flags))
        if not message.flags & bus.NOREPLY:
            node.outbox.tell(bus.GOTJOB, peer.alone, copy.id)
    if fresh and node.journal is not None:
        note_copies(node, fresh)


def note_copies(node: Node, jobs: list[Job]) -> None:
    """Write copies down that have come."""
    assert node.journal is not None
    for group in alike(jobs):
        node.journal.added(group)
    for job in jobs:
        if job.tries:
            node.journal.changed(job)


def alike(jobs: list[Job]) -> list[list[Job]]:
    """Group jobs by what the journal expects to be the same."""
    groups: list[list[Job]] = []
    last: Job | None = None
    for job in jobs:
        if (
            last is not None
            and job.queue == last.queue
            and job.rules == last.rules
            and job.holders is last.holders
            and (job.state, job.flags, job.nacks, job.deliveries, job.expires_at)
            == (last.state, last.flags, last.nacks, last.deliveries, last.expires_at)
        ):
            groups[-1].append(job)
        else:
            groups.append([job])
        last = job
    return groups


def register_copy(node: Node, copy: Copy, flags: int) -> Job:
    """Take a job in that another node has sent."""
    kind, now_ms = copy.kind, node.now_ms
    rules = kind.rules
    job = Job(copy.id, kind.queue, copy.body, rules, copy.ctime, now_ms + copy.left_s * 1000, kind.holders)
    job.nacks, job.deliveries = kind.nacks, kind.deliveries
    job.tries = max(0, bus.tries_of(flags))
    job.flags = kind.flags | BCAST_QUEUED
    if rules.retry_s:
        job.flags |= BCAST_WILLQUEUE
        job.requeue_at = node.after_retry(rules.delay_s * 1000 + rules.retry_ms)
    node.jobs.put(job)
    node.memory.used_bytes += JOB_BYTES + len(job.body)
    if flags & bus.QUEUE_IT and not rules.retry_s:
        job.flags &= ~BCAST_QUEUED
        if rules.delay_s:
            job.requeue_at = now_ms + rules.delay_s * 1000 + 1
        else:
            enqueue(node, job)
    if job.wake_at == 0:
        schedule(node, job)
    return job


def join_holders(node: Node, job: Job, nodes: frozenset[bytes]) -> None:
    """Learn of more nodes that may hold a job."""
    more = (nodes & node.cluster.ids) - job.holders.delivered
    if not more:
        return
    delivered = job.holders.delivered | more
    if isinstance(job.holders, Confirming):
        job.holders.delivered = delivered
        if job.holders.addition is not None:
            job.holders.addition.delivered = job.holders.addition.delivered | more
    else:
        job.holders = node.held_by(delivered)
        if node.journal is not None:
            node.journal.held(job)


def heard_enqueue(node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]) -> None:
    """Queue jobs that the node which took them in keeps no copy of."""
    for job_id, delay_s in refs:
        job = node.jobs.get(job_id)
        if job is None or job.state != ACTIVE:
            continue
        queue = node.queues.by_name.get(job.queue)
        if queue is not None and queue.pause & PAUSED_IN and job.rules.retry_s:
            continue  # it comes with its retry time
        job.flags &= ~BCAST_QUEUED
        if not delay_s:
            enqueue(node, job)
            continue
        job.requeue_at = node.now_ms + delay_s * 1000 + 1
        schedule(node, job)
        if node.journal is not None:
            node.journal.changed(job)


def heard_deljob(node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]) -> None:
    """Forget jobs, whatever they are doing."""
    for job_id, _ in refs:
        node.finished.add(job_id)
        job = node.jobs.get(job_id)
        if job is not None and job.state != GONE:
            remove(node, job)
