"""What is to be read of the segments: slices, each a range of events in one file.

A writer numbers its events without gaps, so a range of numbers is a range of events. The end of a slice is fixed
when it is planned: what a writer adds meanwhile is of the next plan.

    plan        slices that a table does not cover; also of segments that arrived late
    between     slices after one position of each writer, up to another one
    ends        the position of each writer: its last epoch and event
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from penstock.errors import CallerError
from penstock.events.record import DEFINITION, END, KINDS_MAX, SLOT_BYTES, VERSION, Kind
from penstock.events.segment import HEADER_BYTES, BadSegment, Segment, SegmentFile, list_segments
from penstock.lake.coverage import Coverage

SLICE_EVENTS_MAX = 200_000  # about 20 MB of segment and 100 MB of Python values in a task

Position = tuple[int, int]
"""An epoch, and the number of an event in it."""


class Slice(NamedTuple):
    """Events of a segment, by their numbers; both are included."""

    path: str
    writer: str
    epoch: int
    first: int
    last: int

    @property
    def events(self) -> int:
        """Return the number of events."""
        return self.last - self.first + 1


def segment_files(directory: str | Path) -> list[SegmentFile]:
    """Return the segments of a directory; raises if it does not exist."""
    path = Path(directory)
    if not path.is_dir():
        raise CallerError(f"the directory of events must exist, got {directory}")
    return list_segments(path)


def last_seq(file: SegmentFile) -> int:
    """Return the number of the last event of a segment, also if it was lost; first_seq - 1 without events."""
    try:
        return _last_seq(file)
    except FileNotFoundError:  # its writer, or a vacuum, has deleted it since it was listed
        return file.first_seq - 1


def _last_seq(file: SegmentFile) -> int:
    whole = (file.size - HEADER_BYTES) // SLOT_BYTES
    if whole <= 0:
        return file.first_seq - 1
    with file.path.open("rb") as opened:
        opened.seek(HEADER_BYTES + (whole - 1) * SLOT_BYTES)
        slot = opened.read(SLOT_BYTES)
    if len(slot) < SLOT_BYTES or slot[0] != VERSION:  # its writer has emptied it since, or its tail is damaged
        return Segment(file.path).next_seq() - 1
    kind = slot[1]
    (seq,) = struct.unpack_from("<Q", slot, 8)
    if not file.first_seq <= seq <= file.first_seq + whole:  # some were lost, or the slot is damaged
        return Segment(file.path).next_seq() - 1
    if kind in (DEFINITION, END):
        return int(seq) - 1  # they name the next event
    if kind == Kind.LOST:
        (count,) = struct.unpack_from("<I", slot, 60)
        return int(seq) + max(1, int(count)) - 1
    return int(seq) if kind <= KINDS_MAX else int(seq) - 1


def ended_epochs(files: Iterable[SegmentFile]) -> dict[str, set[int]]:
    """Return the epochs of each writer that ended in order: no event of theirs is missing at the end."""
    last: dict[tuple[str, int], SegmentFile] = {}
    for file in files:
        last[file.writer, file.epoch] = max(file, last.get((file.writer, file.epoch), file))
    found: dict[str, set[int]] = {}
    for (writer, epoch), file in last.items():
        if _last_kind(file) == END:
            found.setdefault(writer, set()).add(epoch)
    return found


def _last_kind(file: SegmentFile) -> int:
    whole = (file.size - HEADER_BYTES) // SLOT_BYTES
    if whole <= 0:
        return -1
    try:
        with file.path.open("rb") as opened:
            opened.seek(HEADER_BYTES + (whole - 1) * SLOT_BYTES)
            slot = opened.read(2)
    except FileNotFoundError:
        return -1
    return slot[1] if slot[:1] == bytes([VERSION]) else -1


def plan(files: Iterable[SegmentFile], covered: Coverage, limit: int | None = None) -> list[Slice]:
    """Return what is not covered yet, at most `limit` events: older segments of each writer first."""
    found: list[Slice] = []
    left = limit
    for file in files:
        if not _can_be_read(file):
            continue
        last = last_seq(file)
        for first, end in covered.missing(file.writer, file.epoch, file.first_seq, last):
            for piece in _pieces(file, first, end, left):
                found.append(piece)
                left = None if left is None else left - piece.events
            if left is not None and left <= 0:
                return found
    return found


def between(files: Iterable[SegmentFile], start: Mapping[str, Position], end: Mapping[str, Position]) -> list[Slice]:
    """Return what comes after the positions of `start`, up to those of `end`."""
    found: list[Slice] = []
    for file in files:
        if file.writer not in end or not _can_be_read(file):
            continue
        epoch, seq = end[file.writer]
        from_epoch, from_seq = start.get(file.writer, (-1, 0))
        first, last = file.first_seq, last_seq(file)
        if file.epoch == from_epoch:
            first = max(first, from_seq + 1)
        if file.epoch == epoch:
            last = min(last, seq)
        if from_epoch <= file.epoch <= epoch:
            found += _pieces(file, first, last, None)
    return found


def ends(slices: Iterable[Slice]) -> dict[str, Position]:
    """Return the last position of each writer."""
    found: dict[str, Position] = {}
    for one in slices:
        found[one.writer] = max(found.get(one.writer, (0, 0)), (one.epoch, one.last))
    return found


def _can_be_read(file: SegmentFile) -> bool:
    """Whether a file is a segment that this version reads. A newer format raises an error, a torn header doesn't."""
    try:
        Segment(file.path)
    except FileNotFoundError:
        return False
    except BadSegment as problem:
        if "update Penstock" in str(problem):
            raise
        return False
    return True


def _pieces(file: SegmentFile, first: int, last: int, limit: int | None) -> Iterator[Slice]:
    if limit is not None:
        last = min(last, first + limit - 1)
    while first <= last:
        end = min(last, first + SLICE_EVENTS_MAX - 1)
        yield Slice(str(file.path), file.writer, file.epoch, first, end)
        first = end + 1
