"""What the function of a link may return.

    returned            direct (one target)             choice (several targets)      sink (no target)
    a payload           goes on with that payload       an error: it must choose      the job is done
    None                goes on unchanged               an error: it must choose      the job is done
    Move(...)           goes on as it says              goes to the queue it names    an error: there is no target
    DROP                the job is done                 the job is done               the job is done
    Later(delay)        stays, and comes back           stays, and comes back         stays, and comes back

A function that raises rolls its job back, with the link's back-off; after the last try the job goes to the dead
letters. `Fail` sends it there at once. An error in the table is the same as an exception. False, 0 and "" are payloads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from penstock.queues.push import UNCHANGED, Duration, seconds


@dataclass(frozen=True, slots=True)
class Move:
    """The job goes on to a queue of the link.

    - `to`: the queue's name, or its index among the link's targets; by default the only one.
    - `payload`: by default the job's own.
    - `headers`: added to the job's; one that is None is removed.
    - `delay`, `at`: when the next link may take it: seconds from now, or a point in time.
    """

    to: str | int | None = None
    payload: Any = UNCHANGED
    headers: Mapping[str, Any] | None = None
    delay: Duration = 0
    at: float | datetime | None = None


@dataclass(frozen=True, slots=True)
class Later:
    """The job stays where it is, and comes back after `delay` seconds. It counts as a try, as an error does."""

    delay: Duration
    why: str = "later"

    def __post_init__(self) -> None:
        seconds("delay", self.delay)


class Drop:
    """The type of DROP."""

    def __repr__(self) -> str:
        return "DROP"


DROP: Final = Drop()  # the job is done, and leaves the pipeline
