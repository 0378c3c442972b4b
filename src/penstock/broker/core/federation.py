"""Jobs move to nodes where clients wait for them, and nowhere else.

A job leaves its node for a client that is blocked in GETJOB on another node, or that asked there within the last
500 ms. Nodes ask each other for jobs with NEEDJOBS and send them with YOURJOBS; the sender keeps its copy as an active
one, unless the job may be delivered only once. NEEDJOBS has these forms:

    value  clients     meaning
    n      w waiting   n clients began to wait, w wait now: as many jobs may be sent, at once or when they come
    0      w waiting   fewer clients wait than the receiver was told: w
    0      none        no client waits any more
    1      none, with  a client asked without waiting (NOHANG): one job may be sent, now or within 500 ms, but none of
           a time      RETRY 0
    n      none        busy clients have fetched the last job: n jobs ahead. An original node knows only this form

The asking node keeps, for each other node, how many jobs that node may still send (`Exchange.told`), and sends a
message only when more clients wait than that. So a client that waits, in one call or in many in a row, costs one
message to each node at first, and one every 15 s in case a message was lost. A request is valid for 45 s.

the end of a wait  Other nodes are told at once if the client is gone; after 50 ms if its timeout is over, since one
                   that waits in slices is back by then; after 500 ms if it got a job, since a busy one is back by then.
a job arrives      If no client here waits for it any more, it goes on to a node where one does. Otherwise it stays for
                   the next client, but for 2 s at most; then it goes back to the node that made it, or else to its
                   sender, marked RETURNED. A job that was not asked for goes back at once.
a busy client      It fetched the last job, and the one before within 500 ms: twice as many jobs are requested each
                   time, up to 100, and fewer if they last longer than 500 ms.
original nodes     They don't remember requests, so they are asked again while a client waits, finally every 2 s.
                   What they send is not sent back.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core.acks import end_replication, remove, tell_acked
from penstock.broker.core.delivery import enqueue, schedule
from penstock.broker.core.jobs import (
    ACKED,
    ACTIVE,
    BCAST_QUEUED,
    BCAST_WILLQUEUE,
    COUNTER_MASK,
    DELIVERED,
    GIVEN,
    GIVEN_BACK,
    IMPORTED,
    MOVED,
    OUT,
    OUT_THERE,
    QUEUED,
    WAIT_REPL,
    Job,
)
from penstock.broker.core.membership import FAIL, LINKED, UNREACHABLE, Peer
from penstock.broker.core.node import Node
from penstock.broker.core.owners import set_owner
from penstock.broker.core.queues import PAUSED_OUT, QUEUE_BYTES, Queue
from penstock.broker.core.replication import (
    copy_flags,
    join_holders,
    message_record,
    note_copies,
    read_copies,
    register_copy,
)
from penstock.broker.core.telling import note_place
from penstock.broker.core.timers import Timed
from penstock.wire import bus

BUSY_MS: Final = 500  # a client that got a job, or asked without waiting, is expected back within this time
SLICE_MS: Final = 50  # a client that waits in slices is expected back within this time after its timeout
STANDS_MS: Final = 45_000  # a request is valid for this time, unless it is withdrawn: three repeats
REPEAT_MS: Final = 15_000
POLL_AGAIN_MS: Final = 250  # how often others are told of a client that polls: they remember it for BUSY_MS
POLL_MS_MAX: Final = 2000  # a client that polls at least this often gets a job that is here with its next call
RETURN_MS: Final = 2000  # a job from another node waits this long for a client
ORIGINAL_MS: Final = 25  # original nodes are asked again after this, then after twice the time
ORIGINAL_MS_MAX: Final = 2000
TRIES_MAX: Final = 7  # the exponent stops here: the pause is at its largest
AHEAD_MAX: Final = 100  # an original node sends at most this many
WAITERS_MAX: Final = bus.BYTE_MAX
STANDS_UNITS: Final = STANDS_MS // bus.WAIT_UNIT_MS
POLL_FLAGS: Final = -(-BUSY_MS // bus.WAIT_UNIT_MS) << bus.WAIT_SHIFT
MAKER_AT: Final = 2  # where the first bytes of the id of the node that made a job stand in the job's id
MAKER_BYTES: Final = 8
LOOKED_AT_MAX: Final = 100  # jobs of RETRY 0 passed over for a client that doesn't wait
SOURCE_MS: Final = 5000  # nodes that sent jobs within this time are asked for more
SLOT_MS: Final = 1000
RATE_WINDOW_MS: Final = 5000
RATE_SPAN_MS_MIN: Final = 50
EXCHANGE_BYTES: Final = 1000


class Want:
    """What another node asks for: jobs for clients that wait there, or one for a client that polled."""

    __slots__ = ("count", "is_blocked", "until_ms", "waiters")

    def __init__(self, count: int, waiters: int, until_ms: int, is_blocked: bool) -> None:
        self.count = count  # jobs that are still to be sent
        self.waiters = waiters
        self.until_ms = until_ms
        self.is_blocked = is_blocked


class Guests:
    """Jobs that another node sent together: those that no client has fetched by `due_ms` go back."""

    __slots__ = ("due_ms", "giver", "jobs")

    def __init__(self, due_ms: int, giver: bytes, jobs: list[Job]) -> None:
        self.due_ms = due_ms
        self.giver = giver
        self.jobs = jobs


class Exchange(Timed):
    """What one queue exchanges with other nodes: jobs received, jobs wanted, and what others know of clients here.

    Its timer is the first of `settle_ms`, `repeat_ms`, `original_ms` and the times of the guests.
    """

    __slots__ = (
        "_before",
        "_before_ms",
        "_now",
        "_now_ms",
        "ahead",
        "ahead_of",
        "dry_ms",
        "ended_ms",
        "guests",
        "is_poll_open",
        "jobs_out",
        "original_ms",
        "original_tries",
        "peak",
        "polled_ms",
        "queue",
        "repeat_ms",
        "settle_ms",
        "sources",
        "told",
        "told_poll_ms",
        "wanted",
    )

    def __init__(self, queue: Queue) -> None:
        super().__init__(0)
        self.queue = queue
        # Clients that wait here, and what others know of them.
        self.told: dict[bytes, int] = {}  # by node: the jobs that it may still send for clients that wait here
        self.peak = 0  # the most clients that waited at once since `_settle`
        self.ended_ms = 0  # when a wait last ended with a job
        self.settle_ms = 0  # when others are told that fewer clients wait; 0: nothing to tell
        self.repeat_ms = 0  # when they are told again in any case; 0: no client waits
        self.original_ms = 0  # when original nodes are asked again; 0: no client waits, or there are none
        self.original_tries = 0
        # Clients that poll: they ask and don't wait.
        self.polled_ms = 0  # when one last found nothing
        self.told_poll_ms = 0  # when others were last told of one
        self.is_poll_open = False  # the one job asked for has not come yet
        # Busy clients: jobs are requested ahead.
        self.ahead = 0  # how many
        self.ahead_of: set[bytes] = set()  # the nodes that were asked
        self.dry_ms = 0  # when the last job here was fetched
        self.jobs_out = 0  # of the queue, then
        self.guests: list[Guests] = []
        self.sources: dict[bytes, int] = {}
        self.wanted: dict[bytes, Want] = {}  # by node
        self._now = self._before = 0
        self._now_ms = self._before_ms = 0

    def imported(self, source: bytes, count: int, now_ms: int) -> None:
        """Count jobs that another node sent."""
        if now_ms - self._now_ms > SLOT_MS:
            self._before, self._before_ms = self._now, self._now_ms
            self._now, self._now_ms = 0, now_ms
        self._now += count
        self.sources[source] = now_ms

    def rate(self, now_ms: int) -> int:
        """Return how many jobs a second come from other nodes."""
        if not self._now_ms or now_ms - self._now_ms > RATE_WINDOW_MS:
            return 0
        span_ms = max(RATE_SPAN_MS_MIN, now_ms - (self._before_ms or self._now_ms))
        return -(-(self._before + self._now) * 1000 // span_ms)

    def fresh_sources(self, now_ms: int) -> list[bytes]:
        """Return the nodes that sent jobs lately."""
        self.sources = {node: at for node, at in self.sources.items() if now_ms - at <= SOURCE_MS}
        return list(self.sources)

    def is_wanted(self, now_ms: int) -> bool:
        """Whether other nodes ask for jobs of this queue, or did so a short time ago."""
        if self.wanted:
            self.wanted = {node: want for node, want in self.wanted.items() if want.until_ms > now_ms}
        return bool(self.wanted)


def exchange_of(node: Node, queue: Queue) -> Exchange:
    """Return a queue's exchange with others, made when it is first needed."""
    exchange = queue.exchange
    if exchange is None:
        exchange = queue.exchange = Exchange(queue)
        node.memory.used_bytes += EXCHANGE_BYTES
    return exchange


