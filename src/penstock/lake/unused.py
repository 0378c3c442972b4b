"""Files that nothing needs any more: raw segments whose events are in the tables, files of old versions, old logs.

    segments     when the commit with their last event is old enough, and no one writes to them; with their bodies
    data files   those that no version has (a write that was killed) by their age, those that a later version replaced
                 by the time since then: readers of the earlier version may still be at work
    logs         of versions before the last one, when they are old; a checkpoint is made first

Everything is compared with the clock that wrote it. A clock that was set back makes files younger than they are, and
they stay; `vacuum` refuses to work with one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from penstock.events import BadSegment, Segment, SegmentFile, finished
from penstock.events.segment import BODIES_SUFFIX
from penstock.lake.coverage import Coverage
from penstock.lake.segments import last_seq
from penstock.lake.table import LOG, STAGING, LakeTable


class Unused(NamedTuple):
    """Files that can be deleted, and those of them that can't be yet."""

    files: tuple[Path, ...]
    size: int
    younger: int = 0


# Raw segments.


class Raw(NamedTuple):
    """The segments of a directory, by what can become of them."""

    old: tuple[SegmentFile, ...]  # in the tables for long enough
    size: int
    unreadable: tuple[Path, ...]


def raw_segments(events: str | Path, table: LakeTable, before: datetime) -> Raw:
    """Return the segments whose events were committed before a time."""
    covered = coverage_at(table, before)
    old, unreadable, size = [], [], 0
    for file in finished(events):
        try:
            Segment(file.path)
            last = last_seq(file)
            if covered.missing(file.writer, file.epoch, file.first_seq, last):
                continue
            if last < file.first_seq and file.path.stat().st_mtime >= before.timestamp():
                continue  # without an event: only its age can tell
        except FileNotFoundError:
            continue
        except BadSegment:
            unreadable.append(file.path)
            continue
        old.append(file)
        size += sum(path.stat().st_size for path in _with_bodies(file.path) if path.exists())
    return Raw(tuple(old), size, tuple(unreadable))


def coverage_at(table: LakeTable, time: datetime) -> Coverage:
    """Return which events the table had at a time."""
    for path in sorted((table.path / LOG).glob("*.json"), reverse=True):
        if path.stem.isdecimal() and path.stat().st_mtime < time.timestamp():
            return Coverage.from_json(table.note_at(int(path.stem)).get("covered"))
    return Coverage()


def delete_segments(files: Iterable[SegmentFile]) -> None:
    """Delete segments, with their bodies."""
    for file in files:
        for path in _with_bodies(file.path):
            path.unlink(missing_ok=True)


def _with_bodies(path: Path) -> tuple[Path, Path]:
    return path.with_suffix(BODIES_SUFFIX), path  # bodies without their segment would never be found again


# Files of tables.


def data_files(table: LakeTable, before: datetime) -> Unused:
    """Return the data files of a table that the last version does not have, and that are old enough."""
    live = {file.path for file in table.snapshot().files}
    removed = _removals(table)
    files, size, younger = [], 0, 0
    for path in sorted(table.path.glob("*=*/*.parquet")):
        name = str(path.relative_to(table.path))
        if name in live:
            continue
        try:
            facts = path.stat()
        except FileNotFoundError:
            continue
        if removed.get(name, facts.st_mtime) < before.timestamp():
            files.append(path)
            size += facts.st_size
        else:
            younger += 1
    for folder in sorted((table.path / STAGING).glob("*")):
        newest = max((path.stat().st_mtime for path in [folder, *folder.rglob("*")]), default=0.0)
        if newest < before.timestamp():
            files.append(folder)
            size += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        else:
            younger += 1
    return Unused(tuple(files), size, younger)


def replaced_files(table: LakeTable) -> list[Path]:
    """Return the data files on disk that an earlier version had, whatever their age."""
    live = {file.path for file in table.snapshot().files}
    return [path for name in _removals(table) if name not in live and (path := table.path / name).exists()]


def _removals(table: LakeTable) -> dict[str, float]:
    """Return when files were replaced, by the log."""
    found: dict[str, float] = {}
    for path in (table.path / LOG).glob("*.json"):
        for line in path.read_text().splitlines():
            if '"remove"' in line and (action := json.loads(line).get("remove")):
                found[action["path"]] = (action.get("deletionTimestamp") or 0) / 1000
    return found


def logs(table: LakeTable, before: datetime) -> Unused:
    """Return the log files of earlier versions that are old enough; they can go once there is a checkpoint."""
    keep = table.noted_version()
    files, size = [], 0
    for path in sorted((table.path / LOG).glob("*")):
        version = path.name.partition(".")[0]
        if not version.isdecimal() or int(version) >= keep:
            continue
        facts = path.stat()
        if facts.st_mtime < before.timestamp():
            files.append(path)
            size += facts.st_size
    return Unused(tuple(files), size)


def delete(unused: Unused) -> None:
    """Delete files and folders, and partitions that are empty then."""
    for path in unused.files:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
            continue
        path.unlink(missing_ok=True)
        if "=" in path.parent.name:
            with suppress(OSError):  # it is not empty
                path.parent.rmdir()
