"""`events` into the other tables: the partitions that new events touch are computed again, and replaced.

A partition is an hour in which jobs were created. All events of a job are in one partition, so its rows depend on
nothing else, and nothing is ever final: a late event, whatever its age, has its hour computed again.

Each commit notes the version of `events` that its table follows. A fold reads the tables' notes first, then
`events`, so what it commits is never older than what it replaces; each commit is made on the snapshot that was read
first, and a fold that was overtaken by another one starts again. Killed between two commits, the next fold does the
same work again.

Events of jobs whose creation is unknown (another system made the job) are in a partition of their own. Each fold looks
them up again: once another event tells when the job was created, they move to its hour.

Days whose events `vacuum` has dropped for their age are sealed (`retention`): what comes late for them is added to the
rows that are there, and replaces nothing. What a vacuum that was killed has begun there, the next fold undoes first.
Folds share the lake's lock; a vacuum waits for them, and they for it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from penstock.lake import tables
from penstock.lake.schemas import EVENTS, FOLDED, UNKNOWN
from penstock.lake.table import LOG, NOTE, DataFile, LakeTable, Snapshot, Stale, locked, use_utc

if TYPE_CHECKING:
    from deltalake.transaction import AddAction
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock.lake")

STALE_MAX = 10  # folds of others that came first, in a row
CHUNK_EVENTS = 10_000_000  # of the hours that are folded at once: what is sorted, on disk if memory is short
HOUR = timedelta(hours=1)
SORTS = {"jobs": "job", "attempts": "job", "metric_parts": "minute", "worker_parts": "worker"}
REWRITES = ("compact", "vacuum", "forget")  # kinds of commits to `events` that add no event


class FoldRequest(NamedTuple):
    """What is to be computed besides what has new events."""

    everything: bool
    from_day: str | None
    hours: frozenset[str]

    def __bool__(self) -> bool:
        return self.everything or self.from_day is not None or bool(self.hours)


class Folded(NamedTuple):
    """What a fold has done."""

    hours: tuple[str, ...]
    version: int  # of events
    commits: int


def fold(
    spark: SparkSession,
    lake: str | Path,
    *,
    everything: bool = False,
    from_day: str | None = None,
    hours: Iterable[str] = (),
    progress: Callable[[int], None] = lambda count: None,
) -> Folded:
    """Bring all tables up to the version of `events`.

    With `everything`, all partitions are computed again; with `from_day`, those of that day and later ones; `hours` are
    computed besides those that have new events.
    """
    with locked(lake, alone=False):
        return fold_locked(spark, lake, everything=everything, from_day=from_day, hours=hours, progress=progress)


def fold_locked(
    spark: SparkSession,
    lake: str | Path,
    *,
    everything: bool = False,
    from_day: str | None = None,
    hours: Iterable[str] = (),
    progress: Callable[[int], None] = lambda count: None,
) -> Folded:
    """As `fold`, for those who hold the lake's lock."""
    use_utc(spark)
    wanted = FoldRequest(everything, from_day, frozenset(hours))
    for attempt in range(STALE_MAX + 1):
        try:
            return _fold(spark, lake, wanted, progress)
        except Stale as problem:
            if attempt == STALE_MAX:
                raise
            log.info("folding again: %s", problem)
    raise AssertionError("unreachable")


def _fold(spark: SparkSession, lake: str | Path, wanted: FoldRequest, progress: Callable[[int], None]) -> Folded:
    folded = {schema.name: LakeTable(lake, schema) for schema in FOLDED}
    for table in folded.values():
        table.create()
    snapshots = {name: table.snapshot() for name, table in folded.items()}
    events = LakeTable(lake, EVENTS)
    source = events.snapshot()
    since = min(int(one.note.get("events_version", -1)) for one in snapshots.values())
    undone = {name: unfinished(snapshot, source) for name, snapshot in snapshots.items()}
    if since >= source.version and not wanted and not any(undone.values()):
        return Folded((), source.version, 0)
    days = {day for some in undone.values() for day in (some or {}).get("days", ())}
    changed = list(source.files)
    if not wanted.everything:
        begin = wanted.from_day or UNKNOWN
        fresh = {file.path for file in _changed(events, source, since)}
        changed = [
            file
            for file in source.files
            if file.path in fresh or file.partition in days or begin <= file.partition < UNKNOWN
        ]
    hours = hours_of(events.dataframe(spark, [file for file in changed if file.partition != UNKNOWN]))
    hours |= wanted.hours
    unknown = unknown_events(spark, events, source, folded["jobs"], snapshots["jobs"], hours)
    if unknown is not None:
        fresh = {file.path for file in changed}
        hours |= hours_of(unknown) if any(file.path in fresh for file in source.of([UNKNOWN])) else set()
    if unknown is not None or (hours and any(one.of([UNKNOWN]) for one in snapshots.values())):
        hours.add(UNKNOWN)
    if not hours and not any(undone.values()):
        for name, table in folded.items():
            table.commit(
                snapshots[name], [], {**snapshots[name].note, "kind": "fold", "events_version": source.version}
            )
        return Folded((), source.version, len(folded))
    commits = 0
    try:
        chunks = _chunks(source, hours)
        for number, chunk in enumerate(chunks):
            note = {"kind": "fold", "hours": len(chunk), "events_version": since}
            is_last = number == len(chunks) - 1
            if is_last:
                note["events_version"] = source.version
            rows = events_of(spark, events, source, unknown, chunk)
            sealed = [hour for hour in chunk if is_sealed(source, hour)]
            snapshots = _replace(spark, folded, snapshots, rows, chunk, sealed, note, undone, is_last)
            commits += len(folded)
            progress(len(chunk))
    finally:
        if unknown is not None:
            unknown.unpersist()
    return Folded(tuple(sorted(hours)), source.version, commits)


