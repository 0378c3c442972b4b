"""The messages of Disque's cluster bus, byte for byte, for tests alone.

This is written from the reference of the original and shares nothing with `penstock.wire`: what both of them agree on
is what the reference says, and not one mistake made twice. All integers are big endian, but those inside a serialized
job are little endian.

    offset  size  field of the header            types and their payloads
    0       4     DbuZ                           PING PONG MEET        `entries` x 104 bytes of gossip
    4       4     length of header and payload   FAIL                  node id
    8       2     version, 1                     REPLJOB YOURJOBS      u32 number of jobs, u32 bytes, jobs
    10      2     0                              GOTJOB ENQUEUE QUEUED SETACK WILLQUEUE GOTACK DELJOB WORKING
    12      2     type                                                 job id, u32 aux
    14      2     entries of gossip              NEEDJOBS PAUSE        u32 jobs wanted or pause flags, u32 length, queue
    16      40    sender's id
    56      46    0 (sender's address)
    102     34    unused
    136     2     sender's client port
    138     2     sender's flags
    140     1     0 (state)
    141     3     marks: what is special about the message

`decode` gives a message and a list of complaints: everything about it that no original node would have sent.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address

TYPES = (
    "PING",
    "PONG",
    "MEET",
    "FAIL",
    "REPLJOB",
    "GOTJOB",
    "ENQUEUE",
    "QUEUED",
    "SETACK",
    "WILLQUEUE",
    "GOTACK",
    "DELJOB",
    "NEEDJOBS",
    "YOURJOBS",
    "WORKING",
    "PAUSE",
)
GOSSIPING = ("PING", "PONG", "MEET")
CARRYING_JOBS = ("REPLJOB", "YOURJOBS")
ABOUT_A_JOB = ("GOTJOB", "ENQUEUE", "QUEUED", "SETACK", "WILLQUEUE", "GOTACK", "DELJOB", "WORKING")
ABOUT_A_QUEUE = ("NEEDJOBS", "PAUSE")
AUX_MAX = {"ENQUEUE": 0xFFFFFFFF, "SETACK": 0xFFFFFFFF, "GOTACK": 1}  # 0 for the others

MAGIC = b"DbuZ"
VERSION = 1
# Flags of a node, in the header and in gossip.
PFAIL, FAIL, MYSELF, HANDSHAKE, NOADDR, MEET, DELETED, LEAVING = (1 << bit for bit in range(8))
# Marks of a message.
NOREPLY, INCR_NACKS, INCR_DELIV = 1, 2, 4
# Flags of a pause.
PAUSED_IN, PAUSED_OUT = 1, 2
# Flags of a job.
BCAST_QUEUED, BCAST_WILLQUEUE, DELIVERED = 1, 2, 4
WAIT_REPL, ACTIVE, QUEUED, ACKED = range(4)
JOBS_WANTED_MAX = 100  # an original that is asked for more overruns its stack

HEADER = struct.Struct(">4sIHHHH40s46s34sHHB3s")
GOSSIP = struct.Struct(">40sII46sHHHI")
JOB = struct.Struct("<40sBBHIQIIHH")
PAIR = struct.Struct(">II")
JOB_AND_AUX = struct.Struct(">40sI")
LITTLE = struct.Struct("<I")
FRAME = struct.Struct(">4sI")
COMPUTED = -1  # as a length or a number: whatever is right

NODE_ID = re.compile(rb"[0-9a-f]{40}")
JOB_ID = re.compile(rb"D-.{8}-.{24}-.{4}", re.DOTALL)


class BadFrameError(Exception):
    """Bytes after which an original closes the link."""


class BadJobError(Exception):
    """Bytes that aren't a serialized job."""


@dataclass(frozen=True)
class Gossip:
    """What a node says about another one."""

    id: bytes
    ip: str
    port: int
    flags: int = 0
    ping_sent: int = 0
    pong_received: int = 0

    def encode(self) -> bytes:
        return GOSSIP.pack(self.id, self.ping_sent, self.pong_received, self.ip.encode(), self.port, self.flags, 0, 0)


