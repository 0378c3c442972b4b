"""Jobs on their way to the dead letters, and back."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.codec import encode
from penstock.errors import CallerError
from penstock.events import Kind
from penstock.job import JobMove, JobState, StoredJob
from penstock.queues.aio.job import Job
from penstock.queues.dead_letter import (
    DEAD_LETTER_QUEUE,
    FROM_QUEUE,
    DeadLetter,
    Error,
    from_dead_letters,
    to_dead_letters,
)

if TYPE_CHECKING:
    from penstock.queues.aio.queue import Queue
    from penstock.queues.aio.store import Store

PAGE = 500  # jobs read in one round trip


class DeadLetters:
    """Where the jobs of one queue go that can't be done, and after how many tries."""

    def __init__(self, store: "Store", queue: str, option: DeadLetter | None) -> None:
        self._store = store
        self._queue = queue
        self._option = option or DeadLetter()
        # The dead letters themselves have no limit on tries.
        is_limited = option is not None and option.max_tries and queue not in {option.queue, DEAD_LETTER_QUEUE}
        self.limit = option if is_limited else None
        self.on_exhausted: Callable[[StoredJob, str], object] | None = None  # called with each job that is rejected

    def is_last_try(self, tries: int) -> bool:
        """Whether a job with this number of earlier deliveries is on its last try."""
        return self.limit is not None and self.limit.is_last(tries)

    async def add(self, jobs: Sequence[StoredJob], errors: Sequence[Error]) -> list[bool]:
        """Move reserved jobs to the dead letters; return for each whether its lease still held."""
        target = self._option.queue
        if target == self._queue:
            raise CallerError(f"{target!r} is the dead-letter queue itself: remove the job, or redrive it")
        now_ms = await self._store._driver.now_ms()
        moves = [
            to_dead_letters(job, stored_body(job), self._queue, error, now_ms, keeps_id=self._store._driver.keeps_ids)
            for job, error in zip(jobs, errors, strict=True)
        ]
        moved = await self._store._move(self._queue, target, moves, "deadletter")
        events = self._store._events
        if events is not None:
            for job, error, is_moved in zip(jobs, errors, moved, strict=True):
                if is_moved:
                    events.record(Kind.FAILED, self._queue, job, error=error, to_queue=target, is_news=True)
        return moved

    async def reject_exhausted(self, jobs: list[StoredJob]) -> list[StoredJob]:
        """Move jobs that had all their tries to the dead letters, since a worker died in the last; return the others.

        Jobs whose workers died again and again before work on them began go there, too.
        """
        if self.limit is None:
            return jobs
        errors = [self.limit.error_of(job) for job in jobs]
        if not any(errors):
            return jobs
        exhausted = [(job, error) for job, error in zip(jobs, errors, strict=True) if error]
        for job, _ in exhausted:
            # Here the last delivery is among the tries; `x-dl-tries` are those before the last one.
            job.tries = max(0, job.tries - 1)
        moved = await self.add([job for job, _ in exhausted], [error for _, error in exhausted])
        if self.on_exhausted is not None:
            for (job, error), is_moved in zip(exhausted, moved, strict=True):
                if is_moved:
                    self.on_exhausted(job, error)
        return [job for job, error in zip(jobs, errors, strict=True) if not error]


async def redrive(
    queue: "Queue",
    where: Callable[[Job], bool] | None,
    to: str | None,
    limit: int | None,
    moved: Callable[[int], object],
) -> int:
    """Send dead letters back to the queues that they came from, or to another one; see `Queue.redrive`."""
    if to == queue.name:
        raise CallerError(f"a queue can't be redriven into itself, got to={to!r}")
    driver = queue.store._driver
    done = 0
    cursor = None
    while limit is None or done < limit:
        page = await driver.peek(queue.name, None, PAGE, cursor)
        chosen: dict[str, list[JobMove]] = {}
        left = len(page.jobs) if limit is None else limit - done
        for stored in page.jobs:
            home = to or stored.headers.get(FROM_QUEUE)
            is_chosen = home != queue.name and (where is None or where(Job(queue, stored)))
            if left > 0 and home and stored.state is not JobState.RESERVED and is_chosen:
                chosen.setdefault(str(home), []).append(from_dead_letters(stored, stored_body(stored)))
                left -= 1
        before = done
        for home, moves in chosen.items():
            went = await queue.store._move(queue.name, home, moves, None)
            done += sum(went)
            events = queue.store._events
            if events is not None:
                for move, is_moved in zip(moves, went, strict=True):
                    if is_moved:
                        events.record(Kind.REDRIVEN, queue.name, move.lease.id, attempt=0, to_queue=home, is_news=True)
        moved(done - before)
        cursor = page.cursor
        if cursor is None:
            break
    return done


def stored_body(job: StoredJob) -> bytes:
    """Return the body of a job that a store returned."""
    return job.body if job.body is not None else encode(job.payload)
