"""Acknowledging jobs, and removing them: expiry, deletion, eviction and finished acks all end in `remove`.

A job that only this node holds is finished, and forgotten, with its ack. One that others may hold stays as `acked`
until all of them have the ack, so that none of them delivers it again:

SETACK   to every holder that has not confirmed, at growing intervals, and at once when a link opens
GOTACK   the answer: the job is acked there too, or unknown
DELJOB   to every holder once all have confirmed: the job may be removed

SETACK and GOTACK name the nodes that the sender believes to hold the job, so that the node which collects the
confirmations learns of all of them; an original node gets only their number. A holder that only other nodes know, since
one of the two is new in the cluster, is left to those: they are asked to collect (a SETACK that counts no holders), and
this node waits for their DELJOB. Nodes that the cluster has forgotten are not waited for.

The ack of a job that this node doesn't know is kept as a dummy: a job without queue, body or holders, for which all
nodes are asked.

An ack waits for a holder that doesn't answer until the job would expire, but at most ACK_MS_MAX, so that acks of jobs
which never expire don't stay forever. A holder that was away for longer may deliver the job again.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core import refusals
from penstock.broker.core.ids import MINUTES_MAX, ttl_from_id
from penstock.broker.core.jobs import ACK_NOTED, ACKED, GONE, JOB_BYTES, QUEUED, WAIT_REPL, Confirming, Job, Rules
from penstock.broker.core.membership import Peer
from penstock.broker.core.node import NS_PER_MS, Node
from penstock.broker.core.outbox import NOBODY
from penstock.broker.core.owners import forget_copy, set_holders
from penstock.broker.core.refusals import Refused
from penstock.broker.core.tokens import end_lease
from penstock.wire import bus

COLLECT_MS: Final = 1000
COLLECT_MS_MAX: Final = 180_000
COLLECT_TRIES_MAX: Final = 10  # the exponent stops growing here; the interval is capped long before
# 45 days: the longest time to live that a job id can carry, so the same limit holds for acks of unknown jobs. It starts
# again with the process, unless the journal was rewritten since the ack.
ACK_MS_MAX: Final = MINUTES_MAX * 60_000
DUMMY_RULES: Final = Rules.of(1, 0, 1)


def ack(node: Node, job: Job) -> bool:
    """Acknowledge a job for a client; False if it was acked before (then its holders are asked again)."""
    if job.state == ACKED:
        collect(node, job)
        return False
    if node.events is not None:
        node.events.acked(job)
    if job.holders is node.alone:
        if node.cluster.size > 1:
            node.finished.add(job.id)  # a node that keeps no copy itself may have sent another one
        remove(node, job)
        return True
    _finish(node, job, is_ours=True)
    collect(node, job)
    return True


def _finish(node: Node, job: Job, is_ours: bool) -> None:
    """Make a job acked, in any state.

    If the ack came to this node first (`is_ours`), this node tells the others until all have it, also after a restart.
    """
    state = job.state
    is_written = state != WAIT_REPL or is_handover(job)
    if state == WAIT_REPL:
        end_replication(node, job)
    job.state = ACKED
    job.expires_at = min(job.expires_at, node.now_ms + ACK_MS_MAX)
    if node.journal is not None:
        if is_ours:
            job.flags |= ACK_NOTED
            if not is_written:
                node.journal.added([job])
            node.journal.changed(job)
        elif is_written:
            node.journal.removed(job.id)
    if state == QUEUED:
        node.queues.by_name[job.queue].drop()
    if job.token:
        end_lease(node, job)
    set_holders(node, job, Confirming(job.holders.delivered, {node.cluster.my_id}, None))
    node.acked[job.id] = job


def ack_unknown(node: Node, job_id: bytes) -> None:
    """Keep the ack of a job that this node doesn't know, and ask all nodes for the job."""
    ttl_s, is_retried = ttl_from_id(job_id)
    if node.cluster.size == 1 or node.cluster.leaving or not is_retried or job_id in node.finished:
        return
    if node.events is not None:
        node.events.acked_unknown(job_id)
    expires_at = node.now_ms + max(ttl_s, 60) * 1000
    job = Job(
        job_id,
        b"",
        b"",
        DUMMY_RULES,
        node.wall_ms * NS_PER_MS,
        expires_at,
        Confirming(NOBODY, {node.cluster.my_id}, None),
        ACKED,
    )
    node.jobs.put(job)
    node.acked[job_id] = job
    node.memory.used_bytes += JOB_BYTES
    collect(node, job)


