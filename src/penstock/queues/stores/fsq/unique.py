"""Unique keys: a file for each, beside the queue.

    .penstock/unique/KEY         JSON: key, id (of its job), for_ms, is_stored, ended_ms (null while the job is there)
    .penstock/unique/job/JOB     the name of the key's file, for each job that has one and isn't ended
    .penstock/unique.lock        locked while any of these is changed

KEY and JOB are the first 32 hexadecimal digits of the SHA-256 of the key and of the job's id.

A key is written down before its job is stored, and once more after: if the process is killed in between, the job is
looked for, and a key without one is free. Whoever ends a job notes the time. An original that ends one doesn't: when
the key is asked for, and its job is nowhere, that moment counts as the end.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from penstock.codec import from_json, to_json
from penstock.fsq import files
from penstock.fsq.reserved import KEY_NAME, key_name, listed
from penstock.job import NewJob
from penstock.queues.stores.fsq.directory import QueueDirectory
from penstock.queues.stores.fsq.own_files import locked, write_whole

TIDY_KEYS = 1000  # keys taken by one process before it searches for those that are over


class Taken(NamedTuple):
    """What is known of a key."""

    key: str
    id: str
    for_ms: int
    is_stored: bool = False
    ended_ms: int | None = None

    def is_held(self, now_ms: int) -> bool:
        """Whether nobody else can have it."""
        return self.ended_ms is None or now_ms < self.ended_ms + self.for_ms


class Keys:
    """The unique keys of one queue."""

    def __init__(self, queue_dir: QueueDirectory) -> None:
        self._queue_dir = queue_dir
        self._directory = f"{queue_dir.area.side}/unique"
        self._jobs = f"{self._directory}/job"
        self._lock = f"{queue_dir.area.side}/unique.lock"
        self._count = 0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the keys: no other process takes or frees one."""
        self._queue_dir.area.make(self._jobs)
        with locked(self._lock):
            yield

    # Only within `locked`

    def holder(self, key: str, now_ms: int) -> str | None:
        """The id of the job that has a key; None if it is free."""
        taken = self._read(key_name(key))
        if taken is None:
            return None
        if taken.ended_ms is None and not self._queue_dir.existing({taken.id}):
            if not taken.is_stored:
                return None
            taken = self._end(key_name(key), taken, now_ms)
        return taken.id if taken.is_held(now_ms) else None

    def take(self, job: NewJob) -> None:
        """A job gets its key; it is not stored yet."""
        assert job.unique is not None, job.id
        self._write(Taken(job.unique, job.id, job.unique_for_ms), is_safe=False)
        write_whole(f"{self._jobs}/{key_name(job.id)}", key_name(job.unique).encode(), is_safe=False)

    def stored(self, jobs: Iterable[NewJob], now_ms: int) -> None:
        """Jobs that were given their keys are stored now."""
        for job in jobs:
            assert job.unique is not None, job.id
            self._write(Taken(job.unique, job.id, job.unique_for_ms, is_stored=True), is_safe=True)
            self._count += 1
        files.disk.sync_directory(self._jobs)
        files.disk.sync_directory(self._directory)
        if self._count >= TIDY_KEYS:
            self._count = 0
            self._tidy(now_ms)

    def free(self, job: NewJob) -> None:
        """A job could not be stored."""
        assert job.unique is not None, job.id
        files.remove_if_there(f"{self._directory}/{key_name(job.unique)}")
        files.remove_if_there(f"{self._jobs}/{key_name(job.id)}")

    # At any time

    def ended(self, job_ids: Iterable[str], now_ms: int) -> dict[str, str]:
        """Note the end of jobs; return the names of the keys that they had."""
        if not files.is_directory(self._jobs):
            return {}
        ids = [job_id for job_id in job_ids if files.exists(f"{self._jobs}/{key_name(job_id)}")]
        if not ids:
            return {}
        had = {}
        with locked(self._lock):
            for job_id in ids:
                name = self._key_of(job_id)
                taken = None if name is None else self._read(name)
                if name is not None and taken is not None and taken.id == job_id:
                    self._end(name, taken, now_ms)
                    had[job_id] = name
        return had

    def back(self, job_id: str, name: str) -> None:
        """A job whose end was noted is there again: it has its key, unless another has taken it."""
        with self.locked():
            taken = self._read(name)
            if taken is not None and taken.id == job_id:
                self._write(taken._replace(ended_ms=None), is_safe=False)
                write_whole(f"{self._jobs}/{key_name(job_id)}", name.encode(), is_safe=False)

    def _end(self, name: str, taken: Taken, now_ms: int) -> Taken:
        taken = taken._replace(ended_ms=now_ms)
        self._write(taken, is_safe=False)
        files.remove_if_there(f"{self._jobs}/{key_name(taken.id)}")
        return taken

    def _key_of(self, job_id: str) -> str | None:
        with suppress(OSError):
            name = files.read_note(f"{self._jobs}/{key_name(job_id)}").decode("ascii", "replace")
            return name if KEY_NAME.fullmatch(name) else None
        return None

    def _read(self, name: str) -> Taken | None:
        with suppress(OSError, ValueError, TypeError):
            return Taken(**from_json(files.read_note(f"{self._directory}/{name}")))
        return None  # never taken, or cut off by a power failure before its job was stored

    def _write(self, taken: Taken, is_safe: bool) -> None:
        write_whole(f"{self._directory}/{key_name(taken.key)}", to_json(taken._asdict()).encode(), is_safe)

    def _tidy(self, now_ms: int) -> None:
        """Remove keys that are over, and note the end of jobs that originals have ended."""
        known = {name: self._read(name) for name in listed(self._directory)}
        there = self._queue_dir.existing({taken.id for taken in known.values() if taken and taken.ended_ms is None})
        for name, taken in known.items():
            if taken is None or taken.id in there:
                continue
            if taken.ended_ms is None:
                self._end(name, taken, now_ms)
            elif not taken.is_held(now_ms):
                files.remove_if_there(f"{self._directory}/{name}")
