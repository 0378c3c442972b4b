"""Reading a journal: at a start, for DEBUG LOADAOF, and for `penstock check-aof`.

Loading goes in slices (`load` is a generator), so that a node which brings back a million jobs still answers -LOADING
and INFO meanwhile. First the file of jobs is reduced to those that are alive, then the file of states to the last one
of each, then each survivor goes to `core.restoring`.

A tail that stops inside a record was torn by a crash: it was never acknowledged, so it is cut (and kept beside the
file). Zeros at the end belong to such a tail, since a power loss may leave the size of a file but not its last block,
and a whole record ends with a line. Damage anywhere else is never passed over: the node doesn't start, says where it
is, and has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import hiredis

from penstock.broker.core.jobs import Job
from penstock.broker.core.node import Node
from penstock.broker.core.restoring import Change, Restorer, Trust
from penstock.broker.disk import Disk, RealDisk
from penstock.broker.journal import ALWAYS, STATE, STATE_SUFFIX
from penstock.errors import JournalError
from penstock.wire.record import NODE_ID_BYTES, RecordError, decode_record

SLICE = 2000  # records handled before the shell has a turn: a few milliseconds
PAUSES = (b"0", b"1", b"2", b"3")
ADVICE = "Nothing was changed; cut it with `penstock check-aof --fix`, or restore the file from a backup"

Words = list[bytes]
# How many words each command of the two files has.
JOB_COMMANDS: dict[bytes, tuple[int, ...]] = {b"LOADJOB": (2,), b"DELJOB": (2,)}
STATE_COMMANDS: dict[bytes, tuple[int, ...]] = {
    b"STATE": (3, 4),
    b"HELD": (3,),
    b"PAUSE": (3,),
    b"START": (3,),
    b"CLEAN": (1,),
}


class Damage(JournalError):
    """A journal that can't be trusted beyond an offset; `torn` if only its tail is incomplete."""

    def __init__(self, name: str, offset: int, what: str, torn: bool) -> None:
        super().__init__(f"{name}: {what} at byte {offset}")
        self.offset = offset
        self.torn = torn


class CheckResult(NamedTuple):
    """What a check found."""

    size: int
    ok_up_to: int
    records: int
    jobs: int  # alive at the end of the good part
    problem: str | None
    torn: bool


class Loaded(NamedTuple):
    """What a load brought back, for the log."""

    restored: int
    expired: int
    withheld: int
    cut_bytes: int


class Reader:
    """Reads the commands of one file; `offset` is the end of the last good one."""

    def __init__(self, disk: Disk, name: str, commands: dict[bytes, tuple[int, ...]]) -> None:
        self.name = name
        self.offset = 0
        self.size = 0
        self._disk = disk
        self._commands = commands

    def __iter__(self) -> Iterator[Words]:
        parser = hiredis.Reader(notEnoughData=Ellipsis)
        zeros = 0  # held back, until something else follows them
        for piece in self._disk.read(self.name):
            self.size += len(piece)
            data = piece.rstrip(b"\0")
            if data:
                parser.feed(bytes(zeros) + data)
                zeros = 0
            zeros += len(piece) - len(data)
            try:
                while (words := parser.gets()) is not Ellipsis:
                    length = self._length(words)
                    yield words
                    self.offset += length
            except hiredis.HiredisError:
                raise Damage(self.name, self.offset, "bad framing", torn=False) from None
        if self.offset != self.size:
            raise Damage(self.name, self.offset, "the last record is incomplete", torn=True)

    def _length(self, words: object) -> int:
        """Tell how long a record is in the file, and refuse what is none."""
        if not isinstance(words, list) or not words:
            raise Damage(self.name, self.offset, "this isn't a record", torn=False)
        length = 3 + len(str(len(words)))
        for word in words:
            if not isinstance(word, bytes):
                raise Damage(self.name, self.offset, "this isn't a record", torn=False)
            length += 5 + len(str(len(word))) + len(word)
        lengths = self._commands.get(words[0])
        if lengths is None:
            raise Damage(self.name, self.offset, f"unknown command {words[0][:32]!r}", torn=False)
        if len(words) not in lengths:
            raise Damage(self.name, self.offset, f"wrong number of words in {words[0].decode()}", torn=False)
        return length


