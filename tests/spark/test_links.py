"""Links on Spark, driven by hand: a job has the same outcome as on workers, whatever happens to tasks and queries."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")
pytest.importorskip("pandas", reason="pandas is not installed: pip install 'penstock[connect]'")

from penstock import blocking
from penstock.errors import CallerError
from penstock.pipelines import Link, Pipeline, Recipe
from penstock.queues.dead_letter import ERROR
from penstock.spark import link_stream
from penstock.spark.links import SparkEngine
from tests.servers import RedisServer
from tests.spark.link_driver import query_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

JOBS = 12
OUTPUTS = ("out", "even", "odd")
# Functions of `link_steps`, and what is special of their links.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"takes": "payload", "max_tries": 2},
    "flaky": {},
    "later": {},
    "choose": {"to": ["even", "odd"]},
    "sink": {"to": None},
    "frame": {"takes": "pandas", "max_tries": 2},
    "table": {"takes": "arrow"},
}


@pytest.fixture(autouse=True)
def _tasks_end() -> Iterator[None]:
    """Close what tasks leave open for the next ones."""
    yield
    for store in link_stream._stores.values():
        link_stream._loop().run(store.close())
    link_stream._stores.clear()


@pytest.fixture(params=["sqlite", "redis+oq"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db?sync=off"
    redis: RedisServer = request.getfixturevalue("redis_server")
    return f"redis+oq://{redis.host}:{redis.port}/0"


def link_of(kind: str, prefix: str = "", **more: Any) -> Link:
    """The link of a kind, whose queues have a prefix."""
    row: dict[str, Any] = {"to": "out", "backoff": 0.01, **KINDS.get(kind, {}), **more}
    targets = row.pop("to")
    if targets is not None:
        row["to"] = [prefix + name for name in ([targets] if isinstance(targets, str) else targets)]
    row |= {"from": f"{prefix}in", "function": f"tests.spark.link_steps:{kind}"}
    return Recipe.read({"links": {"one": row}}).links["one"]


def ends(store: blocking.Store, prefix: str) -> list[tuple[str, str]]:
    """Where each job is in the end: its queue, and what it is there."""
    found = [
        (name, json.dumps([job.payload, dict(job.headers), job.tries], sort_keys=True))
        for name in ("in", *OUTPUTS)
        for job in store.queue(prefix + name).jobs()
    ]
    dead = store.queue(f"{prefix}dead")
    found += [("dead", f"{json.dumps(job.payload)} {job.headers[ERROR]}".replace(prefix, "")) for job in dead.jobs()]
    return sorted(found)


@pytest.mark.parametrize("kind", KINDS)
def test_each_job_has_the_same_outcome_on_workers_and_on_spark(kind: str, place: str) -> None:
    found = {}
    with blocking.connect(place) as store:
        for engine in ("worker", "spark"):
            prefix = f"{engine}{os.urandom(4).hex()}-"
            link = link_of(kind, prefix)
            source = store.queue(f"{prefix}in")
            source.push_many({"n": n} for n in range(JOBS))
            source.push("no object")
            if engine == "worker":
                recipe = {"dead_letters": f"{prefix}dead", "links": {"one": row_of(link)}}
                asyncio.run(Pipeline.from_recipe(recipe, store=place).run(until_empty=True))
            else:
                with query_of(link, place, dead_letters=f"{prefix}dead") as query:
                    while source.total():
                        query.run()
            found[engine] = ends(store, prefix)
    assert found["worker"] == found["spark"]
    assert kind == "sink" or len(found["spark"]) > JOBS // 2


def row_of(link: Link) -> dict[str, Any]:
    """A link as a recipe has it."""
    row = {"from": link.source, "function": link.function, "takes": link.takes, "backoff": 0.01}
    row |= {"to": list(link.targets)} if link.targets else {}
    return row | ({"max_tries": link.max_tries} if link.max_tries is not None else {})


def test_a_task_that_is_run_again_skips_what_has_gone(place: str) -> None:
    prefix = os.urandom(4).hex()
    with blocking.connect(place) as store, query_of(link_of("table", prefix), place) as query:
        store.queue(f"{prefix}in").push_many({"n": n} for n in range(JOBS))
        parts = query.plan()
        for _ in range(2):
            for part in parts:
                query.run_task(part)
        assert query.counts["done"] == JOBS
        assert sorted(job.payload["n"] for job in store.queue(f"{prefix}out").jobs()) == list(range(JOBS))


def test_a_query_that_died_with_its_log_leaves_nothing_but_leases(place: str) -> None:
    prefix = os.urandom(4).hex()
    link = link_of("table", prefix, lease=1)
    with blocking.connect(place) as store:
        store.queue(f"{prefix}in").push_many({"n": n} for n in range(JOBS))
        with query_of(link, place) as query:
            first, *_ = query.plan()
            query.run_task(first)
            query.stream.batches._lease_keeper.stop()
        assert 0 < store.queue(f"{prefix}in").total() < JOBS
        with query_of(link, place) as another:  # with a log of its own
            while store.queue(f"{prefix}in").total():
                another.run()
        assert sorted(job.payload["n"] for job in store.queue(f"{prefix}out").jobs()) == list(range(JOBS))
        assert query.counts["done"] + another.counts["done"] == JOBS


def test_a_job_that_kills_its_task_again_and_again_is_found_and_the_others_are_done(url: str) -> None:
    link = link_of("deadly", takes="payload", max_tries=2)
    with blocking.connect(url) as store, query_of(link, url, tasks=1, dead_letters="dead") as query:
        source = store.queue("in")
        source.push_many({"n": n} for n in range(JOBS))
        while source.total():
            for part in query.plan():
                query.run_task_apart(part)
        assert query.deaths == 2 * 2, "twice for each of its tries"
        assert sorted(job.payload["n"] for job in store.queue("out").jobs()) == [n for n in range(JOBS) if n != 3]
        (dead,) = store.queue("dead").jobs()
        assert (dead.payload["n"], dead.headers[ERROR]) == (3, "RuntimeError: the process that ran it died")


def test_a_link_takes_no_more_jobs_than_its_target_has_room_for(url: str) -> None:
    with blocking.connect(url) as store, query_of(link_of("table", max_waiting=5), url) as query:
        store.queue("in").push_many({"n": n} for n in range(JOBS))
        store.queue("out").push_many(["waits"] * 3)
        query.run()
        assert (store.queue("in").total(), store.queue("out").size()) == (JOBS - 2, 5)
        store.queue("out").pop_many(5)
        query.run()
        assert (store.queue("in").total(), store.queue("out").size()) == (JOBS - 7, 5)


def test_a_query_that_is_to_stop_takes_no_jobs(url: str) -> None:
    with blocking.connect(url) as store, query_of(link_of("table"), url) as query:
        store.queue("in").push_many({"n": n} for n in range(JOBS))
        parts = query.plan()
        query.stop_taking()
        for part in parts:
            query.run_task(part)
        done = query.counts["done"]
        assert not query.has_stopped, "the batch is not known to be done"
        store.queue("in").push({"n": 0})
        assert query.plan() == []
        assert query.has_stopped
        assert store.queue("in").size() == JOBS - done + 1


def test_jobs_that_a_task_left_go_back_when_its_batch_ends(url: str) -> None:
    with blocking.connect(url) as store, query_of(link_of("table"), url) as query:
        store.queue("in").push_many({"n": n} for n in range(JOBS))
        first, *_ = query.plan()
        query.run_task(first)
        query.stop_taking()
        query.plan()
        sizes = store.queue("in").sizes()
        assert (sizes.ready, sizes.reserved) == (JOBS - query.counts["done"], 0)


def test_stores_and_masters_that_links_can_not_have_are_refused() -> None:
    with pytest.raises(CallerError, match="that processes can share, got memory:"):
        SparkEngine("memory:x")
    with pytest.raises(CallerError, match="must have their driver in this process, got the Spark Connect server sc://"):
        SparkEngine("sqlite:///x.db", master="sc://localhost")


def test_a_link_on_spark_needs_an_engine(url: str) -> None:
    pipeline = Pipeline(url)
    pipeline.add(link_of("table", engine="spark"))
    with pytest.raises(CallerError, match=r"'one' runs on spark: pass run\(engines="):
        asyncio.run(pipeline.run(until_empty=True))
