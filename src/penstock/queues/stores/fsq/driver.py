"""`fsq:///absolute/root`, `fsq:relative/root`, and `fsq:` for FSQ_ROOT: jobs in directories, by the FSQ standard.

The original `fsq`, ours and this store may share a queue.

A queue is a directory below the root, installed at its first push. A job is an item, a file whose name has the
metadata and whose content is the body (`penstock.queues.stores.fsq.names`). Everything that is touched, from the
queue's directory on:

    tmp/NAME                              an item that is being written
    queue/NAME                            a job that is ready
    done/NAME                             an ended job, with `keep=1`; without, ended jobs are removed
    fail/NAME                             what had a name that nobody can read, or one too long for another try
    down                                  while it is there, the queue is paused, for scanners as well
    trigger-s                             is pulled when a job gets ready
    attempts/NAME                         tries of scanners that were killed: they count when the job is taken
    .penstock/lease, claim, later, back   jobs that are reserved or wait for their time: `penstock.fsq.reserved`
    .penstock/claim.lock                  locked by who changes claims
    .penstock/unique/, unique.lock        unique keys: `penstock.queues.stores.fsq.unique`
    .penstock/stats/, stats.lock          counters and options: `penstock.queues.stores.fsq.stats`

Jobs come in the order of the times in their names: when they were pushed, or were due. One that is given back keeps its
name, and so its place in the line. Several processes need no lock for all this: an item is taken by a rename, under the
lock on the item itself that scanners take, too.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote
from weakref import WeakSet

from penstock.errors import BadUrl, CallerError
from penstock.fsq import control, files, installing
from penstock.fsq.constants import text_of
from penstock.fsq.errors import FSQCannotLockError, FSQWorkItemError
from penstock.fsq.reserved import hold, key_name, readable
from penstock.fsq.snapshot import Snapshot
from penstock.job import JobState, Lease, Move, NewJob, Sizes, StoredJob
from penstock.queues import local_signals
from penstock.queues.blocking.driver import Driver, Page
from penstock.queues.blocking.signal import Signal
from penstock.queues.blocking.stats import Stats
from penstock.queues.capabilities import Capability
from penstock.queues.options import Address, Options
from penstock.queues.stores.fsq import ending
from penstock.queues.stores.fsq import names as naming
from penstock.queues.stores.fsq import scan as looking
from penstock.queues.stores.fsq.adding import Adder
from penstock.queues.stores.fsq.blocking.signal import DirectorySignal
from penstock.queues.stores.fsq.claims import Claims
from penstock.queues.stores.fsq.directory import Place
from penstock.queues.stores.fsq.moving import Mover
from penstock.queues.stores.fsq.root import Root, guarded
from penstock.queues.stores.fsq.stats import DirectoryStats
from penstock.queues.stores.fsq.taking import Item, waiting_items
from penstock.queues.stores.fsq.unique import Keys

QUEUES_MAX = 1000  # of which one engine keeps what it knows: more than that are read anew
_SWITCH = {"0": False, "1": True}
_ONLY_LOOKING = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class _Queue:
    """All that an engine has of one queue."""

    def __init__(self, queue: str, keep: bool) -> None:
        self.place = Place(queue)
        self.keys = Keys(self.place)
        self.looks = looking.Looks(self.place)
        self.claims = Claims(self.place, keep)
        self.adder = Adder(self.place, self.keys)


class FsqDriver(Driver):
    """Jobs in directories that scanners may share.

    Options of its own: `keep=1` moves ended jobs to `done`, as FSQ does; without it they are removed, as in every other
    store: nobody empties `done`. `sync=0` leaves out all syncs: what was reported as done may then be undone by a power
    failure.
    """

    type: ClassVar[str] = "fsq"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.DELAY,
            Capability.RESERVE,
            Capability.EXTEND,
            Capability.TOKEN,
            Capability.CLAIM,
            Capability.PEEK,
            Capability.REMOVE,
            Capability.HEADERS,
            Capability.UNIQUE,
            Capability.ATOMIC_MOVE,
            Capability.SHARED_PAUSE,
        }
    )
    own_options: ClassVar[frozenset[str] | None] = frozenset({"keep", "sync"})
    pauses_itself: ClassVar[bool] = True

    def __init__(self, address: Address, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        self.root = Root(_root(address), sync=self._switch("sync", "1"))
        self._keeps_done = self._switch("keep", "0")
        self._stats = DirectoryStats(self.root, self.directory, options.name)
        self._queues: dict[str, _Queue] = {}
        _drivers.add(self)

    def _switch(self, option: str, default: str) -> bool:
        value = {**self.address.rest, **self.extra}.get(option, default)
        text = str(int(value)) if isinstance(value, bool) else str(value)
        if text not in _SWITCH:
            raise CallerError(f"{option} must be 0 or 1, got {value!r}")
        return _SWITCH[text]

    def forget(self) -> None:
        """Know of no queue. In a forked child another thread of the parent may have been at work on what was known."""
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

    def check_queue(self, queue: str) -> None:
        naming.directory_of(queue)

    def exists(self) -> bool:
        return Path(self.root.path).is_dir()

    @guarded
    def open(self) -> None:
        if not os.path.isdir(self.root.path):
            # As a file of SQLite is made where there is none; a path that leads nowhere is a mistake.
            os.mkdir(self.root.path)

    def close(self) -> None:
        for queue in self._queues.values():
            queue.place.drawers.close()
        self._queues.clear()

    def _signal_ready(self, channel: str | None, time_ms: int) -> None:
        """Other processes hear of it by watching the directory; this one at once."""
        if channel is not None:
            local_signals.send(self.place, channel, str(time_ms))

    def _queue(self, name: str) -> _Queue:
        found = self._queues.get(name)
        if found is None:
            if len(self._queues) >= QUEUES_MAX:
                self._queues.clear()
            found = self._queues[name] = _Queue(name, self._keeps_done)
        return found

    def directory(self, queue: str) -> Place:
        """Return what is known of a queue."""
        return self._queue(queue).place

    def _there(self, name: str) -> _Queue | None:
        """A queue, if it is installed."""
        queue = self._queue(name)
        return queue if queue.place.is_there() else None

    def _look_at(self, name: str, now_ms: int) -> _Queue | None:
        """A queue with all brought back that is due; where we may only look, that is left to others."""
        queue = self._there(name)
        if queue is not None:
            try:
                queue.place.bring_back(now_ms, must_know=True)
            except OSError as problem:
                if problem.errno not in _ONLY_LOOKING:
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
        ids = self._queue(queue).adder.push(jobs, now_ms)
        self._stats.settle(queue)
        self._signal_ready(channel, now_ms)
        return ids

    def _take(self, queue: _Queue, count: int, now_ms: int) -> Iterator[Item]:
        """Up to so many items, each locked until the next one is asked for."""
        place = queue.place
        taken = 0
        for must_know in (False, True):
            if not place.bring_back(now_ms, must_know) and must_know:
                return
            for item in waiting_items(place):
                taken += 1
                yield item
                if taken == count:
                    return

    @guarded
    def pop(self, queue: str, count: int, wait_ms: int = 0) -> list[StoredJob]:
        now_ms = self.now_ms()
        found = self._there(queue)
        if found is None or found.place.is_down():
            return []
        jobs = []
        with files.Steps() as steps:
            for item in self._take(found, count, now_ms):
                if self._keeps_done:
                    steps.move(item.path, f"{found.place.aside.done}/{item.name}")
                else:
                    steps.remove(item.path)
                found.place.aside.take_back_note(item.name)
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
        found.place.install()
        for job in jobs:
            file, data, key = job.raw
            found.adder.put_back(file, data)
            if self._keeps_done:
                files.remove_if_there(f"{found.place.aside.done}/{file}")
            if key is not None:
                found.keys.back(job.id, key)

    @guarded
    def reserve(
        self, queue: str, count: int, lease_ms: int, wait_ms: int = 0, begin: int | None = None
    ) -> list[StoredJob]:
        now_ms = self.now_ms()
        found = self._there(queue)
        if found is None or found.place.is_down():
            return []
        aside = found.place.aside
        until_ms = now_ms + lease_ms
        leases: dict[int, str] = {}  # by `Lease.ahead`
        counts: dict[str, int] = {}
        jobs: list[StoredJob] = []
        try:
            for item in self._take(found, count, now_ms):
                unbegun = aside.take_back_note(item.name)
                has_begun = begin is None or (unbegun is None and len(jobs) < begin)
                ahead = 0 if has_begun else (unbegun or 0) + 1
                lease = leases.get(ahead)
                if lease is None:
                    lease = leases[ahead] = aside.new_lease(until_ms, ahead=ahead)
                    found.place.drawers.make(lease)
                name = aside.free(lease, item.name, item.name.tries)
                files.disk.rename(item.path, f"{lease}/{name}")
                counts[lease] = counts.get(lease, 0) + 1
                token = str(naming.Token(os.path.basename(lease), name.tries))
                job = naming.stored(name, item.data, item.status, JobState.RESERVED, until_ms, token)
                job.has_begun, job.is_back, job.unbegun = has_begun, unbegun is not None, unbegun or 0
                jobs.append(job)
        except OSError:
            if not jobs:  # otherwise the caller gets what there is
                raise
        for lease, items in counts.items():
            found.place.drawers.filled(lease, items)
        return jobs

    # What becomes of reserved jobs

    @guarded
    def release(self, queue: str, leases: Sequence[Lease]) -> None:
        ending.give_back(self.directory(queue), leases, [None] * len(leases), more_tries=0)

    @guarded
    def ack(self, queue: str, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        now_ms = self.now_ms()
        found = self._queue(queue)
        done = ending.ack(found.place, leases, self._keeps_done, begun)
        found.keys.ended([lease.id for lease, is_done in zip(leases, done, strict=True) if is_done], now_ms)
        return done

    @guarded
    def nack(self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None) -> list[bool]:
        now_ms = self.now_ms()
        matures_ms = [now_ms + delay_ms if delay_ms > 0 else None for delay_ms in delays_ms]
        done = ending.give_back(self.directory(queue), leases, matures_ms, more_tries=1)
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
        with ending.Ender(self.directory(queue), self._keeps_done) as ender:
            return [
                ender.extend(lease, now_ms + lease_ms, has_begun)
                for lease, lease_ms, has_begun in zip(leases, leases_ms, begun or [False] * len(leases), strict=True)
            ]

    @guarded
    def move(
        self, queue: str, to: str, moves: Sequence[Move], channel: str | None, counter: str | None = None
    ) -> list[bool]:
        now_ms = self.now_ms()
        source, target = self._queue(queue), self._queue(to)
        target.place.install()
        moved = Mover(source.place, target.place, now_ms).move(moves)
        source.keys.ended([move.lease.id for move, is_moved in zip(moves, moved, strict=True) if is_moved], now_ms)
        self._signal_ready(channel, now_ms)
        return moved

    @guarded
    def remove(self, queue: str, ids: Sequence[str]) -> list[bool]:
        now_ms = self.now_ms()
        found = self._look_at(queue, now_ms)
        if found is None:
            return [False] * len(ids)
        where = found.place.waiting(list(ids))
        with files.Steps() as steps:
            removed = [_remove(where.pop(job_id, None), steps) for job_id in ids]
        found.keys.ended([job_id for job_id, is_removed in zip(ids, removed, strict=True) if is_removed], now_ms)
        return removed

    @guarded
    def purge(self, queue: str) -> int:
        now_ms = self.now_ms()
        found = self._look_at(queue, now_ms)
        if found is None:
            return 0
        place = found.place
        removed: list[str] = []
        with files.Steps() as steps:
            for directory in [place.aside.queue, *(parked.path for parked in place.parked(None, must_know=True))]:
                for file, _ in Snapshot([(directory, "")]):
                    name = readable(file)
                    if name is not None and _remove(f"{directory}/{file}", steps):
                        removed.append(name.job_id)
                if directory != place.aside.queue:
                    steps.empty(directory)
        found.keys.ended(removed, now_ms)
        return len(removed)

    # Looks

    @guarded
    def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None = None) -> Page:
        now_ms = self.now_ms()
        found = self._look_at(queue, now_ms)
        return Page([], None) if found is None else found.looks.peek(state, count, cursor, now_ms)

    @guarded
    def reserved(self, queue: str, ids: Sequence[str]) -> list[StoredJob | None]:
        now_ms = self.now_ms()
        found = self._look_at(queue, now_ms)
        jobs = {} if found is None else found.looks.reserved(set(ids), now_ms)
        return [jobs.get(job_id) for job_id in ids]

    @guarded
    def sizes(self, queue: str) -> Sizes:
        now_ms = self.now_ms()
        found = self._look_at(queue, now_ms)
        return Sizes(0, 0, 0, 0) if found is None else looking.sizes(found.place, now_ms)

    @guarded
    def next_mature_ms(self, queue: str) -> int | None:
        """When the next job is ready: now at the latest, for one that is."""
        now_ms = self.now_ms()
        found = self._there(queue)
        return None if found is None else looking.next_mature_ms(found.place, now_ms)

    @guarded
    def queues(self) -> list[str]:
        """All that are installed, whether they have jobs or not."""
        names = map(naming.queue_of, installing.queues())
        return sorted(name for name in names if self._queue(name).place.is_there())

    @guarded
    def set_paused(self, queue: str, paused: bool) -> None:
        """Make or remove the down file."""
        place = self.directory(queue)
        if paused:
            place.install()
            control.down(place.directory)
        elif place.is_there():
            control.up(place.directory)

    @guarded
    def paused(self, queue: str) -> bool:
        """Whether there is a down file."""
        found = self._there(queue)
        return found is not None and found.place.is_down()

    # Claims

    def _claims(self, queue: str, key: str, now_ms: int) -> Claims | None:
        """The claims of a queue, with all brought back that is due, but what this key has."""
        found = self._there(queue)
        if found is None:
            return None
        found.place.bring_back(now_ms, must_know=True, but=key_name(key))
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


def _forget_all() -> None:
    for driver in list(_drivers):
        driver.forget()


os.register_at_fork(after_in_child=_forget_all)


def _remove(where: str | None, steps: files.Steps) -> bool:
    """Remove an item that waits, unless somebody works on it."""
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


def _root(address: Address) -> str:
    """The directory of all queues."""
    path = unquote(address.path)
    if address.netloc or "#" in address.full or "\0" in path:
        raise BadUrl(
            f"{address.url} names no directory: write fsq:///var/fsq, fsq:relative/path, or fsq: for FSQ_ROOT "
            "(and %23 for a # in it)"
        )
    # A process may go elsewhere later on; its queues stay where they are.
    return str(Path(path or text_of("FSQ_ROOT")).absolute())