class Load:
    """One load of a journal into a node; iterate it to the end, then read `result`."""

    def __init__(self, node: Node, disk: Disk, name: str, cut_torn: bool, enqueue_once: bool, timeout_ms: int) -> None:
        self.node = node
        self.disk = disk
        self.name = name
        self.cut_torn = cut_torn
        self.enqueue_once = enqueue_once
        self.timeout_ms = timeout_ms
        self.read_bytes = 0
        self.records = 0  # of the file of jobs
        self.result = Loaded(0, 0, 0, 0)
        self.unsaved: list[Job] = []
        self._torn: list[tuple[str, int, int]] = []  # name, end of the last whole record, size

    def __iter__(self) -> Iterator[None]:
        alive: dict[bytes, bytes] = {}
        for words in self._read(self.name, JOB_COMMANDS):
            if words is None:
                yield
                continue
            self.records += 1
            if words[0] == b"LOADJOB":
                alive[words[1][4:44]] = words[1]
            else:
                alive.pop(words[1], None)
        changes: dict[bytes, Change] = {}
        held: dict[bytes, bytes] = {}
        pauses: dict[bytes, int] = {}
        last_start: Words | None = None
        complete = False
        for words in self._read(self.name + STATE_SUFFIX, STATE_COMMANDS):
            if words is None:
                yield
                continue
            complete = words[0] == b"CLEAN"
            if words[0] == b"STATE":
                if words[1] in alive:
                    changes[words[1]] = self._change(words)
            elif words[0] == b"HELD":
                if words[1] in alive:
                    held[words[1]] = words[2]
            elif words[0] == b"PAUSE":
                pauses[words[1]] = self._pause(words)
            elif words[0] == b"START":
                last_start = words
        same_boot = last_start is not None and bool(last_start[1]) and last_start[1] == self.disk.boot_id()
        synced = last_start is not None and last_start[2] == ALWAYS.encode()
        trust = Trust(last_start is not None, complete or same_boot or synced, self.enqueue_once)
        yield from self._restore(alive, changes, held, trust)
        for name, pause in pauses.items():
            if pause:
                self.node.queue(name).pause = pause
        for file, end, _ in self._torn:
            _keep_tail(self.disk, file, end)
            self.disk.truncate(file, end)

    def _read(self, name: str, commands: dict[bytes, tuple[int, ...]]) -> Iterator[Words | None]:
        """Give the records of a file, with None now and then for the shell's turn. A torn tail is cut."""
        reader = Reader(self.disk, name, commands)
        try:
            for number, words in enumerate(reader):
                if number % SLICE == 0:
                    yield None
                self.read_bytes = reader.offset
                yield words
        except FileNotFoundError:
            return
        except Damage as damage:
            if not damage.torn or not self.cut_torn:
                raise JournalError(f"{damage}. {ADVICE}") from None
            self._torn.append((name, damage.offset, reader.size))

    def _pause(self, words: Words) -> int:
        if words[2] not in PAUSES:
            raise self._damage(STATE_SUFFIX, words, "a PAUSE record with an unknown state")
        return int(words[2])

    def _damage(self, suffix: str, words: Words, what: str) -> JournalError:
        """Say where a record is whose content can't be right. That is looked up only now: it costs a second reading."""
        name = self.name + suffix
        reader = Reader(self.disk, name, STATE_COMMANDS if suffix else JOB_COMMANDS)
        offset = 0
        try:
            for found in reader:
                if found == words:
                    offset = reader.offset
        except Damage:
            pass  # a torn tail: what is looked for stands before it
        return JournalError(f"{name}: {what} at byte {offset}. {ADVICE}")

    def _change(self, words: Words) -> Change:
        if len(words[2]) != STATE.size:
            raise self._damage(STATE_SUFFIX, words, f"a STATE record of {len(words[2])} bytes")
        state, flags, nacks, deliveries, requeue_wall_ms, token = STATE.unpack(words[2])
        key = words[3] if len(words) > 3 else b""
        return Change(state, flags, nacks, deliveries, requeue_wall_ms, token, key)

    def _restore(
        self, alive: dict[bytes, bytes], changes: dict[bytes, Change], held: dict[bytes, bytes], trust: Trust
    ) -> Iterator[None]:
        restorer = Restorer(self.node, trust, self.timeout_ms)
        for number, job_id in enumerate(list(alive)):
            data = alive.pop(job_id)
            try:
                record, _ = decode_record(data)
            except RecordError as error:
                raise self._damage("", [b"LOADJOB", data], f"damaged job record ({error})") from None
            if job_id in held:
                record = record._replace(nodes=_node_ids(held[job_id]))
            if number % SLICE == 0:
                yield
            if record.id not in self.node.jobs:
                restorer.restore(record, changes.pop(job_id, None))
        restorer.finish()
        self.unsaved = restorer.unsaved
        cut_bytes = sum(size - end for _, end, size in self._torn)
        self.result = Loaded(restorer.restored, restorer.expired, restorer.withheld, cut_bytes)


def _node_ids(data: bytes) -> tuple[bytes, ...]:
    return tuple(data[at : at + NODE_ID_BYTES] for at in range(0, len(data), NODE_ID_BYTES))


def _keep_tail(disk: Disk, name: str, offset: int) -> None:
    """Save what is about to be cut, so that nothing that could matter to somebody is thrown away."""
    kept = disk.append(name + ".torn", fresh=True)
    seen = 0
    for data in disk.read(name):
        piece = data[max(0, offset - seen) :]
        seen += len(data)
        while piece:
            piece = piece[kept.write(piece) :]
    kept.close()


def check(path: str) -> CheckResult:
    """Look at a journal's file without changing it."""
    where = Path(path)
    size = where.stat().st_size
    commands = STATE_COMMANDS if path.endswith(STATE_SUFFIX) else JOB_COMMANDS
    reader = Reader(RealDisk(str(where.parent)), where.name, commands)
    alive: set[bytes] = set()
    records = 0
    try:
        for words in reader:
            if words[0] == b"LOADJOB":
                try:
                    alive.add(decode_record(words[1])[0].id)
                except RecordError as error:
                    raise Damage(where.name, reader.offset, f"damaged job record ({error})", torn=False) from None
            elif words[0] == b"DELJOB":
                alive.discard(words[1])
            records += 1
    except Damage as damage:
        return CheckResult(size, reader.offset, records, len(alive), str(damage), damage.torn)
    return CheckResult(size, reader.offset, records, len(alive), None, torn=False)
