"""Restoring jobs from a journal, each to the state it was in.

waiting in its queue, held here alone   queued at once, in its order
waiting, held by others too             active; its requeue is announced once others can be asked (below)
acked, others may not know yet          acked, and they are told
out with a worker                       active until its requeue time or lease ends, as it was
delayed                                 keeps its time
retry 0, certainly not delivered        queued
retry 0, perhaps delivered              never queued again: JSCAN shows it, no client gets it

The journal of an original node has no record of deliveries, so a job may have been out with a worker. Such a job is
queued after its retry time, or at once after a controlled restart (`aof-enqueue-jobs-once`).

Another holder may have queued a job while this node was down, or given it to a worker. So jobs that others hold too
wait until this node has a link to every node that isn't failing, or until the node timeout has passed (that is their
requeue time). Then WILLQUEUE is sent for each, and it is queued half a second later if no holder objects.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.broker.core.acks import restore_ack
from penstock.broker.core.delivery import WARN_MS, enqueue, schedule
from penstock.broker.core.jobs import (
    ACKED,
    ACTIVE,
    AHEAD,
    BCAST_QUEUED,
    BCAST_WILLQUEUE,
    DELIVERED,
    JOB_BYTES,
    LISTED,
    QUEUED,
    STORED_FLAGS,
    Job,
    RecordCache,
    RecordShape,
)
from penstock.broker.core.membership import FAIL, NOADDR, PFAIL
from penstock.broker.core.node import NS_PER_MS, Node
from penstock.broker.core.owners import creator_among, set_owner
from penstock.broker.core.queues import Queue
from penstock.broker.core.registry import PAGE_MASK
from penstock.broker.core.tokens import join_claim
from penstock.wire.record import NODE_ID_BYTES, JobRecord, decode_record, split_record


class Change:
    """The last known state of a job, from the record of deliveries."""

    __slots__ = ("claim_key", "deliveries", "flags", "left_ms", "nacks", "requeue_wall_ms", "state", "token", "tries")

    def __init__(
        self,
        state: int,
        flags: int,
        nacks: int,
        deliveries: int,
        requeue_wall_ms: int,
        token: int,
        left_ms: int,
        tries: int,
        claim_key: bytes,
    ) -> None:
        self.state = state
        self.flags = flags
        self.nacks = nacks
        self.deliveries = deliveries
        self.requeue_wall_ms = requeue_wall_ms  # 0 = never
        self.token = token
        self.left_ms = left_ms  # until the requeue time, when this was written
        self.tries = tries
        self.claim_key = claim_key


class Trust(NamedTuple):
    """What the journal is good for."""

    knows_deliveries: bool  # there is a record of deliveries beside it
    complete: (
        bool  # nothing that was written can be missing: a clean stop, a crash of the process alone, or fsync always
    )
    enqueue_once: bool  # the operator says that this is a controlled restart


class Restorer:
    """Restores jobs one by one, and counts them. Call `flush` before the node is used."""

    def __init__(self, node: Node, trust: Trust, node_timeout_ms: int) -> None:
        self.node = node
        self.trust = trust
        self.node_timeout_ms = node_timeout_ms
        self.restored = 0
        self.expired = 0
        self.withheld = 0  # at-most-once jobs that may have been delivered
        self.unsaved: list[Job] = []  # their place follows from this start; a later one would place them differently
        self._unannounced: list[Job] = []
        self._cache = RecordCache()
        self._known_ids = node.cluster.ids
        self._my_prefix = node.cluster.my_id[:8]
        self._run: list[Job] = []  # consecutive jobs of one queue, which are put there together
        self._run_queue: Queue | None = None
        self._run_newest = 0

    def restore(self, job_id: bytes, data: bytes, change: Change | None, held: bytes | None) -> None:
        """Restore one job from its record, unless it exists. `held` has its holders, if they changed since the record.

        Raises RecordError if the record is damaged; then nothing is changed.
        """
        node = self.node
        body, ctime, expires, key = split_record(data)
        if held is not None and key:
            key += b"\0" + held  # a key contains its own length, so this can't be the key of another job
        shape = self._cache.shapes.get(key)
        if shape is None:
            record, _ = decode_record(data)
            body, ctime, expires = record.body, record.ctime, record.expires
            shape = self._shape(record, key, held)
        page = node.jobs.pages[job_id[11]][job_id[12] & PAGE_MASK]
        if job_id in page:
            return
        expires_at = expires * 1000 - node.wall_offset_ms
        if expires_at <= node.now_ms:
            self.expired += 1
            return
        job = Job(job_id, shape.queue, body, shape.rules, ctime, expires_at, shape.holders, ACTIVE, shape.flags)
        state = shape.state
        if change is None:
            job.nacks = shape.nacks
            job.deliveries = shape.deliveries
        else:
            state = change.state
            job.flags = change.flags & STORED_FLAGS
            job.nacks = change.nacks
            job.deliveries = change.deliveries
            job.tries = change.tries
        if job_id[2:10] == self._my_prefix:
            node.seen_ctime(ctime)
        page[job_id] = job
        node.jobs.count += 1
        node.memory.used_bytes += JOB_BYTES + len(body)
        self.restored += 1
        if change is None and state == ACTIVE and len(shape.holders.delivered) > 1:
            creator = creator_among(job_id, shape.holders.delivered)  # what came after isn't in the journal
            set_owner(node, job, creator if creator != node.cluster.my_id else b"")
        if state == ACKED:
            restore_ack(node, job)
        elif shape.rules.retry_s:
            self._place(job, state, change)
        else:
            self._place_at_most_once(job, state)

    def flush(self) -> None:
        """Put the jobs that are collected into their queue."""
        if self._run_queue is not None:
            self._run_queue.extend(self._run)
            self._run_queue = None
            self._run = []

    def finish(self) -> None:
        """Sort the jobs of each claim by delivery, and ask other nodes about the jobs that they hold too.

        Not before: nothing is sent while a journal is loaded, so the time for an answer would be over too early.
        """
        self.flush()
        for claim in self.node.claims.values():
            claim.jobs = dict(sorted(claim.jobs.items(), key=lambda item: item[1].token))
        for job in self._unannounced:
            job.requeue_at = self.node.now_ms + self.node_timeout_ms
            schedule(self.node, job)
        self.node.unannounced += self._unannounced
        announce_if_linked(self.node)

    def _shape(self, record: JobRecord, key: bytes, held: bytes | None) -> RecordShape:
        """Work out the shape of a record, and keep it if it has a key."""
        queue = self.node.queues.by_name.get(record.queue)
        name = queue.name if queue is not None else record.queue
        nodes = frozenset(record.nodes if held is None else _node_ids(held))
        holders = self.node.held_by((self._known_ids & nodes) | {self.node.cluster.my_id})
        shape = RecordShape(record, name, self._cache.rules_of(record), holders)
        self._cache.keep(key, shape)
        return shape

    def _place(self, job: Job, state: int, change: Change | None) -> None:
        node = self.node
        if state == QUEUED:
            if len(job.holders.delivered) > 1:
                job.flags |= BCAST_WILLQUEUE
                self._unannounced.append(job)
                return
            elif self.trust.knows_deliveries:
                self._queue(job)
                return
            elif self.trust.enqueue_once:
                enqueue(node, job)
                return
            else:
                job.requeue_at = node.after_retry(job.rules.retry_ms)
                self.unsaved.append(job)
        elif change is not None:
            # If the clock was set back, times don't become longer than they were.
            job.requeue_at = max(min(change.requeue_wall_ms - node.wall_offset_ms, node.now_ms + change.left_ms), 1)
            if len(job.holders.delivered) > 1 and job.requeue_at <= node.now_ms + WARN_MS:
                job.flags |= BCAST_WILLQUEUE  # too late for the warning before its own requeue time
                self._unannounced.append(job)
                return
            if change.token and job.requeue_at > node.now_ms:
                job.token = change.token
                job.flags |= change.flags & AHEAD
                if change.claim_key:
                    join_claim(node, change.claim_key, job)
        elif job.rules.delay_s and not job.flags & BCAST_QUEUED:
            job.requeue_at = self._release_at(job)
        else:
            job.requeue_at = node.after_retry(job.rules.retry_ms)
            if job.rules.delay_s:  # a copy of one whose delay may not be over
                job.requeue_at = max(job.requeue_at, self._release_at(job))
            self.unsaved.append(job)  # else its time would start again with every restart
        schedule(node, job)

    def _place_at_most_once(self, job: Job, state: int) -> None:
        node = self.node
        certain = self.trust.complete or self.trust.enqueue_once
        waiting = state == QUEUED or (job.rules.delay_s and not job.flags & BCAST_QUEUED)
        release_at = self._release_at(job) if job.rules.delay_s and state == ACTIVE else 0
        if job.flags & DELIVERED or not waiting:
            self.withheld += state == QUEUED
        elif release_at > node.now_ms:
            job.requeue_at = release_at
        elif certain:
            self._queue(job)
            return
        else:
            job.flags |= DELIVERED
            self.withheld += 1
            self.unsaved.append(job)
        schedule(node, job)

    def _release_at(self, job: Job) -> int:
        """Return when a delay ends, at least 1 (0: never). Clocks are truncated to milliseconds: late, not early.

        If the clock was set back, the delay doesn't become longer than it was.
        """
        delay_ms = job.rules.delay_s * 1000 + 1
        return max(min(job.ctime // NS_PER_MS - self.node.wall_offset_ms, self.node.now_ms) + delay_ms, 1)

    def _queue(self, job: Job) -> None:
        """Put a job back into its queue; nothing is counted."""
        node = self.node
        job.state = QUEUED
        job.flags |= BCAST_QUEUED | LISTED
        if job.rules.retry_s:
            job.requeue_at = node.after_retry(job.rules.retry_ms)
        queue = self._run_queue
        if queue is None or job.ctime <= self._run_newest or queue.name != job.queue:
            self.flush()
            queue = self._run_queue = node.queue(job.queue)
        job.queue = queue.name  # one object for all of its jobs
        self._run.append(job)
        self._run_newest = job.ctime
        schedule(node, job)


def _node_ids(data: bytes) -> list[bytes]:
    return [data[at : at + NODE_ID_BYTES] for at in range(0, len(data), NODE_ID_BYTES)]


def announce_if_linked(node: Node) -> None:
    """Ask about restored jobs now, if there are links to all nodes that can answer."""
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
