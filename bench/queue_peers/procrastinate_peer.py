"""procrastinate, on PostgreSQL.

`batch_defer_async` is its call for many jobs. Its worker runs one job at a time unless told otherwise; with a
concurrency of ten, what ours has by default, async tasks run side by side. Done jobs are deleted, as ours are.
"""

from __future__ import annotations

import asyncio

import procrastinate

from bench.queue_peers.peer import Peer, Worker, mark_done, mark_latency, postgres_url

BATCH = 1000

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=postgres_url()))
_loop = asyncio.new_event_loop()
_opened: list[bool] = []


@app.task(name="done", queue="bench")
async def done() -> None:
    mark_done()


@app.task(name="timed", queue="bench")
async def timed(sent_ns: int) -> None:
    mark_latency(sent_ns)


async def _open() -> None:
    if not _opened:
        await app.open_async()
        await app.schema_manager.apply_schema_async()
        _opened.append(True)


async def _enqueue(count: int) -> None:
    await _open()
    for at in range(0, count, BATCH):
        await done.batch_defer_async(*({} for _ in range(min(BATCH, count - at))))


async def _send(sent_ns: int) -> None:
    await _open()
    await timed.defer_async(sent_ns=sent_ns)


def enqueue(count: int) -> None:
    _loop.run_until_complete(_enqueue(count))


def send(sent_ns: int) -> None:
    _loop.run_until_complete(_send(sent_ns))


def _worker(concurrency: int) -> Worker:
    what = ["--queues", "bench", "--concurrency", str(concurrency), "--delete-jobs", "always"]
    words = ["procrastinate", "--app", "bench.queue_peers.procrastinate_peer.app", "worker", *what]
    return Worker(words, {"PYTHONPATH": "."})


PEER = Peer("procrastinate", enqueue, send, {"concurrency 10": _worker(10), "default": _worker(1)})
