"""The cluster bus: messages between nodes, in the format of the original. Integers are big endian.

    offset  size  field
    0       4     `DbuZ`
    4       4     length of the whole message
    8       2     version, 1
    10      2     zero
    12      2     type
    14      2     count of gossip entries
    16      40    sender's id
    56      46    zeros
    102     34    zeros from an original node; from ours: `PNSK`, version, abilities, sequence (8), zeros
    136     2     sender's client port
    138     2     sender's flags
    140     1     zero
    141     3     flags of the message; byte 0 is the original's, 1 and 2 are ours, and zero from an original
    144     ...   payload

    type            payload
    PING PONG MEET  gossip: 104 bytes a node (id, ping sent, pong received, ip, port, flags)
    FAIL            the id of a node
    REPLJOB         u32 how many, u32 bytes, serialized jobs (wire.record); an original takes one at a time
    YOURJOBS        the same, up to 100
    NEEDJOBS PAUSE  u32 value, u32 length, the queue's name
    MANY            ours: u16 type, u16 zero, u32 how many nodes, their ids, then references to jobs
    HAVEJOB         ours, one reference: where a job is. 0: it waits in the sender's queue; NOT_HERE; else it is out
                    with a client for as many milliseconds. ASKS, FROM_HERE and ALL_TOLD name no job (core.places)
    all others      one reference to a job: its id and a u32; in QUEUED of our nodes the u32 holds the job's counters

MANY is one message about many jobs, and names the nodes that hold them; it and HAVEJOB are sent only to nodes that have
shown the ability. A message doesn't name its receiver: all receivers get the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from penstock.wire.record import JobRecord, RecordError, decode_record

PING: Final = 0
PONG: Final = 1
MEET: Final = 2
FAIL: Final = 3
REPLJOB: Final = 4
GOTJOB: Final = 5
ENQUEUE: Final = 6
QUEUED: Final = 7
SETACK: Final = 8
WILLQUEUE: Final = 9
GOTACK: Final = 10
DELJOB: Final = 11
NEEDJOBS: Final = 12
YOURJOBS: Final = 13
WORKING: Final = 14
PAUSE: Final = 15
MANY: Final = 16
HAVEJOB: Final = 17
# fmt: off
TYPE_NAMES: Final = (
    "PING", "PONG", "MEET", "FAIL", "REPLJOB", "GOTJOB", "ENQUEUE", "QUEUED", "SETACK", "WILLQUEUE", "GOTACK", "DELJOB",
    "NEEDJOBS", "YOURJOBS", "WORKING", "PAUSE", "MANY", "HAVEJOB",
)
# fmt: on
GOSSIP_TYPES: Final = frozenset((PING, PONG, MEET))
NODE_TYPES: Final = frozenset((PING, PONG, MEET, FAIL))
REFERENCE_TYPES: Final = frozenset((GOTJOB, ENQUEUE, QUEUED, SETACK, WILLQUEUE, GOTACK, DELJOB, WORKING, HAVEJOB))
RECORD_TYPES: Final = frozenset((REPLJOB, YOURJOBS))
NAME_TYPES: Final = frozenset((NEEDJOBS, PAUSE))

# Flags of a message. From 256 on they are ours.
NOREPLY: Final = 1
INCR_NACKS: Final = 2
GIVEN_BACK: Final = 2  # YOURJOBS of our nodes, HAVEJOB: it was given back since it was last delivered
INCR_DELIVERIES: Final = 4
QUEUE_IT: Final = 256  # REPLJOB: queue it where it arrives; nobody else will
ASKS: Final = 128  # HAVEJOB: the sender doesn't know where the receiver's jobs are
FROM_HERE: Final = 256  # HAVEJOB: what the sender said before may be lost; it says everything again
NOT_HERE: Final = 0xFFFFFFFF  # HAVEJOB: it doesn't wait on the sender, and it isn't known where it is
ALL_TOLD: Final = 512  # HAVEJOB: it has said everything
TAKEN: Final = 512  # QUEUED: the node that had it in its queue has failed; nobody was given the job
RETURNED: Final = 512  # YOURJOBS: nobody waits where it was sent; it stays where it arrives now
TRIES_SHIFT: Final = 10  # REPLJOB, YOURJOBS, WORKING, QUEUED: the job's tries and 1 more, in 14 bits; 0 says nothing
TRIES_MAX: Final = 0x3FFE
WAITERS_SHIFT: Final = 16  # NEEDJOBS: how many clients wait there, up to 255
WAIT_SHIFT: Final = (
    8  # NEEDJOBS: how long the request stands; with no client that waits, it is of one that has asked once
)
WAIT_UNIT_MS: Final = 200
BYTE_MAX: Final = 255
HAS_COUNTERS: Final = 1 << 31  # in the value of QUEUED: the job's nacks (15 bits) and deliveries (16 bits) follow
NACKS_SHIFT: Final = 16
NACKS_MASK: Final = 0x7FFF
DELIVERIES_MASK: Final = 0xFFFF

SIGNATURE: Final = b"DbuZ"
OUR_MARK: Final = b"PNSK"
OUR_VERSION: Final = 1
VERSION: Final = 1
CAN_MANY: Final = 1  # the ability to take MANY, and more than one job in a REPLJOB
COUNTS_WAITS: Final = 2  # NEEDJOBS with waiting clients: the value is how many of them are new
TAKES_OVER: Final = 4  # HAVEJOB: it queues what waited on a node that has failed
ABILITIES: Final = CAN_MANY | COUNTS_WAITS | TAKES_OVER

HEADER: Final = struct.Struct(">4sIHHHH40s46x4sBBQ20xHHxBBB")
HEADER_BYTES: Final = 144
GOSSIP: Final = struct.Struct(">40sII46sHHxxxxxx")
GOSSIP_BYTES: Final = 104
TWO_U32: Final = struct.Struct(">II")
MANY_HEAD: Final = struct.Struct(">HHI")
NODE_ID_BYTES: Final = 40
JOB_ID_BYTES: Final = 40
REFERENCE_BYTES: Final = 44
U32_MAX: Final = 0xFFFFFFFF
# The largest body is 512 MB, and a hundred jobs may travel together; nobody means more than this.
MESSAGE_BYTES_MAX: Final = 1 << 30


class BusError(Exception):
    """Bytes that no node sends: the link has to be closed."""


class Gossip:
    """What one node tells about another."""

    __slots__ = ("flags", "id", "ip", "ping_sent", "pong_received", "port")

    def __init__(self, peer_id: bytes, ping_sent: int, pong_received: int, ip: str, port: int, flags: int) -> None:
        self.id = peer_id
        self.ping_sent = ping_sent
        self.pong_received = pong_received
        self.ip = ip
        self.port = port
        self.flags = flags


class BusMessage:
    """One message as it arrived; its payload is read by the functions below."""

    __slots__ = ("abilities", "count", "flags", "node_flags", "payload", "port", "sender", "sequence", "type")

    def __init__(
        self,
        kind: int,
        sender: bytes,
        port: int,
        node_flags: int,
        flags: int,
        abilities: int,
        sequence: int,
        count: int,
        payload: bytes,
    ) -> None:
        self.type = kind
        self.sender = sender
        self.port = port
        self.node_flags = node_flags
        self.flags = flags
        self.abilities = abilities
        self.sequence = sequence
        self.count = count
        self.payload = payload


def encode(
    kind: int, sender: bytes, port: int, node_flags: int, sequence: int, payload: bytes, flags: int = 0, count: int = 0
) -> bytes:
    """Make a message."""
    head = HEADER.pack(
        SIGNATURE,
        HEADER_BYTES + len(payload),
        VERSION,
        0,
        kind,
        count,
        sender,
        OUR_MARK,
        OUR_VERSION,
        ABILITIES,
        sequence,
        port,
        node_flags,
        flags & 0xFF,
        flags >> 8 & 0xFF,
        flags >> 16 & 0xFF,
    )
    return head + payload


def decode(data: bytes) -> BusMessage | None:
    """Read a whole message; None for one that isn't for us: of another version, or of the wrong size for its type."""
    (
        _,
        length,
        version,
        _,
        kind,
        count,
        sender,
        mark,
        _,
        abilities,
        sequence,
        port,
        node_flags,
        flags0,
        flags1,
        flags2,
    ) = HEADER.unpack_from(data)
    if version != VERSION or kind > HAVEJOB or length != len(data):
        return None
    flags = flags0 | flags1 << 8 | flags2 << 16
    if mark != OUR_MARK:
        abilities, sequence, flags = 0, 0, flags0
    message = BusMessage(kind, sender, port, node_flags, flags, abilities, sequence, count, data[HEADER_BYTES:])
    return message if _fits(message) else None


