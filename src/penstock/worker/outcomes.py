"""What becomes of a job when its handler has ended, and how a handler chooses.

    the handler                            the store is told   and the job
    returns                                ack                 is gone
    raises                                 nack                comes back after the back-off
    raises Retry(delay=60)                 nack                comes back after that time
    raises Fail("no such address")         fail                goes to the dead letters at once
    overruns the time limit                nack                as if the handler had raised
    isn't done when the worker must stop   nack                comes back at once
    has not begun when the worker stops    release             comes back at once, and no try is counted
    has lost its lease                     nothing             is another worker's by now
    has ended the job itself               nothing             is as the handler wanted it

A nack that counts as the last try sends the job to the dead letters instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from penstock.queues.dead_letter import Failure, described, last_lines
from penstock.queues.push import Duration, seconds

if TYPE_CHECKING:
    import asyncio

    from penstock.queues.aio import Job
    from penstock.worker.settling import Settler


class Retry(Exception):
    """Raised by a handler: try the job again, after `delay` seconds or after the back-off."""

    def __init__(self, why: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(why)
        self.delay = None if delay is None else seconds("delay", delay)


class Fail(Exception):
    """Raised by a handler: send the job to the dead letters with this text, whatever tries it has left."""


class TimeLimitExceeded(Exception):
    """A handler took longer than its time limit."""


class WorkerStopped(Exception):
    """The worker had to stop before the handler was done."""


class Action(Enum):
    """What the store is told."""

    ACK = "ack"
    NACK = "nack"
    FAIL = "fail"
    RELEASE = "release"
    LOST = "lost"  # nothing: the lease is gone
    ENDED = "ended"  # nothing: the handler did it


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the store is told, and why."""

    action: Action
    delay: float | None = None  # seconds; None for the back-off
    error: str = ""
    problem: BaseException | None = None  # what the handler raised

    @property
    def failure(self) -> Failure:
        """What is written on a dead letter."""
        return Failure(self.error, "" if self.problem is None else last_lines(self.problem))


DONE = Outcome(Action.ACK)
RELEASED = Outcome(Action.RELEASE)
LOST = Outcome(Action.LOST)
ENDED = Outcome(Action.ENDED)


def outcome_of(problem: BaseException | None) -> Outcome:
    """Return what the end of a handler means; `problem` is what it raised."""
    if problem is None:
        return DONE
    if isinstance(problem, Retry):
        return Outcome(Action.NACK, problem.delay, str(problem), problem)
    if isinstance(problem, Fail):
        return Outcome(Action.FAIL, None, str(problem), problem)
    if isinstance(problem, WorkerStopped):
        return Outcome(Action.NACK, 0.0, str(problem))
    if isinstance(problem, TimeLimitExceeded):
        return Outcome(Action.NACK, None, str(problem))
    return Outcome(Action.NACK, None, described(problem), problem)


class InFlightJob:
    """A job from the time it is reserved until the store has been told what became of it."""

    __slots__ = (
        "attempts",
        "began",
        "cancel_reason",
        "is_lost",
        "job",
        "leased_at",
        "outcome",
        "problem",
        "seconds",
        "settler",
        "task",
        "timer",
    )

    def __init__(self, job: Job, settler: Settler, leased_at: float) -> None:
        self.job = job
        self.settler = settler
        self.leased_at = leased_at  # when its lease was given or extended, by the loop's clock
        self.began: float | None = None  # when its handler was called, by perf_counter; None while it waits
        self.seconds = 0.0  # run time of its handler
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None  # for the time limit of its task
        self.cancel_reason: BaseException | None = None  # why this worker cancelled the handler, if it did
        self.is_lost = False  # its lease went to another worker
        self.problem: BaseException | None = None  # what the handler raised
        self.outcome: Outcome | None = None
        self.attempts = 0  # calls to the store that got no answer: it may have done it all the same
