"""Links of Node Keuss and ours on the queues of one pipeline: each passes on the other's jobs, atomically."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from penstock.blocking import Job
from penstock.pipelines import Move, Pipeline
from penstock.queues import blocking
from tests.interop.keuss_peer import KeussPeer, mongo_capped, mongo_options
from tests.processes import wait_until
from tests.servers import MongoServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

CHANNEL = "signal_collection"
JOBS = 200
END_S = 60.0


def passed(payload: dict[str, Any], name: str) -> dict[str, Any]:
    return {**payload, "passed": [*payload["passed"], name]}


def test_links_of_both_sides_share_the_queues_of_a_pipeline(keuss: KeussPeer, mongo_server: MongoServer) -> None:
    name = f"interop_links_{time.time_ns()}"
    factory = keuss.open(
        "pl-mongo",
        mongo_options(mongo_server, name),
        signaller=mongo_capped(mongo_server, name, CHANNEL),
        pollInterval=200,
        reserve_delay=3,  # an element that a link of Keuss loses in a race comes back soon
    )
    theirs = {queue: factory.queue(queue) for queue in ("in", "a", "b", "even", "odd", "out")}
    url = f"{mongo_server.url('mongodb+pl', name)}?poll=0.2&channel={CHANNEL}"
    pipeline = Pipeline(url)

    # Both sides run the first link and the choice; the others are of one side each.
    @pipeline.link("in", to="a", takes="payload")
    def first(payload: dict[str, Any]) -> dict[str, Any]:
        return passed(payload, "first")

    @pipeline.link("b", to=["even", "odd"])
    async def choose(job: Job) -> Move:
        return Move(to=job.payload["n"] % 2, payload=passed(job.payload, "choose"), headers={"by": "us"})

    @pipeline.link("even", to="out", takes="payload")
    def last(payload: dict[str, Any]) -> dict[str, Any]:
        return passed(payload, "last")

    with blocking.connect(url) as store:
        store.queue("in").push_many({"n": n, "passed": []} for n in range(0, JOBS, 2))
        for n in range(1, JOBS, 2):
            theirs["in"].push({"n": n, "passed": []})
        factory.link(theirs["in"], theirs["a"], name="first")
        factory.link(theirs["a"], theirs["b"], name="second")
        factory.link(theirs["b"], theirs["even"], theirs["odd"], name="choose")
        factory.link(theirs["odd"], theirs["out"], name="last")
        asyncio.run(pipeline.run(until_empty=True))
        wait_until(lambda: store.queue("out").total() == JOBS, END_S)
        jobs = list(store.queue("out").jobs())
        left = {queue: store.queue(queue).total() for queue in theirs if queue != "out"}
    assert Counter(job.payload["n"] for job in jobs) == Counter(range(JOBS))
    assert {tuple(job.payload["passed"]) for job in jobs} == {("first", "second", "choose", "last")}
    assert set(left.values()) == {0}
    assert keuss.strays() == []
    chosen_by_us = sum(job.headers.get("by") == "us" for job in jobs)
    assert chosen_by_us > 0, "our choice had no job"
    factory.stop_links()
    factory.close()
