"""Copies of jobs on other nodes: sent for an add, received and confirmed, and the job records they travel in.

A producer is answered when `replicate` nodes hold its job. Copies first go to exactly as many nodes as are needed,
chosen from those that have a link to this node, on which they can confirm. After 50 ms without enough confirmations one
more node is tried, then another after growing pauses.
A node that has not confirmed is sent the job again after a second (a large job later), or when its link is new: until
then it may only be slow, and repeats would make it slower. If the add fails, every node that may have a copy is told to
delete it.

A node that is leaving or short of memory keeps no copy itself (external replication): it lets others hold the job,
tells one of them to queue it, and removes it. A job of retry 0 may be delivered only once, so it goes to one node, with
the order to queue it in the same message, and is never sent a second time.

Jobs that are added alike differ in id, creation time and body only. So the rest of a record is kept ready for writing,
and what follows from it is worked out once for reading (`RecordShape`).
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core import refusals
from penstock.broker.core.acks import remove, tell_acked, unregister
from penstock.broker.core.delivery import enqueue, place_new, schedule
from penstock.broker.core.jobs import (
    ACKED,
    ACTIVE,
    BCAST_QUEUED,
    BCAST_WILLQUEUE,
    CACHE_MAX,
    DELIVERED,
    GONE,
    JOB_BYTES,
    STORED_FLAGS,
    WAIT_REPL,
    Confirming,
    Job,
    RecordShape,
)
from penstock.broker.core.membership import Peer
from penstock.broker.core.node import Node
from penstock.broker.core.owners import note_copy, set_holders, set_owner
from penstock.broker.core.queues import PAUSED_IN
from penstock.broker.core.refusals import Refused
from penstock.broker.core.sources import Sources
from penstock.broker.core.telling import note_place
from penstock.broker.core.timers import Timed
from penstock.broker.core.tokens import LEASE_MS_MAX
from penstock.wire import bus
from penstock.wire.record import JobRecord, RecordError, decode_record, record_template, split_record

EXTRA_MS: Final = 50  # without enough confirmations: one more node is tried
EXTRA_MS_MAX: Final = 1000  # and the pauses between grow up to this
RESEND_MS: Final = 1000  # without an answer: the copy may have been lost
BYTES_A_MS: Final = 10_000  # speed that a link has at least: a large job is resent later


class Addition(Timed):
    """Jobs added together that wait for their copies, and the client that waits with them; none in a hand-over."""

    __slots__ = (
        "client",
        "deadline_ms",
        "delivered",
        "enqueue_s",
        "external",
        "is_handover",
        "is_whole",
        "is_wider",
        "jobs",
        "missing",
        "pause_ms",
        "refused",
        "replicate",
        "resend_ms",
        "sent_ms",
        "sources",
    )

    def __init__(self, jobs: list[Job], delivered: frozenset[bytes], replicate: int, external: bool) -> None:
        super().__init__(0)
        self.jobs = jobs
        self.delivered = delivered  # the nodes that copies were sent to, this one included unless `external`
        self.replicate = replicate
        self.external = external  # this node keeps no copy
        self.missing = len(jobs)  # jobs without enough copies
        self.deadline_ms = 0
        self.pause_ms = 0  # until one more node is tried
        self.resend_ms = 0  # without an answer for this time, copies may have been lost
        self.sent_ms = 0  # when copies last went to all nodes that have not confirmed
        self.client: object = None
        self.is_whole = False  # all of the jobs are added, or none
        self.is_handover = False  # of a node that drains: the job is in its journal
        self.is_wider = False  # copies went to nodes that the first receivers were not told of
        self.enqueue_s = jobs[0].rules.delay_s  # external: when one of the others queues them; -1: never
        self.refused: dict[bytes, Refused] = {}  # by id, once it is over
        self.sources: Sources | None = None  # of a move: the jobs whose place these take


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
    """Send the first copies; `kept` are the nodes that have confirmed already."""
    size = 0
    for job in addition.jobs:
        set_holders(node, job, Confirming(addition.delivered, set(kept), addition))
        size += len(job.body)
    addition.pause_ms = EXTRA_MS
    addition.resend_ms = RESEND_MS + size // BYTES_A_MS
    addition.sent_ms = node.now_ms
    _send(node, addition, addition.delivered, bus.QUEUE_IT if _is_once(addition) else 0)
    _set_timer(node, addition)


def originals(node: Node) -> frozenset[bytes]:
    """Return the original nodes: those that don't know our additions to the bus."""
    return frozenset(peer.id for peer in node.cluster.others if not peer.abilities & bus.CAN_MANY)