def is_about_nodes(data: bytes) -> bool:
    """Whether a message is about nodes, not about jobs."""
    return int.from_bytes(data[12:14], "big") in NODE_TYPES


def is_request(data: bytes) -> bool:
    """Whether a whole message asks for jobs."""
    return int.from_bytes(data[12:14], "big") == NEEDJOBS


def sender_of(data: bytes) -> bytes:
    """Return the sender's id of a message."""
    return data[16:56]


def _fits(message: BusMessage) -> bool:
    kind, payload = message.type, message.payload
    size = len(payload)
    if kind in REFERENCE_TYPES:
        return size == REFERENCE_BYTES
    if kind in GOSSIP_TYPES:
        return size == message.count * GOSSIP_BYTES
    if kind == FAIL:
        return size == NODE_ID_BYTES
    if kind == MANY:
        if size < MANY_HEAD.size:
            return False
        inner, _, nodes = MANY_HEAD.unpack_from(payload)
        rest = size - MANY_HEAD.size - nodes * NODE_ID_BYTES
        return inner in REFERENCE_TYPES and rest >= 0 and rest % REFERENCE_BYTES == 0
    return size >= TWO_U32.size and size - TWO_U32.size == TWO_U32.unpack_from(payload)[1]


# Payloads, made and read.


