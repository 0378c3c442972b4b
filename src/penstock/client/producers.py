"""Who makes the jobs that a client fetches. A job's id begins with eight characters of its maker's.

A worker that sits on another node than its producers gets every job by way of two nodes. So jobs are counted by their
maker, in windows; at the end of a window the maker of more than half of them is where the client should be.
"""

from collections.abc import Iterable

PREFIX = slice(2, 10)
# A window that ends by its time is only trusted with at least so many jobs: two of three say nothing.
JOBS_MIN = 20


class Producers:
    """Counts jobs by maker. A window ends after `jobs_max` jobs, or after `seconds_max` if some have come."""

    __slots__ = ("_began", "_counts", "_jobs_max", "_seconds_max", "_total")

    def __init__(self, jobs_max: int, seconds_max: float) -> None:
        self._jobs_max, self._seconds_max = jobs_max, seconds_max
        self._counts: dict[str, int] = {}
        self._total = 0
        self._began = 0.0

    def count(self, ids: Iterable[str], now: float) -> str | None:
        """Count jobs. At the end of a window: the prefix of the node that made most of them, if one did."""
        if not self._total:
            self._began = now
        for job_id in ids:
            maker = job_id[PREFIX]
            self._counts[maker] = self._counts.get(maker, 0) + 1
            self._total += 1
        if not self._is_over(now):
            return None
        maker, jobs = max(self._counts.items(), key=lambda item: item[1])
        is_most = jobs * 2 > self._total
        self._counts.clear()
        self._total = 0
        return maker if is_most else None

    def _is_over(self, now: float) -> bool:
        if self._total >= self._jobs_max:
            return True
        return self._total >= JOBS_MIN and now - self._began >= self._seconds_max
