"""What a store can do. Each declares its set; what it lacks is refused with an error that names it."""

from collections.abc import Collection
from enum import StrEnum

from penstock.errors import Unsupported


class Capability(StrEnum):
    """A thing that a store may be able to do. The docs' table is printed from these."""

    DELAY = "delay"
    RESERVE = "reserve"
    EXTEND = "extend"
    TOKEN = "token"
    CLAIM = "claim"
    PEEK = "peek"
    REMOVE = "remove"
    HEADERS = "headers"
    UNIQUE = "unique"
    TTL = "ttl"
    RETRY = "retry"
    REPLICATE = "replicate"
    ATOMIC_MOVE = "atomic_move"
    TRANSACTION = "transaction"
    SHARED_PAUSE = "shared_pause"
    HISTORY = "history"
    VALUES = "values"


# What most stores can do; each declares in what it differs.
STANDARD = frozenset(
    {
        Capability.DELAY,
        Capability.RESERVE,
        Capability.EXTEND,
        Capability.TOKEN,
        Capability.CLAIM,
        Capability.PEEK,
        Capability.REMOVE,
        Capability.HEADERS,
        Capability.UNIQUE,
        Capability.ATOMIC_MOVE,
        Capability.SHARED_PAUSE,
        Capability.VALUES,
    }
)

MEANING = {
    Capability.DELAY: "jobs that wait for their time",
    Capability.RESERVE: "jobs that come back unless they are acked",
    Capability.EXTEND: "longer leases while a job runs",
    Capability.TOKEN: "a stale worker can't ack, nack or extend",
    Capability.CLAIM: "many jobs reserved under one key",
    Capability.PEEK: "jobs can be read without taking them",
    Capability.REMOVE: "waiting jobs removed by id",
    Capability.HEADERS: "headers beside the payload",
    Capability.UNIQUE: "no second job under one key",
    Capability.TTL: "jobs that expire",
    Capability.RETRY: "a retry time for each job",
    Capability.REPLICATE: "a number of copies for each job",
    Capability.ATOMIC_MOVE: "a job moves between queues in one step",
    Capability.TRANSACTION: "a push inside the caller's transaction",
    Capability.SHARED_PAUSE: "a pause that all processes see",
    Capability.HISTORY: "ended jobs are kept for a while",
    Capability.VALUES: "values kept under a key for a time",
}


def require(having: Collection[Capability], capability: Capability, store: str) -> None:
    """Refuse what the store can't do."""
    if capability not in having:
        raise lacking(capability, store)


def lacking(capability: Capability, store: str) -> Unsupported:
    """Return the error for what a store can't do."""
    return Unsupported(f"{store} can't do this: it lacks {capability} ({MEANING[capability]})", capability)