def restore_ack(node: Node, job: Job) -> None:
    """Go on sending an ack that was restored from the journal."""
    job.state = ACKED
    job.expires_at = min(job.expires_at, node.now_ms + ACK_MS_MAX)
    job.flags |= ACK_NOTED
    job.holders = Confirming(job.holders.delivered, {node.cluster.my_id}, None)
    node.acked[job.id] = job
    _set_timer(node, job)


def is_dummy(job: Job) -> bool:
    """Whether a record is only the ack of a job that isn't known here."""
    return job.state == ACKED and not job.holders.delivered


def _unconfirmed(node: Node, holders: Confirming) -> frozenset[bytes]:
    """Return the nodes that may not have the ack yet."""
    return ((holders.delivered or node.cluster.ids) & node.cluster.ids) - holders.confirmed


def _note_unknown_holders(holders: Confirming, peer: Peer, named: frozenset[bytes]) -> bool:
    """Note holders that a peer knows and this node doesn't; whether there is a new one."""
    before = holders.unknown_holders or {}
    holders.unknown_holders = {node_id: who for node_id, who in before.items() if who != peer.id}
    holders.unknown_holders.update(dict.fromkeys(named, peer.id))
    return not named.issubset(before)


def _peers_knowing_them(node: Node, holders: Confirming) -> frozenset[bytes]:
    """Return the peers that know the holders which this node still doesn't know."""
    if not holders.unknown_holders:
        return NOBODY
    ids = node.cluster.ids
    met = ids.intersection(holders.unknown_holders)
    if met:
        holders.delivered |= met
        holders.unknown_holders = {
            node_id: who for node_id, who in holders.unknown_holders.items() if node_id not in met
        }
    return ids.intersection(holders.unknown_holders.values())


def collect(node: Node, job: Job) -> None:
    """Remove an acked job if every holder has the ack; else ask them now, and again later."""
    holders = job.holders
    assert isinstance(holders, Confirming)
    peers_knowing_them = _peers_knowing_them(node, holders)
    missing = _unconfirmed(node, holders)
    if not missing and not peers_knowing_them:
        _collected(node, job)
        return
    if missing:
        delivered = holders.delivered & node.cluster.ids
        node.outbox.add_reference(bus.SETACK, missing, job.id, len(holders.delivered), 0, delivered)
    if peers_knowing_them:
        node.outbox.add_reference(bus.SETACK, peers_knowing_them, job.id, 0)
    wait_ms = min(COLLECT_MS << holders.gc_tries, COLLECT_MS_MAX)
    holders.gc_tries = min(holders.gc_tries + 1, COLLECT_TRIES_MAX)
    node.timers.set(job, min(node.after_retry(wait_ms), job.expires_at))


def _collected(node: Node, job: Job) -> None:
    """All holders have the ack: all may remove the job."""
    delivered = job.holders.delivered
    if len(delivered) > 1:
        node.outbox.add_reference(bus.DELJOB, delivered, job.id)
    node.finished.add(job.id)
    remove(node, job)


def collect_again(node: Node) -> None:
    """Collect all pending acks soon: a holder is back, or has left the cluster."""
    for job in node.acked.values():
        holders = job.holders
        if isinstance(holders, Confirming):
            holders.gc_tries = 0
            node.timers.set(job, node.now_ms + 1)


def tell_acked(node: Node, peer: Peer, job_id: bytes, job: Job | None) -> None:
    """Send SETACK to a peer that doesn't know the end of a job: it is acked here, or finished and removed (None)."""
    holders = job.holders.delivered if job is not None else node.alone.delivered | peer.alone
    node.outbox.add_reference(bus.SETACK, peer.alone, job_id, len(holders), 0, holders)


def on_setack(node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]) -> None:
    """SETACK: another node has acked jobs."""
    theirs = frozenset(nodes or ())
    unknown = theirs.difference(node.cluster.ids, node.cluster.blacklist)
    for job_id, count in refs:
        job = node.jobs.get(job_id)
        if job is None:
            node.finished.add(job_id)
            node.outbox.add_reference(bus.GOTACK, peer.alone, job_id, 0)
            continue
        if job.state != ACKED:
            _finish(node, job, is_ours=not count)
            if not job.wake_at:  # else the timer it has is soon enough: the sender collects, and we only if it can't
                _set_timer(node, job)
        holders = job.holders
        assert isinstance(holders, Confirming)
        was_dummy = not holders.delivered
        if not was_dummy:
            holders.delivered |= theirs & node.cluster.ids
            if theirs or count:
                holders.confirmed.add(peer.id)
            if unknown:
                _note_unknown_holders(holders, peer, unknown)
        if nodes is not None or peer.abilities & bus.CAN_MANY or len(holders.delivered) <= count or not count:
            known = holders.delivered & node.cluster.ids
            node.outbox.add_reference(bus.GOTACK, peer.alone, job_id, 0 if was_dummy else 1, 0, known)
        if holders.delivered == node.alone.delivered:
            remove(node, job)  # there is no other holder, so no DELJOB will come
        elif not was_dummy and (not count or (nodes is None and len(holders.delivered) > count)):
            if _peers_knowing_them(node, holders):
                _set_timer(node, job)  # it may be the one that we asked: asking back would go in a circle
            else:
                collect(node, job)  # we know of more holders than it does


