"""Celery on Redis.

It has no call for many jobs: the fastest documented way is `apply_async` with one producer that is kept. Its page on
optimizing advises a large prefetch multiplier (64 or 128) for many short jobs, and results that nobody wants are off.
Prefork is the pool that it recommends; a solo pool, one process in all, and a pool of one thread are tried as well.
"""

from __future__ import annotations

from celery import Celery

from bench.queue_peers.peer import Peer, Worker, keeps_results, mark_done, mark_latency, redis_url

app = Celery("bench", broker=redis_url(), backend=redis_url() if keeps_results() else None)
app.conf.task_ignore_result = not keeps_results()
app.conf.worker_prefetch_multiplier = 128
app.conf.broker_connection_retry_on_startup = True


@app.task(name="done")
def done() -> int | None:
    mark_done()
    return 1 if keeps_results() else None


@app.task(name="timed")
def timed(sent_ns: int) -> None:
    mark_latency(sent_ns)


def enqueue(count: int) -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for _ in range(count):
            done.apply_async(producer=producer)


def _worker(pool: str) -> Worker:
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING"]
    what = ["--pool", pool, "--concurrency", "1"]
    return Worker(["celery", "-A", "bench.queue_peers.celery_peer", "worker", *what, *quiet])


PEER = Peer(
    "celery",
    enqueue,
    timed.delay,
    {"prefork": _worker("prefork"), "solo": _worker("solo"), "threads": _worker("threads")},
)
