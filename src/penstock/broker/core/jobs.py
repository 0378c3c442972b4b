"""The job record of a node, its states, and the rules of its delivery.

A million of these live in one process, so the record has slots, shares what many jobs have in common (`Rules`,
`Holders`) and keeps no field that can be derived.

State        meaning                                               leaves by
wait-repl    added here, too few nodes have confirmed a copy yet   enough confirmations, or failure
active       known, not in a queue: delayed, or out with a worker  its requeue time, NACK, ENQUEUE
queued       waiting in its queue on this node                     a fetch, DEQUEUE, WORKING
acked        finished; stays until every holder knows              garbage collection (core.acks)
gone         removed; a reference to it may still exist            -
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.core.timers import Timed

if TYPE_CHECKING:
    from penstock.broker.core.replication import Addition
    from penstock.broker.core.tokens import Claim
    from penstock.wire.record import JobRecord

WAIT_REPL: Final = 0
ACTIVE: Final = 1
QUEUED: Final = 2
ACKED: Final = 3
GONE: Final = 4
STATE_NAMES: Final = (b"wait-repl", b"active", b"queued", b"acked")

# Flags that travel and are stored with a job.
BCAST_QUEUED: Final = 1  # the other holders are told of the next enqueue, and it counts as a delivery
BCAST_WILLQUEUE: Final = 2  # warn the other holders half a second before the requeue
DELIVERED: Final = 4  # fetched at least once here
STORED_FLAGS: Final = BCAST_QUEUED | BCAST_WILLQUEUE | DELIVERED
# Flags of this process alone.
LISTED: Final = 8  # an entry of its queue's order still points here, valid or not
OUT: Final = 32  # with a client of this node, within its retry or lease time
GIVEN: Final = 128  # handed to another node for its clients, within that time
AHEAD: Final = 512  # leased to a client that has not begun to work on it: no try is counted yet
RETURNING: Final = 64  # nacked with a delay: others are told when it is queued
IMPORTED: Final = 256  # given by another node, and not fetched yet: it may go back (core.federation)
MOVED: Final = 1024  # another node gave it to us when it was last queued here
GIVEN_BACK: Final = 2048  # it was last queued because a client gave it back, here or where it came from
OUT_THERE: Final = 4096  # the node that has it gave it to a client, or keeps it for later
TAKING: Final = 8192  # the node that had it in its queue has failed: this one is about to queue it, uncounted
ACK_NOTED: Final = 16  # its ack is journaled as a state; its removal will be when all holders have the ack

CACHE_MAX: Final = 4096  # entries of each cache; when it is full, it is cleared
COUNTER_MASK: Final = 0xFFFF  # nacks and deliveries are 16 bit on the wire and on disk


class Rules(NamedTuple):
    """How a job wants to be delivered; one object is shared by all jobs with the same rules."""

    replicate: int
    delay_s: int
    retry_s: int
    retry_ms: int

    @classmethod
    def of(cls, replicate: int, delay_s: int, retry_s: int) -> Rules:
        """Make rules from what a record stores."""
        return cls(replicate, delay_s, retry_s, retry_s * 1000)


NO_COUNTS: Final[dict[bytes, int]] = {}  # of holders without an owner: nothing is counted


class Holders:
    """Which nodes may hold a copy of a job. Jobs with the same holders share one object (`Node.held_by`)."""

    __slots__ = ("copies", "delayed", "delivered", "is_given", "owner")

    def __init__(self, delivered: frozenset[bytes], owner: bytes = b"", is_given: bool = False) -> None:
        self.delivered = delivered
        self.owner = owner  # the other node that has the job, if that is known (core.owners)
        self.is_given = is_given  # this node gave it the job, which other holders may not know
        # By queue: how many jobs here have these holders, if there is an owner; those with a delay are counted apart.
        self.copies: dict[bytes, int] = {} if owner else NO_COUNTS
        self.delayed: dict[bytes, int] = {} if owner else NO_COUNTS


class Confirming(Holders):
    """The holders of one job that waits for confirmations: of copies (wait-repl), or of its ack (acked)."""

    __slots__ = ("addition", "confirmed", "gc_tries", "unknown_holders")

    def __init__(self, delivered: frozenset[bytes], confirmed: set[bytes], addition: Addition | None) -> None:
        super().__init__(delivered)
        self.confirmed = confirmed
        self.addition = addition  # what it was added with, while in wait-repl
        self.gc_tries = 0
        self.unknown_holders: dict[bytes, bytes] | None = (
            None  # holders that this node doesn't know, and the peer that named each
        )


class Job(Timed):
    """One job as this node knows it. Times are monotonic milliseconds of this process; 0 means never."""

    __slots__ = (
        "body",
        "claim",
        "ctime",
        "deliveries",
        "expires_at",
        "flags",
        "holders",
        "id",
        "nacks",
        "queue",
        "requeue_at",
        "rules",
        "state",
        "token",
        "tries",
    )

    def __init__(
        self,
        job_id: bytes,
        queue: bytes,
        body: bytes,
        rules: Rules,
        ctime: int,
        expires_at: int,
        holders: Holders,
        state: int = ACTIVE,
        flags: int = 0,
        requeue_at: int = 0,
        wake_at: int = 0,
    ) -> None:
        self.id = job_id
        self.queue = queue  # the name: a queue may be dropped and created again while its jobs are out
        self.body = body
        self.rules = rules
        self.ctime = ctime  # creation, wall nanoseconds, strictly increasing on the creating node
        self.expires_at = expires_at
        self.holders = holders
        self.state = state
        self.flags = flags
        self.requeue_at = requeue_at
        self.wake_at = wake_at  # set here and not by Timed, whose call would cost more than the store
        self.nacks = 0
        self.deliveries = 0
        self.tries = 0  # leases under which work on it began; see `begin`
        self.token = 0  # of the lease it is out with; 0 = fetched without one
        self.claim: Claim | None = None


class RecordShape:
    """What a job record says apart from id, times and body. Jobs that were added alike share it."""

    __slots__ = ("deliveries", "flags", "holders", "nacks", "nodes", "owned", "queue", "rules", "state")

    def __init__(self, record: JobRecord, queue: bytes, rules: Rules, holders: Holders) -> None:
        self.queue = queue
        self.rules = rules
        self.nodes = frozenset(record.nodes)
        self.holders = holders
        self.owned = holders  # the same with the node that last sent such a job as its owner
        self.state = record.state
        self.flags = record.flags & STORED_FLAGS
        self.nacks = record.nacks
        self.deliveries = record.deliveries


class RecordCache:
    """Shapes of records that were read, and templates for records to be written: each is worked out once."""

    def __init__(self) -> None:
        self.epoch = -1  # of the cluster, for which the shapes hold
        self.shapes: dict[bytes, RecordShape] = {}
        self.templates: dict[tuple[object, ...], bytes] = {}
        self._rules: dict[tuple[int, int, int], Rules] = {}

    def rules_of(self, record: JobRecord) -> Rules:
        """Return the rules of a record: one object for all records with the same."""
        terms = (record.replicate, record.delay, record.retry)
        rules = self._rules.get(terms)
        if rules is None:
            if len(self._rules) >= CACHE_MAX:
                self._rules.clear()
            rules = self._rules[terms] = Rules.of(*terms)
        return rules

    def keep(self, key: bytes, shape: RecordShape) -> None:
        """Keep the shape of a record, unless it has no key."""
        if key:
            if len(self.shapes) >= CACHE_MAX:
                self.shapes.clear()
            self.shapes[key] = shape


def is_given_back(job: Job) -> bool:
    """Whether an active job was nacked here with a delay: its next queueing counts nothing more."""
    return job.state == ACTIVE and not job.token and job.flags & (DELIVERED | BCAST_QUEUED) == DELIVERED


def is_out(job: Job) -> bool:
    """Whether a client of this node has a job."""
    return job.state == ACTIVE and bool(job.token or (job.flags & OUT and not is_given_back(job)))


def tries_before(job: Job) -> int:
    """Return how many deliveries of a job came before the present lease.

    The original's counters can't tell: `nacks` leaves out workers that died, and `deliveries` grows also when a node
    queues a job that another one had queued, which nobody was given. A client without leases counts once it nacks.
    """
    if job.token and not job.flags & AHEAD:
        return max(job.tries - 1, 0)
    return max(job.tries, job.nacks)


def attempt_of(job: Job) -> int:
    """Return the number of a job's present delivery, or of its next one, from 1, for events.

    With leases, deliveries without a try have the number of the next try.
    """
    tries = tries_before(job)
    return (tries if job.token else max(tries, job.nacks + job.deliveries)) + 1


def begin(job: Job) -> None:
    """Count a try: work on a job begins under its present lease."""
    job.flags &= ~AHEAD
    job.tries = min(max(job.tries, job.nacks) + 1, COUNTER_MASK)


# What a job takes in this process beside its body: the record, its id, the header of its body, its stamps, and its
# places in registry, queue order and timers. The compiled record keeps its numbers in place, the plain one as objects.
# Measured by tests/system/test_memory.py, which fails when the process grows by 25 % more or less than this says.
JOB_BYTES: Final = 345 if hasattr(Job, "__mypyc_attrs__") else 420
