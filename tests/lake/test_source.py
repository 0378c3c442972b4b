"""The stream of events, driven by hand as Spark drives it: offsets, limits, backlog, refusals."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock.errors import CallerError
from penstock.events import Kind, Segment, kind_name
from penstock.lake import source
from penstock.lake.segments import Slice, segment_files
from penstock.lake.source import EventsSource, SegmentStream, read_slice
from tests.lake.conftest import Recorder

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def batch(stream: SegmentStream, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, str]]:
    """Return writer and job of the events of a batch."""
    rows: list[tuple[str, str]] = []
    for partition in stream.partitions(start, end):
        for arrow in stream.read(partition):
            rows += zip(arrow.column("writer").to_pylist(), arrow.column("job").to_pylist(), strict=True)
    return rows


def drained(stream: SegmentStream, limit: int) -> list[list[tuple[str, str]]]:
    """Return the batches of a stream until nothing is left."""
    batches = []
    start = stream.initialOffset()
    while (end := stream.latestOffset(start, ReadMaxRows(limit))) != start:
        batches.append(batch(stream, start, end))
        assert batches[-1] == batch(SegmentStream(stream._path, limit), start, end), (
            "a batch that runs again is the same"
        )
        start = end
    return batches


def add(recorder: Recorder, *jobs: str) -> None:
    for number, job in enumerate(jobs):
        recorder.put(Kind.ADDED, job, number)


def test_batches_have_each_event_once_over_writers_epochs_and_segments(events: Path) -> None:
    for epoch in range(2):
        for name in ("a", "b"):
            recorder = Recorder(events, name, segment_s=0)
            for number in range(5):
                add(recorder, f"{name}{epoch}{number}")
                recorder.flush()
            recorder.close()
    batches = drained(SegmentStream(str(events), 100), 6)
    assert [len(one) for one in batches] == [6, 6, 6, 2]
    assert {writer for writer, _ in batches[0]} == {"a", "b"}, "a long backlog of one writer delays no other"
    found = [job for one in batches for _, job in one]
    assert sorted(found) == sorted(
        f"{name}{epoch}{number}" for name in "ab" for epoch in range(2) for number in range(5)
    )
    of_a = [job for job in found if job.startswith("a")]
    assert of_a == sorted(of_a), "in the order of the writer"


def test_available_now_ends_with_what_was_there(events: Path) -> None:
    recorder = Recorder(events)
    add(recorder, "j1", "j2")
    recorder.close()
    stream = SegmentStream(str(events), 100)
    stream.prepareForTriggerAvailableNow()
    later = Recorder(events)
    add(later, "j3")
    later.close()
    end = stream.latestOffset({}, stream.getDefaultReadLimit())
    assert [job for _, job in batch(stream, {}, end)] == ["j1", "j2"]
    assert stream.latestOffset(end, stream.getDefaultReadLimit()) == end
    report = stream.reportLatestOffset()
    assert report is not None
    assert (report["backlog"], report["backlog_by_writer"]) == (1, {"node-1": 1})


def test_a_torn_record_is_of_the_next_batch(events: Path) -> None:
    recorder = Recorder(events)
    add(recorder, "j1", "j2")
    recorder.close()
    (file,) = events.glob("*/*.events")
    whole = file.read_bytes()
    file.write_bytes(whole[: -104 - 30])
    stream = SegmentStream(str(events), 100)
    first = stream.latestOffset({}, ReadMaxRows(9))
    file.write_bytes(whole)
    assert [job for _, job in batch(stream, {}, first)] == ["j1"], "the end of a batch is fixed when it is planned"
    second = stream.latestOffset(first, ReadMaxRows(9))
    assert [job for _, job in batch(stream, first, second)] == ["j2"]


BROKER_ID = "D-10f25568-u+wC6z9ONxw1rM7hg1RCdmzM-ffff"


@pytest.mark.parametrize(
    "ids",
    [
        [],
        [None],
        [BROKER_ID],
        [BROKER_ID, None, "65f0c0ffee", "x" * 24],
        ["a", "ab", "abc", "abcd", "abcde", None],
        [BROKER_ID, "i" * 60, "h\u00e9", None],
    ],
    ids=["none", "without", "broker", "some lengths", "many lengths", "texts"],
)
def test_arrow_has_what_a_segment_has(events: Path, monkeypatch: pytest.MonkeyPatch, ids: list[str | None]) -> None:
    """Slices are cut from the bytes as columns; `Segment.read` takes a value at a time."""
    random_ = random.Random(3)
    recorder = Recorder(events)
    for number in range(200 if ids else 0):
        recorder.writer.record(
            random_.choice([1, 3, 5, 21, 99]),  # also one that this version doesn't know
            random_.choice(ids),
            random_.choice([None, "mail", f"queue-{number}" * 20]),
            at=number + 1,
            created=random_.choice([0, number + 1]),
            until=random_.choice([0, 5]),
            attempt=random_.randrange(3),
            node=random_.choice([None, "n\u00f6de"]),
            worker=random_.choice([None, "w1"]),
            error=random_.choice([None, "Boom: x"]),
            to_queue=random_.choice([None, "sms"]),
            size=random_.choice([None, 0, 7]),
        )
        recorder.flush()
    recorder.close()
    monkeypatch.setattr(source, "BATCH_ROWS", 50)
    (file,) = segment_files(events)
    for first, last in ((1, 200), (1, 1), (60, 151), (200, 999)):
        columns = Segment(file.path).read(first, last - first + 1)
        found = [
            row
            for part in read_slice(Slice(str(file.path), "node-1", file.epoch, first, last))
            for row in part.to_pylist()
        ]
        names = [name for name in source._SCHEMA.names if name not in ("writer", "epoch", "kind")]
        assert [row["seq"] for row in found] == columns.seq
        assert [row["kind"] for row in found] == [kind_name(kind) for kind in columns.kind]
        for row in found:
            assert (row["writer"], row["epoch"]) == ("node-1", file.epoch)
            for name in ("at", "created", "until"):
                row[name] = None if row[name] is None else round((row[name] - EPOCH) / timedelta(microseconds=1))
        assert {name: [row[name] for row in found] for name in names} == {
            name: getattr(columns, name) for name in names
        }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "needs the option path"),
        ({"path": "x", "limit": "3"}, "must be one of path, maxEventsPerTrigger, slices, got limit"),
        ({"path": "x", "maxEventsPerTrigger": "0"}, "must be a number from 1 to 100000000, got '0'"),
        ({"path": "x", "slices": "[]"}, "the option slices is for spark.read"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], said: str) -> None:
    format_ = EventsSource(options)
    with pytest.raises(CallerError, match=said):
        format_.streamReader(None)  # type: ignore[arg-type] # the schema is not used
