"""`make bench-lake`: its events are whole segments, and DuckDB makes the tables of them that a fold makes."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from bench.lake import on_duckdb
from bench.lake_events import write_events
from penstock.events import gaps
from penstock.lake.coverage import Coverage
from penstock.lake.segments import plan, segment_files
from penstock.lake.source import read_slice
from tests.lake import slow_tables


def as_slow(row: dict[str, Any]) -> dict[str, Any]:
    times = ("at", "created", "until")
    return {**row, **{name: row[name] and row[name].astimezone(UTC) for name in times}}


def test_duckdb_makes_the_same_tables(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    raw = tmp_path / "events"
    count = write_events(raw, 3000, days=0.1)
    assert gaps(raw) == []
    batches = [batch for one in plan(segment_files(raw), Coverage()) for batch in read_slice(one)]
    table = pa.Table.from_batches(batches)
    assert table.num_rows == count
    pa.parquet.write_table(table, tmp_path / "events.parquet")
    on_duckdb([str(tmp_path / "events.parquet")], tmp_path / "duck")
    expected = slow_tables.all_tables(as_slow(row) for row in table.to_pylist())
    compared = {  # the key, and what is compared
        "jobs": (
            ["job"],
            ["queue", "attempts", "wait_ms", "run_ms", "retry_ms", "last_worker", "last_error", "events"],
        ),
        "attempts": (["job", "attempt"], ["queue", "outcome", "wait_ms", "run_ms", "worker", "error"]),
        "metric_parts": (
            ["queue", "minute", "hour"],
            ["added", "started", "acked", "retried", "failed", "depth_change", "wait_ms_max"],
        ),
        "worker_parts": (["worker", "worked", "hour"], ["busy_ms", "jobs", "acked"]),
    }
    for name, (key, columns) in compared.items():
        table = pa.parquet.read_table(tmp_path / "duck" / name)
        got = by_key(table.to_pylist(), key)
        wanted = by_key(expected[name], key)
        # An attempt that goes on into another hour has a row of its own there, which DuckDB's tables leave out.
        assert len(got) == len(wanted) if name != "worker_parts" else got.keys() <= wanted.keys(), name
        wrong = [
            (column, row[column], wanted[at][column])
            for at, row in got.items()
            for column in columns
            if not is_close(row[column], wanted[at][column])
        ]
        assert not wrong, f"{name}: {wrong[:3]}"


def by_key(rows: list[dict[str, Any]], key: list[str]) -> dict[Any, dict[str, Any]]:
    return {
        tuple(one.timestamp() if hasattr(one := row[name], "timestamp") else one for name in key): row for row in rows
    }


def is_close(one: Any, two: Any) -> bool:
    """Whether values are the same, but for milliseconds that are cut off: DuckDB counts those that begin in between."""
    return bool(one == two or (isinstance(one, int | float) and abs(one - two) <= max(3, two // 100)))
