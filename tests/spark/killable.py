"""Every store that a stream can read from, and how it is killed and comes back.

A server is killed with SIGKILL, and starts again on its port with what is on its disk; all of them are told to have
each answered write there. SQLite and directories have no server: what dies with a process is its open file and what it
knows, so that is thrown away. Memory lives and dies with its process, so that there is nothing to come back: it is in
the table with no way to kill it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.processes import NodeProcess
from tests.servers import MongoServer, PostgresTemplate, RedisServer


@dataclass
class Killable:
    """A store. `kill` is given the driver of a connection to it."""

    url: str
    kill: Callable[[Any], object]
    start: Callable[[], object] = lambda: None


def _close_file(driver: Any) -> None:
    with driver.file.lock:
        driver.file.let_go()


def _forget_directories(driver: Any) -> None:
    driver.close()


def _memory(stack: ExitStack, folder: Path, request: pytest.FixtureRequest) -> Killable:
    return Killable(f"memory:{folder}", _no_way)


def _no_way(driver: Any) -> None:
    raise AssertionError("memory can't be killed alone")


def _sqlite(stack: ExitStack, folder: Path, request: pytest.FixtureRequest) -> Killable:
    return Killable(f"sqlite:///{folder}/jobs.db", _close_file)


def _fsq(stack: ExitStack, folder: Path, request: pytest.FixtureRequest) -> Killable:
    # Only a power cut would tell whether it syncs, and none of these tests makes one.
    return Killable(f"fsq:{folder}/root?sync=0", _forget_directories)


def _redis(stack: ExitStack, folder: Path, request: pytest.FixtureRequest) -> Killable:
    server = RedisServer(folder, appendonly="yes", appendfsync="always").start()
    stack.callback(server.kill_hard)
    url = f"redis+oq://{server.host}:{server.port}/0"
    return Killable(url, lambda driver: server.kill_hard(), server.start)


def _postgresql(stack: ExitStack, folder: Path, request: pytest.FixtureRequest) -> Killable:
    template: PostgresTemplate = request.getfixturevalue("postgres_template")
    server = template.new_server(fsync="on", synchronous_commit="on").start()
    stack.callback(server.kill_hard)
    return Killable(server.url(), lambda driver: server.kill_hard(), server.start)


def _disque(stack: ExitStack, folder: Path, request: pytest.FixtureRequest) -> Killable:
    node = NodeProcess(folder, appendonly="yes", appendfsync="always").start()
    stack.callback(node.kill)
    return Killable(f"disque://{node.host}:{node.port}", lambda driver: node.kill(), node.start)


def _mongodb(scheme: str) -> Callable[[ExitStack, Path, pytest.FixtureRequest], Killable]:
    def make(stack: ExitStack, folder: Path, request: pytest.FixtureRequest) -> Killable:
        server = MongoServer(folder).start()
        stack.callback(server.kill_hard)
        url = f"{server.url(scheme)}?serverSelectionTimeoutMS=500"
        return Killable(url, lambda driver: server.kill_hard(), server.start)

    return make


_MAKERS: dict[str, Callable[[ExitStack, Path, pytest.FixtureRequest], Killable]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "fsq": _fsq,
    "redis+oq": _redis,
    "postgresql": _postgresql,
    "disque": _disque,
    "mongodb": _mongodb("mongodb"),
}
if os.environ.get("PENSTOCK_LONG") == "1":  # they share the driver of `mongodb`, and its claims
    for name in ("mongodb+pl", "mongodb+ps", "mongodb+stream", "mongodb+intraorder"):
        _MAKERS[name] = _mongodb(name)
STORES = tuple(_MAKERS)
CAN_BE_KILLED = tuple(name for name in STORES if name != "memory")

FindStore = Callable[[str], Killable]


def stores(request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> Iterator[FindStore]:
    """Find a store by name; it is made, and its server started, for whoever asks first."""
    made: dict[str, Killable] = {}
    with ExitStack() as stack:

        def find(name: str) -> Killable:
            if name not in made:
                made[name] = _MAKERS[name](stack, factory.mktemp("store"), request)
            return made[name]

        yield find
