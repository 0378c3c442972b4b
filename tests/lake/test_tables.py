"""The tables are what a slow computation in plain Python makes of the same events, in whatever order they come."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.lake import tables
from penstock.lake.schemas import EVENTS, TABLES
from penstock.lake.table import use_utc
from tests.lake import slow_tables
from tests.lake.conftest import NOON

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLES = 40 if os.environ.get("PENSTOCK_LONG") else 3
JOBS = 40  # of an example: many jobs at once are cheaper than many runs of Spark
KINDS = [*slow_tables.ORDER, "kind-99"]


def random_life(random_: random.Random, name: str) -> list[slow_tables.Row]:
    """Return events of a job in any order, plausible or not: what foreign peers, crashes and clocks can make."""
    created = NOON + timedelta(seconds=random_.randrange(7200))
    is_known = random_.random() < 0.8
    at, events = created, []
    for _ in range(random_.randrange(1, 9)):
        at += timedelta(microseconds=random_.choice([0, 1, 999, 1_500_000, 61_000_000, 4_000_000_000]))
        events.append(
            {
                "at": at,
                "created": created if is_known else None,
                "job": name,
                "queue": random_.choice(["mail", "mail", "sms", None]),
                "kind": random_.choice(KINDS),
                "attempt": random_.choice([0, 0, 1, 1, 2, 3]),
                "node": random_.choice(["n1", "n2"]),
                "worker": random_.choice(["w1", "w2", None]),
                "error": random_.choice([None, None, "Timeout: slow", "Boom"]),
                "size": random_.choice([None, 0, 10]),
                "to_queue": random_.choice([None, "sms"]),
                "until": random_.choice([None, at + timedelta(seconds=90), at - timedelta(seconds=1)]),
            }
        )
    return events


def random_events(seed: int) -> list[slow_tables.Row]:
    random_ = random.Random(seed)
    events = [one for number in range(JOBS) for one in random_life(random_, f"j{number}")]
    for _ in range(5):
        at = NOON + timedelta(seconds=random_.randrange(300))
        sample = dict.fromkeys(("created", "job", "node", "worker", "error", "to_queue", "until"))
        events.append(
            {**sample, "at": at, "queue": "mail", "kind": "sample", "attempt": 0, "size": random_.randrange(9)}
        )
    random_.shuffle(events)
    for number, one in enumerate(events):
        one.update(writer=random_.choice(["n1", "n2"]), epoch=random_.choice([1, 2]), seq=number + 1, day="")
    events += random_.sample(events, 10)  # duplicates
    random_.shuffle(events)
    return events


def rows_of(frame: Any) -> list[slow_tables.Row]:
    def utc(value: Any) -> Any:
        return value.astimezone(UTC) if isinstance(value, datetime) else value

    return [{name: utc(value) for name, value in row.asDict().items()} for row in frame.collect()]


def compare(name: str, got: list[slow_tables.Row], expected: list[slow_tables.Row]) -> None:
    """Compare rows in any order, without the columns that only Spark makes."""
    key = next(schema for schema in TABLES if schema.name == name).names
    key = [column for column in key if not column.endswith("_sketch")]

    def ordered(rows: list[slow_tables.Row]) -> list[tuple[Any, ...]]:
        return sorted((tuple(row[column] for column in key) for row in rows), key=repr)

    assert ordered(got) == ordered(expected), name


def computed(spark: Any, events: list[slow_tables.Row]) -> dict[str, list[slow_tables.Row]]:
    use_utc(spark)
    frame = spark.createDataFrame([[one[name] for name in EVENTS.names] for one in events], EVENTS.spark())
    ordered = tables.in_order(frame).persist()
    deliveries = tables.attempts(ordered).persist()
    try:
        return {
            "jobs": rows_of(tables.jobs(ordered, deliveries)),
            "attempts": rows_of(deliveries),
            "metric_parts": rows_of(tables.metric_parts(ordered, deliveries, frame)),
            "worker_parts": rows_of(tables.worker_parts(deliveries)),
        }
    finally:
        deliveries.unpersist()
        ordered.unpersist()


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.generate],  # a smaller example would take minutes of Spark
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.integers(0, 2**32))
def test_tables_equal_the_slow_computation(spark: Any, seed: int) -> None:
    events = random_events(seed)
    expected = slow_tables.all_tables(events)
    for name, rows in computed(spark, events).items():
        compare(name, rows, expected[name])
