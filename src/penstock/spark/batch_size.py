"""When a batch is made, and how many jobs go into it and into a partition: by bytes as well as by number.

Partitions go through Java with their jobs, and Java has the memory that it was given when it started. The size of jobs
is only known once they were taken, so a batch takes them in steps: a few, and their size says how many more fit. A
batch may be too large by one step, if the jobs of that are larger than those before. Where the driver leaves jobs
unread, the first few are a sample that stands for all jobs of the batch.

An empty queue is polled less and less often, down to once a second, with a single cheap call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from math import inf

from penstock.codec import to_json
from penstock.job import StoredJob
from penstock.spark.errors import retry_while_unreachable

FIRST = 10  # jobs of the first step of a run, when their size is unknown
GROWTH = 4  # a step is at most this many times what came before it in its batch
SAMPLE = 50  # jobs of a step that are measured, where that means to encode them
STEP_MAX = 5_000  # jobs of a step
PARTITION_BYTES = 8 * 1024 * 1024  # far below what Spark sends to an executor in one message (128 MB)

POLL_S = 0.05  # between two polls of a queue that was busy a moment ago
POLL_S_MAX = 1.0
POLL_SHARE = 10  # a pause is this fraction of the time since the last jobs
FIRST_SHARE = 50  # jobs of a task's first claim, where tasks settle them
BATCH_S = 4.0  # of such a batch: its own cost is small beside that, and a query that is stopped ends soon
REPORT_S = 5.0  # maximum age of the backlog that a query reports


class Backlog:
    """The number of jobs that are ready, and whether a batch is due."""

    def __init__(self, size: Callable[[], int], jobs_min: int, delay_s_max: float) -> None:
        self._size = size
        self._jobs_min = jobs_min
        self._delay_s_max = delay_s_max
        self._jobs = 0  # at the last poll, less those taken since
        self._polled_s = -inf
        self._batch_s = -inf  # when the last batch was made
        self._busy_s = time.monotonic()  # when there were jobs last
        self._is_busy = False

    def poll(self) -> int:
        """Return the number of jobs that are ready now."""
        self._jobs = retry_while_unreachable(self._size)
        self._polled_s = time.monotonic()
        return self._jobs

    def count(self, may_poll: bool = True) -> int:
        """Return about how many are ready: counting them is not free, and this is for the progress report."""
        return self.poll() if may_poll and time.monotonic() - self._polled_s > REPORT_S else self._jobs

    def wait(self, seconds: float) -> bool:
        """Wait until a batch is due; returns whether it is."""
        if self._is_busy and not self._jobs_min:
            return True
        if time.monotonic() - self._polled_s < POLL_S and self._is_due(self._jobs):
            return True  # as was seen a moment ago, for a batch ahead that would not have been full
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            next_s = self._polled_s + min(POLL_S_MAX, max(POLL_S, (now - self._busy_s) / POLL_SHARE))
            time.sleep(max(0.0, min(next_s, until) - now))
            if next_s > until:
                return False
            if self._is_due(self.poll()):
                return True
            if time.monotonic() >= until:
                return False

    def _is_due(self, waiting: int) -> bool:
        is_late = time.monotonic() - self._batch_s >= self._delay_s_max
        return waiting > 0 and (waiting >= self._jobs_min or is_late)

    def took(self, jobs: int) -> None:
        """Note that a batch was made of this many jobs, or could not be made."""
        self._jobs = max(0, self._jobs - jobs) if jobs else 0
        self._is_busy = jobs > 0
        if jobs:
            self._batch_s = self._busy_s = time.monotonic()


def bytes_of(job: StoredJob) -> int:
    """Return the approximate size of a job in Spark."""
    content = job.payload if job.body is None else job.body
    return len(content if isinstance(content, bytes | str) else to_json(content))


class BatchSteps:
    """Sizes the steps of a batch by the jobs that came so far.

    With `unread_max`, all steps but the first are left unread, and have at most this number of jobs.
    """

    def __init__(self, bytes_max: int, unread_max: int | None = None) -> None:
        self._bytes_max = bytes_max
        self._unread_max = unread_max
        self._first = FIRST
        self._jobs = self._bytes = 0

    def begin(self, count: int) -> None:
        """Begin a new batch."""
        self._jobs = self._bytes = 0

    def finished(self) -> None:
        """Do nothing: a batch is as large as its bytes allow, however long it takes."""

    def next(self, left: int) -> int:
        """Return how many jobs to take, of `left` at most; 0 when the batch is full."""
        if not self._jobs:
            return min(left, self._first)
        room = (self._bytes_max - self._bytes) // self._mean
        if self._unread_max is None:
            step = min(GROWTH * self._jobs, STEP_MAX)
        else:
            step = min(max(1, PARTITION_BYTES // self._mean), self._unread_max)
        return max(0, min(left, room, step))

    def took(self, jobs: Sequence[StoredJob]) -> None:
        """Note the jobs of a step. Their size counts for the next batch, too."""
        if jobs:
            some = jobs if jobs[0].body is not None else jobs[:: -(-len(jobs) // SAMPLE)]
            self._jobs += len(jobs)
            self._bytes += sum(map(bytes_of, some)) * len(jobs) // len(some)
            if self._unread_max is None:
                self._first = min(STEP_MAX, max(1, self._bytes_max // (GROWTH * self._mean)))

    def took_unread(self, count: int) -> None:
        """Note the number of jobs of a step that is left unread: they count as those before them."""
        self._bytes += count * self._mean
        self._jobs += count

    @property
    def _mean(self) -> int:
        return max(1, self._bytes // self._jobs)


class EvenSteps:
    """Sizes the claims of a batch whose tasks settle the jobs: one for each task, as large as tasks do in BATCH_S."""

    def __init__(self, tasks: int, jobs_max: int) -> None:
        self._tasks = tasks
        self._jobs_max = jobs_max
        self._size = float(FIRST_SHARE)  # jobs of a claim
        self._share = self._left = 0
        self._jobs = 0
        self._began_s = self._finished_s = 0.0

    def begin(self, count: int) -> None:
        """Begin a batch of at most `count` jobs."""
        self._share = max(1, min(int(self._size), -(-count // self._tasks)))
        self._left = self._tasks
        self._jobs = 0
        self._began_s = time.monotonic()

    def next(self, left: int) -> int:
        """Return how many jobs to claim, of `left` at most; 0 when each task has a claim."""
        return min(left, self._share) if self._left else 0

    def took_unread(self, count: int) -> None:
        """Note the number of jobs of a claim."""
        self._left -= 1
        self._jobs += count

    def finished(self) -> None:
        """Note that the tasks of the batch have ended."""
        spent_s = time.monotonic() - self._began_s
        if spent_s > BATCH_S:
            self._size = max(1.0, self._size * BATCH_S / spent_s)
        elif self._jobs >= int(self._size) * self._tasks:
            self._size = min(float(self._jobs_max), self._size * min(GROWTH, BATCH_S / max(spent_s, 1e-3)))


def partition_slices(sizes: Sequence[int], jobs_max: int, bytes_max: int = PARTITION_BYTES) -> Iterator[slice]:
    """Yield the partitions of jobs: the same for the same jobs. A job that is too large has one of its own."""
    begin = size = 0
    for at, more in enumerate(sizes):
        if at > begin and (at - begin == jobs_max or size + more > bytes_max):
            yield slice(begin, at)
            begin, size = at, 0
        size += more
    if begin < len(sizes):
        yield slice(begin, len(sizes))