# Clients here wait.


def note_wait(node: Node, queue: Queue) -> None:
    """Note that one more client waits: others are told at the end of the turn, unless it has a job by then."""
    exchange = exchange_of(node, queue)
    exchange.peak = max(exchange.peak, len(queue.waiters))
    node.untold[queue] = None


def wait_ended(node: Node, queue: Queue, linger_ms: int) -> None:
    """Note that a client waits no more: others are told after `linger_ms`, unless as many wait again by then."""
    exchange = queue.exchange
    if exchange is None or not exchange.told:
        return
    waiters = len(queue.waiters)
    if not exchange.settle_ms:
        exchange.peak = waiters
    elif linger_ms < BUSY_MS:
        exchange.peak = max(exchange.peak - 1, waiters)
    if linger_ms == BUSY_MS:
        exchange.ended_ms = node.now_ms
    at_ms = node.now_ms + linger_ms
    if not exchange.settle_ms or at_ms < exchange.settle_ms:
        exchange.settle_ms = at_ms
        _arm(node, exchange, at_ms)
    if not linger_ms:
        node.untold[queue] = None


def retell(node: Node, queue: Queue) -> None:
    """Send the number of waiting clients at the end of the turn: a pause begins or ends, or the node leaves."""
    exchange = exchange_of(node, queue)
    exchange.peak = 0
    exchange.settle_ms = node.now_ms
    node.untold[queue] = None


