"""On a standalone Spark cluster, a master and two workers, everything goes as it does on one machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

from penstock import blocking
from penstock.spark import session
from tests.processes import NodeProcess
from tests.servers import RedisServer
from tests.spark.parquet_rows import numbers_in
from tests.spark.spark_servers import StandaloneCluster, pack_environment, run_program, with_penstock
from tests.spark.story import JOBS

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

STORY = str(Path(__file__).with_name("story.py"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    spark_cluster = StandaloneCluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield spark_cluster.start()
    finally:
        spark_cluster.stop()


def test_a_drain_takes_each_job_once_with_executors_of_both_workers_in_a_packed_python(
    cluster: StandaloneCluster, node: NodeProcess, tmp_path: Path
) -> None:
    url = f"disque://{node.host}:{node.port}"
    calls = tmp_path / "calls"
    archive = pack_environment(tmp_path, calls)
    with blocking.connect(url) as store:
        queue = store.queue("jobs")
        # Two batches, of two partitions each.
        queue.push_many({"n": number} for number in range(12_000))
        words = ["-m", "penstock", "spark", "drain", url, "jobs", "--to", f"parquet:{tmp_path}/out", "--batch", "6000"]
        packed = [f"spark.archives={archive}#environment", "spark.pyspark.python=./environment/bin/python"]
        settings = [word for setting in packed for word in ("--conf", setting)]
        done = run_program([*words, "--master", cluster.url, *settings], with_penstock(cluster.environment), tmp_path)
        assert (done.returncode, done.stdout) == (0, "12000\n"), done.stderr[-3000:]
        assert queue.total() == 0
    assert numbers_in(tmp_path / "out") == list(range(12_000))
    started_in = calls.read_text().splitlines()
    for worker in cluster.workers:
        assert any(place.startswith(str(worker.directory)) for place in started_in), f"no Python in {worker.directory}"


def test_a_program_writes_reads_and_streams_as_it_does_on_one_machine(
    cluster: StandaloneCluster, redis_server: RedisServer, tmp_path: Path
) -> None:
    url = redis_server.url.replace("redis:", "redis+oq:")
    environment = with_penstock(cluster.environment)
    done = run_program([STORY, cluster.url, url, f"{tmp_path}/out"], environment, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {"states": {"ready": JOBS}, "batches": [0, 1], "jobs": list(range(JOBS))}
    with blocking.connect(url) as store:
        assert store.queue("story").total() == 0


@pytest.mark.parametrize(
    ("environment", "settings", "python"),
    [
        ({}, {}, sys.executable),
        ({"PYSPARK_PYTHON": "python3"}, {}, "python3"),
        ({"PYSPARK_PYTHON": "python3"}, {"spark.pyspark.python": "./packed/python"}, "./packed/python"),
    ],
)
def test_the_python_of_sources_and_sinks_is_named_where_spark_looks(
    environment: dict[str, str], settings: dict[str, str], python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", environment)
    session._set_python(settings)
    assert environment["PYSPARK_PYTHON"] == python
