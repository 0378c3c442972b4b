"""Through Spark Connect everything goes as it does on one machine: the server has Penstock, and its client asks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

from penstock import blocking
from penstock.errors import CallerError, MissingExtra, OperatorError
from penstock.spark.drain import parquet_directory
from penstock.spark.session import local_session
from tests.processes import NodeProcess, free_port, need_module, wait_until
from tests.spark.parquet_rows import numbers_in
from tests.spark.spark_servers import ConnectServer, machine, run_program, with_penstock
from tests.spark.story import JOBS

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

STORY = str(Path(__file__).with_name("story.py"))


def need_packages() -> None:
    for name in ("grpc", "grpc_status", "google.rpc", "pandas", "zstandard"):
        need_module(name)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    need_packages()
    directory = tmp_path_factory.mktemp("connect")
    # The server's environment says in which Python sources, sinks and functions run.
    environment = {**with_penstock(machine(directory)), "PYSPARK_PYTHON": sys.executable}
    connect_server = ConnectServer(directory, environment)
    try:
        yield connect_server.start()
    finally:
        connect_server.stop()


def drain(url: str, directory: Path, master: str, *more: str) -> list[str]:
    return ["-m", "penstock", "spark", "drain", url, "jobs", "--to", f"parquet:{directory}", "--master", master, *more]


def test_a_program_writes_reads_and_streams_as_it_does_on_one_machine(
    server: ConnectServer, shared_node: NodeProcess, tmp_path: Path
) -> None:
    url = f"disque://{shared_node.host}:{shared_node.port}"
    done = run_program([STORY, server.url, url, f"{tmp_path}/out"], server.environment, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {"states": {"ready": JOBS}, "batches": [0, 1], "jobs": list(range(JOBS))}
    with blocking.connect(url) as store:
        assert store.queue("story").total() == 0


def test_a_drain_takes_each_job_once_and_another_goes_on_after_its_client_was_killed(
    server: ConnectServer, node: NodeProcess, tmp_path: Path
) -> None:
    url = f"disque://{node.host}:{node.port}"
    out = tmp_path / "out"
    with blocking.connect(url) as store:
        queue = store.queue("jobs")
        queue.push_many({"n": number} for number in range(500))
        words = [sys.executable, *drain(url, out, server.url, "--batch", "100", "--follow")]
        client = subprocess.Popen(words, env=server.environment, cwd=tmp_path)
        try:
            wait_until(lambda: list(out.glob("batch=1/*.parquet")), 120.0)
        finally:
            client.kill()
            client.wait()
        queue.push_many({"n": number} for number in range(500, 700))
        # The server still runs the query of the first; its second start stops it and goes on from its log.
        done = run_program(drain(url, out, server.url, "--batch", "100"), server.environment, tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        assert queue.total() == 0
    assert numbers_in(out) == list(range(700))


def test_a_fill_counts_its_rows(server: ConnectServer, node: NodeProcess, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    url = f"disque://{node.host}:{node.port}"
    pyarrow.parquet.write_table(pa.table({"n": list(range(30))}), tmp_path / "rows.parquet")
    words = ["-m", "penstock", "spark", "fill", url, "jobs", "--from", f"parquet:{tmp_path}/rows.parquet"]
    done = run_program([*words, "--master", server.url], server.environment, tmp_path)
    assert (done.returncode, done.stdout) == (0, "30\n"), done.stderr[-3000:]
    with blocking.connect(url) as store:
        assert sorted(job.payload["n"] for job in store.queue("jobs").peek(100)) == list(range(30))


def test_a_server_that_is_not_there_is_noticed_at_once() -> None:
    need_packages()
    port = free_port()
    with pytest.raises(OperatorError, match=f"can't reach a Spark Connect server at 127.0.0.1:{port}"):
        local_session(master=f"sc://127.0.0.1:{port}")


def test_an_address_that_is_none_is_refused() -> None:
    need_packages()
    with pytest.raises(CallerError, match="must be sc://HOST:PORT"):
        local_session(master="sc://localhost:no")


def test_without_the_packages_of_connect_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.connect.session", None)
    with pytest.raises(MissingExtra, match=r"penstock\[connect\]"):
        local_session(master="sc://localhost")


def test_a_directory_of_the_server_has_a_whole_path() -> None:
    assert parquet_directory("parquet:/out", is_remote=True) == "/out"
    assert parquet_directory("parquet:s3a://bucket/out", is_remote=True) == "s3a://bucket/out"
    with pytest.raises(CallerError, match="must be an absolute path"):
        parquet_directory("parquet:out", is_remote=True)