def _set_timer(node: Node, job: Job) -> None:
    node.timers.set(job, min(node.after_retry(COLLECT_MS), job.expires_at))


def on_gotack(node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]) -> None:
    """GOTACK: another node confirms acks."""
    theirs = frozenset(nodes or ())
    unknown = theirs.difference(node.cluster.ids, node.cluster.blacklist)
    for job_id, known in refs:
        job = node.jobs.get(job_id)
        if job is None or job.state != ACKED:
            continue
        holders = job.holders
        assert isinstance(holders, Confirming)
        if not holders.delivered:
            if known:
                remove(node, job)  # a node that has the job collects from now on
                continue
            holders.confirmed.add(peer.id)
        else:
            more = (theirs & node.cluster.ids) - holders.delivered
            if more:
                holders.delivered |= more
            is_news = bool(more)
            if unknown or holders.unknown_holders:  # a peer that has forgotten them, or the job, can't help any more
                is_news |= _note_unknown_holders(holders, peer, unknown)
            if known or peer.id in holders.delivered:
                holders.delivered |= peer.alone
                holders.confirmed.add(peer.id)
            if is_news:
                collect(node, job)
                continue
        if not _peers_knowing_them(node, holders) and not _unconfirmed(node, holders):
            _collected(node, job)


# Removing jobs.


def remove(node: Node, job: Job) -> None:
    """Remove a job in any state. That is journaled, unless the job never was, or its end was already."""
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
        holders.addition = None  # a cycle would keep job and addition in memory
    if holders.owner:
        forget_copy(node, job)
    node.timers.cancel(job)
    node.jobs.remove(job)
    node.memory.used_bytes -= JOB_BYTES + len(job.body)
    job.body = b""  # queue order and timers may refer to the record for a while


def is_handover(job: Job) -> bool:
    """Whether a job waits for copies because this node drains; unlike a new job, it is in the journal."""
    holders = job.holders
    return isinstance(holders, Confirming) and holders.addition is not None and holders.addition.is_handover


def end_replication(node: Node, job: Job, refused: Refused | None = None) -> None:
    """End a job's wait for copies. Its producer is answered when all jobs of the same add are done."""
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


def delete_elsewhere(node: Node, job_id: bytes) -> None:
    """Send DELJOB to all other holders of a job, without confirmation; to all nodes if this one doesn't know it."""
    job = node.jobs.get(job_id)
    holders = node.cluster.ids if job is None else job.holders.delivered
    node.outbox.add_reference(bus.DELJOB, holders, job_id)
    node.finished.add(job_id)


def delete(node: Node, job: Job, is_ack: bool) -> None:
    """Remove a job for a client, here only; `is_ack`: because it is done."""
    if node.events is not None and job.state not in (ACKED, WAIT_REPL):
        if is_ack:
            node.events.acked(job)
        else:
            node.events.removed(job)
    remove(node, job)


def remove_all(node: Node) -> None:
    """Remove all jobs and queues for good, also from the journal."""
    if node.events is not None:
        for job in node.jobs:
            if job.state not in (ACKED, WAIT_REPL):
                node.events.removed(job)
    if node.journal is not None:
        for job in node.jobs:
            if job.state not in (ACKED, WAIT_REPL) or job.flags & ACK_NOTED or is_handover(job):
                node.journal.removed(job.id)
        for queue in node.queues.by_name.values():
            if queue.pause:
                node.journal.paused(queue.name, 0)
    drop_all(node)


def drop_all(node: Node) -> None:
    """Empty the node. Waiting consumers are answered as at their timeout, producers that their job was removed."""
    for job in node.jobs:
        if job.state == WAIT_REPL:
            end_replication(node, job, Refused(*refusals.JOB_REMOVED))
        job.state = GONE
        job.claim = None  # a cycle would keep job and claim in memory
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
    node.copies.clear()
    node.memory.used_bytes = node.memory.base_bytes
    for waiter in waiters:
        node.timers.cancel(waiter)
        waiter.queues = ()
        node.port.answer(waiter, None)
