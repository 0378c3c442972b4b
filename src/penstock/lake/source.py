"""`format("penstock_events")`: segments of events as a source of Spark.

>>> spark.readStream.format("penstock_events").option("path", "/var/lib/penstock/events").load()
>>> spark.read.format("penstock_events").load("/var/lib/penstock/events").groupBy("kind").count()

    path                   the directory of the segments, with a directory for each writer in it
    maxEventsPerTrigger    maximum number of events in a batch of a stream (500,000)
    slices                 batch reads: a JSON list of slices in place of the whole directory; `build` uses it

The offset of a stream is {writer: [epoch, seq]}: the last event of each writer. Each slice of a segment (`segments`)
is a partition; its events come as Arrow. A segment that arrives after later ones of its writer is behind the offset,
and a stream does not read it; `penstock lake build` does. `reportLatestOffset` shows the backlog of each writer in
the progress.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import compute
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.errors import CallerError
from penstock.events.record import HALVES, JOB_BYTES, KINDS_MAX, SIZE_UNKNOWN, SLOT_BYTES, WORDS, kind_name
from penstock.events.segment import JOB_WORD, TIME_US_MAX, Segment, Slots, jobs_in, numbers_in
from penstock.lake.schemas import ARROW, EVENT_COLUMNS
from penstock.lake.segments import Position, Slice, between, ends, last_seq, plan, segment_files
from penstock.spark.errors import without_traceback
from penstock.spark.refused import refused_by_reader

EVENTS_PER_TRIGGER = 500_000  # about 50 MB of segments: some seconds of work
EVENTS_PER_TRIGGER_MAX = 100_000_000
BATCH_ROWS = 50_000  # of Arrow: beyond that nothing is gained, and memory grows
ID_LENGTHS_MAX = 4  # of ids that are cut from the slots together, once for each length
OPTIONS = ("path", "maxEventsPerTrigger", "slices")

Offset = dict[str, list[int]]

_KIND_NAMES = pa.array([kind_name(kind) for kind in range(256)])
_SCHEMA = pa.schema([pa.field(column.name, ARROW[column.type]) for column in EVENT_COLUMNS])


def read_slice(one: Slice) -> Iterator[pa.RecordBatch]:
    """Yield the events of a slice, in order."""
    try:
        segment = Segment(one.path)
        slots = segment.slots(one.first, one.last)
    except FileNotFoundError as problem:
        raise CallerError(f"the segment {one.path} was deleted before its events were read") from problem
    for at in range(0, len(slots.data), BATCH_ROWS * SLOT_BYTES):
        batch = to_batch(slots._replace(data=slots.data[at : at + BATCH_ROWS * SLOT_BYTES]), segment)
        if batch.num_rows:
            yield batch


def to_batch(slots: Slots, segment: Segment) -> pa.RecordBatch:
    """Return the events of slots as Arrow, in the columns of the source. No event becomes a Python value."""
    data = slots.data
    count = len(data) // SLOT_BYTES
    words, halves = numbers_in("q", data), numbers_in("I", data)
    kinds = pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(data[1::SLOT_BYTES])])
    numbers, texts = pa.array(list(slots.texts), pa.uint32()), pa.array(list(slots.texts.values()), pa.string())

    def whole(at: int) -> pa.Array:
        return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(words[at::WORDS])])

    def half(at: int) -> pa.Array:
        return pa.Array.from_buffers(pa.uint32(), count, [None, pa.py_buffer(halves[at::HALVES])])

    def text(at: int) -> pa.Array:
        return texts.take(compute.index_in(half(at), numbers))

    columns = {
        "writer": pa.repeat(pa.scalar(segment.writer), count),
        "epoch": pa.repeat(pa.scalar(segment.epoch, pa.int64()), count),
        "seq": whole(1),
        "at": whole(2),
        "created": _time(whole(3)),
        "until": _time(whole(4)),
        "job": _jobs(slots, count),
        "queue": text(10),
        "kind": _KIND_NAMES.take(kinds),
        "attempt": half(1),
        "node": text(11),
        "worker": text(12),
        "error": text(13),
        "size": _unless(half(15), SIZE_UNKNOWN),
        "to_queue": text(14),
    }
    batch = pa.RecordBatch.from_arrays(
        [columns[name].cast(_SCHEMA.field(name).type) for name in _SCHEMA.names], schema=_SCHEMA
    )
    is_event = compute.and_(compute.less_equal(kinds, KINDS_MAX), compute.less_equal(whole(2), TIME_US_MAX))
    return batch.filter(compute.and_(is_event, compute.greater_equal(whole(2), 0)))


def _time(values: pa.Array) -> pa.Array:
    """Return times, with nulls for those that are unknown or impossible."""
    is_time = compute.and_(compute.greater(values, 0), compute.less_equal(values, TIME_US_MAX))
    return compute.if_else(is_time, values, pa.scalar(None, values.type))


def _unless(values: pa.Array, null: int) -> pa.Array:
    """Return numbers, with nulls in the place of one of them."""
    return compute.if_else(compute.equal(values, null), pa.scalar(None, values.type), values)


def _jobs(slots: Slots, count: int) -> pa.Array:
    """Return the ids of jobs. Those of one writer mostly have one length, and are cut from the slots together."""
    lengths = slots.data[2::SLOT_BYTES]
    different = sorted(set(lengths) - {0})
    if len(different) > ID_LENGTHS_MAX or different[-1:] > [JOB_BYTES]:  # also JOB_IS_TEXT
        return pa.array(jobs_in(slots.data, slots.texts, None), pa.string())
    cut = pa.Array.from_buffers(pa.binary(SLOT_BYTES), count, [None, pa.py_buffer(slots.data)])
    own = pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(lengths)])
    jobs = pa.nulls(count, pa.binary())
    for length in different:
        ids = compute.binary_slice(cut, JOB_WORD, JOB_WORD + length).cast(pa.binary())
        jobs = compute.if_else(compute.equal(own, length), ids, jobs)
    try:
        return jobs.cast(pa.string())
    except pa.ArrowInvalid:  # bytes that no writer writes: a damaged file
        return pa.array(jobs_in(slots.data, slots.texts, None), pa.string())


@without_traceback
class EventsSource(DataSource):
    """Segments of events for Spark."""

    @classmethod
    def name(cls) -> str:
        return "penstock_events"

    def schema(self) -> str:
        return ", ".join(f"{column.name} {column.type}" for column in EVENT_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check()
        return SegmentReader(self._path(), self.options.get("slices"))

    @refused_by_reader
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        self._check()
        if "slices" in self.options:
            raise CallerError("the option slices is for spark.read, not for spark.readStream: leave it out")
        return SegmentStream(self._path(), self._limit())

    def _check(self) -> None:
        known = {name.lower() for name in OPTIONS} | {"checkpointlocation"}
        unknown = sorted(name for name in self.options if name.lower() not in known)
        if unknown:
            raise CallerError(
                f"an option of the format penstock_events must be one of {', '.join(OPTIONS)}, got {', '.join(unknown)}"
            )

    def _path(self) -> str:
        path = self.options.get("path")
        if not path:
            raise CallerError("the format penstock_events needs the option path: the directory of the events")
        return str(path)

    def _limit(self) -> int:
        text = self.options.get("maxEventsPerTrigger", str(EVENTS_PER_TRIGGER))
        if not text.isdecimal() or not 1 <= int(text) <= EVENTS_PER_TRIGGER_MAX:
            raise CallerError(
                f"the option maxEventsPerTrigger must be a number from 1 to {EVENTS_PER_TRIGGER_MAX}, got {text!r}"
            )
        return int(text)


@without_traceback
class SegmentReader(DataSourceReader):
    """The reader of a batch."""

    def __init__(self, path: str, slices: str | None) -> None:
        self._path = path
        self._slices = None if slices is None else [Slice(*one) for one in json.loads(slices)]

    def partitions(self) -> list[InputPartition]:
        from penstock.lake.coverage import Coverage  # noqa: PLC0415 - tasks don't plan

        slices = plan(segment_files(self._path), Coverage()) if self._slices is None else self._slices
        return [InputPartition(one) for one in slices] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is not None:
            yield from read_slice(Slice(*partition.value))


@without_traceback
class SegmentStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream."""

    def __init__(self, path: str, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._until: dict[str, Position] | None = None  # with availableNow: where the run ends
        self._last: Offset = {}

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._until = self._now()

    def _now(self) -> dict[str, Position]:
        """Return the last position of each writer."""
        found: dict[str, Position] = {}
        for file in segment_files(self._path):
            found[file.writer] = max(found.get(file.writer, (0, 0)), (file.epoch, last_seq(file)))
        return found

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        until = self._now() if self._until is None else self._until
        slices = between(segment_files(self._path), _positions(start), until)
        chosen = slices if not isinstance(limit, ReadMaxRows) else _shares(slices, limit.max_rows)
        self._last = {**start, **{writer: list(position) for writer, position in ends(chosen).items()}}
        self._last = dict(sorted(self._last.items()))  # Spark compares offsets as text
        return self._last

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        left = between(segment_files(self._path), _positions(self._last), self._now())
        backlog: dict[str, int] = {}
        for one in left:
            backlog[one.writer] = backlog.get(one.writer, 0) + one.events
        return {"offset": self._last, "backlog": sum(backlog.values()), "backlog_by_writer": backlog}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        slices = between(segment_files(self._path), _positions(start), _positions(end))
        return [InputPartition(one) for one in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read_slice(Slice(*partition.value))


def _shares(slices: list[Slice], limit: int) -> list[Slice]:
    """Return the first slices of each writer, up to the limit in all: a writer with a long backlog delays no other."""
    writers = {one.writer for one in slices}
    left = dict.fromkeys(writers, max(1, limit // max(1, len(writers))))
    chosen = []
    for one in slices:
        cut = one._replace(last=min(one.last, one.first + left[one.writer] - 1))
        if cut.events > 0:
            chosen.append(cut)
            left[one.writer] -= cut.events
    return chosen


def _positions(offset: Mapping[str, list[int]]) -> dict[str, Position]:
    return {writer: (epoch, seq) for writer, (epoch, seq) in offset.items()}
