"""Events: what happened to each job, in segments of binary records. No third-party import.

`record` is the layout of one event, `segment` reads a file of them, `writer` writes them, `gaps`
says what is missing.
"""

from penstock.events.gaps import Gap, finished, gaps
from penstock.events.record import Kind, kind_name
from penstock.events.segment import BadSegment, Columns, Segment, SegmentFile, list_segments
from penstock.events.writer import EventWriter

__all__ = [
    "BadSegment",
    "Columns",
    "EventWriter",
    "Gap",
    "Kind",
    "Segment",
    "SegmentFile",
    "finished",
    "gaps",
    "kind_name",
    "list_segments",
]
