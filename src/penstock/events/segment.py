"""Reads segments: one file of events of one writer.

    DIRECTORY/WRITER/EPOCH-SEQ.events    header (512 bytes), then slots of 104 bytes (`record.py`)
    DIRECTORY/WRITER/EPOCH-SEQ.bodies    bodies of jobs, if they are kept

An epoch is one run of a writer; the numbers in a file's name have 16 digits, so names sort by epoch and first event. A
writer that was killed leaves a segment with an incomplete last slot: it is read to its last whole one. A segment can be
read while it is written; a later `read` returns more.

Nothing tells a flipped bit from what was written, so what can't be is passed over: a slot whose number is beyond those
that the file can have ends the segment as a torn tail does, an event with an impossible time is left out, and an
impossible `created` or `until` is unknown. Gaps in the numbers show it.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import compress
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.errors import PenstockError
from penstock.events.record import (
    DEFINITION,
    DEFINITION_RECORD,
    END,
    HALVES,
    JOB_BYTES,
    JOB_IS_TEXT,
    KINDS_MAX,
    SIZE_UNKNOWN,
    SLOT_BYTES,
    VERSION,
    WORDS,
    Kind,
)

MAGIC: Final = b"PENSTKEV"
BODIES_MAGIC: Final = b"PENSTKBO"
FORMAT: Final = 1  # of the segment; the records have a version of their own
HEADER: Final = struct.Struct("<8sHHHHQQqH")  # magic, format, header bytes, slot bytes, 0, epoch, first seq, at, name
HEADER_BYTES: Final = 512
WRITER_BYTES_MAX: Final = 128  # a directory's name
SUFFIX: Final = ".events"
BODIES_SUFFIX: Final = ".bodies"
LOCK_NAME: Final = "lock"
BODY_ENTRY: Final = struct.Struct("<QI")  # seq of the event `added`, bytes of the body that follows
JOB_WORD: Final = 64  # where the job's id begins in a slot
TIME_US_MAX: Final = 253_402_300_799_999_999  # the end of the year 9999, the last that Python and Spark have


class BadSegment(PenstockError):
    """A file is not a segment of events, or one of a newer format."""


class SegmentFile(NamedTuple):
    """A segment in a directory."""

    writer: str
    epoch: int
    first_seq: int
    path: Path
    size: int


class Slots(NamedTuple):
    """Slots of a segment as they are in its file: events, and definitions of texts."""

    data: bytes
    texts: dict[int, str]  # of the whole segment, by their number


@dataclass(slots=True)
class Columns:
    """Events of one segment, a list for each field. Times are microseconds since 1970, UTC."""

    writer: str
    epoch: int
    seq: list[int]
    at: list[int]
    created: list[int | None]
    until: list[int | None]
    job: list[str | None]
    queue: list[str | None]
    kind: list[int]
    attempt: list[int]
    node: list[str | None]
    worker: list[str | None]
    error: list[str | None]
    size: list[int | None]
    to_queue: list[str | None]
    is_closed: bool = False  # the segment holds the end of its epoch: no event came after its last one

    def __len__(self) -> int:
        return len(self.seq)


class Segment:
    """A segment file. Only its header is read at first."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self.path.open("rb") as file:
            head = file.read(HEADER_BYTES)
        if len(head) < HEADER.size:
            raise BadSegment(f"{self.path} must begin with a header of {HEADER_BYTES} bytes, got {len(head)} bytes")
        magic, form, header_bytes, slot_bytes, _, epoch, first_seq, at, name_bytes = HEADER.unpack_from(head)
        if magic != MAGIC:
            raise BadSegment(f"{self.path} is not a segment of events: it begins with {magic!r}")
        if form != FORMAT or slot_bytes != SLOT_BYTES:
            raise BadSegment(f"{self.path} has format {form}, and this version reads format {FORMAT}: update Penstock")
        self.writer = head[HEADER.size : HEADER.size + name_bytes].decode("utf-8", "replace")
        self.epoch: int = epoch
        self.first_seq: int = first_seq
        self.at: int = at
        self._header_bytes: int = header_bytes

    def read(self, start_seq: int = 0, limit: int | None = None) -> Columns:
        """Return the events from a number on, at most `limit` of them."""
        slots, kinds, seqs = self._slots()
        end = len(kinds)
        first = bisect_left(seqs, start_seq)
        texts = _texts(slots, kinds)
        events = bytearray(kind <= KINDS_MAX for kind in kinds) if _has_others(kinds) else None
        if limit is not None:
            end = _end_of(events, first, end, limit)
        columns = self._columns(slots[first * SLOT_BYTES : end * SLOT_BYTES], texts, events and events[first:end])
        if not _can_be_times(columns.at):
            _leave_out(columns, [0 <= at <= TIME_US_MAX for at in columns.at])
        columns.is_closed = END in kinds
        return columns

    def slots(self, first_seq: int, last_seq: int) -> Slots:
        """Return the slots from one number to another, both included."""
        slots, kinds, seqs = self._slots()
        first, end = bisect_left(seqs, first_seq), bisect_right(seqs, last_seq)
        return Slots(slots[first * SLOT_BYTES : end * SLOT_BYTES], _texts(slots, kinds))

    def is_closed(self) -> bool:
        """Whether the writer ended in order: no event came after those of this segment."""
        _, kinds, _ = self._slots()
        return END in kinds

    def next_seq(self) -> int:
        """Return the number after the last event, counting those that `lost` stands for."""
        slots, kinds, seqs = self._slots()
        for at in range(len(kinds) - 1, -1, -1):
            if kinds[at] == Kind.LOST:
                (size,) = struct.unpack_from("<I", slots, at * SLOT_BYTES + 60)
                return int(seqs[at]) + int(size)
            if kinds[at] <= KINDS_MAX:
                return int(seqs[at]) + 1
        return self.first_seq

    def bodies(self) -> Iterator[tuple[int, bytes]]:
        """Iterate the bodies that were kept, each with the number of the event that added its job."""
        path = self.path.with_suffix(BODIES_SUFFIX)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        if not data.startswith(BODIES_MAGIC):
            return
        at = len(BODIES_MAGIC)
        while at + BODY_ENTRY.size <= len(data):
            seq, length = BODY_ENTRY.unpack_from(data, at)
            at += BODY_ENTRY.size
            if at + length > len(data):
                return
            yield seq, data[at : at + length]
            at += length

    def _slots(self) -> tuple[bytes, bytes, array[int]]:
        """Return the whole slots, their kinds and their numbers."""
        with self.path.open("rb") as file:
            file.seek(self._header_bytes)
            data = file.read()
        whole = len(data) // SLOT_BYTES
        versions = data[: whole * SLOT_BYTES : SLOT_BYTES]
        if versions.count(VERSION) != whole:  # a machine that crashed may leave zeros
            whole = next(at for at, version in enumerate(versions) if version != VERSION)
        data = data[: whole * SLOT_BYTES]
        kinds, seqs = data[1::SLOT_BYTES], numbers_in("Q", data)[1::WORDS]
        low, high = self.first_seq, self.first_seq + whole
        if seqs and not (low <= min(seqs) and max(seqs) <= high):  # also where `lost` stands for many
            high += _lost(data, kinds)
            whole = next((at for at, seq in enumerate(seqs) if not low <= seq <= high), whole)
            data, kinds, seqs = data[: whole * SLOT_BYTES], kinds[:whole], seqs[:whole]
        return data, kinds, seqs

    def _columns(self, slots: bytes, texts: dict[int, str], events: bytearray | None) -> Columns:
        words, halves = numbers_in("q", slots), numbers_in("I", slots)

        def whole(column: array[int]) -> list[int]:
            return list(compress(column, events)) if events else column.tolist()

        def optional(column: array[int], null: int) -> list[int | None]:
            numbers = whole(column)
            return [None if number == null else number for number in numbers] if null in numbers else list(numbers)

        def times(column: array[int]) -> list[int | None]:
            found = optional(column, 0)
            if _can_be_times([time for time in found if time is not None] if None in found else found):
                return found
            return [time if time is not None and 0 < time <= TIME_US_MAX else None for time in found]

        def text(at: int) -> list[str | None]:
            numbers = whole(halves[at::HALVES])
            if not any(numbers):
                return [None] * len(numbers)
            get = texts.get
            return [get(number) for number in numbers]

        return Columns(
            writer=self.writer,
            epoch=self.epoch,
            seq=whole(words[1::WORDS]),
            at=whole(words[2::WORDS]),
            created=times(words[3::WORDS]),
            until=times(words[4::WORDS]),
            job=jobs_in(slots, texts, events),
            queue=text(10),
            kind=list(compress(slots[1::SLOT_BYTES], events)) if events else list(slots[1::SLOT_BYTES]),
            attempt=whole(halves[1::HALVES]),
            node=text(11),
            worker=text(12),
            error=text(13),
            size=optional(halves[15::HALVES], SIZE_UNKNOWN),
            to_queue=text(14),
        )


