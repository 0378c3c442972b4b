"""The job record of a node, its states, and the rules of its delivery.

A million of these live in one process, so the record has slots, shares what many jobs have in common (`Rules`,
`Holders`) and keeps no field that can be derived.

State        meaning                                               leaves by
wait-repl    added here, too few nodes have confirmed a copy yet   enough confirmations, or failure
active       known, not in a queue: delayed, or out with a worker  its requeue time, NACK, ENQUEUE
queued       waiting in its queue on this node                     a fetch, DEQUEUE, WORKING
acked        finished; stays until every holder knows              garbage collection (core.acks)
gone         no longer registered; somebody may still look at it   -
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.core.timers import Timed

if TYPE_CHECKING:
    from penstock.broker.core.tokens import Claim
    from penstock.broker.core.waiting import Addition

WAIT_REPL: Final = 0
ACTIVE: Final = 1
QUEUED: Final = 2
ACKED: Final = 3
GONE: Final = 4
STATE_NAMES: Final = (b"wait-repl", b"active", b"queued", b"acked")

# Flags that travel and are stored with a job.
BCAST_QUEUED: Final = 1  # the next enqueue must be told to the other holders, and counts as a delivery
BCAST_WILLQUEUE: Final = 2  # warn the other holders half a second before the requeue
DELIVERED: Final = 4  # fetched at least once here
STORED_FLAGS: Final = BCAST_QUEUED | BCAST_WILLQUEUE | DELIVERED
# Flags of this process alone.
LISTED: Final = 8  # an entry of its queue's order still points here, valid or not
OUT: Final = 32  # with a client of this node, whose time isn't over
GIVEN: Final = 128  # with another node, for whose clients the same holds
AHEAD: Final = 512  # leased to a client that has not begun to work on it: no try yet
RETURNING: Final = 64  # given back with a delay: others hear when it is queued
IMPORTED: Final = 256  # given by another node, and not fetched yet: it may go back (core.federation)
ACK_NOTED: Final = 16  # its ack is written down as a state; its removal will be when everybody has the ack

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


class Holders:
    """Which nodes may hold a copy of a job. Jobs that wait for nothing share it (`Node.held_by`)."""

    __slots__ = ("delivered",)

    def __init__(self, delivered: frozenset[bytes]) -> None:
        self.delivered = delivered


class Confirming(Holders):
    """The holders of one job that waits: for copies (wait-repl), or for its ack to be everywhere (acked)."""

    __slots__ = ("addition", "confirmed", "gc_tries", "strangers")

    def __init__(self, delivered: frozenset[bytes], confirmed: set[bytes], addition: Addition | None) -> None:
        super().__init__(delivered)
        self.confirmed = confirmed
        self.addition = addition  # what it was added with, while in wait-repl
        self.gc_tries = 0
        self.strangers: dict[bytes, bytes] | None = None  # holders that this node doesn't know, and who told it of them


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
        self.queue = queue  # the name: a queue may be forgotten while its jobs are out, and made again
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


def is_given_back(job: Job) -> bool:
    """Whether an active job was given back here, for later: its next queueing is no more than that."""
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


def begin(job: Job) -> None:
    """Count a try: work on a job begins under its present lease."""
    job.flags &= ~AHEAD
    job.tries = min(max(job.tries, job.nacks) + 1, COUNTER_MASK)


# What a job takes in this process beside its body: the record, its id, the header of its body, its stamps, and its
# places in registry, queue order and timers. The compiled record keeps its numbers in place, the plain one as objects.
# Measured by tests/system/test_memory.py, which fails when the process grows by 25 % more or less than this says.
JOB_BYTES: Final = 345 if hasattr(Job, "__mypyc_attrs__") else 420
