"""What a job is, between the queue library and its stores.

`NewJob` goes in, `StoredJob` comes out. Times are unix times in milliseconds, by the clock of the store. `tries` is the
number of earlier deliveries in which work on the job began and that did not end it: 0 at the first delivery.

A job's id has the time at which it was made, if it is one of ours (`IdMaker`) or an ObjectId of MongoDB. Stores that
can't keep the time of a push elsewhere need no field for it.
"""

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class JobState(StrEnum):
    """Where a job of a queue stands."""

    READY = "ready"  # waits, and may be taken now
    SCHEDULED = "scheduled"  # waits for its time
    RESERVED = "reserved"  # a worker has it
    DONE = "done"  # it has ended, and the store keeps it for a while
    AWAY = "away"  # the node that has it can't be reached: it waits there, or a worker of that node has it


LIVE = (
    JobState.READY,
    JobState.SCHEDULED,
    JobState.RESERVED,
)  # the states of jobs that have not ended; READY has those that are AWAY with it


@dataclass(slots=True)
class NewJob:
    """A job on its way into a store."""

    payload: Any
    body: bytes
    headers: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""  # stores that choose their own ids ignore it
    tries: int = 0
    delay_ms: int = 0
    mature_ms: int | None = None  # a point in time; it goes before the delay
    ttl_s: float | None = None
    retry_s: float | None = None
    replicate: int | None = None
    unique: str | None = None
    unique_for_ms: int = 0
    created_ms: int | None = None  # of a job that moves from another queue; None: now
    prepared: Any = None  # what the store made of it, to be sent


@dataclass(slots=True)
class StoredJob:
    """A job that came out of a store: with its payload if the store keeps those, else with its body."""

    id: str
    body: bytes | None = None
    payload: Any = None
    headers: dict[str, Any] = field(default_factory=dict)
    tries: int = 0
    mature_ms: int | None = None
    recorded_ms: int | None = None  # when it was pushed, where the store keeps that
    token: str | None = None  # only of a reserved job
    state: JobState = JobState.READY
    nacks: int | None = None
    additional_deliveries: int | None = None
    node: str | None = None
    has_begun: bool = True  # of a reserved job: a try is counted if its lease runs out
    is_back: bool = False  # its last lease ran out: the worker died, or was too slow
    unbegun: int = 0  # leases in a row, just before this one, that ran out before work on the job began
    raw: Any = None  # the store's own form, to put a popped job back as it was

    @property
    def created_ms(self) -> int | None:
        """When it was pushed, from the store or from its id; None for a peer's job that has neither."""
        return id_time_ms(self.id) if self.recorded_ms is None else self.recorded_ms


class Lease(NamedTuple):
    """A job by its id, and the right to end it. Without a token: a job that nobody has reserved."""

    id: str
    token: str | None


class Mark(NamedTuple):
    """What to note of a reserved job, to reserve it again after a restart: its id, its node, and its counters.

    Without counters, whoever may have had it meanwhile.
    """

    id: str
    node: str = ""
    nacks: int | None = None
    additional_deliveries: int | None = None


class JobMove(NamedTuple):
    """One job that leaves its queue for another, in the form that it has there."""

    lease: Lease
    job: NewJob


class Sizes(NamedTuple):
    """How many jobs a queue has. None where the store can't know."""

    total: int
    ready: int
    scheduled: int
    reserved: int | None


class Consumer(NamedTuple):
    """A caller that waits for jobs of a queue object."""

    label: str | None  # as it was given, for people
    waiter: object  # what `cancel` knows it by
    since: float  # unix time
    is_reserving: bool  # it reserves jobs; otherwise it pops them


_VERSION = 5  # the digit of our ids


class IdMaker:
    """Makes ids in the form of UUIDs, which contain the time of their making and sort by it.

    Stores order jobs of the same millisecond by their ids, so ids that sort keep jobs of one producer in order. The
    first 48 bits are milliseconds, 12 bits behind the version are a counter, the rest is random: the layout of version
    7. Keuss accepts versions 1 to 5 only, and its own are 4, which has no time in it; so ours say 5.
    """

    _BLOCK = 4096  # bytes of chance fetched at once: a system call a job would cost more than all else here

    def __init__(self) -> None:
        self._ms = 0
        self._front = ""  # of all ids of the same millisecond
        self._count = 0
        self._chances: list[str] = []  # the ends of ids to come
        self._pid = 0

    def __call__(self) -> str:
        now = int(time.time() * 1000)
        if now <= self._ms and self._count < 0xFFF:
            self._count += 1
        else:
            self._ms = max(now, self._ms + 1)
            self._count = 0
            self._front = f"{self._ms >> 16:08x}-{self._ms & 0xFFFF:04x}-{_VERSION}"
        return f"{self._front}{self._count:03x}-{self._chance()}"

    def _chance(self) -> str:
        # A process that was forked must not go on with its parent's chance; threads may share this object.
        if self._pid == os.getpid():
            try:
                return self._chances.pop()
            except IndexError:
                pass
        chance = os.urandom(self._BLOCK).hex()
        *chances, last = [
            f"{'89ab'[int(chance[at], 16) & 3]}{chance[at + 1 : at + 4]}-{chance[at + 4 : at + 16]}"
            for at in range(0, len(chance), 16)
        ]
        self._chances, self._pid = chances, os.getpid()
        return last


new_id = IdMaker()

_WITH_TIME = re.compile(rf"([0-9a-f]{{8}})-([0-9a-f]{{4}})-{_VERSION}[0-9a-f]{{3}}-[89ab][0-9a-f]{{3}}-[0-9a-f]{{12}}")
_OBJECT_ID = re.compile(r"([0-9a-f]{8})[0-9a-f]{16}")


def id_time_ms(job_id: str) -> int | None:
    """Return when an id was made, by the clock of its maker; None for an id without a time."""
    found = _WITH_TIME.fullmatch(job_id)
    if found is not None:
        return int(found[1] + found[2], 16)
    found = _OBJECT_ID.fullmatch(job_id)
    return None if found is None else int(found[1], 16) * 1000
