"""The serialized job: how nodes send jobs to each other, and how the journal keeps them. All integers
little endian.

    offset  size   field
    0       4      bytes that follow
    4       40     id                 D-, 8 bytes, -, 24 bytes, -, 4 bytes
    44      1      low nibble: state, high nibble: gc_retry
    45      1      flags
    46      2      replicate
    48      4      expires            in a message: seconds left; in storage: unix time in seconds
    52      8      ctime
    60      4      delay              seconds
    64      4      retry              seconds
    68      2      nacks
    70      2      deliveries
    72      4+n    queue              its length, then its bytes
    ...     4+n    body               its length, then its bytes
    ...     4+40n  nodes              their count, then 40 bytes each

Several jobs are simply written one after another. A record is a copy of these fields and nothing more: what
`expires` means, and what a receiver does to state and flags, is for the sender and the receiver to know.

Records come from the network and from disks that lose power, so decoding checks everything: any
inconsistency is a RecordError that says what is wrong, and at which byte.
"""

import struct
from typing import Final, NamedTuple

STATES: Final = ("wait-repl", "active", "queued", "acked")
"""What the low nibble of byte 44 counts through. Other values are refused."""

JOB_ID_BYTES: Final = 40
NODE_ID_BYTES: Final = 40

_FIXED: Final = struct.Struct("<I40sBBHIQIIHH")
_U32: Final = struct.Struct("<I")
_LENGTH_BYTES: Final = 4
_U32_MAX: Final = 0xFFFFFFFF
# Of the fixed part what `split_record` needs as numbers, and the length of the queue: length, expires, ctime, queue.
_SPLIT: Final = struct.Struct("<I44xIQ12xI")
# A record of empty fields and no nodes: the fixed part, the lengths of queue and body, and the count of nodes.
_RECORD_BYTES_MIN: Final = 84

# The largest value of each integer field, to name the field that didn't fit. nacks and deliveries are not
# here: they are 16-bit counters that wrap, in the original as in our core.
_FIELD_MAX: Final = {
    "gc_retry": 0xF,
    "flags": 0xFF,
    "replicate": 0xFFFF,
    "expires": _U32_MAX,
    "ctime": 0xFFFFFFFFFFFFFFFF,
    "delay": _U32_MAX,
    "retry": _U32_MAX,
}


class RecordError(Exception):
    """Bytes that are not a valid record, or values that don't fit into one."""


class JobRecord(NamedTuple):
    """The fields of a serialized job, as stored."""

    id: bytes
    state: int
    gc_retry: int
    flags: int
    replicate: int
    expires: int
    ctime: int
    delay: int
    retry: int
    nacks: int
    deliveries: int
    queue: bytes
    body: bytes
    nodes: tuple[bytes, ...]


def _is_job_id(name: bytes) -> bool:
    return len(name) == JOB_ID_BYTES and name[:2] == b"D-" and name[10] == 0x2D and name[35] == 0x2D


def encode_record(record: JobRecord) -> bytes:
    """The record with its length in front. Raises RecordError if a value doesn't fit its field."""
    if not _is_job_id(record.id):
        raise RecordError(f"not a job id: {record.id!r}")
    if not 0 <= record.state < len(STATES):
        raise RecordError(f"unknown state {record.state}")
    nodes = b"".join(record.nodes)
    if any(len(node) != NODE_ID_BYTES for node in record.nodes):
        raise RecordError(f"a node id must have {NODE_ID_BYTES} bytes: {record.nodes!r}")
    queue_bytes = len(record.queue)
    body_bytes = len(record.body)
    # The fixed part counts its own length field, which the length leaves out.
    length = _FIXED.size - _LENGTH_BYTES + 3 * _LENGTH_BYTES + queue_bytes + body_bytes + len(nodes)
    if length > _U32_MAX:
        raise RecordError(f"a record of {length} bytes is too long: at most {_U32_MAX}")
    try:
        fixed = _FIXED.pack(
            length,
            record.id,
            record.state | record.gc_retry << 4,
            record.flags,
            record.replicate,
            record.expires,
            record.ctime,
            record.delay,
            record.retry,
            record.nacks & 0xFFFF,
            record.deliveries & 0xFFFF,
        )
    except struct.error:
        raise RecordError(_misfit(record)) from None
    pack = _U32.pack
    node_count = len(record.nodes)
    return b"".join((fixed, pack(queue_bytes), record.queue, pack(body_bytes), record.body, pack(node_count), nodes))


def _misfit(record: JobRecord) -> str:
    """Which field didn't fit. Asked only after packing failed, so that a good record doesn't pay for it."""
    for name, largest in _FIELD_MAX.items():
        value = getattr(record, name)
        if not 0 <= value <= largest:
            return f"{name} is {value}: it must be between 0 and {largest}"
    return f"a field is not an integer: {record!r}"


