"""Checksums of the journal: damage that can still be read is found, and nothing good is taken for damage."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest

from penstock.broker.checksums import JOBS, RECORD, Block, BlockChecker, Checksums, read_checksums, unsummed
from penstock.errors import JournalError
from penstock.sim.disk import SimDisk
from tests.sim.histories import AOF, WALL_START_S, SimDesk

LONG = os.environ.get("PENSTOCK_LONG") == "1"
STATES = AOF + ".state"
SUMS = AOF + ".sum"


def start(disk: SimDisk, **directives: object) -> SimDesk:
    directives.setdefault("appendfsync", "always")
    return SimDesk(disk, WALL_START_S, 1, **directives).start()


def bodies(server: SimDesk) -> list[bytes]:
    return [body for _, _, body in server.client().call("QPEEK", "q", 1000)]


def fill(server: SimDesk) -> None:
    client = server.client()
    ids = [client.call("ADDJOB", "q", f"job {n}", 0) for n in range(4)]
    client.call("GETJOB", "LEASE", 5000, "FROM", "q")
    client.call("PAUSE", "p", "in")
    client.call("CLAIM", "key", "FROM", "q")
    client.call("DELJOB", ids[3])


@pytest.fixture
def disk() -> SimDisk:
    """A journal of a node that was stopped in order: every byte has a checksum."""
    server = start(SimDisk())
    fill(server)
    assert server.broker.persistence.close(rewrite=False)
    return server.disk.process_crash()


def with_bit_flipped(disk: SimDisk, name: str, bit: int) -> SimDisk:
    data = bytearray(disk.content(name))
    data[bit // 8] ^= 1 << bit % 8
    left = disk.process_crash()
    left.put(name, bytes(data))
    return left


def some_bits(size: int) -> list[int]:
    """One bit of each byte; all of them where there is time."""
    if LONG:
        return list(range(8 * size))
    random = Random(7)
    return [8 * at + random.randrange(8) for at in range(size)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [AOF, STATES])
def test_a_flipped_bit_anywhere_stops_the_start_and_changes_nothing(disk: SimDisk, name: str) -> None:
    for bit in some_bits(len(disk.content(name))):
        left = with_bit_flipped(disk, name, bit)
        before = {each: left.content(each) for each in left.names}
        with pytest.raises(JournalError, match=rf"^{name}: "):
            start(left)
        assert {each: left.content(each) for each in left.names} == before


def test_damage_that_can_be_read_is_named_with_its_place_and_what_to_do(disk: SimDisk) -> None:
    at = disk.content(AOF).index(b"job 1")
    with pytest.raises(
        JournalError, match=r"^disque\.aof: a block of \d+ bytes that doesn't match its checksum at byte"
    ):
        start(with_bit_flipped(disk, AOF, 8 * at))


def test_a_file_that_lost_its_end_is_not_taken_for_a_torn_tail(disk: SimDisk) -> None:
    for name in (AOF, STATES):
        left = disk.process_crash()
        left.put(name, left.content(name)[:-60])
        with pytest.raises(JournalError, match=rf"^{name}: 60 bytes that were on the disk are missing"):
            start(left)
        left.remove(name)
        with pytest.raises(JournalError, match=rf"^{name} is gone"):
            start(left)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_damaged_checksum_stops_nobody_and_is_told(disk: SimDisk, caplog: pytest.LogCaptureFixture) -> None:
    expected = bodies(start(disk.process_crash()))
    for bit in some_bits(len(disk.content(SUMS))):
        assert bodies(start(with_bit_flipped(disk, SUMS, bit))) == expected
    assert "checksums of the journal are damaged" in caplog.text


def test_without_checksums_all_is_loaded_and_has_some_then(disk: SimDisk) -> None:
    disk.remove(SUMS)
    server = start(disk)
    expected = bodies(server)
    assert expected == [b"job 2"]
    left = server.disk.process_crash()
    assert bodies(start(left.process_crash())) == expected
    with pytest.raises(JournalError, match="doesn't match its checksum"):
        start(with_bit_flipped(left, AOF, 8 * left.content(AOF).index(b"job 1")))


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
def test_what_a_killed_process_wrote_last_is_loaded_and_has_checksums_then(policy: str) -> None:
    server = start(SimDisk(), appendfsync=policy)
    fill(server)
    left = server.disk.process_crash()
    again = start(left, appendfsync=policy)
    assert bodies(again) == [b"job 2"]
    ended = again.disk.process_crash()
    with pytest.raises(JournalError, match="doesn't match its checksum"):
        start(with_bit_flipped(ended, AOF, 8 * ended.content(AOF).index(b"job 1")))


def test_what_stands_before_a_torn_tail_has_checksums_then() -> None:
    server = start(SimDisk())
    fill(server)
    left = server.disk.process_crash()
    left.put(AOF, left.content(AOF) + b"*2\r\n$7\r\nLOAD")
    ended = start(left).disk.process_crash()
    with pytest.raises(JournalError, match="doesn't match its checksum"):
        start(with_bit_flipped(ended, AOF, 8 * ended.content(AOF).index(b"job 1")))


def test_what_runs_for_long_has_checksums_within_two_seconds() -> None:
    server = start(SimDisk(), appendfsync="everysec")
    fill(server)
    server.advance(3)
    left = server.disk.process_crash()
    recorded = read_checksums(left, AOF)
    assert max(block.end for block in recorded.blocks[JOBS]) == len(left.content(AOF))
    assert recorded.damaged == 0


def test_a_rewrite_has_checksums_of_its_own(disk: SimDisk) -> None:
    server = start(disk)
    server.client().call("BGREWRITEAOF")
    while server.broker.persistence.step():
        pass
    left = server.disk.process_crash()
    assert bodies(start(left.process_crash())) == [b"job 2"]
    with pytest.raises(JournalError, match="doesn't match its checksum"):
        start(with_bit_flipped(left, AOF, 8 * left.content(AOF).index(b"job 2")))


def test_records_that_could_not_be_written_follow_when_there_is_room_again() -> None:
    disk = SimDisk()
    sums = Checksums(disk, AOF, ([unsummed(0)], [unsummed(0)]))
    for number in range(3):
        disk.fail_writes(errno.ENOSPC, after_bytes=number * 10)
        sums.add(JOBS, b"x" * 100)
        sums.cut()
        sums.commit()
    disk.heal()
    sums.commit()
    blocks, damaged = read_checksums(disk, AOF)
    assert [block[:2] for block in blocks[JOBS]] == [(0, 100), (100, 200), (200, 300)]
    assert damaged == 0


def test_a_block_whose_sync_failed_has_no_checksum() -> None:
    disk = SimDisk()
    sums = Checksums(disk, AOF, ([unsummed(0)], [unsummed(0)]))
    sums.add(JOBS, b"lost")
    sums.cut()
    sums.drop()
    sums.add(JOBS, b"kept")
    sums.cut()
    sums.commit()
    assert [block[:2] for block in read_checksums(disk, AOF).blocks[JOBS]] == [(4, 8)]


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
def test_blocks_are_checked_however_the_file_is_cut(piece: int) -> None:
    data = bytes(range(256)) * 2
    disk = SimDisk()
    sums = Checksums(disk, AOF, ([unsummed(10)], [unsummed(0)]))  # what came before has none
    for begin, end in ((10, 100), (100, 101), (101, 400)):
        sums.add(JOBS, data[begin:end])
        sums.cut()
    sums.commit()
    blocks = read_checksums(disk, AOF).blocks[JOBS]
    checker = BlockChecker(blocks)
    assert [checker.feed(data[at : at + piece]) for at in range(0, len(data), piece)].count(None) >= 1
    assert checker.missing() == 0
    assert [block[:2] for block in checker.tail] == [(400, 512)]
    bad = bytearray(data)
    bad[250] ^= 4
    checker = BlockChecker(blocks)
    found = [checker.feed(bytes(bad[at : at + piece])) for at in range(0, len(bad), piece)]
    assert next(block for block in found if block is not None)[:2] == (101, 400)


def test_a_piece_of_a_record_at_the_end_is_a_crashs() -> None:
    disk = SimDisk()
    sums = Checksums(disk, AOF, ([unsummed(0)], [unsummed(0)]))
    sums.add(JOBS, b"x" * 10)
    sums.cut()
    sums.commit()
    whole = disk.content(SUMS)
    for size in range(RECORD.size):
        disk.put(SUMS, whole + whole[:size] + bytes(RECORD.size if size == 0 else 0))
        assert read_checksums(disk, AOF) == (([Block(0, 10, read_checksums(disk, AOF).blocks[0][0].crc)], []), 0)


def test_blocks_end_before_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.checksums.BLOCK_BYTES", 100)
    disk = SimDisk()
    sums = Checksums(disk, AOF, ([unsummed(0)], [unsummed(0)]))
    data = bytes(range(250))
    sums.add(JOBS, data[:120])
    sums.add(JOBS, data[120:])
    sums.commit()
    assert read_checksums(disk, AOF).blocks[JOBS] == []  # not synced yet
    sums.cut()
    sums.commit()
    assert [block[:2] for block in read_checksums(disk, AOF).blocks[JOBS]] == [(0, 120), (120, 250)]
    checker = BlockChecker()
    checker.feed(data)
    assert [block[:2] for block in checker.tail] == [(0, 100), (100, 200), (200, 250)]
    again = SimDisk()
    older = Checksums(again, AOF, (checker.tail, [unsummed(0)]))
    older.add(JOBS, b"more")
    older.cut()
    older.commit()
    assert [block[:2] for block in read_checksums(again, AOF).blocks[JOBS]] == [(0, 100), (100, 200), (200, 254)]
