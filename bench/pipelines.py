"""Pipelines of five links: `python -m bench.pipelines`.

A job goes through five queues, so that a fifth of a bare store's rate is what one could wish for. The bare rate is that
of one worker that acks jobs of a queue, in the same process and within seconds. On Spark the same recipe runs with
100,000 jobs on `local[2]`, after Spark has started; and with a function that computes, on workers of one process and on
Spark: where Spark begins to pay.

A rate is that of jobs through all five links, from the first one that left the first queue to the last one that came
into the last queue.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report import NO_BAR, Bar, Line, Report, command_used, machine, options
from bench.rounds import Rounds
from bench.servers import stop_on_sigterm
from bench.spark_world import store_at, told
from penstock import Job, Store, Worker, connect
from penstock.pipelines import Pipeline

if TYPE_CHECKING:
    from penstock.spark.links import SparkEngine

Figures = Mapping[str, float]

ROOT = Path(__file__).resolve().parents[1]
STORES = ("memory", "sqlite", "redis+oq", "postgresql", "mongodb+pl", "mongodb", "fsq", "disque")
ON_SPARK = ("sqlite", "redis+oq", "postgresql", "mongodb+pl", "disque")
LINKS = 5
JOBS = 5_000
SPARK_JOBS = 100_000
BUSY_JOBS = 10_000
BUSY_US = (100, 1000)  # that a function computes in each link
CORES = 2
QUICK_DIVISOR = 20
PUSH = 1000
LOOK_S = 0.05
# A step is a reserve, a move and its part of the signals, where the bare worker has a reserve and an ack.
FIVE_BAR = Bar(ratio_min=0.5)


@dataclass(frozen=True)
class FiveLinks:
    """A recipe of five links on one store, all on workers or all on Spark."""

    store: str
    engine: str = "worker"
    jobs: int = JOBS
    busy_us: int = 0

    @property
    def name(self) -> str:
        """For the progress line."""
        return f"{self.store}, {self.engine}, {self.jobs:,} jobs, {self.busy_us} us"

    @property
    def shape(self) -> str:
        """What it is compared with runs right before or after it."""
        return f"{self.store} {self.jobs} {self.busy_us}"

    def run(self, quick: bool, program: Path) -> Figures:
        """First the bare store, then the pipeline."""
        jobs = self.jobs // (QUICK_DIVISOR if quick else 1)
        with (
            told(),
            tempfile.TemporaryDirectory(prefix="bench-pipelines-") as directory,
            store_at(self.store, Path(directory), program) as url,
        ):
            return asyncio.run(self._measure(url, jobs))

    async def _measure(self, url: str, jobs: int) -> Figures:
        figures = {}
        async with connect(url) as store:
            if self.engine == "worker" and not self.busy_us:
                figures["bare_per_s"] = await bare(store, jobs) / LINKS
            figures["jobs_per_s"] = await through_links(store, url, self.engine, jobs, f"step_{self.busy_us}")
        return figures


async def _fill(store: Store, queue: str, jobs: int) -> None:
    for begin in range(0, jobs, PUSH):
        await store.queue(queue).push_many([{"n": n} for n in range(begin, min(jobs, begin + PUSH))])


async def bare(store: Store, jobs: int) -> float:
    """Return the rate of a worker that only acks."""
    await _fill(store, "bare", jobs)

    async def nothing(job: Job) -> None:
        """Do nothing."""

    began = time.perf_counter()
    summary = await Worker(store, "bare", nothing).run(until_empty=True)
    if summary.done != jobs:
        raise AssertionError(f"{summary.done} of {jobs} jobs were done")
    return jobs / (time.perf_counter() - began)


async def through_links(store: Store, url: str, engine: str, jobs: int, function: str) -> float:
    """Return the rate of a pipeline of five links."""
    rows = {
        f"link{n}": {
            "from": f"q{n}",
            "to": f"q{n + 1}",
            "function": f"bench.pipeline_steps:{function}",
            "takes": "payload",
            "engine": engine,
        }
        for n in range(LINKS)
    }
    pipeline = Pipeline.from_recipe({"links": rows}, store=store)
    engines = {"spark": await asyncio.to_thread(_spark, url)} if engine == "spark" else None
    await _fill(store, "q0", jobs)
    running = asyncio.create_task(pipeline.run(engines=engines))
    began: float | None = None
    target, source = store.queue(f"q{LINKS}"), store.queue("q0")
    while await target.total() < jobs:
        if began is None and await source.total() < jobs:
            began = time.perf_counter()
        await asyncio.sleep(LOOK_S)
        if running.done():
            raise AssertionError(f"the pipeline has ended: {running.result()}")
    ended = time.perf_counter()
    pipeline.stop()
    await running
    return jobs / (ended - (began or ended - LOOK_S))


def _spark(url: str) -> SparkEngine:
    """Return an engine whose session has been started, the same for all stores."""
    from penstock.spark.links import SparkEngine

    engine = SparkEngine(url, master=f"local[{CORES}]", paths=[str(ROOT)])
    engine.session()
    return engine


@dataclass(frozen=True)
class Row:
    """A rate, and the rate beside it."""

    name: str
    ours: FiveLinks
    peer: FiveLinks | None = None
    bar: Bar = NO_BAR


ROWS = [
    *(Row(f"{store}: five links / the bare store by five", FiveLinks(store), bar=FIVE_BAR) for store in STORES),
    *(
        Row(
            f"{store}: five links on Spark / on workers, {SPARK_JOBS:,} jobs",
            FiveLinks(store, "spark", SPARK_JOBS),
            FiveLinks(store, "worker", SPARK_JOBS),
        )
        for store in ON_SPARK
    ),
    *(
        Row(
            f"redis+oq: functions of {busy_us} us on Spark / on workers, {BUSY_JOBS:,} jobs",
            FiveLinks("redis+oq", "spark", BUSY_JOBS, busy_us),
            FiveLinks("redis+oq", "worker", BUSY_JOBS, busy_us),
        )
        for busy_us in BUSY_US
    ),
]


def line_of(row: Row, rounds: Rounds[Figures]) -> Line:
    """The row with its samples, or with the reason why it has none."""
    line = Line(row.name, bar=row.bar)
    for session in (row.ours, row.peer):
        if session is not None and (reason := rounds.failures.get(session)):
            line.note = f"not run: {session.name}: {reason}"
    line.ours = [figures["jobs_per_s"] for figures in rounds.results.get(row.ours, [])]
    if row.peer is None:
        line.peer = [figures["bare_per_s"] for figures in rounds.results.get(row.ours, [])]
    else:
        line.peer = [figures["jobs_per_s"] for figures in rounds.results.get(row.peer, [])]
    return line


def main() -> None:
    """Runs the chosen rows and shows them."""
    parser = options("Pipelines of five links.")
    parser.set_defaults(rounds=3)
    chosen = parser.parse_args()
    rows = [row for row in ROWS if re.search(chosen.only, row.name, re.IGNORECASE)]
    stop_on_sigterm()
    facts = machine(chosen.penstock)
    facts.pop("beanstalkd", None)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    rounds: Rounds[Figures] = Rounds(chosen.quick, chosen.penstock)
    sessions = [session for row in rows for session in (row.ours, row.peer) if session is not None]
    rounds.run(list(dict.fromkeys(sessions)), chosen.rounds)
    title = f"Pipelines of five links, median of {chosen.rounds} rounds{', quick' if chosen.quick else ''}"
    report = Report(title, command_used("bench.pipelines"), facts, [line_of(row, rounds) for row in rows])
    report.show()
    report.write(chosen.markdown, chosen.json)


if __name__ == "__main__":
    main()
