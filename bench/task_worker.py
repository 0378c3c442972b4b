"""Our tasks, measured as `bench.queue_peers` measures those of others: same fields, same way of counting.

    .venv/bin/python -m bench.task_worker redis+oq              one line of JSON
    .venv/bin/python -m bench.task_worker disque --results      the same, with a result of each call kept

One process of `penstock worker` with its defaults runs the tasks of the app below. Calls are pushed with `push_many`,
and by `push` where the time to the function is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import penstock
from bench.queue_peers.peer import DONE_VARIABLE, Peer, Worker, mark_done, mark_latency
from bench.queue_peers.run import measure
from bench.queue_worker import STORES, store_url
from bench.servers import NotRunError, stop_on_sigterm

SETTINGS = {"async": "done", "plain": "done_plain", "results": "counted"}

app = penstock.App(queue="bench")  # PENSTOCK_URL


@app.task(name="done")
async def done() -> None:
    mark_done()


@app.task(name="done_plain")
def done_plain() -> None:
    mark_done()


@app.task(name="counted")
async def counted() -> int:
    mark_done()
    return 1


@app.task(name="timed")
async def timed(sent_ns: int) -> None:
    mark_latency(sent_ns)


def run(kind: str, settings: str, jobs: int, latencies: int) -> dict[str, Any]:
    """The figures of our tasks on a store, with the fields that `bench.queue_peers` describes."""
    task = app.tasks[SETTINGS[settings]]
    with tempfile.TemporaryDirectory(prefix="task-worker-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        os.environ["PENSTOCK_URL"] = stack.enter_context(store_url(kind, directory))
        os.environ[DONE_VARIABLE] = str(directory / "done")
        with asyncio.Runner() as loop:

            async def push(count: int) -> None:
                await app.push_many([task.call() for _ in range(count)])

            async def send(sent_ns: int) -> None:
                await timed.push(sent_ns)

            peer = Peer(
                "penstock",
                lambda count: loop.run(push(count)),
                lambda sent_ns: loop.run(send(sent_ns)),
                {settings: Worker(["penstock", "worker", "bench.task_worker:app"])},
            )
            loop.run(app.__aenter__())  # the bare worker's store is open, too, before anything is measured
            try:
                figures = measure(peer, settings, directory / "done", jobs, latencies)
            finally:
                loop.run(app.close())
        told = {"peer": f"penstock {kind}", "version": penstock.__version__, "settings": settings}
        return {**told, **figures}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Measures our tasks as those of others are measured.")
    parser.add_argument("store", choices=STORES)
    parser.add_argument("--settings", choices=SETTINGS, default="async")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--latencies", type=int, default=200, help="how many single calls are timed")
    chosen = parser.parse_args()
    stop_on_sigterm()
    try:
        print(json.dumps(run(chosen.store, chosen.settings, chosen.jobs, chosen.latencies)))
    except NotRunError as error:
        print(f"{chosen.store}: not run: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