def list_segments(directory: str | Path) -> list[SegmentFile]:
    """List the segments of all writers, by writer, epoch and first event. Other files are passed over."""
    found: list[SegmentFile] = []
    for path in Path(directory).glob(f"*/*{SUFFIX}"):
        epoch, _, seq = path.stem.partition("-")
        if not (epoch.isdecimal() and seq.isdecimal()):
            continue
        try:
            size = path.stat().st_size
        except FileNotFoundError:  # deleted since it was listed
            continue
        if size >= HEADER_BYTES:
            found.append(SegmentFile(path.parent.name, int(epoch), int(seq), path, size))
    return sorted(found)


def segment_name(epoch: int, first_seq: int) -> str:
    """Return the name of a segment's file."""
    return f"{epoch:016d}-{first_seq:016d}{SUFFIX}"


def header(writer: str, epoch: int, first_seq: int, at_us: int) -> bytes:
    """Return the header of a segment."""
    name = writer.encode()
    head = HEADER.pack(MAGIC, FORMAT, HEADER_BYTES, SLOT_BYTES, 0, epoch, first_seq, at_us, len(name))
    return (head + name).ljust(HEADER_BYTES, b"\0")


def numbers_in(form: str, data: bytes) -> array[int]:
    """Return slots as numbers, in the order of this machine's bytes."""
    numbers = array(form)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _has_others(kinds: bytes) -> bool:
    """Whether there are slots that don't hold events."""
    return DEFINITION in kinds or END in kinds or any(kind > KINDS_MAX for kind in set(kinds))


