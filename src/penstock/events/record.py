"""Event records: 104 bytes each, little-endian.

A segment is a header and then slots of the same size, so that a reader cuts it into columns without looking at each
one. Text that repeats (queues, nodes, workers, errors) stands in a record as a number; a slot of the kind DEFINITION
that comes earlier in the same segment says what the number means. Number 0 stands for no text. A job's id is in the
record itself where it fits.

    bytes   field       meaning
    0       version     1; a slot with another version ends the segment
    1       kind        `Kind`, or DEFINITION, or END
    2       id_length   of the job's id; 0: there is none; 255: the id is a text (it is
                        longer than 40 bytes, or not ASCII), and its number begins `job`
    3       flags       0
    4..7    attempt     delivery of the job, from 1; 0 if it is not known, or was not delivered yet
    8..15   seq         number of the event in its epoch, from 1
    16..23  at          when it happened, in microseconds since 1970, UTC
    24..31  created     when the job was created, likewise; 0: unknown
    32..39  until       what the event waits for: the end of the lease (reserved, extended), the time at which the job
                        becomes ready (added, nacked, requeued, with a delay); 0: nothing
    40..43  queue       number of a text, as are the next four
    44..47  node
    48..51  worker
    52..55  error
    56..59  to_queue
    60..63  size        of the body, in bytes; of `sample`, jobs in the queue; of `lost`, events. 2^32 - 1: unknown
    64..103 job

    A DEFINITION has its own fields from byte 2 on: length of the text (2 bytes), number (4 bytes), the seq of the next
    event (8 bytes), and 88 bytes of text. A longer text goes on in the slots that follow.
    An END is the last slot of an epoch that was closed in order; its seq is the number that the next event would have.

Kinds never change their number. Readers keep kinds that they don't know.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

VERSION: Final = 1
RECORD: Final = struct.Struct("<BBBBIQqqqIIIIII40s")
# The same record with what events have in common taken together, which packs four times as fast: bytes 0 to 7 as one
# number (`head_of`), and the numbers of the five texts as they are.
QUICK_RECORD: Final = struct.Struct("<QQqqq20sI40s")
TEXTS: Final = struct.Struct("<IIIII")
DEFINITION_RECORD: Final = struct.Struct("<BBHIQ88s")
SLOT_BYTES: Final = RECORD.size
WORDS: Final = SLOT_BYTES // 8  # a slot as numbers of 8 bytes
HALVES: Final = SLOT_BYTES // 4  # and of 4

JOB_BYTES: Final = 40  # ids of the broker have 40 bytes, UUIDs 36, those of MongoDB 24
JOB_IS_TEXT: Final = 255
SIZE_UNKNOWN: Final = (1 << 32) - 1
TEXT_PART_BYTES: Final = 88
TEXT_BYTES_MAX: Final = 1024  # as the names of queues; what is longer, an error most likely, is cut

DEFINITION: Final = 255
END: Final = 254
KINDS_MAX: Final = 239  # higher ones are not events


class Kind(IntEnum):
    """What happened."""

    ADDED = 1  # the job is accepted; with `until` it becomes ready then, else it is queued at once
    QUEUED = 2  # a job that waited (for its delay, for a link) is ready now
    RESERVED = 3  # delivered to a worker, or popped
    EXTENDED = 4  # the lease has a later end
    ACKED = 5
    NACKED = 6  # returned by its worker
    REQUEUED = 7  # its lease ended without an answer: ready again
    EXPIRED = 8  # its ttl is over
    FAILED = 9  # given up: to_queue has its dead letters, if it went there
    MOVED = 10  # to another queue, in one step
    REDRIVEN = 11  # from the dead letters
    IMPORTED = 12  # it was there when events were turned on, or came from a file
    REMOVED = 13  # deleted by a command, without having been worked on
    BEGUN = 14  # work on a job that was reserved ahead has begun
    GONE = 15  # its store does not have it any more, and nobody recorded how it ended
    LOST = 20  # `size` events from `seq` on were not written, or were deleted again; `error` says why
    SAMPLE = 21  # `size` jobs are in the queue


KIND_NAMES: Final[dict[int, str]] = {kind.value: kind.name.lower() for kind in Kind}


def kind_name(kind: int) -> str:
    """Return the name of a kind; `kind-N` for one that this version doesn't know."""
    return KIND_NAMES.get(kind) or f"kind-{kind}"


def head_of(kind: int, id_length: int, attempt: int) -> int:
    """Return bytes 0 to 7 of a record, as a number."""
    return VERSION | kind << 8 | id_length << 16 | attempt << 32


def definition_slots(number: int, text: bytes, next_seq: int) -> bytes:
    """Return the slots that define a text."""
    parts = range(0, max(1, len(text)), TEXT_PART_BYTES)
    return b"".join(
        DEFINITION_RECORD.pack(VERSION, DEFINITION, len(text), number, next_seq, text[at : at + TEXT_PART_BYTES])
        for at in parts
    )


def end_slot(next_seq: int, at_us: int) -> bytes:
    """Return the last slot of an epoch."""
    return RECORD.pack(VERSION, END, 0, 0, 0, next_seq, at_us, 0, 0, 0, 0, 0, 0, 0, 0, b"")
