"""The column `created` is filled, in a batch read and in a stream. No session: readers are driven by hand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock import blocking
from penstock.queues.capabilities import Capability
from penstock.spark.scan import QueueScan
from penstock.spark.settings import read_settings
from penstock.spark.streaming import QueueStream

CLOCKS = timedelta(seconds=1)  # by which times may be rounded

URLS: dict[str, Callable[[pytest.FixtureRequest], str]] = {
    "sqlite": lambda request: f"sqlite:///{request.getfixturevalue('tmp_path')}/jobs.db",
    "fsq": lambda request: f"fsq:{request.getfixturevalue('tmp_path')}/root",
}


@pytest.fixture(params=URLS)
def any_url(request: pytest.FixtureRequest) -> str:
    return URLS[request.param](request)


def looked_at(settings: Any) -> list[datetime]:
    look = QueueScan(settings, ["created"])
    return [when for part in look.partitions() for batch in look.read(part) for when in batch["created"].to_pylist()]


def streamed(settings: Any) -> list[datetime]:
    reader = QueueStream(settings, ["created"])
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(10))
        parts = reader.partitions(start, end)
        return [when for part in parts for batch in reader.read(part) for when in batch["created"].to_pylist()]
    finally:
        reader.stop()


@pytest.mark.system
def test_a_row_says_when_its_job_was_pushed(any_url: str) -> None:
    settings = read_settings({"url": any_url, "queue": "created"})
    before = datetime.now(UTC) - CLOCKS
    with blocking.connect(any_url) as store:
        store.queue("created").push("x")
        has_claims = Capability.CLAIM in store.capabilities
    after = datetime.now(UTC) + CLOCKS
    found = looked_at(settings) + (streamed(settings) if has_claims else [])
    assert len(found) == 1 + has_claims
    assert all(when is not None and before <= when <= after for when in found), found
