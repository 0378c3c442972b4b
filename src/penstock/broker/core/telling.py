"""Jobs whose other holders are to be told where they are: noted as it happens, told a moment later (core.places)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.broker.core.timers import Timed

if TYPE_CHECKING:
    from penstock.broker.core.jobs import Job
    from penstock.broker.core.node import Node

TELL_MS: Final = 100  # a job that is acked within this time costs no message


class Telling(Timed):
    """What is still to be told: changes, and to nodes with a new link everything."""

    __slots__ = ("discards", "jobs", "receivers", "walk")

    def __init__(self) -> None:
        super().__init__(0)
        self.jobs: list[Job] = []  # that came or went since the timer was set
        self.receivers: frozenset[bytes] = frozenset()  # nodes that are being told of all jobs
        self.walk: Iterator[Job] = iter(())  # the jobs that they have not been told of
        self.discards = 0  # of messages, when the walk began


def note_place(node: Node, job: Job) -> None:
    """Note that the other holders of a job don't know where it is."""
    if not node.cluster.has_takers or not job.rules.retry_s:
        return
    telling = node.telling
    if not telling.jobs:
        node.timers.set(telling, node.now_ms + TELL_MS)
    telling.jobs.append(job)


def note_fetched(node: Node, jobs: list[Job]) -> None:
    """Note jobs that a client has fetched without a lease."""
    alone = node.alone
    for job in jobs:
        if job.holders is not alone:
            note_place(node, job)
