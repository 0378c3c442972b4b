"""The tokens of leases, and claims: many leased jobs under one key.

After a plain fetch the retry time still counts from the queueing, and the ack is by id alone. A lease starts the retry
time at the delivery, with the length that the client asked for, and comes with a token. The token is valid until the
job is queued again for any reason; after that it is stale, and a command that shows it changes nothing and is told so.

A lease counts as a try (`Job.tries`) when work on the job begins: at the delivery, or, for a client that takes jobs
ahead, when that client says so. The other holders get the number with WORKING. Queueing alone is not a try.

A claim is a lease on many jobs under one key, chosen by the client. The same key returns the same jobs again, with a
renewed lease, also after a crash of the client or a restart of the node, until they are acked or their lease ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.core.jobs import ACTIVE, AHEAD, Job

if TYPE_CHECKING:
    from penstock.broker.core.node import Node

LEASE_MS_DEFAULT: Final = 120_000  # of a claim without LEASE
LEASE_MS_MAX: Final = 7 * 86_400_000  # a lease must end if its client is gone: a week is far beyond any job
CLAIM_JOBS_MAX: Final = 100_000  # one reply must stay in the tens of megabytes
CLAIM_KEY_BYTES_MAX: Final = 512
# The record with its places in two tables, and each job in it; tests/system/test_memory.py measures them.
CLAIM_BYTES: Final = 360
CLAIM_JOB_BYTES: Final = 60


class Claim:
    """The jobs held under one key."""

    __slots__ = ("jobs", "key")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.jobs: dict[bytes, Job] = {}


def end_lease(node: Node, job: Job) -> None:
    """Make a job's token stale, and take it out of its claim."""
    job.token = 0
    job.flags &= ~AHEAD
    claim = job.claim
    if claim is not None:
        job.claim = None
        del claim.jobs[job.id]
        node.memory.used_bytes -= CLAIM_JOB_BYTES
        if not claim.jobs:
            del node.claims[claim.key]
            node.memory.used_bytes -= CLAIM_BYTES + len(claim.key)


def join_claim(node: Node, key: bytes, job: Job) -> None:
    """Put a leased job under a claim's key."""
    claim = node.claims.get(key)
    if claim is None:
        claim = node.claims[key] = Claim(key)
        node.memory.used_bytes += CLAIM_BYTES + len(key)
    claim.jobs[job.id] = job
    node.memory.used_bytes += CLAIM_JOB_BYTES
    job.claim = claim


def claims_bytes(node: Node) -> int:
    """Return what all claims take, for checks of the account."""
    return sum([CLAIM_BYTES + len(claim.key) + CLAIM_JOB_BYTES * len(claim.jobs) for claim in node.claims.values()])


def holds(job: Job | None, token: int) -> bool:
    """Whether a token is that of the job's present lease."""
    return job is not None and job.token == token != 0 and job.state == ACTIVE
