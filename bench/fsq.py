"""Directories as queues beside their peers, and beside the least that durable work can cost.

The floor is what no queue of files can go below: one file written, synced and renamed, and its directory synced.
queuelib and persist-queue do the same durable work where they can: each item is on the disk before the next one. All
run in each round, one after the other, on the same disk; the median of the rounds counts, ratios are taken within a
round. Then the queue is made longer and longer, to see what that costs an item. It reports and never fails.

    python -m bench.fsq [--rounds N] [--items N] [--waiting N,N,...] [--directory PATH]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock import blocking, fsq
from penstock.fsq import constants
from penstock.fsq.engine import Engine, ScanJob

DATA = b"x" * 200
BATCH = 100
TURN = 10  # items that floor and enqueue do in turns, so that both meet the same noise
FLOOR_RATIO_MAX = 1.5
GROWTH_TURNS = 3  # of which the fastest counts: growth is looked for, not noise

Work = Callable[[Path, int], float]


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def floor_and_enqueue(place: Path, count: int) -> tuple[float, float]:
    """Take turns: one file written, synced and renamed and its directory synced, and an enqueue."""
    use(place)
    target = place / "target"
    target.mkdir()

    def one(number: int) -> None:
        fd = os.open(place / f"draft{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(fd, DATA)
        os.fsync(fd)
        os.close(fd)
        (place / f"draft{number}").rename(target / f"item{number}")
        directory = os.open(target, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    lowest = ours = 0.0
    for at in range(0, count, TURN):
        numbers = range(at, at + TURN)
        lowest += seconds(lambda numbers=numbers: [one(number) for number in numbers])
        ours += seconds(lambda numbers=numbers: [fsq.senqueue("q", DATA, number) for number in numbers])
    return lowest, ours


def use(place: Path, sync: int = 1) -> None:
    constants.load({"FSQ_ROOT": str(place), "FSQ_SYNC": str(sync)})
    fsq.install("q")


def enqueue_unsynced(place: Path, count: int) -> float:
    use(place, sync=0)
    return seconds(lambda: [fsq.senqueue("q", DATA, number) for number in range(count)])


def enqueue_batches(place: Path, count: int) -> float:
    use(place)
    batches = max(1, count // BATCH)
    batch = [(DATA, [number]) for number in range(BATCH)]
    return seconds(lambda: [fsq.enqueue_many("q", batch) for _ in range(batches)]) * count / (batches * BATCH)


def work(place: Path, sync: int) -> None:
    constants.load({"FSQ_ROOT": str(place), "FSQ_SYNC": str(sync)})
    for item in fsq.scan("q"):
        fsq.success(item)


def _scan(place: Path, count: int, scanners: int, sync: int) -> float:
    use(place, sync=0)
    for number in range(count):
        fsq.senqueue("q", DATA, number)
    if scanners == 1:
        return seconds(lambda: work(place, sync))
    processes = [multiprocessing.Process(target=work, args=(place, sync)) for _ in range(scanners)]

    def run() -> None:
        for process in processes:
            process.start()
        for process in processes:
            process.join()

    return seconds(run)


def _scan_children(place: Path, count: int, jobs: int) -> float:
    use(place, sync=0)
    few = max(1, count // 10)
    for number in range(few):
        fsq.senqueue("q", DATA, number)
    constants.load({"FSQ_ROOT": str(place), "FSQ_SYNC": "1"})
    return seconds(lambda: Engine(ScanJob("q", ["true"], jobs=jobs)).run()) * count / few


# The same directories through the queue library.


@contextlib.contextmanager
def store_queue(place: Path, filled: int = 0) -> Iterator[blocking.Queue]:
    """An installed queue of the store with `filled` jobs in it."""
    with blocking.connect(f"fsq:{place}?sync=0") as store:
        store.queue("q").push(b"")
        store.queue("q").pop(0)
        for at in range(0, filled, BATCH):
            store.queue("q").push_many([DATA] * min(BATCH, filled - at))
    with blocking.connect(f"fsq:{place}") as store:
        yield store.queue("q", lease=600)


def store_push(place: Path, count: int) -> float:
    with store_queue(place) as queue:
        return seconds(lambda: [queue.push(DATA) for _ in range(count)])


def store_push_many(place: Path, count: int) -> float:
    batches = max(1, count // BATCH)
    with store_queue(place) as queue:
        return seconds(lambda: [queue.push_many([DATA] * BATCH) for _ in range(batches)]) * count / (batches * BATCH)


def store_reserve_ack(place: Path, count: int) -> float:
    def one(queue: blocking.Queue) -> None:
        job = queue.reserve(0)
        assert job is not None
        job.ack()

    with store_queue(place, count) as queue:
        return seconds(lambda: [one(queue) for _ in range(count)])


def store_reserve_ack_many(place: Path, count: int) -> float:
    def drain(queue: blocking.Queue) -> None:
        while jobs := queue.reserve_many(BATCH):
            queue.ack_many(jobs)

    with store_queue(place, count) as queue:
        return seconds(lambda: drain(queue))


# Peers. Not every one of their calls is durable by itself: what lacks is done for them.


def queuelib_push(place: Path, count: int) -> float:
    from queuelib import FifoDiskQueue

    queue = FifoDiskQueue(str(place / "queuelib"))

    def one() -> None:
        queue.push(DATA)
        os.fsync(queue.headf.fileno())

    spent = seconds(lambda: [one() for _ in range(count)])
    queue.close()
    return spent


def queuelib_pop(place: Path, count: int) -> float:
    """It saves what was popped when it is closed; here after each, so that no item comes again."""
    from queuelib import FifoDiskQueue

    queue = FifoDiskQueue(str(place / "queuelib"))
    for _ in range(count):
        queue.push(DATA)

    def one() -> None:
        queue.pop()
        queue._saveinfo(queue.info)
        with queue._infopath().open("rb") as saved:
            os.fsync(saved.fileno())

    spent = seconds(lambda: [one() for _ in range(count)])
    queue.close()
    return spent


def persist_push(place: Path, count: int) -> float:
    from persistqueue import Queue

    queue = Queue(str(place / "persist"), autosave=True, tempdir=str(place))
    return seconds(lambda: [queue.put(DATA) for _ in range(count)])


def persist_get(place: Path, count: int) -> float:
    from persistqueue import Queue

    queue = Queue(str(place / "persist"), autosave=True, tempdir=str(place))
    for _ in range(count):
        queue.put(DATA)
    return seconds(lambda: [queue.get() for _ in range(count)])


def sqlite_push(place: Path, count: int) -> float:
    from persistqueue import SQLiteAckQueue

    queue = SQLiteAckQueue(str(place / "sqlite"), auto_commit=True)
    spent = seconds(lambda: [queue.put(DATA) for _ in range(count)])
    queue.close()
    return spent


def sqlite_get_ack(place: Path, count: int) -> float:
    from persistqueue import SQLiteAckQueue

    queue = SQLiteAckQueue(str(place / "sqlite"), auto_commit=True)
    for _ in range(count):
        queue.put(DATA)

    def one() -> None:
        queue.ack(id=queue.get(raw=True)["pqid"])

    spent = seconds(lambda: [one() for _ in range(count)])
    queue.close()
    return spent


ROWS: dict[str, Work] = {
    f"enqueue_many, {BATCH} at a time": enqueue_batches,
    "enqueue, no sync": enqueue_unsynced,
    "fsq: store, push": store_push,
    f"fsq: store, push_many of {BATCH}": store_push_many,
    "queuelib push + fsync": queuelib_push,
    "persist-queue put, autosave": persist_push,
    "persist-queue SQLite put": sqlite_push,
    "scan and done": lambda place, count: _scan(place, count, 1, 1),
    "scan and done, 4 scanners": lambda place, count: _scan(place, count, 4, 1),
    "scan and done, no sync": lambda place, count: _scan(place, count, 1, 0),
    "scan, one child a job": lambda place, count: _scan_children(place, count, 1),
    "scan, one child a job, 4 at a time": lambda place, count: _scan_children(place, count, 4),
    "fsq: store, reserve + ack": store_reserve_ack,
    f"fsq: store, reserve + ack of {BATCH}": store_reserve_ack_many,
    "queuelib pop + save + fsync": queuelib_pop,
    "persist-queue get, autosave": persist_get,
    "persist-queue SQLite get + ack": sqlite_get_ack,
}


@contextlib.contextmanager
def folder(directory: str | None) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(dir=directory))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def rates(rounds: int, items: int, directory: str | None) -> None:
    """Every row in every round."""
    samples: dict[str, list[float]] = {name: [] for name in ("floor", "enqueue", *ROWS)}
    for _ in range(rounds):
        with folder(directory) as place:
            for name, spent in zip(("floor", "enqueue"), floor_and_enqueue(place, items), strict=True):
                samples[name].append(spent / items)
        for name, measure in ROWS.items():
            with folder(directory) as place, contextlib.suppress(ImportError):
                samples[name].append(measure(place, items) / items)
    print(f"{'':<36}{'µs an item':>12}{'least':>10}{'most':>10}{'of floor':>10}")
    for name, found in samples.items():
        if not found:
            print(f"{name:<36}  not run: the package isn't installed")
            continue
        ratio = statistics.median(one / base for one, base in zip(found, samples["floor"], strict=True))
        mark = ""
        if name == "enqueue":
            mark = "  met" if ratio <= FLOOR_RATIO_MAX else f"  MISSED: at most {FLOOR_RATIO_MAX} was wanted"
        figures = [statistics.median(found), min(found), max(found)]
        print(
            f"{name:<36}" + "{:>12.0f}{:>10.0f}{:>10.0f}".format(*(f * 1e6 for f in figures)) + f"{ratio:>10.2f}{mark}"
        )


def growth(lengths: list[int], items: int, directory: str | None) -> None:
    """What an item costs while others wait."""
    print(f"\n{'waiting':>10}{'enqueue µs':>12}{'listing s':>11}{'first item s':>14}{'scan+done µs':>14}")
    costs: list[tuple[float, float]] = []
    with folder(directory) as place:
        use(place, sync=0)
        queue = Path(fsq.path.queue("q"))
        there = 0
        for length in sorted(lengths):
            for number in range(there, length):
                os.close(os.open(queue / f"_20250101000000_{number}_1_web_0_x", os.O_CREAT | os.O_WRONLY, 0o640))
            there = length
            added = min(_added(items) for _ in range(GROWTH_TURNS))
            began = time.perf_counter()
            items_of = fsq.scan("q")
            listed = time.perf_counter() - began
            fsq.success(next(items_of))
            first = time.perf_counter() - began
            done = min(_done(items_of, items) for _ in range(GROWTH_TURNS))
            items_of.close()
            costs.append((added, done))
            print(f"{length:>10}{added * 1e6:>12.0f}{listed:>11.2f}{first:>14.2f}{done * 1e6:>14.0f}")
    if len(costs) > 1:
        grown = [last / first for first, last in zip(costs[0], costs[-1], strict=True)]
        print("longest by shortest: enqueue {:.2f}, scan+done {:.2f}".format(*grown))


def _added(items: int) -> float:
    return seconds(lambda: [fsq.senqueue("q", DATA) for _ in range(items)]) / items


def _done(items_of: Iterator[fsq.FSQWorkItem], items: int) -> float:
    return seconds(lambda: [fsq.success(next(items_of)) for _ in range(items)]) / items


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Directories as queues beside their peers.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("--waiting", default="1000,10000,100000,1000000")
    parser.add_argument("--directory", help="where, by default the directory for temporary files")
    options = parser.parse_args()
    rates(options.rounds, options.items, options.directory)
    growth([int(length) for length in options.waiting.split(",")], options.items, options.directory)


if __name__ == "__main__":
    main()
