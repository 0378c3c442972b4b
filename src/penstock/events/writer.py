"""Writes events, and never harms what it is a part of.

`record` appends to a list in memory; `flush`, once a turn of the event loop, hands what has collected to a thread,
which writes it with one call. Neither ever raises because of the disk, nor waits for it:

- A slow disk: at most BUFFER_BYTES_MAX wait for the thread. Beyond that events are counted, not kept.
- A disk that is full or broken: the segment is given up, events are counted, and after a pause a new segment begins.
- `bytes_max` is reached: the oldest segments are emptied, except for one record.

Each of these leaves a `lost` record: its seq is the first number that it stands for, its size how many, its error says
why. So numbers have no gaps. Only the end of an epoch that was killed is open: what the process had not handed to the
system is missing, and no END slot stands there.

A segment ends at SEGMENT_BYTES, after SEGMENT_S, or when TEXTS_MAX texts are defined in it.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from penstock.errors import CallerError, OperatorError
from penstock.events.record import (
    JOB_BYTES,
    JOB_IS_TEXT,
    QUICK_RECORD,
    RECORD,
    SIZE_UNKNOWN,
    SLOT_BYTES,
    TEXT_BYTES_MAX,
    TEXTS,
    VERSION,
    Kind,
    definition_slots,
    end_slot,
    head_of,
)
from penstock.events.segment import (
    BODIES_MAGIC,
    BODIES_SUFFIX,
    BODY_ENTRY,
    HEADER_BYTES,
    LOCK_NAME,
    SUFFIX,
    WRITER_BYTES_MAX,
    BadSegment,
    Segment,
    header,
    segment_name,
)

BYTES_MAX: Final = 1 << 30  # about 10 million events: a day of a busy node
BYTES_MIN: Final = 1 << 20  # less would delete segments faster than anyone can read them
SEGMENT_BYTES: Final = 64 << 20
SEGMENT_S: Final = 60.0
SEGMENTS_WITHIN_MAX: Final = 4  # a segment is at most this part of `bytes_max`
TEXTS_MAX: Final = 65_536  # about 10 MB of numbers in memory
BUFFER_BYTES_MAX: Final = 16 << 20  # what a slow disk may hold up: about 160,000 events, with their bodies
RETRY_S: Final = 1.0  # after the disk has failed
CLOSE_S: Final = 2.0  # a slow disk must not keep a process from ending
PATIENT_BYTES: Final = 64 << 10  # larger writes gain nothing
PATIENT_S: Final = 0.01  # between two writes of a burst: to wake the thread costs as much as ten records
CLOSE_STEP_S: Final = 0.01
LOCK_S: Final = 0.5  # `gaps` and `finished` hold the lock for a moment to see whether a writer lives
RUNS_MAX: Final = 4096  # combinations of texts whose numbers are kept ready
SAY_S: Final = 60.0  # between two messages about problems: a full disk must not fill a log
LOST_MAX: Final = SIZE_UNKNOWN - 1  # a `lost` record stands for no more; another one follows
WRITER_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


TextsKey = tuple[str | bytes | None, str | bytes | None, str | bytes | None, str | bytes | None, str | bytes | None]


def now_us() -> int:
    """Return the time as events have it."""
    return time.time_ns() // 1000


def writer_name(text: str) -> str:
    """Return a text as a writer may be named: other characters become `_`."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text).lstrip(".-")[:WRITER_BYTES_MAX] or "_"


class WriterTaken(OperatorError):
    """Another process writes events under this name."""


@dataclass(slots=True)
class Batch:
    """What the thread writes with one call."""

    segment: int  # counts the segments of this process
    first_seq: int
    slots: bytes
    bodies: bytes = b""
    opens: bool = False  # a new segment


