"""Drives the query of a link as Spark does, without Spark: the same calls in the same order.

A task runs here, or in a process of its own that may die in it: then it is tried again, as Spark does.

    python -m tests.spark.link_driver STREAM PARTITION ATTEMPT    the process of a task
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.pipelines import Link
from penstock.spark.link_stream import COUNTS, ERROR, STOP, STOPPED, LinkSpec, LinkStream

TASK_TRIES = 4  # Spark's own limit
ROOT = Path(__file__).resolve().parents[2]


class LinkQueryByHand:
    """One run of a query."""

    def __init__(self, link: Link, url: str, *, tasks: int = 2, dead_letters: str | None = None) -> None:
        self.control = Path(tempfile.mkdtemp(prefix="penstock-link-"))
        self.stream = LinkStream(LinkSpec(link, url, dead_letters, tasks, str(self.control), ()).as_text())
        self.offset = self.stream.initialOffset()
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.deaths = 0

    def plan(self) -> list[InputPartition]:
        """Plan a batch: its tasks; none if there are no jobs to take."""
        end = self.stream.latestOffset(self.offset, ReadAllAvailable())
        parts = self.stream.partitions(self.offset, end)
        self.offset = json.loads(json.dumps(end))
        return parts

    def run(self) -> None:
        """Run batches until one has no jobs."""
        while parts := self.plan():
            for part in parts:
                self.run_task(part)

    def run_task(self, part: InputPartition) -> None:
        """Run a task here."""
        worker: LinkStream = pickle.loads(pickle.dumps(self.stream))  # noqa: S301 - as Spark does it
        for batch in worker.read(part):
            self._note(batch.to_pylist()[0])

    def run_task_apart(self, part: InputPartition) -> None:
        """Run a task in a process of its own, again while that dies."""
        sent, place = self.control / "task", self.control / "part"
        sent.write_bytes(pickle.dumps(self.stream))
        place.write_bytes(pickle.dumps(part))
        for attempt in range(TASK_TRIES):
            words = ["-m", "tests.spark.link_driver", str(sent), str(place), str(attempt)]
            done = subprocess.run(
                [sys.executable, *words],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                self._note(json.loads(done.stdout))
                return
            assert done.returncode < 0, done.stderr
            self.deaths += 1
        raise AssertionError("the task failed too often")

    def _note(self, row: dict[str, Any]) -> None:
        self.counts.update({name: row[name] for name in COUNTS})
        if row[ERROR] is not None:
            self.errors.append(row[ERROR])

    def stop_taking(self) -> None:
        """Say that no more jobs are to be taken."""
        (self.control / STOP).touch()

    @property
    def has_stopped(self) -> bool:
        """Whether the query says that it takes no more."""
        return (self.control / STOPPED).exists()


@contextmanager
def query_of(link: Link, url: str, **how: Any) -> Iterator[LinkQueryByHand]:
    """A query, and its end."""
    query = LinkQueryByHand(link, url, **how)
    try:
        yield query
    finally:
        query.stream.stop()


def main(sent: str, place: str, attempt: str) -> None:
    """Run a task, as the Python of one does."""
    TaskContext._setTaskContext(TaskContext(attemptNumber=int(attempt)))
    stream: LinkStream = pickle.loads(Path(sent).read_bytes())  # noqa: S301 - written by the test
    part: InputPartition = pickle.loads(Path(place).read_bytes())  # noqa: S301 - written by the test
    (batch,) = stream.read(part)
    sys.stdout.write(json.dumps(batch.to_pylist()[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
