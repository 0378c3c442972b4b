"""What a row's values are in JSON, decided by their types before any task runs.

    null, booleans, numbers, texts   as they are; NaN and infinity are refused
    timestamp                        2026-01-31T12:00:00.000Z, in UTC; without a time zone, without the Z
    date                             2026-01-31
    decimal                          a number; one that has more digits than JSON's readers keep is refused
    array, map, struct               list, object, object; the keys of a map are texts or whole numbers

All else (binary, intervals, variants) JSON has no form for. Whoever wants one casts it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any

from pyspark.sql import types as t

from penstock.errors import CallerError

Read = Callable[[Any], Any]

WHOLE = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
TEXTS = (t.StringType, t.CharType, t.VarcharType)
NUMBERS = (*WHOLE, t.FloatType, t.DoubleType, t.DecimalType)
_AS_IT_IS = (t.NullType, t.BooleanType, *WHOLE, *TEXTS)


def reader_of(kind: t.DataType, column: str) -> Read | None:
    """How a value, as Arrow gives it, becomes one that JSON has; None if it is one already."""
    if isinstance(kind, _AS_IT_IS):
        return None
    for types, make in _READERS.items():
        if isinstance(kind, types):
            return _unless_null(make(kind, column))
    raise CallerError(
        f"the column {column} is of type {kind.simpleString()}, which JSON lacks: cast it to another, or leave it out"
    )


def _unless_null(read: Read) -> Read:
    return lambda value: None if value is None else read(value)


def _float(kind: t.DataType, column: str) -> Read:
    def read(value: float) -> float:
        if not isfinite(value):
            raise CallerError(f"the column {column} has the value {value}, which JSON lacks: make it null, or a text")
        return value

    return read


def _decimal(kind: t.DataType, column: str) -> Read:
    def read(value: Decimal) -> int | float:
        if value == value.to_integral_value():
            return int(value)
        number = float(value)
        if Decimal(repr(number)) != value:
            raise CallerError(
                f"the column {column} has the value {value}, of which readers of JSON would lose digits: cast it to "
                "string, or to double"
            )
        return number

    return read


def _timestamp(kind: t.DataType, column: str) -> Read:
    def read(value: datetime) -> str:
        fine = "microseconds" if value.microsecond % 1000 else "milliseconds"
        if value.tzinfo is None:
            return value.isoformat(timespec=fine)
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=fine) + "Z"

    return read


def _date(kind: t.DataType, column: str) -> Read:
    return date.isoformat


def _array(kind: t.DataType, column: str) -> Read:
    assert isinstance(kind, t.ArrayType)
    read = reader_of(kind.elementType, f"{column}[]")
    return list if read is None else lambda values: [read(value) for value in values]


def _map(kind: t.DataType, column: str) -> Read:
    assert isinstance(kind, t.MapType)
    if not isinstance(kind.keyType, (*TEXTS, *WHOLE)):
        raise CallerError(
            f"the column {column} is of type {kind.simpleString()}, and the keys of a JSON object are texts: cast them"
        )
    read = reader_of(kind.valueType, f"{column}[]") or (lambda value: value)
    return lambda pairs: {str(key): read(value) for key, value in pairs}


def _struct(kind: t.DataType, column: str) -> Read:
    assert isinstance(kind, t.StructType)
    readers = [(field.name, reader_of(field.dataType, f"{column}.{field.name}")) for field in kind.fields]
    odd = [(name, read) for name, read in readers if read is not None]

    def read_row(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, **{name: read(row[name]) for name, read in odd}}

    return read_row


_READERS: dict[type[t.DataType] | tuple[type[t.DataType], ...], Callable[[t.DataType, str], Read]] = {
    (t.FloatType, t.DoubleType): _float,
    t.DecimalType: _decimal,
    (t.TimestampType, t.TimestampNTZType): _timestamp,
    t.DateType: _date,
    t.ArrayType: _array,
    t.MapType: _map,
    t.StructType: _struct,
}
