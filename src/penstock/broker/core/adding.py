"""Adding jobs.

The options of an add are parsed once into `AddRules`; the same object then serves every add with the same options.
Parts of it depend on the cluster's size (the default of REPLICATE), so they are resolved again when that changes.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core import refusals
from penstock.broker.core.delivery import first_state, place_new, queue_new
from penstock.broker.core.ids import id_suffix
from penstock.broker.core.jobs import JOB_BYTES, QUEUED, WAIT_REPL, Job, Rules
from penstock.broker.core.membership import Cluster
from penstock.broker.core.node import NS_PER_MS, Node
from penstock.broker.core.queues import PAUSED_IN, Queue
from penstock.broker.core.refusals import Refused
from penstock.broker.core.registry import PAGE_MASK
from penstock.broker.core.replication import Addition, give_to_original, originals, replicate, replicate_unasked

REPLICATE_DEFAULT: Final = 3
TTL_DEFAULT_S: Final = 86400
RETRY_DEFAULT_S: Final = 300  # or a tenth of the time to live, where that is less


class AddRules:
    """The options of an add, and the values derived from them."""

    __slots__ = (
        "asynchronous",
        "careful",
        "delay_s",
        "epoch",
        "maxlen",
        "replicate",
        "retry_s",
        "rules",
        "suffix",
        "timeout_ms",
        "ttl_ms",
        "ttl_s",
    )

    def __init__(self) -> None:
        self.replicate: int | None = None
        self.delay_s = 0
        self.retry_s: int | None = None
        self.ttl_s = TTL_DEFAULT_S
        self.maxlen: int | None = None
        self.asynchronous = False
        self.timeout_ms = 0
        self.epoch = -1  # of the cluster, for which the other fields were resolved

    def resolve(self, cluster: Cluster) -> None:
        """Fill in the defaults for a cluster of this size; refuse options that contradict each other."""
        replicate = self.replicate or min(REPLICATE_DEFAULT, cluster.size)
        retry_s = self.retry_s
        if retry_s is None:
            retry_s = max(1, min(RETRY_DEFAULT_S, self.ttl_s // 10))
        if replicate > 1 and retry_s == 0:
            raise Refused(*refusals.RETRY_0_REPLICATED)
        if self.delay_s >= self.ttl_s:
            raise Refused(*refusals.DELAY_BEYOND_TTL)
        self.rules = Rules.of(replicate, self.delay_s, retry_s)
        self.suffix = id_suffix(self.ttl_s, retry_s)
        self.ttl_ms = self.ttl_s * 1000
        self.careful = replicate > 1 or self.maxlen is not None or cluster.leaving  # needs more checks
        self.epoch = cluster.epoch


def add(node: Node, name: bytes, bodies: list[bytes], terms: AddRules) -> list[bytes] | Addition:
    """Add jobs: all of them, or none and a refusal. They are queued, or wait for their delay.

    Returns their ids, or the `Addition` that the producer waits for until other nodes hold copies.
    """
    queue = node.queues.by_name.get(name)
    external = False
    if queue is None or queue.pause or terms.epoch != node.cluster.epoch or terms.careful:
        queue = check_add(node, name, len(bodies), terms)
        external = node.cluster.leaving or node.memory.used_bytes > node.memory.warn_bytes
    elif node.memory.used_bytes > node.memory.warn_bytes:
        external = True
        _check_nodes(node, terms.rules.replicate, short_of_memory=True)
    if terms.rules.replicate > 1 or external:
        return _add_copied(node, name, bodies, terms, external)
    return _register(node, name, queue, bodies, terms)


def check_add(node: Node, name: bytes, count: int, terms: AddRules) -> Queue | None:
    """Refuse an add that can't be done now; return the queue if it exists."""
    cluster = node.cluster
    if terms.epoch != cluster.epoch:
        terms.resolve(cluster)
    short_of_memory = node.memory.used_bytes > node.memory.warn_bytes
    if terms.rules.replicate > 1 or cluster.leaving or short_of_memory:
        _check_nodes(node, terms.rules.replicate, short_of_memory)
    queue = node.queues.by_name.get(name)
    if terms.maxlen is not None and (queue.length if queue is not None else 0) + count > terms.maxlen:
        raise Refused(*refusals.QUEUE_TOO_LONG)
    if queue is not None and queue.pause & PAUSED_IN:
        raise Refused(*refusals.QUEUE_PAUSED)
    return queue