def give_to_original(node: Node, jobs: list[Job]) -> bool:
    """Hand jobs of retry 0 to an original node, which queues them at once and confirms nothing.

    Jobs with a delay can't go there: the delay would be lost. False if no node can take them.
    """
    if jobs[0].rules.delay_s or not node.cluster.ready:
        return False
    whom = frozenset(node.choose(1, frozenset()))
    for job in jobs:
        job.holders = node.held_by(whom)
        node.outbox.add_record(bus.YOURJOBS, whom, message_record(node, job), copy_flags(job))
    return True


def replicate_unasked(node: Node, jobs: list[Job], external: bool) -> bool:
    """Send copies without waiting for confirmations; one node queues external ones. False if none can."""
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
        node.outbox.add_record(
            bus.REPLJOB, delivered, message_record(node, job), bus.NOREPLY | (bus.QUEUE_IT if once else 0)
        )
        if external and not once:
            node.outbox.add_reference(bus.ENQUEUE, frozenset(chosen[:1]), job.id, job.rules.delay_s)
    return True


def _is_once(addition: Addition) -> bool:
    """Whether the jobs may be queued by one node only, and never twice."""
    return addition.external and not addition.jobs[0].rules.retry_s


def _send(node: Node, addition: Addition, whom: frozenset[bytes], flags: int) -> None:
    for job in addition.jobs:
        if job.state == WAIT_REPL:
            node.outbox.add_record(bus.REPLJOB, whom, message_record(node, job), flags | copy_flags(job))
            if flags & bus.QUEUE_IT and whom and addition.is_handover and node.journal is not None:
                node.journal.removed(job.id)  # it is theirs from now on: it must not be restored here


def _set_timer(node: Node, addition: Addition) -> None:
    resend_at = max(addition.sent_ms + addition.resend_ms, node.now_ms + 1)
    at_ms = min(node.now_ms + addition.pause_ms, resend_at, addition.jobs[0].expires_at)
    if addition.deadline_ms:
        at_ms = min(at_ms, addition.deadline_ms)
    node.timers.set(addition, at_ms)


def wake_addition(node: Node, addition: Addition) -> None:
    """The timer of an add is due: finish it, give it up, or try harder."""
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
    """Try one more node, and resend copies that may have been lost."""
    if _is_once(addition):
        if not addition.delivered:  # no node could be reached yet
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
            node.outbox.add_record(bus.REPLJOB, late - holders.confirmed, record)
        if more and holders.confirmed:  # so that every holder knows all others
            node.outbox.add_record(bus.REPLJOB, frozenset(holders.confirmed), record, bus.NOREPLY)


def _lost(node: Node, addition: Addition) -> frozenset[bytes]:
    """Return the nodes whose copy may have been lost."""
    if node.now_ms - addition.sent_ms >= addition.resend_ms:
        addition.sent_ms = node.now_ms
        return addition.delivered
    peers = node.cluster.peers
    known = [peers[node_id] for node_id in addition.delivered if node_id in peers]
    return frozenset(peer.id for peer in known if peer.linked_ms > addition.sent_ms)


def on_gotjob(node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]) -> None:
    """GOTJOB: another node confirms copies."""
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
    """End the wait: the jobs are queued, or left to others."""
    if addition.is_whole and addition.refused:
        give_up(node, addition, refusals.JOB_REMOVED)
        return
    node.timers.cancel(addition)
    node.handovers.pop(addition, None)
    if addition.sources is not None:
        for job in addition.sources.leave_lost(node):
            _drop(node, job)
    jobs = [job for job in addition.jobs if job.state == WAIT_REPL]
    if jobs and addition.external:
        for job in jobs:
            _leave_to_others(node, addition, job)
    elif jobs:
        holders = node.held_by(addition.delivered)
        for job in jobs:
            job.holders = holders
        place_new(node, jobs)
    if addition.sources is not None:
        addition.sources.end(node, addition.client)
    if addition.client is not None:
        node.port.added(addition)


