"""Reading journals back: torn tails, damage, the original's files, and the exact bytes of ours."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.core.jobs import ACTIVE, BCAST_QUEUED, BCAST_WILLQUEUE, DELIVERED, QUEUED
from penstock.broker.core.membership import Peer
from penstock.broker.core.node import Node
from penstock.broker.journal import Journal
from penstock.broker.recovery import JOB_FORMS, STATE_FORMS, Load, Reader, check
from penstock.errors import JournalError
from penstock.sim import disk as sim_disk
from penstock.sim.disk import SimDisk
from penstock.wire.record import decode_record, encode_record
from tests.sim.histories import WALL_START_S, SimDesk
from tests.unit.broker.harness import NODE_ID

AOF, STATES = "disque.aof", "disque.aof.state"
NOW_S = int(WALL_START_S)
OTHER_NODE = b"ab12" * 10


def start(disk: SimDisk, wall_s: float = WALL_START_S, **directives: object) -> SimDesk:
    directives.setdefault("appendfsync", "always")
    return SimDesk(disk, wall_s, 1, **directives).start()


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def original(
    number: int,
    *,
    state: int = 2,
    flags: int = 1,
    retry: int = 60,
    delay: int = 0,
    expires: int = NOW_S + 1000,
    nodes: tuple[bytes, ...] = (NODE_ID,),
    created_s: int = NOW_S - 5,
) -> bytes:
    """A job as the reference's section 6.1 has it, put together by hand."""
    job_id = b"D-%b-%024d-05a%d" % (NODE_ID[:8], number, retry > 0)
    body, queue = b"body %d" % number, b"q"
    fields = struct.pack(
        "<40sBBHIQIIHH", job_id, state, flags, 1, expires, created_s * 10**9 + number, delay, retry, 0, 0
    )
    data = fields + struct.pack("<I", len(queue)) + queue + struct.pack("<I", len(body)) + body
    data += struct.pack("<I", len(nodes)) + b"".join(nodes)
    return struct.pack("<I", len(data)) + data


def loadjob(record: bytes) -> bytes:
    return command(b"LOADJOB", record)


def peeked(server: SimDesk, queue: str = "q") -> list[bytes]:
    return [body for _, _, body in server.client().call("QPEEK", queue, 1000)]


def files_of(disk: SimDisk) -> dict[str, bytes]:
    return {name: disk.content(name) for name in disk.names}


@pytest.fixture
def small() -> SimDisk:
    """A small journal with something of everything in both files, and without checksums, as older ones are."""
    server = start(SimDisk())
    client = server.client()
    ids = [client.call("ADDJOB", "q", f"job {n}", 0) for n in range(3)]
    client.call("GETJOB", "LEASE", 5000, "FROM", "q")
    client.call("PAUSE", "p", "in")
    client.call("ADDJOB", "q", "\r\n*1\r\n$5\r\nCLEAN\r\n\0\0", 0)
    client.call("CLAIM", "key", "FROM", "q")
    client.call("DELJOB", ids[2])
    left = server.disk.process_crash()
    left.remove(AOF + ".sum")
    return left


def whole_records(data: bytes) -> set[int]:
    """The offsets at which a record ends; the framing is read by hand."""
    ends, at = {0}, 0
    while at < len(data):
        line_end = data.index(b"\r\n", at)
        words, at = int(data[at + 1 : line_end]), line_end + 2
        for _ in range(words):
            line_end = data.index(b"\r\n", at)
            at = line_end + 2 + int(data[at + 1 : line_end]) + 2
        ends.add(at)
    return ends


