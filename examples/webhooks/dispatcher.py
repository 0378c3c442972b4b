"""A webhook dispatcher: takes webhooks over HTTP, and delivers each until its receiver has it.

    python examples/webhooks/dispatcher.py                              on SQLite, in webhooks.db
    python examples/webhooks/dispatcher.py redis://localhost            or any other store that can reserve
    curl -d '{"order": 7}' -H 'x-dest-url: https://example.net/paid' http://127.0.0.1:6677/wh

Producers get the job's id once the store has the webhook. The status page, http://127.0.0.1:6677, says what becomes of
it. With WEBHOOK_SECRET in the environment, requests are signed. Several dispatchers may share one store.
"""

from __future__ import annotations

import argparse
import logging
import os
import threading

from delivery import Delivery
from front import DEAD_LETTERS, QUEUE, Front

from penstock import DeadLetter, Exponential, Worker
from penstock.blocking import connect
from penstock.worker.logs import TextFormatter

MAX_TRIES = 14  # with the pauses below the last try is about a day after the first
BACKOFF = Exponential(first=3, factor=3, longest=6 * 3600)


def main() -> None:
    """Run the front in threads and the worker beside it, until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description="Takes webhooks over HTTP, and delivers them.")
    parser.add_argument("url", nargs="?", default=os.environ.get("PENSTOCK_URL", "sqlite:///webhooks.db"), help="store")
    parser.add_argument("--port", type=int, default=6677, help="of the front, on this machine only; 0 takes a free one")
    parser.add_argument("--concurrency", type=int, default=20, help="number of requests at the same time")
    parser.add_argument("--host", action="append", default=[], help="a host that webhooks may go to; default: any")
    chosen = parser.parse_args()
    log = logging.StreamHandler()
    log.setFormatter(TextFormatter(colours=False, traces=False))
    logging.basicConfig(level=logging.WARNING, handlers=[log])
    secret = os.environ.get("WEBHOOK_SECRET", "").encode() or None
    worker = Worker(
        chosen.url,
        QUEUE,
        Delivery(secret).send,
        concurrency=chosen.concurrency,
        dead_letter=DeadLetter(MAX_TRIES, DEAD_LETTERS),
        backoff=BACKOFF,
    )
    with connect(chosen.url) as store, Front(("127.0.0.1", chosen.port), store, frozenset(chosen.host)) as front:
        threading.Thread(target=front.serve_forever, daemon=True).start()
        print(f"listening on http://127.0.0.1:{front.server_port}", flush=True)
        summary = worker.main()
        front.shutdown()
    print(summary)


if __name__ == "__main__":
    main()
