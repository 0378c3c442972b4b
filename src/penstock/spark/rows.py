"""Jobs as rows of Spark, in Arrow batches; and the values of rows as JSON, for jobs that are made of rows.

The columns of a job, which `COLUMNS` below defines:

    id                     text
    queue                  text
    body                   binary: bytes as they are, text as UTF-8, anything else as JSON
    payload                text: the payload as JSON, where it is JSON; else null
    headers                map of texts; other values as JSON
    created                when the job was pushed, where the store knows it
    tries                  deliveries before this one
    nacks                  of these, returned by a worker, where the store counts them
    additional_deliveries  of these, redelivered for another reason, where the store counts them
    node                   the node that delivered the job, on a broker cluster
    claim                  the key under which a batch of a stream holds the job; null in a batch read
    state                  ready, scheduled or reserved; dead in a batch read of dead letters
    mature                 when the job was or will be ready; for a reserved one, when its lease ends

What values of a row become in JSON, decided by their types before any task runs:

    null, booleans, numbers, texts   as they are; NaN and infinity are refused
    timestamp                        2026-01-31T12:00:00.000Z, in UTC; without a time zone, without the Z
    date                             2026-01-31
    decimal                          a number; one with more digits than readers of JSON keep is refused
    array, map, struct               list, object, object; the keys of a map are texts or whole numbers

Other types (binary, intervals, variants) have no form in JSON: cast them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import types as t

from penstock.codec import from_json, to_json
from penstock.errors import CallerError
from penstock.job import StoredJob
from penstock.queues.scan import Column, Rows, Same, columns_of

Fields = Mapping[str, Column]  # by their names in `penstock.queues.scan`

_UNKNOWN = Same(None)
# Parses a value, and returns where it ends. The types of json don't have it.
_scan: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]

_SPACES = " \t\n\r"  # as JSON has them


def _bodies(fields: Fields) -> Column:
    """Return the bodies, from a store that keeps bodies or payloads."""
    bodies = fields.get("body", _UNKNOWN)
    if _is_known(bodies):
        return bodies
    return _of_each(fields.get("payload", _UNKNOWN), _body_of_payload)


def _body_of_payload(payload: Any) -> bytes:
    """Return the body of a payload: a text as UTF-8, without the quotes of JSON."""
    if isinstance(payload, bytes):
        return payload
    return (payload if isinstance(payload, str) else to_json(payload)).encode(errors="replace")


def _payloads(fields: Fields) -> Column:
    """Return the payloads as JSON texts, None for what is not JSON."""
    bodies = fields.get("body", _UNKNOWN)
    if _is_known(bodies):
        return _of_each(bodies, json_of_body)
    return _of_each(
        fields.get("payload", _UNKNOWN),
        lambda payload: json_of_body(payload) if isinstance(payload, bytes) else to_json(payload),
    )


def json_of_body(body: bytes) -> str | None:
    """Return the text of a body that is JSON, else None. Most have no spaces around them, and are parsed once."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    try:
        if _scan(text, 0)[1] == len(text):
            return text
        from_json(text)
    except (ValueError, RecursionError):
        return None
    except StopIteration:  # there is no value at its very beginning
        return text if text[:1].isspace() and json_of_body(text.lstrip(_SPACES).encode()) is not None else None
    return text


def _headers(fields: Fields) -> Column:
    """Return the headers as maps of texts; values that are not texts, as JSON."""
    return _of_each(fields.get("headers", Same({})), _pairs)


def _pairs(headers: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, value if isinstance(value, str) else to_json(value)) for name, value in headers.items()]


def _is_known(column: Column) -> bool:
    return column.value is not None if isinstance(column, Same) else None not in column


def _of_each(column: Column, read: Callable[[Any], Any]) -> Column:
    return Same(read(column.value)) if isinstance(column, Same) else [read(value) for value in column]


def _field(name: str) -> Callable[[Fields], Column]:
    return lambda fields: fields.get(name, _UNKNOWN)


class _ColumnSource(NamedTuple):
    """A column: its Spark type, the fields that it is made of, and how."""

    kind: str
    needs: tuple[str, ...]
    read: Callable[[Fields], Column]


def _as_it_is(kind: str, name: str) -> _ColumnSource:
    return _ColumnSource(kind, (name,), _field(name))


COLUMNS: dict[str, _ColumnSource] = {
    "id": _as_it_is("string", "id"),
    "queue": _as_it_is("string", "queue"),
    "body": _ColumnSource("binary", ("body", "payload"), _bodies),
    "payload": _ColumnSource("string", ("body", "payload"), _payloads),
    "headers": _ColumnSource("map<string,string>", ("headers",), _headers),
    "created": _as_it_is("timestamp", "created_ms"),
    "tries": _as_it_is("int", "tries"),
    "nacks": _as_it_is("int", "nacks"),
    "additional_deliveries": _as_it_is("int", "additional_deliveries"),
    "node": _as_it_is("string", "node"),
    "claim": _as_it_is("string", "claim"),
    "state": _as_it_is("string", "state"),
    "mature": _as_it_is("timestamp", "mature_ms"),
}


def chosen(wanted: str | None) -> list[str]:
    """Return the names in the option `columns`, in their order; all without it."""
    if wanted is None:
        return list(COLUMNS)
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if not names:
        raise CallerError(f"columns must name at least one of {', '.join(COLUMNS)}, got {wanted!r}")
    for name in names:
        _check_known(name, "columns")
        if names.count(name) > 1:
            raise CallerError(f"columns must name each column once, got {wanted!r}")
    return names


