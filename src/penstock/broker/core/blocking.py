"""Clients that wait for a job, and how they are served.

A waiting client stands in the line of every queue it named. A queue that has jobs and waiters is `ready`; the shell
calls `serve_ready` after each command, so that nobody waits for a turn of the event loop. Each client gets one job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.core import refusals
from penstock.broker.core.delivery import fetch, wake
from penstock.broker.core.eviction import IDLE_MS, is_idle
from penstock.broker.core.jobs import Job
from penstock.broker.core.queues import PAUSED_OUT, Queue
from penstock.broker.core.refusals import Refused
from penstock.broker.core.timers import Timed

if TYPE_CHECKING:
    from penstock.broker.core.node import Node

WAKES_MAX: Final = 1000  # timers handled in one go: a few milliseconds, then clients have their turn


class Waiter(Timed):
    """One client that waits: on which queues, until when, and how it wants its job."""

    __slots__ = ("client", "counters", "lease_ms", "queues")

    def __init__(self, client: object, counters: bool, lease_ms: int) -> None:
        super().__init__(0)
        self.client = client
        self.counters = counters
        self.lease_ms = lease_ms
        self.queues: tuple[Queue, ...] = ()


def fetch_many(node: Node, names: list[bytes], count: int, lease_ms: int) -> list[Job]:
    """Take up to so many jobs, one from each queue in turn."""
    queues = [node.queue(name) for name in names]
    if len(queues) == 1:
        return [] if queues[0].pause & PAUSED_OUT else fetch(node, queues[0], count, lease_ms)
    jobs: list[Job] = []
    while True:
        before = len(jobs)
        for queue in queues:
            if queue.length and not queue.pause & PAUSED_OUT:
                jobs += fetch(node, queue, 1, lease_ms)
                if len(jobs) == count:
                    return jobs
        if len(jobs) == before:
            return jobs


def wait(node: Node, waiter: Waiter, names: list[bytes], timeout_ms: int) -> None:
    """Let a client wait in line at these queues; timeout 0 means for as long as it takes."""
    if node.cluster.leaving:
        raise Refused(*refusals.NODE_LEAVING)
    waiter.queues = tuple(dict.fromkeys(node.queue(name) for name in names))
    for queue in waiter.queues:
        queue.waiters[waiter] = None
    if timeout_ms:
        node.timers.set(waiter, node.now_ms + timeout_ms)


def leave(node: Node, waiter: Waiter) -> None:
    """Take a client out of all lines: it was served, its time is over, or it is gone."""
    node.timers.cancel(waiter)
    for queue in waiter.queues:
        queue.waiters.pop(waiter, None)
        if not queue.waiters and node.queues.by_name.get(queue.name) is queue and is_idle(node, queue, IDLE_MS[0]):
            node.drop_queue(queue)
    waiter.queues = ()


def serve_ready(node: Node) -> None:
    """Give jobs to waiting clients until jobs or clients run out."""
    while node.ready:
        queue = next(iter(node.ready))
        del node.ready[queue]
        while queue.waiters and queue.length:
            waiter = next(iter(queue.waiters))
            (job,) = fetch(node, queue, 1, waiter.lease_ms)
            leave(node, waiter)
            node.port.answer(waiter, job)


def refuse_waiters(node: Node) -> None:
    """Send everybody away from a node that is leaving."""
    for queue in list(node.queues.by_name.values()):
        for waiter in list(queue.waiters):
            leave(node, waiter)
            node.port.answer(waiter, Refused(*refusals.NODE_LEAVING))


def tick(node: Node) -> bool:
    """Do what is due by now; True if more is due, so that the shell comes back soon."""
    handled = 0
    for item in node.timers.pop_due(node.now_ms, WAKES_MAX):
        handled += 1
        if isinstance(item, Job):
            wake(node, item)
        else:
            assert isinstance(item, Waiter)
            leave(node, item)
            node.port.answer(item, None)
    serve_ready(node)
    return handled == WAKES_MAX
