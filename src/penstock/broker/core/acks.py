"""Acknowledging jobs.

A job that only this node holds is finished, and forgotten, with its ack. One that others may hold stays as `acked`
until all of them have the ack, so that none of them delivers it again:

SETACK   to every holder that has not confirmed, at growing intervals, and at once when a link comes up
GOTACK   the answer: it is acked here too, or never was here
DELJOB   to every holder once all have confirmed: now it may be forgotten

Our nodes tell each other with SETACK and GOTACK which nodes they believe to hold the job, so that whoever collects
learns of all of them; to an original node the size of that set must do. A holder that only others know, since one of
the two is new in the cluster, is left to them: they are asked to collect (a SETACK that counts no holders), and this
node waits for their DELJOB. Nodes that the cluster has forgotten are not waited for.

The ack of a job that isn't known here is kept as a dummy: a job without queue, body or holders, which asks everybody.

An ack waits for a holder that doesn't answer until the job would expire, but not longer than ACK_MS_MAX, so that jobs
which never expire leave nothing for ever. A holder that was away for longer may deliver the job again.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core.ids import MINUTES_MAX, ttl_from_id
from penstock.broker.core.jobs import ACK_NOTED, ACKED, JOB_BYTES, QUEUED, WAIT_REPL, Confirming, Job, Rules
from penstock.broker.core.membership import Peer
from penstock.broker.core.node import NS_PER_MS, Node
from penstock.broker.core.outbox import NOBODY
from penstock.broker.core.removal import end_replication, is_handover, remove
from penstock.broker.core.tokens import end_lease
from penstock.wire import bus

COLLECT_MS: Final = 1000
COLLECT_MS_MAX: Final = 180_000
COLLECT_TRIES_MAX: Final = 10  # the exponent stops growing here; the interval is capped long before
# 45 days: what the id of a job that isn't known here can tell of its time to live at most, so all acks end alike. It
# begins again at a restart, unless the journal was rewritten since the ack.
ACK_MS_MAX: Final = MINUTES_MAX * 60_000
DUMMY_RULES: Final = Rules.of(1, 0, 1)


def ack(node: Node, job: Job) -> bool:
    """Finish a job for a client; False if it was acked already (then its holders are asked again)."""
    if job.state == ACKED:
        collect(node, job)
        return False
    if job.holders is node.alone:
        if node.cluster.size > 1:
            node.finished.add(job.id)  # another copy of it may be on its way, from a node that keeps none
        remove(node, job)
        return True
    _finish(node, job, is_ours=True)
    collect(node, job)
    return True


def _finish(node: Node, job: Job, is_ours: bool) -> None:
    """Make a job acked, whatever it was doing.

    If the ack came to us first, we are the one to tell the others until everybody has it, also after a restart.
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
    job.holders = Confirming(job.holders.delivered, {node.cluster.my_id}, None)
    node.acked[job.id] = job


def ack_unknown(node: Node, job_id: bytes) -> None:
    """Keep the ack of a job that isn't known here, and ask everybody for it."""
    ttl_s, is_retried = ttl_from_id(job_id)
    if node.cluster.size == 1 or node.cluster.leaving or not is_retried or job_id in node.finished:
        return
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
    """Go on telling others of an ack that a journal brought back."""
    job.state = ACKED
    job.expires_at = min(job.expires_at, node.now_ms + ACK_MS_MAX)
    job.flags |= ACK_NOTED
    job.holders = Confirming(job.holders.delivered, {node.cluster.my_id}, None)
    node.acked[job.id] = job
    _set_timer(node, job)


def is_dummy(job: Job) -> bool:
    """Tell whether a record is only the ack of a job that isn't known here."""
    return job.state == ACKED and not job.holders.delivered


def _unconfirmed(node: Node, holders: Confirming) -> frozenset[bytes]:
    """Give the nodes that may not have the ack yet."""
    return ((holders.delivered or node.cluster.ids) & node.cluster.ids) - holders.confirmed


def _note_strangers(holders: Confirming, peer: Peer, named: frozenset[bytes]) -> bool:
    """Note holders that another node knows and this one doesn't; tells whether there is a new one."""
    before = holders.strangers or {}
    holders.strangers = {node_id: who for node_id, who in before.items() if who != peer.id}
    holders.strangers.update(dict.fromkeys(named, peer.id))
    return not named.issubset(before)


def _witnesses(node: Node, holders: Confirming) -> frozenset[bytes]:
    """Give the nodes that know holders which this one still doesn't."""
    if not holders.strangers:
        return NOBODY
    ids = node.cluster.ids
    met = ids.intersection(holders.strangers)
    if met:
        holders.delivered |= met
        holders.strangers = {node_id: who for node_id, who in holders.strangers.items() if node_id not in met}
    return ids.intersection(holders.strangers.values())


