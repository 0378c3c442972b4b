"""Tasks that programs of others push: a JSON object with the names of the task and of its arguments is all they need.

Node programs with two Disque clients and Keuss, and our own command line.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from penstock import App
from penstock.errors import TaskFailed
from penstock.tasks import State
from tests.interop.keuss_peer import KeussPeer, mongo_options, redis_options
from tests.interop.test_node_clients import command
from tests.processes import NodeProcess
from tests.servers import MongoServer, RedisServer

pytestmark = pytest.mark.interop

PATIENCE = 30.0


@dataclass
class Sender:
    """A program that pushes, and where."""

    url: str
    push: Callable[[str, dict[str, Any]], str]  # to a queue, a body; returns the job's id as the program knows it


def printed(*argv: str | Path) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=["disqueue", "thunk", "keuss", "keuss-mongo", "penstock push"])
def sender(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sender]:
    which = request.param
    if which in ("disqueue", "thunk"):
        node: NodeProcess = request.getfixturevalue("shared_node")

        def add(queue: str, body: dict[str, Any]) -> str:
            return json.loads(printed(*command(which, node, "push", queue), json.dumps(body)))["id"]

        yield Sender(f"disque://127.0.0.1:{node.port}", add)
        return
    if which == "penstock push":
        url = f"sqlite:///{tmp_path}/jobs.db"
        program = Path(sys.executable).with_name("penstock")
        yield Sender(url, lambda queue, body: printed(program, "push", url, queue, "--json", json.dumps(body)).strip())
        return
    keuss: KeussPeer = request.getfixturevalue("keuss")
    if which == "keuss-mongo":
        mongo: MongoServer = request.getfixturevalue("mongo_server")
        database = "tasks_of_others"
        factory = keuss.open("mongo", mongo_options(mongo, database))
        url = mongo.url(database=database)
    else:
        redis: RedisServer = request.getfixturevalue("redis_server")
        factory = keuss.open("redis-oq", redis_options(redis))
        url = f"redis+oq://{redis.host}:{redis.port}/0"
    yield Sender(url, lambda queue, body: str(factory.queue(queue).push(body)))
    factory.close()


def test_a_worker_runs_what_another_program_pushed(sender: Sender, queue_name: str) -> None:
    app = App(sender.url, queue=queue_name)

    @app.task(name="shop.welcome", max_tries=1)
    async def welcome(user_id: int, since: date, greeting: str = "hello") -> str:
        return f"{greeting} {user_id}, {since:%d.%m.%Y}"

    job_id = sender.push(queue_name, {"task": "shop.welcome", "args": {"user_id": 42, "since": "2026-03-01"}})
    named = {"task": "shop.welcome", "id": f"order-{queue_name}", "by": "Node: unknown keys are left alone"}
    sender.push(queue_name, {**named, "args": {"user_id": 7, "since": "2026-04-01", "greeting": "grüß dich"}})
    wrong_id = f"wrong-{queue_name}"
    sender.push(queue_name, {"task": "shop.welcome", "id": wrong_id, "args": {"user_id": "42", "since": "2026-03-01"}})

    async def look() -> None:
        async with app:
            assert (await app.handle(job_id).status()).state is State.WAITING
            worker = app.worker()
            task = asyncio.create_task(worker.run())
            assert await app.handle(job_id, welcome).result(timeout=PATIENCE) == "hello 42, 01.03.2026"
            assert await app.handle(named["id"], welcome).result(timeout=PATIENCE) == "grüß dich 7, 01.04.2026"
            with pytest.raises(TaskFailed, match="user_id"):
                await app.handle(wrong_id).result(timeout=PATIENCE)
            worker.stop()
            assert (await task).failed == 1

    asyncio.run(look())
