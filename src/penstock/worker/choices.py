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

Whatever counts as a try and was the last one sends the job to the dead letters in place of back.
"""

from dataclasses import dataclass
from enum import Enum

from penstock.queues.dead_letter import Failure, described, last_lines
from penstock.queues.push import Duration, seconds


class Retry(Exception):
    """Raised by a handler: not now. The job comes back after `delay` seconds, or after the back-off."""

    def __init__(self, why: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(why)
        self.delay = None if delay is None else seconds("delay", delay)


class Fail(Exception):
    """Raised by a handler: never. The job goes to the dead letters, with the text, whatever tries it has left."""


class Overran(Exception):
    """A handler took longer than its time limit."""


class Stopped(Exception):
    """The worker had to stop before the handler was done."""


class Kind(Enum):
    """What the store is told."""

    ACK = "ack"
    NACK = "nack"
    FAIL = "fail"
    RELEASE = "release"
    LOST = "lost"  # nothing: the lease is gone
    ENDED = "ended"  # nothing: the handler did it


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the store is told, and why."""

    kind: Kind
    delay: float | None = None  # seconds; None for the back-off
    error: str = ""
    problem: BaseException | None = None  # what the handler raised

    @property
    def failure(self) -> Failure:
        """What is written on a dead letter."""
        return Failure(self.error, "" if self.problem is None else last_lines(self.problem))


DONE = Verdict(Kind.ACK)
RELEASED = Verdict(Kind.RELEASE)
LOST = Verdict(Kind.LOST)
ENDED = Verdict(Kind.ENDED)


def verdict_of(problem: BaseException | None) -> Verdict:
    """What a handler's end means."""
    if problem is None:
        return DONE
    if isinstance(problem, Retry):
        return Verdict(Kind.NACK, problem.delay, str(problem), problem)
    if isinstance(problem, Fail):
        return Verdict(Kind.FAIL, None, str(problem), problem)
    if isinstance(problem, Stopped):
        return Verdict(Kind.NACK, 0.0, str(problem))
    if isinstance(problem, Overran):
        return Verdict(Kind.NACK, None, str(problem))
    return Verdict(Kind.NACK, None, described(problem), problem)