def tries_flags(tries: int) -> int:
    """Make the flags that tell a job's tries."""
    return (min(tries, TRIES_MAX) + 1) << TRIES_SHIFT


def tries_of(flags: int) -> int:
    """Read a job's tries from the flags of a message; -1 if it doesn't tell them."""
    return (flags >> TRIES_SHIFT) - 1


def counters(nacks: int, deliveries: int) -> int:
    """Make the value of QUEUED: the counters of the job, this queueing included."""
    return HAS_COUNTERS | (nacks & NACKS_MASK) << NACKS_SHIFT | deliveries & DELIVERIES_MASK


def includes(nacks: int, deliveries: int, value: int) -> bool:
    """Whether the counters of a job include the queueing that a QUEUED reports; False if it has no counters."""
    more_nacks = nacks - (value >> NACKS_SHIFT) & NACKS_MASK
    more_deliveries = deliveries - value & DELIVERIES_MASK
    return bool(value & HAS_COUNTERS) and more_nacks <= NACKS_MASK // 2 and more_deliveries <= DELIVERIES_MASK // 2


def encode_gossip(entries: Sequence[Gossip]) -> bytes:
    """Make the payload of PING, PONG and MEET."""
    return b"".join(
        GOSSIP.pack(e.id, e.ping_sent & U32_MAX, e.pong_received & U32_MAX, e.ip.encode("ascii"), e.port, e.flags)
        for e in entries
    )


def decode_gossip(message: BusMessage) -> list[Gossip]:
    """Read the payload of PING, PONG and MEET; entries with an address that can't be one have none."""
    entries = []
    for peer_id, ping_sent, pong_received, ip, port, flags in GOSSIP.iter_unpack(message.payload):
        text = ip.partition(b"\0")[0].decode("ascii", "replace")
        entries.append(Gossip(peer_id, ping_sent, pong_received, text, port, flags))
    return entries


