"""All state of one node, and its clock.

The functions that change it live in the modules beside this one, each taking the node first. The shell (a server, or
the simulator) owns a node: it sets the clock before every input, calls those functions, and after each command
`serve_ready`, so that clients who wait get what has just arrived. What the node has to say to the outside goes through
its two ports.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.core.copies import Forms
from penstock.broker.core.exchange import EXCHANGE_BYTES
from penstock.broker.core.finished import Finished
from penstock.broker.core.ids import Entropy, IdSource
from penstock.broker.core.jobs import Holders, Job
from penstock.broker.core.membership import Cluster
from penstock.broker.core.memory import Memory
from penstock.broker.core.outbox import Outbox
from penstock.broker.core.queues import QUEUE_BYTES, Queue
from penstock.broker.core.registry import JobTable, QueueTable
from penstock.broker.core.timers import Timers

if TYPE_CHECKING:
    from penstock.broker.core.refusals import Refused
    from penstock.broker.core.tokens import Claim
    from penstock.broker.core.waiting import Addition, Waiter

JITTER_MS: Final = 250  # requeue times are spread by this, so that holders of a job don't requeue it all at once
CHANCES: Final = 1024  # random numbers kept ready: a call for randomness a job would cost too much
NS_PER_MS: Final = 1_000_000
HOLDERS_MAX: Final = 4096  # different sets of holders kept to be shared; beyond that the collection starts anew
NODE_TIMEOUT_MS: Final = 15_000
TOKEN_BITS: Final = 20  # of a token, below the millisecond with which the tokens of a process begin
EPOCHS_APART: Final = 1 << 20  # between two processes of a node, at least: more tokens than one can give in its life


class Port(Protocol):
    """How a node answers clients that waited."""

    def answer(self, waiter: Waiter, outcome: Job | Refused | None) -> None:
        """Give a waiting client its job, a refusal, or None when its time is over."""

    def added(self, addition: Addition) -> None:
        """Tell a producer what became of its jobs: those of the addition that are refused have a reason there."""


class JournalPort(Protocol):
    """What a node writes down. A record must be safe before the reply of the command that caused it leaves."""

    def added(self, jobs: list[Job]) -> None:
        """Note that jobs are held here. They differ in id, creation time and body only."""

    def removed(self, job_id: bytes) -> None:
        """Note that a job must not come back."""

    def delivered(self, jobs: list[Job]) -> None:
        """Note that jobs go out to a client; those of retry 0 must not come back."""

    def undelivered(self, job: Job) -> None:
        """Note that a job noted as delivered never went out, and waits in its queue again."""

    def changed(self, job: Job) -> None:
        """Note a job's state, counters, requeue time and lease."""

    def held(self, job: Job) -> None:
        """Note that more nodes hold a job than its record says."""

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
        self.outbox = Outbox(self.cluster)
        self.node_timeout_ms = NODE_TIMEOUT_MS
        self.crons = 0
        self.expired_jobs = 0  # in all queues, since the start or CONFIG RESETSTAT
        self.memory = memory or Memory()
        self.jobs = JobTable()
        self.queues = QueueTable()
        self.timers = Timers()
        self.ready: dict[Queue, None] = {}  # queues with both jobs and waiters
        self.untold: dict[Queue, None] = {}  # queues of which other nodes may have to hear at the end of the turn
        self.claims: dict[bytes, Claim] = {}
        self.acked: dict[bytes, Job] = {}  # acked here, and not yet known to be so everywhere
        self.finished = Finished(self.memory)
        self.unannounced: list[Job] = []  # restored, waiting until others can be asked whether they have them queued
        self.drain: Iterator[Job] = iter(())  # the jobs that are still to be handed over, while the node drains
        self.handovers: dict[Addition, None] = {}
        self.forms = Forms()
        self.refuses_copies = False  # while what it is given can't be written down
        self.adopt_id(node_id)
        self._chances = _u16(entropy(2 * CHANCES))
        self._jitters = [value % (2 * JITTER_MS) - JITTER_MS for value in self._chances]
        self._jitter_at = 0
        self._chance_at = 0
        self._turn = self.chance(1 << 16)  # where the choice of nodes for the next copies begins
        self.last_ctime = 0  # creation times strictly grow, even if the wall clock doesn't
        self.token_epoch = 0  # with which the tokens of this process begin; 0 until it is known
        self._last_token = 0

    def adopt_id(self, node_id: bytes) -> None:
        """Take an id, at start or after CLUSTER RESET HARD."""
        self.cluster.my_id = node_id
        self.ids = IdSource(node_id, self.entropy)
        self._holders: dict[frozenset[bytes], Holders] = {}
        self.alone = self.held_by(frozenset((node_id,)))  # shared by every job that only this node holds

    def take_cluster(self, cluster: Cluster) -> None:
        """Take over the cluster that nodes.conf tells of."""
        self.cluster = self.outbox.cluster = cluster
        self.adopt_id(cluster.my_id)

    def held_by(self, delivered: frozenset[bytes]) -> Holders:
        """Give the holders of a job that waits for nobody: one object for all jobs with the same."""
        holders = self._holders.get(delivered)
        if holders is None:
            if len(self._holders) >= HOLDERS_MAX:
                self._holders = {self.alone.delivered: self.alone}
            holders = self._holders[delivered] = Holders(delivered)
        return holders

    def chance(self, choices: int) -> int:
        """Give a random number below another."""
        self._chance_at = at = (self._chance_at + 1) & (CHANCES - 1)
        if not at:
            self._chances = _u16(self.entropy(2 * CHANCES))
        return self._chances[at] % choices

    def choose(self, count: int, but: frozenset[bytes]) -> list[bytes]:
        """Choose nodes for copies of a job: each in its turn, so that few different sets of holders come up."""
        ready = self.cluster.ready
        self._turn += 1
        chosen: list[bytes] = []
        for step in range(len(ready)):
            if len(chosen) == count:
                break
            peer = ready[(self._turn + step) % len(ready)]
            if peer.id not in but:
                chosen.append(peer.id)
        return chosen

    @property
    def wall_ms(self) -> int:
        """The wall clock, in milliseconds."""
        return self.now_ms + self.wall_offset_ms

    def seen_ctime(self, ctime: int) -> None:
        """Make sure that new jobs come after one of ours that was restored."""
        self.last_ctime = max(self.last_ctime, ctime)

    def begin_tokens(self, before: int) -> None:
        """Let the tokens of this process be larger than those of the last one, which began with `before`, if known.

        It is the time, so that nodes without a journal rarely repeat one; but a clock may have been set back.
        """
        self.token_epoch = max(self.wall_ms, before + EPOCHS_APART if before else 0)
        self._last_token = self.token_epoch << TOKEN_BITS

    def new_token(self) -> int:
        """Make a lease's token: larger than all before, also those before a restart."""
        if not self.token_epoch:
            self.begin_tokens(0)
        self._last_token += 1
        return self._last_token

    def renumber(self) -> None:
        """Begin the numbers of our messages: the upper half is of this process alone, the lower half counts."""
        self.outbox.sequence = int.from_bytes(self.entropy(4), "big") << 32

    def after_retry(self, retry_ms: int) -> int:
        """Tell when a job that starts its retry period now is due, with jitter."""
        self._jitter_at = at = (self._jitter_at + 1) & (CHANCES - 1)
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
        if queue.exchange is not None:
            self.timers.cancel(queue.exchange)
            queue.exchange = None  # they point at each other
            self.memory.used_bytes -= EXCHANGE_BYTES


def _u16(data: bytes) -> memoryview:
    return memoryview(data).cast("H")
