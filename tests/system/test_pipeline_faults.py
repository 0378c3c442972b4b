"""Exactly-once steps: jobs go through five links while processes of the pipeline, or its server, are killed at random.

Where a move is atomic, or repeated under a unique key, each job arrives once, and each link has changed it once. Where
it is neither, none is lost, and a job that arrives twice is one whose process died between the two steps of its move.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock import blocking
from penstock.errors import PenstockError
from tests.processes import ServerProcess, wait_until
from tests.server_fixtures import killable_store, store_url

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(2400)]

SOURCE = Path(__file__).resolve().parents[2] / "src"
IS_LONG = os.environ.get("PENSTOCK_LONG") == "1"
LONGER = 10 if IS_LONG else 1
# Files take long to make on some machines, and MongoDB transactions. 1,000 elsewhere.
JOBS = {"fsq": 400, "mongodb": 400}
KILLS = 40 if IS_LONG else 6
SERVER_JOBS = 10_000 if IS_LONG else 600
SERVER_KILLS = 10 if IS_LONG else 2
PROCESSES = 2
END_S = 1200.0 if IS_LONG else 120.0
LINKS = ("one", "two", "three", "four", "five")

STEPS = """
import asyncio, random, time
from penstock.pipelines import Move

def passed(payload, name):
    return {"n": payload["n"], "passed": [*payload["passed"], name]}

async def one(payload):
    await asyncio.sleep(random.random() / 50)
    return passed(payload, "one")

def two(payload):
    time.sleep(random.random() / 200)
    return passed(payload, "two")

def three(payload):
    return Move(to=payload["n"] % 2, payload=passed(payload, "three"), headers={"by": "three"})

async def four(payload):
    return Move(payload=passed(payload, "four"), delay=0.01)

async def five(job):
    return passed(job.payload, "five")
"""


def recipe(url: str, prefix: str) -> str:
    """Five links; the third chooses between two queues, which the fourth and its twin read."""

    def row(name: str, function: str, source: str, targets: list[str], takes: str = "payload") -> str:
        lines = [
            f"[links.{name}]",
            f'from = "{prefix}-{source}"',
            f"to = {json.dumps([f'{prefix}-{target}' for target in targets])}",
            f'function = "steps:{function}"',
            f'takes = "{takes}"',
            "lease = 1.5",
            "concurrency = 8",
        ]
        return "\n".join(lines)

    rows = [
        row("one", "one", "in", ["a"]),
        row("two", "two", "a", ["b"]),
        row("three", "three", "b", ["even", "odd"]),
        row("four", "four", "even", ["c"]),
        row("four-odd", "four", "odd", ["c"]),
        row("five", "five", "c", ["out"], "job"),
    ]
    return "\n\n".join([f'store = "{url}"\ndead_letters = "{prefix}-dead"', *rows])


@pytest.fixture(params=["sqlite", "redis+oq", "postgresql", "mongodb", "mongodb+pl", "fsq", "disque"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "mongodb":
        return killable_store(request, "mongodb")[1]
    return store_url(request, tmp_path, "poll=0.05&sync=off")


@pytest.fixture(params=["redis+oq", "mongodb+pl", *(["postgresql", "mongodb", "disque"] if IS_LONG else [])])
def server(request: pytest.FixtureRequest) -> tuple[ServerProcess, str]:
    return killable_store(request, request.param)


@contextmanager
def running(folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "pipeline", "run", "recipe.toml", "--json", *options],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.terminate()
            process.kill()
        process.wait()


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def has_started(folder: Path) -> bool:
    return '"event": "start"' in (folder / "log").read_text()


def test_each_job_passes_each_link_once_though_processes_are_killed(
    url: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    count = LONGER * JOBS.get(url.partition(":")[0], 1000)
    chance = random.Random(count)
    folder, prefix = tmp_path / "pipeline", f"p{os.getpid()}x{chance.randrange(10**6)}{url[:3]}"
    folder.mkdir()
    (folder / "steps.py").write_text(STEPS)
    (folder / "recipe.toml").write_text(recipe(url, prefix))
    with blocking.connect(url) as store:
        store.queue(f"{prefix}-in").push_many([{"n": n, "passed": []} for n in range(count)])
        is_exact = store.queue(f"{prefix}-in").moves_atomically(f"{prefix}-a") or url.startswith("fsq")

        def arrived() -> int:
            return store.queue(f"{prefix}-out").total()

        killed = 0
        with running(folder, "--until-empty", "--processes", str(PROCESSES)) as process:
            wait_until(lambda: has_started(folder) or process.poll() is not None, END_S)
            while killed < KILLS and arrived() < count and process.poll() is None:
                # The next one when a part of the rest has arrived, so that kills are spread over the whole run.
                enough = arrived() + (count - arrived()) // (2 * (KILLS - killed))
                wait_until(lambda: arrived() >= min(enough, count) or process.poll() is not None, END_S)  # noqa: B023 - used at once
                pids = children(process.pid)
                if pids:
                    os.kill(chance.choice(pids), signal.SIGKILL)
                    killed += 1
            assert process.wait(END_S) == 0, (folder / "log").read_text()[-3000:]
        assert killed >= KILLS // 2, (folder / "log").read_text()[-3000:]
        jobs = [job.payload for job in store.queue(f"{prefix}-out").jobs()]
        dead = store.queue(f"{prefix}-dead").total()
    times = Counter(job["n"] for job in jobs)
    doubles = len(jobs) - len(times)
    record_property("killed", killed)
    record_property("doubles", doubles)
    assert dead == 0
    assert set(times) == set(range(count)), "a job was lost"
    assert all(job["passed"] == list(LINKS) for job in jobs), "a link has changed a job twice, or not at all"
    assert doubles == 0 or not is_exact


def test_each_job_passes_each_link_once_though_the_server_is_killed(
    server: tuple[ServerProcess, str], tmp_path: Path
) -> None:
    """Also where the server dies before it can say that a job has moved."""
    place, url = server
    folder, prefix = tmp_path / "pipeline", f"s{os.getpid()}"
    folder.mkdir()
    (folder / "steps.py").write_text(STEPS)
    (folder / "recipe.toml").write_text(recipe(url, prefix))
    with blocking.connect(url) as store:
        assert store.queue(f"{prefix}-in").moves_atomically(f"{prefix}-a")
        store.queue(f"{prefix}-in").push_many([{"n": n, "passed": []} for n in range(SERVER_JOBS)])

    def arrived() -> int:
        with suppress(PenstockError), blocking.connect(url) as store:
            return store.queue(f"{prefix}-out").total()
        return 0

    with running(folder, "--until-empty", "--processes", str(PROCESSES)) as process:
        for kill in range(SERVER_KILLS):
            enough = 1 + SERVER_JOBS * kill // (SERVER_KILLS + 1)
            wait_until(lambda: arrived() >= enough or process.poll() is not None, END_S, 0.05)  # noqa: B023 - used at once
            assert process.poll() is None, (folder / "log").read_text()[-3000:]
            place.kill_hard()
            place.start()
        assert process.wait(END_S) == 0, (folder / "log").read_text()[-3000:]
    with blocking.connect(url) as store:
        jobs = [job.payload for job in store.queue(f"{prefix}-out").jobs()]
        assert store.queue(f"{prefix}-dead").total() == 0
    assert Counter(job["n"] for job in jobs) == Counter(range(SERVER_JOBS))
    assert all(job["passed"] == list(LINKS) for job in jobs), "a link has changed a job twice, or not at all"
