"""RQ.

`enqueue_many` is its call for many jobs, in one pipeline. Its notes on performance say to run the worker that forks
for each job, and to take SimpleWorker, which does not, only for trusted jobs of a few milliseconds: both are measured.
"""

from __future__ import annotations

from redis import Redis
from rq import Queue

from bench.queue_peers.peer import Peer, Worker, keeps_results, mark_done, mark_latency, redis_port, redis_url

BATCH = 1000  # a pipeline's length: all of them at once would only fill memory

queue = Queue("bench", connection=Redis(port=redis_port()))


def done() -> int | None:
    mark_done()
    return 1 if keeps_results() else None


def enqueue(count: int) -> None:
    for at in range(0, count, BATCH):
        size = min(BATCH, count - at)
        queue.enqueue_many([Queue.prepare_data(done, result_ttl=3600 if keeps_results() else 0) for _ in range(size)])


def send(sent_ns: int) -> None:
    queue.enqueue(mark_latency, sent_ns, result_ttl=0)


def _worker(kind: str) -> Worker:
    what = ["--url", redis_url(), "--quiet", "--path", ".", "--worker-class", kind]
    return Worker(["rq", "worker", "bench", *what])


PEER = Peer("rq", enqueue, send, {"forking": _worker("rq.Worker"), "simple": _worker("rq.SimpleWorker")})
