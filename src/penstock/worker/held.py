"""A job in this worker's hands, from its reserve until the store has been told what became of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.queues.aio import Job

if TYPE_CHECKING:
    from penstock.worker.choices import Verdict
    from penstock.worker.settling import Settler


class Held:
    """One job, and where it stands here."""

    __slots__ = (
        "began",
        "cut",
        "is_lost",
        "job",
        "leased",
        "problem",
        "seconds",
        "settler",
        "task",
        "tellings",
        "timer",
        "verdict",
    )

    def __init__(self, job: Job, settler: Settler, leased: float) -> None:
        self.job = job
        self.settler = settler
        self.leased = leased  # when its lease was given or made longer, by the loop's clock
        self.began: float | None = None  # when its handler was called, by perf_counter; None while it waits
        self.seconds = 0.0  # how long its handler ran
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None  # for the time limit of its task
        self.cut: BaseException | None = None  # why this worker ended the handler, if it did
        self.is_lost = False  # its lease went to another worker
        self.problem: BaseException | None = None  # what the handler raised
        self.verdict: Verdict | None = None
        self.tellings = 0  # how often the store was told and gave no answer: it may know all the same
