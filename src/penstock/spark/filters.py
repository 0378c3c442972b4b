"""What of a query's WHERE the store does itself.

Spark hands over those parts of a condition, joined by AND, that it can name: `state = 'ready'`, `tries > 3`, `id IN
(...)`. Of these a look takes what its store knows how to do (`compares` of the driver); states and queues it always
chooses itself. All of them are checked by Spark once more, so that a store only ever leaves out what nobody wants.

It is done for a look with the option `pushdown`, and not by itself: Spark has it off, takes offence at a reader that
could while it is off, and, as of 4.3, gives one answer to all uses of a table in a query. Of a table that a query reads
twice, with different filters (a union or a join with itself), the last filter would count for both, and rows be lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)

from penstock.queues.scan import IDS_MAX, Limit

SIGNS: dict[type[Filter], str] = {
    EqualTo: "=",
    EqualNullSafe: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Choice(NamedTuple):
    """What filters leave of a look; None is everything."""

    states: frozenset[str] | None = None
    queues: frozenset[str] | None = None
    ids: frozenset[str] | None = None
    limits: tuple[Limit, ...] = ()


def choice_of(filters: Iterable[Filter], compares: frozenset[str], all_states: frozenset[str]) -> Choice:
    """What filters choose, as far as a look can do it."""
    chosen = Choice()
    for one in filters:
        if isinstance(one, Not):
            if isinstance(one.child, EqualTo) and one.child.attribute == ("state",):
                chosen = _meet(chosen, "states", all_states - {one.child.value})
            continue
        column, values = _values(one)
        if values is not None and column in ("state", "queue"):
            chosen = _meet(chosen, f"{column}s", values)
        elif values is not None and column == "id" and "id" in compares and len(values) <= IDS_MAX:
            chosen = _meet(chosen, "ids", values)
        else:
            limit = _limit(one, compares)
            chosen = chosen if limit is None else chosen._replace(limits=(*chosen.limits, limit))
    return chosen


def _values(one: Filter) -> tuple[str, frozenset[Any] | None]:
    """The column, and the texts that it may have, if the filter says so."""
    if not isinstance(one, EqualTo | EqualNullSafe | In) or len(one.attribute) != 1:
        return "", None
    values = one.value if isinstance(one, In) else (one.value,)
    # An entry that is null is equal to nothing.
    texts = frozenset(value for value in values if isinstance(value, str))
    is_text = len(texts) == len({value for value in values if value is not None}) and texts
    return one.attribute[0], texts if is_text else None


def _meet(chosen: Choice, name: str, values: frozenset[str]) -> Choice:
    """A condition more on the same column."""
    before: frozenset[str] | None = getattr(chosen, name)
    changed: dict[str, Any] = {name: values if before is None else before & values}
    return chosen._replace(**changed)


def _limit(one: Filter, compares: frozenset[str]) -> Limit | None:
    """A comparison of a number or a time that the store can do."""
    sign = SIGNS.get(type(one))
    path: tuple[str, ...] = getattr(one, "attribute", ())
    value = getattr(one, "value", None)
    if sign is None or len(path) != 1 or path[0] not in compares - {"id"}:
        return None
    if isinstance(value, datetime) and value.tzinfo is not None:
        return Limit(path[0], sign, (value - _EPOCH) // timedelta(microseconds=1))
    if isinstance(value, int) and not isinstance(value, bool):
        return Limit(path[0], sign, value)
    return None
