"""Batch reads of very many jobs: whole columns, so that a million jobs need no object each.

`peek` is for people: some jobs of one state, in order. A batch read is for tables: all jobs of some states, in no
order, each at most once, a page at a time, and in parts that different processes can read at the same time:

    parts(queues, wanted)                    the parts: a node, a queue, or a range of ids
    scan_page(part, wanted, count, cursor)   the next page of a part, until its cursor is None

Nothing is taken or changed, and it is not a snapshot: jobs come and go meanwhile. Which limits of `Wanted` a store
applies itself is in its driver's `compares`; it is asked for no others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from penstock.job import LIVE, JobState, StoredJob

IDS_MAX = 500  # jobs that are read by their ids; for more of them all jobs are read


class Same(NamedTuple):
    """A column in which all rows have the same value."""

    value: Any


Column = Sequence[Any] | Same

# Columns of a batch read: the fields of a job, and its queue.
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
    """Which jobs and columns a batch read returns. A store may return more columns."""

    states: frozenset[JobState] = frozenset(LIVE)
    columns: frozenset[str] = frozenset(COLUMNS)
    ids: tuple[str, ...] | None = None
    limits: tuple[Limit, ...] = ()


class Part(NamedTuple):
    """A part of a batch read. Only the store knows what its place means."""

    queues: tuple[str, ...]
    place: str = ""


@dataclass(frozen=True, slots=True)
class Rows:
    """A page: the number of jobs, their columns, and where the next page begins. A missing column is all None."""

    count: int
    columns: dict[str, Column]
    cursor: str | None


NOTHING = Rows(0, {}, None)


def columns_of(jobs: Sequence[StoredJob], queue: str, names: frozenset[str] = Wanted().columns) -> dict[str, Column]:
    """The columns of jobs of one queue."""
    columns: dict[str, Column] = {name: list(map(attrgetter(name), jobs)) for name in names if name != "queue"}
    columns["queue"] = Same(queue)
    return columns


def found_state(rows: Rows, job_id: str) -> JobState | None:
    """Return the state of the job with this id, if it is among these rows with their ids and states."""
    ids, states = rows.columns.get("id", ()), rows.columns.get("state", ())
    if isinstance(ids, Same):
        ids = [ids.value] * rows.count
    for at, one in enumerate(ids):
        if one == job_id:
            return JobState(states.value if isinstance(states, Same) else states[at])
    return None


def bound(sizes: Sequence[int | None], state: JobState) -> int:
    """How many jobs of a state there are at most, by the sizes of a queue."""
    total, ready, scheduled, reserved = sizes
    known = {JobState.READY: ready, JobState.SCHEDULED: scheduled, JobState.RESERVED: reserved}[state]
    # Where the reserved ones can't be counted they may be among the scheduled ones.
    return (known if known is not None else total) or 0
