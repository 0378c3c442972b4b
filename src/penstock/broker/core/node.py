"""All state of one node, and its clock.

The functions that change it are in the modules beside this one; each takes the node as its first argument, and
`inputs` lists those that a shell calls. The shell (a server, or the simulator) sets the clock before every input, and
calls `serve_ready` after each command, so that waiting clients get what has just arrived. The node reaches clients
through its port, the disk through its journal, and other nodes through its outbox.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.core.ids import Entropy, IdSource
from penstock.broker.core.jobs import Holders, Job, RecordCache
from penstock.broker.core.membership import Cluster
from penstock.broker.core.memory import Memory
from penstock.broker.core.outbox import Outbox
from penstock.broker.core.queues import QUEUE_BYTES, Queue
from penstock.broker.core.registry import Finished, JobTable, QueueTable
from penstock.broker.core.telling import Telling
from penstock.broker.core.timers import Timers

if TYPE_CHECKING:
    from penstock.broker.core.refusals import Refused
    from penstock.broker.core.replication import Addition
    from penstock.broker.core.tokens import Claim
    from penstock.broker.core.waiters import Waiter

JITTER_MS: Final = 250  # requeue times vary by this, so that the holders of a job don't requeue it at the same time
CHANCES: Final = 1024  # random numbers kept ready: a call to the entropy source for each job would cost too much
NS_PER_MS: Final = 1_000_000
HOLDERS_MAX: Final = 4096  # different sets of holders that are shared; above that the collection is cleared
NODE_TIMEOUT_MS: Final = 15_000
TOKEN_BITS: Final = 20  # of a token, below the millisecond that starts the tokens of a process
EPOCHS_APART: Final = 1 << 20  # at least, between two processes of a node: more tokens than one process can give


class Port(Protocol):
    """How a node answers clients that waited."""

    def answer(self, waiter: Waiter, outcome: Job | Refused | None) -> None:
        """Answer a waiting client: its job, a refusal, or None at its timeout."""

    def added(self, addition: Addition) -> None:
        """Answer a producer that waited for copies: `addition.refused` has the jobs that failed, with the reason."""


class JournalPort(Protocol):
    """What a node writes to its journal, before the replies of the turn are sent."""

    def added(self, jobs: list[Job]) -> None:
        """Jobs are held here. They differ in id, creation time and body only."""

    def removed(self, job_id: bytes) -> None:
        """A job must not be restored."""

    def delivered(self, jobs: list[Job]) -> None:
        """Jobs are delivered to a client; those of retry 0 must not be restored."""

    def undelivered(self, job: Job) -> None:
        """A job that was written as delivered never left the node, and is queued again."""

    def changed(self, job: Job) -> None:
        """A job's state, counters, requeue time or lease has changed."""

    def held(self, job: Job) -> None:
        """More nodes hold a job than its record says."""

    def paused(self, name: bytes, pause: int) -> None:
        """A queue's pause state has changed."""


class EventsPort(Protocol):
    """What a node says of the lives of its jobs, once for each fact: copies say nothing."""

    def added(self, jobs: list[Job]) -> None:
        """Jobs are accepted. They differ in id, creation time and body only."""

    def queued(self, job: Job) -> None:
        """A delay is over, or a client put an active job into its queue."""

    def reserved(self, jobs: list[Job]) -> None:
        """Jobs are delivered to `Node.client`."""

    def begun(self, job: Job) -> None:
        """Work on a job that was delivered ahead begins."""

    def extended(self, job: Job) -> None:
        """A lease has a later end."""

    def acked(self, job: Job) -> None:
        """A client has finished a job."""

    def acked_unknown(self, job_id: bytes) -> None:
        """A client has finished a job that this node doesn't know."""

    def nacked(self, job: Job, attempt: int, after_ms: int) -> None:
        """A client has returned a job."""

    def requeued(self, job: Job, attempt: int) -> None:
        """A job's retry time or lease is over, or its reply never left the node."""

    def expired(self, job: Job) -> None:
        """A job's time to live is over."""

    def removed(self, job: Job) -> None:
        """A command has deleted a job."""


