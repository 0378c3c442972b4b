"""Sends jobs once more that a query chose: dead letters go back, and jobs that ended otherwise are pushed again.

    choose      a query becomes a plan: which jobs, and where they go (Spark)
    Plan        a file in the lake, and beside it what of it is done; nothing here needs Spark
    carry_out   the jobs, in batches

A plan is written before the first job is sent, and read again by the next run of the same command, so the jobs stay
the same whatever happens to the lake meanwhile. After each batch its jobs are noted. Killed at any point, a run leaves
at most one batch of which it is not known whether it was sent:

    a dead letter, where the store moves in one step    it is in one of the two queues: sent, or still a dead letter
    a dead letter, on other stores                      pushed with the key `redrive:PLAN:JOB`, then removed; the key
                                                        takes no second push
    an ended job                                        pushed with that key
    a store without unique keys                         may push a job of that batch twice: `Plan.promise`

Bodies of dead letters are where the dead letters are. Those of ended jobs are gone, unless a node kept them in its
segments (`events-bodies`); a job without one is counted and named, and not sent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.codec import decode, encode, unframe
from penstock.errors import BadPayload, CallerError
from penstock.events.segment import Segment, list_segments
from penstock.job import JobState
from penstock.lake.life import ADDING, ENDED
from penstock.lake.schemas import EVENTS, JOBS
from penstock.lake.table import LakeTable, use_utc
from penstock.queues.blocking import Job, Queue, Store
from penstock.queues.capabilities import Capability
from penstock.queues.dead_letter import FROM_QUEUE, HEADERS, JOB
from penstock.queues.push import Push

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DIRECTORY = "_redrive"  # of plans, in the lake: Delta's readers pass over names that begin like this
BATCH = 500  # jobs that are sent, then noted
UNIQUE_FOR_S = 7 * 24 * 3600.0  # after its end a job's key still stops a second push, if a run is taken up late
JOBS_MAX = 1_000_000  # of a plan: a file of 100 MB
SAMPLES = 5
GROUPS_MAX = 10
NAMED_MAX = 5  # jobs without a body that are named
DEAD = "failed"

Key = tuple[str, int, int]
"""Writer, epoch and number of an event."""


class Question(NamedTuple):
    """What was asked for."""

    where: str
    store: str  # its URL
    to: str | None = None  # None: each job goes to the queue that it came from
    replay: bool = False  # jobs that ended otherwise than dead, too
    limit: int = JOBS_MAX

    @property
    def digest(self) -> str:
        """A short name: the same question has the same one."""
        return sha256(json.dumps(self).encode()).hexdigest()[:10]


class Chosen(NamedTuple):
    """A job of a plan."""

    job: str
    queue: str | None
    outcome: str
    error: str | None
    added: tuple[Key, ...] = ()  # events that may have its body

    @property
    def is_dead(self) -> bool:
        """Whether it is among the dead letters, as far as the lake knows."""
        return self.outcome == DEAD


@dataclass(slots=True)
class Plan:
    """Jobs to send."""

    name: str
    question: Question
    jobs: list[Chosen]
    open: int = 0  # jobs that the query chose, too, and that have not ended: they are left alone
    kept_out: int = 0  # jobs that ended otherwise, without `replay`
    done: set[str] = field(default_factory=set)

    @property
    def left(self) -> list[Chosen]:
        """The jobs that are still to be sent."""
        return [one for one in self.jobs if one.job not in self.done]

    def groups(self) -> list[tuple[str, str, str, int]]:
        """Return queue, outcome, class of error and number of jobs, the largest group first."""
        counts: dict[tuple[str, str, str], int] = {}
        for one in self.jobs:
            group = (one.queue or "", one.outcome, (one.error or "").partition(":")[0])
            counts[group] = counts.get(group, 0) + 1
        return [(*group, count) for group, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))]

    def promise(self, store: Store) -> str:
        """Return what holds if a run is killed and started again: `once` or `at least once`."""
        if Capability.UNIQUE in store.capabilities:
            return "once"
        dead = store.dead_letters()
        homes = {self.question.to or one.queue or "" for one in self.jobs if one.is_dead}
        are_moved = all(one.is_dead for one in self.jobs) and all(dead.moves_atomically(home) for home in homes if home)
        return "once" if are_moved else "at least once"


# The plan.


def choose(spark: SparkSession, lake: str | Path, question: Question) -> Plan:
    """Return the plan of a question, which is not written yet."""
    use_utc(spark)
    table = LakeTable(lake, JOBS)
    snapshot = table.snapshot()
    chosen = asked(table.dataframe(spark, list(snapshot.files)), question.where)
    wanted = list(ENDED) if question.replay else [DEAD]
    counts = {str(row.outcome): int(row["count"]) for row in chosen.groupBy("outcome").count().collect()}
    rows = chosen.where(chosen.outcome.isin(*wanted)).orderBy("created", "job").limit(question.limit)
    columns = ["job", "queue", "outcome", "error"]
    jobs = [Chosen(*row) for row in rows.select(*columns).collect()]
    if question.replay:
        events = LakeTable(lake, EVENTS)
        adds = events.dataframe(spark, list(events.snapshot().files))
        jobs = _with_adds(jobs, adds, rows)
    ended = {name: count for name, count in counts.items() if name not in ("waiting", "running")}
    return Plan(
        f"{question.digest}-{snapshot.version}",
        question,
        jobs,
        open=sum(counts.values()) - sum(ended.values()),
        kept_out=sum(count for name, count in ended.items() if name not in wanted),
    )


def asked(jobs: DataFrame, where: str) -> DataFrame:
    """Return the jobs that a condition chooses. It may also say `error` for last_error, and `error_class`."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - plans are carried out without Spark

    named = jobs.withColumns({"error": f.col("last_error"), "error_class": f.split("last_error", ":")[0]})
    return named.where(where)