@pytest.mark.slow
@pytest.mark.parametrize("fill", [b"", b"\0" * 3, b"\0" * 5000])
@pytest.mark.parametrize("name", [AOF, STATES])
def test_a_tail_torn_at_any_byte_is_cut_at_the_last_whole_record(small: SimDisk, name: str, fill: bytes) -> None:
    data = small.content(name)
    ends = whole_records(data)
    for size in range(len(data) + 1):
        disk = small.process_crash()
        disk.put(name, data[:size] + fill)
        last = max(end for end in ends if end <= size)
        start(disk)
        kept = disk.content(name)
        assert kept[:last] == data[:last]
        # The new process has noted its start in the second file, and nothing in the first.
        assert b"START" in kept[last:] if name == STATES else len(kept) == last
        assert last in whole_records(kept)
        tail = data[last:size] + fill
        assert (name + ".torn" in disk.names) == bool(tail)
        if tail:
            assert disk.content(name + ".torn") == tail
        start(disk.process_crash())


def test_a_second_torn_tail_is_kept_behind_the_first(small: SimDisk) -> None:
    whole = small.content(AOF)
    small.put(AOF, whole + b"*2\r\n$7\r\nfirst")
    start(small)
    small.put(AOF, whole + b"*2\r\n$7\r\nsecond")
    start(small)
    assert small.content(AOF + ".torn") == b"*2\r\n$7\r\nfirst*2\r\n$7\r\nsecond"


def test_what_stands_before_a_torn_tail_is_there(small: SimDisk) -> None:
    data = small.content(AOF)
    second_end = sorted(whole_records(data))[2]
    small.put(AOF, data[: second_end + 30])
    small.remove(STATES)
    server = start(small, aof_enqueue_jobs_once=True)
    assert peeked(server) == [b"job 0", b"job 1"]


@pytest.mark.parametrize("name", [AOF, STATES])
def test_a_torn_tail_is_refused_where_the_operator_says_so(small: SimDisk, name: str) -> None:
    small.put(name, small.content(name)[:-3])
    before = files_of(small)
    with pytest.raises(JournalError, match=r"the last record is incomplete at byte \d+\. Nothing was changed; "):
        start(small, aof_load_truncated=False)
    assert files_of(small) == before


HIDES = "a record whose length is wrong, or that was overwritten: others begin behind it at byte"
DAMAGE = [
    pytest.param(AOF, 1, b"x", r"disque\.aof: bad framing at byte", id="framing"),
    pytest.param(AOF, 1, b"\0", r"disque\.aof: bad framing at byte", id="a zero"),
    pytest.param(AOF, 1, b"\0" * 4096, r"disque\.aof: bad framing at byte", id="a block of zeros"),
    pytest.param(AOF, 1, command(b"FLUSHALL"), r"disque\.aof: unknown command b'FLUSHALL' at byte", id="unknown"),
    pytest.param(AOF, 1, command(b"DELJOB"), r"disque\.aof: wrong number of words in DELJOB at byte", id="words"),
    pytest.param(AOF, 1, b":5\r\n", r"disque\.aof: this isn't a record at byte", id="no record"),
    pytest.param(AOF, 1, b"*0\r\n", r"disque\.aof: this isn't a record at byte", id="empty"),
    pytest.param(AOF, 1, loadjob(b"short"), r"disque\.aof: damaged job record \(.*\) at byte", id="record"),
    pytest.param(AOF, 1, loadjob(original(1)[:-1]), r"disque\.aof: damaged job record \(.*\) at byte", id="cut record"),
    pytest.param(AOF, 1, b"*2\r\n$7\r\nLOADJOB\r\n$90128\r\n", HIDES, id="a length that goes beyond the end"),
    pytest.param(AOF, 1, b"*2\r\n$7\r\nLOADJOB\r\n$99999999999\r\nx", HIDES, id="a length beyond any file"),
    pytest.param(STATES, 1, b"*3\r\n$5\r\nSTATE\r\n$2\r\nD-\r\n$9999\r\n", HIDES, id="states hidden"),
    pytest.param(STATES, 1, b"x", r"disque\.aof\.state: bad framing at byte", id="states"),
    pytest.param(STATES, 1, loadjob(original(1)), r"state: unknown command b'LOADJOB' at byte", id="wrong file"),
    pytest.param(STATES, 1, command(b"PAUSE", b"q", b"x"), r"PAUSE record with an unknown state at byte", id="pause"),
    pytest.param(STATES, 1, command(b"PAUSE", b"q", b"7"), r"PAUSE record with an unknown state at byte", id="pause 7"),
]


