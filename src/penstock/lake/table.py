"""A table: Parquet files that Spark's tasks write, and a Delta log that `deltalake` commits them to.

    LAKE/jobs/_delta_log/…                       the log: what any reader of Delta tables reads
    LAKE/jobs/hour=2026-11-18T20/part-….parquet  files, by the values of the partition column
    LAKE/jobs/_staging/ID/…                      files of a write that is under way

Spark writes into a folder of its own; when it is done, the files are moved to their partitions and committed. Before
the commit no reader sees them. Rules that hold here:

1. A commit is made on the snapshot that was read (`Snapshot.version`), and fails if any other commit came first:
   Delta's library may not rebase it. Whoever fails reads again, and finds out what is left to do.
2. The library compares no application versions: it takes an equal or lower one. So each commit carries a note of ours,
   with all that must be known to go on, and the caller compares it with its own before it commits.
3. Files of a write that was killed are not in the log. `vacuum` deletes them when they are a day old.
4. A commit that rewrites what is there (`rewrite`) may come after others that only added files: those stay.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

from penstock.errors import CallerError, MissingExtra, OperatorError
from penstock.lake.schemas import TableSchema
from penstock.lake.writing import write_files, write_table
from penstock.queues.push import is_text

try:
    from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
    from deltalake import Schema as DeltaSchema
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
    from deltalake.transaction import AddAction, RemoveAction
except ModuleNotFoundError as problem:
    raise MissingExtra("the lake needs deltalake. Install it with: pip install 'penstock[lake,jre]'") from problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOTE = "penstock"  # key of our note in a commit
APP = "penstock"  # application id of our commits
STAGING = "_staging"
LOG = "_delta_log"
LOCK = "lock"
NOTE_COMMITS_MAX = 1000  # commits of others, such as an optimizer, that are passed over to find the last note
PUBLISH_MAX = 10  # vacuums that remove an empty folder in just that moment, in a row
REWRITES_MAX = 50  # commits of builders that come first, in a row
DISK_TEXT_MAX = 200  # characters of a problem that isn't one of these
_DISK = re.compile(
    r"No space left on device|Read-only file system|Permission denied|Disk quota exceeded|Input/output error"
)


class Stale(OperatorError):
    """Another commit came first: what was written is not in the table."""


class DataFile(NamedTuple):
    """A file of a table, with what its log says of it."""

    path: str  # below the table
    partition: str
    rows: int
    size: int
    low: Mapping[str, Any]  # by column: smallest value
    high: Mapping[str, Any]


class Snapshot(NamedTuple):
    """A version of a table."""

    version: int
    files: tuple[DataFile, ...]
    note: Mapping[str, Any]  # of the last commit of ours

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(file.rows for file in self.files)

    def of(self, partitions: Iterable[str]) -> tuple[DataFile, ...]:
        """Return the files of some partitions."""
        wanted = set(partitions)
        return tuple(file for file in self.files if file.partition in wanted)


class LakeTable:
    """A table in a directory."""

    def __init__(self, lake: str | Path, schema: TableSchema) -> None:
        self.schema = schema
        self.path = Path(lake) / schema.name

    # Reading.

    def exists(self) -> bool:
        """Whether the table was created."""
        return DeltaTable.is_deltatable(str(self.path))

    def create(self) -> None:
        """Create the table, unless it exists; give it the columns that are new in this version."""
        if self.exists():
            self._add_columns()
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            DeltaTable.create(
                str(self.path),
                DeltaSchema.from_arrow(self.schema.arrow()),
                mode="error",
                partition_by=[self.schema.partition],
                name=self.schema.name,
            )
        except OSError as problem:
            raise _unwritable(problem, self.path) from problem
        except DeltaError:  # another process created it
            if not self.exists():
                raise

    def _add_columns(self) -> None:
        table = self._open()
        there = {field.name for field in table.schema().fields}
        new = [field for field in DeltaSchema.from_arrow(self.schema.arrow()).fields if field.name not in there]
        if not new:
            return
        try:
            table.alter.add_columns(new)
        except DeltaError:  # another process added them
            if not set(self.schema.names) <= {field.name for field in self._open().schema().fields}:
                raise

    def snapshot(self) -> Snapshot:
        """Return the latest version; an empty one before the table is created."""
        if not self.exists():
            return Snapshot(-1, (), {})
        return self._snapshot(self._open())

    def _open(self) -> DeltaTable:
        try:
            table = DeltaTable(str(self.path))
        except TableNotFoundError as problem:
            raise OperatorError(f"there is no table in {self.path}") from problem
        except DeltaError as problem:
            said = str(problem).splitlines()[0]  # a trace of the library's own calls follows
            raise OperatorError(
                f"the log of {self.path} can't be read: {said}. Restore the directory, or build another lake"
            ) from problem
        self._check_columns(table)
        return table

    def _check_columns(self, table: DeltaTable) -> None:
        names = {field.name for field in table.schema().fields}
        newer = sorted(names - set(self.schema.names))
        if newer:
            raise OperatorError(
                f"the table {self.path} has columns that this version of Penstock doesn't know ({', '.join(newer)}): "
                "update Penstock"
            )

    def _snapshot(self, table: DeltaTable) -> Snapshot:
        version = table.version()
        return Snapshot(version, tuple(self._files(table)), self.note_at(version))

    def _files(self, table: DeltaTable) -> list[DataFile]:
        actions = pa.table(table.get_add_actions(flatten=True))
        columns = {name: actions.column(name).to_pylist() for name in actions.column_names}
        low = {name[4:]: values for name, values in columns.items() if name.startswith("min.")}
        high = {name[4:]: values for name, values in columns.items() if name.startswith("max.")}
        partition = columns.get(f"partition.{self.schema.partition}", [])
        return [
            DataFile(
                path,
                partition[at],
                columns["num_records"][at] or 0,
                columns["size_bytes"][at],
                {name: values[at] for name, values in low.items() if values[at] is not None},
                {name: values[at] for name, values in high.items() if values[at] is not None},
            )
            for at, path in enumerate(columns["path"])
        ]

    def note_at(self, version: int) -> Mapping[str, Any]:
        """Return the note of the last commit of ours up to a version."""
        return self._noted(version)[1]

    def noted_version(self) -> int:
        """Return the version of the last commit of ours; -1 without one."""
        return self._noted(self._open().version())[0] if self.exists() else -1

    def _noted(self, version: int) -> tuple[int, Mapping[str, Any]]:
        """Return the last commit of ours, and its note, from the files of the log."""
        for number in range(version, max(-1, version - NOTE_COMMITS_MAX), -1):
            try:
                lines = (self.path / LOG / f"{number:020d}.json").read_text().splitlines()
            except FileNotFoundError:
                break
            for line in lines:
                info = json.loads(line).get("commitInfo") or {}
                if NOTE in info:
                    found: Mapping[str, Any] = json.loads(info[NOTE])
                    return number, found
        if version > 0 and any(self._files(self._open())):
            raise OperatorError(
                f"the log of {self.path} has no commit of Penstock among its last ones: restore it, or build another "
                "lake in an empty directory"
            )
        return -1, {}

    def checkpoint(self) -> None:
        """Write the last version as a whole, so that the log before it can go."""
        try:
            self._open().create_checkpoint()
        except (DeltaError, OSError) as problem:
            raise _unwritable(problem, self.path) from problem

    def dataframe(self, spark: SparkSession, files: Sequence[DataFile]) -> DataFrame:
        """Return the rows of some files. Files that are older than a column have nulls in it."""
        if not files:
            return spark.createDataFrame([], self.schema.spark())
        base = str(self.path.resolve())
        reader = spark.read.schema(self.schema.spark()).option("basePath", base)
        return reader.parquet(*(f"{base}/{file.path}" for file in files)).select(*self.schema.names)

    def arrow(self, files: Sequence[DataFile], columns: Sequence[str] | None = None, where: Any = None) -> pa.Table:
        """Return the rows of some files without Spark."""
        schema = self.schema.arrow()
        names = self.schema.names if columns is None else list(columns)
        if not files:
            return pa.Table.from_batches([], schema).select(names)
        try:
            dataset = pa.dataset.dataset(
                [str(self.path / file.path) for file in files],
                schema=schema,
                format="parquet",
                partitioning=pa.dataset.partitioning(pa.schema([schema.field(self.schema.partition)]), flavor="hive"),
                partition_base_dir=str(self.path),
            )
            return dataset.to_table(columns=names, filter=where)
        except (pa.ArrowException, OSError) as problem:
            raise OperatorError(
                f"a file of {self.path} is damaged or gone: {problem}. Restore it; tables other than `events` can be "
                "computed again with `penstock lake rebuild`"
            ) from problem

    # Writing.

    def stage(self, rows: DataFrame | pa.Table) -> list[AddAction]:
        """Write rows into files of this table, which no reader sees before `commit`. Spark writes DataFrames."""
        folder = self.path / STAGING / uuid.uuid4().hex
        actions: list[AddAction] = []
        try:
            folder.mkdir(parents=True)
            write = write_table if isinstance(rows, pa.Table) else write_files
            written = write(rows, folder, self.schema)
            actions.extend(self._publish(folder / one.path, folder, one.stats) for one in written)
        except Exception as problem:  # of Spark's classes, too
            self.discard(actions)
            if isinstance(problem, OSError) or _DISK.search(str(problem)):
                raise _unwritable(problem, self.path) from problem
            raise
        finally:  # a full disk must not be left fuller
            shutil.rmtree(folder, ignore_errors=True)
        return actions

    def _publish(self, file: Path, folder: Path, stats: str) -> AddAction:
        relative = file.relative_to(folder)
        value = relative.parent.name.partition("=")[2]
        target = self.path / relative
        for _ in range(PUBLISH_MAX):
            target.parent.mkdir(exist_ok=True)
            try:
                file.rename(target)
                break
            except FileNotFoundError:  # a vacuum has removed the folder, which was empty
                if not file.exists():
                    raise
        size = target.stat().st_size
        return AddAction(str(relative), size, {self.schema.partition: value}, int(time.time() * 1000), True, stats)

    def files_of(self, actions: Iterable[AddAction]) -> list[DataFile]:
        """Return files that were staged, as a snapshot has them, without statistics."""
        return [
            DataFile(
                action.path,
                str(action.partition_values[self.schema.partition]),
                json.loads(action.stats)["numRecords"],
                action.size,
                {},
                {},
            )
            for action in actions
        ]

    def discard(self, actions: Iterable[AddAction]) -> None:
        """Delete files that were staged, and not committed."""
        for action in actions:
            (self.path / action.path).unlink(missing_ok=True)

    def commit(
        self,
        snapshot: Snapshot,
        added: Sequence[AddAction],
        note: Mapping[str, Any],
        *,
        removed: Sequence[DataFile] = (),
        is_change: bool = True,
    ) -> int:
        """Commit files on a snapshot; return the new version. Raises Stale if another commit came first.

        `is_change` is false where rows only move to other files.
        """
        table = self._open()
        if table.version() != snapshot.version:
            raise Stale(f"{self.path} has version {table.version()} now, the commit was for {snapshot.version}")
        now = int(time.time() * 1000)
        for action in added:
            action.data_change = is_change
        removes = [
            RemoveAction(file.path, is_change, now, file.size, {self.schema.partition: file.partition})
            for file in removed
        ]
        version = snapshot.version + 1
        try:
            table.create_write_transaction(
                [*added, *removes],
                "append",
                DeltaSchema.from_arrow(self.schema.arrow()),
                partition_by=[self.schema.partition],
                commit_properties=CommitProperties(
                    custom_metadata={NOTE: json.dumps(note)},
                    max_commit_retries=0,
                    app_transactions=[Transaction(APP, version)],
                ),
                post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
            )
        except CommitFailedError as problem:
            raise Stale(f"another commit to {self.path} came before version {version}") from problem
        except OSError as problem:  # what was added stays until a vacuum: the commit may have been made
            raise _unwritable(problem, self.path) from problem
        return version

    def rewrite(
        self,
        snapshot: Snapshot,
        added: Sequence[AddAction],
        removed: Sequence[DataFile],
        note: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        *,
        is_change: bool,
    ) -> int:
        """Commit files that replace others, also after commits that only added some.

        `note` gets the note of the commit before it. Raises Stale, and discards the files, if one that is to be
        replaced is gone.
        """
        gone = {file.path for file in removed}
        for _ in range(REWRITES_MAX):
            try:
                return self.commit(snapshot, added, note(snapshot.note), removed=removed, is_change=is_change)
            except Stale:
                snapshot = self.snapshot()
                if not gone <= {file.path for file in snapshot.files}:
                    break
        self.discard(added)
        raise Stale(f"others have changed the files of {self.path} that were to be replaced")


def _unwritable(problem: Exception, path: Path) -> OperatorError:
    """Return the error for a disk that can't be written to; the library and Java have it within their text."""
    found = _DISK.search(str(problem))
    said = found[0] if found else " ".join(str(problem).split())[:DISK_TEXT_MAX]
    return OperatorError(f"the lake can't be written to: {said}: {path}")


@contextmanager
def locked(lake: str | Path, *, alone: bool, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock of a lake: folds share it, what rewrites several tables together is alone.

    The lock ends with the process that holds it. On a file system without locks there is none, and folds and vacuums
    must not run at once.
    """
    path = Path(lake) / LOCK
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as problem:
        raise _unwritable(problem, path) from problem
    try:
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(fd, kind)
        except OSError as problem:
            if problem.errno not in (errno.ENOLCK, errno.ENOTSUP):
                raise
        yield
    finally:
        os.close(fd)


def use_utc(spark: SparkSession) -> None:
    """Make a session compute days and hours in UTC, whatever the machine's zone is."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def lake_directory(directory: str) -> Path:
    """Return the directory of a lake; other file systems than a local or mounted one are refused."""
    scheme, separator, _ = directory.partition("://")
    if separator and scheme != "file":
        raise CallerError(f"the lake must be a directory on a local or shared file system, got {directory}")
    if not is_text(directory):  # Delta and Spark need it in UTF-8
        raise CallerError(f"the path of a lake must be text in UTF-8, got {directory!r}")
    return Path(directory.removeprefix("file://"))
