"""What is too old leaves the tables: events after 90 days, jobs after 400, minutes after 30.

A fold replaces the hours that late events touch, from all events of those hours. Once events are dropped it can't, so
their day is sealed: the note of `events` has the first day that is not. `seal` divides what the additive tables have of
such days:

    metric_parts, worker_parts    of jobs whose events go:  partitions by the day in which it happened ("2026-03-10"),
                                                            which no fold replaces
                                  of jobs whose events stay: partitions by hour of creation, as before
    jobs, attempts                stay as they are; a fold adds to their rows (`tables.jobs_with`)
    events                        rewritten without the events of those jobs

A job's events go when the job has ended and its last event is older than the limit; a job that never ends keeps its
events as long as jobs are kept. Jobs whose creation no event tells leave all tables with their events, except for what
they add up to.

`events` is committed last. Until then the notes of the other tables say what was begun there, and the next fold removes
it and computes those days again (`fold.unfinished`). Whoever calls `seal` holds the lake's lock.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyarrow import compute
from pyspark.sql import functions as f

from penstock.lake import tables
from penstock.lake.fold import computed, events_of, hours_of, staged, unknown_events
from penstock.lake.life import ENDED
from penstock.lake.schemas import ATTEMPTS, CHECKS, EVENTS, JOBS, METRIC_PARTS, UNKNOWN, WORKER_PARTS
from penstock.lake.table import DataFile, LakeTable, Snapshot, use_utc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_LENGTH = len("2026-03-10")
MINUTES = 60  # of an hour: rows of fewer are not put together yet


class Limits(NamedTuple):
    """Times before which something is too old."""

    events: datetime  # last events of jobs that have ended
    jobs: datetime  # last events of all jobs
    minutes: datetime


class Sealing(NamedTuple):
    """What is to leave `events`."""

    files: tuple[DataFile, ...]  # that have such events
    jobs: int
    events: int  # of those jobs, as `jobs` counts them


def day_of(time: datetime) -> str:
    """Return the day of a time, as partitions have it."""
    return time.strftime("%Y-%m-%d")


def is_closed_day(partition: str) -> bool:
    """Whether a partition of an additive table is of jobs whose events are gone."""
    return len(partition) == DAY_LENGTH and partition != UNKNOWN


def sealing(lake: str | Path, limits: Limits) -> Sealing | None:
    """Return which events are too old; None if there are none. Starts no JVM."""
    events, jobs = LakeTable(lake, EVENTS), LakeTable(lake, JOBS)
    source, known = events.snapshot(), jobs.snapshot()
    before, sealed = day_of(limits.events), str(source.note.get("sealed_before", ""))
    old = [file for file in source.files if file.partition < before]
    new = [file for file in old if file.partition >= sealed]  # whose samples go in any case
    of_new_days = [file for file in known.files if file.partition[:DAY_LENGTH] in {one.partition for one in new}]
    columns = ["job", "events", "outcome", "last_event"]
    gone = [_too_old(jobs.arrow(of_new_days, columns), limits)]
    files = list(new)
    # What is left of sealed days, and events that don't tell their day, is looked up by job.
    for file in [file for file in old if file.partition < sealed] + list(source.of([UNKNOWN])):
        ids = compute.unique(events.arrow([file], ["job"])["job"])
        found = _too_old(jobs.arrow(_before(known, before), columns, compute.field("job").isin(ids)), limits)
        if found.num_rows:
            files.append(file)
            gone.append(found)
    if not files:
        return None
    counts = pa.concat_tables(gone).group_by("job").aggregate([("events", "max")])
    return Sealing(tuple(files), counts.num_rows, int(compute.sum(counts["events_max"]).as_py() or 0))


def _before(known: Snapshot, day: str) -> list[DataFile]:
    return [file for file in known.files if file.partition[:DAY_LENGTH] < day or file.partition == UNKNOWN]


def _too_old(rows: pa.Table, limits: Limits) -> pa.Table:
    ended = compute.is_in(rows["outcome"], pa.array(ENDED))
    last = rows["last_event"]
    of_events = compute.and_(ended, compute.less(last, _time(limits.events)))
    return rows.filter(compute.or_(of_events, compute.less(last, _time(limits.jobs))))


def _time(time: datetime) -> pa.Scalar:
    return pa.scalar(time, pa.timestamp("us", "UTC"))


def seal(spark: SparkSession, lake: str | Path, planned: Sealing, limits: Limits) -> int:
    """Drop events that are too old; return how many. The tables must be folded."""
    use_utc(spark)
    events, jobs = LakeTable(lake, EVENTS), LakeTable(lake, JOBS)
    source, known = events.snapshot(), jobs.snapshot()
    before = day_of(limits.events)
    days = sorted({file.partition for file in planned.files} | {UNKNOWN})
    of_days = [file for file in source.files if file.partition in days and file.partition != UNKNOWN]
    hours = hours_of(events.dataframe(spark, of_days))
    unknown = unknown_events(spark, events, source, jobs, known, hours)
    gone = _gone(spark, jobs, known, unknown, days, limits).persist()
    try:
        if unknown is not None:
            hours |= {hour for hour in hours_of(unknown) if hour[:DAY_LENGTH] < before}
        hours.add(UNKNOWN)
        rows = events_of(spark, events, source, unknown, sorted(hours))
        own_id = uuid.uuid4().hex
        begun = {"id": own_id, "days": days}
        leaving, staying = _divided(rows, gone, limits)
        with _tables_of(leaving) as old, _tables_of(staying) as new:
            for schema, closed in ((METRIC_PARTS, _closed_metrics), (WORKER_PARTS, _closed_workers)):
                table = LakeTable(lake, schema)
                _close(table, closed(old[schema.name], limits), new[schema.name], sorted(hours), begun)
        return _drop(spark, events, source, planned, gone, limits, own_id)
    finally:
        gone.unpersist()
        if unknown is not None:
            unknown.unpersist()


def _gone(
    spark: SparkSession,
    jobs: LakeTable,
    known: Snapshot,
    unknown: DataFrame | None,
    days: list[str],
    limits: Limits,
) -> DataFrame:
    """Return the jobs whose events go."""
    last, first = f.lit(limits.events), f.lit(limits.jobs)
    is_old = (f.col("outcome").isin(*ENDED) & (f.col("last_event") < last)) | (f.col("last_event") < first)
    found = jobs.dataframe(spark, [file for file in known.files if file.partition[:DAY_LENGTH] in days])
    if unknown is not None:
        others = [file for file in _before(known, day_of(limits.events)) if file.partition[:DAY_LENGTH] not in days]
        found = found.unionByName(jobs.dataframe(spark, others).join(unknown.select("job"), "job", "left_semi"))
    return found.where(is_old).select("job").distinct()


def _divided(rows: DataFrame, gone: DataFrame, limits: Limits) -> tuple[DataFrame, DataFrame]:
    """Return the events that leave, and those that stay."""
    of_jobs, others = rows.where(f.col("job").isNotNull()), rows.where(f.col("job").isNull())
    is_old = f.col("at") < f.lit(limits.events)
    return (
        of_jobs.join(gone, "job", "left_semi").unionByName(others.where(is_old)),
        of_jobs.join(gone, "job", "left_anti").unionByName(others.where(~is_old)),
    )


@contextmanager
def _tables_of(rows: DataFrame) -> Iterator[dict[str, DataFrame]]:
    results, free = computed(rows)
    try:
        yield results
    finally:
        free()


def _closed_metrics(parts: DataFrame, limits: Limits) -> DataFrame:
    return tables.by_hour(parts.withColumn("hour", f.date_format("minute", "yyyy-MM-dd")), f.lit(limits.minutes))


def _closed_workers(parts: DataFrame, limits: Limits) -> DataFrame:
    rows = parts.withColumn("hour", f.date_format("worked", "yyyy-MM-dd"))
    sums = [f.sum(name).alias(name) for name in ("busy_ms", "jobs", "acked", "failures")]
    return rows.groupBy("worker", "worked", "hour").agg(*sums).select(*WORKER_PARTS.names)


def _close(table: LakeTable, closed: DataFrame, staying: DataFrame, hours: list[str], begun: Mapping[str, Any]) -> None:
    """Commit both parts of what a table has of some hours."""
    snapshot = table.snapshot()
    added = staged(table, closed)
    note = {**snapshot.note, "kind": "vacuum", "sealing": {**begun, "files": [action.path for action in added]}}
    added += staged(table, staying.where(f.col("hour").isin(*hours)))
    table.rewrite(snapshot, added, snapshot.of(hours), lambda _: note, is_change=True)


def _drop(
    spark: SparkSession,
    events: LakeTable,
    source: Snapshot,
    planned: Sealing,
    gone: DataFrame,
    limits: Limits,
    sealing_id: str,
) -> int:
    """Rewrite files of `events` without what goes; return how many events that is."""
    paths = {file.path for file in planned.files}
    changed = [file for file in source.files if file.path in paths]
    lonely = [file for file in changed if file.partition == UNKNOWN]
    _, kept = _divided(events.dataframe(spark, [file for file in changed if file not in lonely]), gone, limits)
    kept = kept.unionByName(events.dataframe(spark, lonely).join(gone, "job", "left_anti"))
    added = events.stage(kept.repartition("day").sortWithinPartitions("day", "job", "at", "seq"))
    dropped = numbers_in(events, changed) - numbers_in(events, events.files_of(added))

    def note(latest: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **dropping(latest, dropped),
            "kind": "vacuum",
            "sealed_before": max(day_of(limits.events), str(latest.get("sealed_before", ""))),
            "sealed": sealing_id,
        }

    events.rewrite(source, added, changed, note, is_change=True)
    return dropped


def dropping(note: Mapping[str, Any], numbers: int) -> dict[str, Any]:
    """Return the note of `events` after some were dropped: they stay covered, and `check` must not miss them."""
    return {**note, "dropped": int(note.get("dropped", 0)) + numbers}


def numbers_in(events: LakeTable, files: Sequence[DataFile]) -> int:
    """Return how many numbers of writers the events of files stand for: a record of lost events has several."""
    lost = events.arrow(files, ["size"], compute.field("kind") == "lost")["size"].to_pylist()
    return sum(file.rows for file in files) + sum(max(0, (size or 1) - 1) for size in lost)


# Jobs.


class OldJobs(NamedTuple):
    """Jobs that are too old."""

    jobs: int
    partitions: tuple[str, ...]  # with such jobs: hours of `jobs`, and closed days


def old_jobs(lake: str | Path, limits: Limits) -> OldJobs | None:
    """Return which jobs are too old; None if there are none. Starts no JVM."""
    table = LakeTable(lake, JOBS)
    day = day_of(limits.jobs)
    count, partitions = 0, set()
    for file in table.snapshot().files:
        if file.partition[:DAY_LENGTH] < day:
            last = table.arrow([file], ["last_event"])["last_event"]
            old = compute.sum(compute.less(last, _time(limits.jobs))).as_py() or 0
            if old:
                count += old
                partitions.add(file.partition)
    for schema in (METRIC_PARTS, WORKER_PARTS):
        closed = {file.partition for file in LakeTable(lake, schema).snapshot().files}
        partitions |= {one for one in closed if is_closed_day(one) and one < day}
    return OldJobs(count, tuple(sorted(partitions))) if partitions else None


def drop_jobs(spark: SparkSession, lake: str | Path, planned: OldJobs, limits: Limits) -> None:
    """Drop jobs that are too old, their attempts, and the metrics of those days. Safe to be done again."""
    use_utc(spark)
    jobs, attempts = LakeTable(lake, JOBS), LakeTable(lake, ATTEMPTS)
    known, deliveries = jobs.snapshot(), attempts.snapshot()
    old = known.of(planned.partitions)
    kept = jobs.dataframe(spark, old).where(f.col("last_event") >= f.lit(limits.jobs))
    others = deliveries.of(planned.partitions)
    kept_attempts = attempts.dataframe(spark, others).join(kept.select("job"), "job", "left_semi")
    # The jobs last: they tell which attempts are too old.
    _put(attempts, deliveries, kept_attempts, others)
    _put(jobs, known, kept, old)
    for schema in (METRIC_PARTS, WORKER_PARTS):
        table = LakeTable(lake, schema)
        snapshot = table.snapshot()
        closed = [file for file in snapshot.of(planned.partitions) if is_closed_day(file.partition)]
        if closed:
            _put(table, snapshot, None, closed)


def _put(table: LakeTable, snapshot: Snapshot, rows: DataFrame | None, removed: Sequence[DataFile]) -> None:
    """Replace files by rows."""
    added = [] if rows is None else staged(table, rows)
    table.rewrite(snapshot, added, removed, lambda note: {**note, "kind": "vacuum"}, is_change=True)


# Checks.


def old_checks(lake: str | Path, limits: Limits) -> list[DataFile]:
    """Return the files with results of checks that are too old."""
    return [file for file in LakeTable(lake, CHECKS).snapshot().files if file.partition < day_of(limits.jobs)]


def drop_checks(lake: str | Path, files: Sequence[DataFile]) -> None:
    """Drop results of checks. Needs no Spark."""
    table = LakeTable(lake, CHECKS)
    _put(table, table.snapshot(), None, files)


# Minutes.


def old_minutes(lake: str | Path, limits: Limits) -> list[str]:
    """Return the partitions of `metric_parts` with minutes that are to be put together. Starts no JVM."""
    found = {
        file.partition
        for file in LakeTable(lake, METRIC_PARTS).snapshot().files
        if file.low.get("minutes", 1) < MINUTES and _aware(file.low["minute"]) < limits.minutes
    }
    return sorted(one for one in found if _has_old_minutes(lake, one, limits))


def _has_old_minutes(lake: str | Path, partition: str, limits: Limits) -> bool:
    """Whether a partition has them: the statistics of a file tell the least of each column, not of a row."""
    table = LakeTable(lake, METRIC_PARTS)
    rows = table.arrow(table.snapshot().of([partition]), ["minute", "minutes"])
    old = rows.filter(compute.less(rows["minute"], _time(limits.minutes)))
    return bool(compute.any(compute.less(compute.fill_null(old["minutes"], 1), MINUTES)).as_py())


def put_hours_together(spark: SparkSession, lake: str | Path, partitions: Sequence[str], limits: Limits) -> None:
    """Put minutes that are too old together by hour."""
    use_utc(spark)
    table = LakeTable(lake, METRIC_PARTS)
    snapshot = table.snapshot()
    files = snapshot.of(partitions)
    _put(table, snapshot, tables.by_hour(table.dataframe(spark, files), f.lit(limits.minutes)), files)


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)
