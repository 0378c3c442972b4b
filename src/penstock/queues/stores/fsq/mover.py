"""Moves jobs to another queue: items are rewritten where only this process sees them, then renamed.

    1. an item's lock is taken, so that nobody brings it back meanwhile
    2. it is in a directory of leases, since it was reserved; one that waits is put there for a minute. Synced
    3. what it becomes is written in `tmp`, and renamed over it. Synced
    4. it is renamed into `queue` of the other queue. Synced

Whatever is killed in between, the item is in one place; after step 3 it may have headers that it should not have yet,
which the next move replaces. Another process may extend the claim that an item is under, which renames the item: so the
rename of step 3 is made under the lock of claims, and only if the item is still there. Step 3 makes it another file:
had it a name left that a power failure brings back, nobody could see that both are one job. So each step is on the disk
before the next one begins. A power failure in step 4 leaves the item in one of the two queues where a rename is one
change to the disk, as on every file system that keeps a journal; on others it may be in both, until the move is
reported as done.
"""

import errno
import os
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from typing import NamedTuple

from penstock.fsq import files
from penstock.fsq.constants import number_of
from penstock.fsq.enqueueing import NewItem
from penstock.fsq.errors import FSQCannotLockError, FSQWorkItemError
from penstock.fsq.items import lock
from penstock.fsq.owners import owner
from penstock.fsq.reserved import hold, readable
from penstock.job import JobMove, NewJob
from penstock.queues.stores.fsq.directory import QueueDirectory
from penstock.queues.stores.fsq.items import read_item
from penstock.queues.stores.fsq.leases import LeaseChanges
from penstock.queues.stores.fsq.names import item_of, new_name, read_token

MOVE_MS = 60_000  # lease of a waiting job while it moves: it comes back if the process is killed
TOGETHER = 100  # jobs that share the syncs; each keeps up to two files open
_NS_PER_MS = 1_000_000
_GONE = (FileNotFoundError, NotADirectoryError, FSQCannotLockError, FSQWorkItemError)


class _Begun(NamedTuple):
    """An item that this process has taken."""

    where: str
    file: tuple[int, int]  # which one it is
    came_from: str  # the directory that its name may still be in, after a power failure
    job: NewJob
    is_new: bool  # it must be rewritten


class Mover:
    """Moves jobs from a queue to another one."""

    def __init__(self, source: QueueDirectory, target: QueueDirectory, now_ms: int) -> None:
        self._source = source
        self._target = target
        self._until_ms = now_ms + MOVE_MS
        self._directory = source.area.new_lease(self._until_ms)  # for those that wait

    def move(self, moves: Sequence[JobMove]) -> list[bool]:
        """Move jobs; return for each whether it was there."""
        waiting = self._source.waiting([move.lease.id for move in moves if move.lease.token is None])
        moved: list[bool] = []
        for at in range(0, len(moves), TOGETHER):
            with ExitStack() as locks, LeaseChanges(self._source, keep=False) as changes:
                begun = [self._begin(move, waiting, locks, changes) for move in moves[at : at + TOGETHER]]
                there = [one for one in begun if one is not None]
                held = [os.path.dirname(one.where) for one in there]
                _sync([*held, *map(os.path.dirname, held), *(one.came_from for one in there)])
                rewritten = {one.where: self._rewrite(one, locks) for one in there if one.is_new}
                _sync([os.path.dirname(where) for where, is_there in rewritten.items() if is_there])
                moved += [
                    one is not None and rewritten.get(one.where, True) and self._finish(one, changes) for one in begun
                ]
        if any(moved):
            self._target.pull_trigger()
        return moved

    def _begin(self, move: JobMove, waiting: dict[str, str], locks: ExitStack, changes: LeaseChanges) -> _Begun | None:
        """Take an item where no other process sees it; return None if it isn't there."""
        lease, job = move
        where = waiting.get(lease.id) if lease.token is None else self._source.leased(lease.id, read_token(lease.token))
        if where is None:
            return None
        came_from = os.path.dirname(where) if lease.token is None else self._source.area.queue
        try:
            fd, status = hold(where)
            locks.callback(os.close, fd)
            is_new = read_item(where)[0] != job.prepared.data
            if lease.token is None:
                name = readable(os.path.basename(where))
                assert name is not None, where
                where = f"{self._directory}/{changes.into(where, self._directory, name)}"
        except _GONE:
            return None
        return _Begun(where, (status.st_dev, status.st_ino), came_from, job, is_new)

    def _rewrite(self, one: _Begun, locks: ExitStack) -> bool:
        """Put another file, locked from the start, in an item's place; return False if the item isn't there."""
        draft = f"{self._source.area.tmp}/{files.temporary_name()}"
        fd = files.disk.create(draft, number_of("FSQ_ITEM_MODE"))
        try:
            files.own(fd, owner(None, None, "ITEM"))
            files.disk.write(fd, one.job.prepared.data)
            if one.job.created_ms is not None:
                # When an item was last written is when its job was pushed.
                os.utime(fd, ns=(one.job.created_ms * _NS_PER_MS,) * 2)
            files.disk.sync(fd)
            held = files.open_file(draft, os.O_RDONLY).fd
            locks.callback(os.close, held)
            lock(held)
            is_claimed = one.where.startswith(f"{self._source.area.claim}/")
            with self._source.claims_locked() if is_claimed else nullcontext():
                is_there = files.identity(one.where) == one.file
                if is_there:
                    files.disk.rename(draft, one.where)
        except BaseException:
            files.remove_if_there(draft)
            raise
        finally:
            files.disk.close(fd)
        if not is_there:
            files.remove_if_there(draft)
        return is_there

    def _finish(self, one: _Begun, changes: LeaseChanges) -> bool:
        """Rename an item into the other queue. False if it was ended meanwhile."""
        area = self._target.area
        name = item_of(one.job.id) or readable(new_name(self._until_ms, 0, one.job.prepared.arguments))
        assert name is not None, one.job.id
        file = str(area.free(area.queue, name, one.job.tries))
        try:
            changes.steps.move(one.where, f"{area.queue}/{file}")
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._copy(one, file, changes)
        changes.left(one.where)
        self._target.ready_names.put(file)
        return True

    def _copy(self, one: _Begun, file: str, changes: LeaseChanges) -> None:
        """Copy an item to a queue on another file system: it is stored there before it is removed here."""
        with NewItem(self._target.fsq_queue, namer=lambda: file) as item:
            item.write(one.job.prepared.data)
            item.commit()
        changes.steps.remove(one.where)


def _sync(directories: Sequence[str]) -> None:
    for directory in dict.fromkeys(directories):
        with suppress(FileNotFoundError):  # it was removed when the last item left it
            files.disk.sync_directory(directory)
