"""The streaming query of a link: a batch is some claims, and each of its tasks runs the jobs of one, as a worker would.

    latestOffset(start)   ends the claims of the batch before, and claims jobs for the next one, unread
    read(partition)       runs the jobs of a claim, and settles each by itself; yields how many were done, and so on

What becomes of a job is decided and sent to the store by a `Worker` in the task: it is the same code on both engines.
Spark's log decides nothing. A task that is run again finds under its claim what has not gone yet, so that a checkpoint
is only for the time of one run of the query, and a query that died leaves nothing but leases, which end.

While a batch runs, the driver extends its leases (`lease_keeper`). A task begins jobs for TASK_S; others go back as
they were, and batches are sized so that this is rare. A task whose Python died is tried again by Spark, and then runs
its jobs one after the other: the one that kills its process is found, and charged with a try.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from penstock.pipelines.engine import worker_of
from penstock.pipelines.link import Link
from penstock.queues.aio import Job, Store, connect
from penstock.queues.dead_letter import described
from penstock.spark.claims import ClaimedBatches, Offset, claim_keys, open_batches
from penstock.spark.errors import retry_while_unreachable, without_traceback
from penstock.spark.settings import EXECUTORS, JOBS_PER_TRIGGER, LEASE_S, PARTITION_JOBS, QuerySettings
from penstock.worker import Summary
from penstock.worker.logs import RateLimit, TextFormatter

FORMAT = "penstock_link"
SPEC = "spec"  # the option that holds all others
COUNTS = tuple(Summary().counts())
ERROR = "error"  # of one of the jobs that failed
TASK_S = 10.0  # in which a task begins jobs
WAIT_S = 0.5  # that one call waits for a job
ROOM_PAUSE_S = 0.1  # between two looks at targets that are full
OPEN, STARTED, STOP, STOPPED = (
    "open",
    "started",
    "stop",
    "stopped",
)  # files by which the query and its driver speak to each other


@dataclass(frozen=True)
class LinkSpec:
    """What a query and its tasks must know of a link."""

    link: Link
    url: str
    dead_letters: str | None
    tasks: int  # that can run at the same time
    control: str  # a directory of the driver, for the files above
    paths: tuple[str, ...]  # where modules of functions are found, beside Python's own paths

    def as_text(self) -> str:
        """Return the spec as an option of Spark."""
        return base64.b64encode(cloudpickle.dumps(self)).decode()  # type: ignore[no-untyped-call] # it has no types

    @classmethod
    def of_text(cls, text: str) -> LinkSpec:
        """Return the spec in an option."""
        spec = cloudpickle.loads(base64.b64decode(text))
        assert isinstance(spec, cls)
        return spec

    @property
    def lease_s(self) -> float:
        """Seconds after which jobs come back if the driver dies."""
        return self.link.lease or LEASE_S


class LinkSource(DataSource):
    """The data source of a link's query."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ", ".join([*(f"{name} long" for name in COUNTS), f"{ERROR} string"])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return LinkStream(self.options[SPEC])


