"""Checks of a lake: whether its tables can be trusted, and how far they are behind. No JVM: pyarrow reads the tables.

Each check counts rows that should not be there, and says what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import compute

from penstock.errors import CallerError
from penstock.lake.coverage import Coverage
from penstock.lake.schemas import CHECKS, EVENTS, FOLDED, JOBS, METRIC_PARTS, UNKNOWN
from penstock.lake.segments import plan, segment_files
from penstock.lake.table import LakeTable, Snapshot

LATE_SHARE_MAX = 0.01  # of events: files that were copied or restored, or a writer whose disk is far away
LEASE_MAX = timedelta(days=30)  # as the queue library has it
UNKNOWN_SHARE_MAX = 0.01  # of jobs whose creation is unknown: foreign programs use the queues
CHEAP = timedelta(seconds=5)  # checks that each build makes
PARTS = 20  # of the time, one for checks


class Check(NamedTuple):
    """The result of a check."""

    name: str
    is_ok: bool
    found: int
    meaning: str


class Lag(NamedTuple):
    """What a writer has in its segments that the table does not have."""

    writer: str
    events: int
    oldest_segment: str


class LakeStatus(NamedTuple):
    """How far a lake is."""

    events: int
    version: int
    last_event: datetime | None
    last_commit: datetime | None
    lags: tuple[Lag, ...]
    tables: dict[str, int]  # rows
    unfolded: int  # versions of events that the other tables don't follow yet
    checked: datetime | None  # when `check` was last run
    failed: dict[str, int]  # what it found then, by check


def open_events(lake: str | Path) -> tuple[LakeTable, Snapshot]:
    """Return the table of events; raises if the lake was not built."""
    table = LakeTable(lake, EVENTS)
    if not table.exists():
        raise CallerError(f"the lake must have been built, got no tables in {lake}: run `penstock lake build`")
    return table, table.snapshot()


def status(lake: str | Path, events: str | Path | None = None) -> LakeStatus:
    """Return how far a lake is; with a directory of events, also what it does not have of them."""
    table, snapshot = open_events(lake)
    lags: dict[str, list[Any]] = {}
    if events is not None:
        for one in plan(segment_files(events), Coverage.from_json(snapshot.note.get("covered"))):
            lags.setdefault(one.writer, [0, Path(one.path).name])[0] += one.events
    last = max((_utc(file.high["at"]) for file in snapshot.files if "at" in file.high), default=None)
    commit = table.path / "_delta_log" / f"{snapshot.version:020d}.json"
    committed = datetime.fromtimestamp(commit.stat().st_mtime, UTC) if commit.exists() else None
    rows, followed = {}, []
    for schema in FOLDED:
        one_table = LakeTable(lake, schema)
        found = one_table.snapshot()
        rows[schema.name] = found.rows
        followed.append(int(found.note.get("events_version", 0)))
    found_lags = tuple(Lag(writer, count, name) for writer, (count, name) in sorted(lags.items()))
    return LakeStatus(
        snapshot.rows,
        snapshot.version,
        last,
        committed,
        found_lags,
        rows,
        snapshot.version - min(followed),
        *_last_checks(lake),
    )


def _last_checks(lake: str | Path) -> tuple[datetime | None, dict[str, int]]:
    """Return when the checks were last made, and what those that failed found."""
    table = LakeTable(lake, CHECKS)
    files = table.snapshot().files
    day = max((file.partition for file in files), default="")
    rows = table.arrow([file for file in files if file.partition == day], ["at", "name", "ok", "found"]).to_pylist()
    last = max((row["at"] for row in rows), default=None)
    return last, {row["name"]: row["found"] for row in rows if row["at"] == last and not row["ok"]}


def is_check_due(lake: str | Path, now: datetime, pause: timedelta = timedelta(0)) -> bool:
    """Whether a build is to check: new events since the last run, and that is long enough ago.

    Runs that take more than CHEAP are made so rarely that they take one part in PARTS of the time.
    """
    note = LakeTable(lake, CHECKS).snapshot().note
    if "at" not in note:
        return True
    if note["events_version"] == open_events(lake)[1].version:
        return False
    took = timedelta(seconds=note["took_s"])
    since = now - datetime.fromisoformat(note["at"])
    return since >= max(pause, took * PARTS if took > CHEAP else timedelta(0)) or since < timedelta(0)


def keep(lake: str | Path, results: Sequence[Check], at: datetime) -> None:
    """Add the results of a run, which began at a time, to the table `checks`."""
    _, source = open_events(lake)
    table = LakeTable(lake, CHECKS)
    table.create()
    common = {"at": at, "events_version": source.version, "day": f"{at:%Y-%m-%d}"}
    rows = [{"name": one.name, "ok": one.is_ok, "found": one.found, **common} for one in results]
    added = table.stage(pa.Table.from_pylist(rows, CHECKS.arrow()))
    run = {"at": at.isoformat(), "took_s": (datetime.now(UTC) - at).total_seconds(), "events_version": source.version}
    table.rewrite(table.snapshot(), added, [], lambda note: {**note, "kind": "check", **run}, is_change=True)


def _utc(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def checks(lake: str | Path) -> list[Check]:
    """Return the results of all checks."""
    table, snapshot = open_events(lake)
    covered = Coverage.from_json(snapshot.note.get("covered"))
    events = table.arrow(snapshot.files, ["writer", "epoch", "seq", "kind", "size"])
    jobs = _read(lake, JOBS, ["job", "added", "outcome", "wait_ms", "run_ms", "last_event", "hour"])
    return [
        _gaps(covered),
        _killed(covered, snapshot.note),
        _lost(events),
        _late(events, snapshot.note),
        _duplicates(events),
        _unbuilt(events, covered, snapshot.note),
        _without_add(jobs),
        _negative(jobs),
        _unknown(jobs),
        _unknown_ends(jobs),
        _twice(jobs),
        _depths(lake),
    ]


def _read(lake: str | Path, schema: Any, columns: list[str]) -> pa.Table:
    table = LakeTable(lake, schema)
    return table.arrow(table.snapshot().files, columns)


def _gaps(covered: Coverage) -> Check:
    missing = sum(last - first + 1 for _, _, (first, last) in covered.gaps())
    return Check("gaps", missing == 0, missing, "events whose segments are missing: late, deleted or damaged")


def _killed(covered: Coverage, note: Mapping[str, Any]) -> Check:
    """Count the runs of writers that did not end in order; the last one of each may be going on."""
    ended = {writer: set(epochs) for writer, epochs in note.get("ended", {}).items()}
    found = 0
    for writer in covered.writers():
        there, in_order = set(covered.epochs(writer)), ended.get(writer, set())
        found += len(there - in_order - {max(there | in_order)})
    return Check("killed writers", found == 0, found, "runs of writers that were killed: events may be missing")


def _late(events: pa.Table, note: Mapping[str, Any]) -> Check:
    found = int(note.get("late", 0))
    is_ok = found <= LATE_SHARE_MAX * max(1, events.num_rows)
    return Check("late events", is_ok, found, "events that came after later ones of their writer, above 1 % of all")


def _lost(events: pa.Table) -> Check:
    lost = events.filter(compute.equal(events["kind"], "lost"))
    count = compute.sum(lost["size"]).as_py() or 0
    return Check("lost", count == 0, count, "events that a writer could not write, by its own count")


def _duplicates(events: pa.Table) -> Check:
    distinct = events.select(["writer", "epoch", "seq"]).group_by(["writer", "epoch", "seq"]).aggregate([]).num_rows
    found = events.num_rows - distinct
    return Check("duplicates", found == 0, found, "events that are in the table more than once")


def _unbuilt(events: pa.Table, covered: Coverage, note: Mapping[str, Any]) -> Check:
    lost = events.filter(compute.equal(events["kind"], "lost"))
    stands_for = sum(max(0, (size or 1) - 1) for size in lost["size"].to_pylist())
    expected = covered.count + int(note.get("retired", 0)) - int(note.get("dropped", 0))
    found = expected - stands_for - events.num_rows
    return Check("covered", found == 0, abs(found), "events that the log counts as read, and the table does not have")


def _without_add(jobs: pa.Table) -> Check:
    ended = compute.is_in(jobs["outcome"], pa.array(["acked", "failed", "expired", "removed"]))
    known = compute.not_equal(jobs["hour"], UNKNOWN)
    found = jobs.filter(compute.and_(compute.and_(ended, known), compute.is_null(jobs["added"]))).num_rows
    return Check("ends without adds", found == 0, found, "jobs that ended, and whose add no writer recorded")


def _negative(jobs: pa.Table) -> Check:
    below = [compute.fill_null(compute.less(jobs[name], 0), False) for name in ("wait_ms", "run_ms")]
    found = jobs.filter(compute.or_(*below)).num_rows
    return Check("negative times", found == 0, found, "jobs that started before they were added: clocks differ")


def _unknown(jobs: pa.Table) -> Check:
    found = jobs.filter(compute.equal(jobs["hour"], UNKNOWN)).num_rows
    is_ok = found <= UNKNOWN_SHARE_MAX * max(1, jobs.num_rows)
    return Check("unknown creation", is_ok, found, "jobs of programs that record no events, above 1 % of all")


def _unknown_ends(jobs: pa.Table) -> Check:
    """Count jobs that some worker has had for longer than any lease is."""
    newest = compute.max(jobs["last_event"]).as_py()
    found = 0
    if newest is not None:
        before = pa.scalar(newest - LEASE_MAX, jobs["last_event"].type)
        is_old = compute.less(jobs["last_event"], before)
        found = jobs.filter(compute.and_(compute.equal(jobs["outcome"], "running"), is_old)).num_rows
    is_ok = found <= UNKNOWN_SHARE_MAX * max(1, jobs.num_rows)
    return Check("unknown ends", is_ok, found, "jobs that nobody ended for 30 days, above 1 % of all")


def _twice(jobs: pa.Table) -> Check:
    found = jobs.num_rows - jobs.select(["job"]).group_by(["job"]).aggregate([]).num_rows
    return Check("one row a job", found == 0, found, "jobs with rows in two hours: their events differ in `created`")


def _depths(lake: str | Path) -> Check:
    """Compare the depth that the events add up to with the last sample of each queue."""
    parts = _read(lake, METRIC_PARTS, ["queue", "minute", "depth_change", "sample"])
    found = 0
    for queue in parts["queue"].unique().to_pylist():
        own = parts.filter(compute.equal(parts["queue"], queue))
        sampled = own.filter(compute.is_valid(own["sample"])).sort_by("minute")
        if not sampled.num_rows:
            continue
        minute, sample = sampled["minute"][-1].as_py(), sampled["sample"][-1].as_py()
        upto = compute.sum(own.filter(compute.less_equal(own["minute"], minute))["depth_change"]).as_py() or 0
        before = compute.sum(own.filter(compute.less(own["minute"], minute))["depth_change"]).as_py() or 0
        # A sample is of some moment within its minute.
        found += not min(before, upto) <= sample <= max(before, upto)
    return Check("depth", found == 0, found, "queues whose last sample is not what the events add up to")