def is_sealed(source: Snapshot, hour: str) -> bool:
    """Whether events of an hour were dropped for their age, by a snapshot of `events`."""
    return hour != UNKNOWN and hour[:10] < str(source.note.get("sealed_before", ""))


def unfinished(snapshot: Snapshot, source: Snapshot) -> Mapping[str, Any] | None:
    """Return what a vacuum began in a table, and did not finish in `events`: its days, and the files that it added."""
    sealing: Mapping[str, Any] | None = snapshot.note.get("sealing")
    return None if sealing is None or sealing["id"] == source.note.get("sealed") else sealing


def computed(rows: DataFrame) -> tuple[dict[str, DataFrame], Callable[[], None]]:
    """Return the rows of each table, and what frees the memory that they take."""
    ordered = tables.in_order(rows).persist()
    deliveries = tables.attempts(ordered).persist()

    def free() -> None:
        deliveries.unpersist()
        ordered.unpersist()

    results = {
        "jobs": tables.jobs(ordered, deliveries),
        "attempts": deliveries,
        "metric_parts": tables.metric_parts(ordered, deliveries, rows),
        "worker_parts": tables.worker_parts(deliveries),
    }
    return results, free


def staged(table: LakeTable, rows: DataFrame) -> list[AddAction]:
    """Write rows of a folded table, a file for each partition."""
    return table.stage(rows.repartition("hour").sortWithinPartitions("hour", SORTS[table.schema.name]))


def _replace(
    spark: SparkSession,
    folded: dict[str, LakeTable],
    snapshots: dict[str, Snapshot],
    rows: DataFrame,
    hours: Sequence[str],
    sealed: Sequence[str],
    note: dict[str, Any],
    undone: Mapping[str, Mapping[str, Any] | None],
    is_last: bool,
) -> dict[str, Snapshot]:
    """Compute the partitions of some hours, and commit them; return the new snapshots."""
    results, free = computed(rows)
    if sealed:
        old = {name: folded[name].dataframe(spark, snapshots[name].of(sealed)) for name in ("jobs", "attempts")}
        touched = results["jobs"].select("job")
        deliveries = tables.attempts_with(old["attempts"].join(touched, "job", "left_semi"), results["attempts"])
        again = tables.jobs_with(old["jobs"].join(touched, "job", "left_semi"), results["jobs"], deliveries)
        results["attempts"] = deliveries.unionByName(old["attempts"].join(touched, "job", "left_anti"))
        results["jobs"] = again.unionByName(old["jobs"].join(touched, "job", "left_anti"))
    after = {}
    try:
        for name, result in results.items():
            table = folded[name]
            added = staged(table, result.where(_is_in("hour", hours)))
            # What an unfinished vacuum has added leaves with the last hours that replace it.
            begun = undone[name] if is_last else None
            files = set((begun or {}).get("files", ()))
            removed = [file for file in snapshots[name].files if file.path in files or file.partition in hours]
            own = note if is_last or undone[name] is None else {**note, "sealing": undone[name]}
            try:
                version = table.commit(snapshots[name], added, own, removed=removed)
            except Stale:
                table.discard(added)
                raise
            after[name] = table.snapshot()
            if after[name].version != version:
                raise Stale(f"another fold has committed to {table.path}")
    finally:
        free()
    return after


def _changed(events: LakeTable, source: Snapshot, since: int) -> list[DataFile]:
    """Return the files with what was added after a version; all of them if the log no longer tells."""
    added: set[str] = set()
    for version in range(since + 1, source.version + 1):
        file = events.path / LOG / f"{version:020d}.json"
        try:
            lines = [json.loads(line) for line in file.read_text().splitlines()]
        except FileNotFoundError:
            return list(source.files)
        adds = {line["add"]["path"] for line in lines if "add" in line}
        gone = {line["remove"]["path"] for line in lines if "remove" in line}
        notes = [json.loads(line["commitInfo"].get(NOTE, "{}")) for line in lines if "commitInfo" in line]
        is_rewrite = any(note.get("kind") in REWRITES for note in notes) or not any(
            line["add"].get("dataChange", True) for line in lines if "add" in line
        )
        # New events that were rewritten since are in the files that took their place.
        if not is_rewrite or added & gone:
            added |= adds
    return [file for file in source.files if file.path in added]


