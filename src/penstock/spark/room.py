"""When a batch is made, and how many jobs go into it and into a partition: by their bytes, not by their number alone.

Partitions travel with their jobs through Java, which has as much memory as it was given when it started. How large jobs
are is only known once they were taken, so a batch takes them in steps: a few, and from their size it is known how many
more there is room for. A batch may be too large by one step, if the jobs of that are larger than those before.

A queue that is empty is looked at less and less often, up to once a second, with a single cheap call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from math import inf

from penstock.codec import to_json
from penstock.job import StoredJob
from penstock.spark.outages import through_outages

FIRST = 10  # jobs of the first step of a run, when nothing is known of their size
GROWTH = 4  # a step is at most so many times all that came before it in its batch
SAMPLE = 50  # jobs of a step that are looked at, where a look means to encode them
STEP_MAX = 5_000  # jobs of a step: by these a batch may be too large
PARTITION_BYTES = 8 * 1024 * 1024  # far below what Spark sends to an executor in one message (128 MB)

LOOK_PAUSE_S = 0.05  # between two looks at a queue that was busy a moment ago
LOOK_PAUSE_S_MAX = 1.0
LOOK_SHARE = 10  # a pause is this part of the time since jobs came last
REPORT_S = 5.0  # the backlog that a query reports is at most this old


class Backlog:
    """How many jobs wait, and whether a batch is due."""

    def __init__(self, size: Callable[[], int], jobs_min: int, delay_s_max: float) -> None:
        self._size = size
        self._jobs_min = jobs_min
        self._delay_s_max = delay_s_max
        self._jobs = 0  # when it was last asked for, less what was taken since
        self._asked_s = -inf
        self._batch_s = -inf  # when the last batch was made
        self._busy_s = time.monotonic()  # when there were jobs last
        self._is_busy = False

    def ask(self) -> int:
        """Return how many jobs are ready now."""
        self._jobs = through_outages(self._size)
        self._asked_s = time.monotonic()
        return self._jobs

    def count(self) -> int:
        """Return about how many are ready: counting them is not free, and this is for people."""
        return self.ask() if time.monotonic() - self._asked_s > REPORT_S else self._jobs

    def wait(self, seconds: float) -> bool:
        """Wait until a batch is due; returns whether it is."""
        if self._is_busy and not self._jobs_min:
            return True
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            next_s = self._asked_s + min(LOOK_PAUSE_S_MAX, max(LOOK_PAUSE_S, (now - self._busy_s) / LOOK_SHARE))
            time.sleep(max(0.0, min(next_s, until) - now))
            if next_s > until:
                return False
            if self._is_due(self.ask()):
                return True
            if time.monotonic() >= until:
                return False

    def _is_due(self, waiting: int) -> bool:
        is_late = time.monotonic() - self._batch_s >= self._delay_s_max
        return waiting > 0 and (waiting >= self._jobs_min or is_late)

    def took(self, jobs: int) -> None:
        """A batch was made of this many jobs, or of none though there were some."""
        self._jobs = max(0, self._jobs - jobs)
        self._is_busy = jobs > 0
        if jobs:
            self._batch_s = self._busy_s = time.monotonic()


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
