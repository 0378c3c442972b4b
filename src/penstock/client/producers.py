"""Which nodes create the jobs that a client fetches. A job's id has the first eight characters of its creator's id.

A worker on another node than its producers gets every job through two nodes. So jobs are counted by the node that
created them, in windows; at the end of a window the client should be on the creator of more than half of them.
"""

from collections.abc import Iterable

PREFIX = slice(2, 10)
# A window that ends by its time needs at least this many jobs: two of three are too few to act on.
JOBS_MIN = 20


class Producers:
    """Counts jobs by creator. A window ends after `jobs_max` jobs, or after `seconds_max` if some have come."""

    __slots__ = ("_began", "_counts", "_jobs_max", "_seconds_max", "_total")

    def __init__(self, jobs_max: int, seconds_max: float) -> None:
        self._jobs_max, self._seconds_max = jobs_max, seconds_max
        self._counts: dict[str, int] = {}
        self._total = 0
        self._began = 0.0

    def count(self, ids: Iterable[str], now: float) -> str | None:
        """Count jobs. At the end of a window, return the prefix of the node that created most of them, if one did."""
        if not self._total:
            self._began = now
        for job_id in ids:
            creator = job_id[PREFIX]
            self._counts[creator] = self._counts.get(creator, 0) + 1
            self._total += 1
        if not self._is_over(now):
            return None
        creator, jobs = max(self._counts.items(), key=lambda item: item[1])
        is_most = jobs * 2 > self._total
        self._counts.clear()
        self._total = 0
        return creator if is_most else None

    def _is_over(self, now: float) -> bool:
        if self._total >= self._jobs_max:
            return True
        return self._total >= JOBS_MIN and now - self._began >= self._seconds_max
