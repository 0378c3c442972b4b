"""Freeing memory: finished jobs are evicted under memory pressure, and queues without traffic are dropped.

Everything beside jobs that a client makes the node hold (queues, waits, claims) first asks for memory here.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core.acks import remove
from penstock.broker.core.federation import EXCHANGE_BYTES
from penstock.broker.core.jobs import ACKED, DELIVERED, Job
from penstock.broker.core.node import Node
from penstock.broker.core.queues import QUEUE_BYTES, Queue
from penstock.broker.core.refusals import Refused

LOOKS_IN_VAIN_MAX: Final = 256  # jobs seen in a row without one to evict, before a command gives up
IDLE_MS: Final = (300_000, 10_000, 2_000)  # a queue without traffic is dropped after this time, by memory level
SAMPLE_QUEUES: Final = 20  # queues a sample, in the search for idle ones


def make_room(node: Node) -> bool:
    """Evict until the node is below level 2 again; False if it stays above."""
    memory = node.memory
    if not memory.max_bytes or memory.used_bytes <= memory.full_bytes:
        return True
    if not memory.evict:
        return False
    if node.jobs.count:
        _evict_jobs(node)
    else:
        drop_idle_queues(node)
    return memory.used_bytes <= memory.full_bytes


def _make_room_for(node: Node, more_bytes: int) -> bool:
    """Whether the node can hold this much more, after dropping idle queues if needed."""
    if not node.memory.has_room(more_bytes):
        drop_idle_queues(node)
    return node.memory.has_room(more_bytes)


def need_memory(node: Node, more_bytes: int) -> None:
    """Refuse a command that would make the node hold more than maxmemory."""
    if not _make_room_for(node, more_bytes):
        memory = node.memory
        raise Refused(
            "OOM",
            f"used memory must be at most {memory.max_bytes} bytes (maxmemory), and would be "
            f"{memory.used_bytes + more_bytes}",
        )


def _missing_bytes(node: Node, names: list[bytes]) -> int:
    """Return what those of these queues would take that don't exist."""
    by_name = node.queues.by_name
    return sum([QUEUE_BYTES + len(name) for name in {name for name in names if name not in by_name}])


def need_queues(node: Node, names: list[bytes]) -> list[Queue]:
    """Return these queues, created where they don't exist; refuse the command if that takes too much memory."""
    need_memory(node, _missing_bytes(node, names))
    return [node.queue(name) for name in names]


def find_queues(node: Node, names: list[bytes]) -> list[Queue]:
    """Return these queues; without room for those that don't exist, only the others."""
    by_name = node.queues.by_name
    if len(names) == 1 and names[0] in by_name:
        return [by_name[names[0]]]
    missing_bytes = _missing_bytes(node, names)
    if not missing_bytes or _make_room_for(node, missing_bytes):
        return [node.queue(name) for name in names]
    return [by_name[name] for name in names if name in by_name]


def _evict_jobs(node: Node) -> None:
    """Walk over all pages once; stop early after too many jobs in a row that can't be evicted."""
    memory = node.memory
    pages = node.jobs.flat
    in_vain = 0
    for _ in pages:
        page = pages[memory.next_sample(1) % len(pages)]
        evictable = [job for job in page.values() if _is_evictable(job)]
        in_vain = 0 if evictable else in_vain + len(page)
        if in_vain >= LOOKS_IN_VAIN_MAX:
            return
        for job in evictable:
            remove(node, job)
            if memory.used_bytes <= memory.full_bytes:
                return


def _is_evictable(job: Job) -> bool:
    return job.state == ACKED or (job.rules.retry_s == 0 and bool(job.flags & DELIVERED))


def drop_queue(node: Node, queue: Queue) -> None:
    """Drop an empty queue."""
    queue.clear()
    node.queues.remove(queue)
    node.memory.used_bytes -= QUEUE_BYTES + len(queue.name)
    if queue.exchange is not None:
        node.timers.cancel(queue.exchange)
        queue.exchange = None  # they point at each other
        node.memory.used_bytes -= EXCHANGE_BYTES


def is_idle(node: Node, queue: Queue, idle_ms: int) -> bool:
    """Whether a queue may be dropped."""
    if queue.length or queue.waiters or queue.pause or node.now_ms - queue.accessed_ms < idle_ms:
        return False
    exchange = queue.exchange
    return exchange is None or not (exchange.told or exchange.is_wanted(node.now_ms))


def drop_idle_queues(node: Node) -> None:
    """Drop idle queues, sample by sample, while more than a tenth of a sample is idle."""
    idle_ms = IDLE_MS[node.memory.level()]
    while len(node.queues):
        sample = node.queues.some(node.memory.next_sample(SAMPLE_QUEUES), SAMPLE_QUEUES)
        idle = [queue for queue in sample if is_idle(node, queue, idle_ms)]
        for queue in idle:
            drop_queue(node, queue)
        if len(idle) * 10 <= len(sample):
            return
