"""`penstock pipeline run` with links on Spark, as real processes.

The recipe is mixed: five links, two of them on Spark. Drivers, the Python of tasks and servers are killed, and what
Spark has logged is thrown away while they run: the truth is in the queues.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

from penstock import blocking
from tests.processes import ServerProcess, wait_until
from tests.server_fixtures import StartRedis, killable_store, store_url
from tests.spark.spark_servers import ROOT, StandaloneCluster, with_penstock

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1800)]

IS_LONG = os.environ.get("PENSTOCK_LONG") == "1"
JOBS = 10_000 if IS_LONG else 1_000
KILLS = 5 if IS_LONG else 1
END_S = 900.0
JAVA = ["--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"]
FAST = [*JAVA, "--conf", "spark.sql.codegen.wholeStage=false", "--conf", "spark.sql.codegen.factoryMode=NO_CODEGEN"]

STEPS = """
import os, pathlib
from penstock.pipelines import DROP, Move

def passed(payload, name):
    return {"n": payload["n"], "passed": [*payload["passed"], name], "ran": [*payload["ran"], os.getcwd()]}

def one(payload):
    return DROP if payload["n"] < 0 else passed(payload, "one")

async def two(job):
    return Move(to=job.payload["n"] % 2, payload=passed(job.payload, "two"))

def three(table):
    rows = table.to_pylist()
    return [passed(row, "three") for row in rows]

def four(payload):
    return passed(payload, "four")

async def five(payload):
    return passed(payload, "five")
"""


def write_recipe(folder: Path, url: str, prefix: str) -> None:
    """Five links: Spark, a worker that chooses, Spark with an Arrow table on one of the two queues, and two workers."""
    (folder / "steps.py").write_text(STEPS)
    (folder / "recipe.toml").write_text(f"""
store = "{url}"

[links.one]
from = "{prefix}in"
to = "{prefix}a"
function = "steps:one"
takes = "payload"
engine = "spark"
lease = 5

[links.two]
from = "{prefix}a"
to = ["{prefix}b", "{prefix}c"]
function = "steps:two"
lease = 5

[links.three]
from = "{prefix}b"
to = "{prefix}c"
function = "steps:three"
takes = "arrow"
engine = "spark"
lease = 5

[links.four]
from = "{prefix}c"
to = "{prefix}d"
function = "steps:four"
takes = "payload"
lease = 5

[links.five]
from = "{prefix}d"
to = "{prefix}out"
function = "steps:five"
takes = "payload"
lease = 5
""")


@contextmanager
def running(
    folder: Path, *options: str, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A run of the recipe, in a group of its own, which is ended as a whole."""
    (folder / "tmp").mkdir(exist_ok=True)
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "pipeline", "run", "recipe.toml", *FAST, *options],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(folder / "tmp"), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # Its leader has not been waited for, so that the group's id is still its own.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def logged(folder: Path) -> str:
    return (folder / "log").read_text()[-3000:]


