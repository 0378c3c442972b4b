"""Links of a pipeline on Spark: `Pipeline.run(engines={"spark": SparkEngine()})`, `penstock pipeline run`.

Each link is a streaming query (`link_stream`), and all queries of an engine share one session. Functions run in its
tasks, on the machines of a cluster if `master` names one: there, too, Penstock must be installed, and the store be
reached. Modules of functions that lie beside the recipe or in the current directory are sent along.

    SparkEngine   starts the session with the first link, and makes a query for each link
    LinkQuery     stands for a worker in a pipeline: runs until it is stopped, and counts

A query that fails, as when tasks die again and again, gives its jobs back and is started again.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it has no types
from pyspark.sql import functions as f

from penstock.errors import CallerError, OperatorError, PenstockError
from penstock.pipelines.engine import function_of
from penstock.pipelines.link import Link
from penstock.queues.aio import Store
from penstock.queues.blocking import connect
from penstock.queues.dead_letter import described
from penstock.queues.options import parse
from penstock.spark.errors import sentence_of
from penstock.spark.link_stream import COUNTS, ERROR, FORMAT, OPEN, SPEC, STARTED, STOP, STOPPED, LinkSource, LinkSpec
from penstock.spark.session import is_remote, local_session
from penstock.worker import Summary
from penstock.worker.reporting import Outage, log_event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_S = 0.1  # between two looks at a query
# Spark's own number on a cluster. On one machine it is 1: then a task whose Python dies would end its query.
TASK_TRIES = 4
METRIC = "link"
# Raised when Spark's Java is gone, as after a signal to the whole process group.
GONE = (OSError, Py4JError)
SETTINGS = {"spark.scheduler.mode": "FAIR"}  # the batches of all links go on at the same time
LOCAL_MASTER = f"local[*,{TASK_TRIES}]"


class SparkEngine:
    """Runs links on one Spark session, which it starts when it is needed.

    - `url`: the store, as tasks reach it; a password in it must be there, too.
    - `master`: `local[*]`, `spark://host:7077`, `yarn`, `k8s://...`.
    - `settings`: those of Spark.
    - `paths`: directories of modules with functions, which are sent to the machines of a cluster.
    """

    def __init__(
        self,
        url: str,
        *,
        master: str = LOCAL_MASTER,
        settings: Mapping[str, str] | None = None,
        paths: Sequence[str] = (),
    ) -> None:
        if parse(url, {})[0].scheme == "memory":
            raise CallerError(f"links on Spark need a store that processes can share, got {url}")
        if is_remote(master):
            raise CallerError(
                f"links on Spark must have their driver in this process, got the Spark Connect server {master}: use "
                "local[*], spark://host:7077, yarn or k8s://..."
            )
        self.url = url
        self.paths = tuple(dict.fromkeys([*paths, str(Path.cwd())]))
        self._master = f"{master[:-1]},{TASK_TRIES}]" if _is_plain_local(master) else master
        self._settings = {**SETTINGS, **(settings or {})}
        self._session: SparkSession | None = None
        self._lock = threading.Lock()
        # Spark gives a source's Python 10 seconds to start: on a busy machine not all should at the same time.
        self.starting = asyncio.Lock()
        self._sent: set[str] = set()

    def __call__(self, link: Link, store: Store, dead_letters: str | None, max_stuck: int | None) -> LinkQuery:
        """Return a run of a link. `store` and `max_stuck` are for workers: here each task opens the store itself."""
        return LinkQuery(self, link, dead_letters)

    def session(self) -> SparkSession:
        """Return the session; it is started by the first call."""
        with self._lock:
            if self._session is None:
                self._session = local_session("penstock pipeline", self._master, self._settings)
                self._session.dataSource.register(LinkSource)
            return self._session

    def send_module(self, link: Link) -> None:
        """Send the module of a link's function to the machines of a cluster, if it lies in one of `paths`."""
        if self._master.startswith("local"):
            return
        name = link.function.partition(":")[0] if isinstance(link.function, str) else link.function.__module__
        function_of(link)  # which imports it
        top = name.partition(".")[0]
        place = Path(getattr(sys.modules.get(top), "__file__", None) or "")
        is_package = place.name == "__init__.py"
        if is_package:
            place = place.parent
        if top == "__main__" or top in self._sent or str(place.parent) not in map(_resolved, self.paths):
            return
        self._sent.add(top)
        if is_package:
            place = Path(shutil.make_archive(f"{tempfile.mkdtemp(prefix='penstock-')}/{top}", "zip", place.parent, top))
        self.session().sparkContext.addPyFile(str(place))

    def close(self) -> None:
        """Stop Spark."""
        with self._lock:
            if self._session is not None:
                with suppress(*GONE):
                    self._session.stop()
                self._session = None


def _is_plain_local(master: str) -> bool:
    return master.startswith("local[") and master.endswith("]") and "," not in master


def _resolved(path: str) -> str:
    return str(Path(path).resolve())