def _with_adds(jobs: list[Chosen], events: DataFrame, rows: DataFrame) -> list[Chosen]:
    """Return ended jobs with the events that added them."""
    adds = events.where(events.kind.isin(*ADDING)).select("job", "writer", "epoch", "seq")
    keys: dict[str, list[Key]] = {}
    for job, *key in adds.join(rows.where(rows.outcome != DEAD).select("job"), "job", "left_semi").collect():
        keys.setdefault(job, []).append((key[0], key[1], key[2]))
    return [one if one.is_dead else one._replace(added=tuple(sorted(set(keys.get(one.job, ()))))) for one in jobs]


class Plans:
    """The plans of a lake: NAME.plan, a line of JSON for the question and one for each job; NAME.done, a line for each
    batch that was sent; and NAME.end in place of both, once all was."""

    def __init__(self, lake: str | Path) -> None:
        self._folder = Path(lake) / DIRECTORY

    def unfinished(self, question: Question) -> Plan | None:
        """Return the plan of this question that was begun and not ended."""
        for path in sorted(self._folder.glob(f"{question.digest}-*.plan")):
            if not path.with_suffix(".end").exists():
                return self._read(path)
        return None

    def is_ended(self, plan: Plan) -> bool:
        """Whether the plan was carried out."""
        return self._path(plan, ".end").exists()

    def write(self, plan: Plan) -> None:
        """Write a new plan, as a whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._path(plan, ".new")
        with new.open("w") as file:
            head = {"question": plan.question, "open": plan.open, "kept_out": plan.kept_out}
            file.write(json.dumps(head) + "\n")
            file.writelines(json.dumps(one) + "\n" for one in plan.jobs)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path(plan, ".plan"))

    def note(self, plan: Plan, jobs: Iterable[str]) -> None:
        """Note jobs that were sent."""
        done = list(jobs)
        with self._path(plan, ".done").open("a") as file:
            file.write(json.dumps(done) + "\n")
            file.flush()
            os.fsync(file.fileno())
        plan.done.update(done)

    def end(self, plan: Plan) -> None:
        """Note that all was done. What the plan said of jobs is deleted: `forget` shall find it nowhere."""
        self._path(plan, ".end").touch()
        for suffix in (".plan", ".done"):
            self._path(plan, suffix).unlink(missing_ok=True)

    def _path(self, plan: Plan, suffix: str) -> Path:
        return self._folder / f"{plan.name}{suffix}"

    def _read(self, path: Path) -> Plan:
        with path.open() as file:
            head = json.loads(next(file))
            rows = [json.loads(line) for line in file]
        jobs = [
            Chosen(job, queue, outcome, error, tuple((writer, epoch, seq) for writer, epoch, seq in added))
            for job, queue, outcome, error, added in rows
        ]
        plan = Plan(path.stem, Question(*head["question"]), jobs, head["open"], head["kept_out"])
        for line in _lines(path.with_suffix(".done")):
            plan.done.update(line)
        return plan


def _lines(path: Path) -> Iterator[list[str]]:
    """Yield whole lines: the last one may be cut off by a kill."""
    if not path.exists():
        return
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


# Sending.


@dataclass(slots=True)
class Sent:
    """What a run has done."""

    moved: int = 0  # dead letters
    pushed: int = 0  # ended jobs
    gone: list[str] = field(default_factory=list)  # no longer among the dead letters
    without_body: list[str] = field(default_factory=list)


def carry_out(
    plan: Plan,
    plans: Plans,
    store: Store,
    events: str | Path | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> Sent:
    """Send what is left of a plan; `events` is the directory of the segments, which has the bodies of ended jobs."""
    sent = Sent()
    left = plan.left
    dead = {one.job: one for one in left if one.is_dead}
    ended = [one for one in left if not one.is_dead]
    if dead:
        _send_dead(plan, plans, store, dead, sent, progress)
    if ended:
        _send_ended(plan, plans, store, ended, events, sent, progress)
    plans.end(plan)
    return sent


def key_of(plan: Plan, job: str) -> str:
    """Return the unique key of a job of a plan."""
    return f"redrive:{plan.name}:{job}"


def _send_dead(
    plan: Plan, plans: Plans, store: Store, left: dict[str, Chosen], sent: Sent, progress: Callable[[int], None]
) -> None:
    """Send dead letters, in one pass over them; those that `left` still has in the end are not there any more."""
    queue = store.dead_letters()
    page: list[str] = []

    def is_chosen(job: Job) -> bool:
        name = _id_of(job)
        if name not in left or job.state is JobState.RESERVED or _home(plan, job) in (None, queue.name):
            return False
        del left[name]
        page.append(name)
        return True

    def note(count: int) -> None:
        if page:
            plans.note(plan, page)
            page.clear()
            sent.moved += count
            progress(count)

    homes = {plan.question.to or one.queue for one in left.values()} - {None}
    if all(queue.moves_atomically(str(home)) for home in homes):
        queue.redrive(is_chosen, to=plan.question.to, moved=note)
    else:
        chosen = filter(is_chosen, queue.jobs())
        while batch := list(islice(chosen, BATCH)):
            _push_and_remove(plan, queue, batch)
            note(len(batch))
    sent.gone += left


def _id_of(job: Job) -> str:
    """Return the id that a dead letter had as a job."""
    return str(job.headers.get(JOB, job.id))


def _home(plan: Plan, job: Job) -> str | None:
    home = plan.question.to or job.headers.get(FROM_QUEUE)
    return str(home) if home else None


def _push_and_remove(plan: Plan, queue: Queue, jobs: list[Job]) -> None:
    store = queue.store
    by_home: dict[str, list[Push]] = {}
    for job in jobs:
        headers = {name: value for name, value in job.headers.items() if name not in HEADERS}
        by_home.setdefault(str(_home(plan, job)), []).append(_push(plan, _id_of(job), store, job.body, headers))
    for home, pushes in by_home.items():
        store.queue(home).push_many(pushes)
    queue.remove(*(job.id for job in jobs))


def _push(plan: Plan, job: str, store: Store, body: bytes, headers: Mapping[str, Any]) -> Push:
    is_unique = Capability.UNIQUE in store.capabilities
    return Push(
        _payload(body) if store.keeps_payloads else body,
        headers=headers if Capability.HEADERS in store.capabilities else None,
        unique=key_of(plan, job) if is_unique else None,
        unique_for=UNIQUE_FOR_S if is_unique else 0,
    )


def _payload(body: bytes) -> Any:
    """Return what a store of payloads keeps: the value, if the body can be made again from it; else the bytes."""
    payload = decode(body)
    try:
        return payload if encode(payload) == body else body
    except BadPayload:
        return body


def _send_ended(
    plan: Plan,
    plans: Plans,
    store: Store,
    jobs: list[Chosen],
    events: str | Path | None,
    sent: Sent,
    progress: Callable[[int], None],
) -> None:
    if events is None:
        sent.without_body += [one.job for one in jobs]
        return
    wanted = {key: one for one in jobs for key in one.added}
    waiting = {one.job for one in jobs}
    batch: list[tuple[Chosen, bytes]] = []
    for key, stored in bodies(events, wanted):
        one = wanted[key]
        if one.job in waiting:
            waiting.discard(one.job)
            batch.append((one, stored))
        if len(batch) == BATCH:
            _push_bodies(plan, plans, store, batch, sent, progress)
            batch = []
    if batch:
        _push_bodies(plan, plans, store, batch, sent, progress)
    sent.without_body += sorted(waiting)


def _push_bodies(
    plan: Plan,
    plans: Plans,
    store: Store,
    batch: list[tuple[Chosen, bytes]],
    sent: Sent,
    progress: Callable[[int], None],
) -> None:
    by_queue: dict[str, list[Push]] = {}
    for one, stored in batch:
        body, headers = unframe(stored)
        home = plan.question.to or one.queue
        if home is None:
            raise CallerError(f"the jobs must go somewhere, and job {one.job} came from no queue: give --to")
        by_queue.setdefault(home, []).append(_push(plan, one.job, store, body, headers))
    for home, pushes in by_queue.items():
        store.queue(home).push_many(pushes)
    plans.note(plan, [one.job for one, _ in batch])
    sent.pushed += len(batch)
    progress(len(batch))


def bodies(directory: str | Path, wanted: Iterable[Key]) -> Iterator[tuple[Key, bytes]]:
    """Yield the bodies of jobs, by the events that added them, as far as they were kept."""
    seqs: dict[tuple[str, int], set[int]] = {}
    for writer, epoch, seq in wanted:
        seqs.setdefault((writer, epoch), set()).add(seq)
    for file in list_segments(directory):
        of_epoch = seqs.get((file.writer, file.epoch))
        if not of_epoch:
            continue
        for seq, body in Segment(file.path).bodies():
            if seq in of_epoch:
                yield (file.writer, file.epoch, seq), body