def _check_nodes(node: Node, replicate: int, short_of_memory: bool) -> None:
    """Refuse an add for which too few nodes are reachable; this node counts only if it may keep a copy."""
    external = node.cluster.leaving or short_of_memory
    missing = (replicate if external else replicate - 1) - len(node.cluster.reachable)
    if missing <= 0:
        return
    if not external or missing > 1:
        raise Refused(*refusals.NOT_ENOUGH_NODES)
    if node.cluster.leaving:
        raise Refused(*refusals.LEAVING_AND_ONE_SHORT)
    raise Refused(*refusals.FULL_AND_ONE_SHORT)


def _add_copied(
    node: Node, name: bytes, bodies: list[bytes], terms: AddRules, external: bool
) -> list[bytes] | Addition:
    """Create jobs that other nodes hold too."""
    expires_at = node.now_ms + terms.ttl_ms
    ctime = _take_ctimes(node, len(bodies))
    ids = node.ids.new(terms.suffix, len(bodies))
    jobs = [
        Job(job_id, name, body, terms.rules, ctime + number, expires_at, node.alone, WAIT_REPL)
        for number, (job_id, body) in enumerate(zip(ids, bodies, strict=True))
    ]
    if external and not terms.rules.retry_s and len(originals(node)) == len(node.cluster.others):
        if give_to_original(node, jobs):
            if node.events is not None:
                node.events.added(jobs)
            return ids
        raise Refused(*(refusals.LEAVING_AND_ONE_SHORT if node.cluster.leaving else refusals.FULL_AND_ONE_SHORT))
    if terms.asynchronous and external:
        if replicate_unasked(node, jobs, external):
            if node.events is not None:
                node.events.added(jobs)
            return ids
        raise Refused(*(refusals.LEAVING_AND_ONE_SHORT if node.cluster.leaving else refusals.FULL_AND_ONE_SHORT))
    for job in jobs:
        node.jobs.put(job)
    node.memory.used_bytes += JOB_BYTES * len(jobs) + sum(map(len, bodies))
    if not terms.asynchronous:
        return replicate(node, jobs, external, terms.timeout_ms)
    replicate_unasked(node, jobs, external)
    place_new(node, jobs)
    return ids


def _take_ctimes(node: Node, count: int) -> int:
    """Reserve creation times, which strictly grow; return the first."""
    ctime = max((node.now_ms + node.wall_offset_ms) * NS_PER_MS, node.last_ctime + 1)
    node.last_ctime = ctime + count - 1
    return ctime


def _register(node: Node, name: bytes, queue: Queue | None, bodies: list[bytes], terms: AddRules) -> list[bytes]:
    """Create jobs that only this node holds, and queue them or start their delay.

    This is the hottest loop of the node, so registry and timers are written out here in place of calls, and what all of
    these jobs share is made once.
    """
    rules = terms.rules
    state, flags, requeue_at = first_state(node, rules)
    expires_at = node.now_ms + terms.ttl_ms
    wake_at = min(requeue_at, expires_at) if requeue_at else expires_at
    timed = node.timers.slot(wake_at).items
    if state == QUEUED and queue is None:
        queue = node.queue(name)
    if queue is not None:
        name = queue.name  # one object for all of its jobs
    ctime = _take_ctimes(node, len(bodies))
    pages, holders = node.jobs.pages, node.alone
    jobs: list[Job] = []
    ids = node.ids.new(terms.suffix, len(bodies))
    body_bytes = 0
    for job_id, body in zip(ids, bodies, strict=True):
        job = Job(job_id, name, body, rules, ctime, expires_at, holders, state, flags, requeue_at, wake_at)
        ctime += 1
        pages[job_id[11]][job_id[12] & PAGE_MASK][job_id] = job
        timed.append(job)
        jobs.append(job)
        body_bytes += len(body)
    node.jobs.count += len(jobs)
    node.memory.used_bytes += JOB_BYTES * len(jobs) + body_bytes
    if queue is not None and state == QUEUED:
        queue_new(node, queue, jobs)
    if node.journal is not None:
        node.journal.added(jobs)
    if node.events is not None:
        node.events.added(jobs)
    return ids
