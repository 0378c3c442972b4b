"""Our own worker, measured as `bench.queue_peers` measures those of others: same fields, same way of counting.

    .venv/bin/python -m bench.queue_worker redis+oq                 one line of JSON
    .venv/bin/python -m bench.queue_worker redis+oq --settings plain --jobs 20000 --latencies 200
    .venv/bin/python -m bench.queue_worker                          all stores, as a table

One process of `penstock worker` with its defaults runs the function: an `async def`, or with the settings `plain` a
plain one in threads. Jobs are enqueued with `push_many` of the blocking form. Redis and the broker keep nothing on the
disk, as the Redis of the peers; SQLite and PostgreSQL have their defaults.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import postgres
from bench.queue_peers.peer import DONE_VARIABLE, Peer, Worker, mark_done, mark_latency
from bench.queue_peers.run import measure
from bench.servers import HOST, NotRunError, running, stop_on_sigterm
from penstock import Job, __version__, blocking

QUEUE = "bench"
STORES = ("disque", "redis+oq", "sqlite", "postgresql")
SETTINGS = {"async": "handle", "plain": "handle_plain"}


async def handle(job: Job) -> None:
    """The body of a job: a no-op, or one whose way is timed."""
    mark_done() if job.payload is None else mark_latency(job.payload)


def handle_plain(job: Job) -> None:
    """The same as a plain function."""
    mark_done() if job.payload is None else mark_latency(job.payload)


@contextlib.contextmanager
def store_url(kind: str, directory: Path) -> Iterator[str]:
    """A store of its own for the length of a block."""
    if kind == "memory":
        yield "memory:"
    elif kind == "sqlite":
        yield f"sqlite:///{directory}/jobs.db"
    elif kind == "postgresql":
        with postgres.running() as server:
            yield f"postgresql://{postgres.USER}@{HOST}:{server.port}/{postgres.DATABASE}"
    elif kind.startswith("mongodb"):
        from bench import mongod  # with pytest, which a worker doesn't need

        with mongod.running() as mongo:
            yield mongo.url(kind, "bench")
    else:
        with running("redis" if kind.startswith("redis") else "penstock") as node:
            yield f"{kind}://{HOST}:{node.port}"


def run(kind: str, settings: str, jobs: int, latencies: int) -> dict[str, Any]:
    """The figures of our worker on a store, with the fields that `bench.queue_peers` describes."""
    with tempfile.TemporaryDirectory(prefix="queue-worker-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        url = stack.enter_context(store_url(kind, directory))
        os.environ[DONE_VARIABLE] = str(directory / "done")
        queue = stack.enter_context(blocking.connect(url)).queue(QUEUE)
        worker = Worker(["penstock", "worker", url, QUEUE, f"bench.queue_worker:{SETTINGS[settings]}"])
        peer = Peer(
            "penstock",
            lambda count: queue.push_many([None] * count),
            queue.push,
            {settings: worker},
        )
        told = {"peer": f"penstock {kind}", "version": __version__, "settings": settings}
        return {**told, **measure(peer, settings, directory / "done", jobs, latencies)}


def show(answers: list[dict[str, Any]]) -> None:
    """All of them as a table."""
    from bench.queue_peers.__main__ import HEADS, cells
    from bench.report import machine
    from bench.table import Table

    rows = [[f"{answer['peer']} ({answer['settings']})", *cells(answer)] for answer in answers]
    Table("Our worker", HEADS, rows).show([f"{name}: {value}" for name, value in machine().items()])


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Measures our worker as those of others are measured.")
    parser.add_argument("store", nargs="?", choices=STORES)
    parser.add_argument("--settings", choices=SETTINGS, default="async")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--latencies", type=int, default=200, help="how many single jobs are timed")
    chosen = parser.parse_args()
    stop_on_sigterm()
    answers = []
    for kind in STORES if chosen.store is None else [chosen.store]:
        try:
            answers.append(run(kind, chosen.settings, chosen.jobs, chosen.latencies))
        except NotRunError as error:
            print(f"{kind}: not run: {error}", file=sys.stderr)
    if chosen.store is None:
        show(answers)
    elif answers:
        print(json.dumps(answers[0]))
    if not answers:
        sys.exit(1)


if __name__ == "__main__":
    main()