@dataclass(frozen=True, kw_only=True)
class JobCopy:
    """A serialized job. `expires` is in seconds from now."""

    id: bytes
    queue: bytes = b"queue"
    body: bytes = b"body"
    nodes: tuple[bytes, ...] = ()
    state: int = ACTIVE
    gc_retry: int = 0
    flags: int = 0
    replicate: int = 1
    expires: int = 86_401
    ctime: int = 0
    delay: int = 0
    retry: int = 300
    nacks: int = 0
    deliveries: int = 0

    def encode(self) -> bytes:
        fixed = JOB.pack(
            self.id,
            self.state | self.gc_retry << 4,
            self.flags,
            self.replicate,
            self.expires,
            self.ctime,
            self.delay,
            self.retry,
            self.nacks,
            self.deliveries,
        )
        strings = b"".join(LITTLE.pack(len(text)) + text for text in (self.queue, self.body))
        rest = fixed + strings + LITTLE.pack(len(self.nodes)) + b"".join(self.nodes)
        return LITTLE.pack(len(rest)) + rest


def decode_jobs(data: bytes) -> Iterator[JobCopy]:
    """Read serialized jobs up to the end of the bytes, or up to the first that is not valid."""
    while data:
        whole, data = _take_string(data, "a job")
        if len(whole) < JOB.size:
            raise BadJobError(f"a job of {len(whole)} bytes")
        job_id, state, flags, replicate, expires, ctime, delay, retry, nacks, deliveries = JOB.unpack_from(whole)
        queue, rest = _take_string(whole[JOB.size :], "a queue's name")
        body, rest = _take_string(rest, "a body")
        if len(rest) < LITTLE.size or len(rest) != LITTLE.size + 40 * LITTLE.unpack_from(rest)[0]:
            raise BadJobError(f"{len(rest)} bytes for the nodes of a job: {rest[:4]!r}")
        yield JobCopy(
            id=job_id,
            queue=queue,
            body=body,
            nodes=tuple(rest[at : at + 40] for at in range(LITTLE.size, len(rest), 40)),
            state=state & 0xF,
            gc_retry=state >> 4,
            flags=flags,
            replicate=replicate,
            expires=expires,
            ctime=ctime,
            delay=delay,
            retry=retry,
            nacks=nacks,
            deliveries=deliveries,
        )


def _take_string(data: bytes, what: str) -> tuple[bytes, bytes]:
    if len(data) < LITTLE.size or len(data) - LITTLE.size < (size := LITTLE.unpack_from(data)[0]):
        raise BadJobError(f"{what} is cut off: {data[:8]!r}")
    end = LITTLE.size + size
    return data[LITTLE.size : end], data[end:]


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message; what its type has no use for is empty. Lengths and numbers may be given wrong on purpose."""

    kind: str  # or TYPE<number>
    sender: bytes
    port: int
    flags: int = MYSELF
    marks: int = 0
    gossip: tuple[Gossip, ...] = ()
    node: bytes = b""
    jobs: tuple[JobCopy, ...] = ()
    job_id: bytes = b""
    aux: int = 0
    queue: bytes = b""
    wanted: int = 0
    pause: int = 0
    # Fields that are the same, or follow from the others, in every good message.
    magic: bytes = MAGIC
    length: int = COMPUTED
    version: int = VERSION
    reserved: int = 0
    entries: int = COMPUTED
    address: bytes = bytes(46)
    unused: bytes = bytes(34)
    state: int = 0
    number_of_jobs: int = COMPUTED
    bytes_of_jobs: int = COMPUTED
    tail: bytes = b""  # behind the payload
    # Of a received message.
    raw: bytes = field(default=b"", repr=False)
    inbound: bool = False  # came over a link that the other side opened
    understood: bool = False  # an original would act on it, if it knows the sender

    @property
    def type(self) -> int:
        return TYPES.index(self.kind) if self.kind in TYPES else int(self.kind.removeprefix("TYPE"))

    def encode(self) -> bytes:
        payload = self._payload() + self.tail
        header = HEADER.pack(
            self.magic,
            HEADER.size + len(payload) if self.length == COMPUTED else self.length,
            self.version,
            self.reserved,
            self.type,
            len(self.gossip) if self.entries == COMPUTED else self.entries,
            self.sender,
            self.address,
            self.unused,
            self.port,
            self.flags,
            self.state,
            bytes((self.marks, 0, 0)),
        )
        return header + payload

    def _payload(self) -> bytes:
        if self.kind in GOSSIPING:
            return b"".join(entry.encode() for entry in self.gossip)
        if self.kind == "FAIL":
            return self.node
        if self.kind in CARRYING_JOBS:
            data = b"".join(job.encode() for job in self.jobs)
            count = len(self.jobs) if self.number_of_jobs == COMPUTED else self.number_of_jobs
            return PAIR.pack(count, len(data) if self.bytes_of_jobs == COMPUTED else self.bytes_of_jobs) + data
        if self.kind in ABOUT_A_JOB:
            return JOB_AND_AUX.pack(self.job_id, self.aux)
        if self.kind in ABOUT_A_QUEUE:
            return PAIR.pack(self.wanted if self.kind == "NEEDJOBS" else self.pause, len(self.queue)) + self.queue
        return b""


def take_frame(buffer: bytearray) -> bytes | None:
    """Cut the first whole message off a buffer; None while it isn't there yet."""
    if len(buffer) < FRAME.size:
        return None
    magic, length = FRAME.unpack_from(buffer)
    if magic != MAGIC:
        raise BadFrameError(f"a message begins with {bytes(buffer[:8])!r}")
    if length < HEADER.size:
        raise BadFrameError(f"a message says that it has {length} bytes")
    if len(buffer) < length:
        return None
    frame = bytes(buffer[:length])
    del buffer[:length]
    return frame