@pytest.mark.parametrize(("name", "after", "garbage", "text"), DAMAGE)
def test_damage_in_the_middle_stops_the_start_and_changes_nothing(
    small: SimDisk, name: str, after: int, garbage: bytes, text: str
) -> None:
    data = small.content(name)
    at = sorted(whole_records(data))[after]
    small.put(name, data[:at] + garbage + data[at:])
    other = AOF if name == STATES else STATES
    small.put(other, small.content(other)[:-1])  # torn, too: it must not be cut either
    before = files_of(small)
    with pytest.raises(JournalError, match=f"{text} {at}[.] Nothing was changed; .*check-aof --fix"):
        start(small)
    assert files_of(small) == before


def test_another_file_is_no_torn_tail(small: SimDisk) -> None:
    small.put(AOF, b"# A text\nof lines\n")
    with pytest.raises(JournalError, match="this isn't a record at byte 0"):
        start(small)


def test_a_state_record_of_another_size_stops_the_start(small: SimDisk) -> None:
    job_id = small.content(AOF).partition(b"D-")[2][:38]
    small.put(STATES, small.content(STATES) + command(b"STATE", b"D-" + job_id, b"short"))
    with pytest.raises(JournalError, match=r"a STATE record of 5 bytes at byte \d+"):
        start(small)


def test_a_state_of_a_job_that_is_gone_means_nothing(small: SimDisk) -> None:
    small.put(STATES, small.content(STATES) + command(b"STATE", b"D-gone", b"short"))
    start(small)


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 40, 300])
def test_it_does_not_matter_where_the_pieces_of_a_file_end(
    small: SimDisk, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = [(AOF, JOB_FORMS), (STATES, STATE_FORMS)]
    whole = [list(Reader(small, name, forms)) for name, forms in readers]
    monkeypatch.setattr(sim_disk, "READ_BYTES", piece_bytes)
    assert [list(Reader(small, name, forms)) for name, forms in readers] == whole
    assert [len(commands) for commands in whole] == [len(whole_records(small.content(name))) - 1 for name, _ in readers]


def test_a_record_may_be_longer_than_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_disk, "READ_BYTES", 1000)
    disk = SimDisk()
    body = b"x" * 1_000_000
    disk.put(AOF, command(b"DELJOB", body) + command(b"DELJOB", b"1"))
    reader = Reader(disk, AOF, JOB_FORMS)
    assert [[len(word) for word in words] for words in reader] == [[6, len(body)], [6, 1]]
    assert reader.offset == reader.size


@pytest.mark.parametrize(
    "length", [b"$01\r\n", b"$1\rX", b"$1\n\n", b"$1\r\r", b"$+1\r\n", b"$\r\n", b"$" + b"1" * 30 + b"\r\n"]
)
def test_a_length_that_is_written_otherwise_is_bad_framing(small: SimDisk, length: bytes) -> None:
    small.put(AOF, b"*2\r\n$6\r\nDELJOB\r\n" + length + b"x\r\n" + small.content(AOF))
    with pytest.raises(JournalError, match="bad framing at byte 0"):
        start(small)


def test_a_length_beyond_the_end_of_the_file_is_a_torn_tail(small: SimDisk) -> None:
    data = small.content(AOF)
    small.put(AOF, data + b"*2\r\n$6\r\nDELJOB\r\n$999999999999\r\nx\r\n")
    start(small)
    assert small.content(AOF) == data


# The original's file: nothing in it tells whether a job was out with a worker.


def load_original(*records: bytes, **directives: object) -> SimDesk:
    disk = SimDisk()
    disk.put(AOF, b"".join(records))
    return start(disk, **directives)