def ask_once(node: Node, queue: Queue) -> None:
    """Ask for one job: a client found nothing, and doesn't wait."""
    if not _may_ask(node, queue):
        return
    exchange, now_ms = exchange_of(node, queue), node.now_ms
    exchange.polled_ms = now_ms
    if queue.waiters or now_ms - exchange.told_poll_ms < POLL_AGAIN_MS:
        return
    exchange.told_poll_ms = now_ms
    exchange.is_poll_open = True
    for peer in node.cluster.others:
        if not exchange.told.get(peer.id):  # else it sends one without being asked
            _say(node, peer, queue.name, 1, POLL_FLAGS if peer.abilities & bus.CAN_MANY else 0)


def tell_waits(node: Node) -> None:
    """At the end of a turn: tell other nodes what has changed for them."""
    untold, node.untold = node.untold, {}
    for queue in untold:
        exchange = queue.exchange
        if exchange is None:
            continue
        if 0 < exchange.settle_ms <= node.now_ms:
            _settle(node, exchange)
        if not queue.length and exchange.sources:
            _ask_ahead(node, exchange)
        waiters = _waiters(node, queue)
        if waiters:
            _tell_more(node, exchange, waiters)


def _may_ask(node: Node, queue: Queue) -> bool:
    return node.cluster.size > 1 and not node.cluster.leaving and not queue.pause & PAUSED_OUT


def _waiters(node: Node, queue: Queue) -> int:
    """Return how many waiting clients other nodes may send jobs for."""
    return min(len(queue.waiters), WAITERS_MAX) if _may_ask(node, queue) else 0


def _say(node: Node, peer: Peer, name: bytes, value: int, flags: int = 0) -> None:
    if peer.link == LINKED:
        node.outbox.send(peer, bus.NEEDJOBS, bus.named(value, name), flags)


def _tell(node: Node, exchange: Exchange, peer: Peer, more: int, waiters: int) -> None:
    """Send a node the number of clients that wait, and how many of them are new to it."""
    flags = waiters << bus.WAITERS_SHIFT | STANDS_UNITS << bus.WAIT_SHIFT
    if not peer.abilities & bus.COUNTS_WAITS:
        more = max(1, more)
    _say(node, peer, exchange.queue.name, more, flags)
    exchange.told[peer.id] = waiters


