"""What if there were N workers: a day's deliveries and run times through a queueing simulation. Starts no JVM.

    >>> day = read_day("lake", date(2026, 11, 18), "mail")
    >>> simulate(day, workers=8).wait_p95_ms

A worker here runs one job at a time; the first that is free takes the job that has been ready longest. A job comes when
it came that day. A delivery after a failed one comes as long after it as it did, so it comes earlier if more workers
had ended the failed one earlier. Each delivery takes as long as it took.

What the simulation leaves out: that jobs run slower beside others, the time of a worker to fetch a job, pauses, and
workers that take several jobs ahead. Where workers are mostly idle those make up most of a wait; where there is more
work than they can do, a wait is as long as the day goes on. `Simulated.doubt` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from heapq import heappop, heappush, heapreplace
from math import ceil
from pathlib import Path
from typing import NamedTuple

from pyarrow import compute

from penstock.errors import CallerError
from penstock.lake.schemas import ATTEMPTS
from penstock.lake.table import DataFile, LakeTable

WORKERS_MAX = 100_000  # more are a mistake: no one has had as many
BUSY_MIN, BUSY_MAX = 0.5, 0.95  # shares between which the simulation was compared with days of known waits
US_PER_MS = 1000
DAY = timedelta(days=1)


@dataclass(slots=True)
class Day:
    """Deliveries in order of job and attempt. Times are microseconds."""

    day: date
    queue: str | None
    ready: list[int] = field(default_factory=list)
    run: list[int] = field(default_factory=list)
    pause: list[int | None] = field(default_factory=list)  # since the end of the delivery before; None: it has none
    waited: list[int] = field(default_factory=list)  # as it was
    since: int = 0  # deliveries that were ready before are work for the workers, and are not counted
    left_out: int = 0  # deliveries of that day that have not ended, or whose times are not known


class Simulated(NamedTuple):
    """What the simulation says."""

    workers: int
    deliveries: int
    wait_p50_ms: float
    wait_p95_ms: float
    busy_share: float  # of the workers' time between the first job and the end of the last one
    load: float  # work that came, by what the workers could do in the time in which it came; above 1 they fall behind

    @property
    def doubt(self) -> str:
        """Why the figures are not to be trusted; empty if they are."""
        if self.load > BUSY_MAX:
            return (
                f"the workers are busy for {self.load:.0%} of the time in which jobs come, above {BUSY_MAX:.0%}: waits "
                "grow while jobs come, so these are too short for a longer day"
                if self.load > 1
                else f"the workers are busy for {self.load:.0%} of the time, above {BUSY_MAX:.0%}: a few jobs more or "
                "less change the waits a lot"
            )
        if self.load < BUSY_MIN:
            return (
                f"the workers are busy for {self.load:.0%} of the time, below {BUSY_MIN:.0%}: a wait is mostly "
                "the time to fetch a job, which is not simulated"
            )
        return ""


def last_day(lake: str | Path) -> date:
    """Return the last day on which a job became ready for a delivery."""
    table = LakeTable(lake, ATTEMPTS)
    highest = max((file.high["ready"] for file in table.snapshot().files if "ready" in file.high), default=None)
    if highest is None:
        raise CallerError(f"the lake must have deliveries, got none in {lake}: run `penstock lake build`")
    last: date = _aware(highest).date()
    return last


def read_day(lake: str | Path, day: date, queue: str | None = None) -> Day:
    """Return the deliveries of a day, of one queue or of all."""
    table = LakeTable(lake, ATTEMPTS)
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    files = [file for file in table.snapshot().files if _may_have(file, start)]
    chosen = (compute.field("ready") < start + DAY) & (
        (compute.field("ended") >= start) | compute.field("ended").is_null()
    )
    if queue is not None:
        chosen &= compute.field("queue") == queue
    names = ["job", "round", "attempt", "ready", "started", "ended"]
    rows = table.arrow(files, names, chosen).sort_by([(name, "ascending") for name in names[:3]])
    jobs = rows.column("job").to_pylist()
    ready, started, ended = (rows.column(name).cast("int64").to_pylist() for name in names[3:])
    found = Day(day, queue, since=int(start.timestamp()) * 1_000_000)
    before, before_end = None, 0
    for job, came_at, begun_at, ended_at in zip(jobs, ready, started, ended, strict=True):
        ready_at, started_at = came_at, begun_at
        if started_at is None or ended_at is None or ended_at < started_at:
            found.left_out += ready_at >= found.since
            before = None
            continue
        if ready_at < found.since:  # the day begins with it: what is left of its work
            started_at, ready_at = max(started_at, found.since), found.since - 1
        found.ready.append(ready_at)
        found.run.append(ended_at - started_at)
        found.pause.append(max(0, ready_at - before_end) if job == before else None)
        found.waited.append(max(0, started_at - ready_at))
        before, before_end = job, ended_at
    if not any(at >= found.since for at in found.ready):
        of_queue = "" if queue is None else f" of {queue}"
        raise CallerError(f"the day must have deliveries that ended, got none{of_queue} on {day}")
    return found


def _may_have(file: DataFile, start: datetime) -> bool:
    """Whether a file may have deliveries that were ready before the end of a day. Some have no end yet."""
    return "ready" not in file.low or _aware(file.low["ready"]) < start + DAY


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def simulate(day: Day, workers: int) -> Simulated:
    """Run the deliveries of a day on some workers."""
    if not 1 <= workers <= WORKERS_MAX:
        raise CallerError(f"workers must be 1 to {WORKERS_MAX}, got {workers}")
    ready, run, pause, since = day.ready, day.run, day.pause, day.since
    count = len(ready)
    first = sorted((at for at in range(count) if pause[at] is None), key=ready.__getitem__)
    begin = ready[first[0]]
    free = [begin] * workers  # when each worker is free
    again: list[tuple[int, int]] = []  # deliveries after failed ones: when, and which
    waits: list[int] = []
    position, end_of_all = 0, begin
    while again or position < len(first):
        # No delivery that is still to come is ready before this one: it follows an end, which lies ahead.
        if again and (position == len(first) or again[0][0] <= ready[first[position]]):
            at, one = heappop(again)
        else:
            one = first[position]
            at = ready[one]
            position += 1
        start = max(at, free[0])
        end = start + run[one]
        heapreplace(free, end)
        end_of_all = max(end_of_all, end)
        if at >= since:
            waits.append(start - at)
        following = one + 1
        if following < count and (gap := pause[following]) is not None:
            heappush(again, (end + gap, following))
    work = sum(run)
    came = max(ready) - begin
    return Simulated(
        workers,
        len(waits),
        quantile(waits, 0.5) / US_PER_MS,
        quantile(waits, 0.95) / US_PER_MS,
        work / (workers * max(1, end_of_all - begin)),
        work / (workers * max(1, came)),
    )


def recorded(day: Day) -> tuple[float, float]:
    """Return p50 and p95 of the waits as they were, in milliseconds."""
    waits = [wait for wait, at in zip(day.waited, day.ready, strict=True) if at >= day.since]
    return quantile(waits, 0.5) / US_PER_MS, quantile(waits, 0.95) / US_PER_MS


def quantile(values: Sequence[int], share: float) -> int:
    """Return the smallest value that at least this share of the values does not exceed; 0 without values."""
    if not values:
        return 0
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
