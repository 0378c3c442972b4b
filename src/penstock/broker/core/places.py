"""Where jobs are, as their holders tell each other with HAVEJOB: what each must know when another one fails.

A copy is known to wait in the queue of its owner (core.owners) unless the owner has said that it is out: a lease is
announced with WORKING, at once; a plain delivery with HAVEJOB, at most 100 ms late, unless the job is acked by then. A
job that came from another node is announced in the same way, since only the node that gave it knows of that. HAVEJOB
changes no timer, except where a job is queued, or about to be, on the node that hears of it: one of two gives way.

What was said on a link that is lost may be lost, too. So each new link begins with FROM_HERE, then comes all that the
other node can't know from copies, in steps, and ALL_TOLD at the end; a node that has missed that ASKS. Only between
ALL_TOLD and the next FROM_HERE are jobs of that node taken over (core.takeover). A node that has been started again
knows no more where its jobs were before: it says NOT_HERE of those that don't wait in its queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from penstock.broker.core.delivery import WARN_MS, tell_queued
from penstock.broker.core.jobs import (
    ACTIVE,
    BCAST_QUEUED,
    DELIVERED,
    GIVEN,
    GIVEN_BACK,
    OUT,
    OUT_THERE,
    QUEUED,
    TAKING,
    WAIT_REPL,
    Job,
    is_given_back,
    is_out,
)
from penstock.broker.core.membership import LINKED, PLACES_DUE, PLACES_TOLD, PLACES_UNDER_WAY, PLACES_UNTOLD, Peer
from penstock.broker.core.node import Node
from penstock.broker.core.outbox import NOBODY, tell_holders
from penstock.broker.core.owners import created_by, set_owner
from penstock.broker.core.replication import join_holders
from penstock.broker.core.requeueing import GRACE_MS, find_unfinished, gives_way, put_off
from penstock.broker.core.tokens import LEASE_MS_MAX
from penstock.wire import bus

ASK_MS: Final = 300
LOOKED_AT_A_CRON: Final = 20_000  # a few milliseconds of work
NO_JOB: Final = bytes(bus.JOB_ID_BYTES)
UNKNOWN: Final = -1


def tell_changes(node: Node) -> None:
    """The timer is due: tell the other holders of jobs that came or went where those are now."""
    telling = node.telling
    jobs, telling.jobs = telling.jobs, []
    for job in dict.fromkeys(jobs):
        if not job.token:  # else they were told with WORKING
            left_ms = _place(node, job)
            if left_ms != UNKNOWN:
                tell_holders(node, bus.HAVEJOB, job.id, job.holders.delivered, _flags(job), left_ms)


def _place(node: Node, job: Job) -> int:
    """Return what HAVEJOB says of a job: 0 if it waits here, for how long it is out, or UNKNOWN."""
    if job.state == QUEUED:
        return 0
    left_ms = job.requeue_at - node.now_ms
    if job.state != ACTIVE or left_ms <= 0:
        return UNKNOWN
    if job.flags & GIVEN:  # only to a node that doesn't say it itself
        is_mine = bool(job.holders.owner) and not _tells(node, job.holders.owner)
    else:
        is_mine = is_out(job) or is_given_back(job)
    return min(left_ms, LEASE_MS_MAX) if is_mine else UNKNOWN


def _flags(job: Job) -> int:
    return bus.GIVEN_BACK if job.state == QUEUED and job.flags & GIVEN_BACK else 0


def _tells(node: Node, node_id: bytes) -> bool:
    peer = node.cluster.peers.get(node_id)
    return peer is not None and bool(peer.abilities & bus.TAKES_OVER)


# All jobs, for a node with a new link.


def linked(node: Node, peer: Peer) -> None:
    """A link has opened, or it is known now what its node can do: what was said before may be lost."""
    if peer.places_told == PLACES_UNTOLD and peer.link == LINKED and peer.abilities & bus.TAKES_OVER:
        peer.places_told = PLACES_DUE
        node.outbox.send(peer, bus.HAVEJOB, bus.reference(NO_JOB), bus.FROM_HERE)
        if not node.telling.receivers:
            tell_all(node)


def ask(node: Node) -> None:
    """Ten times a second: ask nodes that have not told where their jobs are; it may have been ignored or lost."""
    for peer in node.cluster.others:
        if peer.places_known or peer.link != LINKED or not peer.abilities & bus.TAKES_OVER:
            continue
        if node.now_ms >= max(peer.linked_ms, peer.places_asked_ms) + ASK_MS:
            peer.places_asked_ms = node.now_ms
            node.outbox.send(peer, bus.HAVEJOB, bus.reference(NO_JOB), bus.ASKS)


def tell_all(node: Node) -> None:
    """When a link opens, then ten times a second: go on telling nodes with a new link where jobs are."""
    telling = node.telling
    if not telling.receivers:
        if not node.cluster.has_takers or node.refuses_copies:
            return
        fresh = [peer for peer in node.cluster.others if peer.places_told == PLACES_DUE]
        if not fresh:
            return
        for peer in fresh:
            peer.places_told = PLACES_UNDER_WAY
        telling.receivers = frozenset([peer.id for peer in fresh])
        telling.walk = all_jobs(node)
        telling.discards = node.outbox.discards
    receivers = telling.receivers
    looked_at = 0
    for job in islice(telling.walk, LOOKED_AT_A_CRON):
        looked_at += 1
        delivered = job.holders.delivered
        if len(delivered) < 2 or not job.rules.retry_s or _is_as_added(node, job):
            continue
        whom = delivered & receivers
        if whom:
            left_ms = _place(node, job)
            if left_ms == UNKNOWN and _may_be_expected(node, job):
                left_ms = bus.NOT_HERE
            if left_ms != UNKNOWN:
                node.outbox.add_reference(bus.HAVEJOB, whom, job.id, left_ms, _flags(job), delivered)
    if looked_at < LOOKED_AT_A_CRON:
        _end(node)


def _is_as_added(node: Node, job: Job) -> bool:
    """Whether a job waits here as its copies say."""
    return job.state == QUEUED and not job.deliveries and not job.nacks and created_by(job.id, node.cluster.my_id)


def _may_be_expected(node: Node, job: Job) -> bool:
    """Whether a job doesn't wait here, though a node that has been restarted may believe so."""
    if job.state != ACTIVE or (job.rules.delay_s and not job.flags & (DELIVERED | BCAST_QUEUED)):
        return False
    return not job.holders.owner or bool(job.flags & GIVEN) or created_by(job.id, node.cluster.my_id)