def unknown_events(
    spark: SparkSession,
    events: LakeTable,
    source: Snapshot,
    jobs: LakeTable,
    known_jobs: Snapshot,
    hours: Iterable[str],
) -> DataFrame | None:
    """Return the events that don't tell when their job was created, with what is known of it; None without any."""
    lonely = source.of([UNKNOWN])
    if not lonely:
        return None
    unknown = tables.distinct(events.dataframe(spark, lonely).where(f.col("job").isNotNull())).drop("created")
    known = _creations(spark, unknown, jobs, known_jobs, events, source, hours)
    return unknown.join(known, "job", "left").select(*EVENTS.names).persist()


def hours_of(rows: DataFrame) -> set[str]:
    """Return the hours of creation of events."""
    time = f.coalesce("created", f.when(f.col("job").isNull(), f.col("at")))
    found = rows.select(tables.hour_of(time).alias("hour")).distinct().collect()
    return {row.hour for row in found} - {UNKNOWN}


def _creations(
    spark: SparkSession,
    unknown: DataFrame,
    jobs: LakeTable,
    known_jobs: Snapshot,
    events: LakeTable,
    source: Snapshot,
    hours: Iterable[str],
) -> DataFrame:
    """Return when jobs of unknown creation were created, as far as `jobs` or the touched hours tell."""
    files = [file for file in known_jobs.files if file.partition != UNKNOWN]
    wanted = unknown.select("job").distinct()
    told = jobs.dataframe(spark, files).select("job", "created")
    touched = _files_of(source, hours)
    told = told.union(events.dataframe(spark, touched).where(f.col("created").isNotNull()).select("job", "created"))
    return told.join(wanted, "job", "left_semi").groupBy("job").agg(f.min("created").alias("created"))


def _files_of(source: Snapshot, hours: Iterable[str]) -> list[DataFile]:
    """Return the files of events that may have jobs, or samples, of some hours: by partition, then by statistics."""
    starts = sorted(_start(hour) for hour in hours if hour != UNKNOWN)
    by_day: dict[str, list[datetime]] = {}
    for start in starts:
        by_day.setdefault(start.strftime("%Y-%m-%d"), []).append(start)
    return [file for file in source.files if any(_may_have(file, start) for start in by_day.get(file.partition, ()))]


def _may_have(file: DataFile, start: datetime) -> bool:
    ranges = [(file.low[name], file.high[name]) for name in ("created", "at") if name in file.low]
    return not ranges or any(_aware(low) < start + HOUR and _aware(high) >= start for low, high in ranges)


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _start(hour: str) -> datetime:
    return datetime.strptime(hour, "%Y-%m-%dT%H").replace(tzinfo=UTC)


def _chunks(source: Snapshot, hours: Iterable[str]) -> list[list[str]]:
    """Return the hours in groups, each of a size that can be sorted at once."""
    rows_by_day: dict[str, int] = {}
    hours_by_day: dict[str, int] = {}
    for file in source.files:
        rows_by_day[file.partition] = rows_by_day.get(file.partition, 0) + file.rows
    wanted = sorted(hours)
    for hour in wanted:
        hours_by_day[hour.partition("T")[0]] = hours_by_day.get(hour.partition("T")[0], 0) + 1
    chunks: list[list[str]] = [[]]
    size = 0
    for hour in wanted:
        day = hour.partition("T")[0]
        share = rows_by_day.get(day, 0) // hours_by_day[day]
        if chunks[-1] and size + share > CHUNK_EVENTS:
            chunks.append([])
            size = 0
        chunks[-1].append(hour)
        size += share
    return chunks


def events_of(
    spark: SparkSession, events: LakeTable, source: Snapshot, unknown: DataFrame | None, hours: Sequence[str]
) -> DataFrame:
    """Return the events of the jobs of some hours, and the samples."""
    time = f.coalesce("created", f.when(f.col("job").isNull(), f.col("at")))
    rows = events.dataframe(spark, _files_of(source, hours))
    if unknown is not None:
        rows = rows.unionByName(unknown)
    return rows.withColumn("hour", tables.hour_of(time)).where(_is_in("hour", hours)).drop("hour")


def _is_in(column: str, values: Iterable[str]) -> Column:
    """Return a condition. `isin` calls Java once for each value: some milliseconds for each of thousands of hours."""
    return f.expr(f"{column} in ({', '.join(repr(value) for value in values)})")
