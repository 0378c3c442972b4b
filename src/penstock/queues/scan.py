"""What a look at very many jobs asks for, and what it gives: whole columns, so that a million jobs need no object each.

`peek` is for people: some jobs of one state, in order. A look is for tables: all jobs of some states, in no order, each
at most once, a page at a time, and in parts that different processes can read at the same time:

    parts(queues, wanted)               how the look is cut: a node, a queue, or a range of ids
    look(part, wanted, count, cursor)   the next page of a part, until its cursor is None

Nothing is taken or changed, and nothing stands still meanwhile: it is no snapshot. What each store does itself of
`Wanted` is in its driver's `compares`; nobody asks it for more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from penstock.job import JobState, StoredJob

IDS_MAX = 500  # jobs that are looked up by their ids; to look for more of them, one goes through all


class Same(NamedTuple):
    """A column in which all rows have the same value."""

    value: Any


Column = Sequence[Any] | Same

# Columns of a look: the fields of a job, and its queue.
COLUMNS = (
    "id",
    "queue",
    "body",
    "payload",
    "headers",
    "tries",
    "mature_ms",
    "created_ms",
    "state",
    "nacks",
    "additional_deliveries",
    "node",
)


class Limit(NamedTuple):
    """A comparison that the store does itself. Times are unix times in microseconds, as Spark has them."""

    column: str  # of a driver's `compares`
    sign: str  # =, <, <=, > or >=
    value: int


class Wanted(NamedTuple):
    """Which jobs a look shows, and what of them. A store may give more columns than are wanted."""

    states: frozenset[JobState] = frozenset(JobState)
    columns: frozenset[str] = frozenset(COLUMNS)
    ids: tuple[str, ...] | None = None
    limits: tuple[Limit, ...] = ()


class Part(NamedTuple):
    """A part of a look. Its place means something to the store only."""

    queues: tuple[str, ...]
    place: str = ""


@dataclass(frozen=True, slots=True)
class Rows:
    """A page: so many jobs, their columns, and where the next page begins. A column that isn't there is all None."""

    count: int
    columns: dict[str, Column]
    cursor: str | None


NOTHING = Rows(0, {}, None)


def columns_of(jobs: Sequence[StoredJob], queue: str, names: frozenset[str] = Wanted().columns) -> dict[str, Column]:
    """The columns of jobs of one queue."""
    columns: dict[str, Column] = {name: list(map(attrgetter(name), jobs)) for name in names if name != "queue"}
    columns["queue"] = Same(queue)
    return columns


def bound(sizes: Sequence[int | None], state: JobState) -> int:
    """How many jobs of a state there are at most, by the sizes of a queue."""
    total, ready, scheduled, reserved = sizes
    known = {JobState.READY: ready, JobState.SCHEDULED: scheduled, JobState.RESERVED: reserved}[state]
    # Where the reserved ones can't be counted they may be among the scheduled ones.
    return (known if known is not None else total) or 0
