"""How many jobs go into a batch and into a partition, by their bytes and not by their number alone.

Partitions travel with their jobs through Java, which has as much memory as it was given when it started. How large jobs
are is only known once they were taken, so a batch takes them in steps: a few, and from their size it is known how many
more there is room for. A batch may be too large by one step, if the jobs of that are larger than those before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.codec import to_json
from penstock.job import StoredJob

FIRST = 10  # jobs of the first step of a run, when nothing is known of their size
GROWTH = 4  # a step is at most so many times all that came before it in its batch
SAMPLE = 50  # jobs of a step that are looked at, where a look means to encode them
STEP_MAX = 5_000  # jobs of a step: by these a batch may be too large
PARTITION_BYTES = 8 * 1024 * 1024  # far below what Spark sends to an executor in one message (128 MB)


def bytes_of(job: StoredJob) -> int:
    """About how many bytes a job is for Spark."""
    content = job.payload if job.body is None else job.body
    return len(content if isinstance(content, bytes | str) else to_json(content))


class Steps:
    """How many jobs to take next, from the size of those that came."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._first = FIRST
        self._jobs = self._bytes = 0

    def begin(self) -> None:
        """A new batch."""
        self._jobs = self._bytes = 0

    def next(self, left: int) -> int:
        """How many to ask for of those that may still come; 0 when the batch is full."""
        if not self._jobs:
            return min(left, self._first)
        room = (self._bytes_max - self._bytes) // self._mean
        return max(0, min(left, room, GROWTH * self._jobs, STEP_MAX))

    def took(self, jobs: Sequence[StoredJob]) -> None:
        """These came. What is learned counts for the next batch, too."""
        if jobs:
            some = jobs if jobs[0].body is not None else jobs[:: -(-len(jobs) // SAMPLE)]
            self._jobs += len(jobs)
            self._bytes += sum(map(bytes_of, some)) * len(jobs) // len(some)
            self._first = min(STEP_MAX, max(1, self._bytes_max // (GROWTH * self._mean)))

    @property
    def _mean(self) -> int:
        return max(1, self._bytes // self._jobs)


def cuts(sizes: Sequence[int], jobs_max: int, bytes_max: int = PARTITION_BYTES) -> Iterator[slice]:
    """Where partitions begin and end: the same for the same jobs. One that is too large has a partition of its own."""
    begin = size = 0
    for at, more in enumerate(sizes):
        if at > begin and (at - begin == jobs_max or size + more > bytes_max):
            yield slice(begin, at)
            begin, size = at, 0
        size += more
    if begin < len(sizes):
        yield slice(begin, len(sizes))
