"""Deliver webhooks: each is a job that is tried until its receiver takes it.

    python examples/webhooks.py add sqlite:///jobs.db http://localhost:8080/paid '{"order": 7}'
    python examples/webhooks.py work sqlite:///jobs.db

A receiver that answers 2xx has it. One that answers 4xx will never take it: the job goes to the dead letters. After
anything else the job comes back, after a pause that grows. Any store will do: `redis+oq://localhost`, `disque://...`.
"""

import sys
import urllib.error
import urllib.request

import penstock
import penstock.blocking
from penstock import Exponential, Fail, Worker

QUEUE = "webhooks"
ANSWER_S = 10.0


def add(url: str, target: str, body: str) -> None:
    with penstock.blocking.connect(url) as store:
        print(store.queue(QUEUE).push({"url": target, "body": body}))


def deliver(job: penstock.blocking.Job) -> None:
    """Run in a thread, since it blocks."""
    hook = job.payload
    headers = {"Content-Type": "application/json", "Webhook-Id": job.id}  # the id tells a receiver of a second delivery
    request = urllib.request.Request(hook["url"], hook["body"].encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S):
            print("delivered to", hook["url"])
    except urllib.error.HTTPError as problem:
        if 400 <= problem.code < 500:
            raise Fail(f"{hook['url']} answered {problem.code}") from problem
        raise


def work(url: str, *options: str) -> None:
    worker = Worker(url, QUEUE, deliver, max_tries=14, backoff=Exponential(first=3, longest=3600))
    print(worker.main(until_empty="--until-empty" in options))


if __name__ == "__main__":
    if sys.argv[1] == "add":
        add(*sys.argv[2:])
    else:
        work(*sys.argv[2:])