def _leave_to_others(node: Node, addition: Addition, job: Job) -> None:
    holders = job.holders
    assert isinstance(holders, Confirming)
    if addition.is_wider:  # they can't ask this node later
        node.outbox.add_record(bus.REPLJOB, frozenset(holders.confirmed), message_record(node, job), bus.NOREPLY)
    if not _is_once(addition) and addition.enqueue_s >= 0:
        able = sorted(holders.confirmed)
        whom = frozenset((able[node.chance(len(able))],))
        node.outbox.add_reference(bus.ENQUEUE, whom, job.id, addition.enqueue_s)
        if addition.enqueue_s and len(able) > 1:  # the others leave it to that node, and don't queue it early
            wait_ms = min(addition.enqueue_s * 1000 + job.rules.retry_ms, LEASE_MS_MAX)
            node.outbox.add_reference(bus.WORKING, frozenset(able) - whom, job.id, wait_ms, 0, holders.delivered)
    if addition.is_handover and not _is_once(addition) and node.journal is not None:
        node.journal.removed(job.id)
    if not addition.is_handover and node.events is not None:
        node.events.added([job])
    unregister(node, job)


def give_up(node: Node, addition: Addition, reason: tuple[str, str]) -> None:
    """End the wait without success: every node that may have a copy is told to delete it."""
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
    node.outbox.add_reference(bus.DELJOB, job.holders.delivered, job.id)
    node.finished.add(job.id)
    unregister(node, job)


# At the nodes that receive copies.


def on_repljob(node: Node, peer: Peer, message: bus.BusMessage) -> None:
    """REPLJOB: take copies of jobs. They are refused by not confirming them."""
    if node.cluster.leaving or node.memory.used_bytes > node.memory.warn_bytes or node.refuses_copies:
        return
    if not message.abilities and bus.announced(message) != 1:
        return  # original nodes send one job a message
    if message.flags & bus.QUEUE_IT and not peer.hands_over(message.sequence):
        return  # a repeated message: its job may be queued only once
    fresh: list[Job] = []
    for copy in read_copies(node, message):
        job = node.jobs.get(copy.id)
        if job is not None:
            join_holders(node, job, copy.shape.nodes)
            job.tries = max(job.tries, bus.tries_of(message.flags))
            if job.state == ACKED:
                tell_acked(node, peer, copy.id, job)
                continue
        elif copy.id in node.finished:
            tell_acked(node, peer, copy.id, None)
            continue
        else:
            queue = node.queues.by_name.get(copy.shape.queue)
            if queue is not None and queue.pause & PAUSED_IN:
                continue
            owner = peer.id if peer.id in copy.shape.nodes else b""
            fresh.append(register_copy(node, copy, message.flags, owner))
        if not message.flags & bus.NOREPLY:
            node.outbox.add_reference(bus.GOTJOB, peer.alone, copy.id)
    if fresh and node.journal is not None:
        note_copies(node, fresh)


def note_copies(node: Node, jobs: list[Job]) -> None:
    """Journal new copies."""
    assert node.journal is not None
    for group in alike(jobs):
        node.journal.added(group)
    for job in jobs:
        if job.tries:
            node.journal.changed(job)


def alike(jobs: list[Job]) -> list[list[Job]]:
    """Group consecutive jobs by what the journal expects to be the same."""
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


