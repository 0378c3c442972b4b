"""What a lake keeps, and for how long; `vacuum` deletes the rest, and puts small files together.

    raw segments     1 day after the commit of their events
    events           90 days after the last event of a job that has ended
    jobs, attempts   400 days after the job's last event
    metrics          by minute 30 days, then by hour, 400 days; workers and checks, 400 days
    files            that no version needs any more: 1 day, for readers who are still at work

The order matters, and each step can be killed and done again: raw segments go while the log still tells when they were
committed; tables are folded before events leave them; files go after what replaced them was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import CallerError, OperatorError
from penstock.lake.compaction import compact, small_files
from penstock.lake.coverage import Coverage
from penstock.lake.fold import fold_locked, unfinished
from penstock.lake.quality import open_events
from penstock.lake.retention import (
    Limits,
    day_of,
    drop_checks,
    drop_jobs,
    old_checks,
    old_jobs,
    old_minutes,
    put_hours_together,
    seal,
    sealing,
)
from penstock.lake.schemas import FOLDED, TABLES
from penstock.lake.segments import segment_files
from penstock.lake.table import LOG, LakeTable, locked
from penstock.lake.unused import data_files, delete, delete_segments, logs, raw_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEEP_MAX = timedelta(days=36_500)  # 100 years
LOG_FOR = timedelta(days=7)  # versions that can be read again, to see what happened to a table
CLOCK_SKEW = timedelta(hours=1)  # between the machines that write to a lake


@dataclass(frozen=True, slots=True)
class Keep:
    """How long a lake keeps what."""

    raw: timedelta = timedelta(days=1)
    events: timedelta = timedelta(days=90)
    jobs: timedelta = timedelta(days=400)
    minutes: timedelta = timedelta(days=30)
    files: timedelta = timedelta(days=1)

    def __post_init__(self) -> None:
        for name in ("raw", "events", "jobs", "minutes", "files"):
            value = getattr(self, name)
            if not timedelta(0) <= value <= KEEP_MAX:
                raise CallerError(f"the time to keep {name} must be from 0 to {KEEP_MAX.days} days, got {value}")
        if self.jobs < self.events:
            raise CallerError(
                f"jobs must be kept at least as long as events, got {self.jobs.days} days for jobs and "
                f"{self.events.days} for events"
            )

    def limits(self, now: datetime) -> Limits:
        """Return the times before which things are too old."""
        hour = now.replace(minute=0, second=0, microsecond=0)
        return Limits(now - self.events, now - self.jobs, hour - self.minutes)


class VacuumStep(NamedTuple):
    """What a step of a vacuum does, or would do."""

    what: str
    found: str  # for people
    items: int
    size: int = 0  # in bytes


Say = Callable[[VacuumStep], None]


def vacuum(
    start_spark: Callable[[], SparkSession],
    lake: str | Path,
    events: str | Path | None,
    keep: Keep,
    *,
    dry_run: bool = False,
    now: datetime | None = None,
    on_step: Say = lambda step: None,
    on_wait: Callable[[], None] = lambda: None,
) -> list[VacuumStep]:
    """Delete what is too old; return what was done. With `dry_run`, what would be done: nothing is changed.

    Spark is started only if a table is to be rewritten.
    """
    table, _ = open_events(lake)
    now = now or datetime.now(UTC)
    _check_clock(lake, now)
    steps: list[VacuumStep] = []

    def done(what: str, found: str, count: int, size: int = 0) -> None:
        steps.append(VacuumStep(what, found, count, size))
        on_step(steps[-1])

    if dry_run:
        _run(start_spark, lake, table, events, keep, now, done, is_dry=True)
        return steps
    with locked(lake, alone=True, on_wait=on_wait):
        _run(start_spark, lake, table, events, keep, now, done, is_dry=False)
    return steps


def _check_clock(lake: str | Path, now: datetime) -> None:
    """Refuse a clock that is behind the last commit: ages would be wrong."""
    for schema in TABLES:
        table = LakeTable(lake, schema)
        files = (table.path / LOG).glob("*.json")
        last = max((path.stat().st_mtime for path in files), default=0.0)
        if last > (now + CLOCK_SKEW).timestamp():
            raise OperatorError(
                f"the clock must not be behind the last commit, got {now:%Y-%m-%d %H:%M} UTC and a commit to "
                f"{table.path} at {datetime.fromtimestamp(last, UTC):%Y-%m-%d %H:%M}: set the clock"
            )


def _run(
    start_spark: Callable[[], SparkSession],
    lake: str | Path,
    table: LakeTable,
    events: str | Path | None,
    keep: Keep,
    now: datetime,
    done: Callable[..., None],
    *,
    is_dry: bool,
) -> None:
    limits = keep.limits(now)
    if events is not None:
        segment_files(events)  # raises if there is no such directory
        raw = raw_segments(events, table, now - keep.raw)
        if not is_dry:
            delete_segments(raw.old)
        done(
            "raw segments", f"{len(raw.old)} segments, committed before {_time(now - keep.raw)}", len(raw.old), raw.size
        )
        if raw.unreadable:
            done("unreadable segments", f"left: {', '.join(map(str, raw.unreadable[:3]))}", len(raw.unreadable))
        _retire(table, events, limits, done, is_dry=is_dry)
    behind = _unfolded(lake)
    if behind:
        if not is_dry:
            fold_locked(start_spark(), lake)
        done("fold", f"{behind} commits that the tables don't follow yet", behind)
    if (planned := sealing(lake, limits)) is not None:
        dropped = planned.events if is_dry else seal(start_spark(), lake, planned, limits)
        done(
            "events",
            f"{dropped} events, of {planned.jobs} jobs that ended before {_time(limits.events)}",
            dropped,
            sum(file.size for file in planned.files),
        )
    if (old := old_jobs(lake, limits)) is not None:
        if not is_dry:
            drop_jobs(start_spark(), lake, old, limits)
        done("jobs", f"{old.jobs} jobs, without events since {_time(limits.jobs)}", old.jobs)
    if files := old_checks(lake, limits):
        if not is_dry:
            drop_checks(lake, files)
        done("checks", f"{len(files)} files of runs before {_time(limits.jobs)}", len(files))
    if partitions := old_minutes(lake, limits):
        if not is_dry:
            put_hours_together(start_spark(), lake, partitions, limits)
        done("metrics", f"{len(partitions)} partitions with minutes before {_time(limits.minutes)}", len(partitions))
    for small in small_files(lake, day_of(now)):
        became = 1 if is_dry else compact(start_spark(), lake, small)
        name = f"{small.schema.name}/{small.schema.partition}={small.partition}"
        if became:
            done("small files", f"{len(small.files)} files of {name}", len(small.files), small.size)
    if not is_dry and _unfolded(lake):
        fold_locked(start_spark(), lake)  # nothing to compute: the tables note that they follow
    log_for = max(LOG_FOR, keep.raw, keep.files)
    for schema in TABLES:
        one = LakeTable(lake, schema)
        if not one.exists():
            continue
        unused = data_files(one, now - keep.files)
        if unused.files:
            if not is_dry:
                delete(unused)
            done("unused files", f"{len(unused.files)} files of {schema.name}", len(unused.files), unused.size)
        if unused.younger:
            done("younger files", f"{unused.younger} unused files of {schema.name} stay: readers may need them", 0)
        old_logs = logs(one, now - log_for)
        if old_logs.files:
            if not is_dry:
                one.checkpoint()
                delete(old_logs)
            done("logs", f"{len(old_logs.files)} files of the log of {schema.name}", len(old_logs.files), old_logs.size)


def _retire(table: LakeTable, events: str | Path, limits: Limits, done: Callable[..., None], *, is_dry: bool) -> None:
    """Forget the numbers of runs of writers whose segments are gone, once their events are too old.

    Each commit notes the numbers of all runs; without an end, the notes would grow with each process that ever wrote.
    """
    snapshot = table.snapshot()
    there = {(file.writer, file.epoch) for file in segment_files(events)}
    covered = Coverage.from_json(snapshot.note.get("covered"))
    begun_before = int(limits.events.timestamp() * 1000)  # epochs are times in milliseconds
    old = [
        (writer, epoch)
        for writer in covered.writers()
        for epoch in covered.epochs(writer)
        if epoch < begun_before and (writer, epoch) not in there
    ]
    if not old:
        return

    def note(latest: Mapping[str, Any]) -> dict[str, Any]:
        rest = Coverage.from_json(latest.get("covered"))
        numbers = sum(rest.drop(writer, epoch) for writer, epoch in old)
        ended = {
            writer: left
            for writer, epochs in latest.get("ended", {}).items()
            if (left := [epoch for epoch in epochs if (writer, epoch) not in old])
        }
        counts = {"covered": rest.to_json(), "ended": ended, "retired": int(latest.get("retired", 0)) + numbers}
        return {**latest, **counts, "kind": "vacuum"}

    if not is_dry:
        table.rewrite(snapshot, [], [], note, is_change=False)
    done("writers", f"{len(old)} runs of writers without segments, begun before {_time(limits.events)}", len(old))


def _unfolded(lake: str | Path) -> int:
    """Return how many versions of `events` the other tables don't follow, and what a killed vacuum left, as one."""
    _, source = open_events(lake)
    snapshots = [LakeTable(lake, schema).snapshot() for schema in FOLDED]
    behind = source.version - min(int(one.note.get("events_version", -1)) for one in snapshots)
    return behind or int(any(unfinished(one, source) for one in snapshots))


def _time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M}"
