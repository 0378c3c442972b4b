"""Segments of events into the table `events`, each event once.

The log of the table is the only memory of a build: every commit notes which numbers of which writer the table has
(`coverage`). A build reads that note in a snapshot, plans what is missing, writes it, and commits on the same snapshot.

    killed before the commit    the table is as it was; the next build plans the same again
    two builders                one commits first; the other discards its files and plans again, on the new snapshot
    a segment that comes late   it is in no range of the note, so the next build reads it
    a part of a segment         the rest of it is planned later

The note also says which runs of writers ended in order (`check` counts the others), and how many events came late.

So a batch is never identified by a batch number, and there is no checkpoint that could be lost.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.lake.coverage import Coverage
from penstock.lake.schemas import EVENTS, UNKNOWN
from penstock.lake.segments import Slice, ended_epochs, plan, segment_files
from penstock.lake.table import LakeTable, Stale, use_utc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("penstock.lake")

COMMIT_EVENTS = 4_000_000  # of a commit: some 100 MB of Parquet, and a minute of work that a kill may cost
FILE_EVENTS = 1_000_000  # of a task that writes
STALE_MAX = 20  # commits of other builders that came first, in a row


class Built(NamedTuple):
    """What a build has done."""

    events: int
    commits: int
    version: int


def build(
    spark: SparkSession,
    events: str | Path,
    lake: str | Path,
    *,
    limit: int = COMMIT_EVENTS,
    progress: Callable[[int], None] = lambda count: None,
) -> Built:
    """Read all events that the table does not have yet; `progress` gets the number of events of each commit."""
    use_utc(spark)
    table = LakeTable(lake, EVENTS)
    table.create()
    files = segment_files(events)  # as long as they are now: writers go on, and a build must come to an end
    total = commits = stale = 0
    while True:
        snapshot = table.snapshot()
        covered = Coverage.from_json(snapshot.note.get("covered"))
        ended = _ended(snapshot.note, ended_epochs(files))
        slices = plan(files, covered, limit)
        if not slices and ended == snapshot.note.get("ended", {}):
            return Built(total, commits, snapshot.version)
        count = sum(one.events for one in slices)
        added = table.stage(daily(read(spark, events, slices), 1 + count // FILE_EVENTS)) if slices else []
        late = sum(one.events for one in slices if covered.is_behind(one.writer, one.epoch, one.first))
        for one in slices:
            covered.add(one.writer, one.epoch, one.first, one.last)
        ranges = [[one.writer, one.epoch, one.first, one.last] for one in slices]
        try:
            note = {**snapshot.note, "kind": "build", "ranges": ranges, "covered": covered.to_json(), "ended": ended}
            note["late"] = int(snapshot.note.get("late", 0)) + late
            table.commit(snapshot, added, note)
        except Stale as problem:
            table.discard(added)
            stale += 1
            if stale > STALE_MAX:
                raise
            log.info("planning again: %s", problem)
            continue
        stale = 0
        commits += 1
        total += count
        progress(count)


def _ended(note: Mapping[str, Any], now: Mapping[str, set[int]]) -> dict[str, list[int]]:
    """Return the epochs of each writer that are known to have ended in order."""
    before = {writer: set(epochs) for writer, epochs in note.get("ended", {}).items()}
    return {writer: sorted(before.get(writer, set()) | now.get(writer, set())) for writer in sorted({*before, *now})}


def read(spark: SparkSession, events: str | Path, slices: list[Slice]) -> DataFrame:
    """Return the events of slices."""
    chosen = json.dumps([list(one) for one in slices])
    return spark.read.format("penstock_events").option("slices", chosen).load(str(Path(events).resolve()))


def daily(rows: DataFrame, files: int = 1) -> DataFrame:
    """Return events with their partition, in a number of files a day; the events of a job are together."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - the module is read without Spark, too

    created = f.coalesce("created", f.when(f.col("job").isNull(), f.col("at")))
    day = f.coalesce(f.date_format(created, "yyyy-MM-dd"), f.lit(UNKNOWN))
    file = f.pmod(f.hash("job"), f.lit(files))
    return rows.withColumn("day", day).repartition(files, file).sortWithinPartitions("day", "job", "at", "seq")
