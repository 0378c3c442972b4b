"""What one queue exchanges with other nodes: who gave us jobs, who asks for ours, and who knows of clients here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.core.timers import Timed

if TYPE_CHECKING:
    from penstock.broker.core.jobs import Job
    from penstock.broker.core.queues import Queue

SOURCE_MS: Final = 5000  # who gave us jobs within this time is asked first
SLOT_MS: Final = 1000
RATE_WINDOW_MS: Final = 5000
RATE_SPAN_MS_MIN: Final = 50
EXCHANGE_BYTES: Final = 1000


class Want:
    """What another node asks for: jobs for clients that wait there, or one for a client that asked and didn't wait."""

    __slots__ = ("count", "is_blocked", "until_ms", "waiters")

    def __init__(self, count: int, waiters: int, until_ms: int, is_blocked: bool) -> None:
        self.count = count  # jobs that are still to be sent
        self.waiters = waiters
        self.until_ms = until_ms
        self.is_blocked = is_blocked


class Guests:
    """Jobs that another node gave us at one time: those that nobody has fetched by then go back."""

    __slots__ = ("due_ms", "giver", "jobs")

    def __init__(self, due_ms: int, giver: bytes, jobs: list[Job]) -> None:
        self.due_ms = due_ms
        self.giver = giver
        self.jobs = jobs


class Exchange(Timed):
    """Its timer is the first of `settle_ms`, `repeat_ms`, `original_ms` and the times of the guests."""

    __slots__ = (
        "_before",
        "_before_ms",
        "_now",
        "_now_ms",
        "ahead",
        "ahead_of",
        "dry_ms",
        "ended_ms",
        "guests",
        "is_poll_open",
        "jobs_out",
        "original_ms",
        "original_tries",
        "peak",
        "polled_ms",
        "queue",
        "repeat_ms",
        "settle_ms",
        "sources",
        "told",
        "told_poll_ms",
        "wanted",
    )

    def __init__(self, queue: Queue) -> None:
        super().__init__(0)
        self.queue = queue
        # Clients that wait here, and what others know of them.
        self.told: dict[bytes, int] = {}  # by node: the jobs that it may still send for clients that wait here
        self.peak = 0  # the most clients that waited at once since the last look
        self.ended_ms = 0  # when a wait last ended with a job
        self.settle_ms = 0  # when others hear that fewer clients wait; 0 = there is nothing to tell
        self.repeat_ms = 0  # when they are told again, whatever they know; 0 = nobody waits
        self.original_ms = 0  # when original nodes are asked again; 0 = nobody waits, or there are none
        self.original_tries = 0
        # Clients that ask and don't wait.
        self.polled_ms = 0  # when one last found nothing
        self.told_poll_ms = 0  # when others last heard of one
        self.is_poll_open = False  # the one job that such a client may bring has not come yet
        # Busy clients: jobs are asked for ahead.
        self.ahead = 0  # how many
        self.ahead_of: set[bytes] = set()  # the nodes that were asked
        self.dry_ms = 0  # when the last job here was fetched
        self.jobs_out = 0  # of the queue, at that time
        self.guests: list[Guests] = []
        self.sources: dict[bytes, int] = {}
        self.wanted: dict[bytes, Want] = {}  # by node
        self._now = self._before = 0
        self._now_ms = self._before_ms = 0

    def imported(self, source: bytes, count: int, now_ms: int) -> None:
        """Count jobs that another node gave us."""
        if now_ms - self._now_ms > SLOT_MS:
            self._before, self._before_ms = self._now, self._now_ms
            self._now, self._now_ms = 0, now_ms
        self._now += count
        self.sources[source] = now_ms

    def rate(self, now_ms: int) -> int:
        """Return how many jobs a second come from other nodes."""
        if not self._now_ms or now_ms - self._now_ms > RATE_WINDOW_MS:
            return 0
        span_ms = max(RATE_SPAN_MS_MIN, now_ms - (self._before_ms or self._now_ms))
        return -(-(self._before + self._now) * 1000 // span_ms)

    def fresh_sources(self, now_ms: int) -> list[bytes]:
        """Return the nodes that gave us jobs lately."""
        self.sources = {node: at for node, at in self.sources.items() if now_ms - at <= SOURCE_MS}
        return list(self.sources)

    def is_wanted(self, now_ms: int) -> bool:
        """Whether other nodes ask for jobs of this queue, or did so a short time ago."""
        if self.wanted:
            self.wanted = {node: want for node, want in self.wanted.items() if want.until_ms > now_ms}
        return bool(self.wanted)
