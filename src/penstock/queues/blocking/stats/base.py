# Written by scripts/blocking from ../aio/stats/base.py: change that, then run `make blocking`.
"""Counters, the pause flag and the options of every queue in one namespace: also the directory of queues.

Counters are stored under Keuss' names, so that Node and Python share them; people see the verbs of the API:

| stored     | shown       | counts jobs that                                                            |
|------------|-------------|-----------------------------------------------------------------------------|
| put        | push        | came into the queue: pushed, given up elsewhere, or redriven                |
| get        | pop         | were popped                                                                 |
| reserve    | reserve     | were leased, each delivery once                                             |
| commit     | ack         | were acknowledged                                                           |
| rollback   | nack        | went back to the queue                                                      |
| deadletter | dead_letter | went to the dead letters                                                    |
"""

from collections.abc import Mapping
from typing import Any, ClassVar

SHOWN = {
    "put": "push",
    "get": "pop",
    "reserve": "reserve",
    "commit": "ack",
    "rollback": "nack",
    "deadletter": "dead_letter",
}
COUNTERS = tuple(SHOWN)


def shown(counters: Mapping[str, int]) -> dict[str, int]:
    """Counters under the names that people see. Those that others have made keep their names."""
    return {SHOWN.get(name, name): value for name, value in counters.items()}


class Stats:
    """What every place for statistics can do."""

    # The counters are in this process, so that `count` adds to them at once.
    is_local: ClassVar[bool] = False

    def open(self) -> None:
        """Connect."""

    def close(self) -> None:
        """Let go."""

    def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Add to counters: queue -> counter -> how much. One round trip for all of them."""
        raise NotImplementedError

    def count(self, queue: str, counter: str, much: int) -> None:
        """Add to one counter; only for statistics of this process."""
        raise NotImplementedError

    def counters(self, queue: str) -> dict[str, int]:
        """The counters of a queue; those that were never used may be missing."""
        raise NotImplementedError

    def register(self, queue: str, options: Mapping[str, Any]) -> None:
        """Make a queue known. Empty options leave those alone that are there."""
        raise NotImplementedError

    def options(self, queue: str) -> dict[str, Any]:
        """The options that the queue was made known with."""
        raise NotImplementedError

    def queues(self) -> list[str]:
        """The queues that are known in this namespace."""
        raise NotImplementedError

    def paused(self, queue: str) -> bool:
        """Whether the queue is paused."""
        raise NotImplementedError

    def set_paused(self, queue: str, paused: bool) -> None:
        """Pause or resume."""
        raise NotImplementedError