def _end(node: Node) -> None:
    telling = node.telling
    receivers, telling.receivers = telling.receivers, NOBODY
    is_whole = telling.discards == node.outbox.discards
    for peer in node.cluster.others:
        if peer.id in receivers and peer.places_told == PLACES_UNDER_WAY:  # else its link was lost meanwhile
            peer.places_told = PLACES_TOLD if is_whole else PLACES_DUE
            if is_whole:
                node.outbox.add_reference(bus.HAVEJOB, peer.alone, NO_JOB, 0, bus.ALL_TOLD)


def all_jobs(node: Node) -> Iterator[Job]:
    """Walk through all jobs, also while they come and go."""
    for page in node.jobs.flat:
        if page:
            yield from list(page.values())


# At the other holders.


def on_havejob(node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]) -> None:
    """HAVEJOB: note where jobs are."""
    if flags & bus.ASKS:
        if peer.places_told == PLACES_TOLD:
            peer.places_told = PLACES_DUE
        return
    if flags & (bus.FROM_HERE | bus.ALL_TOLD):
        peer.places_known = bool(flags & bus.ALL_TOLD)
        return
    for job_id, left_ms in refs:
        job = find_unfinished(node, peer, job_id)
        if job is None or job.state == WAIT_REPL:
            continue
        join_holders(node, job, frozenset(nodes or peer.alone))
        if left_ms == bus.NOT_HERE:
            if job.state == ACTIVE and job.holders.owner == peer.id:
                job.flags |= OUT_THERE
            continue
        if left_ms and (is_given_back(job) or (job.state == QUEUED and job.flags & GIVEN_BACK)):
            continue  # its client gave it back here, and the sender hasn't heard of that
        if _is_about_to_queue(node, job):
            if not left_ms and job.state == QUEUED and not gives_way(job_id, node.cluster.my_id, peer.id):
                tell_queued(node, job, 0, peer.alone)
                continue
            put_off(node, job, left_ms + GRACE_MS if left_ms else job.rules.retry_ms, True)
        elif job.flags & OUT and job.requeue_at > node.now_ms:  # a client here works on it
            if not left_ms and not flags & bus.GIVEN_BACK:  # else the client may have given it back there
                mine_ms = job.requeue_at - node.now_ms
                node.outbox.add_reference(bus.WORKING, peer.alone, job_id, mine_ms, bus.tries_flags(job.tries))
            continue
        if job.state == ACTIVE:
            set_owner(node, job, peer.id)
            job.flags = job.flags | OUT_THERE if left_ms else job.flags & ~OUT_THERE


def _is_about_to_queue(node: Node, job: Job) -> bool:
    """Whether a job is queued here, or will be soon: the answer to our WILLQUEUE may be lost with a link."""
    if job.state == QUEUED or job.flags & TAKING:
        return True
    return job.state == ACTIVE and not job.flags & OUT and job.requeue_at <= node.now_ms + 2 * WARN_MS
