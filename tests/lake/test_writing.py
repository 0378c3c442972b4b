"""Parquet files as tasks write them: a file for each partition, row groups of limited size, statistics for the log."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock.lake import writing
from penstock.lake.schemas import ATTEMPTS, METRIC_PARTS
from penstock.lake.writing import write_table
from tests.lake.conftest import NOON


def attempts(*rows: tuple[str, str, float]) -> pa.Table:
    made = [
        dict.fromkeys(ATTEMPTS.names)
        | {"job": job, "hour": hour, "attempt": 1, "started": NOON + timedelta(seconds=at)}
        for job, hour, at in rows
    ]
    return pa.Table.from_pylist(made, ATTEMPTS.arrow())


def read(folder: Path, path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.parquet.read_table(folder / path, partitioning=None).to_pylist()
    return rows


def test_rows_of_a_partition_that_follow_each_other_share_a_file(tmp_path: Path) -> None:
    one = attempts(("j1", "2026-03-10T12", 0), ("j2", "2026-03-10T12", 1.0005))
    two = attempts(("j3", "2026-03-10T12", 2), ("j4", "2026-03-10T13", 3), ("j5", "2026-03-10T12", 4))
    written = write_table(pa.concat_tables([one, two]), tmp_path, ATTEMPTS)
    found = [(path.partition("/")[0], [row["job"] for row in read(tmp_path, path)]) for path, _ in written]
    assert found == [
        ("hour=2026-03-10T12", ["j1", "j2", "j3"]),
        ("hour=2026-03-10T13", ["j4"]),
        ("hour=2026-03-10T12", ["j5"]),
    ]
    stats = json.loads(written[0].stats)
    assert stats["numRecords"] == 3
    assert (stats["minValues"]["job"], stats["maxValues"]["job"]) == ("j1", "j3")
    assert stats["minValues"]["started"] == "2026-03-10T12:00:00.000Z"
    assert (stats["nullCount"]["job"], stats["nullCount"]["ended"]) == (0, 3)
    assert write_table(attempts(), tmp_path, ATTEMPTS) == []


def test_a_look_up_reads_a_part_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = attempts(*((f"j{number:06}", "2026-03-10T12", number) for number in range(5000)))
    monkeypatch.setattr(writing, "ROW_GROUP_BYTES", rows.nbytes // 8)
    ((path, _),) = write_table(pa.Table.from_batches(rows.to_batches(100)), tmp_path, ATTEMPTS)
    footer = pa.parquet.read_metadata(tmp_path / path)
    assert footer.num_rows == 5000
    assert 6 <= footer.num_row_groups <= 9
    assert pa.parquet.read_table(tmp_path / path, filters=[("job", "=", "j001234")], partitioning=None).num_rows == 1


def test_sketches_are_in_the_file_and_not_in_its_statistics(tmp_path: Path) -> None:
    row = dict.fromkeys(METRIC_PARTS.names) | {"queue": "mail", "minute": NOON, "hour": "x", "wait_sketch": b"\1" * 9}
    ((path, stats),) = write_table(pa.Table.from_pylist([row], METRIC_PARTS.arrow()), tmp_path, METRIC_PARTS)
    assert read(tmp_path, path)[0]["wait_sketch"] == b"\1" * 9
    assert "wait_sketch" not in json.loads(stats)["nullCount"]
