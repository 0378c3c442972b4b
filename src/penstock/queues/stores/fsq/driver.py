"""`fsq:///absolute/root`, `fsq:relative/root`, and `fsq:` for FSQ_ROOT: jobs in directories, by the FSQ standard.

The original `fsq`, ours and this store may share a queue.

A queue is a directory below the root, installed at its first push. A job is an item, a file whose name has the
metadata and whose content is the body (`penstock.queues.stores.fsq.names`). Everything that is touched, from the
queue's directory on:

    tmp/NAME                              an item that is being written
    queue/NAME                            a job that is ready
    done/NAME                             an ended job, with `keep=1`; without, ended jobs are removed
    fail/NAME                             an item whose name is not valid, or is too long for another try
    down                                  while it is there, the queue is paused, for scanners as well
    trigger-s                             is pulled when a job becomes ready
    attempts/NAME                         tries of scanners that were killed: they count when the job is taken
    .penstock/lease, claim, later, back   jobs that are reserved or wait for their time: `penstock.fsq.reserved`
    .penstock/claim.lock                  locked while claims are changed
    .penstock/unique/, unique.lock        unique keys: `penstock.queues.stores.fsq.unique`
    .penstock/stats/, stats.lock          counters and options: `penstock.queues.stores.fsq.stats`

Beside the queues, in the root:

    .penstock-values/KEY                  a text under a key: the end of its time in ms, a line end, the text; a key
                                          that makes too long a name is `#` and its SHA-256

Jobs come in the order of the times in their names: when they were pushed, or were due. One that is given back keeps its
name, and so its place in the order. Several processes need no lock for all this: an item is taken by a rename, under
the lock on the item itself that scanners take, too.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote, unquote
from weakref import WeakSet

from penstock.errors import BadUrl, CallerError
from penstock.fsq import control, files, installing
from penstock.fsq.constants import text_of
from penstock.fsq.errors import FSQCannotLockError, FSQWorkItemError
from penstock.fsq.reserved import hold, key_name, readable
from penstock.fsq.snapshot import ItemSnapshot
from penstock.job import JobMove, JobState, Lease, NewJob, Sizes, StoredJob
from penstock.queues import local_signals
from penstock.queues.blocking.driver import Driver, Page
from penstock.queues.blocking.signal import Signal
from penstock.queues.blocking.stats import Stats
from penstock.queues.capabilities import STANDARD, Capability
from penstock.queues.options import Options, StoreURL
from penstock.queues.stores.fsq import names as naming
from penstock.queues.stores.fsq import scan
from penstock.queues.stores.fsq.blocking.signal import DirectorySignal
from penstock.queues.stores.fsq.claims import FsqClaims
from penstock.queues.stores.fsq.directory import QueueDirectory
from penstock.queues.stores.fsq.items import Item, waiting_items
from penstock.queues.stores.fsq.leases import LeaseChanges, ack, give_back
from penstock.queues.stores.fsq.mover import Mover
from penstock.queues.stores.fsq.own_files import write_whole
from penstock.queues.stores.fsq.root import Root, guarded
from penstock.queues.stores.fsq.stats import DirectoryStats
from penstock.queues.stores.fsq.unique import Keys
from penstock.queues.stores.fsq.writer import JobWriter

QUEUES_MAX = 1000  # of which a driver keeps what it knows; with more it starts again
VALUES = ".penstock-values"
VALUE_NAME_MAX = 240  # of a file there, which gets some letters more while it is written: 255 is the most
END_DIGITS_MAX = 20  # of the end of its time
VALUES_SWEEP = 1000  # puts of a process after which it removes the values whose time is over
_SWITCH = {"0": False, "1": True}
_READ_ONLY = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class _KnownQueue:
    """What a driver knows of one queue."""

    def __init__(self, queue: str, keep: bool) -> None:
        self.directory = QueueDirectory(queue)
        self.keys = Keys(self.directory)
        self.pages = scan.Pages(self.directory)
        self.claims = FsqClaims(self.directory, keep)
        self.writer = JobWriter(self.directory, self.keys)


class FsqDriver(Driver):
    """Jobs in directories that scanners may share.

    Options of its own: `keep=1` moves ended jobs to `done`, as FSQ does; without it they are removed, as in every other
    store, since nothing empties `done`. `sync=0` leaves out all syncs: what was reported as done may then be undone by
    a power failure.
    """

    type: ClassVar[str] = "fsq"
    capabilities: ClassVar[frozenset[Capability]] = STANDARD
    own_options: ClassVar[frozenset[str] | None] = frozenset({"keep", "sync"})
    pauses_itself: ClassVar[bool] = True
    keys_moves: ClassVar[bool] = True

    def __init__(self, address: StoreURL, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        self.root = Root(_root(address), sync=self._switch("sync", "1"))
        self._keeps_done = self._switch("keep", "0")
        self._stats = DirectoryStats(self.root, self.directory, options.namespace)
        self._queues: dict[str, _KnownQueue] = {}
        self._puts = 0  # of values, by this process
        _drivers.add(self)

    def _switch(self, option: str, default: str) -> bool:
        value = {**self.address.rest, **self.extra}.get(option, default)
        text = str(int(value)) if isinstance(value, bool) else str(value)
        if text not in _SWITCH:
            raise CallerError(f"{option} must be 0 or 1, got {value!r}")
        return _SWITCH[text]

    def forget(self) -> None:
        """Forget all queues: in a forked child they may be half changed by another thread of the parent."""
        self.root.forget_lock()
        self._queues = {}

    @property
    def place(self) -> str:
        return f"fsq:{Path(self.root.path).resolve()}"

    def own_signal(self) -> Signal | None:
        return DirectorySignal(self.root, self.place)

    def aio_signal(self) -> Any:
        return import_module("penstock.queues.stores.fsq.aio.signal").DirectorySignal(self.root, self.place)

    def own_stats(self) -> Stats | None:
        return self._stats

    def moves_in_one_step(self, queue: str, to: str, is_changed: bool) -> bool:
        return not is_changed  # a rename

    def check_queue(self, queue: str) -> None:
        naming.directory_of(queue)

    def exists(self) -> bool:
        return Path(self.root.path).is_dir()

    def _value_path(self, key: str) -> str:
        name = quote(key, safe="")
        if len(name) > VALUE_NAME_MAX:
            name = f"#{sha256(key.encode()).hexdigest()}"
        elif name.startswith("."):
            name = f"%2E{name[1:]}"
        return f"{self.root.path}/{VALUES}/{name}"

    @guarded
    def put_value(self, key: str, value: str, ttl_ms: int) -> None:
        folder, now_ms = f"{self.root.path}/{VALUES}", self.now_ms()
        os.makedirs(folder, exist_ok=True)
        write_whole(self._value_path(key), f"{now_ms + ttl_ms}\n{value}".encode(), is_safe=self.root.sync)
        self._puts += 1
        if self._puts % VALUES_SWEEP == 0:
            for name in files.names(folder):
                found = _read_value(f"{folder}/{name}")
                if found is not None and found.end_ms <= now_ms:
                    files.remove_if_there(f"{folder}/{name}")

    @guarded
    def value(self, key: str) -> str | None:
        found = _read_value(self._value_path(key))
        return found.text if found is not None and self.now_ms() < found.end_ms else None

    @guarded
    def remove_value(self, key: str) -> None:
        files.remove_if_there(self._value_path(key))

    @guarded
    def open(self) -> None:
        if not os.path.isdir(self.root.path):
            # As an SQLite file is made; but a parent directory that is missing is a mistake.
            os.mkdir(self.root.path)

    def close(self) -> None:
        for queue in self._queues.values():
            queue.directory.lease_dirs.close()
        self._queues.clear()

    def _signal_ready(self, channel: str | None, time_ms: int) -> None:
        """Signal within this process; others watch the directory."""
        if channel is not None:
            local_signals.send(self.place, channel, str(time_ms))

    def _queue(self, name: str) -> _KnownQueue:
        found = self._queues.get(name)
        if found is None:
            if len(self._queues) >= QUEUES_MAX:
                self._queues.clear()
            found = self._queues[name] = _KnownQueue(name, self._keeps_done)
        return found

    def directory(self, queue: str) -> QueueDirectory:
        """Return what is known of a queue."""
        return self._queue(queue).directory

    def _installed(self, name: str) -> _KnownQueue | None:
        """Return a queue, or None if it is not installed."""
        queue = self._queue(name)
        return queue if queue.directory.is_there() else None

    def _brought_back(self, name: str, now_ms: int) -> _KnownQueue | None:
        """Return a queue after bringing back what is due; a reader without write access leaves that to others."""
        queue = self._installed(name)
        if queue is not None:
            try:
                queue.directory.bring_back(now_ms, must_know=True)
            except OSError as problem:
                if problem.errno not in _READ_ONLY:
                    raise
        return queue

    # Into and out of the queue

    def prepare(self, job: NewJob) -> None:
        job.prepared = naming.prepare(job)

    @guarded
    def push(self, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        if not jobs:
            return []
        now_ms = self.now_ms()
        ids = self._queue(queue).writer.push(jobs, now_ms)
        self._stats.settle(queue)
        self._signal_ready(channel, now_ms)
        return ids

    def _take(self, queue: _KnownQueue, count: int, now_ms: int) -> Iterator[Item]:
        """Yield up to `count` items, each locked until the next one is asked for."""
        queue_dir = queue.directory
        taken = 0
        for must_know in (False, True):
            if not queue_dir.bring_back(now_ms, must_know) and must_know:
                return
            for item in waiting_items(queue_dir):
                taken += 1
                yield item
                if taken == count:
                    return

    @guarded
    def pop(self, queue: str, count: int, wait_ms: int = 0) -> list[StoredJob]:
        now_ms = self.now_ms()
        found = self._installed(queue)
        if found is None or found.directory.is_down():
            return []
        jobs = []
        with files.Steps() as steps:
            for item in self._take(found, count, now_ms):
                if self._keeps_done:
                    steps.move(item.path, f"{found.directory.area.done}/{item.name}")
                else:
                    steps.remove(item.path)
                found.directory.area.take_back_note(item.name)
                job = naming.stored(item.name, item.data, item.status, JobState.READY, naming.due_ms(item.name))
                job.raw = str(item.name), item.data
                jobs.append(job)
        had = found.keys.ended([job.id for job in jobs], now_ms)
        for job in jobs:
            job.raw = *job.raw, had.get(job.id)
        return jobs

    @guarded
    def put_back(self, queue: str, jobs: Sequence[StoredJob]) -> None:
        found = self._queue(queue)
        found.directory.install()
        for job in jobs:
            file, data, key = job.raw
            found.writer.put_back(file, data)
            if self._keeps_done:
                files.remove_if_there(f"{found.directory.area.done}/{file}")
            if key is not None:
                found.keys.back(job.id, key)

    @guarded
    def reserve(
        self, queue: str, count: int, lease_ms: int, wait_ms: int = 0, begin: int | None = None
    ) -> list[StoredJob]:
        now_ms = self.now_ms()
        found = self._installed(queue)
        if found is None or found.directory.is_down():
            return []
        area = found.directory.area
        until_ms = now_ms + lease_ms
        leases: dict[int, str] = {}  # by `LeaseDirectory.ahead`
        counts: dict[str, int] = {}
        jobs: list[StoredJob] = []
        try:
            for item in self._take(found, count, now_ms):
                unbegun = area.take_back_note(item.name)
                has_begun = begin is None or (unbegun is None and len(jobs) < begin)
                ahead = 0 if has_begun else (unbegun or 0) + 1
                lease = leases.get(ahead)
                if lease is None:
                    lease = leases[ahead] = area.new_lease(until_ms, ahead=ahead)
                    found.directory.lease_dirs.make(lease)
                name = area.free(lease, item.name, item.name.tries)
                files.disk.rename(item.path, f"{lease}/{name}")
                counts[lease] = counts.get(lease, 0) + 1
                token = str(naming.ItemToken(os.path.basename(lease), name.tries))
                job = naming.stored(name, item.data, item.status, JobState.RESERVED, until_ms, token)
                job.has_begun, job.is_back, job.unbegun = has_begun, unbegun is not None, unbegun or 0
                jobs.append(job)
        except OSError:
            if not jobs:  # otherwise the caller gets what there is
                raise
        for lease, items in counts.items():
            found.directory.lease_dirs.filled(lease, items)
        return jobs

    # What becomes of reserved jobs

    @guarded
    def release(self, queue: str, leases: Sequence[Lease]) -> None:
        give_back(self.directory(queue), leases, [None] * len(leases), more_tries=0)

    @guarded
    def ack(self, queue: str, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        now_ms = self.now_ms()
        found = self._queue(queue)
        done = ack(found.directory, leases, self._keeps_done, begun)
        found.keys.ended([lease.id for lease, is_done in zip(leases, done, strict=True) if is_done], now_ms)
        return done

    @guarded
    def nack(self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None) -> list[bool]:
        now_ms = self.now_ms()
        matures_ms = [now_ms + delay_ms if delay_ms > 0 else None for delay_ms in delays_ms]
        done = give_back(self.directory(queue), leases, matures_ms, more_tries=1)
        self._signal_ready(channel, now_ms)
        return done

    @guarded
    def extend(
        self,
        queue: str,
        leases: Sequence[Lease],
        leases_ms: Sequence[int],
        begun: Sequence[bool] = (),
    ) -> list[str | None]:
        now_ms = self.now_ms()
        with LeaseChanges(self.directory(queue), self._keeps_done) as changes:
            return [
                changes.extend(lease, now_ms + lease_ms, has_begun)
                for lease, lease_ms, has_begun in zip(leases, leases_ms, begun or [False] * len(leases), strict=True)
            ]

    @guarded
    def move(
        self, queue: str, to: str, moves: Sequence[JobMove], channel: str | None, counter: str | None = None
    ) -> list[bool]:
        now_ms = self.now_ms()
        source, target = self._queue(queue), self._queue(to)
        target.directory.install()
        if any(move.job.unique is not None for move in moves):
            moved = self._store_and_end(source, target, moves, now_ms)
        else:
            moved = Mover(source.directory, target.directory, now_ms).move(moves)
        source.keys.ended([move.lease.id for move, is_moved in zip(moves, moved, strict=True) if is_moved], now_ms)
        self._signal_ready(channel, now_ms)
        return moved

    def _store_and_end(
        self, source: _KnownQueue, target: _KnownQueue, moves: Sequence[JobMove], now_ms: int
    ) -> list[bool]:
        """Move jobs that become others in two steps.

        Rewritten in the source they would be found there, changed, after a crash. A move that is repeated finds the
        unique key of the first one taken, and only ends the old job.
        """
        held = []
        for move in moves:
            where = source.directory.leased(move.lease.id, naming.read_token(move.lease.token))
            held.append(where is not None and files.exists(where))
        target.writer.push([move.job for move, is_held in zip(moves, held, strict=True) if is_held], now_ms)
        ended = iter(ack(source.directory, [move.lease for move, has in zip(moves, held, strict=True) if has], False))
        return [is_held and next(ended) for is_held in held]

    @guarded
    def remove(self, queue: str, ids: Sequence[str]) -> list[bool]:
        now_ms = self.now_ms()
        found = self._brought_back(queue, now_ms)
        if found is None:
            return [False] * len(ids)
        where = found.directory.waiting(list(ids))
        with files.Steps() as steps:
            removed = [_remove(where.pop(job_id, None), steps) for job_id in ids]
        found.keys.ended([job_id for job_id, is_removed in zip(ids, removed, strict=True) if is_removed], now_ms)
        return removed

    @guarded
    def purge(self, queue: str) -> int:
        now_ms = self.now_ms()
        found = self._brought_back(queue, now_ms)
        if found is None:
            return 0
        queue_dir = found.directory
        removed: list[str] = []
        with files.Steps() as steps:
            for directory in [
                queue_dir.area.queue,
                *(parked.path for parked in queue_dir.parked(None, must_know=True)),
            ]:
                for file, _ in ItemSnapshot([(directory, "")]):
                    name = readable(file)
                    if name is not None and _remove(f"{directory}/{file}", steps):
                        removed.append(name.job_id)
                if directory != queue_dir.area.queue:
                    steps.empty(directory)
        found.keys.ended(removed, now_ms)
        return len(removed)

    # Reading

    @guarded
    def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None = None) -> Page:
        now_ms = self.now_ms()
        found = self._brought_back(queue, now_ms)
        return Page([], None) if found is None else found.pages.peek(state, count, cursor, now_ms)

    @guarded
    def reserved(self, queue: str, ids: Sequence[str]) -> list[StoredJob | None]:
        now_ms = self.now_ms()
        found = self._brought_back(queue, now_ms)
        jobs = {} if found is None else found.pages.reserved(set(ids), now_ms)
        return [jobs.get(job_id) for job_id in ids]

    @guarded
    def sizes(self, queue: str) -> Sizes:
        now_ms = self.now_ms()
        found = self._brought_back(queue, now_ms)
        return Sizes(0, 0, 0, 0) if found is None else scan.sizes(found.directory, now_ms)

    @guarded
    def next_mature_ms(self, queue: str) -> int | None:
        """Return when the next job is ready; for one that is ready, at most now."""
        now_ms = self.now_ms()
        found = self._installed(queue)
        return None if found is None else scan.next_mature_ms(found.directory, now_ms)

    @guarded
    def queues(self) -> list[str]:
        """Return all installed queues, with jobs or without."""
        names = map(naming.queue_of, installing.queues())
        return sorted(name for name in names if self._queue(name).directory.is_there())

    @guarded
    def set_paused(self, queue: str, paused: bool) -> None:
        """Make or remove the down file."""
        queue_dir = self.directory(queue)
        if paused:
            queue_dir.install()
            control.down(queue_dir.fsq_queue)
        elif queue_dir.is_there():
            control.up(queue_dir.fsq_queue)

    @guarded
    def paused(self, queue: str) -> bool:
        """Whether there is a down file."""
        found = self._installed(queue)
        return found is not None and found.directory.is_down()

    # Claims

    def _claims(self, queue: str, key: str, now_ms: int) -> FsqClaims | None:
        """Return the claims of a queue after bringing back what is due, except the jobs of this key."""
        found = self._installed(queue)
        if found is None:
            return None
        found.directory.bring_back(now_ms, must_know=True, but=key_name(key))
        return found.claims

    @guarded
    def claim(self, queue: str, key: str, count: int, lease_ms: int) -> list[StoredJob]:
        now_ms = self.now_ms()
        claims = self._claims(queue, key, now_ms)
        if claims is None:
            return []
        return claims.claim(key, 0 if self.directory(queue).is_down() else count, now_ms + lease_ms)

    @guarded
    def extend_claim(self, queue: str, key: str, lease_ms: int) -> int:
        now_ms = self.now_ms()
        claims = self._claims(queue, key, now_ms)
        return 0 if claims is None else claims.extend(key, now_ms + lease_ms)

    @guarded
    def ack_claim(self, queue: str, key: str) -> int:
        now_ms = self.now_ms()
        claims = self._claims(queue, key, now_ms)
        ended = [] if claims is None else claims.ack(key)
        self._queue(queue).keys.ended(ended, now_ms)
        return len(ended)

    @guarded
    def nack_claim(self, queue: str, key: str, delay_ms: int) -> int:
        now_ms = self.now_ms()
        claims = self._claims(queue, key, now_ms)
        return 0 if claims is None else claims.nack(key, now_ms + delay_ms if delay_ms > 0 else None)


_drivers: WeakSet[FsqDriver] = WeakSet()


class _Value(NamedTuple):
    """What stands in the file of a value."""

    end_ms: int
    text: str


def _read_value(path: str) -> _Value | None:
    """Return a value; None if there is none, or the file is something else."""
    try:
        opened = files.open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with open(opened.fd, "rb") as file:
        end_ms, _, text = file.read().partition(b"\n")
    is_ours = end_ms.isdigit() and len(end_ms) < END_DIGITS_MAX
    return _Value(int(end_ms), text.decode(errors="replace")) if is_ours else None


def _forget_all() -> None:
    for driver in list(_drivers):
        driver.forget()


os.register_at_fork(after_in_child=_forget_all)


def _remove(where: str | None, steps: files.Steps) -> bool:
    """Remove a waiting item, unless it is locked."""
    if where is None:
        return False
    try:
        held = hold(where)
    except (FileNotFoundError, FSQCannotLockError, FSQWorkItemError):
        return False
    try:
        steps.remove(where)
    finally:
        os.close(held.fd)
    return True


def _root(address: StoreURL) -> str:
    """Return the directory of all queues."""
    path = unquote(address.path)
    if address.netloc or "#" in address.full or "\0" in path:
        raise BadUrl(
            f"{address.url} must name a directory: write fsq:///var/fsq, fsq:relative/path, or fsq: for FSQ_ROOT "
            "(and %23 for a # in it)"
        )
    # The process may change its working directory later.
    return str(Path(path or text_of("FSQ_ROOT")).absolute())