@without_traceback
class LinkStream(DataSourceStreamReader):
    """The reader of the query. It is made in several processes: connections are opened when they are needed."""

    def __init__(self, spec: str) -> None:
        self._text = spec  # unpickled where it is needed: the driver's process may not find the function's module
        self._batches: ClaimedBatches | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return a copy without connections, for workers."""
        return {**self.__dict__, "_batches": None}

    @property
    def _spec(self) -> LinkSpec:
        return _spec_of(self._text)

    @property
    def batches(self) -> ClaimedBatches:
        """Return what holds the jobs of new batches."""
        if self._batches is None:
            spec = self._spec
            settings = QuerySettings(
                url=spec.url,
                queue=spec.link.source,
                jobs_max=JOBS_PER_TRIGGER,
                lease_s=spec.lease_s,
                partition_jobs=PARTITION_JOBS,
                fetch=EXECUTORS,
                settling_tasks=spec.tasks,
            )
            batches = open_batches(settings)
            assert isinstance(batches, ClaimedBatches), "the link was checked to be on a store with claims"
            self._batches = batches
        return self._batches

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return {"run": uuid.uuid4().hex, "seq": 0}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        batches, control = self.batches, Path(self._spec.control)
        if not start["seq"]:
            _write(control / STARTED, "")
        batches.finish(start)
        until = time.monotonic() + WAIT_S
        while not (control / STOP).exists():
            room = self._room()
            if room <= 0:
                time.sleep(ROOM_PAUSE_S)
            elif batches.backlog.wait(max(0.0, min(ROOM_PAUSE_S, until - time.monotonic()))):
                end: Offset = {"run": start["run"], "seq": start["seq"] + 1}
                ready = batches.backlog.poll()
                count = batches.begin(end, min(room, ready)) if ready else 0
                batches.backlog.took(count)
                if count:
                    _write(control / OPEN, json.dumps(claim_keys(end)))
                    return end
            if time.monotonic() >= until:
                return start
        _write(control / STOPPED, "")
        return start

    def _room(self) -> int:
        """Return how many jobs may be taken, so that no target has more than `max_waiting`. None is in hand now."""
        link = self._spec.link
        if link.max_waiting is None or not link.targets:
            return JOBS_PER_TRIGGER
        store = self.batches.store
        sizes = [retry_while_unreachable(store.queue(name).size) for name in link.targets]
        return min(JOBS_PER_TRIGGER, link.max_waiting - max(sizes))

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        if end["seq"] == start["seq"]:
            return []
        return [InputPartition(key) for (key,) in self.batches.unread(end) or []]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        summary, error = run_claim(self._spec, partition.value)
        columns = {name: pa.array([count], pa.int64()) for name, count in summary.counts().items()}
        yield pa.RecordBatch.from_pydict({**columns, ERROR: pa.array([error], pa.string())})

    def commit(self, end: Offset) -> None:
        """Do nothing: the jobs are settled already."""

    def stop(self) -> None:
        if self._batches is not None:
            self._batches.close()


def _write(file: Path, text: str) -> None:
    fresh = file.with_name(f".{file.name}")
    fresh.write_text(text)
    fresh.replace(file)


# In the Python of a task, which runs one task after the other.

_specs: dict[str, LinkSpec] = {}  # the last one that was used
_stores: dict[str, Store] = {}  # by URL; they stay open


@cache
def _loop() -> asyncio.Runner:
    """Return the one loop of all tasks, as functions may keep connections."""
    return asyncio.Runner()


def _spec_of(text: str) -> LinkSpec:
    if text not in _specs:
        _specs.clear()
        _specs[text] = LinkSpec.of_text(text)
    return _specs[text]


def run_claim(spec: LinkSpec, key: str) -> tuple[Summary, str | None]:
    """Run the jobs of a claim, in a task; return the counts, and one of the errors."""
    _set_up_log()
    for path in spec.paths:
        if path not in sys.path and Path(path).is_dir():
            sys.path.insert(0, path)
    task = TaskContext.get()
    attempt = 0 if task is None else task.attemptNumber()
    return _loop().run(_run_claim(spec, key, attempt))


def _set_up_log() -> None:
    """Log what becomes of jobs to the standard error of the task's machine, unless its Python has a log."""
    log = logging.getLogger("penstock.worker")
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(TextFormatter(colours=False, traces=False))
        handler.addFilter(RateLimit())
        log.addHandler(handler)


async def _run_claim(spec: LinkSpec, key: str, attempt: int) -> tuple[Summary, str | None]:
    store = _stores.get(spec.url)
    if store is None:
        store = _stores[spec.url] = connect(spec.url, lease=spec.lease_s)
    errors: list[str] = []

    def note(job: Job, problem: BaseException) -> None:
        errors[:] = [described(problem)]

    worker = worker_of(spec.link, store, spec.dead_letters, None, note)
    summary = await worker.run_claim(key, seconds=TASK_S, attempt=attempt)
    return summary, errors[0] if errors else None