def checked(schema: t.StructType) -> list[str]:
    """Return the names of a schema, which may be the user's own: some of our columns, with their types."""
    for field in schema.fields:
        _check_known(field.name, "the schema")
        kind = COLUMNS[field.name].kind
        if field.dataType.simpleString() != kind:
            raise CallerError(f"the column {field.name} must be of type {kind}, got {field.dataType.simpleString()}")
    return list(schema.names)


def _check_known(name: str, where: str) -> None:
    if name not in COLUMNS:
        raise CallerError(f"{where} must name columns of {', '.join(COLUMNS)}, got {name}")


def schema_text(names: Iterable[str]) -> str:
    """Return the columns as Spark's DDL."""
    return ", ".join(f"{name} {COLUMNS[name].kind}" for name in names)


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    """Return the schema for Arrow, exactly as Spark wants it."""
    types = {
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([pa.field(name, types[COLUMNS[name].kind]) for name in names])


def fields_of(names: Iterable[str]) -> frozenset[str]:
    """Return the fields of a job that these columns need."""
    return frozenset(field for name in names for field in COLUMNS[name].needs) - {"claim"}


def to_batch(jobs: Sequence[StoredJob], schema: pa.Schema, queue: str, claims: Sequence[str]) -> pa.RecordBatch:
    """Return jobs, each with its claim, as an Arrow batch."""
    fields = {**columns_of(jobs, queue, fields_of(schema.names)), "claim": claims}
    return rows_to_batch(Rows(len(jobs), fields, None), schema)


def rows_to_batch(rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    """Return a page of a scan as an Arrow batch."""
    arrays = [_array(COLUMNS[field.name].read(rows.columns), field.type, rows.count) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(column: Column, kind: pa.DataType, count: int) -> pa.Array:
    if isinstance(column, Same) and column.value is None:
        return pa.nulls(count, kind)
    if pa.types.is_timestamp(kind):
        return _array(column, pa.int64(), count).cast(_MILLISECONDS).cast(kind)
    if not isinstance(column, Same):
        return pa.array(column, type=kind)
    if pa.types.is_map(kind):  # Arrow can't repeat maps
        return pa.array([column.value] * count, type=kind)
    return pa.repeat(pa.scalar(column.value, type=kind), count)


_MILLISECONDS = pa.timestamp("ms", tz="UTC")


# Values of rows, as JSON.

Read = Callable[[Any], Any]

WHOLE = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
TEXTS = (t.StringType, t.CharType, t.VarcharType)
NUMBERS = (*WHOLE, t.FloatType, t.DoubleType, t.DecimalType)
_AS_IT_IS = (t.NullType, t.BooleanType, *WHOLE, *TEXTS)


def reader_of(kind: t.DataType, column: str) -> Read | None:
    """Return a function that turns values of a column, as Arrow has them, into JSON; None if they are JSON."""
    if isinstance(kind, _AS_IT_IS):
        return None
    for types, make in _READERS.items():
        if isinstance(kind, types):
            return _unless_null(make(kind, column))
    raise CallerError(
        f"the column {column} must be of a type that JSON has, got {kind.simpleString()}: cast it, or leave it out"
    )


def _unless_null(read: Read) -> Read:
    return lambda value: None if value is None else read(value)


def _float_reader(kind: t.DataType, column: str) -> Read:
    def read(value: float) -> float:
        if not isfinite(value):
            raise CallerError(f"the column {column} must have finite numbers, got {value}: make it null, or a text")
        return value

    return read


def _decimal_reader(kind: t.DataType, column: str) -> Read:
    def read(value: Decimal) -> int | float:
        if value == value.to_integral_value():
            return int(value)
        number = float(value)
        if Decimal(repr(number)) != value:
            raise CallerError(
                f"the column {column} must have decimals that fit a double, got {value}, which would lose digits in "
                "JSON: cast it to string, or to double"
            )
        return number

    return read


def _timestamp_reader(kind: t.DataType, column: str) -> Read:
    def read(value: datetime) -> str:
        fine = "microseconds" if value.microsecond % 1000 else "milliseconds"
        if value.tzinfo is None:
            return value.isoformat(timespec=fine)
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=fine) + "Z"

    return read


def _date_reader(kind: t.DataType, column: str) -> Read:
    return date.isoformat


def _array_reader(kind: t.DataType, column: str) -> Read:
    assert isinstance(kind, t.ArrayType)
    read = reader_of(kind.elementType, f"{column}[]")
    return list if read is None else lambda values: [read(value) for value in values]


def _map_reader(kind: t.DataType, column: str) -> Read:
    assert isinstance(kind, t.MapType)
    if not isinstance(kind.keyType, (*TEXTS, *WHOLE)):
        raise CallerError(
            f"the column {column} must have texts or whole numbers as keys, got {kind.simpleString()}: cast them"
        )
    read = reader_of(kind.valueType, f"{column}[]") or (lambda value: value)
    return lambda pairs: {str(key): read(value) for key, value in pairs}


def _struct_reader(kind: t.DataType, column: str) -> Read:
    assert isinstance(kind, t.StructType)
    readers = [(field.name, reader_of(field.dataType, f"{column}.{field.name}")) for field in kind.fields]
    converted = [(name, read) for name, read in readers if read is not None]

    def read_row(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, **{name: read(row[name]) for name, read in converted}}

    return read_row


_READERS: dict[type[t.DataType] | tuple[type[t.DataType], ...], Callable[[t.DataType, str], Read]] = {
    (t.FloatType, t.DoubleType): _float_reader,
    t.DecimalType: _decimal_reader,
    (t.TimestampType, t.TimestampNTZType): _timestamp_reader,
    t.DateType: _date_reader,
    t.ArrayType: _array_reader,
    t.MapType: _map_reader,
    t.StructType: _struct_reader,
}
