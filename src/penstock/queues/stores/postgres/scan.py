"""The SQL of batch reads, and how one is cut into ranges of ids: see `penstock.queues.scan`.

A batch read goes by the primary key. A job keeps its id whatever is done to it, so it is read once, in one range; what
is pushed after the read began, and sorts after the last id of that time, is not read at all.

Ids are in the form of UUIDs: random ones (Keuss) or in the order of their creation (ours). Between the lowest and the
highest one the range is cut evenly, as numbers: that makes parts of equal size of random ids, and parts of equal time
of ours. Cuts need not be ids that exist. A small table isn't cut.
"""

import re

from penstock.job import LIVE
from penstock.queues.scan import Wanted
from penstock.queues.stores.postgres.sql import IS_AHEAD, IS_RESERVED, NOW, STATES

PART_BYTES = 32 * 1024 * 1024  # of a table, without values stored outside of its rows: some 100,000 jobs
PARTS_MAX = 8  # connections that a batch read may use at a time

_DIGITS = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})")
_LOW_BITS = 16

_STORED = {
    "element": "_pl::text",
    "tries": f"tries - CASE WHEN {IS_RESERVED} OR {IS_AHEAD.format('')} THEN 1 ELSE 0 END",
    "mature_ms": "floor(extract(epoch FROM mature) * 1000)::int8",
    "state": f"CASE WHEN mature <= {NOW} THEN 'ready' WHEN reserved IS NULL THEN 'scheduled' ELSE 'reserved' END",
}
# Columns that the server compares, in the units of `Limit`.
COMPARED = {"tries": f"({_STORED['tries']})", "mature": f"{_STORED['mature_ms']} * 1000"}
COMPARES = frozenset({"id", *COMPARED})

# Columns that are read from the element.
IN_ELEMENT = frozenset({"body", "payload", "headers"})


def names_of(wanted: Wanted) -> list[str]:
    """Return what is read of each job, in the order of the statement's columns. The state is always read: it needs
    the time."""
    has_element = bool(IN_ELEMENT & wanted.columns)
    return [
        "id",
        *(name for name in _STORED if name in {"state", *wanted.columns} or (name == "element" and has_element)),
    ]


def ends(table: str) -> str:
    """Return a query for the lowest and the highest id, and the size of the table in bytes: $1 is its name."""
    return (
        f"SELECT (SELECT _id FROM {table} ORDER BY _id LIMIT 1), (SELECT _id FROM {table} ORDER BY _id DESC LIMIT 1),"
        " pg_relation_size(to_regclass($1))"
    )


def by_range(table: str, wanted: Wanted, is_first: bool, is_last: bool) -> str:
    """Return a query for jobs from $2 (included on the first page) to $3 (included in the last range), $4 at most."""
    return (
        f"SELECT _id, {_columns(wanted)} FROM {table}"
        f" WHERE _id {'>=' if is_first else '>'} $2 AND _id {'<=' if is_last else '<'} $3{_conditions(wanted)}"
        " ORDER BY _id LIMIT $4::int8"
    )


def by_ids(table: str, wanted: Wanted) -> str:
    """Return a query for those of the jobs in $2 that are there."""
    return (
        f"SELECT _id, {_columns(wanted)} FROM json_to_recordset($2::json) AS given (i text)"
        f" JOIN {table} ON _id = given.i WHERE true{_conditions(wanted)}"
    )


def _columns(wanted: Wanted) -> str:
    return ", ".join(_STORED[name] for name in names_of(wanted)[1:])


def _conditions(wanted: Wanted) -> str:
    found = [f"{COMPARED[limit.column]} {limit.sign} {int(limit.value)}" for limit in wanted.limits]
    if len(wanted.states) < len(LIVE):
        found.append("(" + (" OR ".join(STATES[state] for state in sorted(wanted.states)) or "false") + ")")
    return "".join(f" AND {condition}" for condition in found)


def cuts(low: str, high: str, size: int) -> list[str]:
    """Return where the ids between two are cut, for a table of `size` bytes."""
    parts = min(PARTS_MAX, size // PART_BYTES)
    first, last = _number(low), _number(high)
    if first is None or last is None or parts < 2 or last - first < parts:
        return []
    step = (last - first) / parts
    return [_text(first + round(step * number)) for number in range(1, parts)]


def _number(job_id: str) -> int | None:
    found = _DIGITS.match(job_id)
    return None if found is None else int(found[1] + found[2], 16)


def _text(number: int) -> str:
    return f"{number >> _LOW_BITS:08x}-{number & (1 << _LOW_BITS) - 1:04x}"