def kill_a_task(leader: int) -> bool:
    """Kill a Python process of Spark's, of the session that a process leads; return whether there was one."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError):
                session = (entry / "stat").read_text().rpartition(")")[2].split()[3]
                words = (entry / "cmdline").read_text().split("\0")
                if session == str(leader) and "pyspark.daemon" in words and words[-2] == "pyspark.worker":
                    os.kill(int(entry.name), signal.SIGKILL)
                    return True
    return False


@pytest.fixture(params=["sqlite", *(["redis+oq", "postgresql", "mongodb", "mongodb+pl", "disque"] if IS_LONG else [])])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ServerProcess | None, str]:
    """The server of a store, if it has one, and the URL."""
    if request.param == "sqlite":
        return None, store_url(request, tmp_path, "poll=0.1&sync=off")
    return killable_store(request, request.param)


def test_each_job_passes_each_link_once_though_drivers_and_servers_are_killed_and_logs_are_lost(
    place: tuple[ServerProcess | None, str], tmp_path: Path
) -> None:
    server, url = place
    prefix = f"{os.urandom(4).hex()}-"
    folder = tmp_path / "pipeline"
    folder.mkdir()
    write_recipe(folder, url, prefix)
    with blocking.connect(url) as store:
        source, target = store.queue(f"{prefix}in"), store.queue(f"{prefix}out")
        source.push_many({"n": n, "passed": [], "ran": []} for n in range(JOBS))
        for kill in range(KILLS):
            enough = JOBS * (kill + 1) // (KILLS + 3)
            with running(folder, "--master", "local[2]") as process:
                wait_until(lambda: target.total() >= enough or process.poll() is not None, END_S)  # noqa: B023 - used at once
                assert process.poll() is None, logged(folder)
        shutil.rmtree(folder / "tmp")
        with running(folder, "--master", "local[2]", "--until-empty") as process:
            wait_until(lambda: list((folder / "tmp").glob("penstock-link-*/checkpoint/commits/0")), END_S)
            kill_a_task(process.pid)
            if server is not None:
                server.kill_hard()
                server.start()
            for log in (folder / "tmp").glob("penstock-link-*/checkpoint"):
                shutil.rmtree(log, ignore_errors=True)
            assert process.wait(END_S) == 0, logged(folder)
        jobs = [job.payload for job in target.jobs()]
        assert store.dead_letters().total() == 0
        is_exact = source.moves_atomically(f"{prefix}a")
    times = Counter(job["n"] for job in jobs)
    assert set(times) == set(range(JOBS)), "a job was lost"
    assert times.total() == JOBS or not is_exact
    end = ("four", "five")
    assert {tuple(job["passed"]) for job in jobs} == {("one", "two", *end), ("one", "two", "three", *end)}


def change_recipe(folder: Path, old: str, new: str) -> None:
    """Write a recipe as an editor does: beside the old one, and renamed over it."""
    recipe, draft = folder / "recipe.toml", folder / "draft"
    draft.write_text(recipe.read_text().replace(old, new))
    draft.rename(recipe)


def test_links_on_spark_are_paused_resumed_and_stopped_without_a_lost_job_or_a_try(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db?poll=0.1&sync=off"
    write_recipe(tmp_path, url, "")
    count = 50_000
    with blocking.connect(url) as store:
        store.queue("in").push_many({"n": n, "passed": [], "ran": []} for n in range(count))

        def all_jobs() -> int:
            return sum(store.queue(name).total() for name in ("in", "a", "b", "c", "d", "out"))

        def wait_for_log(*texts: str) -> None:
            wait_until(
                lambda: process.poll() is not None or all(text in (tmp_path / "log").read_text() for text in texts),
                END_S,
            )
            assert process.poll() is None, logged(tmp_path)

        with running(tmp_path, "--engine", "spark", "--master", "local[2]") as process:
            wait_until(lambda: store.queue("out").total() or process.poll() is not None, END_S)
            five = 'function = "steps:five"\n'
            change_recipe(tmp_path, five, f"{five}paused = true\n")
            wait_for_log("Link five is paused.", "five: Stopped: ")
            arrived = store.queue("out").total()
            change_recipe(tmp_path, f"{five}paused = true\n", five)
            wait_until(lambda: store.queue("out").total() > arrived or process.poll() is not None, END_S)
            process.send_signal(signal.SIGTERM)
            assert process.wait(END_S) == 0, logged(tmp_path)
        jobs = [job for name in ("in", "a", "b", "c", "d") for job in store.queue(name).jobs()]
        assert jobs
        assert {(str(job.state), job.tries) for job in jobs} == {("ready", 0)}
        assert all_jobs() == count
        assert not list((tmp_path / "tmp").glob("penstock-link-*"))


def test_both_workers_of_a_cluster_do_each_job_once_though_driver_tasks_and_server_are_killed(
    start_redis: StartRedis, tmp_path: Path
) -> None:
    redis = start_redis()
    url = f"redis+oq://{redis.host}:{redis.port}/0"
    write_recipe(tmp_path, url, "")
    cluster = StandaloneCluster(Path(tempfile.mkdtemp(dir=tmp_path)))
    try:
        cluster.start()
        environment = with_penstock(cluster.environment)
        with blocking.connect(url) as store:
            source, target = store.queue("in"), store.queue("out")
            source.push_many({"n": n, "passed": [], "ran": []} for n in range(-10, JOBS))
            with running(tmp_path, "--master", cluster.url, environment=environment) as process:
                wait_until(lambda: target.total() >= JOBS // 5 or process.poll() is not None, END_S)
                assert process.poll() is None, logged(tmp_path)
            with running(tmp_path, "--master", cluster.url, "--until-empty", environment=environment) as process:
                for worker in cluster.workers:
                    assert worker.process is not None
                    session = worker.process.pid
                    wait_until(lambda: kill_a_task(session) or process.poll() is not None, END_S)  # noqa: B023 - used at once
                redis.kill_hard()
                assert process.poll() is None, logged(tmp_path)
                redis.start()
                assert process.wait(END_S) == 0, logged(tmp_path)
            jobs = [job.payload for job in target.jobs()]
            assert store.dead_letters().total() == 0
    finally:
        cluster.stop()
    assert sorted(job["n"] for job in jobs) == list(range(JOBS))
    places = {place for job in jobs for place in job["ran"]}
    for worker in cluster.workers:
        assert any(place.startswith(str(worker.directory)) for place in places), (
            f"no function ran in {worker.directory}"
        )