def decode_record(data: bytes, offset: int = 0) -> tuple[JobRecord, int]:
    """The record that begins at `offset` of `data`, and the offset that follows it."""
    if offset < 0 or len(data) - offset < _FIXED.size:
        raise RecordError(
            f"record at byte {offset}: cut off, {len(data) - offset} bytes where {_FIXED.size} are the least"
        )
    length, job_id, state_and_gc, flags, replicate, expires, ctime, delay, retry, nacks, deliveries = (
        _FIXED.unpack_from(data, offset)
    )
    end = offset + _LENGTH_BYTES + length
    if end > len(data):
        raise RecordError(
            f"record at byte {offset}: says that {length} bytes follow, but there are "
            f"{len(data) - offset - _LENGTH_BYTES}"
        )
    if not _is_job_id(job_id):
        raise RecordError(f"record at byte {offset}: not a job id at byte {offset + 4}: {job_id!r}")
    state = state_and_gc & 0xF
    if state >= len(STATES):
        raise RecordError(f"record at byte {offset}: unknown state {state} at byte {offset + 44}")
    queue, position = _take_bytes(data, offset + _FIXED.size, end, "queue")
    body, position = _take_bytes(data, position, end, "body")
    nodes = _take_nodes(data, position, end)
    record = JobRecord(
        job_id,
        state,
        state_and_gc >> 4,
        flags,
        replicate,
        expires,
        ctime,
        delay,
        retry,
        nacks,
        deliveries,
        queue,
        body,
        nodes,
    )
    return record, end


def record_template(record: JobRecord) -> tuple[bytes, int]:
    """Return a template for records like this one, with `%b` for id, ctime and body, and its length."""
    data = encode_record(record)
    body_at = _FIXED.size + 2 * _LENGTH_BYTES + len(record.queue)
    parts = (data[:4], data[44:52], data[60:body_at], data[body_at + len(record.body) :])
    first, second, third, last = (part.replace(b"%", b"%%") for part in parts)
    return first + b"%b" + second + b"%b" + third + b"%b" + last, len(data)


def split_record(data: bytes) -> tuple[bytes, int, int, bytes]:
    """Return the body, ctime and expires of a record that fills `data`, and all the rest of it but its id as one key.

    A journal holds many records and few kinds of them. Those with the same key have the same fields beside these four,
    so `decode_record` is needed once for each key only. The key is empty where it is needed anyway, since something
    doesn't add up or follows the record; what can only be wrong in the key itself is left to it, too.
    """
    size = len(data)
    if size < _RECORD_BYTES_MIN or not (data[4] == 0x44 and data[5] == data[14] == data[39] == 0x2D):
        return b"", 0, 0, b""
    length: int
    expires: int
    ctime: int
    queue_bytes: int
    length, expires, ctime, queue_bytes = _SPLIT.unpack_from(data)
    queue_end = _FIXED.size + _LENGTH_BYTES + queue_bytes
    body_at = queue_end + _LENGTH_BYTES
    if length + _LENGTH_BYTES != size or body_at > size:
        return b"", 0, 0, b""
    body_bytes: int = _U32.unpack_from(data, queue_end)[0]
    body_end = body_at + body_bytes
    if body_end + _LENGTH_BYTES > size:
        return b"", 0, 0, b""
    key = data[44:48] + data[60:queue_end] + data[body_end:size]
    return data[body_at:body_end], ctime, expires, key


def decode_records(data: bytes) -> list[JobRecord]:
    """All the records of `data`, which holds nothing else."""
    records = []
    offset = 0
    while offset < len(data):
        record, offset = decode_record(data, offset)
        records.append(record)
    return records


def _take_length(data: bytes, position: int, end: int, name: str) -> int:
    if end - position < _LENGTH_BYTES:
        raise RecordError(f"no room for the length of {name} at byte {position}: the record ends at {end}")
    value: int = _U32.unpack_from(data, position)[0]
    return value


def _take_bytes(data: bytes, position: int, end: int, name: str) -> tuple[bytes, int]:
    size = _take_length(data, position, end, name)
    start = position + _LENGTH_BYTES
    if size > end - start:
        raise RecordError(f"{name} at byte {position} says {size} bytes, but the record ends {end - start} bytes later")
    return data[start : start + size], start + size


def _take_nodes(data: bytes, position: int, end: int) -> tuple[bytes, ...]:
    count = _take_length(data, position, end, "nodes")
    start = position + _LENGTH_BYTES
    if count * NODE_ID_BYTES != end - start:
        raise RecordError(
            f"nodes at byte {position}: {count} of them take {count * NODE_ID_BYTES} bytes, "
            f"but the record has {end - start} bytes left"
        )
    return tuple([data[at : at + NODE_ID_BYTES] for at in range(start, end, NODE_ID_BYTES)])
