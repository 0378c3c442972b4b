"""Moving jobs to another queue in one step: MOVEJOBS, at the node that has them.

The new job is added as by ADDJOB, with as many copies as it asks for; then, in one turn, it is queued and the old one
is acknowledged. If the add fails, or the client no longer has the old job when the copies are there, nothing has
changed. The client's right to a job is checked twice: before copies are sent, and in the turn of the move.

what happens                                    what is left
the add is refused, or its time is over         the old job
the client is gone before that turn             the old job
the lease ends before that turn                 the old job; the client is told STALE
this node crashes before that turn is written   the old job
it crashes after that                           the new job: its copies were confirmed, and the journal has both ends

In all but the last case another node may have a copy of the new job by then. It is told to delete it; if it isn't told,
since this node has crashed or the message is lost, it queues that copy after the retry time, and both jobs are left.

The new job begins like any other: its counters and tries are 0. Whoever counts on keeps that in the body.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.broker.core.adding import AddRules, add, check_add
from penstock.broker.core.node import Node
from penstock.broker.core.refusals import Refused
from penstock.broker.core.replication import Addition
from penstock.broker.core.sources import STALE, UNKNOWN, Source, Sources, may_move

# Such a job is sent away once, with the order to queue it. Nobody confirms that before the old job must end.
ONCE_ELSEWHERE: Final = (
    "NOREPL",
    "a node that is leaving or short of memory can't move a job to RETRY 0; it moves when it is on another node",
)


class Moving(NamedTuple):
    """One job to move."""

    job_id: bytes
    token: int  # of its lease; or WAITING, or ANYBODY
    body: bytes | None  # of the new job; None: that of the old one


def move(node: Node, name: bytes, wanted: list[Moving], terms: AddRules) -> Sources | Addition:
    """Move jobs to a queue, each by itself. Returns the answers, or the `Addition` that the client waits for."""
    rows: list[Source] = []
    bodies: list[bytes] = []
    seen: set[bytes] = set()
    for one in wanted:
        job = node.jobs.get(one.job_id)
        if job is None:
            rows.append(Source(one.job_id, one.token, UNKNOWN))
        elif one.job_id in seen or not may_move(node, job, one.token):
            rows.append(Source(one.job_id, one.token, STALE))
        else:
            seen.add(one.job_id)
            rows.append(Source(one.job_id, one.token))
            bodies.append(job.body if one.body is None else one.body)
    sources = Sources(rows)
    if not bodies:
        return sources
    check_add(node, name, len(bodies), terms)
    is_external = node.cluster.leaving or node.memory.used_bytes > node.memory.warn_bytes
    if is_external and not terms.rules.retry_s:
        raise Refused(*ONCE_ELSEWHERE)
    added = add(node, name, bodies, terms)
    if isinstance(added, Addition):
        sources.succeed([job.id for job in added.jobs])
        added.sources = sources
        return added
    sources.succeed(added)
    sources.end(node, node.client)
    return sources