@pytest.mark.parametrize("rewrites", [False, True])
@pytest.mark.parametrize("hours_back", [0, 1])
def test_tokens_grow_over_restarts_also_if_the_clock_is_set_back(hours_back: int, rewrites: bool) -> None:
    disk, wall_s, tokens = SimDisk(), WALL_START_S, []
    for _ in range(3):
        server = start(disk, wall_s)
        client = server.client()
        for _ in range(3):
            job_id = client.call("ADDJOB", "q", "body", 0)
            tokens.append(int(client.call("GETJOB", "LEASE", 5000, "FROM", "q")[0][3]))
            client.call("ACKLEASE", job_id, tokens[-1])
        if rewrites:
            client.call("BGREWRITEAOF")
            server.finish_rewrite()
        disk = server.disk.process_crash()
        wall_s -= hours_back * 3600
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("rewrites", [False, True])
@pytest.mark.parametrize("words", [("LEASE", 8000), ()])
def test_what_is_out_comes_back_in_time_also_if_the_clock_is_set_back(
    words: tuple[str | int, ...], rewrites: bool
) -> None:
    server = start(SimDisk())
    client = server.client()
    client.call("ADDJOB", "q", "body", 0, "RETRY", 8)
    client.call("GETJOB", *words, "FROM", "q")
    if rewrites:
        client.call("BGREWRITEAOF")
        server.finish_rewrite()
    server.advance(5)
    server = start(server.disk.process_crash(), server.wall_s - 3600)
    server.advance(2)
    assert peeked(server) == []
    server.advance(7)
    assert peeked(server) == [b"body"]


@pytest.mark.parametrize("size", [22, 26])
def test_states_of_earlier_versions_are_read(small: SimDisk, size: int) -> None:
    before = start(small.process_crash()).broker.node.jobs.count
    longer = rb"\$28\r\n(.{%d}).{%d}\r\n" % (size, 28 - size)
    short = re.sub(longer, rb"$%d\r\n\1\r\n" % size, small.content(STATES), flags=re.DOTALL)
    assert short != small.content(STATES)
    small.put(STATES, short)
    assert start(small).broker.node.jobs.count == before


def test_a_journal_that_does_not_say_where_its_tokens_begin_is_read() -> None:
    disk = SimDisk()
    disk.put(STATES, command(b"START", b"", b"always"))
    server = start(disk)
    server.client().call("ADDJOB", "q", "body", 0)
    assert int(server.client().call("GETJOB", "LEASE", 5000, "FROM", "q")[0][3]) > int(WALL_START_S * 1000) << 20


def test_a_start_whose_number_is_none_is_damage() -> None:
    disk = SimDisk()
    disk.put(STATES, command(b"START", b"", b"always", b"soon"))
    with pytest.raises(JournalError, match="a START record without a number at byte 0"):
        start(disk)


def test_an_original_queued_job_comes_back_after_its_retry_time() -> None:
    server = load_original(loadjob(original(1, retry=60)))
    client = server.client()
    (job,) = server.broker.node.jobs
    assert (job.state, job.body, job.rules.retry_s) == (ACTIVE, b"body 1", 60)
    server.advance(59)
    assert client.call("GETJOB", "NOHANG", "FROM", "q") is None
    server.advance(2)
    assert client.call("GETJOB", "NOHANG", "FROM", "q")[0][2] == b"body 1"


def test_that_time_is_kept_over_another_restart() -> None:
    server = load_original(loadjob(original(1, retry=60)))
    server.advance(30)
    left = start(server.disk.process_crash(), server.wall_s)
    assert peeked(left) == []
    left.advance(31)
    assert peeked(left) == [b"body 1"]


def test_an_original_active_job_comes_back_after_its_retry_time() -> None:
    server = load_original(loadjob(original(1, state=1, flags=1, retry=60)))
    server.advance(59)
    assert peeked(server) == []
    server.advance(2)
    assert peeked(server) == [b"body 1"]


