# Written by scripts/blocking from ../aio/taker.py: change that, then run `make blocking`.
"""Takes jobs out of a queue for its fetchers, and returns those that no caller was given.

The limit on tries is checked here: a job whose worker died during its last try goes to the dead letters instead of to a
worker.
"""

from typing import TYPE_CHECKING

from penstock.job import Lease, StoredJob
from penstock.queues.blocking.counters import Counters
from penstock.queues.blocking.dead_letters import DeadLetters
from penstock.queues.blocking.services import Channel, Pause

if TYPE_CHECKING:
    from penstock.queues.blocking.store import Store


class Taker:
    """Takes jobs of one queue. `lease_ms` None pops, any other value reserves."""

    def __init__(
        self,
        store: "Store",
        queue: str,
        counters: Counters,
        channel: Channel,
        pause: Pause,
        dead_letters: DeadLetters,
    ) -> None:
        self._store = store
        self.driver = store._driver  # for what is known of it without a call
        self.pause = pause
        self._queue = queue
        self._counters = counters
        self._channel = channel
        self._dead_letters = dead_letters

    def take(self, lease_ms: int | None, count: int, wait_ms: int, begin: int | None) -> list[StoredJob]:
        """Return up to `count` jobs; a store that can wait on the server does so for `wait_ms`."""
        if lease_ms is None:
            jobs = self._store._open_driver.pop(self._queue, count, wait_ms)
            self._counters.count(self._queue, "get", len(jobs))
            return jobs
        kept: list[StoredJob] = []
        while True:
            rest = None if begin is None else max(0, begin - len(kept))
            jobs = self._store._open_driver.reserve(self._queue, count - len(kept), lease_ms, wait_ms, rest)
            self._counters.count(self._queue, "reserve", len(jobs))
            able = self._dead_letters.reject_exhausted(jobs)
            kept += able
            # Jobs that were rejected must not hide those behind them from a caller that has no time.
            if len(able) == len(jobs) or len(kept) >= count:
                return kept
            wait_ms = 0 if kept else wait_ms

    def return_unseen(self, lease_ms: int | None, jobs: list[StoredJob]) -> None:
        """Undo `take` for jobs that no caller has seen: no try is counted."""
        if lease_ms is None:
            self._store._open_driver.put_back(self._queue, jobs)
            self._counters.count(self._queue, "get", -len(jobs))
        else:
            self._store._open_driver.release(self._queue, [Lease(job.id, job.token) for job in jobs])
            self._counters.count(self._queue, "reserve", -len(jobs))
        self._channel.announce()

    def seconds_to_next(self) -> float | None:
        """Return how long it takes until the next job is ready; None if none is, or the queue is paused."""
        # A store that pauses by itself returns nothing now, whatever is ready.
        if self.pause.read() if self.driver.pauses_itself else self.pause.holds_back():
            return None
        next_ms = self.driver.next_mature_ms(self._queue)
        return None if next_ms is None else max(0.0, (next_ms - self.driver.now_ms()) / 1000)
