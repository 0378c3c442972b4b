"""Collects what is known of one job: from the tables, from raw segments, and from its store. Nothing here starts a JVM.

Each source can be missing. The tables are asked for events by the job's id, segments for those that the tables don't
have yet, and the store for how the job stands now.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.errors import CallerError, PenstockError
from penstock.events.record import JOB_BYTES, SLOT_BYTES, kind_name
from penstock.events.segment import HEADER_BYTES, Columns, Segment
from penstock.job import JobState
from penstock.lake.coverage import Coverage
from penstock.lake.segments import SLICE_EVENTS_MAX, Slice, plan, segment_files
from penstock.lake.story import Happened, InStore, Known
from penstock.queues.blocking import Store, connect
from penstock.queues.capabilities import Capability
from penstock.queues.dead_letter import ERROR, JOB
from penstock.queues.push import check_text
from penstock.queues.scan import Rows, Same, Wanted

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STORE_PAGE = 1000


def collect(
    job: str, *, lake: str | None = None, events: str | None = None, url: str | None = None, now: datetime | None = None
) -> Known:
    """Return all that is known of a job."""
    if not (lake or events or url):
        raise CallerError("penstock why needs --lake, --events or --store: where to look for the job")
    check_text("the id of a job", job)
    found: list[Happened] = []
    covered = Coverage()
    until = None
    unread = 0
    if lake:
        rows, covered, until = _from_tables(lake, job)
        found += rows
    if events:
        slices = plan(segment_files(events), covered)
        unread = sum(one.events for one in slices) if lake else 0
        found += [event for one in slices for event in _from_segment(one, job)]
        until = None
    store, here, error = ("", None, "") if url is None else _from_store(url, job)
    return Known(
        now=now or datetime.now(UTC),
        events=found,
        has_events=bool(lake or events),
        store=store,
        in_store=here,
        store_error=error,
        tables_until=until if not url else None,
        unread=unread,
    )


def _from_tables(lake: str, job: str) -> tuple[list[Happened], Coverage, datetime | None]:
    from pyarrow import compute  # noqa: PLC0415 - segments and stores are read without it

    from penstock.lake.schemas import EVENTS  # noqa: PLC0415 - it needs pyarrow
    from penstock.lake.table import LakeTable, lake_directory  # noqa: PLC0415 - it needs deltalake

    table = LakeTable(lake_directory(lake), EVENTS)
    if not table.exists():
        raise CallerError(f"the lake must have been built, got no tables in {lake}: run `penstock lake build`")
    snapshot = table.snapshot()
    names = [name for name in EVENTS.names if name != "day"]
    # The log knows the range of ids of each file, so that most of them are not even opened.
    files = [file for file in snapshot.files if "job" not in file.low or file.low["job"] <= job <= file.high["job"]]
    rows = table.arrow(files, names, compute.field("job") == job).to_pylist()
    events = [
        Happened(
            key=(row.pop("writer"), row.pop("epoch"), row.pop("seq")),
            **{name: value for name, value in row.items() if name != "job"},
        )
        for row in rows
    ]
    last = max((file.high["at"] for file in snapshot.files if "at" in file.high), default=None)
    if last is not None and last.tzinfo is None:
        last = last.replace(tzinfo=UTC)
    return events, Coverage.from_json(snapshot.note.get("covered")), last


def _from_segment(one: Slice, job: str) -> Iterator[Happened]:
    """Yield the events of a job in a slice. Only events whose bytes have the id are read."""
    wanted = job.encode()
    data = Path(one.path).read_bytes()
    if wanted not in data:
        return
    segment = Segment(one.path)
    if len(wanted) > JOB_BYTES:  # the id is a text that is defined once
        yield from _chosen(segment.read(one.first, min(one.events, SLICE_EVENTS_MAX)), job, one.last)
        return
    head = HEADER_BYTES
    at = data.find(wanted, head)
    seen = set()
    while at >= 0:
        slot = head + (at - head) // SLOT_BYTES * SLOT_BYTES
        seq = int.from_bytes(data[slot + 8 : slot + 16], "little")
        if one.first <= seq <= one.last and seq not in seen:
            seen.add(seq)
            yield from _chosen(segment.read(seq, 1), job, one.last)
        at = data.find(wanted, slot + SLOT_BYTES)


def _chosen(columns: Columns, job: str, last: int) -> Iterator[Happened]:
    for at, (seq, name) in enumerate(zip(columns.seq, columns.job, strict=True)):
        if name == job and seq <= last:
            yield Happened(
                at=_time(columns.at[at]),
                kind=kind_name(columns.kind[at]),
                queue=columns.queue[at],
                attempt=columns.attempt[at],
                node=columns.node[at],
                worker=columns.worker[at],
                error=columns.error[at],
                size=columns.size[at],
                to_queue=columns.to_queue[at],
                until=_optional(columns.until[at]),
                created=_optional(columns.created[at]),
                key=(columns.writer, columns.epoch, seq),
            )


def _time(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def _optional(us: int | None) -> datetime | None:
    return None if us is None else _time(us)


# The store.


def _from_store(url: str, job: str) -> tuple[str, InStore | None, str]:
    """Return the name of the store, the job in it, and why it could not be asked."""
    shown = url.partition("?")[0]
    try:
        with connect(url) as store:
            shown = store.url
            if not store.exists():
                return shown, None, f"{shown} doesn't exist"
            return shown, _look(store, job), ""
    except CallerError:
        raise
    except PenstockError as problem:
        return shown, None, str(problem)


def _look(store: Store, job: str) -> InStore | None:
    dead = store.dead_letters().name
    names = list(dict.fromkeys([*store.queues(), dead]))
    wanted = Wanted(ids=(job,), columns=_LOOKED_AT)
    for rows in _pages(store, names, wanted):
        if (at := _row_of(rows, job)) is not None:
            return _shown(store, rows, at, dead)
    # Where a job gets another id among the dead letters, its old one is in a header.
    for rows in _pages(store, [dead], Wanted(columns=_LOOKED_AT)):
        headers = rows.columns.get("headers", ())
        for at in range(rows.count):
            of_one = headers.value if isinstance(headers, Same) else headers[at] if headers else None
            if isinstance(of_one, dict) and of_one.get(JOB) == job:
                return _shown(store, rows, at, dead)
    if Capability.HISTORY in store.capabilities:  # which no scan shows
        for name in names:
            if any(one.id == job for one in store.queue(name).jobs(state=JobState.DONE)):
                return InStore(name, "done")
    return None


def _pages(store: Store, names: list[str], wanted: Wanted) -> Iterator[Rows]:
    for part in store.scan_parts(names, wanted):
        yield from store.pages(part, wanted, STORE_PAGE)


_LOOKED_AT = frozenset({"id", "queue", "state", "mature_ms", "tries", "headers"})


def _row_of(rows: Rows, job: str) -> int | None:
    ids = rows.columns.get("id", ())
    return next((at for at in range(rows.count) if (ids.value if isinstance(ids, Same) else ids[at]) == job), None)


def _shown(store: Store, rows: Rows, at: int, dead: str) -> InStore:
    def value(name: str) -> object:
        column = rows.columns.get(name, Same(None))
        return column.value if isinstance(column, Same) else column[at]

    queue, state, mature, headers = str(value("queue")), str(value("state")), value("mature_ms"), value("headers")
    is_timed = state in (JobState.SCHEDULED, JobState.RESERVED) and isinstance(mature, int)
    tries = value("tries")
    return InStore(
        queue,
        "dead" if queue == dead else state,
        _time(mature * 1000) if is_timed and isinstance(mature, int) else None,
        tries if isinstance(tries, int) else 0,
        store.paused(queue),
        str(headers.get(ERROR, "")) if isinstance(headers, dict) else "",
    )
