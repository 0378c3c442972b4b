"""What a careful reader of the API expects of a queue: each job, where it stands, and who holds it until when.

Times are intervals, since nobody outside knows the very moment at which a store did something: it was after the call
began and before it returned. What lies in between is left open; everything else is asserted. The promises are those of
docs/architecture.md: P2 (nothing out of thin air), P3 (nothing that was ended), P4 (tokens), P8 (nothing early) and P9
(limits).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

CLOCKS_S = 0.005  # what the clocks of this process and of a server may differ by, cut to milliseconds as they are


class Where(Enum):
    WAITING = "waiting"
    OUT = "out"  # a worker has it, or had it when its lease ended
    DEAD = "dead"
    ENDED = "ended"


class Span(NamedTuple):
    """A moment, as well as it is known."""

    early: float
    late: float

    def later(self, seconds: float) -> Span:
        return Span(self.early + seconds, self.late + seconds)

    def is_surely_over(self, now: float) -> bool:
        return self.late + CLOCKS_S < now

    def is_surely_ahead(self, now: float) -> bool:
        return self.early - CLOCKS_S > now


@dataclass(eq=False)
class Known:
    """A job."""

    payload: int
    id: str
    due: Span  # when it is ready, or when its lease ends
    tries: int = 0  # as the next delivery will show it
    where: Where = Where.WAITING
    job: Any = None  # the delivery that holds it
    perhaps: Any = None  # one that may hold it still: some stores give a claim that is kept new tokens, some don't
    claim: str | None = None
    is_claim_sure: bool = True  # a lease that was made longer by itself may have left its claim
    was_dead: bool = False
    ended: Span = field(default_factory=lambda: Span(0, 0))

    @property
    def is_here(self) -> bool:
        return self.where in {Where.WAITING, Where.OUT}

    def is_held(self, now: float) -> bool:
        """Whether somebody has it for sure."""
        return self.where is Where.OUT and self.due.is_surely_ahead(now)


class Model:
    """All jobs of one queue, and its dead letters."""

    def __init__(self, max_tries: int, has_own_ids: bool) -> None:
        self.max_tries = max_tries
        self.has_own_ids = has_own_ids
        self.jobs: dict[int, Known] = {}
        self.deliveries: list[tuple[Known, Any]] = []  # every one that ever was
        self.claims: dict[str, list[Known]] = {}
        self.keys: dict[str, tuple[Known, float]] = {}  # unique key -> the last job that had it, and for how long
        self.is_paused = False

    def here(self) -> list[Known]:
        return [known for known in self.jobs.values() if known.is_here]

    def dead(self) -> list[Known]:
        return [known for known in self.jobs.values() if known.where is Where.DEAD]

    def is_spent(self, known: Known) -> bool:
        return known.tries >= self.max_tries

    def added(self, payload: int, job_id: str, when: Span) -> Known:
        known = self.jobs[payload] = Known(payload, job_id, when)
        return known

    def holders(self, key: str, now: float) -> tuple[str | None, bool]:
        """The id that a push with this unique key must give, or may give; whether it must."""
        if key not in self.keys:
            return None, True
        known, seconds = self.keys[key]
        if known.was_dead:
            return known.id, False
        if known.is_here:
            return known.id, True
        free = known.ended.later(seconds)
        if free.is_surely_over(now) or not seconds:
            return None, True
        return known.id, free.is_surely_ahead(now)

    def delivered(self, job: Any, lease: float | None, when: Span, key: str | None = None) -> Known:
        """A job was handed out: whether it may have been, and what it is now."""
        known = self.jobs.get(job.payload)
        assert known is not None, f"P2: {job.payload} was never pushed"
        assert known.is_here, f"P3: {job.payload} is {known.where}"
        assert not known.due.is_surely_ahead(when.late), f"P8 or a lease broken: {known} came at {when}"
        assert job.tries == known.tries, f"tries of {known}"
        assert lease is None or not self.is_spent(known), f"P9: {known} had all its tries"
        self._check_id(known, job)
        known.tries += 1
        known.claim, known.is_claim_sure = key, True
        self._hold(known, job, lease, when)
        return known

    def delivered_again(self, job: Any, lease: float, when: Span) -> None:
        """A claim gave a job that it had already: no new try, but if its lease was over a store may count one."""
        known = self.jobs[job.payload]
        is_sure = known.due.is_surely_ahead(when.late)
        assert job.tries == known.tries - 1 or (not is_sure and job.tries == known.tries), f"tries of {known}"
        self._check_id(known, job)
        known.tries = job.tries + 1
        known.is_claim_sure = True
        self._hold(known, job, lease, when)

    def _hold(self, known: Known, job: Any, lease: float | None, when: Span) -> None:
        if lease is None:
            self.end(known, when)
            return
        known.where, known.job, known.perhaps, known.due = Where.OUT, job, None, when.later(lease)
        self.deliveries.append((known, job))

    def _check_id(self, known: Known, job: Any) -> None:
        if self.has_own_ids and known.was_dead:
            known.id = job.id
        assert job.id == known.id

    def end(self, known: Known, when: Span, where: Where = Where.ENDED) -> None:
        known.where, known.job, known.perhaps, known.claim, known.ended = where, None, None, None, when
        known.was_dead = known.was_dead or where is Where.DEAD

    def give_back(self, known: Known, due: Span) -> None:
        known.where, known.job, known.perhaps, known.claim, known.due = Where.WAITING, None, None, None, due

    def redriven(self, known: Known, when: Span) -> None:
        known.where, known.tries, known.due = Where.WAITING, 0, when

    def none_is_ready(self, since: float) -> None:
        """A store that had time for all has handed out all that was ready when the call began."""
        left = [known for known in self.here() if known.due.is_surely_over(since)]
        assert not left, f"ready, and not handed out: {left}"

    def must_come(self, now: float) -> bool:
        """Whether a caller that waits will get something."""
        ready = [known for known in self.here() if known.due.is_surely_over(now) and not self.is_spent(known)]
        return bool(ready) and not self.is_paused

    def check_sizes(self, sizes: Any, before: float, after: float) -> None:
        here = self.here()
        assert sizes.total == len(here)
        surely = sum(known.due.is_surely_over(before) for known in here)
        perhaps = sum(not known.due.is_surely_ahead(after) for known in here)
        assert surely <= sizes.ready <= perhaps
        if sizes.reserved is not None:
            held = sum(known.is_held(after) for known in here)
            out = sum(known.where is Where.OUT and not known.due.is_surely_over(before) for known in here)
            assert held <= sizes.reserved <= out
            assert sizes.ready + sizes.scheduled + sizes.reserved == sizes.total
