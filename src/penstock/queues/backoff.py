"""How long a job waits after a delivery that failed."""

import random
from dataclasses import dataclass
from typing import Protocol, SupportsFloat, TypeGuard

from penstock.errors import CallerError
from penstock.queues.push import DELAY_S_MAX

FACTOR_MAX = 1000.0  # beyond that a second try waits for the bound at once; and no number of tries overflows


class Backoff(Protocol):
    """Anything that returns seconds for a number of tries: 0 after the first delivery."""

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
            raise CallerError(f"factor must be 1 to {FACTOR_MAX:.0f}, got {self.factor!r}")
        if not _is_within(self.jitter, 0, 1):
            raise CallerError(f"jitter must be 0 to 1, got {self.jitter!r}")

    def __call__(self, tries: int) -> float:
        # The exponent is bounded, as the factor is.
        wait = min(self.longest, self.first * self.factor ** min(max(tries, 0), 64))
        return wait * (1 - self.jitter * random.random())


def parse_backoff(text: str) -> Backoff:
    """Return the back-off of a text: `5` is always 5 s, `1..600` doubles from 1 s up to 600, `1..600*3` triples."""
    first, dots, rest = text.partition("..")
    longest, times, factor = rest.partition("*")
    try:
        if not dots:
            return Fixed(float(first))
        return Exponential(float(first), float(factor) if times else 2.0, float(longest))
    except ValueError:
        raise CallerError(f"must be seconds, such as 5, or a range that doubles, such as 1..600, got {text}") from None


def checked_delay(seconds: object) -> float:
    """Return a back-off's result, if it is a delay that a job can have."""
    if not _is_within(seconds, 0, DELAY_S_MAX):
        raise CallerError(f"a back-off must be 0 to {DELAY_S_MAX:.0f} seconds, got {seconds!r}")
    return float(seconds)


def _is_within(value: object, least: float, most: float) -> TypeGuard[SupportsFloat]:
    """Whether a value is a number in a range; nan is not."""
    return isinstance(value, SupportsFloat) and least <= float(value) <= most
