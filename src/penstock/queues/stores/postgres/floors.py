"""Where in a queue's index to begin to look for ready jobs.

A job that is taken leaves a dead entry at the beginning of the index on `mature`, which stays until a vacuum; and none
is vacuumed while an old transaction is open anywhere in the database, a dump for one. A scan from the beginning walks
over all of them, every time. So a consumer that takes many jobs remembers the maturity that it has come to, and begins
there; once a second, and whenever it finds fewer jobs than it wants, it begins at the beginning.

What it may miss for that second are jobs that became ready before others that are ready, and came later: those of a
peer with a slow clock, or with a maturity in the past. Our own process knows of its own.
"""

NOTHING_US = -(2**53)  # a time before all others
JOBS_MIN = 5000  # taken before a floor is worth it
TRUST_S = 1.0


class Floor:
    """The floor of one queue."""

    __slots__ = ("_begun", "_taken", "_us")

    def __init__(self) -> None:
        self._taken = 0
        self._us = NOTHING_US
        self._begun = 0.0  # when the last scan from the beginning was

    def begin(self, now: float) -> int:
        """Where to begin, in microseconds; `now` is a monotonic time in seconds."""
        if self._us == NOTHING_US or now - self._begun >= TRUST_S:
            self._us = NOTHING_US
            self._begun = now
        return self._us

    def took(self, matures_us: list[int]) -> None:
        """Jobs were taken: those that are left matured later, but for those in other hands."""
        self._taken += len(matures_us)
        if self._taken >= JOBS_MIN:
            self._us = max(self._us, min(matures_us, default=NOTHING_US))

    def lower(self) -> None:
        """A job may have come below the floor."""
        self._us = NOTHING_US
