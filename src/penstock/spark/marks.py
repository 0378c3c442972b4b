"""Batches of a stream from nodes of the original Disque, which know no claims: the jobs stand in Spark's own offset.

    {"run": …, "seq": 3, "held": {NODE: ["D-…", "D-… 1 0", …]}}

A job is named by its id, with its two counters (nacks, additional deliveries) where they are not both 0: by these it is
known later whether others have had it. Spark keeps a hundred offsets and sends each to every listener, so a batch has
5,000 jobs at most. What follows from it:

    reserved, but not logged yet   whoever dies there leaves the jobs to come back when their retry time is over
    after a restart                jobs are shown by their ids, and held on to; those that others had are missing
    while a batch runs             their retry time is begun anew (WORKING), which a node does until half of a job's ttl
                                   is over; later jobs come back though they are worked on
    when Spark has logged it       the jobs are acked by their ids, at the next `latestOffset`

A job with retry 0 is lost by who dies before its batch was logged: that is what at most once means.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from typing import Any

from penstock.errors import CallerError
from penstock.job import Mark, StoredJob
from penstock.queues.blocking import Queue, Store
from penstock.spark.heart import Heart
from penstock.spark.outages import through_outages
from penstock.spark.room import Backlog, Steps
from penstock.spark.settings import Settings

JOBS_MAX = 5_000  # in one offset: some 220 KB
ELSEWHERE_S = 2.0  # until jobs that wait at another node come over to the one that is asked
HELD = "held"

Offset = dict[str, Any]


def held_of(jobs: Iterable[StoredJob]) -> dict[str, list[str]]:
    """Jobs as an offset has them."""
    held: dict[str, list[str]] = {}
    for job in jobs:
        nacks, deliveries = job.nacks or 0, job.additional_deliveries or 0
        text = f"{job.id} {nacks} {deliveries}" if nacks or deliveries else job.id
        held.setdefault(job.node or "", []).append(text)
    return held


def marks_in(offset: Offset) -> list[Mark]:
    """The jobs of an offset."""
    marks = []
    for node, texts in offset.get(HELD, {}).items():
        for text in texts:
            job_id, _, counters = text.partition(" ")
            nacks, _, deliveries = (counters or "0 0").partition(" ")
            marks.append(Mark(job_id, node, int(nacks), int(deliveries)))
    return marks


class Marks:
    """The batches of one query, in the driver's process. It has the same calls as the claims of other stores."""

    leases_lost = 0  # there are no leases: nobody tells

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self.store = store
        self.queue: Queue = store.queue(settings.queue)
        self.backlog = Backlog(self.queue.size, settings.jobs_min, settings.delay_s_max)
        self._open: dict[int, tuple[list[Mark], list[StoredJob]]] = {}  # by number
        self._finished = 0
        self._steps = Steps(settings.batch_bytes)
        self._heart = Heart(
            settings, self._keep_leases, 0.0
        )  # how long a retry time is, is known once it was begun anew
        self._lock = threading.Lock()

    def key(self, offset: Offset) -> str:
        """What tells the jobs of one batch from those of another."""
        return f"spark:{offset['run']}:{offset['seq']}"

    def check_owner(self, offset: Offset) -> None:
        """Nobody can own a name here."""
        if self._settings.owner is not None:
            raise CallerError(
                f"owner={self._settings.owner!r} needs claims, which {self.store.url} has not: one of its nodes is an "
                "original Disque. Leave the option out, and keep the query's checkpoint."
            )

    def finish(self, offset: Offset) -> None:
        """Spark has logged this batch as done."""
        marks = marks_in(offset)
        if marks and offset["seq"] != self._finished:
            through_outages(lambda: self.queue.ack_marked(marks))
        self._finished = offset["seq"]
        with self._lock:
            for seq in [seq for seq in self._open if seq <= offset["seq"]]:
                del self._open[seq]

    def recover(self, offset: Offset) -> bool:
        """What was reserved and never logged is known to nobody."""
        return False

    def begin(self, offset: Offset, count: int) -> list[StoredJob]:
        """Reserve jobs for the next batch, and put them into its offset."""
        found: dict[str, StoredJob] = {}  # one that came back meanwhile may come twice
        wanted = min(count, JOBS_MAX)
        self._steps.begin()
        while left := self._steps.next(wanted - len(found)):
            more = through_outages(partial(self.queue.reserve_many, left, 0))
            if not more and not found and through_outages(self.queue.size):
                more = through_outages(partial(self.queue.reserve_many, left, ELSEWHERE_S))
            if not more:
                break
            found.update((job.id, job.stored) for job in more)
            self._steps.took([job.stored for job in more])
        jobs = list(found.values())
        if jobs:
            offset[HELD] = held_of(jobs)
            self._hold(offset, jobs)
        return jobs

    def jobs_of(self, offset: Offset) -> dict[str, list[StoredJob]]:
        """The jobs of a batch: from memory, or, after a restart, those that are still its own."""
        with self._lock:
            known = self._open.get(offset["seq"])
        if known is not None:
            return {self.key(offset): known[1]}
        marks = marks_in(offset)
        jobs = [job.stored for job in through_outages(lambda: self.queue.regain(marks))]
        self._hold(offset, jobs)
        return {self.key(offset): jobs}

    def _hold(self, offset: Offset, jobs: list[StoredJob]) -> None:
        ids = {job.id for job in jobs}
        with self._lock:
            self._open[offset["seq"]] = [mark for mark in marks_in(offset) if mark.id in ids], jobs
        self._heart.start()

    def _keep_leases(self, store: Store) -> float | None:
        """Let retry times begin anew."""
        with self._lock:
            marks = [mark for held, _ in self._open.values() for mark in held]
        retry_s = self.queue.extend_marked(marks) if marks else None
        return None if retry_s is None else retry_s / 3

    def close(self) -> None:
        """Let go."""
        self._heart.stop()
        self.store.close()
