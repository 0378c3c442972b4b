"""How long a job waits after a delivery that failed."""

import random
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import CallerError


class Backoff(Protocol):
    """Anything that gives seconds for a number of tries: 0 after the first delivery."""

    def __call__(self, tries: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.seconds < 0:
            raise CallerError("a back-off can't be negative")

    def __call__(self, tries: int) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Exponential:
    """Longer each time: `first`, then `factor` times as long, up to `longest`.

    `jitter` is the share of the wait that is left to chance, so that jobs which failed together don't come back
    together: 0.5 waits between half of the time and all of it.
    """

    first: float = 1.0
    factor: float = 2.0
    longest: float = 3600.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if self.first < 0 or self.longest < 0 or self.factor < 1:
            raise CallerError(
                "an exponential back-off needs first and longest of at least 0, and a factor of at least 1"
            )
        if not 0 <= self.jitter <= 1:
            raise CallerError("jitter is a share: 0 to 1")

    def __call__(self, tries: int) -> float:
        # The exponent is bounded so that no number of tries overflows.
        wait = min(self.longest, self.first * self.factor ** min(max(tries, 0), 64))
        return wait * (1 - self.jitter * random.random())
