"""Clients that wait for a job, and how they are served.

A waiting client stands in the line of every queue it named. A queue that has jobs and waiters is `ready`; the shell
calls `serve_ready` after each command, so that nobody waits for a turn of the event loop. Each client gets one job.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core import refusals
from penstock.broker.core.delivery import ALL, fetch, unfetch, wake
from penstock.broker.core.eviction import IDLE_MS, find_queues, is_idle, need_memory, need_queues
from penstock.broker.core.exchange import Exchange
from penstock.broker.core.federation import (
    BUSY_MS,
    SLICE_MS,
    ask_once,
    give_wanted,
    note_wait,
    retell,
    wait_ended,
    wake_exchange,
)
from penstock.broker.core.jobs import Job
from penstock.broker.core.membership import Peer
from penstock.broker.core.node import Node
from penstock.broker.core.queues import PAUSED_IN, PAUSED_OUT, Queue
from penstock.broker.core.refusals import Refused
from penstock.broker.core.replication import give_up, wake_addition
from penstock.broker.core.waiting import Addition, Waiter
from penstock.wire import bus

WAKES_MAX: Final = 1000  # timers handled in one go: a few milliseconds, then clients have their turn
# A client's place in the line of one queue: 130 bytes for the first who waits there, 55 for one of many.
WAIT_BYTES: Final = 60


def fetch_many(node: Node, names: list[bytes], count: int, lease_ms: int, begin_max: int = ALL) -> list[Job]:
    """Take up to so many jobs, one from each queue in turn; fewer if more would be too large a reply."""
    queues = find_queues(node, names)
    jobs: list[Job] = []
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
                    left_bytes -= len(jobs[-1].body)
    return jobs


def ask_others(node: Node, names: list[bytes]) -> None:
    """Ask other nodes for jobs of queues that a client found empty and won't wait for."""
    for queue in find_queues(node, names):
        ask_once(node, queue)


def wait(node: Node, waiter: Waiter, names: list[bytes], timeout_ms: int) -> None:
    """Let a client wait in line at these queues; timeout 0 means for as long as it takes."""
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
    """Return what all waits take, for checks of the account."""
    return WAIT_BYTES * sum([len(queue.waiters) for queue in node.queues.by_name.values()])


def give_up_waiting(node: Node, waiting: Waiter | Addition) -> None:
    """Let nobody wait for a client that is gone."""
    if isinstance(waiting, Waiter):
        leave(node, waiting, 0)
    else:
        waiting.client = None
        give_up(node, waiting, refusals.REPLICATION_TIMEOUT)


def leave(node: Node, waiter: Waiter, linger_ms: int) -> None:
    """Take a client out of all lines: it was served, its time is over, or it is gone.

    Other nodes hear of it after `linger_ms`, in which a client often comes back.
    """
    node.timers.cancel(waiter)
    node.memory.used_bytes -= WAIT_BYTES * len(waiter.queues)
    for queue in waiter.queues:
        queue.waiters.pop(waiter, None)
        if queue.exchange is not None:
            wait_ended(node, queue, linger_ms)
        if not queue.waiters and node.queues.by_name.get(queue.name) is queue and is_idle(node, queue, IDLE_MS[0]):
            node.drop_queue(queue)
    waiter.queues = ()


def serve_ready(node: Node) -> None:
    """Give jobs to waiting clients until jobs or clients run out."""
    while node.ready:
        queue = next(iter(node.ready))
        del node.ready[queue]
        while queue.waiters and queue.length and not queue.pause & PAUSED_OUT:
            waiter = next(iter(queue.waiters))
            (job,) = fetch(node, queue, 1, waiter.lease_ms, waiter.begin_max)
            leave(node, waiter, BUSY_MS)
            node.port.answer(waiter, job)
        if queue.exchange is not None:
            _trade(node, queue)


def take_back(node: Node, jobs: list[Job]) -> None:
    """Queue jobs again that a client was to get and never got; others who wait may have them at once."""
    for job in jobs:
        unfetch(node, job)
    serve_ready(node)


def _trade(node: Node, queue: Queue) -> None:
    """Give what nobody here waits for to others; at the end of the turn they hear who waits here."""
    if queue.length:
        give_wanted(node, queue)
    node.untold[queue] = None


def set_pause(node: Node, queue: Queue, flags: int) -> None:
    """Change a queue's pause state, write it down, and serve those who waited for it to end."""
    queue.pause = flags
    if node.journal is not None:
        node.journal.paused(queue.name, flags)
    if not flags & PAUSED_OUT and queue.length:
        node.ready[queue] = None
    if queue.waiters and queue.exchange is not None:
        retell(node, queue)


def heard_pause(node: Node, peer: Peer, message: bus.Message) -> None:
    """Pause or resume a queue, as another node was told to."""
    flags, name = bus.name_of(message)
    flags &= PAUSED_IN | PAUSED_OUT
    queue = node.queue(name) if flags else node.queues.by_name.get(name)
    if queue is not None and queue.pause != flags:
        set_pause(node, queue, flags)


def refuse_waiters(node: Node) -> None:
    """Send everybody away from a node that is leaving."""
    for queue in list(node.queues.by_name.values()):
        for waiter in list(queue.waiters):
            leave(node, waiter, 0)
            node.port.answer(waiter, Refused(*refusals.NODE_LEAVING))
        if queue.exchange is not None and queue.exchange.told:
            retell(node, queue)


def tick(node: Node) -> bool:
    """Do what is due by now; True if more is due, so that the shell comes back soon."""
    handled = 0
    for item in node.timers.pop_due(node.now_ms, WAKES_MAX):
        handled += 1
        if isinstance(item, Job):
            wake(node, item)
        elif isinstance(item, Waiter):
            leave(node, item, SLICE_MS)
            node.port.answer(item, None)
        elif isinstance(item, Addition):
            wake_addition(node, item)
        else:
            assert isinstance(item, Exchange)
            wake_exchange(node, item)
    serve_ready(node)
    return handled == WAKES_MAX
