"""How long a job waits after a delivery that failed."""

import random
from dataclasses import dataclass
from typing import Protocol, SupportsFloat, TypeGuard

from penstock.errors import CallerError
from penstock.queues.push import DELAY_S_MAX

FACTOR_MAX = 1000.0  # beyond that a second try waits for the bound at once; and no number of tries overflows


class Backoff(Protocol):
    """Anything that gives seconds for a number of tries: 0 after the first delivery."""

    def __call__(self, tries: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    seconds: float = 0.0

    def __post_init__(self) -> None:
        checked_delay(self.seconds)

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
        checked_delay(self.first)
        checked_delay(self.longest)
        if not _is_within(self.factor, 1, FACTOR_MAX):
            raise CallerError(f"{self.factor!r} is no factor: give 1 to {FACTOR_MAX:.0f}")
        if not _is_within(self.jitter, 0, 1):
            raise CallerError(f"{self.jitter!r} is no jitter, which is a share: 0 to 1")

    def __call__(self, tries: int) -> float:
        # The exponent is bounded, as the factor is.
        wait = min(self.longest, self.first * self.factor ** min(max(tries, 0), 64))
        return wait * (1 - self.jitter * random.random())


def checked_delay(seconds: object) -> float:
    """What a back-off gave, if a job can wait so long."""
    if not _is_within(seconds, 0, DELAY_S_MAX):
        raise CallerError(f"{seconds!r} is no back-off: give seconds, 0 to {DELAY_S_MAX:.0f}")
    return float(seconds)


def _is_within(value: object, least: float, most: float) -> TypeGuard[SupportsFloat]:
    """False for what is no number, nan among it."""
    return isinstance(value, SupportsFloat) and least <= float(value) <= most
