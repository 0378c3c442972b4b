"""What one queue exchanges with other nodes: who gave us jobs and how fast, and who waits for some of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.core.timers import Timed

if TYPE_CHECKING:
    from penstock.broker.core.queues import Queue

SOURCE_MS: Final = 5000  # who gave us jobs within this time is asked first
SLOT_MS: Final = 1000
RATE_WINDOW_MS: Final = 5000
RATE_SPAN_MS_MIN: Final = 50
WANT_MS: Final = 45_000  # how long a request stands: whoever still waits repeats it after 30 s
EXCHANGE_BYTES: Final = 1000


class Exchange(Timed):
    """Its timer is the next request for jobs while clients wait."""

    __slots__ = (
        "_before",
        "_before_ms",
        "_now",
        "_now_ms",
        "announced",
        "asked_all_ms",
        "asked_all_tries",
        "asked_some_ms",
        "asked_some_tries",
        "queue",
        "sources",
        "until_ms",
        "wanted",
    )

    def __init__(self, queue: Queue) -> None:
        super().__init__(0)
        self.queue = queue
        self.announced = 0  # waiting clients that others know of
        self.until_ms = 0  # as long as this a client may wait here
        self.asked_all_ms = 0
        self.asked_all_tries = 0
        self.asked_some_ms = 0
        self.asked_some_tries = 0
        self.sources: dict[bytes, int] = {}
        self.wanted: dict[bytes, tuple[int, int]] = {}  # by node: how many jobs, until when
        self._now = self._before = 0
        self._now_ms = self._before_ms = 0

    def imported(self, source: bytes, count: int, now_ms: int) -> None:
        """Count jobs that another node gave us."""
        if now_ms - self._now_ms > SLOT_MS:
            self._before, self._before_ms = self._now, self._now_ms
            self._now, self._now_ms = 0, now_ms
        self._now += count
        self.asked_some_tries = 0
        if source not in self.sources:
            self.asked_all_tries = 0
        self.sources[source] = now_ms
        self.announced = max(0, self.announced - count)

    def rate(self, now_ms: int) -> int:
        """Tell how many jobs a second come from other nodes."""
        if not self._now_ms or now_ms - self._now_ms > RATE_WINDOW_MS:
            return 0
        span_ms = max(RATE_SPAN_MS_MIN, now_ms - (self._before_ms or self._now_ms))
        return -(-(self._before + self._now) * 1000 // span_ms)

    def fresh_sources(self, now_ms: int) -> list[bytes]:
        """Give the nodes that gave us jobs lately."""
        self.sources = {node: at for node, at in self.sources.items() if now_ms - at <= SOURCE_MS}
        return list(self.sources)

    def is_wanted(self, now_ms: int) -> bool:
        """Tell whether other nodes wait for jobs of this queue."""
        if self.wanted:
            self.wanted = {node: want for node, want in self.wanted.items() if want[1] > now_ms}
        return bool(self.wanted)
