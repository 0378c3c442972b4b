"""Sends jobs that Spark's code can't process to the dead letters, with their error, so that the stream goes on.

For a function of one row, make a UDF that catches its errors:

    parse = trying(json.loads, "map<string,string>")
    rows = jobs.withColumn("parsed", parse("body"))
    good, bad = split(rows, "parsed")          # good.parsed is the value, bad.error the reason

For `foreachBatch`, wrap the function; a batch that fails is cut in halves until the jobs are found that it fails on:

    query = jobs.writeStream.foreachBatch(isolating(write, url, "mail", retriable=[ConnectionError])).start()

A target that is down is not the fault of the jobs. The query stops, and no job goes to the dead letters, when an error
is one of those named as retriable, and when not a single job of a batch succeeded.

A job moves from the claim that holds it to the dead letters, in one step where the store can: a batch that is run again
no longer has it.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from penstock import Capability, DeadLetter
from penstock.errors import OperatorError
from penstock.job import Mark
from penstock.queues.blocking import Job, Queue, connect
from penstock.queues.dead_letter import DEAD_LETTER_QUEUE, ERROR_CHARACTERS_MAX

DEAD_MAX = 10  # in one batch: if more fail it is hardly the fault of the jobs, and the stream must stop
TRIES_MAX = 20
Handle = Callable[[DataFrame, int], Any]
_ERROR_LINE = re.compile(r"^(?:\w+\.)*\w+(?=:|$)", re.MULTILINE)

log = logging.getLogger("penstock.spark")


def trying(function: Callable[..., Any], returns: str) -> Callable[..., Column]:
    """Return a UDF of a function that may raise. It returns a struct of `value`, of the type `returns`, and `error`."""

    def run(*values: Any) -> tuple[Any, str | None]:
        try:
            return function(*values), None
        except Exception as problem:
            return None, _text(problem)

    made: Callable[..., Column] = f.udf(run, f"struct<value: {returns}, error: string>", useArrow=False)
    return made


def split(rows: DataFrame, column: str) -> tuple[DataFrame, DataFrame]:
    """Return the rows whose `trying` column has a value, with the value in it; and the others, with their `error`."""
    good = rows.filter(f.col(column)["error"].isNull()).withColumn(column, f.col(column)["value"])
    bad = rows.filter(f.col(column)["error"].isNotNull()).withColumn("error", f.col(column)["error"]).drop(column)
    return good, bad


def to_dead_letters(bad: DataFrame, url: str, queue: str, dead_queue: str = DEAD_LETTER_QUEUE) -> int:
    """Send jobs of a stream to the dead letters: rows with `id`, `claim` and `error`. Returns how many went.

    The rows are collected on the driver, without their bodies: this is meant for a few.
    """
    claims: dict[str, dict[str, str]] = {}
    for row in bad.select("claim", "id", "error").toLocalIterator():
        claims.setdefault(row.claim, {})[row.id] = row.error
    return sum(give_up(url, queue, claim, errors, dead_queue) for claim, errors in claims.items())


def give_up(url: str, queue: str, claim: str, errors: Mapping[str, str], dead_queue: str = DEAD_LETTER_QUEUE) -> int:
    """Move jobs of a claim, by their ids, to the dead letters; returns how many. Jobs that are gone are skipped."""
    left = dict(errors)
    gone = 0
    with connect(url) as store:
        place = store.queue(queue, dead_letter=DeadLetter(queue=dead_queue))
        # The query extends its leases meanwhile, which changes their tokens: then it is tried again.
        for _ in range(TRIES_MAX):
            jobs = [job for job in _claimed(place, claim, left) if job.id in left]
            if not jobs:
                break
            moved = place.fail_many(jobs, [left[job.id] for job in jobs])
            for job, is_moved in zip(jobs, moved, strict=True):
                if is_moved:
                    del left[job.id]
                    gone += 1
    return gone


def _claimed(place: Queue, claim: str, ids: Iterable[str]) -> list[Job]:
    """Return the jobs of a claim; on nodes without claims, those of the ids that exist."""
    store = place.store
    if Capability.CLAIM in store.capabilities or not store.has_marks:
        return place.claim(claim, 0)
    return place.regain([Mark(job_id) for job_id in ids])


def isolating(
    handle: Handle,
    url: str,
    queue: str,
    *,
    dead_queue: str = DEAD_LETTER_QUEUE,
    dead_max: int = DEAD_MAX,
    retriable: Sequence[type[BaseException] | str] = (),
) -> Handle:
    """Return a function for `foreachBatch` that survives jobs on which `handle` raises.

    A batch that fails is run again in halves, so `handle` may see a job twice, and is called several times with one
    batch id: write into a folder of its own for each call, or to a target that is idempotent by the job's id.

    `retriable` names errors that are not the fault of a job, as types, or as texts that an error of Java has in its
    message: they stop the query, which runs the batch again when it is started again. So does a batch of which no job
    succeeded; a single job goes to the dead letters only if `retriable` is given and doesn't name its error.
    """

    def run(batch: DataFrame, number: int) -> None:
        batch = batch.persist()
        try:
            search = _Search(handle, number, dead_max, tuple(retriable))
            search.run(batch)
            search.check()
            if search.dead:
                errors = f.create_map(*(f.lit(word) for pair in search.dead.items() for word in pair))
                bad = batch.filter(f.col("id").isin(list(search.dead))).withColumn("error", errors[f.col("id")])
                gone = to_dead_letters(bad, url, queue, dead_queue)
                log.warning("batch %d: %d of its jobs went to the dead letters", number, gone)
        finally:
            batch.unpersist()

    return run


class _Search:
    """Finds the jobs of a batch on which a function fails."""

    def __init__(
        self, handle: Handle, number: int, dead_max: int, retriable: tuple[type[BaseException] | str, ...]
    ) -> None:
        self._handle, self._number, self._dead_max, self._retriable = handle, number, dead_max, retriable
        self._has_success = False
        self._problem: Exception | None = None  # the last one
        self.dead: dict[str, str] = {}

    def run(self, part: DataFrame) -> None:
        """Run a part of a batch, and if it fails its halves."""
        try:
            self._handle(part, self._number)
            self._has_success = True
        except Exception as problem:
            if is_retriable(problem, self._retriable):
                raise
            ids = [row.id for row in part.select("id").orderBy("id").collect()]
            if len(ids) <= 1:
                self._problem = problem
                self.dead.update(dict.fromkeys(ids, _text(problem)))
                if len(self.dead) > self._dead_max:
                    raise
                return
            middle = ids[len(ids) // 2]
            self.run(part.filter(f.col("id") < middle))
            self.run(part.filter(f.col("id") >= middle))

    def check(self) -> None:
        """Raise if no job succeeded: then the jobs are rarely the cause."""
        is_single = len(self.dead) == 1 and bool(self._retriable)
        if self.dead and not self._has_success and not is_single:
            raise OperatorError(
                f"none of the {len(self.dead)} jobs of batch {self._number} could be processed, so none went to the "
                f"dead letters, and the query stops. The last error was {_text(self._problem)}. If it is the fault of "
                "a single job, name the errors that are not in isolating(retriable=...)"
            ) from self._problem


def is_retriable(problem: BaseException, named: Sequence[type[BaseException] | str]) -> bool:
    """Whether an error, its cause, or an error in a task that Spark reports, is one of those named."""
    types = tuple(one for one in named if isinstance(one, type))
    texts = [one for one in named if isinstance(one, str)]
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, types) or any(text in str(cause) for text in texts):
            return True
        if type(cause).__module__.partition(".")[0] in {"pyspark", "py4j"} and _mentions(str(cause), types):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _mentions(text: str, types: tuple[type[BaseException], ...]) -> bool:
    """Whether the traceback of a task ends with an error of one of these types, or of a subclass."""
    for name in set(_ERROR_LINE.findall(text)):
        module, _, plain = name.rpartition(".")
        found = getattr(sys.modules.get(module or "builtins"), plain, None)
        if isinstance(found, type) and issubclass(found, types):
            return True
    return False


def _text(problem: BaseException | None) -> str:
    return f"{type(problem).__name__}: {problem}"[:ERROR_CHARACTERS_MAX]
