"""Jobs that Spark's code can't process go to the dead letters, with their error, and don't stop the stream.

For a function on one row, make it a UDF that catches:

    parse = trying(json.loads, "map<string,string>")
    rows = jobs.withColumn("parsed", parse("body"))
    good, bad = split(rows, "parsed")          # good.parsed is the value, bad.error the reason

For `foreachBatch`, wrap the function; a batch that fails is cut in halves until the jobs are found that it fails on:

    query = jobs.writeStream.foreachBatch(isolating(write, url, "mail")).start()

A job moves to the dead letters out of the claim that holds it, in one step where the store can: a batch that is run
again no longer has it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from penstock.job import Mark
from penstock.queues.blocking import Job, Queue, connect
from penstock.queues.capabilities import Capability
from penstock.queues.dead_letters import DEAD_LETTER_QUEUE, ERROR_CHARACTERS_MAX, DeadLetter

DEAD_MAX = 10  # of one batch: when more fail it is no fault of the jobs, and the stream had better stop
TRIES_MAX = 20
Handle = Callable[[DataFrame, int], Any]

log = logging.getLogger("penstock.spark")


def trying(function: Callable[..., Any], returns: str) -> Callable[..., Column]:
    """A UDF of a function that may raise: gives a struct of `value`, of the type `returns`, and `error`."""

    def run(*values: Any) -> tuple[Any, str | None]:
        try:
            return function(*values), None
        except Exception as problem:
            return None, _text(problem)

    made: Callable[..., Column] = f.udf(run, f"struct<value: {returns}, error: string>", useArrow=False)
    return made


def split(rows: DataFrame, column: str) -> tuple[DataFrame, DataFrame]:
    """Rows whose `trying` column has a value, with that in its place; and the others, with the reason as `error`."""
    good = rows.filter(f.col(column)["error"].isNull()).withColumn(column, f.col(column)["value"])
    bad = rows.filter(f.col(column)["error"].isNotNull()).withColumn("error", f.col(column)["error"]).drop(column)
    return good, bad


def to_dead_letters(bad: DataFrame, url: str, queue: str, dead_queue: str = DEAD_LETTER_QUEUE) -> int:
    """Give up jobs of a stream: rows with their `id`, `claim` and an `error`. Gives how many went.

    They come to the driver, without their bodies: meant for the few that fail.
    """
    claims: dict[str, dict[str, str]] = {}
    for row in bad.select("claim", "id", "error").toLocalIterator():
        claims.setdefault(row.claim, {})[row.id] = row.error
    return sum(give_up(url, queue, claim, errors, dead_queue) for claim, errors in claims.items())


def give_up(url: str, queue: str, claim: str, errors: Mapping[str, str], dead_queue: str = DEAD_LETTER_QUEUE) -> int:
    """Move jobs of a claim, by their ids, to the dead letters. Those that others have finished are left alone."""
    left = dict(errors)
    gone = 0
    with connect(url) as store:
        place = store.queue(queue, dead_letter=DeadLetter(queue=dead_queue))
        # The query goes on making its leases longer, which gives them other tokens: then it is tried again.
        for _ in range(TRIES_MAX):
            jobs = [job for job in _held(place, claim, left) if job.id in left]
            if not jobs:
                break
            moved = place.fail_many(jobs, [left[job.id] for job in jobs])
            for job, is_moved in zip(jobs, moved, strict=True):
                if is_moved:
                    del left[job.id]
                    gone += 1
    return gone


def _held(place: Queue, claim: str, ids: Iterable[str]) -> list[Job]:
    """The jobs of a claim; of nodes that know no claims, those that are there."""
    store = place.store
    if Capability.CLAIM in store.capabilities or not store.driver.has_marks:
        return place.claim(claim, 0)
    return [Job(place, stored) for stored in store.driver.regain(place.name, [Mark(job_id) for job_id in ids])]


def isolating(
    handle: Handle, url: str, queue: str, *, dead_queue: str = DEAD_LETTER_QUEUE, dead_max: int = DEAD_MAX
) -> Handle:
    """A function for `foreachBatch` that survives jobs on which `handle` raises.

    A batch that fails is run again in halves, so `handle` must bear to see a job twice, and must not rely on one call
    a batch id; write into a folder of its own for each call, or to something idempotent by the job's id.
    """

    def run(batch: DataFrame, number: int) -> None:
        batch = batch.persist()
        try:
            dead = _run_part(handle, batch, number, dead_max)
            if dead:
                errors = f.create_map(*(f.lit(word) for pair in dead.items() for word in pair))
                bad = batch.filter(f.col("id").isin(list(dead))).withColumn("error", errors[f.col("id")])
                gone = to_dead_letters(bad, url, queue, dead_queue)
                log.warning("batch %d: %d of its jobs went to the dead letters", number, gone)
        finally:
            batch.unpersist()

    return run


def _run_part(handle: Handle, part: DataFrame, number: int, dead_max: int) -> dict[str, str]:
    """Runs a part of a batch; gives the jobs that it fails on, with their errors."""
    try:
        handle(part, number)
    except Exception as problem:
        ids = [row.id for row in part.select("id").orderBy("id").collect()]
        if len(ids) <= 1:
            return dict.fromkeys(ids, _text(problem))
        dead: dict[str, str] = {}
        middle = ids[len(ids) // 2]
        for half in (part.filter(f.col("id") < middle), part.filter(f.col("id") >= middle)):
            dead |= _run_part(handle, half, number, dead_max)
            if len(dead) > dead_max:
                raise
        return dead
    return {}


def _text(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"[:ERROR_CHARACTERS_MAX]