def decode(raw: bytes, inbound: bool = False) -> tuple[Message, list[str]]:
    """Read a whole message, and say what is wrong with it."""
    magic, length, version, reserved, number, entries, sender, address, unused, port, flags, state, marks = (
        HEADER.unpack_from(raw)
    )
    kind = TYPES[number] if number < len(TYPES) else f"TYPE{number}"
    complaints = [
        text
        for is_wrong, text in (
            (version != VERSION, f"its version is {version}"),
            (kind not in TYPES, "its type is unknown"),
            (reserved != 0, f"bytes 10 to 12 are {reserved:#x}, not zero"),
            (any(address), f"the sender's address is {address!r}, not zeros"),
            (state != 0, f"its state is {state}"),
            (any(marks[1:]) or marks[0] > 7, f"its marks are {marks!r}"),
            (not NODE_ID.fullmatch(sender), f"its sender is {sender!r}"),
            (port == 0, "its port is 0"),
        )
        if is_wrong
    ]
    payload: dict[str, object] = {}
    understood = version == VERSION and kind in TYPES
    if understood:
        wrong_length = _wrong_length(kind, entries, raw)
        understood = not wrong_length
        if understood:
            payload, found = _decode_payload(kind, raw[HEADER.size :])
            complaints += found
        else:
            complaints.append(wrong_length)
    message = Message(
        kind=kind,
        sender=sender,
        port=port,
        flags=flags,
        marks=marks[0],
        magic=magic,
        length=length,
        version=version,
        reserved=reserved,
        entries=entries,
        address=address,
        unused=unused,
        state=state,
        raw=raw,
        inbound=inbound,
        understood=understood,
        **payload,  # type: ignore[arg-type]  # the names and types of its fields, by the kind
    )
    return message, [f"{kind} from {sender[:8]!r}: {complaint}" for complaint in complaints]


def _wrong_length(kind: str, entries: int, raw: bytes) -> str:
    """Compare the length of a message with what its type and its own numbers ask for."""
    size = len(raw) - HEADER.size
    if kind in GOSSIPING:
        right = GOSSIP.size * entries
    elif kind == "FAIL":
        right = 40
    elif kind in ABOUT_A_JOB:
        right = JOB_AND_AUX.size
    else:
        right = PAIR.size + (PAIR.unpack_from(raw, HEADER.size)[1] if size >= PAIR.size else 0)
    return "" if size == right else f"its payload has {size} bytes, not {right}"


