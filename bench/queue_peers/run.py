"""Measures one of Python's libraries, in the environment that has them, and prints a line of JSON.

.venv-bench/bin/python -m bench.queue_peers.run celery --jobs 20000
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import postgres
from bench.queue_peers.peer import (
    DONE_VARIABLE,
    LATENCY,
    PORT_VARIABLE,
    POSTGRES_VARIABLE,
    RESULTS_VARIABLE,
    Peer,
    Worker,
    latency_file,
)
from bench.servers import NotRunError, running, stop_on_sigterm

PEERS = ("celery", "rq", "dramatiq", "huey", "arq", "taskiq", "procrastinate")
ON_POSTGRES = ("procrastinate",)
PROGRAMS = Path(sys.executable).parent
LOOK_EVERY_S = 0.0005
STALLED_S = 60.0  # as long without a job done
STOP_S = 15.0


class Progress:
    """A file that handlers append to, watched from here."""

    def __init__(self, path: Path, item_bytes: int) -> None:
        self.path = path
        self.item_bytes = item_bytes

    def count(self) -> int:
        try:
            return self.path.stat().st_size // self.item_bytes
        except FileNotFoundError:
            return 0

    def wait_for_first(self, worker: subprocess.Popen[bytes]) -> float:
        """Wait until the first is there, which others may have followed, and return the time of it."""
        began = time.monotonic()
        while not self.count():
            if worker.poll() is not None or time.monotonic() - began > STALLED_S:
                raise NotRunError("the worker did not begin")
            time.sleep(LOOK_EVERY_S)
        return time.monotonic()

    def wait_for(self, items: int, worker: subprocess.Popen[bytes]) -> float:
        """Wait until there are `count`; return the time of it."""
        last, moved = -1, time.monotonic()
        while (count := self.count()) < items:
            now = time.monotonic()
            if count > last:
                last, moved = count, now
            elif now - moved > STALLED_S:
                raise NotRunError(f"no job was done for {STALLED_S:.0f} s, after {count} of {items}")
            if worker.poll() is not None:
                raise NotRunError(f"the worker ended with code {worker.returncode}")
            time.sleep(LOOK_EVERY_S)
        if count > items:
            raise NotRunError(f"{count} jobs were done, and {items} were enqueued")
        return time.monotonic()


@contextlib.contextmanager
def working(way: Worker, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker for the length of a block, with whatever processes it starts."""
    with (directory / "worker.log").open("wb") as log:
        words = [str(PROGRAMS / way.words[0]), *way.words[1:]]
        variables = {**os.environ, **way.variables}
        worker = subprocess.Popen(words, stdout=log, stderr=log, env=variables, start_new_session=True)
    try:
        yield worker
    except NotRunError as error:
        text = (directory / "worker.log").read_text(errors="replace")
        raise NotRunError(f"{error}; its last words: {text[-1500:]}") from error
    finally:
        worker.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(STOP_S)
        # Its children may outlive it; the group is theirs alone.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def measure(peer: Peer, settings: str, done_file: Path, jobs: int, latencies: int) -> dict[str, float | int]:
    """All figures of a peer on the Redis that the environment names."""
    done = Progress(done_file, 1)
    began = time.monotonic()
    peer.enqueue(jobs)
    enqueue_s = time.monotonic() - began
    with working(peer.workers[settings], done_file.parent) as worker:
        first = done.wait_for_first(worker)
        run_s = done.wait_for(jobs, worker) - first
        waits_ms = _latencies(peer, done_file, latencies, worker)
        began = time.monotonic()
        peer.enqueue(jobs)
        end_to_end_s = done.wait_for(2 * jobs, worker) - began
    figures: dict[str, float | int] = {"jobs": jobs, "enqueue_s": enqueue_s, "run_s": run_s}
    figures["end_to_end_s"] = end_to_end_s
    if waits_ms:
        figures["latency_p50_ms"] = statistics.median(waits_ms)
        figures["latency_p99_ms"] = sorted(waits_ms)[int(len(waits_ms) * 0.99)]
    return {name: round(value, 4) for name, value in figures.items()}


def _latencies(peer: Peer, done_file: Path, count: int, worker: subprocess.Popen[bytes]) -> list[float]:
    """Single jobs to an idle worker, with pauses in no rhythm that the worker could fall into."""
    path = latency_file(done_file)
    arrived = Progress(path, LATENCY.size)
    for number in range(count):
        time.sleep(random.uniform(0.005, 0.03))
        peer.send(time.monotonic_ns())
        arrived.wait_for(number + 1, worker)
    return [wait_ns / 1e6 for (wait_ns,) in LATENCY.iter_unpack(path.read_bytes())] if count else []


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Measures one library; prints one line of JSON.")
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--latencies", type=int, default=200, help="how many single jobs are timed")
    parser.add_argument("--settings", default="", help="how the worker is run; as its documentation begins, by default")
    parser.add_argument("--results", action="store_true", help="no-ops return a number, and it is kept")
    chosen = parser.parse_args()
    stop_on_sigterm()
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="queue-peers-"))
        done_file = Path(directory) / "done"
        # A peer's module reads these when it is imported, here as in the worker.
        if chosen.peer in ON_POSTGRES:
            os.environ[POSTGRES_VARIABLE] = stack.enter_context(postgres.running()).url
        else:
            os.environ[PORT_VARIABLE] = str(stack.enter_context(running("redis")).port)
        if chosen.results:
            os.environ[RESULTS_VARIABLE] = "1"
        os.environ[DONE_VARIABLE] = str(done_file)
        peer: Peer = importlib.import_module(f"bench.queue_peers.{chosen.peer}_peer").PEER
        settings = chosen.settings or next(iter(peer.workers))
        if settings not in peer.workers:
            parser.error(f"{chosen.peer} has no settings {settings!r}, but: {', '.join(peer.workers)}")
        told = {"peer": chosen.peer, "version": importlib.metadata.version(peer.package), "settings": settings}
        try:
            figures: dict[str, object] = {**measure(peer, settings, done_file, chosen.jobs, chosen.latencies)}
        except NotRunError as error:
            figures = {"error": str(error)}
        print(json.dumps({**told, **figures}))


if __name__ == "__main__":
    main()
