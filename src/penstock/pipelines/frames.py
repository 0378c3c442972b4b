"""Functions that take many jobs at once, as a pandas DataFrame or as an Arrow table.

What a function is called with: a row for each job, a column for each field of their payloads. Payloads that are not
objects come in a call of their own, in one column `payload`. The index of a DataFrame has the ids of the jobs; a table
has them in the column `_id`.

    returned                     and the job of each row
    a DataFrame, a table         goes on with that row as its payload; a null is left out if the field was not there
    a list, or a column          has the result of its own, of the table in `results`; an exception is one
    None                         as a function that returns None

Columns whose names begin with `_` are not part of the payload. Some say what becomes of the job, where they are not
null:

    _to      the queue that it goes to, or its index       _drop    true: it is done
    _delay   seconds until the next link may take it       _later   it stays, and comes back after these seconds
    _error   a text: as an exception                       _fail    a text: to the dead letters at once

Rows belong to jobs by their ids, where the result has them, else by their order: there must be one for each. If a call
fails, its halves are called, and so on: a job that can't be processed is found, and fails alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from penstock.errors import CallerError, MissingExtra
from penstock.pipelines.results import DROP, Later, Move
from penstock.worker.outcomes import Fail

ID, PAYLOAD = "_id", "payload"
CALLS_MAX = 64  # to find the jobs that make a call fail: enough for six of a thousand, and not a call for each of all

Function = Callable[[Any], Any]


class RowError(Exception):
    """What a function wrote into the column `_error`."""


class FrameForm(NamedTuple):
    """A kind of frame."""

    frame: Callable[[list[str], list[dict[str, Any]]], Any]  # ids and rows -> what the function is called with
    rows: Callable[
        [Any], tuple[list[Any] | None, list[dict[str, Any]]]
    ]  # what it returned -> ids, if it has them, rows
    is_one: Callable[[Any], bool]  # whether it returned such a frame


def results_of(function: Function, form: FrameForm, ids: Sequence[str], payloads: Sequence[Any]) -> list[object]:
    """Call a function for jobs; return for each what a function of one job would have returned, or raised."""
    results: list[object] = [None] * len(ids)
    objects = [at for at, payload in enumerate(payloads) if isinstance(payload, Mapping)]
    others = [at for at, payload in enumerate(payloads) if not isinstance(payload, Mapping)]
    for chosen, is_object in ((objects, True), (others, False)):
        calls_left = CALLS_MAX
        waiting = [chosen] if chosen else []
        while waiting:
            some = waiting.pop()
            rows = [payloads[at] if is_object else {PAYLOAD: payloads[at]} for at in some]
            calls_left -= 1
            try:
                found = _call(function, form, [ids[at] for at in some], rows, is_object)
            except Exception as problem:
                if len(some) > 1 and calls_left > len(waiting) + 1 and not isinstance(problem, CallerError):
                    middle = len(some) // 2
                    waiting += [some[middle:], some[:middle]]
                    continue
                found = [problem] * len(some)
            for at, result in zip(some, found, strict=True):
                results[at] = result
    return results


def _call(
    function: Function, form: FrameForm, ids: list[str], rows: list[dict[str, Any]], is_object: bool
) -> list[object]:
    returned = function(form.frame(ids, rows))
    if returned is None:
        return [None] * len(ids)
    if form.is_one(returned):
        their_ids, theirs = form.rows(returned)
        _check_length(len(theirs), len(ids))
        if their_ids is not None and set(their_ids) == set(ids):
            by_id = dict(zip(their_ids, theirs, strict=True))
            theirs = [by_id[one] for one in ids]
        return [_result(row, before, is_object) for row, before in zip(theirs, rows, strict=True)]
    if hasattr(returned, "to_pylist"):  # a column of Arrow
        returned = returned.to_pylist()
    if isinstance(returned, str | bytes | Mapping) or not hasattr(returned, "__len__"):
        raise CallerError(f"the function must return a frame, a list or None, got {type(returned).__name__}")
    found = list(returned)
    _check_length(len(found), len(ids))
    return found


def _check_length(rows: int, jobs: int) -> None:
    if rows != jobs:
        raise CallerError(f"the function must return a row for each of its {jobs} jobs, got {rows} rows")


def _result(row: dict[str, Any], before: dict[str, Any], is_object: bool) -> object:
    """Return what the row of a frame means, as a function of one job would have returned or raised it."""
    marks = {name: value for name, value in row.items() if name[:1] == "_" and value is not None}
    if "_fail" in marks:
        return Fail(str(marks["_fail"]))
    if "_error" in marks:
        return RowError(str(marks["_error"]))
    if marks.get("_drop"):
        return DROP
    if "_later" in marks:
        return Later(float(marks["_later"]))
    payload: Any = {
        name: value for name, value in row.items() if name[:1] != "_" and (value is not None or name in before)
    }
    if not is_object and payload.keys() == {PAYLOAD}:
        payload = payload[PAYLOAD]
    if "_to" in marks or "_delay" in marks:
        return Move(to=marks.get("_to"), payload=payload, delay=marks.get("_delay", 0))
    return payload


# Arrow.


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as problem:
        raise MissingExtra(f"this needs the package {name}. Install it with: pip install {name}") from problem


def _table(ids: list[str], rows: list[dict[str, Any]]) -> Any:
    arrow = _package("pyarrow")
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _column(arrow, name, [row.get(name) for row in rows]) for name in names}
    return arrow.table({**columns, ID: arrow.array(ids, arrow.string())})


def _column(arrow: Any, name: str, values: list[Any]) -> Any:
    try:
        return arrow.array(values)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError) as problem:
        kinds = sorted({type(value).__name__ for value in values if value is not None})
        raise TypeError(
            f"the field {name!r} must be of one type in all jobs of a call, got {', '.join(kinds)}"
        ) from problem


def _table_rows(table: Any) -> tuple[list[Any] | None, list[dict[str, Any]]]:
    ids = table.column(ID).to_pylist() if ID in table.schema.names else None
    return ids, table.to_pylist()


def _is_table(value: Any) -> bool:
    arrow = _package("pyarrow")
    return isinstance(value, arrow.Table | arrow.RecordBatch)


# pandas.


def _data_frame(ids: list[str], rows: list[dict[str, Any]]) -> Any:
    pandas = _package("pandas")
    names = dict.fromkeys(name for row in rows for name in row)
    index = pandas.Index(ids, name=ID)
    return pandas.DataFrame({name: _series(pandas, index, [row.get(name) for row in rows]) for name in names}, index)


def _series(pandas: Any, index: Any, values: list[Any]) -> Any:
    """Return a column. Whole numbers stay whole beside missing ones, which are null."""
    kinds = {type(value) for value in values if value is not None}
    is_whole = kinds == {int} and all(-(2**63) <= value < 2**63 for value in values if value is not None)
    if is_whole or kinds == {bool}:
        has_all = None not in values
        whole = "int64" if has_all else "Int64"
        return pandas.Series(values, index, dtype=whole if is_whole else "bool" if has_all else "boolean")
    if kinds and kinds <= {int, float}:
        return pandas.Series(values, index, dtype="float64")
    return pandas.Series(values, index, dtype="object")


def _data_frame_rows(frame: Any) -> tuple[list[Any] | None, list[dict[str, Any]]]:
    names = [str(name) for name in frame.columns]
    columns = [_plain(frame.iloc[:, at]) for at in range(len(names))]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    return frame.index.tolist(), rows or [{} for _ in range(len(frame))]


def _plain(column: Any) -> list[Any]:
    """Return the values of a column as Python has them; None for those that are missing."""
    missing = column.isna().tolist()
    return [None if is_missing else value for value, is_missing in zip(column.tolist(), missing, strict=True)]


def _is_data_frame(value: Any) -> bool:
    return isinstance(value, _package("pandas").DataFrame)


# By what a link `takes`.
FORMS = {
    "pandas": FrameForm(_data_frame, _data_frame_rows, _is_data_frame),
    "arrow": FrameForm(_table, _table_rows, _is_table),
}
