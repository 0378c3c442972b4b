"""The peer that other tests trust: two of them talk to each other, and notice what no original node would send."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock.wire.record import JobRecord, encode_record
from tests.bus_messages import (
    ABOUT_A_JOB,
    BCAST_QUEUED,
    BCAST_WILLQUEUE,
    DELIVERED,
    INCR_NACKS,
    LEAVING,
    NOREPLY,
    PFAIL,
    TYPES,
    BadFrameError,
    BadJobError,
    Gossip,
    JobCopy,
    Message,
    decode,
    decode_jobs,
    take_frame,
)
from tests.bus_peer import BUS_PORT_OFFSET, BusPeer
from tests.processes import wait_until

StartPeer = Callable[..., BusPeer]
Pair = tuple[BusPeer, BusPeer]

SENDER = b"0123456789abcdef0123456789abcdef01234567"
OTHER = b"89abcdef0123456789abcdef0123456789abcdef"
JOB_ID = b"D-01234567-abcdefghijklmnopqrstuvwx-05a1"
JOB = JobCopy(
    id=JOB_ID,
    queue=b"mail",
    body=b"\0\xff",
    nodes=(SENDER, OTHER),
    state=2,
    gc_retry=3,
    flags=BCAST_QUEUED | BCAST_WILLQUEUE,
    replicate=0x0102,
    expires=0x03040506,
    ctime=0x0708090A0B0C0D0E,
    delay=0x10111213,
    retry=0x14151617,
    nacks=0x1819,
    deliveries=0x1A1B,
)
PLAIN_JOB = JobCopy(id=JOB_ID, ctime=1, nodes=(SENDER,))
ENTRY = Gossip(OTHER, "127.0.0.1", 0x1234, PFAIL, 0x01020304, 0x05060708)

# A message of each type, with a value in every field that the type has.
SAMPLES: dict[str, dict[str, Any]] = {
    "PING": {"gossip": (ENTRY, replace(ENTRY, ip="::1"))},
    "PONG": {"gossip": (ENTRY,)},
    "MEET": {},
    "FAIL": {"node": OTHER},
    "REPLJOB": {"jobs": (JOB,), "marks": NOREPLY},
    "GOTJOB": {"job_id": JOB_ID},
    "ENQUEUE": {"job_id": JOB_ID, "aux": 7},
    "QUEUED": {"job_id": JOB_ID, "marks": INCR_NACKS},
    "SETACK": {"job_id": JOB_ID, "aux": 3},
    "WILLQUEUE": {"job_id": JOB_ID},
    "GOTACK": {"job_id": JOB_ID, "aux": 1},
    "DELJOB": {"job_id": JOB_ID},
    "NEEDJOBS": {"wanted": 100, "queue": b"mail"},
    "YOURJOBS": {"jobs": (JOB, PLAIN_JOB)},
    "WORKING": {"job_id": JOB_ID},
    "PAUSE": {"pause": 3, "queue": b""},
}
LENGTHS = {"PING": 352, "PONG": 248, "MEET": 144, "FAIL": 184, "NEEDJOBS": 156, "PAUSE": 152}


def sample(kind: str, **fields: Any) -> Message:
    return Message(**{"kind": kind, "sender": SENDER, "port": 7711, **SAMPLES.get(kind, {}), **fields})


def complaints_of(message: Message) -> list[str]:
    return decode(message.encode())[1]


@pytest.fixture
def pair(start_peer: StartPeer) -> Pair:
    """Two peers that have met."""
    left, right = start_peer(), start_peer()
    assert left.join(right.host, right.port) == right.id
    return left, right


# Bytes


def test_a_header_has_its_fields_where_the_reference_has_them() -> None:
    assert sample("QUEUED", unused=b"u" * 34, flags=0x84).encode() == (
        b"DbuZ\0\0\0\xbc\0\1\0\0\0\7\0\0"
        + SENDER
        + bytes(46)
        + b"u" * 34
        + b"\x1e\x1f\0\x84\0\2\0\0"
        + JOB_ID
        + bytes(4)
    )


def test_gossip_has_its_fields_where_the_reference_has_them() -> None:
    raw = sample("PONG").encode()
    assert raw[14:16] == b"\0\1"
    assert raw[144:] == OTHER + b"\1\2\3\4\5\6\7\x08" + b"127.0.0.1".ljust(46, b"\0") + b"\x12\x34\0\1" + bytes(6)


def test_a_job_has_its_fields_where_the_reference_has_them() -> None:
    assert JOB.encode() == (
        b"\xa6\0\0\0" + JOB_ID + b"\x32\3\2\1\6\5\4\3\x0e\x0d\x0c\x0b\x0a\x09\x08\x07\x13\x12\x11\x10\x17\x16\x15\x14"
        b"\x19\x18\x1b\x1a\4\0\0\0mail\2\0\0\0\0\xff\2\0\0\0" + SENDER + OTHER
    )


def test_a_job_is_the_same_in_the_codec_of_the_broker() -> None:
    record = JobRecord(
        id=JOB.id,
        state=JOB.state,
        gc_retry=JOB.gc_retry,
        flags=JOB.flags,
        replicate=JOB.replicate,
        expires=JOB.expires,
        ctime=JOB.ctime,
        delay=JOB.delay,
        retry=JOB.retry,
        nacks=JOB.nacks,
        deliveries=JOB.deliveries,
        queue=JOB.queue,
        body=JOB.body,
        nodes=JOB.nodes,
    )
    assert encode_record(record) == JOB.encode()


def test_jobs_are_read_one_after_another() -> None:
    assert list(decode_jobs(JOB.encode() + PLAIN_JOB.encode())) == [JOB, PLAIN_JOB]


def test_a_job_that_is_cut_off_is_none() -> None:
    raw = JOB.encode()
    for cut in range(1, len(raw)):
        with pytest.raises(BadJobError):
            list(decode_jobs(raw[:cut]))


def test_a_job_whose_inner_lengths_do_not_add_up_is_none() -> None:
    raw = JOB.encode()
    for place in (0, 72, 80, 86):
        for wrong in (raw[place] + 1, raw[place] - 1):
            with pytest.raises(BadJobError):
                list(decode_jobs(raw[:place] + bytes([wrong]) + raw[place + 1 :]))


@pytest.mark.parametrize("kind", TYPES)
def test_the_bytes_of_a_message_give_its_fields_again(kind: str) -> None:
    raw = sample(kind).encode()
    message, complaints = decode(raw)
    assert complaints == []
    assert message.understood
    assert {name: getattr(message, name) for name in SAMPLES[kind]} == SAMPLES[kind]
    assert (message.sender, message.port, message.length, message.raw) == (SENDER, 7711, len(raw), raw)
    assert message.encode() == raw


@pytest.mark.parametrize("kind", TYPES)
def test_a_message_is_as_long_as_the_reference_says(kind: str) -> None:
    jobs = sum(len(job.encode()) for job in SAMPLES[kind].get("jobs", ()))
    assert len(sample(kind).encode()) == (188 if kind in ABOUT_A_JOB else LENGTHS.get(kind, 152 + jobs))


def test_a_frame_is_taken_when_its_last_byte_is_there() -> None:
    raw = sample("REPLJOB").encode()
    buffer = bytearray()
    for byte in raw:
        assert take_frame(buffer) is None
        buffer.append(byte)
    buffer += b"Dbu"
    assert take_frame(buffer) == raw
    assert buffer == b"Dbu"


@pytest.mark.parametrize("fields", [{"magic": b"dbuZ"}, {"length": 143}, {"length": 0}])
def test_no_frame_begins_with_another_signature_or_is_shorter_than_a_header(fields: dict[str, Any]) -> None:
    with pytest.raises(BadFrameError):
        take_frame(bytearray(sample("PING", **fields).encode()))


# Violations


@pytest.mark.parametrize("kind", TYPES)
def test_a_payload_of_another_length_is_a_violation(kind: str) -> None:
    raw = sample(kind).encode()
    longer = sample(kind, tail=b"!")
    shorter = raw[:4] + (len(raw) - 1).to_bytes(4, "big") + raw[8:-1]
    assert complaints_of(longer)
    if kind != "MEET":  # which has no payload here
        assert decode(shorter)[1]
        assert not decode(shorter)[0].understood


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("PING", {"version": 2}),
        ("PING", {"reserved": 1}),
        ("PING", {"address": b"127.0.0.1".ljust(46, b"\0")}),
        ("PING", {"state": 1}),
        ("PING", {"marks": 8}),
        ("PING", {"sender": b"x" * 40}),
        ("PING", {"port": 0}),
        ("PING", {"entries": 3}),
        ("PING", {"gossip": (replace(ENTRY, ip="here"),)}),
        ("PING", {"gossip": (replace(ENTRY, id=b"G" * 40),)}),
        ("TYPE16", {}),
        ("TYPE65535", {}),
        ("FAIL", {"node": b"?" * 40}),
        ("GOTJOB", {"job_id": b"X" * 40}),
        ("GOTJOB", {"aux": 1}),
        ("QUEUED", {"aux": 1}),
        ("WILLQUEUE", {"aux": 1}),
        ("DELJOB", {"aux": 1}),
        ("WORKING", {"aux": 1}),
        ("GOTACK", {"aux": 2}),
        ("NEEDJOBS", {"wanted": 0}),
        ("NEEDJOBS", {"wanted": 101}),
        ("PAUSE", {"pause": 4}),
        ("REPLJOB", {"jobs": ()}),
        ("REPLJOB", {"jobs": (JOB, PLAIN_JOB)}),
        ("REPLJOB", {"number_of_jobs": 2}),
        ("REPLJOB", {"number_of_jobs": 0}),
        ("REPLJOB", {"bytes_of_jobs": 1}),
        ("REPLJOB", {"jobs": (replace(JOB, flags=DELIVERED),)}),
        ("REPLJOB", {"jobs": (replace(JOB, flags=8),)}),
        ("REPLJOB", {"jobs": (replace(JOB, state=4),)}),
        ("REPLJOB", {"jobs": (replace(JOB, id=b"X" * 40),)}),
        ("REPLJOB", {"jobs": (replace(JOB, expires=0),)}),
        ("REPLJOB", {"jobs": (replace(JOB, ctime=0),)}),
        ("REPLJOB", {"jobs": (replace(JOB, replicate=0),)}),
        ("REPLJOB", {"jobs": (replace(JOB, nodes=(b"?" * 40,)),)}),
        ("REPLJOB", {"jobs": (replace(JOB, nodes=(OTHER, OTHER)),)}),
        ("YOURJOBS", {"jobs": ()}),
        ("YOURJOBS", {"jobs": (PLAIN_JOB,) * 101}),
    ],
)
def test_what_no_original_sends_is_a_violation(kind: str, fields: dict[str, Any]) -> None:
    assert len(complaints_of(sample(kind, **fields))) == 1


def test_the_zeros_of_gossip_and_of_marks_are_checked() -> None:
    raw = bytearray(sample("PONG").encode())
    for place in (142, 143, 144 + 57, 144 + 98, 144 + 103):
        changed = raw.copy()
        changed[place] = 1
        assert len(decode(bytes(changed))[1]) == 1, place


def test_the_unused_area_may_hold_anything_and_is_kept() -> None:
    message, complaints = decode(sample("PING", unused=b"anything".ljust(34, b"!")).encode())
    assert complaints == []
    assert message.unused == b"anything".ljust(34, b"!")


# Two peers


def test_two_peers_know_each_other_after_a_join(pair: Pair) -> None:
    left, right = pair
    assert right.wait_until_met() == left.id
    assert [message.kind for message in right.seen(("PING", "MEET"), sender=left.id)] == ["MEET"]
    assert left.wait_for("PING", sender=right.id).inbound
    assert not left.wait_for("PONG", sender=right.id).inbound


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "PONG"])
def test_a_peer_receives_what_another_one_sends(pair: Pair, kind: str) -> None:
    left, right = pair
    right.wait_for("MEET")
    left.send(kind, **SAMPLES[kind])
    message = right.wait_for(kind, sender=left.id, port=left.port, **SAMPLES[kind])
    assert message.raw == left.message(kind, **SAMPLES[kind]).encode()
    assert message.inbound


def test_a_peer_answers_with_a_pong_on_the_same_link(pair: Pair) -> None:
    left, right = pair
    right.flags |= LEAVING
    left.wait_for("PONG")
    left.send("PING", gossip=(ENTRY,))
    assert left.wait_for("PONG", sender=right.id).flags & LEAVING


def test_a_silent_peer_answers_when_it_speaks_again(pair: Pair) -> None:
    left, right = pair
    right.silence()
    left.wait_for("PONG")
    left.send("PING")
    right.wait_for("PING")
    assert len(left.seen("PONG")) == 1
    right.speak()
    left.wait_for("PONG")


def test_a_fence_waits_for_what_was_sent_before(pair: Pair) -> None:
    left, right = pair
    for number in range(100):
        left.send("NEEDJOBS", wanted=1, queue=b"%d" % number)
    left.fence()
    assert [message.queue for message in right.seen("NEEDJOBS")] == [b"%d" % number for number in range(100)]


def test_a_fence_waits_for_an_answer(pair: Pair) -> None:
    left, right = pair
    left.fence()
    right.silence()
    with pytest.raises(AssertionError, match="no sign of a PONG"):
        left.fence(timeout=0.05)
    right.speak()
    left.fence()


def test_each_message_is_given_once_and_seen_often(pair: Pair) -> None:
    left, right = pair
    for wanted in (1, 2):
        left.send("NEEDJOBS", wanted=wanted, queue=b"q")
    assert [right.wait_for("NEEDJOBS").wanted for _ in range(2)] == [1, 2]
    with pytest.raises(AssertionError, match="no sign of NEEDJOBS"):
        right.wait_for("NEEDJOBS", timeout=0)
    assert len(right.seen("NEEDJOBS", where=lambda message: message.wanted < 9)) == 2


def test_a_large_message_arrives(pair: Pair) -> None:
    left, right = pair
    job = left.new_job(body=bytes(range(256)) * 40_000)
    left.send("REPLJOB", jobs=(job,))
    assert right.wait_for("REPLJOB").jobs == (job,)


def test_dropped_links_are_opened_again(pair: Pair) -> None:
    left, right = pair
    left.drop_links()
    right.wait_for_hangup()
    right.wait_for("PING", sender=left.id)
    left.fence()
    right.fence()


def test_a_peer_that_comes_back_is_found_again(pair: Pair, start_peer: StartPeer) -> None:
    left, right = pair
    right.close()
    left.wait_for_hangup()
    again = start_peer(port=right.port, node_id=right.id)
    again.wait_for("PING", sender=left.id)
    left.fence()


def test_a_stranger_is_heard_and_sends_no_word_of_its_own(start_peer: StartPeer) -> None:
    left, right = start_peer(), start_peer()
    left.connect(right.host, right.port)
    left.send("DELJOB", job_id=JOB_ID)
    right.wait_for("DELJOB")
    assert [message.kind for message in right.received] == ["DELJOB"]


def test_a_peer_links_to_several_nodes_and_knows_which(start_peer: StartPeer) -> None:
    one, two, three = start_peer(), start_peer(), start_peer()
    for other in (two, three):
        one.join(other.host, other.port)
    one.send("DELJOB", to=three.id, job_id=JOB_ID)
    three.wait_for("DELJOB")
    one.fence(two.id)
    assert not two.seen("DELJOB")
    with pytest.raises(AssertionError, match="2 nodes"):
        one.send("DELJOB", job_id=JOB_ID)


@pytest.mark.parametrize("fields", [{"magic": b"DbuX"}, {"length": 100}])
def test_a_bad_frame_is_noted_and_ends_its_link(pair: Pair, fields: dict[str, Any]) -> None:
    left, right = pair
    left.send("PING", **fields)
    left.wait_for_hangup()
    assert len(right.violations) == 1
    right.violations.clear()


@pytest.mark.parametrize(
    ("kind", "fields"), [("PING", {"version": 9}), ("TYPE16", {}), ("GOTJOB", {"job_id": JOB_ID, "tail": b"!"})]
)
def test_a_bad_message_is_noted_and_ignored(pair: Pair, kind: str, fields: dict[str, Any]) -> None:
    left, right = pair
    left.send(kind, **fields)
    left.fence()
    assert len(right.violations) == 1
    assert right.seen(kind, raw=left.message(kind, **fields).encode()) == []
    right.violations.clear()


def test_a_ping_that_is_not_understood_is_not_answered(pair: Pair) -> None:
    left, right = pair
    left.send("PING", version=9)
    left.fence()
    assert len(left.seen("PONG")) == 2  # to the MEET and to the fence
    right.violations.clear()


def test_a_message_on_the_wrong_link_is_noted(pair: Pair) -> None:
    left, right = pair
    left.send("PONG")
    left.fence()
    assert right.violations == ["PONG on a link that its sender opened"]
    right.violations.clear()


def test_an_answer_other_than_a_pong_is_noted(start_peer: StartPeer) -> None:
    peer = start_peer()
    with socket.create_server((peer.host, 0)) as listener:
        peer.connect(peer.host, listener.getsockname()[1] - BUS_PORT_OFFSET)
        link, _ = listener.accept()
        with link:
            link.sendall(sample("PING").encode())
            wait_until(lambda: peer.violations)
    assert peer.violations == ["PING on a link that this peer opened"]
    peer.violations.clear()


def test_bytes_may_come_one_by_one(start_peer: StartPeer) -> None:
    peer = start_peer()
    with socket.create_connection((peer.host, peer.port + BUS_PORT_OFFSET)) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in sample("REPLJOB").encode():
            link.sendall(bytes([byte]))
        assert peer.wait_for("REPLJOB").jobs == (JOB,)
