"""Deletes what the lake knows of some jobs, for good: personal data that must go before its time.

    events              files that have events of these jobs are written again without them
    jobs, attempts,     computed again from the events that are left; where a vacuum has dropped events for their age,
    metrics, workers    rows of these jobs are taken out, and counts, which name no job, stay
    old versions        files that these and earlier commits replaced are deleted at once, and the log before them:
                        its statistics may have an id. A query that runs meanwhile may fail, and can be asked again
    raw segments        if their directory is given: those that are in the tables and ended, with the bodies in them

What can't be deleted now is said: segments that their writer still has open, or that the lake has not read. Killed on
its way, the same call finishes it: the job stays in `jobs` until its events are gone. The store is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from penstock.errors import CallerError
from penstock.events import Segment, finished
from penstock.lake.coverage import Coverage
from penstock.lake.fold import fold_locked, is_sealed
from penstock.lake.quality import open_events
from penstock.lake.retention import dropping, numbers_in
from penstock.lake.schemas import ATTEMPTS, EVENTS, JOBS, TABLES
from penstock.lake.segments import plan, segment_files
from penstock.lake.table import DataFile, LakeTable, Snapshot, locked
from penstock.lake.unused import Unused, delete, delete_segments, logs, replaced_files
from penstock.lake.views import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ANY_TIME = datetime(9999, 1, 1, tzinfo=UTC)
SAMPLE = 5  # ids that are shown
JOBS_MAX = 1_000_000  # of one call: their ids are in memory


class Forgotten(NamedTuple):
    """What was deleted."""

    jobs: int
    sample: tuple[str, ...]  # some of their ids
    events: int = 0
    files: int = 0  # that were written again
    deleted: int = 0  # files of old versions
    segments: int = 0  # raw ones, with their bodies
    left: tuple[str, ...] = ()  # what is still to be done, as sentences


def forget(
    spark: SparkSession,
    lake: str | Path,
    where: str,
    *,
    events: str | Path | None = None,
    on_wait: Callable[[], None] = lambda: None,
) -> Forgotten:
    """Delete jobs that meet a condition in SQL on the columns of `jobs`."""
    open_events(lake)
    if events is not None:
        segment_files(events)  # raises if there is no such directory
    with locked(lake, alone=True, on_wait=on_wait):
        fold_locked(spark, lake)
        ids = _ids(spark, lake, where)
        planned = Forgotten(len(ids), tuple(ids[:SAMPLE]))
        if not ids:
            return planned
        wanted = spark.createDataFrame([(one,) for one in ids], "job string").persist()
        try:
            return _forget(spark, lake, events, planned, set(ids), wanted)
        finally:
            wanted.unpersist()


def choose(spark: SparkSession, lake: str | Path, where: str) -> Forgotten:
    """Return which jobs `forget` would delete, of those that the tables have now."""
    open_events(lake)
    ids = _ids(spark, lake, where)
    return Forgotten(len(ids), tuple(ids[:SAMPLE]))


def _ids(spark: SparkSession, lake: str | Path, where: str) -> list[str]:
    register(spark, lake)
    try:
        # An expression, not a statement; in parentheses a word behind it is not taken for its name.
        spark.table("jobs").where(f.expr(where))
        found = spark.table("jobs").where(f.expr(f"({where})")).select("job").distinct().limit(JOBS_MAX + 1)
        ids = sorted(row.job for row in found.collect())
    except PySparkException as problem:
        text = " ".join((problem.getMessage() or str(problem)).split("\n\n")[0].split())
        raise CallerError(
            f"--where must be a condition on the columns of jobs, such as \"job = 'ID'\", got {where!r}: {text}"
        ) from problem
    if len(ids) > JOBS_MAX:
        raise CallerError(f"--where must choose at most {JOBS_MAX} jobs at once, got more: narrow it")
    return ids


def _forget(
    spark: SparkSession,
    lake: str | Path,
    directory: str | Path | None,
    planned: Forgotten,
    ids: set[str],
    wanted: DataFrame,
) -> Forgotten:
    events = LakeTable(lake, EVENTS)
    source = events.snapshot()
    known = LakeTable(lake, JOBS).snapshot()
    hours = {
        row.hour
        for row in LakeTable(lake, JOBS)
        .dataframe(spark, known.files)
        .join(wanted, "job", "left_semi")
        .select("hour")
        .distinct()
        .collect()
    }
    changed = _with_jobs(spark, events, source, source.files, ids, wanted)
    dropped = 0
    if changed:
        kept = events.dataframe(spark, changed).join(wanted, "job", "left_anti")
        added = events.stage(kept.repartition("day").sortWithinPartitions("day", "job", "at", "seq"))
        dropped = numbers_in(events, changed) - numbers_in(events, events.files_of(added))
        events.rewrite(
            source, added, changed, lambda note: {**dropping(note, dropped), "kind": "forget"}, is_change=True
        )
    files = len(changed)
    # Attempts first: a job is in `jobs` until all else is done.
    for schema in (ATTEMPTS, JOBS):
        files += _take_out(spark, LakeTable(lake, schema), source, ids, wanted)
    fold_locked(spark, lake, hours=hours)
    deleted = sum(_delete_old_versions(LakeTable(lake, schema)) for schema in TABLES)
    segments, left = _raw(directory, LakeTable(lake, EVENTS), ids)
    return planned._replace(events=dropped, files=files, deleted=deleted, segments=segments, left=tuple(left))


def _with_jobs(
    spark: SparkSession,
    table: LakeTable,
    snapshot: Snapshot,
    files: tuple[DataFile, ...],
    ids: set[str],
    wanted: DataFrame,
) -> list[DataFile]:
    """Return the files that have rows of jobs."""
    low, high = min(ids), max(ids)
    some = [one for one in files if "job" not in one.low or (one.low["job"] <= high and one.high["job"] >= low)]
    if not some:
        return []
    rows = table.dataframe(spark, some).select("job", f.input_file_name().alias("file"))
    names = {
        row.file.rpartition("/")[2] for row in rows.join(wanted, "job", "left_semi").select("file").distinct().collect()
    }
    return [one for one in some if one.path.rpartition("/")[2] in names]


def _take_out(spark: SparkSession, table: LakeTable, source: Snapshot, ids: set[str], wanted: DataFrame) -> int:
    """Write the files of sealed hours again without jobs: a fold keeps what it finds there."""
    snapshot = table.snapshot()
    sealed = tuple(file for file in snapshot.files if is_sealed(source, file.partition))
    changed = _with_jobs(spark, table, snapshot, sealed, ids, wanted)
    if not changed:
        return 0
    kept = table.dataframe(spark, changed).join(wanted, "job", "left_anti")
    added = table.stage(kept.repartition("hour").sortWithinPartitions("hour", "job"))
    table.rewrite(snapshot, added, changed, _as_forgotten, is_change=True)
    return len(changed)


def _as_forgotten(note: Mapping[str, Any]) -> dict[str, Any]:
    return {**note, "kind": "forget"}


def _delete_old_versions(table: LakeTable) -> int:
    """Delete what earlier versions had, and their log, which has the least and the greatest id of each file."""
    if not table.exists():
        return 0
    paths = replaced_files(table)
    delete(Unused(tuple(paths), 0))
    table.checkpoint()
    delete(logs(table, ANY_TIME))
    return len(paths)


def _raw(directory: str | Path | None, events: LakeTable, ids: set[str]) -> tuple[int, list[str]]:
    """Delete raw segments that have events of jobs; return how many, and what is left."""
    if directory is None:
        return 0, [
            "Raw segments and bodies were not looked at: give --events, or run `penstock lake vacuum --raw-for 0s`"
        ]
    covered = Coverage.from_json(events.snapshot().note.get("covered"))
    ended = {file.path for file in finished(directory)}
    unread = {one.path for one in plan(segment_files(directory), covered)}
    deleted, is_open, is_unread = [], 0, 0
    for file in segment_files(directory):
        try:
            if not ids.intersection(Segment(file.path).read().job):
                continue
        except FileNotFoundError:
            continue
        if str(file.path) in unread:
            is_unread += 1
        elif file.path in ended:
            deleted.append(file)
        else:
            is_open += 1
    delete_segments(deleted)
    left = []
    if is_open:
        left.append(f"{is_open} raw segments with these jobs are still written to: vacuum deletes them later")
    if is_unread:
        left.append(f"{is_unread} raw segments have new events of these jobs: build the lake, then forget them again")
    return len(deleted), left
