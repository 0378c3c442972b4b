"""The events of a store: what this process did to jobs, recorded after the store said yes (docs/reference/events.md).

One writer a process and directory, shared by the stores that use it, and made again after a fork. Any thread may
record.

A store on our broker asks the node at its start whether that records by itself (`events-dir`). Then only what the node
can't know is recorded here: the errors of nacks, failed, moved and redriven.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from penstock.events import EventWriter, Kind
from penstock.events.writer import WriterTaken, now_us, writer_name
from penstock.job import NewJob, StoredJob, id_time_ms
from penstock.queues.dead_letter import Error, Failure

log = logging.getLogger("penstock")

WRITERS_MAX: Final = 100  # names tried: other writers of a process with this number, in another container for instance
US_PER_MS: Final = 1000
US_PER_S: Final = 1_000_000


def process_name() -> str:
    """Return what events call this process, as writer and as worker."""
    return writer_name(f"{socket.gethostname()}-{os.getpid()}")


class SharedWriter:
    """The writer of this process in one directory. The last store that leaves closes it."""

    def __init__(self, directory: str) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.users = 0
        name = process_name()
        for number in range(WRITERS_MAX):
            try:
                self.writer = EventWriter(
                    directory,
                    f"{name}-{number + 1}" if number else name,
                    lock_s=0,
                    on_problem=lambda text: log.warning("%s", text),
                )
                return
            except WriterTaken:
                if number + 1 == WRITERS_MAX:
                    raise


_writers: dict[str, SharedWriter] = {}
_writers_lock = threading.Lock()


def _shared_writer(directory: str) -> SharedWriter:
    """Return the writer of this process, with one more user."""
    with _writers_lock:
        shared = _writers.get(directory)
        if shared is None or shared.pid != os.getpid():
            shared = _writers[directory] = SharedWriter(directory)
        shared.users += 1
        return shared


def _leave(directory: str, shared: SharedWriter) -> None:
    with _writers_lock:
        shared.users -= 1
        if shared.users or shared.pid != os.getpid():
            return
        if _writers.get(directory) is shared:
            del _writers[directory]
    shared.writer.close()


class StoreEvents:
    """Records what one store object does."""

    def __init__(self, directory: str, place: str) -> None:
        self.adds_only = False  # the node records, and this adds what it can't know
        self._directory = str(Path(directory).absolute())
        self._place = place
        self._shared = _shared_writer(self._directory)

    @property
    def worker(self) -> str:
        """The name of this process in events."""
        return self._shared.writer.writer

    @property
    def _node(self) -> str | None:
        return None if self.adds_only else self._place

    def pushed(self, queue: str, jobs: Iterable[tuple[str, NewJob]]) -> None:
        """Jobs were stored, each with its id."""
        if self.adds_only:
            return
        with self._recording() as shared:
            now = now_us()
            for job_id, job in jobs:
                created_ms = job.created_ms or id_time_ms(job_id)
                until = job.mature_ms * US_PER_MS if job.mature_ms is not None else now + job.delay_ms * US_PER_MS
                shared.writer.record(
                    Kind.ADDED,
                    job_id,
                    queue,
                    at=now,
                    created=created_ms * US_PER_MS if created_ms else now,
                    until=until if until > now else 0,
                    node=self._node,
                    size=len(job.body),
                )

    def pushed_bodies(self, queue: str, ids: Iterable[str], bodies: Iterable[bytes]) -> None:
        """Bodies were stored as jobs."""
        if self.adds_only:
            return
        with self._recording() as shared:
            now = now_us()
            for job_id, body in zip(ids, bodies, strict=True):
                created = (id_time_ms(job_id) or 0) * US_PER_MS or now
                shared.writer.record(
                    Kind.ADDED, job_id, queue, at=now, created=created, node=self._node, size=len(body)
                )

    def reserved(self, queue: str, jobs: Iterable[StoredJob], lease_ms: int | None, consumer: str | None) -> None:
        """Jobs were handed to a caller; `lease_ms` None: for good."""
        if self.adds_only:
            return
        for job in jobs:
            if job.is_back:
                self.record(Kind.REQUEUED, queue, job, attempt=job.tries)
            self.record(Kind.RESERVED, queue, job, delay_ms=lease_ms or 0, worker=consumer)

    def record(
        self,
        kind: Kind,
        queue: str,
        job: StoredJob | str,
        *,
        attempt: int | None = None,
        delay_ms: int = 0,
        error: Error = "",
        to_queue: str | None = None,
        worker: str | None = None,
        is_news: bool = False,
    ) -> None:
        """Note an event of one job; `is_news`: also where the node records."""
        if self.adds_only and not is_news:
            return
        if isinstance(job, str):
            job_id, created_ms, tries, size = job, id_time_ms(job), -1, None
        else:
            job_id, created_ms, tries = job.id, job.created_ms, job.tries
            size = None if job.body is None else len(job.body)
        failure = Failure.of(error)
        with self._recording() as shared:
            now = now_us()
            shared.writer.record(
                kind,
                job_id,
                queue,
                at=now,
                created=(created_ms or 0) * US_PER_MS,
                until=now + delay_ms * US_PER_MS if delay_ms else 0,
                attempt=tries + 1 if attempt is None else attempt,
                node=self._node,
                worker=worker or self.worker,
                error=failure.text or None,
                to_queue=to_queue,
                size=size,
            )

    def removed_many(self, queue: str, count: int) -> None:
        """Record the number of removed jobs, where it is not known which ones they were."""
        if not self.adds_only and count:
            with self._recording() as shared:
                shared.writer.record(Kind.REMOVED, None, queue, node=self._node, worker=self.worker, size=count)

    def sampled(self, queue: str, size: int) -> None:
        """A queue has this number of jobs that are ready."""
        if not self.adds_only:
            with self._recording() as shared:
                shared.writer.record(Kind.SAMPLE, None, queue, node=self._node, worker=self.worker, size=size)

    def _recording(self) -> _Recording:
        if self._shared.pid != os.getpid():
            self._shared = _shared_writer(self._directory)
        return _Recording(self._shared)

    def close(self) -> None:
        """Write what is left."""
        _leave(self._directory, self._shared)


class _Recording:
    """Holds the writer for one call, and hands what was recorded to its thread."""

    def __init__(self, shared: SharedWriter) -> None:
        self._shared = shared

    def __enter__(self) -> SharedWriter:
        self._shared.lock.acquire()
        return self._shared

    def __exit__(self, *_: object) -> None:
        try:
            self._shared.writer.flush()
        finally:
            self._shared.lock.release()