def _lost(slots: bytes, kinds: bytes) -> int:
    """Return how many events the slots of the kind `lost` stand for."""
    count, at = 0, kinds.find(Kind.LOST)
    while at >= 0:
        (size,) = struct.unpack_from("<I", slots, at * SLOT_BYTES + 60)
        count += size
        at = kinds.find(Kind.LOST, at + 1)
    return count


def _can_be_times(times: Sequence[Any]) -> bool:
    return not times or (min(times) >= 0 and max(times) <= TIME_US_MAX)


def _leave_out(columns: Columns, kept: list[bool]) -> None:
    for one in fields(columns):
        column = getattr(columns, one.name)
        if isinstance(column, list):
            setattr(columns, one.name, list(compress(column, kept)))


def _end_of(events: bytearray | None, first: int, end: int, limit: int) -> int:
    """Return the slot after the one with the last event that is wanted."""
    if events is None:
        return min(end, first + limit)
    at = min(end, first + limit)
    while at < end and (missing := limit - sum(events[first:at])) > 0:
        at = min(end, at + missing)
    return at


def _texts(slots: bytes, kinds: bytes) -> dict[int, str]:
    """Return the texts that are defined, by their number."""
    parts: dict[int, bytes] = {}
    lengths: dict[int, int] = {}
    at = kinds.find(DEFINITION)
    while at >= 0:
        _, _, length, number, _, part = DEFINITION_RECORD.unpack_from(slots, at * SLOT_BYTES)
        parts[number] = parts.get(number, b"") + part
        lengths[number] = length
        at = kinds.find(DEFINITION, at + 1)
    return {number: part[: lengths[number]].decode("utf-8", "replace") for number, part in parts.items()}


def jobs_in(slots: bytes, texts: dict[int, str], events: bytearray | None) -> list[str | None]:
    """Return the ids of the jobs of slots; of those that hold events, if these are given."""
    lengths = slots[2::SLOT_BYTES]
    text = slots.decode("latin-1")  # ids in a record are ASCII
    starts = range(JOB_WORD, len(text), SLOT_BYTES)
    jobs: list[str | None]
    if not events and lengths.count(JOB_BYTES) == len(lengths):  # the broker's ids
        return [text[at : at + JOB_BYTES] for at in starts]
    jobs = [text[at : at + length] or None for at, length in zip(starts, lengths, strict=True)]
    index = lengths.find(JOB_IS_TEXT)
    while index >= 0:
        at = starts[index]
        jobs[index] = texts.get(int.from_bytes(slots[at : at + 4], "little"))
        index = lengths.find(JOB_IS_TEXT, index + 1)
    return list(compress(jobs, events)) if events else jobs