def collect(node: Node, job: Job) -> None:
    """Forget an acked job if every holder has the ack; else ask them, and again later."""
    holders = job.holders
    assert isinstance(holders, Confirming)
    witnesses = _witnesses(node, holders)
    missing = _unconfirmed(node, holders)
    if not missing and not witnesses:
        _collected(node, job)
        return
    if missing:
        delivered = holders.delivered & node.cluster.ids
        node.outbox.tell(bus.SETACK, missing, job.id, len(holders.delivered), 0, delivered)
    if witnesses:
        node.outbox.tell(bus.SETACK, witnesses, job.id, 0)
    wait_ms = min(COLLECT_MS << holders.gc_tries, COLLECT_MS_MAX)
    holders.gc_tries = min(holders.gc_tries + 1, COLLECT_TRIES_MAX)
    node.timers.set(job, min(node.after_retry(wait_ms), job.expires_at))


def _collected(node: Node, job: Job) -> None:
    """Everybody has the ack: all may forget the job."""
    delivered = job.holders.delivered
    if len(delivered) > 1:
        node.outbox.tell(bus.DELJOB, delivered, job.id)
    node.finished.add(job.id)
    remove(node, job)


def collect_again(node: Node) -> None:
    """Ask soon for all acks that are not everywhere: somebody who was missing is there, or is out of the cluster."""
    for job in node.acked.values():
        holders = job.holders
        if isinstance(holders, Confirming):
            holders.gc_tries = 0
            node.timers.set(job, node.now_ms + 1)


def heard_setack(node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]) -> None:
    """Take acks from another node."""
    theirs = frozenset(nodes or ())
    strangers = theirs.difference(node.cluster.ids, node.cluster.blacklist)
    for job_id, count in refs:
        job = node.jobs.get(job_id)
        if job is None:
            node.finished.add(job_id)
            node.outbox.tell(bus.GOTACK, peer.alone, job_id, 0)
            continue
        if job.state != ACKED:
            _finish(node, job, is_ours=not count)
            if not job.wake_at:  # else its next time will do: the sender collects, and we only if it can't
                _set_timer(node, job)
        holders = job.holders
        assert isinstance(holders, Confirming)
        was_dummy = not holders.delivered
        if not was_dummy:
            holders.delivered |= theirs & node.cluster.ids
            if theirs or count:
                holders.confirmed.add(peer.id)
            if strangers:
                _note_strangers(holders, peer, strangers)
        if nodes is not None or peer.abilities & bus.CAN_MANY or len(holders.delivered) <= count or not count:
            known = holders.delivered & node.cluster.ids
            node.outbox.tell(bus.GOTACK, peer.alone, job_id, 0 if was_dummy else 1, 0, known)
        if holders.delivered == node.alone.delivered:
            remove(node, job)  # nobody else has it, so nobody will tell us that all have the ack
        elif not was_dummy and (not count or (nodes is None and len(holders.delivered) > count)):
            if _witnesses(node, holders):
                _set_timer(node, job)  # it may be the one that we asked: not in a circle
            else:
                collect(node, job)  # we know of more holders than it does


def _set_timer(node: Node, job: Job) -> None:
    node.timers.set(job, min(node.after_retry(COLLECT_MS), job.expires_at))


def heard_gotack(node: Node, peer: Peer, flags: int, nodes: list[bytes] | None, refs: list[tuple[bytes, int]]) -> None:
    """Take confirmations of acks."""
    theirs = frozenset(nodes or ())
    strangers = theirs.difference(node.cluster.ids, node.cluster.blacklist)
    for job_id, known in refs:
        job = node.jobs.get(job_id)
        if job is None or job.state != ACKED:
            continue
        holders = job.holders
        assert isinstance(holders, Confirming)
        if not holders.delivered:
            if known:
                remove(node, job)  # somebody who has the job takes it from here
                continue
            holders.confirmed.add(peer.id)
        else:
            more = (theirs & node.cluster.ids) - holders.delivered
            if more:
                holders.delivered |= more
            is_news = bool(more)
            if strangers or holders.strangers:  # who has forgotten them, or the job, is no help any more
                is_news |= _note_strangers(holders, peer, strangers)
            if known or peer.id in holders.delivered:
                holders.delivered |= peer.alone
                holders.confirmed.add(peer.id)
            if is_news:
                collect(node, job)
                continue
        if not _witnesses(node, holders) and not _unconfirmed(node, holders):
            _collected(node, job)