def test_an_original_delayed_job_keeps_its_time() -> None:
    server = load_original(loadjob(original(1, state=1, flags=0, delay=30)))
    server.advance(24.5)
    assert peeked(server) == []
    server.advance(1)
    assert peeked(server) == [b"body 1"]


def test_an_original_at_most_once_job_is_shown_and_never_delivered() -> None:
    server = load_original(loadjob(original(1, retry=0)))
    (job,) = server.broker.node.jobs
    assert job.state == ACTIVE
    assert server.client().call("ENQUEUE", job.id) == 0
    server.advance(100)
    for _ in range(2):  # neither after a kill nor after an orderly stop
        server = start(server.disk.process_crash(), server.wall_s)
        server.advance(10)
        assert peeked(server) == []
        assert server.broker.persistence.close(rewrite=False)


def test_an_original_expired_job_is_dropped() -> None:
    server = load_original(loadjob(original(1, expires=NOW_S)), loadjob(original(2, expires=NOW_S + 1)))
    assert [job.body for job in server.broker.node.jobs] == [b"body 2"]


def test_an_original_deljob_ends_a_job_and_may_name_unknown_ones() -> None:
    record = original(1)
    server = load_original(command(b"DELJOB", b"D-unknown"), loadjob(record), command(b"DELJOB", record[4:44]))
    assert server.broker.node.jobs.count == 0


def test_a_controlled_restart_queues_what_was_queued_at_once() -> None:
    records = [loadjob(original(n, retry=retry)) for n, retry in ((2, 60), (1, 0), (3, 60))]
    server = load_original(*records, loadjob(original(4, state=1)), aof_enqueue_jobs_once=True)
    assert peeked(server) == [b"body 1", b"body 2", b"body 3"]
    deliveries = {job.body: job.deliveries for job in server.broker.node.jobs if job.rules.retry_s}
    assert deliveries[b"body 2"] == 1


def test_a_job_that_others_hold_too_waits_for_the_node_timeout() -> None:
    disk = SimDisk()
    nodes = (NODE_ID, OTHER_NODE)
    disk.put(AOF, loadjob(original(1, nodes=nodes)) + loadjob(original(2, nodes=(NODE_ID, b"cd34" * 10))))
    disk.put(STATES, command(b"START", b"", b"always"))
    server = SimDesk(disk, WALL_START_S, 1, cluster_node_timeout=15_000)
    server.broker.node.cluster.peers[OTHER_NODE] = Peer(OTHER_NODE, "127.0.0.1", 7712, 0, 0)
    server.broker.node.cluster.recount()
    server.start()
    assert peeked(server) == [b"body 2"], "the other node of that job is unknown: it is held here alone"
    server.advance(14.9)
    assert peeked(server) == [b"body 2"]
    server.advance(0.3)
    assert peeked(server) == [b"body 1", b"body 2"]


def test_jobs_alike_share_what_is_alike() -> None:
    jobs = {job.body: job for job in load_original(*[loadjob(original(n)) for n in range(1, 4)]).broker.node.jobs}
    first, second = jobs[b"body 1"], jobs[b"body 2"]
    assert first.rules is second.rules
    assert first.queue is second.queue
    assert first.holders is second.holders


def test_a_job_without_nodes_is_held_here_alone() -> None:
    server = load_original(loadjob(original(1, nodes=())))
    (job,) = server.broker.node.jobs
    assert job.holders is server.broker.node.alone


def test_who_holds_a_job_is_known_of_that_job_only() -> None:
    disk = SimDisk()
    records = [original(n) for n in (1, 2, 3)]
    disk.put(AOF, b"".join(map(loadjob, records)))
    held = command(b"HELD", records[1][4:44], NODE_ID + OTHER_NODE)
    disk.put(STATES, command(b"START", b"", b"always") + held)
    server = SimDesk(disk, WALL_START_S, 1)
    server.broker.node.cluster.peers[OTHER_NODE] = Peer(OTHER_NODE, "127.0.0.1", 7712, 0, 0)
    server.broker.node.cluster.recount()
    server.start()
    holders = {job.body: len(job.holders.delivered) for job in server.broker.node.jobs}
    assert holders == {b"body 1": 1, b"body 2": 2, b"body 3": 1}


