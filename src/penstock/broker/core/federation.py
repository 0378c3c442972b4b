"""Jobs move to where somebody waits for them.

A node whose clients wait asks the others (NEEDJOBS): everybody at first and then less and less often, those who gave it
jobs lately whenever it runs dry. Whoever has some gives a part of them (YOURJOBS); the giver keeps its copy as an
active one, unless the job may be delivered once only.

Our nodes also remember who asked, with how many clients waiting: a job that is queued there later, and that nobody
there waits for, is sent on at once. A request stands until so many jobs were sent, or for 45 s. So a waiting client
gets a new job within a message's time, and nobody has to ask over and over. A node that is sent a job when nobody waits
any more says so to all, and passes the job on to whoever does.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core.copies import copy_flags, message_record, read_copies
from penstock.broker.core.delivery import enqueue, schedule
from penstock.broker.core.exchange import EXCHANGE_BYTES, WANT_MS, Exchange
from penstock.broker.core.jobs import ACKED, ACTIVE, BCAST_QUEUED, BCAST_WILLQUEUE, GIVEN, OUT, WAIT_REPL, Job
from penstock.broker.core.membership import LEAVING, LINKED, Peer
from penstock.broker.core.node import Node
from penstock.broker.core.queues import PAUSED_OUT, Queue
from penstock.broker.core.removal import end_replication, remove
from penstock.broker.core.replication import join_holders, note_copies, register_copy
from penstock.wire import bus

FETCH_MIN: Final = 5
FETCH_MAX: Final = 100  # an original node has no room for more
ASK_ALL_MS: Final = 2000
ASK_ALL_MS_MAX: Final = 30_000
ASK_ORIGINALS_MS_MAX: Final = 2000  # they forget a request at once
ASK_TRIES_MAX: Final = 6  # exponents stop here: the intervals are at their largest
ASK_SOME_MS: Final = 25
ASK_SOME_MS_MAX: Final = 2000
NEWS_MS: Final = 100  # more waiting clients than were told of: everybody hears of it, this often at most
WAITERS_MAX: Final = 255


def exchange_of(node: Node, queue: Queue) -> Exchange:
    """Give a queue's exchange with others, made when it is first needed."""
    exchange = queue.exchange
    if exchange is None:
        exchange = queue.exchange = Exchange(queue)
        node.memory.used_bytes += EXCHANGE_BYTES
    return exchange


# Asking.


def note_wait(node: Node, queue: Queue, timeout_ms: int) -> None:
    """Note that a client will wait for so long; 0 means for ever."""
    exchange = exchange_of(node, queue)
    exchange.until_ms = max(exchange.until_ms, node.now_ms + (timeout_ms or WANT_MS))


