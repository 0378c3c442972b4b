"""Settles the ends of jobs that nobody recorded: looks for all open jobs of a lake in their store. Starts no JVM.

A program that writes no events may end a job; then the lake has it as waiting or running for ever. What the store says
of such a job becomes an event of the writer `settle`, in the directory of events, and the next build and fold bring it
into the tables:

    the store has it, and it has not ended     nothing: the lake is right
    among the dead letters                     `failed`, with the time and the error that stand on the dead letter
    not there, or kept as one that has ended   `gone`, at the time of the look

It never guesses:

- Only jobs of this store are looked for: an event of theirs must name it (`node`), since a lake may have several.
- A job whose last event is younger than `quiet` is left out: its events may be on their way.
- A store that can't show all its jobs now is refused (`Store.names_in_events`), before and after the look.
- A job is `gone` if two looks at the whole store, one after the other, did not find it: a job that goes from one queue
  to another can be missed once. Whatever event says more, sooner or later, overrules `gone` (`life`).

What was settled is not looked for again. Memory is bounded: jobs are looked for in groups, each with a look of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import compute

from penstock.errors import CallerError, OperatorError
from penstock.events import EventWriter, Kind
from penstock.events.segment import Segment
from penstock.lake.coverage import Coverage
from penstock.lake.life import ENDED, RUNNING, WAITING
from penstock.lake.quality import open_events
from penstock.lake.schemas import EVENTS, JOBS, UNKNOWN
from penstock.lake.segments import plan, segment_files
from penstock.lake.table import DataFile, LakeTable, Snapshot
from penstock.queues.blocking import Store, connect
from penstock.queues.dead_letter import ERROR, FROM_QUEUE, JOB, TIME, TRIES
from penstock.queues.scan import Same, Wanted

WRITER = "settle"
QUIET = timedelta(hours=1)
GROUP_JOBS = 500_000  # jobs of one look: some 200 MB
READ_ROWS = 2_000_000  # rows of `jobs` that are read at once, of which the open ones stay
STORE_PAGE = 1000
LOOKS = 2
BUFFER_BYTES = 1 << 30  # above what a group can have: nothing is lost to a slow disk, this waits for it
CLOSE_S = 300.0
_COLUMNS = ("id", "queue", "headers")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


class OpenJob(NamedTuple):
    """A job that has not ended, as far as the lake knows."""

    id: str
    queue: str | None
    created: datetime | None
    last_event: datetime


class FoundEnd(NamedTuple):
    """The end of a job, as its store has it."""

    kind: Kind
    at: datetime | None = None  # None: it is not known
    queue: str | None = None
    to_queue: str | None = None
    error: str | None = None
    attempt: int = 0


@dataclass(slots=True)
class SettledJobs:
    """What was found of the jobs that have not ended, as far as the lake knows."""

    present: int = 0  # in the store
    failed: int = 0
    gone: int = 0
    recent: int = 0  # not looked for: something happened to them just now
    elsewhere: int = 0  # not looked for: no event names this store
    names: set[str] = field(default_factory=set)  # what events call the stores of these

    @property
    def ends(self) -> int:
        """How many ends were found."""
        return self.failed + self.gone


def settle(
    lake: str | Path,
    events: str | Path,
    url: str,
    *,
    quiet: timedelta = QUIET,
    dry_run: bool = False,
    now: datetime | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> SettledJobs:
    """Look for all open jobs of the lake in a store, and record the ends of those that have ended."""
    _, snapshot = open_events(lake)
    now = now or datetime.now(UTC)
    noted = _noted(events, snapshot)
    result = SettledJobs()
    with connect(url) as store:
        if not store.exists():
            raise CallerError(f"{store.url} doesn't exist: check the path")
        for group in _groups(lake, now - quiet, result):
            own = _of_store(lake, snapshot, group, noted, store.names_in_events(), result)
            if own:
                at = datetime.now(UTC)
                ends = _look(store, own, progress)
                _count(result, own, ends)
                if not dry_run and ends:
                    _record(events, store.place, own, ends, at)
    return result


def _noted(events: str | Path, snapshot: Snapshot) -> dict[str, int]:
    """Return the jobs whose ends were recorded, and are not in the tables yet: with the times, in microseconds."""
    files = [file for file in segment_files(events) if file.writer == WRITER]
    found: dict[str, int] = {}
    for one in plan(files, Coverage.from_json(snapshot.note.get("covered"))):
        columns = Segment(one.path).read(one.first, one.events)
        found.update({job: at for job, at in zip(columns.job, columns.at, strict=True) if job is not None})
    return found


# The jobs.


def _groups(lake: str | Path, before: datetime, result: SettledJobs) -> Iterator[list[OpenJob]]:
    """Yield the jobs that have not ended, and to which nothing has happened for a while."""
    table = LakeTable(lake, JOBS)
    is_open = compute.field("outcome").isin([WAITING, RUNNING])
    group: list[OpenJob] = []
    for files in _batches(table.snapshot().files):
        rows = table.arrow(files, ["job", "queue_now", "created", "last_event"], is_open)
        is_quiet = compute.less(rows["last_event"], pa.scalar(before, rows["last_event"].type))
        quiet = rows.filter(is_quiet)
        result.recent += rows.num_rows - quiet.num_rows
        for row in zip(*(column.to_pylist() for column in quiet.columns), strict=True):
            group.append(OpenJob(*row))
            if len(group) >= GROUP_JOBS:
                yield group
                group = []
    if group:
        yield group


def _batches(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    batch: list[DataFile] = []
    rows = 0
    for file in sorted(files, key=lambda one: one.partition):
        batch.append(file)
        rows += file.rows
        if rows >= READ_ROWS:
            yield batch
            batch, rows = [], 0
    if batch:
        yield batch


def _of_store(
    lake: str | Path,
    snapshot: Snapshot,
    group: list[OpenJob],
    noted: dict[str, int],
    names: frozenset[str],
    result: SettledJobs,
) -> dict[str, OpenJob]:
    """Return the jobs that events name this store of, without those whose ends are recorded, but not folded yet."""
    days = {UNKNOWN if one.created is None else f"{one.created:%Y-%m-%d}" for one in group}
    by_id = {one.id: one for one in group}
    wanted = pa.array(by_id, pa.string())
    own: set[str] = set()
    others: dict[str, set[str]] = {}
    table = LakeTable(lake, EVENTS)
    for day in sorted(days | {UNKNOWN}):  # an event may lack the time of creation that another one has
        rows = table.arrow(
            snapshot.of([day]), ["job", "node", "kind", "at"], compute.is_in(compute.field("job"), wanted)
        )
        ends = rows.filter(compute.is_in(rows["kind"], pa.array(ENDED)))
        for job, at in zip(ends["job"].to_pylist(), ends["at"].to_pylist(), strict=True):
            if at > by_id[job].last_event:
                noted.setdefault(job, _us(at))
        pairs = rows.select(["job", "node"]).group_by(["job", "node"]).aggregate([])
        for job, node in zip(pairs["job"].to_pylist(), pairs["node"].to_pylist(), strict=True):
            if node in names:
                own.add(job)
            elif node is not None:
                others.setdefault(job, set()).add(node)
    for job in by_id.keys() - own:
        result.elsewhere += 1
        result.names |= others.get(job, set())
    return {job: by_id[job] for job in own if noted.get(job, 0) <= _us(by_id[job].last_event)}


# The store.


def _look(store: Store, own: dict[str, OpenJob], progress: Callable[[int], None]) -> dict[str, FoundEnd]:
    """Return the ends of jobs, by their ids. Raises if the store could not be seen whole."""
    found: dict[str, FoundEnd | None] = {}
    for _ in range(LOOKS):
        for job, end in _in_store(store, own, progress):
            if end is None or job not in found:  # two jobs with one id: one that is there counts
                found[job] = end
        if len(found) == len(own):
            break
    store.names_in_events()
    ends = {job: end for job, end in found.items() if end is not None}
    return ends | {job: FoundEnd(Kind.GONE) for job in own.keys() - found.keys()}


def _in_store(
    store: Store, own: dict[str, OpenJob], progress: Callable[[int], None]
) -> Iterator[tuple[str, FoundEnd | None]]:
    """Yield those of the jobs that the store has: with their ends, if they have ended."""
    wanted = Wanted(columns=frozenset(_COLUMNS))
    queues = {
        *store.queues(with_jobs=True),
        store.dead_letters().name,
        *(one.queue for one in own.values() if one.queue),
    }
    for part in store.scan_parts(sorted(queues), wanted):
        for rows in store.pages(part, wanted, STORE_PAGE):
            progress(rows.count)
            columns = [rows.columns.get(name, Same(None)) for name in _COLUMNS]
            values = [[one.value] * rows.count if isinstance(one, Same) else one for one in columns]
            for job, queue, headers in zip(*values, strict=True):
                marks = headers if isinstance(headers, dict) else {}
                other = marks.get(JOB, job)  # where dead letters get another id, this is the job's
                if job in own and job != other:
                    yield job, None
                if other in own:
                    yield other, _dead(str(queue), marks)


def _dead(queue: str, headers: dict[str, Any]) -> FoundEnd | None:
    """Return the end of a job by what stands on its dead letter; None if it is none."""
    if TIME not in headers:
        return None
    tries = headers.get(TRIES)
    return FoundEnd(
        Kind.FAILED,
        _time(headers[TIME]),
        str(headers[FROM_QUEUE]) if FROM_QUEUE in headers else None,
        queue,
        str(headers.get(ERROR) or "") or None,
        tries + 1 if isinstance(tries, int) and not isinstance(tries, bool) and tries >= 0 else 0,
    )


def _time(text: Any) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except (TypeError, ValueError):  # whatever a foreign program has written
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _count(result: SettledJobs, own: dict[str, OpenJob], ends: dict[str, FoundEnd]) -> None:
    result.present += len(own) - len(ends)
    kinds = [end.kind for end in ends.values()]
    result.failed += kinds.count(Kind.FAILED)
    result.gone += kinds.count(Kind.GONE)


def _record(events: str | Path, place: str, own: dict[str, OpenJob], ends: dict[str, FoundEnd], now: datetime) -> None:
    writer = EventWriter(events, WRITER, buffer_bytes_max=BUFFER_BYTES)
    for job, end in ends.items():
        known = own[job]
        at = now if end.kind is Kind.GONE else max(end.at or known.last_event, known.last_event)
        writer.record(
            end.kind,
            job,
            end.queue or known.queue,
            at=_us(at),
            created=0 if known.created is None else _us(known.created),
            attempt=end.attempt,
            node=place,
            error=end.error,
            to_queue=end.to_queue,
        )
    is_written = writer.close(CLOSE_S)
    if not is_written or writer.lost_events:
        raise OperatorError(f"the ends must be written to {writer.directory}, and could not: is the disk full?")


def _us(time: datetime) -> int:
    return (time - _EPOCH) // _US