def _tell_more(node: Node, exchange: Exchange, waiters: int) -> None:
    """Send the number of waiting clients to nodes that may send fewer jobs than that."""
    now_ms = node.now_ms
    polled = now_ms - exchange.told_poll_ms < POLL_AGAIN_MS  # the job requested for it serves the first waiter
    has_originals = False
    for peer in node.cluster.others:
        if peer.link != LINKED:
            continue
        if not peer.abilities & bus.CAN_MANY:
            has_originals = True
            continue
        told = exchange.told.get(peer.id, 0)
        if told < waiters:
            _tell(node, exchange, peer, waiters - (told or int(polled)), waiters)
    if not exchange.repeat_ms:
        exchange.repeat_ms = now_ms + REPEAT_MS
        _arm(node, exchange, exchange.repeat_ms)
    if has_originals and exchange.original_ms <= now_ms:
        _ask_originals(node, exchange)


def _ask_originals(node: Node, exchange: Exchange) -> None:
    for peer in node.cluster.others:
        if not peer.abilities & bus.CAN_MANY:
            _say(node, peer, exchange.queue.name, 1)
    exchange.original_ms = node.now_ms + min(ORIGINAL_MS << exchange.original_tries, ORIGINAL_MS_MAX)
    exchange.original_tries = min(exchange.original_tries + 1, TRIES_MAX)
    _arm(node, exchange, exchange.original_ms)


def _settle(node: Node, exchange: Exchange) -> None:
    """Send the number of waiting clients to nodes that may send more than clients wait, or waited a moment ago."""
    waiters = _waiters(node, exchange.queue)
    most = min(max(waiters, exchange.peak), WAITERS_MAX)
    exchange.peak = waiters
    exchange.settle_ms = 0
    if most > waiters:
        exchange.settle_ms = max(exchange.ended_ms + BUSY_MS, node.now_ms + 1)
        _arm(node, exchange, exchange.settle_ms)
    for peer in node.cluster.others:
        if exchange.told.get(peer.id, 0) <= most:
            continue
        if not most:
            _say(node, peer, exchange.queue.name, 0)
        elif peer.abilities & bus.COUNTS_WAITS:  # older nodes would take it for the end of all waits
            _tell(node, exchange, peer, 0, most)
    if not most:
        exchange.told.clear()
        exchange.repeat_ms = 0


def _repeat(node: Node, exchange: Exchange, waiters: int) -> None:
    """Send it to all nodes again, in case a message was lost."""
    exchange.repeat_ms = node.now_ms + REPEAT_MS
    known = node.cluster.ids
    exchange.told = {peer_id: told for peer_id, told in exchange.told.items() if peer_id in known}
    for peer in node.cluster.others:
        if peer.abilities & bus.CAN_MANY and peer.link == LINKED:
            _tell(node, exchange, peer, waiters, waiters)


