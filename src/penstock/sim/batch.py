"""Many runs: on all cores, with their results added up."""

from __future__ import annotations

import logging
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from penstock.sim.coverage import missing
from penstock.sim.fault_kinds import KINDS
from penstock.sim.plan import Plan
from penstock.sim.run import Result, simulate

CHUNK = 4  # seeds a process takes at a time
COVERAGE_SEEDS = 400  # fewer runs than this need not reach everything
FAILURES_KEPT = 100


def quiet() -> None:
    """Turn off the nodes' logs: crashes are intended here."""
    logging.getLogger("penstock").setLevel(logging.CRITICAL + 1)


class Totals(NamedTuple):
    """What a batch of runs came to."""

    seeds: int
    failures: list[Result]
    failed: int
    events: int
    jobs: int
    deliveries: int
    causes: Counter[str]
    excuses: Counter[str]
    reached: Counter[str]

    def missing(self) -> list[str]:
        """Return what a batch of this size should have reached, and has not."""
        return missing(self.reached, sorted(KINDS)) if self.seeds >= COVERAGE_SEEDS else []

    @property
    def is_good(self) -> bool:
        """Whether nothing was wrong."""
        return not self.failed and not self.missing()


def run_all(
    seeds: Sequence[int],
    jobs: int,
    is_brief: bool = False,
    plan: Plan | None = None,
    movers: int = 0,
    retry_s: int = 0,
) -> Iterator[Result]:
    """Run seeds in `jobs` processes, with the faults drawn from each or with those given; results come when ready."""
    run = partial(simulate, plan=plan, is_brief=is_brief, movers=movers, retry_s=retry_s)
    if jobs <= 1 or len(seeds) == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.Pool(jobs, quiet) as pool:
        yield from pool.imap_unordered(run, seeds, CHUNK if len(seeds) > CHUNK * jobs * 4 else 1)


def add_up(results: Iterable[Result], progress: Callable[[int, int], None], stop: bool = False) -> Totals:
    """Put results together, up to the first failure if told so; `progress` hears how many are done, and failed."""
    failures: list[Result] = []
    done = failed = events = jobs = deliveries = 0
    causes: Counter[str] = Counter()
    excuses: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    for result in results:
        done += 1
        events += result.events
        jobs += result.jobs
        deliveries += result.deliveries
        causes.update(result.causes)
        excuses.update(result.excuses)
        reached.update(result.reached)
        if result.violations:
            failed += 1
            if len(failures) < FAILURES_KEPT:
                failures.append(result)
        progress(done, failed)
        if stop and failed:
            break
    failures.sort(key=lambda result: result.seed)
    return Totals(done, failures, failed, events, jobs, deliveries, causes, excuses, reached)