def test_a_load_that_fails_leaves_no_job_half_queued() -> None:
    server = start(SimDisk())
    client = server.client()
    client.call("ADDJOBS", "q", 0, "BODIES", "1", "2", "3")
    server.disk.put(AOF, server.disk.content(AOF) + loadjob(original(1)[:-1]))
    with pytest.raises(JournalError, match="damaged job record"):
        server.broker.persistence.reload()
    node = server.broker.node
    assert [job.state for job in node.jobs] == [QUEUED] * 3
    assert node.queues.by_name[b"q"].length == 3
    assert peeked(server) == [b"1", b"2", b"3"]


# Our own file


def test_our_file_holds_nothing_but_records_of_the_original() -> None:
    server = start(SimDisk())
    client = server.client()
    queued = client.call("ADDJOB", "mail", "hello", 0, "RETRY", 60, "TTL", 1000)
    delayed = client.call("ADDJOB", "mail", "later", 0, "DELAY", 7, "RETRY", 5, "TTL", 1000)
    once = client.call("ADDJOB", "mail", "once", 0, "RETRY", 0, "TTL", 1000)
    client.call("GETJOB", "COUNT", 3, "FROM", "mail")
    client.call("NACK", queued)
    client.call("PAUSE", "mail", "out")
    client.call("ACKJOB", queued)

    def record(job_id: bytes, state: int, flags: int, ctime: int, delay: int, retry: int, body: bytes) -> bytes:
        expires = NOW_S + 1000
        data = job_id + struct.pack("<BBHIQIIHH", state, flags, 1, expires, ctime, delay, retry, 0, 0)
        data += b"\x04\0\0\0mail" + struct.pack("<I", len(body)) + body + b"\x01\0\0\0" + NODE_ID
        return loadjob(struct.pack("<I", len(data)) + data)

    ctime = NOW_S * 10**9
    assert server.disk.content(AOF) == (
        record(queued, QUEUED, BCAST_QUEUED | BCAST_WILLQUEUE, ctime, 0, 60, b"hello")
        + record(delayed, ACTIVE, 0, ctime + 1, 7, 5, b"later")
        + record(once, QUEUED, BCAST_QUEUED, ctime + 2, 0, 0, b"once")
        + command(b"DELJOB", once)
        + command(b"DELJOB", queued)
    )


def test_jobs_come_back_to_their_own_queues() -> None:
    server = start(SimDisk())
    for number in range(6):
        server.client().call("ADDJOB", f"q{number % 2}", number, 0)
    server = start(server.disk.process_crash())
    assert [peeked(server, "q0"), peeked(server, "q1")] == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]


def test_jobs_come_back_in_their_order_whatever_that_of_the_file() -> None:
    disk = SimDisk()
    disk.put(AOF, b"".join([loadjob(original(number)) for number in (4, 5, 2, 3, 6, 1, 7)]))
    disk.put(STATES, command(b"START", b"", b"always"))
    server = start(disk)
    taken = server.client().call("GETJOB", "COUNT", 10, "FROM", "q")
    assert [body for _, _, body in taken] == [b"body %d" % number for number in range(1, 8)]


def test_a_rewritten_file_holds_the_present_state_of_what_is_alive() -> None:
    server = start(SimDisk())
    client = server.client()
    job_id = client.call("ADDJOB", "q", "x", 0)
    gone = client.call("ADDJOB", "q", "gone", 0)
    client.call("GETJOB", "COUNT", 2, "FROM", "q")
    client.call("NACK", job_id)
    client.call("ACKJOB", gone)
    client.call("BGREWRITEAOF")
    server.finish_rewrite()
    data = server.disk.content(AOF)
    assert len(whole_records(data)) == 2
    record, _ = decode_record(data, data.index(b"D-") - 4)
    assert (record.id, record.state, record.nacks) == (job_id, QUEUED, 1)
    assert record.flags & DELIVERED


