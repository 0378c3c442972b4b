"""Batch reads of an SQLite file, a page at a time, as columns: see `penstock.queues.scan`.

A read goes by ids, from index `by_id`. A job keeps its id whatever is done to it, so it is met once; and as ids sort by
the time of their making, those that are pushed after it began lie behind its end. Columns that nobody wants
are not read, large bodies least of all.
"""

import json
from typing import Any

from penstock.codec import from_json
from penstock.job import LIVE, JobState
from penstock.queues.scan import NOTHING, Column, Part, Rows, Same, Wanted
from penstock.queues.stores.sqlite.file import SqliteFile

# What the file has of each column; all times are milliseconds.
_STORED = {
    "id": "id",
    "body": "body",
    "headers": "headers",
    "tries": "tries",
    "mature_ms": "mature",
    "created_ms": "created",
    "state": "CASE WHEN mature <= :now THEN 'ready' WHEN token IS NULL THEN 'scheduled' ELSE 'reserved' END",
}
_STATES = {
    JobState.READY: "mature <= :now",
    JobState.SCHEDULED: "mature > :now AND token IS NULL",
    JobState.RESERVED: "mature > :now AND token IS NOT NULL",
}
# What can be compared, in the units of `Limit`.
COMPARED = {"tries": "tries", "created": "created * 1000", "mature": "mature * 1000"}
COMPARES = frozenset({"id", *COMPARED})
_END = "SELECT max(id) FROM penstock_jobs WHERE queue = ?"


def scan_page(file: SqliteFile, part: Part, wanted: Wanted, count: int, cursor: str | None, now_ms: int) -> Rows:
    """The next page."""
    (queue,) = part.queues
    last, end = ("", file.read(_END, (queue,))[0][0]) if cursor is None else json.loads(cursor)
    if end is None:
        return NOTHING
    names = ["id", *(name for name in _STORED if name in wanted.columns and name != "id")]
    conditions, values = _conditions(wanted)
    statement = (
        f"SELECT {', '.join(_STORED[name] for name in names)} FROM penstock_jobs INDEXED BY penstock_jobs_by_id"
        f" WHERE queue = :queue AND id > :last AND id <= :end{conditions} ORDER BY id LIMIT :count"
    )
    given = {"queue": queue, "last": last, "end": end, "now": now_ms, "count": count, **values}
    rows = file.read(statement, given)
    if not rows:
        return NOTHING
    columns: dict[str, Column] = dict(zip(names, zip(*rows, strict=True), strict=True))
    if "headers" in columns:
        columns["headers"] = [from_json(text) if text else {} for text in columns["headers"]]
    columns["queue"] = Same(queue)
    return Rows(len(rows), columns, json.dumps([rows[-1][0], end]) if len(rows) == count else None)


def _conditions(wanted: Wanted) -> tuple[str, dict[str, Any]]:
    """What is asked of a job beside its place."""
    found = [f"{COMPARED[limit.column]} {limit.sign} {int(limit.value)}" for limit in wanted.limits]
    if len(wanted.states) < len(LIVE):
        found.append("(" + (" OR ".join(_STATES[state] for state in wanted.states) or "0") + ")")
    ids = {f"id{number}": job_id for number, job_id in enumerate(wanted.ids or ())}
    if wanted.ids is not None:
        found.append(f"id IN ({', '.join(f':{name}' for name in ids)})")
    return "".join(f" AND {condition}" for condition in found), ids
