"""The serialized job, against bytes written by hand and against damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire import JobRecord, RecordError, decode_record, decode_records, encode_record
from penstock.wire.record import split_record

JOB_ID = b"D-0123abcd-ABCDEFGHIJKLMNOPQRSTUVWX-05a1"
NODE_A = b"a" * 40
NODE_B = b"b" * 40

RECORD = JobRecord(
    id=JOB_ID,
    state=2,
    gc_retry=3,
    flags=5,
    replicate=0x0102,
    expires=0x01020304,
    ctime=0x0102030405060708,
    delay=10,
    retry=300,
    nacks=0x0201,
    deliveries=0xFFFF,
    queue=b"mails",
    body=b"\x00body",
    nodes=(NODE_A, NODE_B),
)

GOLDEN = (
    b"\xaa\x00\x00\x00"  # 68 + queue 4+5 + body 4+5 + nodes 4+80 = 170 bytes follow
    + JOB_ID
    + b"\x32"  # state 2 below, gc_retry 3 above
    + b"\x05"
    + b"\x02\x01"
    + b"\x04\x03\x02\x01"
    + b"\x08\x07\x06\x05\x04\x03\x02\x01"
    + b"\x0a\x00\x00\x00"
    + b"\x2c\x01\x00\x00"
    + b"\x01\x02"
    + b"\xff\xff"
    + b"\x05\x00\x00\x00mails"
    + b"\x05\x00\x00\x00\x00body"
    + b"\x02\x00\x00\x00"
    + NODE_A
    + NODE_B
)


def test_a_record_has_the_bytes_of_the_table() -> None:
    assert encode_record(RECORD) == GOLDEN
    assert decode_record(GOLDEN) == (RECORD, len(GOLDEN))


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


job_ids = st.builds(
    lambda node, middle, ttl: b"D-%b-%b-%b" % (node, middle, ttl),
    st.binary(min_size=8, max_size=8),
    st.binary(min_size=24, max_size=24),
    st.binary(min_size=4, max_size=4),
)
records = st.builds(
    JobRecord,
    id=job_ids,
    state=st.integers(0, 3),
    gc_retry=unsigned(4),
    flags=unsigned(8),
    replicate=unsigned(16),
    expires=unsigned(32),
    ctime=unsigned(64),
    delay=unsigned(32),
    retry=unsigned(32),
    nacks=unsigned(16),
    deliveries=unsigned(16),
    queue=st.binary(max_size=30),
    body=st.binary(max_size=60),
    nodes=st.lists(st.binary(min_size=40, max_size=40), max_size=3).map(tuple),
)


@given(st.lists(records, max_size=4))
def test_records_one_after_another_come_back(several: list[JobRecord]) -> None:
    assert decode_records(b"".join(map(encode_record, several))) == several


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gc_retry": 16}, "gc_retry is 16"),
        ({"flags": 256}, "flags is 256"),
        ({"replicate": 65536}, "replicate is 65536"),
        ({"expires": -1}, "expires is -1"),
        ({"ctime": 2**64}, "ctime is 18446744073709551616"),
        ({"delay": 2**32}, "delay is 4294967296"),
        ({"retry": 2**32}, "retry is 4294967296"),
        ({"state": 4}, "unknown state 4"),
        ({"state": -1}, "unknown state -1"),
        ({"id": JOB_ID[:-1]}, "not a job id"),
        ({"id": b"X" + JOB_ID[1:]}, "not a job id"),
        ({"nodes": (b"short",)}, "a node id must have 40 bytes"),
    ],
)
def test_what_does_not_fit_is_not_written(change: dict[str, object], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        encode_record(RECORD._replace(**change))  # type: ignore[arg-type]  # wrong values are the point


def test_the_16_bit_counters_wrap() -> None:
    record, _ = decode_record(encode_record(RECORD._replace(nacks=65536, deliveries=65538)))
    assert (record.nacks, record.deliveries) == (0, 2)


def changed(offset: int, value: bytes) -> bytes:
    return GOLDEN[:offset] + value + GOLDEN[offset + len(value) :]


DAMAGED = [
    (GOLDEN[:71], "record at byte 0: cut off, 71 bytes"),
    (GOLDEN[:-1], "says that 170 bytes follow, but there are 169"),
    (changed(4, b"X"), "not a job id at byte 4"),
    (changed(14, b"_"), "not a job id at byte 4"),
    (changed(39, b"_"), "not a job id at byte 4"),
    (changed(44, b"\x34"), "unknown state 4 at byte 44"),
    (changed(72, b"\xff"), "queue at byte 72 says 255 bytes, but the record ends 98 bytes later"),
    (changed(81, b"\xff"), "body at byte 81 says 255 bytes, but the record ends 89 bytes later"),
    (changed(90, b"\x03"), "nodes at byte 90: 3 of them take 120 bytes, but the record has 80 bytes"),
    (changed(90, b"\x01"), "nodes at byte 90: 1 of them take 40 bytes, but the record has 80 bytes left"),
    (changed(0, b"\xab") + b"!", "nodes at byte 90: 2 of them take 80 bytes, but the record has 81"),
    (changed(0, b"\x05"), "no room for the length of queue at byte 72: the record ends at 9"),
    (changed(0, b"\x4f"), "no room for the length of body at byte 81"),
]


@pytest.mark.parametrize(("data", "message"), DAMAGED)
def test_damage_is_named_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        decode_record(data)


def test_damage_in_a_later_record_has_its_offset_in_the_whole() -> None:
    with pytest.raises(RecordError, match=f"record at byte {len(GOLDEN)}: unknown state 9"):
        decode_records(GOLDEN + changed(44, b"\x09"))


@given(st.binary(max_size=200), st.integers(-5, 250))
def test_random_bytes_raise_nothing_else(data: bytes, offset: int) -> None:
    with pytest.raises(RecordError):
        decode_record(data, offset)


@given(records, st.data())
def test_a_changed_byte_gives_a_record_or_a_record_error(record: JobRecord, draw: st.DataObject) -> None:
    data = bytearray(encode_record(record))
    data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    try:
        read, end = decode_record(bytes(data))
    except RecordError:
        return
    assert encode_record(read) == data[:end]


@given(records)
def test_a_split_record_gives_the_fields_of_a_decoded_one(record: JobRecord) -> None:
    body, ctime, expires, key = split_record(encode_record(record))
    assert (body, ctime, expires) == (record.body, record.ctime, record.expires)
    assert key


@given(records, job_ids, unsigned(64), unsigned(32), st.binary(max_size=60))
def test_a_key_leaves_out_id_times_and_body(
    record: JobRecord, job_id: bytes, ctime: int, expires: int, body: bytes
) -> None:
    other = record._replace(id=job_id, ctime=ctime, expires=expires, body=body)
    assert split_record(encode_record(other))[3] == split_record(encode_record(record))[3]


@given(records, records)
def test_records_with_the_same_key_are_alike_in_all_else(one: JobRecord, other: JobRecord) -> None:
    mixed = one._replace(queue=other.queue, nodes=other.nodes)
    for record in (other, mixed, mixed._replace(queue=one.queue), one._replace(retry=other.retry)):
        alike = record._replace(id=one.id, ctime=one.ctime, expires=one.expires, body=one.body) == one
        assert (split_record(encode_record(record))[3] == split_record(encode_record(one))[3]) == alike


@given(records, st.data())
def test_damage_that_leaves_the_key_as_it_was_leaves_a_record(record: JobRecord, data: st.DataObject) -> None:
    whole = encode_record(record)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:at] + bytes([data.draw(unsigned(8))]) + whole[at + 1 :]
    body, ctime, expires, key = split_record(damaged)
    if key == split_record(whole)[3]:
        found = record._replace(id=damaged[4:44], body=body, ctime=ctime, expires=expires)
        assert decode_record(damaged) == (found, len(damaged))


@pytest.mark.parametrize("data", [b"", GOLDEN[:83], GOLDEN + b"!", changed(72, b"\xff" * 4), changed(81, b"\xff" * 4)])
def test_there_is_no_key_where_the_lengths_do_not_add_up(data: bytes) -> None:
    assert split_record(data) == (b"", 0, 0, b"")


@pytest.mark.parametrize("data", [data for data, _ in DAMAGED])
def test_damage_has_no_key_or_one_of_no_good_record(data: bytes) -> None:
    assert split_record(data)[3] != split_record(GOLDEN)[3]
