"""kill -9 of a whole drain, Java and all, again and again: each job is in the Parquet files once, and none is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

from penstock import blocking
from tests.conftest import StartNode
from tests.processes import wait_until
from tests.spark.parquet_rows import numbers_in

JOBS, BATCH = 20_000, 1_000
KILLS = 10 if os.environ.get("PENSTOCK_LONG") else 3
# Of a batch that takes half a second or so: the moment of a kill falls anywhere in it.
MOMENT_S_MAX = 0.7
LEASE_S = 10
PATIENCE_S = 600.0
SEED = 7

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]


@pytest.fixture(params=["disque", "sqlite"])
def url(request: pytest.FixtureRequest, start_node: StartNode, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    node = start_node()
    return f"disque://{node.host}:{node.port}"


class Drain:
    """`penstock spark drain` as a person starts it, in a process group of its own."""

    def __init__(self, url: str, directory: Path, log: Path) -> None:
        self.directory = directory
        root = Path(__file__).resolve().parents[2] / "src"
        words = [sys.executable, "-m", "penstock", "spark", "drain", url, "jobs", "--to", f"parquet:{directory}"]
        words += ["--batch", str(BATCH), "--lease", str(LEASE_S), "--master", "local[2]", "--spark-log"]
        words += ["--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"]
        paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONPATH": paths},
                start_new_session=True,
            )

    def batches(self) -> int:
        """How many have been put out, or begun."""
        assert self.process.poll() is None, f"it ended too early:\n{self.log.read_text()[-5000:]}"
        return len(list(self.directory.glob("batch=*/*.parquet")))

    def kill(self) -> None:
        """All of it, Spark's Java included. Spark's Python workers end when that is gone."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self) -> None:
        assert self.process.wait(PATIENCE_S) == 0, self.log.read_text()[-5000:]


@pytest.fixture
def drains(tmp_path: Path, url: str) -> Iterator[list[Drain]]:
    started: list[Drain] = []
    yield started
    for drain in started:
        if drain.process.poll() is None:
            drain.kill()


def test_a_drain_that_is_killed_goes_on_where_it_was(url: str, drains: list[Drain], tmp_path: Path) -> None:
    chance = random.Random(SEED)
    directory = tmp_path / "out"

    def start() -> Drain:
        drains.append(Drain(url, directory, tmp_path / "log"))
        return drains[-1]

    with blocking.connect(url) as store:
        queue = store.queue("jobs")
        queue.push_many({"n": number} for number in range(JOBS))
        # Spread over the run: none before the first batch is out, and some are left after the last one.
        goals = sorted(chance.sample(range(1, JOBS // BATCH - 2), KILLS))
        for goal in goals:
            drain = start()
            wait_until(lambda drain=drain, goal=goal: drain.batches() >= goal, PATIENCE_S)
            time.sleep(chance.uniform(0, MOMENT_S_MAX))
            drain.kill()
        assert queue.total() > 0
        start().finish()
        if queue.total():
            # On the broker, jobs of a claim that was never written down come back when their leases are over.
            wait_until(lambda: not queue.reserved(), PATIENCE_S, every=0.1)
            start().finish()
        assert queue.total() == 0
    found = Counter(numbers_in(directory))
    assert [number for number, times in found.items() if times > 1] == []
    assert len(found) == JOBS
