"""The codec of the bus: byte for byte the original's, wherever it is split; nothing is believed that doesn't fit."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire import bus
from penstock.wire.record import JobRecord, encode_record

ME = b"0123456789abcdef0123456789abcdef01234567"
OTHER = b"f" * 40
JOB = b"D-01234567-AAAAAAAAAAAAAAAAAAAAAAAA-05a1"
RECORD = JobRecord(JOB, 1, 0, 3, 2, 60, 1_700_000_000_000_000_000, 0, 5, 1, 2, b"queue", b"body", (ME, OTHER))


def message(kind: int, payload: bytes = b"", **more: int) -> bytes:
    return bus.encode(kind, ME, 7711, 128, 42, payload, **more)


def test_a_header_has_every_field_in_its_place() -> None:
    data = message(bus.QUEUED, bus.reference(JOB), flags=bus.INCR_NACKS)
    assert len(data) == 188
    assert data[:4] == b"DbuZ"
    assert struct.unpack(">IHHHH", data[4:16]) == (188, 1, 0, 7, 0)
    assert data[16:56] == ME
    assert data[56:102] == bytes(46)
    assert data[102:106] == b"PNSK"
    assert struct.unpack(">BBQ", data[106:116]) == (1, bus.ABILITIES, 42)
    assert data[116:136] == bytes(20)
    assert struct.unpack(">HH", data[136:140]) == (7711, 128)
    assert data[140:144] == b"\0\x02\0\0"
    assert data[144:] == JOB + bytes(4)


@pytest.mark.parametrize("tries", [0, 1, bus.TRIES_MAX])
def test_tries_and_other_flags_of_a_message_leave_each_other_alone(tries: int) -> None:
    others = bus.NOREPLY | bus.INCR_NACKS | bus.INCR_DELIVERIES | bus.QUEUE_IT | bus.RETURNED
    told = bus.tries_flags(tries)
    assert not told & others
    read = bus.decode(message(bus.YOURJOBS, bus.jobs([encode_record(RECORD)]), flags=told | others))
    assert read is not None
    assert (bus.tries_of(read.flags), read.flags & others) == (tries, others)
    assert bus.tries_of(others) == -1


@pytest.mark.parametrize(
    ("kind", "payload", "length"),
    [
        (bus.FAIL, OTHER, 184),
        (bus.GOTJOB, bus.reference(JOB), 188),
        (bus.REPLJOB, bus.jobs([encode_record(RECORD)]), 152 + len(encode_record(RECORD))),
        (bus.NEEDJOBS, bus.named(5, b"queue"), 157),
        (bus.PAUSE, bus.named(3, b""), 152),
        (bus.MANY, bus.many(bus.SETACK, [ME], [bus.reference(JOB, 3)]), 144 + 8 + 40 + 44),
    ],
)
def test_each_kind_has_its_length_and_no_other(kind: int, payload: bytes, length: int) -> None:
    data = message(kind, payload)
    assert len(data) == length
    assert bus.decode(data) is not None
    for wrong in (data[:-1], data + b"\0"):
        assert bus.decode(wrong[:4] + struct.pack(">I", len(wrong)) + wrong[8:]) is None


def test_what_an_original_node_sends_has_no_flags_of_ours() -> None:
    data = bytearray(message(bus.REPLJOB, bus.jobs([]), flags=bus.QUEUE_IT | bus.NOREPLY))
    data[102:136] = bytes(34)
    decoded = bus.decode(bytes(data))
    assert decoded is not None
    assert (decoded.abilities, decoded.sequence, decoded.flags) == (0, 0, bus.NOREPLY)


@pytest.mark.parametrize(
    ("nacks", "deliveries", "told", "is_included"),
    [
        (0, 0, (0, 0), True),
        (1, 0, (1, 0), True),
        (3, 2, (1, 2), True),
        (0, 5, (1, 0), False),
        (5, 0, (1, 1), False),
        (0, 0, (0x7FFF, 0xFFFF), True),  # they begin again at 0
        (0x7FFF, 0xFFFF, (0, 0), False),
        (0x8002, 7, (2, 7), True),
    ],
)
def test_the_counters_of_a_job_tell_which_queueings_it_has_behind_it(
    nacks: int, deliveries: int, told: tuple[int, int], is_included: bool
) -> None:
    assert bus.includes(nacks, deliveries, bus.counters(*told)) is is_included
    assert not bus.includes(nacks, deliveries, 0)


def test_other_versions_and_types_are_not_for_us() -> None:
    data = message(bus.PING)
    assert bus.decode(data[:8] + b"\0\x02" + data[10:]) is None
    assert bus.decode(data[:12] + b"\0\x11" + data[14:]) is None


def test_gossip_comes_back() -> None:
    entries = [bus.Gossip(OTHER, 5, 1 << 33 | 7, "10.0.0.1", 7712, 2), bus.Gossip(ME, 0, 0, "::1", 1, 0)]
    payload = bus.encode_gossip(entries)
    assert len(payload) == 208
    decoded = bus.decode(message(bus.PING, payload, count=2))
    assert decoded is not None
    found = [(e.id, e.ping_sent, e.pong_received, e.ip, e.port, e.flags) for e in bus.decode_gossip(decoded)]
    assert found == [(OTHER, 5, 7, "10.0.0.1", 7712, 2), (ME, 0, 0, "::1", 1, 0)]


@given(
    st.sampled_from(sorted(bus.REFERENCE_TYPES)),
    st.lists(st.binary(min_size=40, max_size=40), max_size=3),
    st.lists(st.tuples(st.binary(min_size=40, max_size=40), st.integers(0, bus.U32_MAX)), max_size=5),
)
def test_many_says_what_single_messages_say(kind: int, nodes: list[bytes], refs: list[tuple[bytes, int]]) -> None:
    payload = bus.many(kind, nodes, [bus.reference(*ref) for ref in refs])
    decoded = bus.decode(message(bus.MANY, payload))
    assert decoded is not None
    assert bus.references(decoded) == (kind, nodes, refs)
    for ref in refs:
        single = bus.decode(message(kind, bus.reference(*ref)))
        assert single is not None
        assert bus.references(single) == (kind, None, [ref])


def test_jobs_are_cut_apart_as_far_as_they_are_whole() -> None:
    good = encode_record(RECORD)
    decoded = bus.decode(message(bus.YOURJOBS, bus.jobs([good, good[:-1]])))
    assert decoded is not None
    assert bus.cut_records(decoded) == [good]
    assert bus.records(decoded) == [RECORD]


def test_no_more_jobs_are_read_than_are_announced() -> None:
    good = encode_record(RECORD)
    decoded = bus.decode(message(bus.YOURJOBS, struct.pack(">II", 1, 2 * len(good)) + good + good))
    assert decoded is not None
    assert bus.cut_records(decoded) == [good]
    assert bus.records(decoded) == [RECORD]


@given(st.lists(st.integers(1, 40), max_size=30))
def test_a_stream_is_cut_into_the_same_messages_wherever_it_is_split(steps: list[int]) -> None:
    need = message(bus.NEEDJOBS, bus.named(1, b"q" * 50))
    messages = [message(bus.PING), message(bus.QUEUED, bus.reference(JOB)), need]
    stream = b"".join(messages) + messages[0][:20]
    reader = bus.BusReader()
    found: list[bytes] = []
    for step in steps:
        found += reader.feed(stream[:step])
        stream = stream[step:]
    found += reader.feed(stream)
    assert found == messages
    assert reader.pending_bytes == 20


@pytest.mark.parametrize("start", [b"GET / HT", b"DbuZ\0\0\0\x8f", b"DbuZ\xff\xff\xff\xff"])
def test_what_is_no_bus_ends_the_link(start: bytes) -> None:
    with pytest.raises(bus.BusError):
        bus.BusReader().feed(start)


@given(st.binary(max_size=400))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    whole = message(bus.MANY, data)
    decoded = bus.decode(whole)
    if decoded is not None:
        bus.references(decoded)
    for kind in (bus.REPLJOB, bus.YOURJOBS):
        decoded = bus.decode(message(kind, struct.pack(">II", 9, len(data)) + data))
        assert decoded is not None
        bus.records(decoded)
