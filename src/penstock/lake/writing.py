"""Parquet files of a table, written by the tasks of a Spark job with pyarrow, and what they say of themselves.

A table by hour of creation has many small files. Spark's own writer starts a `chmod` process for each file and folder
where Hadoop's native library is missing, as it is in PySpark's package, and writes a checksum file beside each: 13 ms
a file. Here a file costs 1 ms, and its statistics come with it, so that nobody reads its footer again.

A task that is done again, or twice, writes files of its own names. Only those that a job returns are published.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet
from pyarrow import compute

from penstock.lake.schemas import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROW_GROUP_BYTES = 4 << 20  # in memory: a look-up of one job reads one or two, as rows are in order of job
# What a task gets at once: rows of `metric_parts` with sketches have up to 42 KB. The second is for a Spark that lacks
# the first.
BATCH_SETTINGS = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
}
WITHOUT_STATS = ("binary", "bool", "double")  # types that no one filters by
WRITTEN = "path string, stats string"
_WRITTEN = pa.schema([("path", pa.string()), ("stats", pa.string())])
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Written(NamedTuple):
    """A file, below the folder that was given, and its statistics as Delta's log has them."""

    path: str
    stats: str


def write_files(rows: DataFrame, folder: Path, schema: TableSchema) -> list[Written]:
    """Write rows into FOLDER/PARTITION=VALUE/NAME.parquet: a file for rows of a partition that follow each other."""
    spark = rows.sparkSession
    before = {name: spark.conf.get(name, None) for name in BATCH_SETTINGS}
    for name, value in BATCH_SETTINGS.items():
        spark.conf.set(name, value)
    try:
        write = _task(str(folder.resolve()), schema.partition, schema.arrow())
        found = rows.select(*schema.names).mapInArrow(write, WRITTEN).collect()
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)
    return sorted(Written(row.path, row.stats) for row in found)


def write_table(rows: pa.Table, folder: Path, schema: TableSchema) -> list[Written]:
    """Write rows likewise, in this process."""
    writer = _FileWriter(folder, schema.partition, schema.arrow())
    try:
        for batch in rows.to_batches():
            writer.add(batch)
        return writer.end()
    finally:
        writer.close()


def _task(folder: str, partition: str, schema: pa.Schema) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = _FileWriter(Path(folder), partition, schema)
        try:
            for batch in batches:
                writer.add(batch)
            written = writer.end()
        finally:
            writer.close()
        yield pa.RecordBatch.from_pylist([one._asdict() for one in written], _WRITTEN)

    return write


class _FileWriter:
    """Writes the rows of a task: a new file wherever the partition changes."""

    def __init__(self, folder: Path, partition: str, schema: pa.Schema) -> None:
        self._folder = folder
        self._partition = partition
        self._schema = schema.remove(schema.get_field_index(partition))
        self._with_stats = [field.name for field in self._schema if str(field.type) not in WITHOUT_STATS]
        self._name = f"part-{uuid.uuid4().hex}"
        self._written: list[Written] = []
        self._value: str | None = None
        self._path = Path()
        self._file: pa.parquet.ParquetWriter | None = None
        self._footers: list[pa.parquet.FileMetaData] = []  # of the file that was closed last
        self._rows: list[pa.RecordBatch] = []
        self._rows_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        runs = compute.run_end_encode(batch.column(self._partition))
        values = batch.drop_columns([self._partition])
        for value, (start, end) in zip(runs.values.to_pylist(), pairwise([0, *runs.run_ends.to_pylist()]), strict=True):
            if value != self._value or self._file is None:
                self._end_file()
                self._begin_file(value)
            part = values.slice(start, end - start)
            self._rows.append(part)
            self._rows_bytes += part.nbytes
            if self._rows_bytes >= ROW_GROUP_BYTES:
                self._flush()

    def end(self) -> list[Written]:
        """Return the files that were written."""
        self._end_file()
        return self._written

    def close(self) -> None:
        """Close a file that was not written to its end."""
        if self._file is not None:
            self._file.close()

    def _begin_file(self, value: str) -> None:
        name = f"{self._name}-{len(self._written):05d}.zstd.parquet"
        self._path = self._folder / f"{self._partition}={value}" / name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._value = value
        self._file = pa.parquet.ParquetWriter(
            self._path,
            self._schema,
            compression="zstd",
            write_statistics=self._with_stats,
            store_schema=False,
            metadata_collector=self._footers,
        )

    def _flush(self) -> None:
        if self._rows and self._file is not None:
            table = pa.Table.from_batches(self._rows).cast(self._schema)
            self._file.write_table(table, row_group_size=max(1, table.num_rows))
        self._rows, self._rows_bytes = [], 0

    def _end_file(self) -> None:
        if self._file is None:
            return
        self._flush()
        file, self._file = self._file, None
        file.close()
        self._written.append(
            Written(str(self._path.relative_to(self._folder)), json.dumps(stats_of(self._footers.pop())))
        )


def stats_of(footer: pa.parquet.FileMetaData) -> dict[str, Any]:
    """Return Delta's statistics of a file, from its footer: of all columns that are filtered by, or of none.

    A reader of Delta tables takes a column without statistics, where others have them, for one without values.
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for at, field in enumerate(footer.schema.to_arrow_schema()):
        if str(field.type) in WITHOUT_STATS:
            continue
        chunks = [footer.row_group(group).column(at).statistics for group in range(footer.num_row_groups)]
        with_values = [one for one in chunks if one is not None and one.has_min_max]
        nulls[field.name] = sum(one.null_count for one in chunks if one is not None)
        if with_values:
            low[field.name] = _floor(min(one.min for one in with_values))
            high[field.name] = _ceiling(max(one.max for one in with_values))
        if nulls[field.name] < footer.num_rows and len(with_values) < sum(
            one is None or one.null_count < footer.row_group(group).num_rows for group, one in enumerate(chunks)
        ):
            return {"numRecords": footer.num_rows}
    return {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _ms(value: datetime) -> float:
    return (value - _EPOCH).total_seconds() * 1000


def _text(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"


def _floor(value: Any) -> Any:
    """Return a value for the log, which has times in milliseconds: not above the true one."""
    return _text(math.floor(_ms(value))) if isinstance(value, datetime) else value


def _ceiling(value: Any) -> Any:
    return _text(math.ceil(_ms(value))) if isinstance(value, datetime) else value
