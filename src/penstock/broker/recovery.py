"""Reading a journal: at a start, for DEBUG LOADAOF, and for `penstock check-aof`.

Loading runs in slices (`load` is a generator), so that a node which loads a million jobs still answers -LOADING and
INFO meanwhile. First the file of jobs is reduced to those that are alive, then the file of states to the last one of
each job, then each job that is left goes to `core.restoring`. Records are handled many at a time: a step of a generator
would take longer than the work on one record.

A tail that ends inside a record was torn by a crash: it was never acknowledged, so it is cut (and kept beside the
file). Zeros at the end belong to such a tail: a power loss may keep the size of a file but not its last block, and a
whole record ends with a line break. Any other damage is an error, and so is a tail in which other records begin: the
node doesn't start, says where the damage is, and changes nothing. The same holds for a block that doesn't match its
checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import hiredis

from penstock.broker.checksums import JOBS, STATES, BlockChecker, Tails, read_checksums
from penstock.broker.core.jobs import AHEAD, STORED_FLAGS, Job
from penstock.broker.core.node import Node
from penstock.broker.core.restoring import Change, Restorer, Trust
from penstock.broker.disk import Disk, RealDisk
from penstock.broker.journal import AHEAD_STORED, ALWAYS, STATE, STATE_SUFFIX
from penstock.errors import JournalError
from penstock.wire.record import RecordError, decode_record

SLICE: Final = 2000  # records handled before the shell has a turn: a few milliseconds
PAUSES: Final = (b"0", b"1", b"2", b"3")
ADVICE: Final = "Nothing was changed; cut it with `penstock check-aof --fix`, or restore the file from a backup"
CHECKSUM_ADVICE: Final = (
    "Nothing was changed. Restore the file from a backup. If another program has written it, or to load it as it is, "
    "with what may be wrong in it, remove the file of its checksums, whose name ends with .sum"
)
DIGITS_MAX: Final = 18  # of a length that is read here: more than any file has, and still a small integer
STAR: Final = 0x2A
DOLLAR: Final = 0x24
ZERO: Final = 0x30
# What earlier versions did not write at the end of a STATE record, by its size: the time left (LEFT_MS_MAX), the tries.
SHORTER: Final = {6: b"\xff\xff\xff\xff\0\0", 2: b"\0\0"}
CR: Final = 0x0D
LF: Final = 0x0A

Words = list[bytes]


class Form:
    """A command as the journal writes it: what its records begin with, and how many words follow that."""

    __slots__ = ("command", "head", "more")

    def __init__(self, command: bytes, words: int) -> None:
        self.command = command
        self.head = b"*%d\r\n$%d\r\n%b\r\n" % (words, len(command), command)
        self.more = words - 1


# The commands of the two files, the most frequent ones first.
JOB_FORMS: Final = [Form(b"LOADJOB", 2), Form(b"DELJOB", 2)]
STATE_FORMS: Final = [
    Form(b"STATE", 3),
    Form(b"STATE", 4),
    Form(b"HELD", 3),
    Form(b"PAUSE", 3),
    Form(b"START", 4),
    Form(b"START", 3),  # before tokens had a beginning
    Form(b"CLEAN", 1),
]


class Damage(JournalError):
    """A journal that can't be trusted beyond an offset; `torn` if only its tail is incomplete."""

    def __init__(self, name: str, offset: int, what: str, torn: bool, readable: bool = False) -> None:
        super().__init__(f"{name}: {what} at byte {offset}")
        self.offset = offset
        self.torn = torn
        self.readable = readable  # by its form; it doesn't match its checksum

    @property
    def advice(self) -> str:
        """What to do."""
        return CHECKSUM_ADVICE if self.readable else ADVICE


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
    """Reads the commands of one file; `offset` is the end of the last good one, up to what was given out."""

    def __init__(self, disk: Disk, name: str, forms: list[Form], checker: BlockChecker | None = None) -> None:
        self.name = name
        self._checker = checker
        self.offset = 0
        self.size = 0
        self._disk = disk
        self._forms = forms
        self._head_bytes_max = max([len(form.head) for form in forms], default=0)

    def __iter__(self) -> Iterator[Words]:
        for batch in self.batches():
            for words in batch:
                yield words
                self.offset += _record_bytes(words)

    def batches(self) -> Iterator[list[Words]]:
        """Return the commands in lists: with each piece of the file those that it completes.

        Records in the form in which a journal is written are read here. From the first that looks different, hiredis
        reads on, to tell whether it is a record at all.
        """
        parser: hiredis.Reader | None = None
        held: list[bytes] = []  # of a record that goes on in the next piece
        missing = 0  # bytes that it lacks, at least
        for piece in self._pieces():
            if parser is not None:
                parser.feed(piece)
                yield from self._parsed(parser)
                continue
            held.append(piece)
            missing -= len(piece)
            if missing > 0:
                continue
            data = b"".join(held) if len(held) > 1 else piece
            batch, at, missing = self._whole_records(data)
            if batch:
                offset = self.offset + at
                yield batch
                self.offset = offset
            held = [data[at:]] if at < len(data) else []
            if not missing:
                parser = hiredis.Reader(notEnoughData=Ellipsis)
                parser.feed(data[at:])
                yield from self._parsed(parser)
        if parser is None:
            parser = hiredis.Reader(notEnoughData=Ellipsis)
            for piece in held:
                parser.feed(piece)
            yield from self._parsed(parser)
        if self.offset != self.size:
            raise self._judge_rest()

    def _judge_rest(self) -> Damage:
        """Decide what follows the last whole record: one cut off by a crash, or damage with good records behind it."""
        heads = [form.head for form in self._forms]
        end, window, skip = 0, b"", 1
        for piece in self._disk.read(self.name):
            window += piece[max(0, self.offset - end) :]
            end += len(piece)
            if not window:
                continue
            if skip and window[0] not in (STAR, 0):
                return Damage(self.name, self.offset, "this isn't a record", torn=False)
            if any(window.find(head, skip) >= 0 for head in heads):
                what = "a record whose length is wrong, or that was overwritten: others begin behind it"
                return Damage(self.name, self.offset, what, torn=False)
            skip = 0
            window = window[1 - self._head_bytes_max :]
        return Damage(self.name, self.offset, "the last record is incomplete", torn=True)

    def _pieces(self) -> Iterator[bytes]:
        """Yield the file piece by piece, without zeros at its end."""
        zeros = 0  # held back, until something else follows them
        for piece in self.checked_pieces():
            data = piece.rstrip(b"\0")
            if data:
                yield bytes(zeros) + data if zeros else data
                zeros = 0
            zeros += len(piece) - len(data)

    def checked_pieces(self) -> Iterator[bytes]:
        """Return the file piece by piece; raises Damage at a block that doesn't match its checksum."""
        for piece in self._disk.read(self.name):
            self.size += len(piece)
            if self._checker is not None and (block := self._checker.feed(piece)) is not None:
                what = f"a block of {block.end - block.start} bytes that doesn't match its checksum"
                raise Damage(self.name, block.start, what, torn=False, readable=True)
            yield piece
        if self._checker is not None and (missing := self._checker.missing()):
            what = f"{missing} bytes that were on the disk are missing"
            raise Damage(self.name, self.size, what, torn=False, readable=True)

    def _whole_records(self, data: bytes) -> tuple[list[Words], int, int]:
        """Return the records that `data` begins with, their end, and how many bytes at least the next one lacks.

        That is 0 where something stands that isn't in the form of a record.
        """
        forms, size = self._forms, len(data)
        batch: list[Words] = []
        at = 0
        while True:
            for form in forms:
                end = at + len(form.head)
                if end <= size and data[at:end] == form.head:
                    break
            else:
                return batch, at, max(0, at + self._head_bytes_max - size)
            words = [form.command]
            for _ in range(form.more):
                end = _take_word(data, end, words)
                if end <= 0:
                    return batch, at, -end
            batch.append(words)
            at = end

    def _parsed(self, parser: hiredis.Reader) -> Iterator[list[Words]]:
        """Return the records that hiredis finds; refuse anything else."""
        try:
            while (words := parser.gets()) is not Ellipsis:
                offset = self.offset + self._length(words)
                yield [words]
                self.offset = offset
        except hiredis.HiredisError:
            raise Damage(self.name, self.offset, "bad framing", torn=False) from None

    def _length(self, words: object) -> int:
        """Return the length of a record in the file; refuse anything else."""
        if not isinstance(words, list) or not words or not all(isinstance(word, bytes) for word in words):
            raise Damage(self.name, self.offset, "this isn't a record", torn=False)
        forms = [form for form in self._forms if form.command == words[0]]
        if not forms:
            raise Damage(self.name, self.offset, f"unknown command {words[0][:32]!r}", torn=False)
        if len(words) - 1 not in [form.more for form in forms]:
            raise Damage(self.name, self.offset, f"wrong number of words in {words[0].decode()}", torn=False)
        return _record_bytes(words)


