"""Jobs on their way to the dead letters, and back."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.codec import encode
from penstock.errors import CallerError
from penstock.job import JobState, Move, StoredJob
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
            to_dead_letters(job, stored_body(job), self._queue, error, now_ms)
            for job, error in zip(jobs, errors, strict=True)
        ]
        return await self._store._move(self._queue, target, moves, "deadletter")

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
        await self.add([job for job, _ in exhausted], [error for _, error in exhausted])
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
        chosen: dict[str, list[Move]] = {}
        left = len(page.jobs) if limit is None else limit - done
        for stored in page.jobs:
            home = to or stored.headers.get(FROM_QUEUE)
            is_chosen = home != queue.name and (where is None or where(Job(queue, stored)))
            if left > 0 and home and stored.state is not JobState.RESERVED and is_chosen:
                chosen.setdefault(str(home), []).append(from_dead_letters(stored, stored_body(stored)))
                left -= 1
        before = done
        for home, moves in chosen.items():
            done += sum(await queue.store._move(queue.name, home, moves, None))
        moved(done - before)
        cursor = page.cursor
        if cursor is None:
            break
    return done


def stored_body(job: StoredJob) -> bytes:
    """Return the body of a job that a store returned."""
    return job.body if job.body is not None else encode(job.payload)
