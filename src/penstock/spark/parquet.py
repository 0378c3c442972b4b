"""Batches of a stream as folders of Parquet files: each job once, even if the checkpoint of the query is lost.

    query = jobs.writeStream.foreachBatch(to_parquet("out")).option("checkpointLocation", "out/_checkpoint").start()

    DIR/run=RUN/batch=0/part-…parquet    the first batch; a drain has one run only, and leaves its folder out
    DIR/…/_penstock/merge/               a merge of folders that is under way

Spark numbers the batches of a checkpoint, and starts at 0 again with a new one. A folder that is named by the number
alone would then be overwritten, though its jobs are acked. So the name has the id of the run as well, and a finished
folder is never written again:

    no folder, or one without _SUCCESS    it is written; jobs in it were never acked
    it has the jobs of the batch          it is kept: the batch is run again, after a crash
    it has other jobs                     those that it lacks go into the folder of another run: run=RUN-2

A query that runs for long makes many small folders. `merge` merges old ones into one, which is named after the last of
them. It is first written to a folder of its own; then a plan lists which folders it replaces. A merge that was killed
after that is finished by the next one:

    merge/new/      the folder that replaces the others
    merge/plan      JSON: {"into": "batch=49", "from": ["batch=0", …]}; it is written when `new` is complete
    merge/old/      folders that were replaced
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import CallerError

FINISHED = "_SUCCESS"  # the file that Spark writes into a complete folder
MERGED = "_merged"  # in a merged folder: the numbers of its batches
OWN = "_penstock"
MERGE_EVERY = 50  # batches
SMALL_BYTES = 16 * 1024 * 1024  # larger folders are not merged
MERGED_BYTES = 128 * 1024 * 1024
GROUP_BYTES = 64 * 1024 * 1024  # of a row group, in memory
_CLAIM = re.compile(r"spark:([^:]+):")

Handle = Callable[[DataFrame, int], None]


def to_parquet(
    directory: str, rows: Callable[[DataFrame], DataFrame] | None = None, *, merge_small: bool = False
) -> Handle:
    """Return a function for `foreachBatch` that writes each batch into a folder of its own, exactly once.

    `rows` returns what is written of a batch, and must keep the column `id`. With `merge_small`, old folders of small
    batches are merged, in directories of this machine.
    """

    def write(batch: DataFrame, number: int) -> None:
        run = _run_of(batch)
        if run is None:
            return
        chosen = batch if rows is None else rows(batch)
        if "id" not in chosen.columns:
            raise CallerError(f"the rows to write must have the column id, got {', '.join(chosen.columns)}")
        for attempt in count(1):
            place = f"{directory}/run={run}" + (f"-{attempt}" if attempt > 1 else "")
            if write_batch(chosen, place, number, merge_small=merge_small):
                return
            # It may have some of them: those of an earlier call with a part of the batch.
            known = _ids_in(batch.sparkSession, _path_of(place, number))
            chosen = chosen.join(known, "id", "left_anti").select(*chosen.columns)
            if chosen.isEmpty():
                return

    return write


def _run_of(batch: DataFrame) -> str | None:
    """Return the run id of a batch, from the claim of its jobs; None if the batch is empty."""
    if "claim" not in batch.columns:
        raise CallerError(
            f"the batch must have the column claim of the stream, got {', '.join(batch.columns)}: choose columns by "
            "the argument rows"
        )
    row = batch.select("claim").first()
    if row is None:
        return None
    match = _CLAIM.match(str(row.claim))
    if match is None:
        raise CallerError(f"the column claim must be that of the stream, such as spark:RUN:1, got {row.claim!r}")
    return match[1]


def write_batch(rows: DataFrame, directory: str, number: int, *, merge_small: bool = False) -> bool:
    """Write a batch into its folder, unless it is there already; return False if the folder has other jobs."""
    here = local_path(directory)
    if here is not None:
        finish_merge(here)
    folder = _path_of(directory, number)
    state = _folder_state(rows, folder)
    if state is _FolderState.OTHERS:
        return False
    if state is _FolderState.NEW:
        # INT96, which is Spark's default, is deprecated, and other readers take it as a time without a zone.
        rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        mark = ("mapreduce.fileoutputcommitter.marksuccessfuljobs", "true")  # some switch it off
        rows.write.mode("overwrite").option(*mark).parquet(folder)
    if merge_small and here is not None and number and number % MERGE_EVERY == 0:
        merge(here, number)
    return True


def _path_of(directory: str, number: int) -> str:
    here = local_path(directory)
    return f"{directory}/batch={number}" if here is None else str(_folder_of(here, number))


def _ids_in(spark: SparkSession, folder: str) -> DataFrame:
    """Return the ids of the jobs in a folder."""
    return spark.read.schema("id string").parquet(folder)


class _FolderState(Enum):
    """What a folder has."""

    NEW = "nothing that must be kept"
    SAME = "the batch"
    OTHERS = "other jobs"


def _folder_state(rows: DataFrame, folder: str) -> _FolderState:
    spark = rows.sparkSession
    here = local_path(folder)
    if here is not None and not here.parent.exists():
        here = None  # a path without a scheme may be in another file system, which is Spark's default
    # For a path of this machine, asking Spark would take longer, and this is done for each batch.
    if not (is_there(spark, folder) if here is None else here.exists()):
        return _FolderState.NEW
    if not (is_there(spark, f"{folder}/{FINISHED}") if here is None else (here / FINISHED).exists()):
        return _FolderState.SAME if rows.isEmpty() else _FolderState.NEW
    return _FolderState.SAME if rows.join(_ids_in(spark, folder), "id", "left_anti").isEmpty() else _FolderState.OTHERS


def is_there(spark: SparkSession, path: str) -> bool:
    """Whether a path exists, in any file system that Spark knows. It may have wildcards."""
    try:
        # Named twice, as Spark logs a warning with a stack trace when a single path is missing.
        return bool(spark.read.text([path, path]).columns)
    except AnalysisException:
        return False


def local_path(directory: str) -> Path | None:
    """Return the directory on this machine, or None if it is elsewhere (s3:, hdfs:)."""
    return None if "://" in directory else Path(directory)


# Merging, without Spark.


def _numbers(directory: Path) -> dict[int, Path]:
    """Return the folders of batches by their numbers, in order."""
    found = {path.name.removeprefix("batch="): path for path in directory.glob("batch=*")}
    return {int(text): found[text] for text in sorted((text for text in found if text.isdigit()), key=int)}


def _covered(folder: Path) -> list[int]:
    """Return the numbers of the batches that a folder has."""
    try:
        numbers: list[int] = json.loads((folder / MERGED).read_text())
    except FileNotFoundError:
        return [int(folder.name.removeprefix("batch="))]
    return numbers


def _folder_of(directory: Path, number: int) -> Path:
    """Return the folder of a batch: its own, or the one that it was merged into."""
    own = directory / f"batch={number}"
    if own.exists():
        return own
    later = (folder for other, folder in _numbers(directory).items() if other > number)
    return next((folder for folder in later if number in _covered(folder)), own)


def merge(directory: Path, before: int) -> None:
    """Merge small folders of batches with lower numbers than `before`: these Spark has logged as done."""
    finish_merge(directory)
    groups: dict[pa.Schema, list[Path]] = {}
    for number, folder in _numbers(directory).items():
        parts = _parts(folder)
        size = sum(part.stat().st_size for part in parts)
        if number >= before or size >= SMALL_BYTES or not (folder / FINISHED).exists():
            continue
        schema = _schema(parts)
        if schema is not None:
            groups.setdefault(schema, []).append(folder)
    for schema, folders in groups.items():
        for some in _portions(folders):
            if len(some) > 1:
                _prepare(directory, some, schema)
                finish_merge(directory)


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def _portions(folders: Iterable[Path]) -> Iterator[list[Path]]:
    """Yield groups of folders, each up to MERGED_BYTES large."""
    some: list[Path] = []
    size = 0
    for folder in folders:
        more = sum(part.stat().st_size for part in _parts(folder))
        if some and size + more > MERGED_BYTES:
            yield some
            some, size = [], 0
        some.append(folder)
        size += more
    yield some


def _schema(parts: list[Path]) -> pa.Schema | None:
    """Return the schema of a folder's files; None if they differ, or can't be merged."""
    schemas = {_read_schema(part) for part in parts}
    return schemas.pop() if len(schemas) == 1 else None


def _open(part: Path) -> pa.parquet.ParquetFile:
    return pa.parquet.ParquetFile(part, coerce_int96_timestamp_unit="us")


def _read_schema(part: Path) -> pa.Schema | None:
    """Return the schema to read a file with: INT96 times are in UTC. None if it has such times in nested columns."""
    file = _open(part)
    columns = (file.schema.column(at) for at in range(len(file.schema)))
    old = {column.path for column in columns if column.physical_type == "INT96"}
    if any("." in path for path in old):
        return None
    utc = pa.timestamp("us", "UTC")
    fields = [field.with_type(utc) if field.name in old else field for field in file.schema_arrow]
    return pa.schema(fields)  # without Spark's metadata, which may differ for equal columns


def _prepare(directory: Path, folders: list[Path], schema: pa.Schema) -> None:
    """Write the folder that replaces some others, and the plan."""
    place = directory / OWN / "merge"
    new = place / "new"
    new.mkdir(parents=True)
    with pa.parquet.ParquetWriter(new / "part-00000.parquet", schema) as writer:
        for table in _tables(folders, schema):
            writer.write_table(table)
    covered = sorted(number for folder in folders for number in _covered(folder))
    (new / MERGED).write_text(json.dumps(covered))
    (new / FINISHED).touch()
    for file in (*new.iterdir(), new):
        _sync(file)
    plan = {"into": folders[-1].name, "from": [folder.name for folder in folders]}
    written = place / "plan.new"
    written.write_text(json.dumps(plan))
    _sync(written)
    written.replace(place / "plan")
    _sync(place)


def _tables(folders: Iterable[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of folders, a row group at a time."""
    batches: list[pa.Table] = []
    size = 0
    for part in (part for folder in folders for part in _parts(folder)):
        for batch in _open(part).iter_batches():
            table = pa.Table.from_batches([batch]).cast(schema)
            if batches and size + table.nbytes > GROUP_BYTES:
                yield pa.concat_tables(batches)
                batches, size = [], 0
            batches.append(table)
            size += table.nbytes
    if batches:
        yield pa.concat_tables(batches)


def finish_merge(directory: Path) -> None:
    """Finish a merge that was killed, or undo it if it has no plan. Does nothing if there is no merge."""
    place = directory / OWN / "merge"
    if not place.exists():
        return
    plan_file, new, old = place / "plan", place / "new", place / "old"
    if plan_file.exists():
        plan: dict[str, Any] = json.loads(plan_file.read_text())
        if new.exists():
            old.mkdir(exist_ok=True)
            for name in plan["from"]:
                if (directory / name).exists():
                    (directory / name).rename(old / name)
            new.rename(directory / plan["into"])
            _sync(directory)
        plan_file.unlink()
        _sync(place)
    shutil.rmtree(place)


def _sync(path: Path) -> None:
    """Sync a file, or the names in a directory, to disk: a power failure must not undo half of a merge."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
