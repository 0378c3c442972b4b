"""What becomes of a job when its handler has ended, and how a handler chooses.

    the handler                            the store gets      and the job
    returns                                ack                 is gone
    returns an Outcome                     what it says        goes where it says: to another queue, for one
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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from penstock.queues.dead_letter import Failure, described, last_lines
from penstock.queues.push import UNCHANGED, Duration, Transfer, seconds

if TYPE_CHECKING:
    import asyncio

    from penstock.queues.aio import Job
    from penstock.worker.routes import Route
    from penstock.worker.settling import Settler


class Retry(Exception):
    """Raised by a handler: try the job again, after `delay` seconds or after the back-off."""

    def __init__(self, why: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(why)
        self.delay = None if delay is None else seconds("delay", delay)


class Fail(Exception):
    """Raised by a handler: send the job to the dead letters with this text, whatever tries it has left."""


class GivenUp(Fail):
    """Raised by a router in place of what its function raised: the cause has the traceback that people want to see."""


class TimeLimitExceeded(Exception):
    """A handler took longer than its time limit."""


class WorkerStopped(Exception):
    """The worker had to stop before the handler was done."""


class Action(Enum):
    """What is sent to the store."""

    ACK = "ack"
    NACK = "nack"
    FAIL = "fail"
    RELEASE = "release"
    MOVE = "move"
    LOST = "lost"  # nothing: the lease is gone
    ENDED = "ended"  # nothing: the handler did it


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a job is moved to, and what it becomes there; see `Queue.move`."""

    to: str
    payload: Any = UNCHANGED
    headers: Mapping[str, Any] | None = None
    delay: Duration = 0
    at: float | datetime | None = None

    def transfer(self, job: Job) -> Transfer:
        """Return the checked move of a job."""
        return job.queue.transfer(
            job, self.to, payload=self.payload, headers=self.headers, delay=self.delay, at=self.at
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is sent to the store, and why."""

    action: Action
    delay: float | None = None  # seconds; None for the back-off
    error: str = ""
    problem: BaseException | None = None  # what the handler raised
    destination: Destination | None = None  # of a move
    is_wait: bool = False  # of a nack: nothing went wrong, the job waits for something else

    @property
    def failure(self) -> Failure:
        """What is written on a dead letter."""
        return Failure(self.error, "" if self.problem is None else trace_of(self.problem))


def trace_of(problem: BaseException) -> str:
    """Return the last lines of the traceback of what a handler raised."""
    cause = problem.__cause__ if isinstance(problem, GivenUp) else None
    return last_lines(problem if cause is None else cause)


DONE = Outcome(Action.ACK)
RELEASED = Outcome(Action.RELEASE)
LOST = Outcome(Action.LOST)
ENDED = Outcome(Action.ENDED)


def outcome_of(problem: BaseException | None, result: object = None) -> Outcome:
    """Return what the end of a handler means; `problem` is what it raised, `result` what it returned."""
    if problem is None:
        return result if isinstance(result, Outcome) else DONE
    if isinstance(problem, Retry):
        return Outcome(Action.NACK, problem.delay, str(problem), problem)
    if isinstance(problem, Fail):
        return Outcome(Action.FAIL, None, str(problem), problem)
    if isinstance(problem, WorkerStopped):
        return Outcome(Action.NACK, 0.0, str(problem))
    if isinstance(problem, TimeLimitExceeded):
        return Outcome(Action.NACK, None, str(problem))
    return Outcome(Action.NACK, None, described(problem), problem)


def final_outcome(outcome: Outcome, is_last_try: bool, is_dead_letter: bool, back_off: Callable[[], float]) -> Outcome:
    """Return the outcome after the limit on tries and the back-off."""
    action, delay = outcome.action, outcome.delay
    if action is Action.NACK and is_last_try:
        action = Action.FAIL
    elif action is Action.FAIL and is_dead_letter:
        action = Action.NACK  # its queue is that of the dead letters: there is nowhere else to go
    if action is Action.NACK and delay is None:
        delay = back_off()
    return replace(outcome, action=action, delay=delay)


class InFlightJob:
    """A job from its reservation until its outcome is in the store."""

    __slots__ = (
        "attempts",
        "began",
        "cancel_reason",
        "is_cancelled",
        "is_lost",
        "job",
        "leased_at",
        "outcome",
        "problem",
        "result",
        "route",
        "seconds",
        "settler",
        "task",
        "timer",
        "transfer",
    )

    def __init__(self, job: Job, settler: Settler, leased_at: float) -> None:
        self.job = job
        self.settler = settler
        self.route: Route | None = None  # None: the worker's own handler and options
        self.leased_at = leased_at  # when its lease was given or extended, by the loop's clock
        self.began: float | None = None  # when its handler was called, by perf_counter; None while it waits
        self.seconds = 0.0  # run time of its handler
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None  # for the time limit of its task
        self.cancel_reason: BaseException | None = None  # why this worker cancelled the handler, if it did
        self.is_cancelled = False  # its route says so, after an extension
        self.is_lost = False  # its lease went to another worker
        self.problem: BaseException | None = None  # what the handler raised
        self.result: object = None  # what the handler returned
        self.outcome: Outcome | None = None
        self.transfer: Transfer | None = None  # of a job that moves
        self.attempts = 0  # calls to the store that got no answer: it may have done it all the same
