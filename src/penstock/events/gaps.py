"""What is missing in a directory of events, and which segments no one will write to again."""

from __future__ import annotations

import fcntl
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from penstock.events.record import Kind
from penstock.events.segment import LOCK_NAME, Segment, SegmentFile, list_segments


class Gap(NamedTuple):
    """Events that are missing in an epoch: from `first` to `last`; None: how many is not known."""

    writer: str
    epoch: int
    first: int
    last: int | None
    reason: str


def gaps(directory: str | Path) -> list[Gap]:
    """List what is missing. The open end of an epoch counts when its writer is gone."""
    found: list[Gap] = []
    for (writer, epoch), files in groupby(list_segments(directory), key=lambda file: (file.writer, file.epoch)):
        # Looked at first: a writer that ends meanwhile leaves no gap.
        is_going_on = _is_alive(Path(directory) / writer) and epoch == _last_epoch(directory, writer)
        expected = 1
        closed = False
        for file in files:
            try:
                columns = Segment(file.path).read()
            except FileNotFoundError:  # deleted since it was listed: the next one shows what is missing
                continue
            if file.first_seq > expected:
                found.append(Gap(writer, epoch, expected, file.first_seq - 1, "the segment is gone"))
            for seq, kind, size, error in zip(columns.seq, columns.kind, columns.size, columns.error, strict=True):
                if kind == Kind.LOST and size:
                    found.append(Gap(writer, epoch, seq, seq + size - 1, error or ""))
                expected = max(expected, seq + size if kind == Kind.LOST and size else seq + 1)
            closed = columns.is_closed
        if not closed and not is_going_on:
            found.append(Gap(writer, epoch, expected, None, "the writer did not end in order"))
    return found


def finished(directory: str | Path) -> list[SegmentFile]:
    """List the segments that are not written to any more: those with a later one, and those of writers that ended."""
    done: list[SegmentFile] = []
    for writer, group in groupby(list_segments(directory), key=lambda file: file.writer):
        files = list(group)
        done += files if not _is_alive(Path(directory) / writer) else files[:-1]
    return done


def _last_epoch(directory: str | Path, writer: str) -> int:
    return max(file.epoch for file in list_segments(directory) if file.writer == writer)


def _is_alive(directory: Path) -> bool:
    """Whether a writer holds its lock."""
    try:
        with (directory / LOCK_NAME).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
