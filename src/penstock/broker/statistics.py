"""What a broker counts about itself: totals, rates, slow commands and spikes of latency."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

SAMPLES = 16  # of the instantaneous rates, taken at each cron
SLOW_ARGUMENTS_MAX = 32
SLOW_ARGUMENT_BYTES_MAX = 128
LATENCY_SAMPLES_MAX = 160  # kept per event


class Rate:
    """A rate over the last samples."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque([0.0] * SAMPLES, maxlen=SAMPLES)
        self._total = 0
        self._at_ms = 0

    def sample(self, total: int, now_ms: int) -> None:
        """Note the total at this time."""
        if self._at_ms and now_ms > self._at_ms:
            self._samples.append((total - self._total) * 1000 / (now_ms - self._at_ms))
        self._total, self._at_ms = total, now_ms

    def value(self) -> float:
        """Return the mean rate a second."""
        return sum(self._samples) / SAMPLES


def cut_arguments(arguments: list[bytes], bytes_max: int) -> list[bytes]:
    """Return as much of a request as may be shown, and how much is missing."""
    shown: list[bytes] = []
    for argument in arguments:
        if bytes_max <= 0:
            shown.append(b"... (%d more arguments)" % (len(arguments) - len(shown)))
            break
        shown.append(_cut(argument, bytes_max))
        bytes_max -= len(argument) + 1
    return shown


def _cut(argument: bytes, bytes_max: int) -> bytes:
    if len(argument) <= bytes_max:
        return argument
    return argument[:bytes_max] + b"... (%d more bytes)" % (len(argument) - bytes_max)


class SlowEntry(NamedTuple):
    """One slow command."""

    number: int
    at_s: int
    microseconds: int
    arguments: list[bytes]


class SlowLog:
    """The slowest recent commands."""

    def __init__(self, most: int) -> None:
        self.entries: deque[SlowEntry] = deque(maxlen=most)
        self._next = 0

    def resize(self, most: int) -> None:
        """Set how many entries are kept."""
        self.entries = deque(list(self.entries)[:most], maxlen=most)

    def add(self, at_s: int, microseconds: int, arguments: list[bytes]) -> None:
        """Note a slow command, cut to a size that is always fine to keep."""
        shown = [_cut(argument, SLOW_ARGUMENT_BYTES_MAX) for argument in arguments[:SLOW_ARGUMENTS_MAX]]
        if len(arguments) > SLOW_ARGUMENTS_MAX:
            shown[-1] = b"... (%d more arguments)" % (len(arguments) - SLOW_ARGUMENTS_MAX + 1)
        self.entries.appendleft(SlowEntry(self._next, at_s, microseconds, shown))
        self._next += 1


class Latency:
    """Spikes: what took longer than the threshold, by event, one sample a second."""

    def __init__(self) -> None:
        self.threshold_ms = 0  # 0 = off
        self.events: dict[str, deque[tuple[int, int]]] = {}  # (unix second, milliseconds)
        self.worst: dict[str, int] = {}

    def add(self, event: str, at_s: int, milliseconds: int) -> None:
        """Note how long something took, if that is long enough."""
        if not self.threshold_ms or milliseconds < self.threshold_ms:
            return
        samples = self.events.setdefault(event, deque(maxlen=LATENCY_SAMPLES_MAX))
        self.worst[event] = max(self.worst.get(event, 0), milliseconds)
        if samples and samples[-1][0] == at_s:
            samples[-1] = (at_s, max(samples[-1][1], milliseconds))
        else:
            samples.append((at_s, milliseconds))


class Statistics:
    """The totals that INFO shows."""

    def __init__(self, slow_most: int) -> None:
        self.slow = SlowLog(slow_most)
        self.latency = Latency()
        self.reset()

    def reset(self) -> None:
        """Zero the totals (CONFIG RESETSTAT)."""
        self.commands_rate = Rate()
        self.input_rate = Rate()
        self.output_rate = Rate()
        self.connections = 0
        self.rejected = 0
        self.commands = 0
        self.input_bytes = 0
        self.output_bytes = 0
