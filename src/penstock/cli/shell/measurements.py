"""Measurements of `penstock cli`: --latency, --latency-history, --stat and --intrinsic-latency.

They end with Ctrl-C, which is not an error.
"""

import contextlib
import sys
import time
from collections.abc import Iterator

from penstock.cli.shell.options import ShellOptions
from penstock.cli.shell.session import connection, open_link
from penstock.client.connection import Connection

SAMPLE_PAUSE_S = 0.01  # between two PINGs: short enough to see a pause, long enough to cause no load
REFRESH_S = 0.1  # between two updates of the line on the terminal
HISTORY_LINE_S = 15.0
STAT_LINE_S = 1.0
STAT_HEADING_EVERY = 20

# Heading, width, and the field of INFO it shows.
_STAT_COLUMNS = (
    ("jobs", 10, "registered_jobs"),
    ("queues", 8, "registered_queues"),
    ("mem", 9, "used_memory_human"),
    ("clients", 8, "connected_clients"),
    ("blocked", 8, "blocked_clients"),
)


def run(options: ShellOptions) -> int:
    """Run the measurement of the options, until it is done or interrupted."""
    with contextlib.suppress(KeyboardInterrupt):
        if options.mode == "intrinsic-latency":
            _intrinsic(options.seconds)
            return 0
        link = connection(options)
        open_link(link, options)
        if options.mode == "stat":
            _stat(link, options)
        else:
            _latency(link, options)
    return 0


class _Samples:
    def __init__(self) -> None:
        self.count, self.sum_ms, self.max_ms, self.min_ms = 0, 0.0, 0.0, float("inf")
        self.started = time.monotonic()

    def add(self, ms: float) -> None:
        self.count += 1
        self.sum_ms += ms
        self.min_ms, self.max_ms = min(self.min_ms, ms), max(self.max_ms, ms)

    def line(self) -> str:
        if not self.count:
            return "no samples"
        average = self.sum_ms / self.count
        return f"min: {self.min_ms:.2f}, max: {self.max_ms:.2f}, avg: {average:.2f} ms ({self.count} samples)"


def _latency(link: Connection, options: ShellOptions) -> None:
    """Send PING repeatedly. A terminal shows one line that is updated; other outputs get only final lines."""
    history = options.mode == "latency-history"
    window_s = options.interval_s or HISTORY_LINE_S
    left = options.repeat if options.repeat_given else -1
    samples, drawn = _Samples(), 0.0
    try:
        while left:
            started = time.perf_counter()
            link.execute("PING")
            samples.add((time.perf_counter() - started) * 1000)
            now = time.monotonic()
            if sys.stdout.isatty() and now - drawn >= REFRESH_S:
                drawn = now
                print(f"\r\x1b[K{samples.line()}", end="", flush=True)
            if history and now - samples.started >= window_s:
                _final(samples, f" -- {now - samples.started:.2f} seconds range")
                samples = _Samples()
                left -= 1
            elif not history:
                left -= 1
            time.sleep(SAMPLE_PAUSE_S)
    finally:
        if samples.count:
            _final(samples, "")


def _final(samples: _Samples, suffix: str) -> None:
    start = "\r\x1b[K" if sys.stdout.isatty() else ""
    print(f"{start}{samples.line()}{suffix}", flush=True)


def _stat(link: Connection, options: ShellOptions) -> None:
    previous: int | None = None
    for number in _numbers(options.repeat if options.repeat_given else -1):
        if number:
            time.sleep(options.interval_s or STAT_LINE_S)
        if number % STAT_HEADING_EVERY == 0:
            headings = "".join(f"{name:<{width}}" for name, width, _ in _STAT_COLUMNS)
            print(f"{headings}{'requests':<20}connections")
        facts = parse_info(link.execute("INFO"))
        requests = int(facts.get("total_commands_processed", 0))
        change = "" if previous is None else f"(+{requests - previous})"
        previous = requests
        cells = "".join(f"{facts.get(field, '-'):<{width}}" for _, width, field in _STAT_COLUMNS)
        shown = f"{requests} {change}"
        print(f"{cells}{shown:<20}{facts.get('total_connections_received', '-')}", flush=True)


def _numbers(count: int) -> Iterator[int]:
    number = 0
    while count < 0 or number < count:
        yield number
        number += 1


def parse_info(text: bytes) -> dict[str, str]:
    """Return the `key:value` lines of INFO."""
    lines = text.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _intrinsic(seconds: int) -> None:
    """Read the clock in a loop: a gap between two readings is a pause of the system."""
    clock = time.perf_counter_ns
    started = last = clock()
    end = started + seconds * 1_000_000_000
    worst, runs = 0, 0
    while last < end:
        now = clock()
        runs += 1
        if now - last > worst:
            worst = now - last
            print(f"Max latency so far: {worst / 1000:.0f} microseconds.")
            now = clock()  # printing was our own pause
        last = now
    average_us = (last - started) / runs / 1000
    print(f"\n{runs} total runs (avg latency: {average_us:.4f} microseconds a run).")
    print(f"Worst run took {worst / 1000 / average_us:.0f}x longer than the average.")
