"""Checksums of the journal, in a file beside it, so that an original node still loads the journal itself.

`<name>.sum` is a list of records of 28 bytes, little endian, one for each block of the two files of a journal:

    offset  size  field
    0       1     which file: 0 the jobs' file, 1 the states' file
    1       3     zeros
    4       4     CRC-32 of the block
    8       8     where the block begins
    16      8     where it ends
    24      4     CRC-32 of this record up to here

A block has a record once it is known to be on the disk, so that no crash can make a good journal look damaged. What was
written since then, a second's worth at most with `everysec`, has none yet, and counts as it did without checksums.

    damage                                      what a start does
    a block that doesn't match its checksum     it is named, and the start refused
    a file that ends inside a block             the same: what was on the disk is gone
    no file of checksums                        nothing is checked: an older journal, or a crash within a rewrite
    a record that doesn't match its own CRC     it is passed over, and said; its block counts as one without a record
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple
from zlib import crc32

from penstock.broker.disk import Disk

SUM_SUFFIX: Final = ".sum"
JOBS: Final = 0
STATES: Final = 1
RECORD: Final = struct.Struct("<B3xIQQI")
OWN_CRC_BYTES: Final = 4
BLOCK_BYTES: Final = 1 << 20  # a block ends when it has this much: small enough to say where the damage is
# Records that wait while the file can't be written. Beyond this they are dropped: their blocks stay without.
WAITING_BYTES_MAX: Final = 1 << 20


class Block(NamedTuple):
    """A part of a file, and its checksum."""

    start: int
    end: int
    crc: int


# What was written to the two files and has no record yet. The last block of each may still grow.
Tails = tuple[list[Block], list[Block]]


class Checksums:
    """Writes the checksums of one journal, which hears of every byte that is written to its files."""

    def __init__(self, disk: Disk, name: str, tails: Tails, fresh: bool = False) -> None:
        self._file = disk.append(name + SUM_SUFFIX, fresh=fresh)
        self._open = [tail[-1] for tail in tails]  # the block that grows, by file
        self._ended = [_record(which, block) for which, tail in enumerate(tails) for block in tail[:-1]]
        self._pending: list[bytes] = []  # ended, and being synced
        self._ready = b""  # on the disk, and to be recorded

    def add(self, which: int, data: bytes) -> None:
        """Note what was appended to a file."""
        start, end, crc = self._open[which]
        block = self._open[which] = Block(start, end + len(data), crc32(data, crc))
        if block.end - start >= BLOCK_BYTES:
            self._end(which)

    def _end(self, which: int) -> None:
        block = self._open[which]
        if block.end > block.start:
            self._ended.append(_record(which, block))
            self._open[which] = Block(block.end, block.end, 0)

    def cut(self) -> None:
        """End the blocks here: what was written up to now is about to be synced, or is."""
        for which in (JOBS, STATES):
            self._end(which)
        self._pending += self._ended
        self._ended = []

    def commit(self) -> None:
        """Record the blocks that were cut: they are on the disk now. Never raises: the journal matters more."""
        if self._pending:
            self._ready += b"".join(self._pending)
            self._pending.clear()
        try:
            while self._ready:
                self._ready = self._ready[self._file.write(self._ready) :]
        except OSError:
            if len(self._ready) > WAITING_BYTES_MAX:
                self._ready = self._ready[: len(self._ready) % RECORD.size]  # the rest of one that was begun

    def drop(self) -> None:
        """Forget what was not recorded: a sync failed, and only new files heal that."""
        self._pending, self._ended = [], []
        self._open = [unsummed(block.end) for block in self._open]

    def sync(self) -> None:
        """Return when the records are on the disk."""
        self._file.sync()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def _record(which: int, block: Block) -> bytes:
    data = RECORD.pack(which, block.crc, block.start, block.end, 0)[:-OWN_CRC_BYTES]
    return data + crc32(data).to_bytes(OWN_CRC_BYTES, "little")


def unsummed(size: int) -> Block:
    """Return the empty block with which checksums go on behind what a file has already."""
    return Block(size, size, 0)


class Recorded(NamedTuple):
    """What the file of checksums says of the two files, and which of its own records are damaged."""

    blocks: tuple[list[Block], list[Block]]
    damaged: int


def read_checksums(disk: Disk, name: str) -> Recorded:
    """Read `<name>.sum`; without one, nothing is recorded. A piece of a record at the end is a crash's."""
    try:
        data = b"".join(disk.read(name + SUM_SUFFIX))
    except FileNotFoundError:
        data = b""
    blocks: tuple[list[Block], list[Block]] = ([], [])
    damaged, waiting = 0, 0
    for at in range(0, len(data) - RECORD.size + 1, RECORD.size):
        which, crc, start, end, own = RECORD.unpack_from(data, at)
        if own != crc32(data[at : at + RECORD.size - OWN_CRC_BYTES]) or which > STATES or start >= end:
            waiting += 1  # a crash may leave such records at the end; with good ones behind them it is damage
            continue
        damaged += waiting
        waiting = 0
        blocks[which].append(Block(start, end, crc))
    for found in blocks:
        found.sort()
    return Recorded(blocks, damaged)


class BlockChecker:
    """Checks the blocks of one file while it is read from its beginning; afterwards `tail` is what has no record."""

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        self._blocks = list(blocks)
        self._next = 0
        self._at = 0
        self._crc = 0
        self._from = 0  # where the bytes of `_crc` begin
        self._unrecorded: list[Block] = []  # whole blocks behind the last that has a record

    def feed(self, data: bytes) -> Block | None:
        """Take the next bytes of the file; return the block that doesn't match them, if there is one."""
        taken = 0
        while taken < len(data):
            block = self._blocks[self._next] if self._next < len(self._blocks) else None
            if block is not None and block.start < self._from:  # of something that was cut since: can't be checked
                self._next += 1
                continue
            if block is None:
                limit = self._from + BLOCK_BYTES
            else:
                limit = block.end if self._at >= block.start else block.start
            piece = data[taken : taken + limit - self._at]
            self._crc = crc32(piece, self._crc)
            self._at += len(piece)
            taken += len(piece)
            if self._at < limit:
                continue
            if block is None:
                self._unrecorded.append(Block(self._from, self._at, self._crc))
            elif self._at == block.end:
                if self._crc != block.crc:
                    return block
                self._next += 1
            self._from, self._crc = self._at, 0
        return None

    def missing(self) -> int:
        """Return how many bytes the file lacks of what the records say it has."""
        return max(0, max([block.end for block in self._blocks], default=0) - self._at)

    @property
    def tail(self) -> list[Block]:
        """What follows the last block that has a record; the last one may still grow."""
        return [*self._unrecorded, Block(self._from, self._at, self._crc)]