def register_copy(node: Node, copy: Copy, flags: int, owner: bytes = b"") -> Job:
    """Register a job that another node has sent, and which node has it."""
    shape, now_ms = copy.shape, node.now_ms
    rules = shape.rules
    job = Job(copy.id, shape.queue, copy.body, rules, copy.ctime, now_ms + copy.left_s * 1000, shape.holders)
    if owner:
        if shape.owned.owner != owner:
            shape.owned = node.held_by(shape.holders.delivered, owner)
        job.holders = shape.owned
        note_copy(node, job)
    job.nacks, job.deliveries = shape.nacks, shape.deliveries
    job.tries = max(0, bus.tries_of(flags))
    job.flags = shape.flags & ~DELIVERED | BCAST_QUEUED
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
        set_holders(node, job, node.held_by(delivered, job.holders.owner, job.holders.is_given))
        if node.journal is not None:
            node.journal.held(job)


def on_enqueue(node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]) -> None:
    """ENQUEUE: queue jobs of a node that keeps no copy itself."""
    for job_id, delay_s in refs:
        job = node.jobs.get(job_id)
        if job is None or job.state != ACTIVE:
            continue
        queue = node.queues.by_name.get(job.queue)
        if queue is not None and queue.pause & PAUSED_IN and job.rules.retry_s:
            continue  # it is queued after its retry time
        job.flags &= ~BCAST_QUEUED
        if not delay_s:
            if enqueue(node, job) and len(job.holders.delivered) > 1:
                note_place(node, job)
            continue
        set_owner(node, job, b"")
        job.requeue_at = node.now_ms + delay_s * 1000 + 1
        schedule(node, job)
        if node.journal is not None:
            node.journal.changed(job)


def on_deljob(node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]) -> None:
    """DELJOB: remove jobs in any state."""
    for job_id, _ in refs:
        node.finished.add(job_id)
        job = node.jobs.get(job_id)
        if job is not None and job.state != GONE:
            remove(node, job)


# Job records in messages.


class Copy:
    """A job that another node has sent."""

    __slots__ = ("body", "ctime", "id", "left_s", "shape")

    def __init__(self, job_id: bytes, body: bytes, ctime: int, left_s: int, shape: RecordShape) -> None:
        self.id = job_id
        self.body = body
        self.ctime = ctime
        self.left_s = left_s
        self.shape = shape


def message_record(node: Node, job: Job) -> bytes:
    """Serialize a job for another node. Clocks differ, so the record has the seconds that are left to live."""
    left_s = max((job.expires_at - node.now_ms) // 1000, 0) + 1
    flags = job.flags & STORED_FLAGS & ~DELIVERED
    delivered = job.holders.delivered
    key = (job.queue, job.rules, flags, job.nacks, job.deliveries, left_s, delivered, len(job.body))
    templates = node.record_cache.templates
    template = templates.get(key)
    if template is None:
        if len(templates) >= CACHE_MAX:
            templates.clear()
        rules, nodes = job.rules, tuple(sorted(delivered))
        template, _ = record_template(
            JobRecord(
                job.id, ACTIVE, 0, flags, rules.replicate, left_s, job.ctime, rules.delay_s, rules.retry_s,
                job.nacks, job.deliveries, job.queue, job.body, nodes,
            )
        )  # fmt: skip
        templates[key] = template
    return template % (job.id, job.ctime.to_bytes(8, "little"), job.body)


def copy_flags(job: Job) -> int:
    """Return the flags of a message with a copy of a job: its tries, where there are any."""
    return bus.tries_flags(job.tries) if job.tries else 0


def read_copies(node: Node, message: bus.BusMessage) -> list[Copy]:
    """Read the jobs of REPLJOB and YOURJOBS, up to the first that can't be read."""
    cache = node.record_cache
    if cache.epoch != node.cluster.epoch:
        cache.epoch = node.cluster.epoch
        cache.shapes.clear()
    copies: list[Copy] = []
    for data in bus.cut_records(message):
        body, ctime, left_s, key = split_record(data)
        shape = cache.shapes.get(key) if key else None
        if shape is None:
            try:
                record, _ = decode_record(data)
            except RecordError:
                break
            body, ctime, left_s = record.body, record.ctime, record.expires
            holders = node.held_by(frozenset(record.nodes) & node.cluster.ids | node.alone.delivered)
            shape = RecordShape(record, record.queue, cache.rules_of(record), holders)
            cache.keep(key, shape)
        copies.append(Copy(data[4:44], body, ctime, left_s, shape))
    return copies