def _ask_ahead(node: Node, exchange: Exchange) -> None:
    """Ask the nodes that sent jobs for more, if busy clients here have fetched the last one."""
    queue, now_ms = exchange.queue, node.now_ms
    fetched = queue.jobs_out - exchange.jobs_out
    if fetched <= 0:
        return
    exchange.jobs_out = queue.jobs_out
    exchange.guests.clear()
    span_ms, exchange.dry_ms = now_ms - exchange.dry_ms, now_ms
    if span_ms <= BUSY_MS:
        exchange.ahead = min(2 * max(exchange.ahead, fetched), AHEAD_MAX)
    else:
        exchange.ahead = exchange.ahead * BUSY_MS // span_ms
    sources = exchange.fresh_sources(now_ms)
    if not exchange.ahead or not sources or not _may_ask(node, queue):
        return
    for source in sources:
        peer = node.cluster.peers.get(source)
        if peer is not None and not exchange.told.get(source):  # else it has sent all it has
            exchange.ahead_of.add(source)
            _say(node, peer, queue.name, -(-exchange.ahead // len(sources)))


def _arm(node: Node, exchange: Exchange, at_ms: int) -> None:
    if not exchange.wake_at or at_ms < exchange.wake_at:
        node.timers.set(exchange, at_ms)


def wake_exchange(node: Node, exchange: Exchange) -> None:
    """The timer of an exchange is due: settle, repeat, ask original nodes, return guests."""
    now_ms = node.now_ms
    if 0 < exchange.settle_ms <= now_ms:
        _settle(node, exchange)
    waiters = _waiters(node, exchange.queue)
    if not waiters:
        exchange.repeat_ms = exchange.original_ms = 0
    elif exchange.repeat_ms and exchange.repeat_ms <= now_ms:
        _repeat(node, exchange, waiters)
    if waiters and 0 < exchange.original_ms <= now_ms:
        _ask_originals(node, exchange)
    if exchange.guests:
        _return_guests(node, exchange)
    times = [exchange.settle_ms, exchange.repeat_ms, exchange.original_ms, *(g.due_ms for g in exchange.guests)]
    for at_ms in times:
        if at_ms:
            _arm(node, exchange, at_ms)


# Links open and close.


def linked(node: Node, peer: Peer) -> None:
    """A link has opened: tell its node what clients wait for here, and serve its requests."""
    for queue in node.queues.by_name.values():
        waiters = _waiters(node, queue)
        if waiters and peer.abilities & bus.CAN_MANY:
            _tell(node, exchange_of(node, queue), peer, waiters, waiters)
        elif waiters:
            _say(node, peer, queue.name, 1)
    serve_wants(node, peer)


def serve_wants(node: Node, peer: Peer) -> None:
    """Serve the requests of a node that can be reached again."""
    for queue in node.queues.by_name.values():
        if queue.length and queue.exchange is not None and peer.id in queue.exchange.wanted:
            node.ready[queue] = None


def unlinked(node: Node, peer: Peer) -> None:
    """A link has closed: what was sent on it may be lost, so count it as unsent."""
    for queue in node.queues.by_name.values():
        exchange = queue.exchange
        if exchange is not None:
            exchange.told.pop(peer.id, None)
            want = exchange.wanted.get(peer.id)
            if want is not None and want.is_blocked:
                want.count = want.waiters


# Sending jobs.


def on_needjobs(node: Node, peer: Peer, message: bus.BusMessage) -> None:
    """NEEDJOBS: send jobs, or remember the request."""
    count, name = bus.name_of(message)
    waiters = message.flags >> bus.WAITERS_SHIFT
    stands_ms = (message.flags >> bus.WAIT_SHIFT & bus.BYTE_MAX) * bus.WAIT_UNIT_MS
    queue = node.queues.by_name.get(name)
    if queue is None and stands_ms and node.memory.has_room(QUEUE_BYTES + EXCHANGE_BYTES + len(name)):
        queue = node.queue(name)  # without room: the other node asks again later
    if queue is None:
        return
    if stands_ms:
        more = count if message.abilities & bus.COUNTS_WAITS else waiters
        _note_want(exchange_of(node, queue), peer, more, waiters, node.now_ms, stands_ms)
        give_wanted(node, queue)
        return
    exchange = queue.exchange
    if not count and message.abilities:
        if exchange is not None:
            exchange.wanted.pop(peer.id, None)
        return
    if not queue.length or queue.pause & PAUSED_OUT or peer.link != LINKED or node.holds_until_ms:
        return
    if exchange is not None and exchange.rate(node.now_ms):
        return  # this node itself gets jobs of the queue from others
    count = min(count, AHEAD_MAX)
    _give(node, queue, peer, queue.take(count if queue.length >= 2 * count else max(1, queue.length // 2)))


def _note_want(exchange: Exchange, peer: Peer, more: int, waiters: int, now_ms: int, stands_ms: int) -> None:
    want = exchange.wanted.get(peer.id)
    if want is not None and want.until_ms <= now_ms:
        want = None
    if not waiters:
        if want is None or not want.count:
            exchange.wanted[peer.id] = Want(1, 1, now_ms + BUSY_MS, False)
        return
    count = waiters if want is None else min(waiters, want.count + more)
    exchange.wanted[peer.id] = Want(count, waiters, now_ms + stands_ms, True)


def give_wanted(node: Node, queue: Queue) -> None:
    """Send jobs that no client here waits for to nodes that want them, first to those with waiting clients."""
    exchange = queue.exchange
    if exchange is None or not queue.length or queue.pause & PAUSED_OUT or not exchange.is_wanted(node.now_ms):
        return
    if node.holds_until_ms:
        return
    for is_blocked in (True, False):
        for peer_id, want in list(exchange.wanted.items()):
            peer = node.cluster.peers.get(peer_id)
            if peer is None or peer.link != LINKED or not want.count or want.is_blocked is not is_blocked:
                continue
            if peer.flags & FAIL:
                continue  # a process that stands still may have a link
            jobs = queue.take(want.count) if is_blocked else _take_for_poll(node, exchange)
            if not jobs:
                continue
            _give(node, queue, peer, jobs)
            want.count -= len(jobs)
            del exchange.wanted[peer_id]
            exchange.wanted[peer_id] = want  # behind the others now
            if not queue.length:
                return


def _take_for_poll(node: Node, exchange: Exchange) -> list[Job]:
    """Take one job for a client that polls elsewhere, unless a client that polls here will get it first."""
    queue = exchange.queue
    if queue.length == 1 and node.now_ms - exchange.polled_ms < POLL_MS_MAX and exchange.polled_ms:
        return []
    for job in queue.oldest(LOOKED_AT_MAX):
        if job.rules.retry_s and not job.flags & IMPORTED:
            _take(queue, job)
            return [job]
    return []


def _take(queue: Queue, job: Job) -> None:
    """Take a job out of the middle of its queue."""
    job.state = ACTIVE
    job.flags = job.flags & ~IMPORTED | DELIVERED | OUT
    queue.drop()


def _give(node: Node, queue: Queue, peer: Peer, jobs: list[Job], flags: int = 0) -> None:
    """Send jobs that were taken out of their queue."""
    queue.accessed_ms = node.now_ms
    queue.jobs_out += len(jobs)
    if queue.exchange is not None:
        queue.exchange.jobs_out += len(jobs)
    kept: list[Job] = []
    for job in jobs:
        if job.rules.retry_s:  # its retry time starts again there, so it does here
            join_holders(node, job, peer.alone)
            set_owner(node, job, peer.id, is_given=True)
            job.flags = job.flags & ~(OUT | OUT_THERE) | GIVEN | BCAST_WILLQUEUE
            job.requeue_at = node.after_retry(job.rules.retry_ms)
            schedule(node, job)
            kept.append(job)
            if not peer.abilities & bus.TAKES_OVER and len(job.holders.delivered) > 2:
                note_place(node, job)  # it doesn't say itself that it has the job
        given_back = bus.GIVEN_BACK if job.flags & GIVEN_BACK else 0
        node.outbox.add_record(
            bus.YOURJOBS, peer.alone, message_record(node, job), flags | given_back | copy_flags(job)
        )
        if not job.rules.retry_s:
            remove(node, job)
    if kept and node.journal is not None:
        node.journal.delivered(kept)


def _return_guests(node: Node, exchange: Exchange) -> None:
    """Send back jobs that came for clients here and were not fetched in time."""
    queue, now_ms = exchange.queue, node.now_ms
    kept: list[Guests] = []
    for guests in exchange.guests:
        if guests.due_ms > now_ms:
            kept.append(guests)
            continue
        stranded: list[Job] = []
        returned: dict[Peer, list[Job]] = {}
        for job in guests.jobs:
            if job.state != QUEUED or not job.flags & IMPORTED:
                continue
            peer = _way_back(node, job, guests.giver)
            if peer is None:
                stranded.append(job)
            else:
                returned.setdefault(peer, []).append(job)
        for peer, jobs in returned.items():
            for job in jobs:
                _take(queue, job)
            _give(node, queue, peer, jobs, bus.RETURNED)
        if stranded:
            guests.due_ms, guests.jobs = now_ms + RETURN_MS, stranded
            kept.append(guests)
    exchange.guests = kept


def _way_back(node: Node, job: Job, giver: bytes) -> Peer | None:
    """Return the node to send a job back to: the one that made it, or else the one that sent it, if reachable."""
    for peer in node.cluster.others:
        if peer.id[:MAKER_BYTES] == job.id[MAKER_AT : MAKER_AT + MAKER_BYTES] and _takes_back(peer):
            return peer
    found = node.cluster.peers.get(giver)
    return found if found is not None and _takes_back(found) else None


def _takes_back(peer: Peer) -> bool:
    return peer.link == LINKED and bool(peer.abilities & bus.CAN_MANY) and not peer.flags & UNREACHABLE


# Receiving jobs.


def on_yourjobs(node: Node, peer: Peer, message: bus.BusMessage) -> None:
    """YOURJOBS: queue jobs that another node sends."""
    is_new = peer.hands_over(message.sequence)
    is_returned = bool(message.flags & bus.RETURNED)
    is_given_back = is_new and bool(message.abilities and message.flags & bus.GIVEN_BACK)
    imported: dict[Queue, list[Job]] = {}
    sent: dict[bytes, int] = {}
    fresh: list[Job] = []
    for copy in read_copies(node, message):
        sent[copy.shape.queue] = sent.get(copy.shape.queue, 0) + 1
        job = node.jobs.get(copy.id)
        if (job is None and copy.id in node.finished) or (job is not None and job.state == ACKED):
            tell_acked(node, peer, copy.id, job)
            continue
        if job is None:
            if not copy.shape.rules.retry_s and not is_new:
                continue  # a repeated message: its job may be delivered only once
            job = register_copy(node, copy, message.flags & ~bus.QUEUE_IT)
            fresh.append(job)
        elif job.state == WAIT_REPL and not copy.shape.rules.retry_s:
            end_replication(node, job)  # it was handed over, and comes back for a client that waits here
            job.state = ACTIVE
            job.holders = node.alone
            fresh.append(job)
        else:
            join_holders(node, job, copy.shape.nodes)
            job.tries = max(job.tries, bus.tries_of(message.flags))
        join_holders(node, job, peer.alone)
        if job.state != ACTIVE:
            continue
        left_ms = job.requeue_at - node.now_ms if job.flags & OUT else 0
        is_nacked = _is_nacked(job, copy.shape.nacks)
        if left_ms > 0 and not (is_nacked or is_given_back):  # a client here works on it
            node.outbox.add_reference(bus.WORKING, peer.alone, job.id, left_ms, bus.tries_flags(job.tries))
            continue
        if is_nacked:
            job.nacks = copy.shape.nacks
        elif left_ms > 0:  # a nack that this node doesn't know of
            job.nacks = (job.nacks + 1) & COUNTER_MASK
        job.flags &= ~BCAST_QUEUED
        if enqueue(node, job):
            job.flags |= MOVED | (GIVEN_BACK if is_given_back else 0)
            imported.setdefault(node.queue(job.queue), []).append(job)
            if len(job.holders.delivered) > 2:
                note_place(node, job)  # only the node that gave it knows that it is here
    if fresh and node.journal is not None:
        note_copies(node, fresh)
    if is_returned:
        return
    for name, count in sent.items():
        queue = node.queues.by_name.get(name)
        if queue is not None:
            _note_given(node, queue, peer, count, imported.get(queue))


def _is_nacked(job: Job, nacks: int) -> bool:
    """Whether another node has counted more nacks of a job; it may not know this node as a holder."""
    return 0 < (nacks - job.nacks) & COUNTER_MASK <= COUNTER_MASK // 2


def _note_given(node: Node, queue: Queue, peer: Peer, count: int, jobs: list[Job] | None) -> None:
    """Note what a node has sent, whether or not it could be queued."""
    exchange, now_ms = exchange_of(node, queue), node.now_ms
    told = exchange.told.get(peer.id, 0)
    is_asked_for = told > 0 or peer.id in exchange.ahead_of or exchange.is_poll_open
    if told:
        exchange.told[peer.id] = max(0, told - count)
    elif peer.id in exchange.ahead_of:
        exchange.ahead_of.remove(peer.id)
    else:
        exchange.is_poll_open = False
    exchange.told_poll_ms = exchange.original_tries = 0
    node.untold[queue] = None
    if not jobs:
        return
    exchange.imported(peer.id, len(jobs), now_ms)
    if not peer.abilities & bus.CAN_MANY:
        return
    if not is_asked_for and not queue.waiters:
        _say(node, peer, queue.name, 0)  # it may still believe that clients wait here
    mine = node.cluster.my_id[:MAKER_BYTES]
    guests = [job for job in jobs if job.id[MAKER_AT : MAKER_AT + MAKER_BYTES] != mine]
    for job in guests:
        job.flags |= IMPORTED
    if guests:
        due_ms = now_ms + (RETURN_MS if is_asked_for else 1)
        exchange.guests.append(Guests(due_ms, peer.id, guests))
        _arm(node, exchange, due_ms)