TEXT = st.binary(max_size=40) | st.sampled_from([b"%", b"%b%d%%", b"\r\n", b"\0" * 9, b"100 %s"])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(TEXT, st.lists(TEXT, min_size=1, max_size=4), st.sampled_from((0, 7, 300)), st.sampled_from((0, 5))),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 2500),
)
def test_the_fast_way_to_write_a_job_gives_the_same_bytes(
    adds: list[tuple[bytes, list[bytes], int, int]], pause_ms: int
) -> None:
    server = start(SimDisk())
    client = server.client()
    expected = b""
    for queue, bodies, retry, delay in adds:
        options = ["RETRY", retry, "TTL", 1000, "DELAY", delay]
        ids = client.call("ADDJOBS", queue, 0, *options, "BODIES", *bodies)
        journal = server.broker.journal
        assert journal is not None
        for job_id in ids:
            job = server.broker.node.jobs.get(job_id)
            assert job is not None
            expected += loadjob(encode_record(journal.record(job)))
        server.now_s += pause_ms / 1000
    assert server.disk.content(AOF) == expected


# Looking without touching


def test_check_tells_how_far_a_file_is_sound(small: SimDisk, tmp_path: Path) -> None:
    data = small.content(AOF)
    path = tmp_path / AOF
    path.write_bytes(data)
    result = check(str(path))
    assert (result.size, result.ok_up_to, result.problem, result.torn) == (len(data), len(data), None, False)
    assert (result.records, result.jobs) == (5, 3)
    ends = sorted(whole_records(data))
    for size in range(len(data)):
        path.write_bytes(data[:size])
        result = check(str(path))
        last = max(end for end in ends if end <= size)
        assert (result.ok_up_to, result.torn) == (last, last != size)
    path.write_bytes(data[: ends[2]] + b"garbage")
    result = check(str(path))
    assert (result.ok_up_to, result.torn) == (ends[2], False)
    assert result.problem == f"disque.aof: bad framing at byte {ends[2]}"
    path.write_bytes(data[: ends[1]] + loadjob(original(1)[:-1]))
    result = check(str(path))
    assert (result.ok_up_to, result.torn) == (ends[1], False)


def test_check_knows_the_second_file_by_its_name(small: SimDisk, tmp_path: Path) -> None:
    path = tmp_path / STATES
    path.write_bytes(small.content(STATES))
    assert check(str(path)).problem is None


def test_a_load_lets_others_have_a_turn() -> None:
    server = start(SimDisk())
    client = server.client()
    for _ in range(50):
        client.call("ADDJOBS", "q", 0, "BODIES", *[b"x"] * 100)
    node = Node(NODE_ID, bytes, server.broker)
    node.now_ms, node.wall_offset_ms = 1000, int(server.wall_s * 1000) - 1000
    load = Load(node, server.disk, AOF, cut_torn=True, enqueue_once=False, timeout_ms=1000)
    assert sum(1 for _ in load) >= 4
    assert load.result.restored == node.jobs.count == 5000
    assert isinstance(server.broker.journal, Journal)


def test_a_failure_in_gossip_keeps_the_journal_synced() -> None:
    server = SimDesk(SimDisk(), WALL_START_S, 1, appendfsync="everysec").start()
    job_id = server.client().call("ADDJOB", "q", "body", 0)
    blacklist: dict[bytes, Any] = server.broker.node.cluster.blacklist
    blacklist[b"a defect"] = "no time"
    for _ in range(30):
        server.now_s += 0.1
        with pytest.raises(TypeError):
            server.broker.cron()
    left = server.disk.crash(Random(1))  # of the machine: what was not synced is gone
    assert SimDesk(left, WALL_START_S + 60, 2).start().client().call("SHOW", job_id) is not None