def need_jobs(node: Node, queue: Queue, is_waited_for: bool) -> None:
    """Ask others for jobs: clients wait here, or the last job has just been fetched."""
    if node.cluster.size == 1 or node.cluster.leaving or queue.pause & PAUSED_OUT:
        return
    exchange, now_ms = exchange_of(node, queue), node.now_ms
    rate = exchange.rate(now_ms)
    if not is_waited_for and not rate:
        return
    waiters = min(len(queue.waiters), WAITERS_MAX)
    sources = exchange.fresh_sources(now_ms)
    if is_waited_for and _may_ask_all(node, exchange, waiters):
        _ask_all(node, exchange, waiters)
    elif sources and (not is_waited_for or waiters > exchange.announced or _may_ask_some(exchange, now_ms)):
        count = min(max(rate // len(sources), FETCH_MIN), FETCH_MAX)
        exchange.asked_some_ms = now_ms
        exchange.asked_some_tries = min(exchange.asked_some_tries + 1, ASK_TRIES_MAX)
        for source in sources:
            _ask(node, node.cluster.peers.get(source), queue.name, count, waiters, _wait_ms(node, exchange))
        exchange.announced = max(exchange.announced, waiters)
    if queue.waiters:
        _ask_again_later(node, exchange, waiters)


def _may_ask_all(node: Node, exchange: Exchange, waiters: int) -> bool:
    if not exchange.asked_all_ms:
        return True
    passed_ms = node.now_ms - exchange.asked_all_ms
    if waiters > exchange.announced and passed_ms >= NEWS_MS and not exchange.sources:
        return True
    return passed_ms >= _ask_all_ms(node, exchange)


def _ask_all_ms(node: Node, exchange: Exchange) -> int:
    most = ASK_ALL_MS_MAX
    if any(not peer.abilities & bus.CAN_MANY for peer in node.cluster.others):
        most = ASK_ORIGINALS_MS_MAX
    return min(ASK_ALL_MS << exchange.asked_all_tries, most)


def _may_ask_some(exchange: Exchange, now_ms: int) -> bool:
    if not exchange.asked_some_tries:
        return True
    pause_ms = min(ASK_SOME_MS << exchange.asked_some_tries, ASK_SOME_MS_MAX)
    return now_ms - exchange.asked_some_ms >= pause_ms


def _ask_all(node: Node, exchange: Exchange, waiters: int) -> None:
    exchange.asked_all_ms = node.now_ms
    exchange.asked_all_tries = min(exchange.asked_all_tries + 1, ASK_TRIES_MAX)
    exchange.announced = waiters
    for peer in node.cluster.others:
        _ask(node, peer, exchange.queue.name, 1, waiters, _wait_ms(node, exchange))


def _wait_ms(node: Node, exchange: Exchange) -> int:
    """Tell how long clients will wait here, as far as we know."""
    return min(max(exchange.until_ms - node.now_ms, 0), WANT_MS)


def _ask(node: Node, peer: Peer | None, name: bytes, count: int, waiters: int, wait_ms: int) -> None:
    if peer is not None and peer.link == LINKED:
        flags = 0
        if waiters and peer.abilities & bus.CAN_MANY:
            units = min(max(1, -(-wait_ms // bus.WAIT_UNIT_MS)), bus.BYTE_MAX)
            flags = waiters << bus.WAITERS_SHIFT | units << bus.WAIT_SHIFT
        node.outbox.say(peer, bus.NEEDJOBS, bus.named(count, name), flags)


def _ask_again_later(node: Node, exchange: Exchange, waiters: int) -> None:
    pause_ms = exchange.asked_all_ms + _ask_all_ms(node, exchange) - node.now_ms
    if waiters > exchange.announced:
        pause_ms = min(pause_ms, NEWS_MS)
    if exchange.sources:
        pause_ms = min(pause_ms, ASK_SOME_MS << exchange.asked_some_tries)
    node.timers.set(exchange, node.now_ms + max(1, pause_ms))


def wake_exchange(node: Node, exchange: Exchange) -> None:
    """Ask again, if somebody still waits."""
    if exchange.queue.waiters:
        need_jobs(node, exchange.queue, True)


def ask_peer(node: Node, peer: Peer) -> None:
    """Tell a node that has just been linked to what clients wait for here."""
    for queue in node.queues.by_name.values():
        if queue.waiters and not node.cluster.leaving:
            waiters = min(len(queue.waiters), WAITERS_MAX)
            _ask(node, peer, queue.name, 1, waiters, _wait_ms(node, exchange_of(node, queue)))


def _withdraw(node: Node, exchange: Exchange) -> None:
    """Tell everybody that nobody waits here any more."""
    exchange.announced = 0
    for peer in node.cluster.others:
        if peer.abilities & bus.CAN_MANY:
            node.outbox.say(peer, bus.NEEDJOBS, bus.named(0, exchange.queue.name))


# Giving.


def heard_needjobs(node: Node, peer: Peer, message: bus.Message) -> None:
    """Give jobs to a node that asks, or remember that it did."""
    count, name = bus.name_of(message)
    waiters = message.flags >> bus.WAITERS_SHIFT
    wait_ms = (message.flags >> bus.WAIT_SHIFT & bus.BYTE_MAX) * bus.WAIT_UNIT_MS
    queue = node.queues.by_name.get(name)
    if queue is None and waiters:
        queue = node.queue(name)
    if queue is None:
        return
    if waiters:
        exchange_of(node, queue).wanted[peer.id] = (waiters, node.now_ms + wait_ms)
    exchange = queue.exchange
    if not count and message.abilities:
        if exchange is not None:
            exchange.wanted.pop(peer.id, None)
        return
    if not queue.length or queue.pause & PAUSED_OUT:
        return
    if exchange is not None and not waiters and exchange.rate(node.now_ms):
        return  # we fetch them ourselves; a client that waits there is another matter: nobody waits here
    if peer.link != LINKED:
        return  # it can ask us, but we can't give it anything yet
    count = min(count, FETCH_MAX)
    _give(node, queue, peer, count if queue.length >= 2 * count else max(1, queue.length // 2))


def give_wanted(node: Node, queue: Queue) -> None:
    """Send jobs that nobody here waits for to nodes that wait for them."""
    exchange = queue.exchange
    if exchange is None or queue.pause & PAUSED_OUT or not exchange.is_wanted(node.now_ms):
        return
    for peer_id, (count, until_ms) in list(exchange.wanted.items()):
        peer = node.cluster.peers.get(peer_id)
        if peer is None or peer.link != LINKED or peer.flags & LEAVING:
            del exchange.wanted[peer_id]
            continue
        given = _give(node, queue, peer, min(count, queue.length, FETCH_MAX))
        del exchange.wanted[peer_id]
        if given < count:
            exchange.wanted[peer_id] = (count - given, until_ms)  # behind the others now
        if not queue.length:
            return


def _give(node: Node, queue: Queue, peer: Peer, count: int) -> int:
    """Hand jobs over, and tell how many."""
    jobs = queue.take(count)
    queue.accessed_ms = node.now_ms
    queue.jobs_out += len(jobs)
    kept: list[Job] = []
    for job in jobs:
        if job.rules.retry_s:  # there its time begins anew, so here as well
            join_holders(node, job, peer.alone)
            job.flags = job.flags & ~OUT | GIVEN | BCAST_WILLQUEUE
            job.requeue_at = node.after_retry(job.rules.retry_ms)
            schedule(node, job)
            kept.append(job)
        node.outbox.give(bus.YOURJOBS, peer.alone, message_record(node, job), copy_flags(job))
        if not job.rules.retry_s:
            remove(node, job)
    if kept and node.journal is not None:
        node.journal.delivered(kept)
    if queue.exchange is not None and not queue.length:
        node.ready[queue] = None
    return len(jobs)


def heard_yourjobs(node: Node, peer: Peer, message: bus.Message) -> None:
    """Take jobs that another node hands over, and queue them."""
    is_new = peer.hands_over(message.sequence)
    imported: dict[Queue, int] = {}
    fresh: list[Job] = []
    for copy in read_copies(node, message):
        job = node.jobs.get(copy.id)
        if (job is None and copy.id in node.finished) or (job is not None and job.state == ACKED):
            holders = job.holders.delivered if job is not None else node.alone.delivered | peer.alone
            node.outbox.tell(bus.SETACK, peer.alone, copy.id, len(holders), 0, holders)
            continue
        if job is None:
            if not copy.kind.rules.retry_s and not is_new:
                continue  # it came twice, and may be delivered once only
            job = register_copy(node, copy, message.flags & ~bus.QUEUE_IT)
            fresh.append(job)
        elif job.state == WAIT_REPL and not copy.kind.rules.retry_s:
            end_replication(node, job)  # it went to another node to be queued there, and comes back to who waits here
            job.state = ACTIVE
            job.holders = node.alone
            fresh.append(job)
        else:
            join_holders(node, job, copy.kind.nodes)
            job.tries = max(job.tries, bus.tries_of(message.flags))
        join_holders(node, job, peer.alone)
        if job.state != ACTIVE:
            continue
        if job.flags & OUT and job.requeue_at > node.now_ms:  # somebody works on it here
            left_ms = job.requeue_at - node.now_ms
            node.outbox.tell(bus.WORKING, peer.alone, job.id, left_ms, bus.tries_flags(job.tries))
            continue
        job.flags &= ~BCAST_QUEUED
        if enqueue(node, job):
            queue = node.queue(job.queue)
            imported[queue] = imported.get(queue, 0) + 1
    if fresh and node.journal is not None:
        note_copies(node, fresh)
    for queue, count in imported.items():
        exchange = exchange_of(node, queue)
        if exchange.announced and not queue.waiters:
            _withdraw(node, exchange)
        exchange.imported(peer.id, count, node.now_ms)
