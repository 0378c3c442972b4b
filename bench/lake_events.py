"""Events for the benchmark of the lake: lives of jobs, written as segments in seconds by numpy.

Jobs are created evenly over some days, wait and run for exponential times, and belong to eight queues of very unequal
size. One in twelve fails once, one in a hundred for good. So there are about 3.2 events a job, of four nodes. The same
seed gives the same files.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from penstock.events.record import SLOT_BYTES, VERSION, Kind, definition_slots, end_slot
from penstock.events.segment import header, segment_name

NODES = 4
QUEUES = 8
WORKERS = 20
ERRORS = ("Timeout: no answer", "ValueError: not a number")
EPOCH = 1_770_000_000_000
START = datetime(2026, 2, 1, tzinfo=UTC)
SEGMENT_EVENTS = 640_000  # about 64 MB
EVENTS_A_JOB = 3.19
LEASE_US = 60_000_000
RETRY_US = 5_000_000
DAY_US = 86_400_000_000

SLOT = np.dtype(
    [
        ("version", "u1"), ("kind", "u1"), ("id_length", "u1"), ("flags", "u1"), ("attempt", "<u4"), ("seq", "<u8"),
        ("at", "<i8"), ("created", "<i8"), ("until", "<i8"), ("queue", "<u4"), ("node", "<u4"), ("worker", "<u4"),
        ("error", "<u4"), ("to_queue", "<u4"), ("size", "<u4"), ("job", "S40"),
    ]
)  # fmt: skip
assert SLOT.itemsize == SLOT_BYTES


def write_events(directory: Path, events: int, days: float, seed: int = 1, first_day: float = 0.0) -> int:
    """Write about this number of events; return how many it were."""
    random = np.random.default_rng(seed)
    jobs = max(1, int(events / EVENTS_A_JOB))
    begin = int(START.timestamp() * 1_000_000 + first_day * DAY_US)
    created = np.sort(random.integers(0, int(days * DAY_US), jobs)) + begin
    slots = _lives(random, created, seed)
    node_of = slots["node"] - 1
    for node in range(NODES):
        _write_node(directory, f"node-{node + 1}", slots[node_of == node], seed)
    return len(slots)


def _lives(random: Any, created: Any, seed: int) -> Any:
    """Return the events of jobs, in order of time."""
    jobs = len(created)
    lives = np.zeros(jobs, SLOT)
    lives["version"] = VERSION
    lives["id_length"] = 40
    lives["created"] = created
    lives["queue"] = 1 + np.minimum(random.geometric(0.4, jobs) - 1, QUEUES - 1)
    lives["node"] = 1 + random.integers(0, NODES, jobs)
    lives["size"] = random.integers(20, 2000, jobs)
    numbers = np.char.mod(f"D-{seed:08x}-%026x-ff", np.arange(jobs)).astype("S40")
    lives["job"] = numbers
    worker = (1 + random.integers(0, WORKERS, jobs)).astype("u4")
    fails = random.random(jobs) < 1 / 12
    dies = random.random(jobs) < 1 / 100
    started = created + random.exponential(2_000_000, jobs).astype("i8") + 1
    ended = started + random.exponential(300_000, jobs).astype("i8") + 1

    def events(kind: Kind, at: Any, chosen: Any = slice(None), **more: Any) -> Any:
        rows = lives[chosen].copy()
        rows["kind"], rows["at"] = int(kind), at[chosen]
        for name, value in more.items():
            rows[name] = value[chosen] if isinstance(value, np.ndarray) else value
        return rows

    again = ended + RETRY_US
    ended_again = again + random.exponential(300_000, jobs).astype("i8") + 1
    error = (1 + random.integers(0, len(ERRORS), jobs)).astype("u4")
    plain = ~fails & ~dies
    dead = dies & ~fails
    parts = [
        events(Kind.ADDED, created),
        events(Kind.RESERVED, started, attempt=1, worker=worker, until=started + LEASE_US),
        events(Kind.ACKED, ended, plain, attempt=1, worker=worker),
        events(Kind.FAILED, ended, dead, attempt=1, worker=worker, error=error, to_queue=QUEUES + 1),
        events(Kind.NACKED, ended, fails, attempt=1, worker=worker, error=error, until=again),
        events(Kind.RESERVED, again, fails, attempt=2, worker=worker, until=again + LEASE_US),
        events(Kind.ACKED, ended_again, fails, attempt=2, worker=worker),
    ]
    slots = np.concatenate(parts)
    return slots[np.argsort(slots["at"], kind="stable")]


def _write_node(directory: Path, name: str, slots: Any, seed: int) -> None:
    folder = directory / name
    folder.mkdir(parents=True, exist_ok=True)
    slots["seq"] = np.arange(1, len(slots) + 1)
    epoch = EPOCH + seed
    queues = [f"queue-{number}" for number in range(QUEUES)] + ["__deadletter__"]
    texts = [*queues, name, *(f"worker-{number}" for number in range(WORKERS)), *ERRORS]
    # Numbers of the model become numbers of texts.
    slots["node"] = len(queues) + 1
    for column, before in (("worker", len(queues) + 1), ("error", len(queues) + 1 + WORKERS)):
        slots[column] += np.where(slots[column] > 0, before, 0).astype("u4")
    for at in range(0, max(1, len(slots)), SEGMENT_EVENTS):
        part = slots[at : at + SEGMENT_EVENTS]
        first = at + 1
        when = int(part["at"][0]) if len(part) else 0
        with (folder / segment_name(epoch, first)).open("wb") as file:
            file.write(header(name, epoch, first, when))
            for number, text in enumerate(texts, 1):
                file.write(definition_slots(number, text.encode(), first))
            file.write(part.tobytes())
            if at + SEGMENT_EVENTS >= len(slots):
                file.write(end_slot(len(slots) + 1, when))