class EventWriter:
    """Writes the events of one writer to a directory of its own. `record` and `flush` belong to one thread."""

    def __init__(
        self,
        directory: str | Path,
        writer: str,
        *,
        bytes_max: int = BYTES_MAX,
        segment_bytes: int = SEGMENT_BYTES,
        segment_s: float = SEGMENT_S,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
        retry_s: float = RETRY_S,
        lock_s: float = LOCK_S,
        clock: Callable[[], float] = time.monotonic,
        on_problem: Callable[[str], None] | None = None,
    ) -> None:
        if not WRITER_NAME.fullmatch(writer) or len(writer) > WRITER_BYTES_MAX:
            raise CallerError(
                f"a writer's name must be 1 to {WRITER_BYTES_MAX} letters, digits, '.', '_' or '-', got {writer!r}"
            )
        if bytes_max < BYTES_MIN:
            raise CallerError(f"the bound on events must be at least {BYTES_MIN} bytes, got {bytes_max}")
        self.writer = writer
        self.directory = Path(directory) / writer
        self._segment_bytes = min(segment_bytes, bytes_max // SEGMENTS_WITHIN_MAX)
        self._segment_s = segment_s
        self._buffer_bytes_max = buffer_bytes_max
        self._retry_s = retry_s
        self._clock = clock
        self._lock = -1
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = self._take_lock(lock_s)
            self.epoch = self._new_epoch()
        except OSError as problem:
            raise OperatorError(f"events can't be written to {self.directory}: {problem.strerror or problem}") from None
        self.seq = 1  # of the next event
        self._lost_before = 0
        self._pending: list[bytes] = []
        self._pending_first = 1
        self._bodies: list[bytes] = []
        self._pending_bytes = 0
        self._handed_bytes = 0
        self._texts: dict[str | bytes, int] = {}
        self._runs: dict[TextsKey, bytes] = {}
        self._next_record = 1
        self._segment = 0
        self._segment_size = 0
        self._segment_until = 0.0
        self._must_open = True
        self._hand_after = 0.0  # patient callers wait until then
        self._lost_from = 0  # while events are lost: the first one
        self._lost_because = ""
        self._retry_at = 0.0
        self._files = SegmentFiles(self, bytes_max, on_problem)
        self._hand()  # the header alone: a writer that is killed before its first event was written leaves a trace

    def _take_lock(self, lock_s: float) -> int:
        fd = os.open(self.directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + lock_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < until:
                    time.sleep(LOCK_S / 50)
                    continue
                os.close(fd)
                raise WriterTaken(
                    f"events can't be written to {self.directory}: another process writes there, and each writer needs "
                    "a name of its own"
                ) from None
            return fd

    def _new_epoch(self) -> int:
        """Return a number above those of all epochs before, also when their segments are gone."""
        last = max((int(path.stem.partition("-")[0]) for path in self.directory.glob(f"*-*{SUFFIX}")), default=0)
        return max(time.time_ns() // 1_000_000, last + 1)

    # Called by the one who has events

    def record(
        self,
        kind: int,
        job: str | bytes | None = None,
        queue: str | bytes | None = None,
        *,
        at: int = 0,
        created: int = 0,
        until: int = 0,
        attempt: int = 0,
        node: str | bytes | None = None,
        worker: str | bytes | None = None,
        error: str | bytes | None = None,
        to_queue: str | bytes | None = None,
        size: int | None = None,
        body: bytes | None = None,
    ) -> None:
        """Note an event. Times are microseconds since 1970; `at` is now by default."""
        seq = self._next_record = self.seq
        self.seq = seq + 1
        if self._lost_from:
            return
        id_length = 0
        if job is None:
            job = b""
        else:
            if isinstance(job, str):
                job = job.encode()
            id_length = len(job)
            if id_length > JOB_BYTES or not job.isascii():
                id_length, job = JOB_IS_TEXT, self._number(job).to_bytes(4, "little")
        key = (queue, node, worker, error, to_queue)
        texts = self._runs.get(key) or self._numbers(key)
        at = at or now_us()
        size = SIZE_UNKNOWN if size is None else min(size, SIZE_UNKNOWN)
        self._pending.append(
            QUICK_RECORD.pack(head_of(kind, id_length, attempt), seq, at, created, until, texts, size, job)
        )
        self._pending_bytes += SLOT_BYTES
        if body is not None:
            self._keep_body(seq, body)
        if self._pending_bytes > self._buffer_bytes_max:
            self.flush()

    def record_many(
        self,
        kind: int,
        queue: bytes,
        node: bytes | None,
        worker: str | bytes | None,
        at: int,
        rows: list[tuple[int, int, int, int, bytes]],
    ) -> int:
        """Note an event of each of many jobs: attempt, created, until, size and id; the ids have 40 ASCII bytes.

        Returns the number of the first event.
        """
        first = self._next_record = self.seq
        self.seq = first + len(rows)
        if self._lost_from:
            return first
        key = (queue, node, worker, None, None)
        texts = self._runs.get(key) or self._numbers(key)
        pack = QUICK_RECORD.pack
        head = head_of(kind, JOB_BYTES, 0)
        self._pending += [
            pack(head | attempt << 32, seq, at, created, until, texts, size, job)
            for seq, (attempt, created, until, size, job) in enumerate(rows, first)
        ]
        self._pending_bytes += SLOT_BYTES * len(rows)
        if self._pending_bytes > self._buffer_bytes_max:
            self.flush()
        return first

    def keep_body(self, seq: int, body: bytes) -> None:
        """Keep the body of a job, with the number of the event that added it."""
        if not self._lost_from:
            self._keep_body(seq, body)

    def _keep_body(self, seq: int, body: bytes) -> None:
        self._bodies.append(BODY_ENTRY.pack(seq, len(body)) + body)
        self._pending_bytes += BODY_ENTRY.size + len(body)

    @property
    def lost_events(self) -> int:
        """How many events were not written, since the start."""
        return self._lost_before + (self.seq - self._lost_from if self._lost_from else 0)

    def _number(self, text: str | bytes) -> int:
        """Return the number of a text in this segment, and define it."""
        number = self._texts.get(text)
        if number is None:
            number = self._texts[text] = len(self._texts) + 1
            data = _short(text if isinstance(text, bytes) else text.encode("utf-8", "replace"))
            slots = definition_slots(number, data, self._next_record)
            self._pending.append(slots)
            self._pending_bytes += len(slots)
        return number

    def _numbers(self, key: TextsKey) -> bytes:
        """Return the numbers of the texts of an event: queue, node, worker, error and to_queue."""
        if len(self._runs) >= RUNS_MAX:
            self._runs.clear()
        numbers = [self._number(text) if text else 0 for text in key]
        texts = self._runs[key] = TEXTS.pack(*numbers)
        return texts

    def flush(self, is_patient: bool = False) -> None:
        """Hand what has collected to the thread: once a turn.

        With `is_patient`, a little is left for the next turn while the thread still writes, and for PATIENT_S after the
        last write: for callers whose next call is certain. To wake the thread costs more than a record. The first event
        after a pause goes to the thread at once.
        """
        if self._lost_from:
            if self._clock() < self._retry_at or not self._went_on():
                return
        files = self._files
        if files.failed_segment == self._segment and self._segment:
            self._disk_failed()
            return
        if not self._pending:
            return
        waiting = self._handed_bytes - files.taken_bytes
        if is_patient and self._pending_bytes < PATIENT_BYTES and (waiting or self._clock() < self._hand_after):
            return
        if waiting and waiting + self._pending_bytes > self._buffer_bytes_max:
            self._lose("the disk is slow", self._pending_first)
            return
        self._hand()

    def _hand(self) -> None:
        opens = self._must_open
        if opens:
            self._must_open = False
            self._segment += 1
            self._segment_size = 0
            self._segment_until = self._clock() + self._segment_s
        batch = Batch(self._segment, self._pending_first, b"".join(self._pending), b"".join(self._bodies), opens)
        self._segment_size += len(batch.slots)
        self._handed_bytes += self._pending_bytes
        self._files.put(batch, self._pending_bytes)
        self._drop_pending()
        now = self._clock()
        self._hand_after = now + PATIENT_S
        if self._segment_size >= self._segment_bytes or len(self._texts) >= TEXTS_MAX or now >= self._segment_until:
            self._must_open = True
            self._forget_texts()

    def _forget_texts(self) -> None:
        self._texts = {}
        self._runs = {}

    def _drop_pending(self) -> None:
        self._pending = []
        self._bodies = []
        self._pending_bytes = 0
        self._pending_first = self.seq

    def _lose(self, reason: str, first_seq: int) -> None:
        """Count events from one on, instead of keeping them."""
        self._lost_from, self._lost_because = first_seq, reason
        self._retry_at = self._clock() + self._retry_s
        self._must_open = True  # definitions may be among what is lost
        self._forget_texts()
        self._drop_pending()
        self._files.say(f"events are lost: {reason}")

    def _disk_failed(self) -> None:
        self._lose(self._files.failure, self._files.failed_seq)

    def _went_on(self) -> bool:
        """Begin a new segment with a record of what was lost, if the thread has caught up."""
        if self._handed_bytes - self._files.taken_bytes > self._buffer_bytes_max // 2:
            self._retry_at = self._clock() + self._retry_s
            return False
        first, reason = self._lost_from, self._lost_because
        if self._files.failed_segment == self._segment and self._segment:  # it failed after the disk was slow
            first = min(first, self._files.failed_seq)
        self._lost_from = 0
        self._pending_first = first
        next_seq = self.seq
        self._lost_before += next_seq - first
        while first < next_seq:
            count = min(next_seq - first, LOST_MAX)
            self.seq = first
            self.record(Kind.LOST, error=reason, size=count)
            first += count
        self.seq = next_seq
        self._hand()
        return True

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Write what is left, and that this epoch ended in order; False if the disk was too slow. Once is enough."""
        if self._lock < 0:
            return True
        until = time.monotonic() + timeout_s
        self.flush()
        while self._lost_from and time.monotonic() < until:  # note what was lost, once the disk has caught up
            self._retry_at = 0.0
            self.flush()
            time.sleep(CLOSE_STEP_S)
        if not self._lost_from and self._segment and self._files.failed_segment != self._segment:
            self._pending.append(end_slot(self.seq, now_us()))
            self._pending_bytes += SLOT_BYTES
            self._must_open = False
            self._hand()
        ended = self._files.close(max(0.0, until - time.monotonic()))
        os.close(self._lock)
        self._lock = -1
        return ended


class SegmentFiles:
    """The files of a writer, and the thread that writes them."""

    def __init__(self, writer: EventWriter, bytes_max: int, on_problem: Callable[[str], None] | None) -> None:
        self.taken_bytes = 0  # written or given up, of what was put
        self.failed_segment = 0  # the last one that could not be written,
        self.failed_seq = 0  # from this event on
        self.failure = ""
        self._directory = writer.directory
        self._writer = writer.writer
        self._epoch = writer.epoch
        self._bytes_max = bytes_max
        self._on_problem = on_problem
        self._silent_until = 0.0
        self._queue: SimpleQueue[tuple[Batch, int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._fd = -1
        self._bodies_fd = -1
        self._size = 0
        self._bodies_size = 0
        self._path = Path()
        self._closed_bytes = sum(path.stat().st_size for path in self._directory.iterdir())  # of all other segments

    def put(self, batch: Batch, size: int) -> None:
        """Hand a batch to the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="events", daemon=True)
            self._thread.start()
        self._queue.put((batch, size))

    def say(self, text: str) -> None:
        """Report a problem to the owner, at most once a minute."""
        now = time.monotonic()
        if self._on_problem is not None and now >= self._silent_until:
            self._silent_until = now + SAY_S
            self._on_problem(text)

    def close(self, timeout_s: float) -> bool:
        """End the thread after what was put."""
        if self._thread is None:
            return True
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        ended = False
        while not ended:
            items = [self._queue.get()]
            try:
                while True:
                    items.append(self._queue.get_nowait())
            except Empty:
                pass
            if items[-1] is None:
                ended = True
                items.pop()
            self._write_all([item for item in items if item is not None])
        self._close_files()

    def _write_all(self, items: list[tuple[Batch, int]]) -> None:
        """Write batches: those of one segment with one call."""
        at = 0
        while at < len(items):
            first = items[at][0]
            end = at + 1
            while end < len(items) and items[end][0].segment == first.segment:
                end += 1
            together = [batch for batch, _ in items[at:end]]
            if first.segment > self.failed_segment:
                self._write(
                    Batch(
                        first.segment,
                        first.first_seq,
                        b"".join(batch.slots for batch in together),
                        b"".join(batch.bodies for batch in together),
                        first.opens,
                    )
                )
            self.taken_bytes += sum(size for _, size in items[at:end])
            at = end

    def _write(self, batch: Batch) -> None:
        """Write a batch to its segment whole, or not at all."""
        try:
            if batch.opens:
                self._open(batch.first_seq)
            self._append(batch.slots)
        except OSError as problem:
            self._give_up(batch, problem)
            return
        if batch.bodies:
            self._append_bodies(batch.bodies)
        if self._closed_bytes + self._size + self._bodies_size > self._bytes_max:
            self._make_room()

    def _open(self, first_seq: int) -> None:
        self._close_files()
        self._path = self._directory / segment_name(self._epoch, first_seq)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._append(header(self._writer, self._epoch, first_seq, now_us()))

    def _append(self, data: bytes) -> None:
        self._size += _write_whole(self._fd, data)

    def _append_bodies(self, data: bytes) -> None:
        """Bodies that can't be written are missing in a replay, and no more."""
        try:
            if self._bodies_fd < 0:
                path = self._path.with_suffix(BODIES_SUFFIX)
                self._bodies_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                data = BODIES_MAGIC + data
            self._bodies_size += _write_whole(self._bodies_fd, data)
        except OSError as problem:
            if self._bodies_fd >= 0:
                _truncate(self._bodies_fd, self._bodies_size)
            self.say(f"bodies of events can't be written: {problem.strerror}")

    def _give_up(self, batch: Batch, problem: OSError) -> None:
        """End a segment that can't be written at its last whole batch."""
        if self._fd >= 0 and self._size >= HEADER_BYTES:
            _truncate(self._fd, self._size)
        elif self._fd >= 0:  # not even the header
            self._path.unlink(missing_ok=True)
            self._size = 0
        self._close_files()
        self.failure = problem.strerror or str(problem)
        self.failed_seq = batch.first_seq
        self.failed_segment = batch.segment  # last: the other thread looks at this first

    def _close_files(self) -> None:
        self._closed_bytes += self._size + self._bodies_size
        for fd in (self._fd, self._bodies_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._bodies_fd = -1
        self._size = self._bodies_size = 0

    def _make_room(self) -> None:
        """Empty the oldest segments, until the bound holds."""
        total = self._size + self._bodies_size
        files: list[tuple[Path, int]] = []
        for path in sorted(self._directory.glob(f"*-*{SUFFIX}")):
            if path == self._path:
                continue
            size = _size_of(path) + _size_of(path.with_suffix(BODIES_SUFFIX))
            files.append((path, size))
            total += size
        before: Path | None = None
        for path, size in files:
            if total <= self._bytes_max:
                break
            if size > HEADER_BYTES + 2 * SLOT_BYTES + DEFINITION_ROOM:
                before = self._empty(path, before)
                total -= size - _size_of(path)
            else:
                before = path  # emptied already
        self._closed_bytes = total - self._size - self._bodies_size

    def _empty(self, path: Path, before: Path | None) -> Path:
        """Put a `lost` record in the place of a segment's events, or extend that of the segment before."""
        try:
            segment = Segment(path)
            next_seq = segment.next_seq()
        except (OSError, BadSegment):
            path.unlink(missing_ok=True)
            return path
        path.with_suffix(BODIES_SUFFIX).unlink(missing_ok=True)
        first_seq = segment.first_seq
        try:
            if before is not None and before.name.partition("-")[0] == path.name.partition("-")[0]:
                known = Segment(before)
                if known.next_seq() == first_seq:
                    path.unlink(missing_ok=True)
                    path, first_seq = before, known.first_seq
            os.truncate(path, HEADER_BYTES)
            reason = b"deleted: events-max-bytes"
            slots = definition_slots(1, reason, first_seq) + RECORD.pack(
                *(VERSION, Kind.LOST, 0, 0, 0, first_seq, now_us(), 0, 0, 0, 0, 0, 1, 0),
                *(min(next_seq - first_seq, LOST_MAX), b""),
            )
            with path.open("r+b") as file:
                file.seek(HEADER_BYTES)
                file.write(slots)
        except OSError as problem:
            self.say(f"old events can't be deleted: {problem.strerror}")
        return path


DEFINITION_ROOM: Final = 2 * SLOT_BYTES  # what an emptied segment may take beside its `lost` record


def _short(text: bytes) -> bytes:
    """Cut a text that is too long, at a character."""
    return text if len(text) <= TEXT_BYTES_MAX else text[:TEXT_BYTES_MAX].decode("utf-8", "ignore").encode()


def _write_whole(fd: int, data: bytes) -> int:
    """Write all of it; a disk that takes only a part is full."""
    at = os.write(fd, data)
    while at < len(data):
        at += os.write(fd, memoryview(data)[at:])
    return len(data)


def _truncate(fd: int, size: int) -> None:
    with suppress(OSError):  # readers pass over an incomplete slot
        os.ftruncate(fd, size)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
