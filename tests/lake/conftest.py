"""One Spark session for the tests of the lake, and directories of events that real writers write."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.events import EventWriter, Kind
from tests.spark.conftest import spark

__all__ = ["spark"]

NOON = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)


def us(seconds: float) -> int:
    """Return a time after noon as events have it."""
    return int((NOON + timedelta(seconds=seconds)).timestamp() * 1_000_000)


class Recorder:
    """Writes the events of one writer, at times after noon."""

    def __init__(self, directory: Path, name: str = "node-1", **options: Any) -> None:
        self.writer = EventWriter(directory, name, **options)
        self.is_open = True

    def put(self, kind: Kind, job: str | None, at: float, created: float | None = 0.0, **more: Any) -> None:
        """Record an event of the queue mail, unless `more` says otherwise."""
        fields = {"queue": "mail", "node": "node-1", **more}
        if (until := fields.pop("until", None)) is not None:
            fields["until"] = us(until)
        self.writer.record(kind, job, at=us(at), created=0 if created is None else us(created), **fields)

    def life(self, job: str, at: float, run: float = 2.0, wait: float = 1.0) -> None:
        """Record a job that was added, reserved and acked."""
        self.put(Kind.ADDED, job, at, at, size=10)
        self.put(Kind.RESERVED, job, at + wait, at, attempt=1, worker="w1")
        self.put(Kind.ACKED, job, at + wait + run, at, attempt=1, worker="w1")

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        """Write everything, and end the epoch. Again: nothing."""
        if self.is_open:
            self.is_open = False
            assert self.writer.close(30)


@pytest.fixture
def events(tmp_path: Path) -> Path:
    place = tmp_path / "events"
    place.mkdir()
    return place


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def recorder(events: Path) -> Iterator[Recorder]:
    made = Recorder(events)
    yield made
    made.close()
