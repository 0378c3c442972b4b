"""kill -9 of a pipeline's process between any two steps of a link, on every store.

No job is lost, and none is doubled where a step is one move, or has a key.

The steps are: the job is taken, the function is called, the store begins to move the job, has moved it, and the worker
knows. One process dies after each of them, and the last one ends the work.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock import blocking
from tests.server_fixtures import killable_store, store_url
from tests.servers import MongoServer

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

SOURCE = Path(__file__).resolve().parents[2] / "src"
END_S = 60.0
JOBS = 3

STEPS = """
import os
import signal
from contextlib import contextmanager


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_sqlite(driver):
    from penstock.queues.stores.sqlite.file import SqliteFile

    writing = SqliteFile.writing

    @contextmanager
    def dying(self):
        with writing(self) as connection:
            yield connection
            die()  # before the commit

    SqliteFile.writing = dying


def die_in_fsq(driver):
    from penstock.queues.stores.fsq import driver as module

    module.ack = die


def die_in_transaction(driver):
    from pymongo.asynchronous.client_session import AsyncClientSession

    AsyncClientSession.commit_transaction = die


def die_after_insert(driver):
    driver._layout.taken_out = die


def die_in_buckets(driver):
    driver._take_away = die


async def step(job):
    where = os.environ.get("DIE", "")
    if where == "taken":
        die()
    driver = job.queue.store._driver
    move = driver.move

    async def dying(*words):
        if where == "called":
            die()
        if where in globals():
            globals()[where](driver)
        moved = await move(*words)
        if where == "moved":
            die()
        return moved

    driver.move = dying
    return [*job.payload, "step"]
"""


class Place(NamedTuple):
    """A store, where processes die, and how many jobs that may leave of one."""

    url: str
    deaths: tuple[str, ...]
    jobs_max: int


# `taken` and `called` are the same to a store: nothing has been sent. A function of STEPS cuts a move in two, where it
# is more than one command.
KINDS: dict[str, tuple[tuple[str, ...], int]] = {
    "sqlite": (("taken", "called", "die_in_sqlite", "moved"), 1),
    "fsq": (("called", "die_in_fsq", "moved"), 1),
    "redis+oq": (("called", "moved"), 1),
    "postgresql": (("called", "moved"), 1),
    "disque": (("called", "moved"), 1),
    "mongodb": (("called", "die_in_transaction", "moved"), 1),
    "mongodb, one server": (("called", "die_after_insert", "moved"), 2),
    "mongodb+pl": (("called", "moved"), 1),
    "mongodb+bucket": (("called", "die_in_buckets", "moved"), 2),
}


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    name: str = request.param
    if name == "mongodb":
        _, url = killable_store(request, name)
    elif name == "mongodb, one server":
        single: MongoServer = request.getfixturevalue("mongo_standalone")
        url = f"{single.url(database=f'kills{os.getpid()}')}?poll=0.2"
    else:
        url = store_url(request, tmp_path, "poll=0.05&sync=off")
    return Place(url, *KINDS[name])


def run(folder: Path, url: str, where: str) -> int:
    """Run the pipeline until it is empty, or its process dies; return its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "pipeline", "run", "recipe.toml", "--until-empty"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PENSTOCK_URL": url, "DIE": where},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode


def test_kill_9_between_any_two_steps_loses_no_job_and_doubles_only_where_it_is_said(
    place: Place, tmp_path: Path
) -> None:
    folder, prefix = tmp_path / "pipeline", f"kill{os.urandom(4).hex()}-"
    folder.mkdir()
    (folder / "steps.py").write_text(STEPS)
    (folder / "recipe.toml").write_text(
        f'[links.step]\nfrom = "{prefix}in"\nto = "{prefix}out"\nfunction = "steps:step"\nlease = 1\n'
    )
    with blocking.connect(place.url) as store:
        source, target = store.queue(f"{prefix}in"), store.queue(f"{prefix}out")
        source.push_many([n] for n in range(JOBS))
        arrived: list[list[object]] = []
        for where in (*place.deaths, ""):
            assert run(folder, place.url, where) == (-signal.SIGKILL if where else 0), where
            there = [job.payload for queue in (source, target) for job in queue.jobs()]
            assert {payload[0] for payload in [*there, *arrived]} == set(range(JOBS)), f"a job was lost: {where}"
            # Somebody takes what has come, so that a copy is not found there when its job is moved again.
            arrived += [job.payload for job in target.pop_many(JOBS, timeout=0)]
            assert not arrived or where not in ("taken", "called")
        assert source.total() == 0
        arrived += [job.payload for job in target.jobs()]
        is_atomic = source.moves_atomically(target.name)
    assert {tuple(payload[1:]) for payload in arrived} == {("step",)}
    times = Counter(payload[0] for payload in arrived)
    assert set(times) == set(range(JOBS))
    assert max(times.values()) == place.jobs_max
    assert place.jobs_max == 1 or not is_atomic
