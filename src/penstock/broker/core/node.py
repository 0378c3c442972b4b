"""All state of one node, and its clock.

The functions that change it live in the modules beside this one, each taking the node first. The shell (a server, or
the simulator) owns a node: it sets the clock before every input, calls those functions, and after each command
`serve_ready`, so that clients who wait get what has just arrived. What the node has to say to the outside goes through
its two ports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.core.ids import Entropy, IdSource
from penstock.broker.core.jobs import Holders, Job
from penstock.broker.core.membership import Cluster
from penstock.broker.core.memory import Memory
from penstock.broker.core.queues import QUEUE_BYTES, Queue
from penstock.broker.core.registry import JobTable, QueueTable
from penstock.broker.core.timers import Timers

if TYPE_CHECKING:
    from penstock.broker.core.blocking import Waiter
    from penstock.broker.core.refusals import Refused
    from penstock.broker.core.tokens import Claim

JITTER_MS: Final = 250  # requeue times are spread by this, so that holders of a job don't requeue it all at once
JITTERS: Final = 1024  # how many different ones are prepared: a call for randomness a job would cost too much
NS_PER_MS: Final = 1_000_000


class Port(Protocol):
    """How a node answers clients that waited."""

    def answer(self, waiter: Waiter, outcome: Job | Refused | None) -> None:
        """Give a waiting client its job, a refusal, or None when its time is over."""


class JournalPort(Protocol):
    """What a node writes down. A record must be safe before the reply of the command that caused it leaves."""

    def added(self, jobs: list[Job]) -> None:
        """Note that jobs are held here. They differ in id, creation time and body only."""

    def removed(self, job_id: bytes) -> None:
        """Note that a job must not come back."""

    def delivered(self, jobs: list[Job]) -> None:
        """Note that jobs go out to a client; those of retry 0 must not come back."""

    def changed(self, job: Job) -> None:
        """Note a job's state, counters, requeue time and lease."""

    def paused(self, name: bytes, pause: int) -> None:
        """Note a queue's pause state."""


class Node:
    """One node: what it knows, and what time it is."""

    def __init__(self, node_id: bytes, entropy: Entropy, port: Port, memory: Memory | None = None) -> None:
        self.now_ms = 0  # monotonic
        self.wall_offset_ms = 0  # wall clock minus monotonic clock
        self.port = port
        self.journal: JournalPort | None = None
        self.entropy = entropy
        self.cluster = Cluster(node_id)
        self.memory = memory or Memory()
        self.jobs = JobTable()
        self.queues = QueueTable()
        self.timers = Timers()
        self.ready: dict[Queue, None] = {}  # queues with both jobs and waiters
        self.claims: dict[bytes, Claim] = {}
        self.adopt_id(node_id)
        self._jitters = [value % (2 * JITTER_MS) - JITTER_MS for value in _u16(entropy(2 * JITTERS))]
        self._jitter_at = 0
        self.last_ctime = 0  # creation times strictly grow, even if the wall clock doesn't
        self._last_token = 0

    def adopt_id(self, node_id: bytes) -> None:
        """Take an id, at start or after CLUSTER RESET HARD."""
        self.cluster.my_id = node_id
        self.ids = IdSource(node_id, self.entropy)
        self.alone = Holders(frozenset((node_id,)))  # shared by every job that only this node holds

    @property
    def wall_ms(self) -> int:
        """The wall clock, in milliseconds."""
        return self.now_ms + self.wall_offset_ms

    def seen_ctime(self, ctime: int) -> None:
        """Make sure that new jobs come after one of ours that was restored."""
        self.last_ctime = max(self.last_ctime, ctime)

    def new_token(self) -> int:
        """Make a lease's token: never given before, also not before a restart."""
        self._last_token = max(self._last_token + 1, self.wall_ms << 20)
        return self._last_token

    def seen_token(self, token: int) -> None:
        """Make sure that new tokens differ from one that was restored."""
        self._last_token = max(self._last_token, token)

    def after_retry(self, retry_ms: int) -> int:
        """Tell when a job that starts its retry period now is due, with jitter."""
        self._jitter_at = at = (self._jitter_at + 1) & (JITTERS - 1)
        return self.now_ms + retry_ms + self._jitters[at]

    def queue(self, name: bytes) -> Queue:
        """Find a queue, or make it."""
        queue = self.queues.by_name.get(name)
        if queue is None:
            queue = self.queues.create(name, self.now_ms)
            self.memory.used_bytes += QUEUE_BYTES + len(name)
        return queue

    def drop_queue(self, queue: Queue) -> None:
        """Forget an empty queue."""
        queue.clear()
        self.queues.remove(queue)
        self.memory.used_bytes -= QUEUE_BYTES + len(queue.name)


def _u16(data: bytes) -> memoryview:
    return memoryview(data).cast("H")