def _take_word(data: bytes, at: int, words: Words) -> int:
    """Read a word with its length; return its end, 0 if it is invalid, or minus the number of missing bytes."""
    size = len(data)
    if at >= size:
        return -1
    if data[at] != DOLLAR:
        return 0
    at += 1
    first, length = at, 0
    while at < size and ZERO <= data[at] < ZERO + 10 and at - first < DIGITS_MAX:
        length = 10 * length + data[at] - ZERO
        at += 1
    if at == size:
        return -1
    if data[at] != CR or at == first or (data[first] == ZERO and at > first + 1):
        return 0
    start = at + 2
    end = start + length
    if end + 2 > size:
        return size - end - 2
    if data[at + 1] != LF or data[end] != CR or data[end + 1] != LF:
        return 0
    words.append(data[start:end])
    return end + 2


def _record_bytes(words: Words) -> int:
    """Return the length of a record in the file."""
    return 3 + len(str(len(words))) + sum([5 + len(str(len(word))) + len(word) for word in words])


class States:
    """What the second file says of the jobs of the first, and of itself."""

    def __init__(self) -> None:
        self.changes: dict[bytes, bytes] = {}  # by id: packed, then the key of its claim
        self.held: dict[bytes, bytes] = {}  # by id: the nodes that may hold it
        self.pauses: dict[bytes, int] = {}
        self.last_start: Words | None = None
        self.complete = False


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
        self.damaged_checksums = 0
        self._checkers = [BlockChecker(), BlockChecker()]
        self._torn: list[tuple[str, int, int]] = []  # name, end of the last whole record, size

    def __iter__(self) -> Iterator[None]:
        alive: dict[bytes, bytes] = {}
        recorded = read_checksums(self.disk, self.name)
        self.damaged_checksums = recorded.damaged
        self._checkers = [BlockChecker(blocks) for blocks in recorded.blocks]
        for batch in self._read(self.name, JOB_FORMS, self._checkers[JOBS]):
            if batch is None:
                yield
            else:
                self._note_jobs(batch, alive)
        states = States()
        for batch in self._read(self.name + STATE_SUFFIX, STATE_FORMS, self._checkers[STATES]):
            if batch is None:
                yield
            else:
                self._note_states(batch, alive, states)
        last_start = states.last_start
        if not self.node.token_epoch:
            self.node.begin_tokens(self._epoch(last_start))
        same_boot = last_start is not None and bool(last_start[1]) and last_start[1] == self.disk.boot_id()
        synced = last_start is not None and last_start[2] == ALWAYS.encode()
        trust = Trust(last_start is not None, states.complete or same_boot or synced, self.enqueue_once)
        yield from self._restore(alive, states, trust)
        for name, pause in states.pauses.items():
            if pause:
                self.node.queue(name).pause = pause
        for file, end, _ in self._torn:
            _keep_tail(self.disk, file, end)
            self.disk.truncate(file, end)
            which = JOBS if file == self.name else STATES
            checker = self._checkers[which] = BlockChecker(recorded.blocks[which])
            for piece in self.disk.read(file):
                checker.feed(piece)

    @property
    def tails(self) -> Tails:
        """What was read of both files that has no checksum yet."""
        return self._checkers[JOBS].tail, self._checkers[STATES].tail

    def _read(self, name: str, forms: list[Form], checker: BlockChecker) -> Iterator[list[Words] | None]:
        """Yield the records of a file, and None from time to time to let the shell work. A torn tail is cut."""
        reader = Reader(self.disk, name, forms, checker)
        since_turn = SLICE
        try:
            for batch in reader.batches():
                if since_turn >= SLICE:
                    yield None
                    since_turn = 0
                since_turn += len(batch)
                self.read_bytes = reader.offset
                yield batch
        except FileNotFoundError:
            if checker.missing():
                raise JournalError(f"{name} is gone, and its checksums are there. {CHECKSUM_ADVICE}") from None
            return
        except Damage as damage:
            if not damage.torn or not self.cut_torn:
                raise JournalError(f"{damage}. {damage.advice}") from None
            self._torn.append((name, damage.offset, reader.size))

    def _note_jobs(self, batch: list[Words], alive: dict[bytes, bytes]) -> None:
        """Let jobs come and go."""
        for words in batch:
            data = words[1]
            if words[0] == b"LOADJOB":
                alive[data[4:44]] = data
            else:
                alive.pop(data, None)
        self.records += len(batch)

    def _note_states(self, batch: list[Words], alive: dict[bytes, bytes], states: States) -> None:
        """Keep the last state of each job that is alive."""
        for words in batch:
            if words[0] == b"STATE":
                if words[1] in alive:
                    states.changes[words[1]] = self._packed_change(words)
            elif words[0] == b"HELD":
                if words[1] in alive:
                    states.held[words[1]] = words[2]
            elif words[0] == b"PAUSE":
                states.pauses[words[1]] = self._pause(words)
            elif words[0] == b"START":
                states.last_start = words
        states.complete = batch[-1][0] == b"CLEAN"

    def _epoch(self, start: Words | None) -> int:
        """With what the tokens of the last process began; 0 if that isn't known."""
        if start is None or len(start) < 4:
            return 0
        if not start[3].isdigit() or len(start[3]) > DIGITS_MAX:
            raise self._damage(STATE_SUFFIX, start, "a START record without a number")
        return int(start[3])

    def _pause(self, words: Words) -> int:
        if words[2] not in PAUSES:
            raise self._damage(STATE_SUFFIX, words, "a PAUSE record with an unknown state")
        return int(words[2])

    def _damage(self, suffix: str, words: Words, what: str) -> JournalError:
        """Say where a record is whose content can't be right. That is looked up only now: it costs a second reading."""
        name = self.name + suffix
        reader = Reader(self.disk, name, STATE_FORMS if suffix else JOB_FORMS)
        offset = 0
        try:
            for found in reader:
                if found == words:
                    offset = reader.offset
        except Damage:
            pass  # a torn tail: what is looked for stands before it
        return JournalError(f"{name}: {what} at byte {offset}. {ADVICE}")

    def _packed_change(self, words: Words) -> bytes:
        """Return a change in packed form, followed by the key of its claim. Most are replaced by later ones."""
        packed = words[2]
        if len(packed) != STATE.size:
            missing = SHORTER.get(STATE.size - len(packed))
            if missing is None:
                raise self._damage(STATE_SUFFIX, words, f"a STATE record of {len(packed)} bytes")
            packed += missing
        return packed + words[3] if len(words) > 3 else packed

    def _restore(self, alive: dict[bytes, bytes], states: States, trust: Trust) -> Iterator[None]:
        restorer = Restorer(self.node, trust, self.timeout_ms)
        ids, records = list(alive), list(alive.values())
        alive.clear()
        for first in range(0, len(ids), SLICE):
            yield
            self._restore_some(restorer, ids[first : first + SLICE], records, first, states)
        restorer.finish()
        self.unsaved = restorer.unsaved
        cut_bytes = sum(size - end for _, end, size in self._torn)
        self.result = Loaded(restorer.restored, restorer.expired, restorer.withheld, cut_bytes)

    def _restore_some(
        self, restorer: Restorer, ids: list[bytes], records: list[bytes], at: int, states: States
    ) -> None:
        """Restore the jobs of a slice, whose records begin at a place, and let go of those."""
        changes, held = states.changes, states.held
        data = b""
        try:
            for job_id in ids:
                data = records[at]
                records[at] = b""
                at += 1
                packed = changes.pop(job_id, None) if changes else None
                change = _unpacked_change(packed) if packed is not None else None
                restorer.restore(job_id, data, change, held.pop(job_id, None) if held else None)
        except RecordError as error:
            raise self._damage("", [b"LOADJOB", data], f"damaged job record ({error})") from None
        finally:
            restorer.flush()


