"""Push: all items are written in `tmp` and synced, then all are renamed, then the directories are synced."""

import errno
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import NamedTuple

from penstock.errors import OutcomeUnknown, PartlyAdded
from penstock.fsq import files
from penstock.fsq.enqueueing import NewItem
from penstock.fsq.errors import FSQEnqueueError, describe
from penstock.fsq.names import ItemName
from penstock.fsq.reserved import readable
from penstock.job import NewJob
from penstock.queues.stores.fsq.directory import QueueDirectory
from penstock.queues.stores.fsq.names import new_name
from penstock.queues.stores.fsq.unique import Keys

_MAKING_TRIES = 5  # of a directory that somebody else removes at the same time, since it was empty


class _Draft(NamedTuple):
    """A job on its way in."""

    number: int  # of the job in the call
    job: NewJob
    item: NewItem
    target: str
    is_parked: bool

    @property
    def id(self) -> str:
        return _parsed(self.item.name).job_id


def _parsed(file: str) -> ItemName:
    name = readable(file)
    assert name is not None, file
    return name


class JobWriter:
    """Writes the jobs of one queue."""

    def __init__(self, queue_dir: QueueDirectory, keys: Keys) -> None:
        self._queue_dir = queue_dir
        self._keys = keys

    def push(self, jobs: Sequence[NewJob], now_ms: int) -> list[str]:
        """Store jobs; return their ids, or those of the jobs that have their unique keys."""
        self._queue_dir.install()
        is_any_unique = any(job.unique is not None for job in jobs)
        with self._keys.locked() if is_any_unique else nullcontext():
            ids, drafts = self._write(jobs, now_ms)
            unique = [draft for draft in drafts if draft.job.unique is not None]
            self._publish(drafts, ids)
            if unique:
                self._keys.stored([draft.job for draft in unique], now_ms)
        if any(draft.is_parked for draft in drafts):
            self._queue_dir.area.tell_news()
        if not all(draft.is_parked for draft in drafts):
            self._queue_dir.pull_trigger()
        return ids

    def _write(self, jobs: Sequence[NewJob], now_ms: int) -> tuple[list[str], list[_Draft]]:
        """Write the new items where nothing reads them yet."""
        ids: list[str] = []
        drafts: list[_Draft] = []
        taken: dict[str, str] = {}
        try:
            for number, job in enumerate(jobs):
                holder = None
                if job.unique is not None:
                    holder = taken.get(job.unique) or self._keys.holder(job.unique, now_ms)
                if holder is None:
                    drafts.append(self._draft(number, job, now_ms))
                    holder = job.id = drafts[-1].id
                    if job.unique is not None:
                        taken[job.unique] = job.id
                ids.append(holder)
        except BaseException:
            _abort(drafts)
            raise
        return ids, drafts

    def _draft(self, number: int, job: NewJob, now_ms: int) -> _Draft:
        due_ms = now_ms + job.delay_ms if job.mature_ms is None else job.mature_ms
        is_parked = due_ms > now_ms
        area = self._queue_dir.area
        target = area.parking(due_ms) if is_parked else area.queue
        namer = partial(new_name, max(0, due_ms), job.tries, job.prepared.arguments)
        item = NewItem(self._queue_dir.fsq_queue, namer=namer, target=target)
        try:
            item.write(job.prepared.data)
            item.seal()
        except BaseException:
            item.abort()
            raise
        return _Draft(number, job, item, target, is_parked)

    def _publish(self, drafts: Sequence[_Draft], ids: list[str]) -> None:
        """Rename drafts into the queue. If only some could be, PartlyAdded says which."""
        done: list[_Draft] = []
        try:
            for draft in drafts:
                if draft.job.unique is not None:
                    self._keys.take(draft.job)
            for draft in drafts:
                self._appear(draft)
                done.append(draft)
                # Where the name was taken, it got another one.
                ids[draft.number] = draft.job.id = draft.id
        except OSError as problem:
            rest = drafts[len(done) :]
            _abort(rest)
            for draft in rest:
                if draft.job.unique is not None:
                    self._keys.free(draft.job)
            if not done:
                raise
            self._sync(done)
            lost = {draft.number for draft in rest}
            text = f"{len(done)} of {len(drafts)} jobs are in {self._queue_dir.queue!r}, then: {describe(problem)}"
            raise PartlyAdded(text, [None if at in lost else one for at, one in enumerate(ids)]) from problem
        self._sync(done)

    def _appear(self, draft: _Draft) -> None:
        for attempt in range(_MAKING_TRIES):
            if draft.is_parked:
                self._queue_dir.area.make(draft.target)
            try:
                draft.item.publish()
            except FSQEnqueueError as error:
                if error.errno != errno.ENOENT or not draft.is_parked or attempt + 1 == _MAKING_TRIES:
                    raise
            else:
                return

    def _sync(self, done: Sequence[_Draft]) -> None:
        try:
            for target in {draft.target for draft in done}:
                files.disk.sync_directory(target)
        except OSError as problem:
            raise OutcomeUnknown(
                f"{len(done)} jobs are in {self._queue_dir.queue!r}, but a power failure may take them away again: "
                f"{describe(problem)}"
            ) from problem

    def put_back(self, file: str, data: bytes) -> None:
        """Write an item again that was taken and that no caller was given."""
        name = _parsed(file)
        numbers = count(name.tries)
        with NewItem(self._queue_dir.fsq_queue, namer=lambda: name.again(next(numbers))) as item:
            item.write(data)
            self._queue_dir.ready_names.put(item.commit())


def _abort(drafts: Sequence[_Draft]) -> None:
    for draft in drafts:
        draft.item.abort()
