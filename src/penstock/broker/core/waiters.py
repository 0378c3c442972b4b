"""Clients that wait for a job, and how they are served.

A waiting client is in the list of waiters of every queue that it named. A queue with both jobs and waiters is `ready`;
the shell calls `serve_ready` after each command, so that no client waits for the event loop. Each client gets one job.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core import refusals
from penstock.broker.core.delivery import ALL, fetch, unfetch
from penstock.broker.core.eviction import IDLE_MS, drop_queue, find_queues, is_idle, need_memory, need_queues
from penstock.broker.core.federation import (
    BUSY_MS,
    ask_once,
    give_wanted,
    note_wait,
    retell,
    wait_ended,
)
from penstock.broker.core.jobs import Job
from penstock.broker.core.membership import Peer
from penstock.broker.core.node import Node
from penstock.broker.core.queues import PAUSED_IN, PAUSED_OUT, Queue
from penstock.broker.core.refusals import Refused
from penstock.broker.core.replication import Addition, give_up
from penstock.broker.core.timers import Timed
from penstock.wire import bus

# A client's entry among the waiters of one queue: 130 bytes for the first, 55 for one of many.
WAIT_BYTES: Final = 60


class Waiter(Timed):
    """One client that waits for a job: on which queues, until when, and the options of its GETJOB."""

    __slots__ = ("begin_max", "client", "counters", "ctime", "lease_ms", "queues")

    def __init__(self, client: object, counters: int, lease_ms: int, ctime: bool, begin_max: int) -> None:
        super().__init__(0)
        self.client = client
        self.counters = counters  # that its reply has (commands.jobs)
        self.ctime = ctime
        self.lease_ms = lease_ms
        self.begin_max = begin_max  # on how many of its jobs work begins at once; below 0: on all
        self.queues: tuple[Queue, ...] = ()


def fetch_many(node: Node, names: list[bytes], count: int, lease_ms: int, begin_max: int = ALL) -> list[Job]:
    """Take up to `count` jobs, one from each queue in turn; fewer if the reply would be too large."""
    queues = find_queues(node, names)
    jobs: list[Job] = []
    if node.holds_until_ms:
        return jobs
    if len(queues) == 1:
        if queues[0].length and not queues[0].pause & PAUSED_OUT:
            jobs = fetch(node, queues[0], count, lease_ms, begin_max)
    else:
        before = -1
        left_bytes = node.memory.reply_bytes_max
        while before < len(jobs) < count and left_bytes > 0:
            before = len(jobs)
            for queue in queues:
                if queue.length and not queue.pause & PAUSED_OUT and len(jobs) < count and left_bytes > 0:
                    rest = begin_max if begin_max < 0 else max(0, begin_max - len(jobs))
                    jobs += fetch(node, queue, 1, lease_ms, rest)
                    left_bytes -= len(queue.name) + len(jobs[-1].body)
    return jobs


def ask_others(node: Node, names: list[bytes]) -> None:
    """Ask other nodes for jobs of queues that a client found empty without waiting."""
    for queue in find_queues(node, names):
        ask_once(node, queue)


def wait(node: Node, waiter: Waiter, names: list[bytes], timeout_ms: int) -> None:
    """Let a client wait at these queues; 0: no timeout."""
    if node.cluster.leaving:
        raise Refused(*refusals.NODE_LEAVING)
    queues = tuple(dict.fromkeys(need_queues(node, names)))
    need_memory(node, WAIT_BYTES * len(queues))
    waiter.queues = queues
    node.memory.used_bytes += WAIT_BYTES * len(queues)
    for queue in queues:
        queue.waiters[waiter] = None
        if node.cluster.size > 1:
            note_wait(node, queue)
    if timeout_ms:
        node.timers.set(waiter, node.now_ms + timeout_ms)


def waits_bytes(node: Node) -> int:
    """Return the memory of all waits, for checks of the accounting."""
    return WAIT_BYTES * sum([len(queue.waiters) for queue in node.queues.by_name.values()])


def give_up_waiting(node: Node, waiting: Waiter | Addition) -> None:
    """End the wait of a client that is gone."""
    if isinstance(waiting, Waiter):
        leave(node, waiting, 0)
    else:
        waiting.client = None
        give_up(node, waiting, refusals.REPLICATION_TIMEOUT)


def leave(node: Node, waiter: Waiter, linger_ms: int) -> None:
    """Remove a client from the waiters of all its queues: it was served, its timeout is over, or it is gone.

    Other nodes are told after `linger_ms`, since a client often comes back within that time.
    """
    node.timers.cancel(waiter)
    node.memory.used_bytes -= WAIT_BYTES * len(waiter.queues)
    for queue in waiter.queues:
        queue.waiters.pop(waiter, None)
        if queue.exchange is not None:
            wait_ended(node, queue, linger_ms)
        if not queue.waiters and node.queues.by_name.get(queue.name) is queue and is_idle(node, queue, IDLE_MS[0]):
            drop_queue(node, queue)
    waiter.queues = ()


def serve_ready(node: Node) -> None:
    """Deliver jobs to waiting clients until jobs or clients run out."""
    if node.holds_until_ms:
        return
    while node.ready:
        queue = next(iter(node.ready))
        del node.ready[queue]
        while queue.waiters and queue.length and not queue.pause & PAUSED_OUT:
            waiter = next(iter(queue.waiters))
            before, node.client = node.client, waiter.client
            (job,) = fetch(node, queue, 1, waiter.lease_ms, waiter.begin_max)
            node.client = before
            leave(node, waiter, BUSY_MS)
            node.port.answer(waiter, job)
        if queue.exchange is not None:
            _trade(node, queue)


def take_back(node: Node, jobs: list[Job]) -> None:
    """Queue jobs again whose reply never reached a client; other waiting clients may get them at once."""
    for job in jobs:
        unfetch(node, job)
    serve_ready(node)


def _trade(node: Node, queue: Queue) -> None:
    """Send jobs that no client here waits for to other nodes; at the end of the turn, announce who waits here."""
    if queue.length:
        give_wanted(node, queue)
    node.untold[queue] = None


def set_pause(node: Node, queue: Queue, flags: int) -> None:
    """Change a queue's pause state, journal it, and serve clients that waited for its end."""
    queue.pause = flags
    if node.journal is not None:
        node.journal.paused(queue.name, flags)
    if not flags & PAUSED_OUT and queue.length:
        node.ready[queue] = None
    if queue.waiters and queue.exchange is not None:
        retell(node, queue)


def send_pause(node: Node, name: bytes, flags: int) -> None:
    """Send a queue's pause state to all other nodes."""
    for peer in node.cluster.others:
        node.outbox.send(peer, bus.PAUSE, bus.named(flags, name))


def on_pause(node: Node, peer: Peer, message: bus.BusMessage) -> None:
    """PAUSE: another node was told to pause or resume a queue everywhere."""
    flags, name = bus.name_of(message)
    flags &= PAUSED_IN | PAUSED_OUT
    queue = node.queue(name) if flags else node.queues.by_name.get(name)
    if queue is not None and queue.pause != flags:
        set_pause(node, queue, flags)


def refuse_waiters(node: Node) -> None:
    """Refuse all waiting clients: this node is leaving."""
    for queue in list(node.queues.by_name.values()):
        for waiter in list(queue.waiters):
            leave(node, waiter, 0)
            node.port.answer(waiter, Refused(*refusals.NODE_LEAVING))
        if queue.exchange is not None and queue.exchange.told:
            retell(node, queue)
