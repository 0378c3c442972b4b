"""Reads a queue: how many jobs, which ones, and when the next one is ready.

Pages of waiting jobs come from one listing, which is kept for the page after: a million of them are listed once.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

from penstock.fsq import files
from penstock.fsq.names import ItemName
from penstock.fsq.reserved import listed, readable
from penstock.fsq.snapshot import ItemSnapshot, row
from penstock.job import JobState, Sizes, StoredJob
from penstock.queues.blocking.driver import Page
from penstock.queues.stores.fsq.directory import QueueDirectory
from penstock.queues.stores.fsq.items import read_item
from penstock.queues.stores.fsq.names import ItemToken, due_ms, stored

KEPT_MAX = 8  # listings that are kept for the next page
LOCKED_MS = 1000  # until an item that a scanner has locked is tried again: nothing signals that it is free


class Seen(NamedTuple):
    """An item, where it is, and how it stands."""

    time_ms: int
    path: str
    name: ItemName
    state: JobState
    token: str | None = None
    is_aside: bool = False

    @property
    def mark(self) -> str:
        """A text that sorts as items are read: also a cursor."""
        order = row(os.path.basename(self.path))
        return f"1{self.time_ms:015d}/{order}" if self.is_aside else f"0{order}"

    def read(self) -> StoredJob | None:
        """The job; None if it is gone, or can't be read."""
        try:
            data, status = read_item(self.path)
        except OSError:
            return None
        return stored(self.name, data, status, self.state, self.time_ms, self.token)


def sizes(queue_dir: QueueDirectory, now_ms: int) -> Sizes:
    """How many jobs there are. Those that scanners work on count as ready."""
    counts = dict.fromkeys(JobState, 0)
    counts[JobState.READY] = _count(queue_dir.area.queue)
    for lease in queue_dir.leases(must_know=True):
        counts[_state(JobState.RESERVED, lease.until_ms, now_ms)] += _count(lease.path)
    for parked in queue_dir.parked(None, must_know=True):
        counts[_state(JobState.SCHEDULED, parked.mature_ms, now_ms)] += _count(parked.path)
    ready, scheduled, reserved = (counts[state] for state in (JobState.READY, JobState.SCHEDULED, JobState.RESERVED))
    return Sizes(ready + scheduled + reserved, ready, scheduled, reserved)


def ready(queue_dir: QueueDirectory) -> int:
    """How many jobs are in `queue`."""
    return _count(queue_dir.area.queue)


def _state(state: JobState, time_ms: int, now_ms: int) -> JobState:
    """What is due and could not be brought back is ready all the same."""
    return JobState.READY if time_ms <= now_ms else state


def _count(directory: str) -> int:
    try:
        with files.entries(directory) as entries:
            return sum(1 for _ in entries)
    except FileNotFoundError:
        return 0


def next_mature_ms(queue_dir: QueueDirectory, now_ms: int) -> int | None:
    """When the next job is ready."""
    first = queue_dir.ready_names.first_free()
    if first is None:
        queue_dir.ready_names.renew()
        first = queue_dir.ready_names.first_free()
    if first is not None:
        name = readable(first)
        return now_ms if name is None else min(now_ms, due_ms(name))
    times = [lease.until_ms for lease in queue_dir.leases(must_know=True) if listed(lease.path)]
    parked_ms = queue_dir.first_parked_ms()
    times += [] if parked_ms is None else [parked_ms]
    times += [now_ms + LOCKED_MS] if queue_dir.ready_names.locked else []
    return min(times, default=None)


class Pages:
    """The pages of one queue."""

    def __init__(self, queue_dir: QueueDirectory) -> None:
        self._queue_dir = queue_dir
        self._kept: dict[tuple[JobState | None, str], Iterator[Seen]] = {}  # by the cursor that goes on with it

    def peek(self, state: JobState | None, count: int, cursor: str | None, now_ms: int) -> Page:
        """Return up to `count` jobs: those that are ready, then those that will be."""
        found = self._kept.pop((state, cursor), None) if cursor else None
        if found is None:
            found = (seen for seen in self._all(state, now_ms) if cursor is None or seen.mark > cursor)
        jobs: list[StoredJob] = []
        for seen in found:
            job = seen.read()
            if job is not None:
                jobs.append(job)
            if len(jobs) == count:
                self._keep(state, seen.mark, found)
                return Page(jobs, seen.mark)
        return Page(jobs, None)

    def reserved(self, ids: Collection[str], now_ms: int) -> dict[str, StoredJob]:
        """Those of these jobs that are reserved."""
        seen = [one for one in self._set_aside(now_ms) if one.state is JobState.RESERVED and one.name.job_id in ids]
        return {job.id: job for one in seen if (job := one.read()) is not None}

    def _keep(self, state: JobState | None, cursor: str, found: Iterator[Seen]) -> None:
        self._kept[state, cursor] = found
        while len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]

    def _all(self, state: JobState | None, now_ms: int) -> Iterator[Seen]:
        if state is None or state is JobState.READY:
            with suppress(FileNotFoundError):
                for file, _ in ItemSnapshot([(self._queue_dir.area.queue, "")]):
                    name = readable(file)
                    if name is not None:
                        yield Seen(due_ms(name), f"{self._queue_dir.area.queue}/{file}", name, JobState.READY)
        for seen in sorted(self._set_aside(now_ms), key=lambda seen: seen.mark):
            if state is None or seen.state is state:
                yield seen

    def _set_aside(self, now_ms: int) -> Iterator[Seen]:
        """What is reserved or waits for its time."""
        for lease in self._queue_dir.leases(must_know=True):
            state = _state(JobState.RESERVED, lease.until_ms, now_ms)
            for file in listed(lease.path):
                name = readable(file)
                if name is not None:
                    token = str(ItemToken(os.path.basename(lease.path), name.tries, lease.key))
                    yield Seen(lease.until_ms, f"{lease.path}/{file}", name, state, token, is_aside=True)
        for parked in self._queue_dir.parked(None, must_know=True):
            state = _state(JobState.SCHEDULED, parked.mature_ms, now_ms)
            for file in listed(parked.path):
                name = readable(file)
                if name is not None:
                    yield Seen(parked.mature_ms, f"{parked.path}/{file}", name, state, is_aside=True)