def reference(job_id: bytes, value: int = 0) -> bytes:
    """Make a reference to a job: the payload of most messages."""
    return job_id + value.to_bytes(4, "big")


def many(kind: int, nodes: Sequence[bytes], references: Sequence[bytes]) -> bytes:
    """Make the payload of MANY."""
    return MANY_HEAD.pack(kind, 0, len(nodes)) + b"".join(nodes) + b"".join(references)


def references(message: BusMessage) -> tuple[int, list[bytes] | None, list[tuple[bytes, int]]]:
    """Read the type, the nodes (None: it doesn't say) and the references of a message about one job or many."""
    payload = message.payload
    if message.type != MANY:
        return message.type, None, [(payload[:JOB_ID_BYTES], int.from_bytes(payload[JOB_ID_BYTES:], "big"))]
    kind, _, count = MANY_HEAD.unpack_from(payload)
    start = MANY_HEAD.size
    at = start + count * NODE_ID_BYTES
    nodes = [payload[i : i + NODE_ID_BYTES] for i in range(start, at, NODE_ID_BYTES)]
    refs = []
    for i in range(at, len(payload), REFERENCE_BYTES):
        end = i + JOB_ID_BYTES
        refs.append((payload[i:end], int.from_bytes(payload[end : end + 4], "big")))
    return kind, nodes, refs


def jobs(records: Sequence[bytes]) -> bytes:
    """Make the payload of REPLJOB and YOURJOBS from serialized jobs."""
    data = b"".join(records)
    return TWO_U32.pack(len(records), len(data)) + data


def announced(message: BusMessage) -> int:
    """Return how many jobs a REPLJOB or YOURJOBS announces."""
    count: int = TWO_U32.unpack_from(message.payload)[0]
    return count


def cut_records(message: BusMessage) -> list[bytes]:
    """Cut the serialized jobs of REPLJOB and YOURJOBS apart, as many as are announced and whole."""
    payload, count = message.payload, announced(message)
    found: list[bytes] = []
    at = TWO_U32.size
    while len(payload) - at >= 4 and len(found) < count:
        end = at + 4 + int.from_bytes(payload[at : at + 4], "little")
        if end > len(payload):
            break
        found.append(payload[at:end])
        at = end
    return found


def records(message: BusMessage) -> list[JobRecord]:
    """Read the jobs of REPLJOB and YOURJOBS, up to the first that can't be read."""
    found: list[JobRecord] = []
    for data in cut_records(message):
        try:
            found.append(decode_record(data)[0])
        except RecordError:
            break
    return found


def named(value: int, name: bytes) -> bytes:
    """Make the payload of NEEDJOBS and PAUSE."""
    return TWO_U32.pack(value, len(name)) + name


def name_of(message: BusMessage) -> tuple[int, bytes]:
    """Read the value and the queue's name of NEEDJOBS and PAUSE."""
    value: int = TWO_U32.unpack_from(message.payload)[0]
    return value, message.payload[TWO_U32.size :]


class BusReader:
    """Cuts a stream of bytes into messages."""

    __slots__ = ("_buffer", "_needed")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = 0  # bytes before there is anything new to find in the buffer

    @property
    def pending_bytes(self) -> int:
        """How much has arrived of a message that isn't whole yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are complete now; raises BusError if the bytes are not bus messages."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return []
            data = bytes(self._buffer)
        messages: list[bytes] = []
        at, end, self._needed = 0, len(data), 8
        while end - at >= 8:
            length = int.from_bytes(data[at + 4 : at + 8], "big")
            if data[at : at + 4] != SIGNATURE or not HEADER_BYTES <= length <= MESSAGE_BYTES_MAX:
                raise BusError(f"not a message of the bus: it begins with {data[at : at + 8]!r}")
            if end - at < length:
                self._needed = length
                break
            messages.append(data[at : at + length])
            at += length
        self._buffer = bytearray(data[at:])
        return messages
