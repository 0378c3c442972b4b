"""Jobs that move: what ends when the jobs that take their place are placed (see `moving`).

A source ends only in the turn in which its successor is queued or begins its delay. So the two stand in one write of
the journal, the successor first, and a crash leaves both at worst, never neither. A job that its client no longer has
by then stays, and its successor is deleted.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core.acks import ack
from penstock.broker.core.jobs import ACTIVE, QUEUED, WAIT_REPL, Job
from penstock.broker.core.node import Node
from penstock.broker.core.owners import is_scheduled
from penstock.broker.core.tokens import holds

WAITING: Final = 0  # in place of a token: a job that no client has
ANYBODY: Final = -1  # in place of a token: a job by its id alone, whoever has it
STALE: Final = b"STALE"
UNKNOWN: Final = b"NOJOB"


class Source:
    """One job that is to move, and its place in the reply: the id of its successor, or why it has none."""

    __slots__ = ("answer", "job_id", "successor_id", "token")

    def __init__(self, job_id: bytes, token: int, answer: bytes = b"") -> None:
        self.job_id = job_id
        self.token = token
        self.answer = answer
        self.successor_id = b""


class Sources:
    """The jobs of one command, in its order."""

    __slots__ = ("rows",)

    def __init__(self, rows: list[Source]) -> None:
        self.rows = rows

    def open(self) -> list[Source]:
        """Return those that are still to be moved."""
        return [row for row in self.rows if not row.answer]

    def succeed(self, ids: list[bytes]) -> None:
        """Note the ids of the successors."""
        for row, successor_id in zip(self.open(), ids, strict=True):
            row.successor_id = successor_id

    def leave_lost(self, node: Node) -> list[Job]:
        """Give up the moves of jobs that their client no longer has; return the successors, which must not be placed.

        One that another holder has queued meanwhile, and a worker has done, is not among them.
        """
        unwanted = []
        for row in self.open():
            job = node.jobs.get(row.job_id)
            if job is None or not may_move(node, job, row.token):
                row.answer = STALE
                successor = node.jobs.get(row.successor_id)
                if successor is not None and successor.state == WAIT_REPL:
                    unwanted.append(successor)
        return unwanted

    def end(self, node: Node, client: object) -> None:
        """End the jobs that have moved: their successors are placed."""
        before, node.client = node.client, client
        for row in self.open():
            job = node.jobs.get(row.job_id)
            if job is not None:
                ack(node, job)
            row.answer = row.successor_id
        node.client = before


def may_move(node: Node, job: Job, token: int) -> bool:
    """Whether a client may move a job: it has the lease, or nobody has the job, or it doesn't ask who has it."""
    if token > 0:
        return holds(job, token)
    if token == WAITING:
        return job.state == QUEUED or is_scheduled(node, job)
    return job.state in (ACTIVE, QUEUED)