def _decode_payload(kind: str, data: bytes) -> tuple[dict[str, object], list[str]]:
    if kind in GOSSIPING:
        return _decode_gossip(data)
    if kind == "FAIL":
        return {"node": data}, [] if NODE_ID.fullmatch(data) else [f"it names the node {data!r}"]
    if kind in ABOUT_A_JOB:
        return _decode_job_and_aux(kind, data)
    number, size = PAIR.unpack_from(data)
    rest = data[PAIR.size :]
    if kind == "NEEDJOBS":
        return {"wanted": number, "queue": rest}, _unless(1 <= number <= JOBS_WANTED_MAX, f"it wants {number} jobs")
    if kind == "PAUSE":
        return {"pause": number, "queue": rest}, _unless(number <= 3, f"its pause flags are {number}")
    return _decode_jobs_payload(kind, number, size, rest)


def _unless(is_right: bool, complaint: str) -> list[str]:
    return [] if is_right else [complaint]


def _decode_gossip(data: bytes) -> tuple[dict[str, object], list[str]]:
    found = []
    complaints = []
    for at in range(0, len(data), GOSSIP.size):
        node, ping_sent, pong_received, ip, port, flags, zero, zeros = GOSSIP.unpack_from(data, at)
        name, _, padding = ip.partition(b"\0")
        found.append(Gossip(node, name.decode("latin-1"), port, flags, ping_sent, pong_received))
        complaints += _unless(NODE_ID.fullmatch(node) is not None, f"gossip about the node {node!r}")
        complaints += _unless(_is_address(name) and not any(padding), f"gossip has the address {ip!r}")
        complaints += _unless(zero == 0 and zeros == 0, f"gossip ends in {data[at + 98 : at + 104]!r}, not zeros")
    return {"gossip": tuple(found)}, complaints


def _is_address(name: bytes) -> bool:
    try:
        return bool(ip_address(name.decode("ascii")))
    except ValueError:
        return False


def _decode_job_and_aux(kind: str, data: bytes) -> tuple[dict[str, object], list[str]]:
    job_id, aux = JOB_AND_AUX.unpack(data)
    complaints = _unless(JOB_ID.fullmatch(job_id) is not None, f"it is about the job {job_id!r}")
    complaints += _unless(aux <= AUX_MAX.get(kind, 0), f"its aux is {aux}")
    return {"job_id": job_id, "aux": aux}, complaints


def _decode_jobs_payload(kind: str, number: int, size: int, data: bytes) -> tuple[dict[str, object], list[str]]:
    jobs: list[JobCopy] = []
    complaints = []
    try:
        jobs.extend(decode_jobs(data))
    except BadJobError as problem:
        complaints.append(str(problem))
    most = 1 if kind == "REPLJOB" else JOBS_WANTED_MAX
    if not 1 <= number <= most:
        complaints.append(f"it says {number} jobs")
    elif number != len(jobs):
        complaints.append(f"it says {number} jobs and has {len(jobs)}")
    for job in jobs:
        complaints += [f"job {job.id!r}: {complaint}" for complaint in job_complaints(job)]
    return {"jobs": tuple(jobs), "number_of_jobs": number, "bytes_of_jobs": size}, complaints


def job_complaints(job: JobCopy) -> list[str]:
    """Say what no original would have sent in a job."""
    return [
        text
        for is_wrong, text in (
            (not JOB_ID.fullmatch(job.id), "this isn't a job id"),
            (job.state > ACKED, f"its state is {job.state}"),
            (job.flags & DELIVERED, "its DELIVERED flag is set"),
            (job.flags > 7, f"its flags are {job.flags}"),
            (job.replicate == 0, "it wants no copy"),
            (job.expires == 0, "it has no time to live"),
            (job.ctime == 0, "it has no creation time"),
            (any(not NODE_ID.fullmatch(node) for node in job.nodes), f"its nodes are {job.nodes!r}"),
            (len(set(job.nodes)) != len(job.nodes), f"a node is named twice: {job.nodes!r}"),
        )
        if is_wrong
    ]
