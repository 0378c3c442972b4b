"""Those who wait: consumers for a job, producers for the copies of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.core.timers import Timed

if TYPE_CHECKING:
    from penstock.broker.core.jobs import Job
    from penstock.broker.core.queues import Queue
    from penstock.broker.core.refusals import Refused


class Waiter(Timed):
    """One client that waits for a job: on which queues, until when, and how it wants it."""

    __slots__ = ("begin_max", "client", "counters", "ctime", "lease_ms", "queues")

    def __init__(self, client: object, counters: int, lease_ms: int, ctime: bool, begin_max: int) -> None:
        super().__init__(0)
        self.client = client
        self.counters = counters  # which it is told (commands.jobs)
        self.ctime = ctime
        self.lease_ms = lease_ms
        self.begin_max = begin_max  # of the jobs that it gets, on how many work begins at once; below 0: on all
        self.queues: tuple[Queue, ...] = ()


class Addition(Timed):
    """Jobs added together that wait for their copies, and who waits with them: a client, or nobody (a hand-over)."""

    __slots__ = (
        "client",
        "deadline_ms",
        "delivered",
        "enqueue_s",
        "external",
        "is_handover",
        "is_whole",
        "is_wider",
        "jobs",
        "missing",
        "pause_ms",
        "refused",
        "replicate",
        "resend_ms",
        "sent_ms",
    )

    def __init__(self, jobs: list[Job], delivered: frozenset[bytes], replicate: int, external: bool) -> None:
        super().__init__(0)
        self.jobs = jobs
        self.delivered = delivered  # to whom copies were sent, this node included unless `external`
        self.replicate = replicate
        self.external = external  # this node keeps no copy
        self.missing = len(jobs)  # jobs without enough copies
        self.deadline_ms = 0
        self.pause_ms = 0  # until one more node is tried
        self.resend_ms = 0  # without an answer for so long: copies may have been lost
        self.sent_ms = 0  # when copies went to everybody who has not confirmed
        self.client: object = None
        self.is_whole = False  # all of the jobs, or none
        self.is_handover = False  # of a node that drains: the job is in its journal
        self.is_wider = False  # copies went to more nodes than those who were sent theirs first know of
        self.enqueue_s = jobs[0].rules.delay_s  # external: after how long one of the others queues them; -1: not at all
        self.refused: dict[bytes, Refused] = {}  # by id, once it is over