def _unpacked_change(packed: bytes) -> Change:
    state, flags, nacks, deliveries, requeue_wall_ms, token, left_ms, tries = STATE.unpack_from(packed)
    flags = flags & STORED_FLAGS | (AHEAD if flags & AHEAD_STORED else 0)
    return Change(state, flags, nacks, deliveries, requeue_wall_ms, token, left_ms, tries, packed[STATE.size :])


def _keep_tail(disk: Disk, name: str, offset: int) -> None:
    """Save what is about to be cut, behind what was cut before: nothing that could matter is thrown away."""
    kept = disk.append(name + ".torn")
    seen = 0
    for data in disk.read(name):
        piece = data[max(0, offset - seen) :]
        seen += len(data)
        while piece:
            piece = piece[kept.write(piece) :]
    kept.close()


def check(path: str) -> CheckResult:
    """Look at a journal's file without changing it. `ok_up_to` is how far it can be read by its form."""
    where = Path(path)
    size = where.stat().st_size
    disk = RealDisk(str(where.parent))
    is_state = path.endswith(STATE_SUFFIX)
    forms = STATE_FORMS if is_state else JOB_FORMS
    mismatch = _mismatch(disk, where.name, STATES if is_state else JOBS)
    reader = Reader(disk, where.name, forms)
    alive: set[bytes] = set()
    records = 0
    problem, torn = mismatch, False
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
        problem, torn = f"{mismatch}\n{damage}" if mismatch else str(damage), damage.torn and not mismatch
    return CheckResult(size, reader.offset, records, len(alive), problem, torn)


def _mismatch(disk: Disk, name: str, which: int) -> str | None:
    """Say which block of a file doesn't match its checksum, if one doesn't."""
    checker = BlockChecker(read_checksums(disk, name.removesuffix(STATE_SUFFIX)).blocks[which])
    try:
        for _ in Reader(disk, name, [], checker).checked_pieces():
            pass
    except Damage as damage:
        return str(damage)
    return None