class Node:
    """One node: all its state, and its clock."""

    def __init__(self, node_id: bytes, entropy: Entropy, port: Port, memory: Memory | None = None) -> None:
        self.now_ms = 0  # monotonic
        self.wall_offset_ms = 0  # wall clock minus monotonic clock
        self.port = port
        self.journal: JournalPort | None = None
        self.events: EventsPort | None = None
        self.client: object = None  # whose command runs, or who is served; for events
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
        self.untold: dict[Queue, None] = {}  # queues that other nodes may have to be told of at the end of the turn
        self.telling = Telling()
        self.failed: dict[bytes, None] = {}  # nodes that are marked as failed: their jobs are taken over
        self.takes_over = False  # that is under way
        self.takeover: Iterator[Job] = iter(())  # of the jobs here, those still to be looked at for that
        self.takeover_ms = 0  # when it begins again
        self.held_ms = -self.node_timeout_ms  # when it last began to hold deliveries back
        self.holds_until_ms = 0  # until then no job is delivered (core.takeover); 0: they are
        self.claims: dict[bytes, Claim] = {}
        self.acked: dict[bytes, Job] = {}  # acked here, and not confirmed by all holders yet
        self.finished = Finished(self.memory)
        self.unannounced: list[Job] = []  # restored, until the other holders can be asked
        self.drain: Iterator[Job] = iter(())  # while the node drains: the jobs still to be handed over
        self.handovers: dict[Addition, None] = {}
        self.copies: dict[Holders, None] = {}  # those that count copies of jobs which other nodes have
        self.record_cache = RecordCache()
        self.refuses_copies = False  # while the journal is loaded, or can't be written
        self.adopt_id(node_id)
        self._chances = _u16(entropy(2 * CHANCES))
        self._jitters = [value % (2 * JITTER_MS) - JITTER_MS for value in self._chances]
        self._jitter_at = 0
        self._chance_at = 0
        self._turn = self.chance(1 << 16)  # where the next choice of nodes for copies begins
        self.last_ctime = 0  # creation times strictly grow, even if the wall clock doesn't
        self.token_epoch = 0  # the start of this process's tokens; 0 until it is known
        self._last_token = 0

    def adopt_id(self, node_id: bytes) -> None:
        """Set the node's id, at the start or after CLUSTER RESET HARD."""
        self.cluster.my_id = node_id
        self.ids = IdSource(node_id, self.entropy)
        self._holders: dict[frozenset[bytes], Holders] = {}
        self._owned: dict[tuple[frozenset[bytes], bytes, bool], Holders] = {}
        self.alone = self.held_by(frozenset((node_id,)))  # shared by every job that only this node holds

    def take_cluster(self, cluster: Cluster) -> None:
        """Use the cluster that was read from nodes.conf."""
        self.cluster = self.outbox.cluster = cluster
        self.adopt_id(cluster.my_id)

    def held_by(self, delivered: frozenset[bytes], owner: bytes = b"", is_given: bool = False) -> Holders:
        """Return a set of holders, and the other node that has the job: one object for all jobs with the same."""
        if owner:
            owned = self._owned.get((delivered, owner, is_given))
            if owned is None:
                if len(self._owned) >= HOLDERS_MAX:
                    self._owned.clear()
                owned = self._owned[delivered, owner, is_given] = Holders(delivered, owner, is_given)
            return owned
        holders = self._holders.get(delivered)
        if holders is None:
            if len(self._holders) >= HOLDERS_MAX:
                self._holders = {self.alone.delivered: self.alone}
            holders = self._holders[delivered] = Holders(delivered)
        return holders

    def chance(self, choices: int) -> int:
        """Return a random number below `choices`."""
        self._chance_at = at = (self._chance_at + 1) & (CHANCES - 1)
        if not at:
            self._chances = _u16(self.entropy(2 * CHANCES))
        return self._chances[at] % choices

    def choose(self, count: int, but: frozenset[bytes]) -> list[bytes]:
        """Choose nodes for copies of a job, in turn, so that few different sets of holders come up."""
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
        """Make new creation times larger than that of a restored job."""
        self.last_ctime = max(self.last_ctime, ctime)

    def begin_tokens(self, before: int) -> None:
        """Start tokens above those of the last process, which started at `before`, if known.

        The start is the time, so that nodes without a journal rarely repeat one; but a clock may have been set back.
        """
        self.token_epoch = max(self.wall_ms, before + EPOCHS_APART if before else 0)
        self._last_token = self.token_epoch << TOKEN_BITS

    def new_token(self) -> int:
        """Return a new token for a lease: larger than all before, also those before a restart."""
        if not self.token_epoch:
            self.begin_tokens(0)
        self._last_token += 1
        return self._last_token

    def renumber(self) -> None:
        """Start the numbers of messages: the upper half is unique to this process, the lower half counts."""
        self.outbox.sequence = int.from_bytes(self.entropy(4), "big") << 32

    def after_retry(self, retry_ms: int) -> int:
        """Return when a retry period that starts now ends, with jitter."""
        self._jitter_at = at = (self._jitter_at + 1) & (CHANCES - 1)
        return self.now_ms + retry_ms + self._jitters[at]

    def queue(self, name: bytes) -> Queue:
        """Find a queue, or create it."""
        queue = self.queues.by_name.get(name)
        if queue is None:
            queue = self.queues.create(name, self.now_ms)
            self.memory.used_bytes += QUEUE_BYTES + len(name)
        return queue


def _u16(data: bytes) -> memoryview:
    return memoryview(data).cast("H")
