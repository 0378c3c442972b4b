"""Filter pushdown: the parts of a query's WHERE that the store evaluates itself.

Spark passes on the parts of a condition, joined by AND, that it can express: `state = 'ready'`, `tries > 3`, `id IN
(...)`. A batch read uses those that its store supports (`Store.compares`), and always states and queues. Spark
checks all of them again, so a store only ever leaves out rows that the query would drop.

It is used only with the option `pushdown`. Spark has it off by default, rejects a reader that supports it while it is
off, and, as of 4.3, uses one answer for all uses of a table in a query: if a query reads a table twice with different
filters (a union or a join with itself), the last filter would count for both, and rows would be missing.
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


class Selection(NamedTuple):
    """What the filters leave of a batch read; None is everything."""

    states: frozenset[str] | None = None
    queues: frozenset[str] | None = None
    ids: frozenset[str] | None = None
    limits: tuple[Limit, ...] = ()


def selection_of(filters: Iterable[Filter], compares: frozenset[str], all_states: frozenset[str]) -> Selection:
    """Return what the filters choose, as far as the store can do it."""
    chosen = Selection()
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
    """Return the column, and the texts that it may have if the filter lists them."""
    if not isinstance(one, EqualTo | EqualNullSafe | In) or len(one.attribute) != 1:
        return "", None
    values = one.value if isinstance(one, In) else (one.value,)
    # Null is equal to nothing.
    texts = frozenset(value for value in values if isinstance(value, str))
    is_text = len(texts) == len({value for value in values if value is not None}) and texts
    return one.attribute[0], texts if is_text else None


def _meet(chosen: Selection, name: str, values: frozenset[str]) -> Selection:
    """Return a choice with one more condition on a column."""
    before: frozenset[str] | None = getattr(chosen, name)
    changed: dict[str, Any] = {name: values if before is None else before & values}
    return chosen._replace(**changed)


def _limit(one: Filter, compares: frozenset[str]) -> Limit | None:
    """Return a comparison of a number or a time that the store can do."""
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