class LinkQuery:
    """A link as a streaming query, in place of a worker."""

    is_stuck = False  # a function that doesn't end has its task replaced by Spark

    def __init__(self, engine: SparkEngine, link: Link, dead_letters: str | None) -> None:
        self._engine = engine
        self._link = link
        self._dead_letters = dead_letters
        self._summary = Summary()
        self._seen = -1  # the last batch that is counted
        self._stop_level = 0
        self._outage = Outage(f"The query of link {link.name!r}")

    @property
    def summary(self) -> Summary:
        """Return the counts so far."""
        return self._summary

    def stop(self) -> None:
        """Take no more jobs, let the batch that runs end, and end."""
        self.stop_at(1)

    def stop_at(self, level: int) -> None:
        """Stop: 1 waits for the batch that runs, 2 ends it: its jobs go back."""
        self._stop_level = max(self._stop_level, level)

    async def run(self) -> Summary:
        """Run batches until `stop` is called; return what was done."""
        began = monotonic()
        log_event("start", f"{self._link.name}: Working on {self._link.source} on Spark.", link=self._link.name)
        try:
            while not self._stop_level:
                problem = await self._run_query()
                if problem is None:
                    break
                await self._outage.wait_out(problem)
        finally:
            self._summary.seconds = monotonic() - began
        log_event(
            "stop", f"{self._link.name}: Stopped: {self._summary}.", link=self._link.name, **self._summary.counts()
        )
        return self._summary

    async def _run_query(self) -> PenstockError | None:
        """Run one query; return what it failed of, if that may pass."""
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="penstock-link-"))
        query: StreamingQuery | None = None
        self._seen = -1
        try:
            async with self._engine.starting:
                query = await asyncio.to_thread(self._start, folder)
                await self._until_started(query, folder)
            return await self._watch(query, folder)
        finally:
            # Also of a run that was cancelled.
            await _shielded(self._end, query, folder)

    def _start(self, folder: Path) -> StreamingQuery:
        session = self._engine.session()
        self._engine.send_module(self._link)
        tasks = max(1, session.sparkContext.defaultParallelism)
        spec = LinkSpec(self._link, self._engine.url, self._dead_letters, tasks, str(folder), self._engine.paths)
        rows = session.readStream.format(FORMAT).option(SPEC, spec.as_text()).load()
        counts = [f.sum(name).alias(name) for name in COUNTS]
        counted = rows.observe(METRIC, *counts, f.max(ERROR).alias(ERROR))
        writer = counted.writeStream.format("noop").queryName(f"link {self._link.name}")
        return writer.option("checkpointLocation", f"{folder.as_uri()}/checkpoint").start()

    async def _until_started(self, query: StreamingQuery, folder: Path) -> None:
        """Wait until the Python of the source runs, or the query has failed."""
        while not self._stop_level and not (folder / STARTED).exists():
            if not await asyncio.to_thread(lambda: query.isActive):
                return
            await asyncio.sleep(LOOK_S)

    async def _watch(self, query: StreamingQuery, folder: Path) -> PenstockError | None:
        while True:
            try:
                is_active = await asyncio.to_thread(self._look, query)
            except GONE as problem:
                if self._stop_level:
                    return None
                raise OperatorError(f"Spark's Java has ended: {described(problem)}") from problem
            if not is_active:
                return self._failure(query)
            if self._stop_level:
                (folder / STOP).touch()
            if self._stop_level > 1 or (folder / STOPPED).exists():
                await asyncio.to_thread(query.stop)
                await asyncio.to_thread(self._look, query)
                return None
            await asyncio.sleep(LOOK_S)

    def _look(self, query: StreamingQuery) -> bool:
        """Count the batches that have ended since the last look; return whether the query runs."""
        is_active = bool(query.isActive)
        for progress in query.recentProgress:
            row = progress.observedMetrics.get(METRIC)
            if progress.batchId > self._seen and row is not None and row["done"] is not None:
                self._seen = progress.batchId
                counts = row.asDict()
                error = counts.pop(ERROR)
                self._summary.add(counts)
                self._outage.recovered()
                if error is not None:
                    self._log_errors(counts, error)
        return is_active

    def _log_errors(self, counts: dict[str, int], error: str) -> None:
        again, failed = counts["retried"], counts["failed"]
        text = f"{self._link.name}: {again} jobs again later, {failed} to the dead letters; one of the errors: {error}"
        log_event(
            "failed" if failed else "retry", text, link=self._link.name, error=error, retried=again, failed=failed
        )

    def _failure(self, query: StreamingQuery) -> PenstockError | None:
        problem = query.exception()
        if problem is None:
            return None  # it was stopped by others
        known = sentence_of(str(problem))
        if isinstance(known, CallerError):
            raise known
        return known

    def _end(self, query: StreamingQuery | None, folder: Path) -> None:
        with suppress(*GONE):
            if query is not None and query.isActive:
                query.stop()
        self._give_back(folder)
        shutil.rmtree(folder, ignore_errors=True)

    def _give_back(self, folder: Path) -> None:
        """Return the jobs of a batch that did not end; else they would come back when their leases end."""
        try:
            keys: list[Any] = json.loads((folder / OPEN).read_text())
        except (OSError, ValueError):
            return
        try:
            with connect(self._engine.url) as store:
                for key in keys:
                    self._summary.returned += store.queue(self._link.source).nack_claim(key)
        except PenstockError as problem:
            text = f"The jobs of link {self._link.name} could not be returned, and come back when their leases end"
            log_event("trouble", f"{text}: {described(problem)}", link=self._link.name)


async def _shielded(call: Any, *args: Any) -> None:
    """Run a call in a thread to its end, even if this task is cancelled meanwhile."""
    task = asyncio.ensure_future(asyncio.to_thread(call, *args))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
