"""Node Keuss 1.6.1 (bucket-mongo) and Penstock (mongodb+bucket-plain) on one MongoDB: each takes the other's jobs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from penstock.queues import blocking
from penstock.queues.blocking import Queue
from tests.interop.keuss_peer import OLD, KeussError, KeussPeer, KeussQueue, mongo_options
from tests.processes import wait_until
from tests.servers import MongoServer

pytestmark = pytest.mark.interop

PATIENCE = 20.0
PATIENCE_MS = 20_000
Both = tuple[Queue, KeussQueue]


@pytest.fixture
def both(keuss: KeussPeer, mongo_server: MongoServer) -> Iterator[Both]:
    name = f"interop_plain_{time.time_ns() // 1_000_000}"
    # Signals within its process: on MongoDB 6 the signaller of this version can't start.
    here: dict[str, Any] = {"signaller": {"provider": "local"}, "stats": {"provider": "mem"}}
    factory = keuss.open(
        "bucket-mongo", mongo_options(mongo_server, name), version=OLD, bucket_max_wait=20, pollInterval=100, **here
    )
    with blocking.connect(mongo_server.url("mongodb+bucket-plain", name), poll=0.1) as store:
        yield store.queue("mail"), factory.queue("mail", bucket_max_wait=20, pollInterval=100)
    factory.close()


def test_payloads_in_both_directions(both: Both) -> None:
    ours, theirs = both
    for payload in [{"a": 1, "list": [1, "zwei", []], "null": None}, "text", "", 0, 4.5, True, [1]]:
        ours.push(payload)
        assert theirs.pop(PATIENCE_MS).payload == payload
        theirs.push(payload)
        job = ours.pop(timeout=PATIENCE)
        assert (job.payload, job.tries, job.headers) == (payload, 0, {})


def test_sizes_and_the_form_of_buckets_are_alike(both: Both, mongo_server: MongoServer) -> None:
    ours, theirs = both
    ours.push_many([1, 2, 3])
    for number in range(3):
        theirs.push(number)
    wait_until(lambda: ours.size() == 6)
    assert theirs.size() == theirs.total_size() == 6
    with mongo_server.client() as client:
        jobs = client[ours.store._driver._link.database_name]["mail"]
        forms = [{name: type(value) for name, value in bucket.items()} for bucket in jobs.find()]
    assert all(form == forms[0] for form in forms)
    assert ours.pop(timeout=PATIENCE).payload in {0, 1}
    assert theirs.size() == 5


def test_consumers_of_both_at_the_same_time_get_each_job_once(both: Both) -> None:
    ours, theirs = both
    count = 100
    taken: list[Any] = []

    def consume_ours() -> None:
        while len(taken) < 2 * count:
            job = ours.pop(timeout=0.2)
            if job is not None:
                taken.append(job.payload)

    def consume_theirs() -> None:
        # Without a limit: Keuss may give an element to a wait whose time is over.
        with suppress(KeussError):  # the end of the wait
            while True:
                element = theirs.pop()
                assert element is not None
                taken.append(element.payload)

    threads = [threading.Thread(target=work) for work in (consume_ours, consume_theirs)]
    for thread in threads:
        thread.start()
    for number in range(count):
        ours.push(f"ours {number}")
        theirs.push(f"theirs {number}")
    wait_until(lambda: len(taken) >= 2 * count, 60)
    wait_until(lambda: theirs.cancel() or not any(thread.is_alive() for thread in threads), PATIENCE)
    assert Counter(taken) == Counter(f"{side} {number}" for side in ("ours", "theirs") for number in range(count))
    assert theirs.total_size() == 0
