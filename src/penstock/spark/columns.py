"""A job as a row, and many of them as an Arrow batch.

The columns, which `COLUMNS` below defines:

    id                     text
    queue                  text
    body                   binary: bytes as they are, text as UTF-8, anything else as JSON
    payload                text: the payload as JSON, where it is JSON; else null
    headers                map of texts; values that are no texts, as JSON
    created                when the job was pushed, where the store knows
    tries                  deliveries before this one
    nacks                  of these, given back by a worker, where the store knows
    additional_deliveries  of these, redelivered for another reason, where the store knows
    node                   the node that gave the job, on a cluster
    claim                  the key under which a stream's batch holds the job; null in a look
    state                  ready, scheduled or reserved: of use in a look; jobs of a stream are all reserved, by it
    mature                 when the job was or will be ready; of a reserved one, when its lease ends
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.codec import from_json, to_json
from penstock.errors import CallerError
from penstock.job import StoredJob
from penstock.queues.scan import Column, Rows, Same, columns_of

Fields = Mapping[str, Column]  # by their names in `penstock.queues.scan`

_UNKNOWN = Same(None)
# Reads a value, and tells where it ends. Types know nothing of it.
_scan: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]

_SPACES = " \t\n\r"  # as JSON has them


def _bodies(fields: Fields) -> Column:
    """The bodies for Spark, be they kept as such or as payloads."""
    bodies = fields.get("body", _UNKNOWN)
    if _is_known(bodies):
        return bodies
    return _of_each(fields.get("payload", _UNKNOWN), _body_of_payload)


def _body_of_payload(payload: Any) -> bytes:
    """A text is its UTF-8, without the quotes of JSON."""
    if isinstance(payload, bytes):
        return payload
    return (payload if isinstance(payload, str) else to_json(payload)).encode(errors="replace")


def _payloads(fields: Fields) -> Column:
    """The payloads as JSON texts, None for what is no JSON."""
    bodies = fields.get("body", _UNKNOWN)
    if _is_known(bodies):
        return _of_each(bodies, json_of_body)
    return _of_each(
        fields.get("payload", _UNKNOWN),
        lambda payload: json_of_body(payload) if isinstance(payload, bytes) else to_json(payload),
    )


def json_of_body(body: bytes) -> str | None:
    """The text of a body that is JSON. Most have no spaces around them, and need no more than one look."""
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
    """Maps of texts; a value that is no text, as JSON."""
    return _of_each(fields.get("headers", Same({})), _pairs)


def _pairs(headers: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, value if isinstance(value, str) else to_json(value)) for name, value in headers.items()]


def _is_known(column: Column) -> bool:
    return column.value is not None if isinstance(column, Same) else None not in column


def _of_each(column: Column, read: Callable[[Any], Any]) -> Column:
    return Same(read(column.value)) if isinstance(column, Same) else [read(value) for value in column]


def _field(name: str) -> Callable[[Fields], Column]:
    return lambda fields: fields.get(name, _UNKNOWN)


class _Made(NamedTuple):
    """A column of Spark: its type, the fields that it is made of, and how."""

    kind: str
    needs: tuple[str, ...]
    read: Callable[[Fields], Column]


def _as_it_is(kind: str, name: str) -> _Made:
    return _Made(kind, (name,), _field(name))


COLUMNS: dict[str, _Made] = {
    "id": _as_it_is("string", "id"),
    "queue": _as_it_is("string", "queue"),
    "body": _Made("binary", ("body", "payload"), _bodies),
    "payload": _Made("string", ("body", "payload"), _payloads),
    "headers": _Made("map<string,string>", ("headers",), _headers),
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
    """The names in the option `columns`, in their order; all without it."""
    if wanted is None:
        return list(COLUMNS)
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if not names:
        raise CallerError(f"columns={wanted!r} names no column; there are {', '.join(COLUMNS)}")
    for name in names:
        _check_known(name, f"columns={wanted!r}")
        if names.count(name) > 1:
            raise CallerError(f"columns={wanted!r} names {name} twice")
    return names


def checked(schema: StructType) -> list[str]:
    """The names of a schema, which may be the user's own: of our columns, with their types."""
    for field in schema.fields:
        _check_known(field.name, "the schema")
        kind = COLUMNS[field.name].kind
        if field.dataType.simpleString() != kind:
            raise CallerError(f"the column {field.name} is of type {kind}, not {field.dataType.simpleString()}")
    return list(schema.names)


def _check_known(name: str, where: str) -> None:
    if name not in COLUMNS:
        raise CallerError(f"{where}: there is no column {name}; there are {', '.join(COLUMNS)}")


def schema_text(names: Iterable[str]) -> str:
    """The columns as Spark's DDL."""
    return ", ".join(f"{name} {COLUMNS[name].kind}" for name in names)


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    """The same for Arrow, exactly as Spark wants it."""
    types = {
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([pa.field(name, types[COLUMNS[name].kind]) for name in names])


def fields_of(names: Iterable[str]) -> frozenset[str]:
    """What a look must tell of a job for these columns."""
    return frozenset(field for name in names for field in COLUMNS[name].needs) - {"claim"}


def to_batch(jobs: Sequence[StoredJob], schema: pa.Schema, queue: str, claims: Sequence[str]) -> pa.RecordBatch:
    """Jobs, each with its claim, as an Arrow batch."""
    fields = {**columns_of(jobs, queue, fields_of(schema.names)), "claim": claims}
    return rows_to_batch(Rows(len(jobs), fields, None), schema)


def rows_to_batch(rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    """A page of a look as an Arrow batch."""
    arrays = [_array(COLUMNS[field.name].read(rows.columns), field.type, rows.count) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(column: Column, kind: pa.DataType, count: int) -> pa.Array:
    if isinstance(column, Same) and column.value is None:
        return pa.nulls(count, kind)
    if pa.types.is_timestamp(kind):
        return _array(column, pa.int64(), count).cast(_MILLISECONDS).cast(kind)
    if not isinstance(column, Same):
        return pa.array(column, type=kind)
    if pa.types.is_map(kind):  # which Arrow can't repeat
        return pa.array([column.value] * count, type=kind)
    return pa.repeat(pa.scalar(column.value, type=kind), count)


_MILLISECONDS = pa.timestamp("ms", tz="UTC")
