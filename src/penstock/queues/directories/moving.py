"""Jobs from one queue to another, in one step: an item is rewritten where only we see it, then renamed over.

    1. what it becomes is written in `tmp`
    2. it is in a directory of leases, since it was reserved; one that waits is put there for a minute
    3. its lock is taken, so that nobody brings it back meanwhile, and the draft is renamed over it
    4. it is renamed into `queue` of the other queue

Whatever is killed in between, the item is in one place; after step 3 it may have headers that it should not have yet,
which the next move replaces.
"""

import errno
import os
from collections.abc import Sequence

from penstock.fsq import files
from penstock.fsq.aside import hold, readable
from penstock.fsq.constants import number_of
from penstock.fsq.enqueueing import NewItem
from penstock.fsq.errors import FSQCannotLockError, FSQWorkItemError
from penstock.fsq.items import lock
from penstock.fsq.owners import owner
from penstock.job import Move, NewJob
from penstock.queues.directories.ending import Ender
from penstock.queues.directories.naming import Prepared, item_of, new_name, read_token
from penstock.queues.directories.place import Place
from penstock.queues.directories.taking import read_item

MOVE_MS = 60_000  # so long a job that waited is set aside for its move: it comes back if we are killed in it
_GONE = (FileNotFoundError, NotADirectoryError, FSQCannotLockError, FSQWorkItemError)


class Mover:
    """Moves jobs from a queue to another one."""

    def __init__(self, source: Place, target: Place, now_ms: int) -> None:
        self._source = source
        self._target = target
        self._aside_until_ms = now_ms + MOVE_MS
        self._ender = Ender(source, keep=False)

    def move(self, moves: Sequence[Move]) -> list[bool]:
        """Move jobs; for each whether it was there."""
        waiting = self._source.waiting([move.lease.id for move in moves if move.lease.token is None])
        with self._ender:
            moved = [self._move(move, waiting.get(move.lease.id)) for move in moves]
        if any(moved):
            self._target.pull_trigger()
        return moved

    def _move(self, move: Move, waiting: str | None) -> bool:
        lease, job = move
        where = waiting if lease.token is None else self._source.leased(lease.id, read_token(lease.token))
        if where is None:
            return False
        draft: int | None = None
        draft_path = f"{self._source.aside.tmp}/{files.temporary_name()}"
        try:
            if read_item(where)[0] != job.prepared.data:
                draft = self._write(draft_path, job.prepared)
            if lease.token is None:
                where = self._set_aside(where)
            self._over(where, job, None if draft is None else draft_path)
        except _GONE:
            return False
        finally:
            if draft is not None:
                os.close(draft)
                files.remove_if_there(draft_path)
        return True

    def _write(self, where: str, prepared: Prepared) -> int:
        """Write the draft of an item; gives what holds its lock."""
        fd = files.disk.create(where, number_of("FSQ_ITEM_MODE"))
        try:
            files.own(fd, owner(None, None, "ITEM"))
            files.disk.write(fd, prepared.data)
            files.disk.sync(fd)
            locked = os.open(where, os.O_RDONLY | os.O_CLOEXEC)
            lock(locked)
        except BaseException:
            files.remove_if_there(where)
            raise
        finally:
            files.disk.close(fd)
        return locked

    def _set_aside(self, where: str) -> str:
        """Take an item that waits out of everybody's sight."""
        held = hold(where)
        try:
            name = readable(os.path.basename(where))
            assert name is not None, where
            directory = self._source.aside.new_lease(self._aside_until_ms)
            return f"{directory}/{self._ender.into(where, directory, name)}"
        finally:
            os.close(held.fd)

    def _over(self, where: str, job: NewJob, draft: str | None) -> None:
        """Rewrite an item that is set aside, and rename it into the other queue."""
        held = hold(where)
        try:
            if draft is not None:
                files.disk.rename(draft, where)
            aside = self._target.aside
            name = item_of(job.id) or readable(new_name(self._aside_until_ms, 0, job.prepared.arguments))
            assert name is not None, job.id
            file = str(aside.free(aside.queue, name, job.tries))
            try:
                self._ender.steps.move(where, f"{aside.queue}/{file}")
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._copy(where, job, file)
            self._ender.left(where)
            self._target.line.put(file)
        finally:
            os.close(held.fd)

    def _copy(self, where: str, job: NewJob, file: str) -> None:
        """The other queue is on another file system: what is new is stored before what is old goes."""
        with NewItem(self._target.directory, namer=lambda: file) as item:
            item.write(job.prepared.data)
            item.commit()
        self._ender.steps.remove(where)
