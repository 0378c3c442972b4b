"""Small files of a partition become large ones: each commit of a build adds one to each day that it touches.

Only closed partitions are rewritten: days and hours before today. Of these, files that are large enough stay as they
are. Rows of one job are together afterwards, and files have ranges of jobs, so that a look-up of a job reads one of
them. The commit says that no row has changed: a fold does not compute those hours again, unless it has not seen the
events yet. A build that commits meanwhile only adds files, and a compaction comes after it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.lake.retention import DAY_LENGTH
from penstock.lake.schemas import EVENTS, TABLES, UNKNOWN, TableSchema
from penstock.lake.table import DataFile, LakeTable, Stale, use_utc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_BYTES = 128 << 20  # smaller files are put together: a reader opens fewer
TARGET_BYTES = 192 << 20  # of a file, so that it has 128 to 256 MB: a look-up need not read more
SORTS = {"events": ("job", "at", "seq"), "jobs": ("job",), "attempts": ("job",)}


class Small(NamedTuple):
    """The small files of a partition."""

    schema: TableSchema
    partition: str
    files: tuple[DataFile, ...]

    @property
    def size(self) -> int:
        """Return the size of all of them."""
        return sum(file.size for file in self.files)


def small_files(lake: str | Path, today: str) -> list[Small]:
    """Return the closed partitions that have several small files. Starts no JVM."""
    found = []
    for schema in TABLES:
        partitions: dict[str, list[DataFile]] = {}
        for file in LakeTable(lake, schema).snapshot().files:
            is_closed = file.partition == UNKNOWN or file.partition[:DAY_LENGTH] < today
            if is_closed and file.size < SMALL_BYTES:
                partitions.setdefault(file.partition, []).append(file)
        found += [Small(schema, name, tuple(files)) for name, files in sorted(partitions.items()) if len(files) > 1]
    return found


def compact(spark: SparkSession, lake: str | Path, small: Small) -> int:
    """Put the small files of a partition together; return how many files they are now. 0: others were faster."""
    use_utc(spark)
    table = LakeTable(lake, small.schema)
    count = max(1, round(small.size / TARGET_BYTES))
    keys = SORTS.get(small.schema.name, small.schema.names[:2])
    rows = table.dataframe(spark, small.files)
    rows = rows.repartition(1) if count == 1 else rows.repartitionByRange(count, keys[0])
    added = table.stage(rows.sortWithinPartitions(*keys))
    snapshot = table.snapshot()
    gone = {file.path for file in small.files}
    try:
        if not gone <= {file.path for file in snapshot.files}:
            table.discard(added)
            return 0
        kind = "compact" if small.schema is EVENTS else "vacuum"
        table.rewrite(snapshot, added, small.files, lambda note: {**note, "kind": kind}, is_change=False)
    except Stale:  # its next vacuum finds what is left
        return 0
    return len(added)
