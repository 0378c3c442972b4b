# Written by scripts/blocking from ../aio/migration.py: change that, then run `make blocking`.
"""Moves the jobs of a queue to a queue of another store, so that a move which was interrupted can be resumed.

Ready jobs are taken in batches, stored over there, then ended here. Where the source has claims, a batch is claimed
under a key that only this move uses: a resumed move begins with the batch that was under way. Where the
target has unique keys, a job that had already arrived isn't stored twice. Without them a job may arrive twice if the
move was interrupted between the two steps; it is never lost.

Scheduled jobs keep their time where the target can delay. Reserved jobs stay.
"""

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any

from penstock.codec import decode, encode
from penstock.errors import BadPayload, CallerError
from penstock.job import JobState
from penstock.queues.blocking.job import Job
from penstock.queues.blocking.queue import Queue
from penstock.queues.capabilities import Capability
from penstock.queues.push import Push

BATCH = 500
UNIQUE_FOR_S = 24 * 3600.0  # how long a move that was interrupted can be repeated without duplicates
LEASE_S = 600.0

Progress = Callable[[int], None]


def move(source: Queue, target: Queue, moved: Progress = lambda count: None) -> int:
    """Move all jobs that are not reserved; `moved` is called with the size of each batch. Return how many were
    moved."""
    if source.store.place == target.store.place and source.name == target.name:
        raise CallerError("source and target are the same queue")
    key = "penstock-copy:" + sha256(f"{target.store.url} {target.name}".encode()).hexdigest()[:32]
    total = 0
    while True:
        jobs = _take(source, key)
        if not jobs:
            break
        target.push_many([_push(job, target) for job in jobs])
        _end(source, key, jobs)
        total += len(jobs)
        moved(len(jobs))
    return total + _move_scheduled(source, target, moved)


def _take(source: Queue, key: str) -> list[Job]:
    """Return the next batch: that of an interrupted move first."""
    having = source.store.capabilities
    if Capability.CLAIM in having:
        jobs = source.claim(key, BATCH, lease=LEASE_S)
        if not jobs:
            # The key of an earlier move may be left with nothing under it.
            source.ack_claim(key)
            jobs = source.claim(key, BATCH, lease=LEASE_S)
        return jobs
    if Capability.RESERVE in having:
        return source.reserve_many(BATCH, lease=LEASE_S)
    # A store that can only pop: what is under way when the move is interrupted would be lost, so it goes one by one.
    return source.pop_many(1)


def _end(source: Queue, key: str, jobs: Iterable[Job]) -> None:
    having = source.store.capabilities
    if Capability.CLAIM in having:
        source.ack_claim(key)
    elif Capability.RESERVE in having:
        source.ack_many(jobs)


def _move_scheduled(source: Queue, target: Queue, moved: Progress) -> int:
    """Move scheduled jobs: each is stored in the target first, then removed from the source."""
    having = source.store.capabilities
    if not {Capability.PEEK, Capability.REMOVE, Capability.DELAY} <= having:
        return 0
    if Capability.DELAY not in target.store.capabilities:
        return 0
    total = 0
    batch: list[Job] = []
    for job in source.jobs(state=JobState.SCHEDULED):
        batch.append(job)
        if len(batch) >= BATCH:
            total += _move_batch(source, target, batch, moved)
            batch = []
    if batch:
        total += _move_batch(source, target, batch, moved)
    return total


def _move_batch(source: Queue, target: Queue, batch: list[Job], moved: Progress) -> int:
    target.push_many([_push(job, target, job.mature) for job in batch])
    gone = sum(source.remove(*[job.id for job in batch]))
    moved(gone)
    return gone


def _push(job: Job, target: Queue, at: float | None = None) -> Push:
    having = target.store.capabilities
    is_unique = Capability.UNIQUE in having and bool(job.id)
    return Push(
        _payload(job) if target.store.keeps_payloads else job.body,
        at=at,
        tries=job.tries,
        headers=job.headers if Capability.HEADERS in having else None,
        unique=_key(job) if is_unique else None,
        unique_for=UNIQUE_FOR_S if is_unique else 0,
    )


def _key(job: Job) -> str:
    """Return the unique key of a job that is moved, which is no longer than a key may be."""
    name = f"{job.queue.store.url}:{job.queue.name}:{job.id}"
    return "copy:" + sha256(name.encode(errors="surrogateescape")).hexdigest()


def _payload(job: Job) -> Any:
    """What a store of payloads keeps of a job: the value, if the body can be had again from it; else the bytes."""
    body = job.stored.body
    if body is None:
        return job.stored.payload
    payload = decode(body)
    try:
        return payload if encode(payload) == body else body
    except BadPayload:  # too deep to be written as JSON
        return body
