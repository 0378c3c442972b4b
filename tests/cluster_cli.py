"""`penstock cluster` as users run it, for tests: commands run to their end, clusters made, asked, and always ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.cli.cluster import local
from penstock.cli.cluster.access import Access
from penstock.cli.cluster.status import as_json
from penstock.cli.cluster.view import view_cluster
from penstock.client import Connection
from penstock.client.addresses import parse_address
from penstock.errors import PenstockError
from tests.processes import NodeProcess, free_port, wait_until

PATIENCE_S = 240.0
COMMAND = [sys.executable, "-m", "penstock", "cluster"]
SOURCE = Path(local.__file__).parents[3]

OPEN = Access()

Ended = subprocess.CompletedProcess[str]


def environment(**more: str) -> dict[str, str]:
    unwanted = ("PENSTOCK_PASSWORD", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "PYTHONPATH": str(SOURCE), **more}


def cluster(*words: object, **variables: str) -> Ended:
    """Run a command to its end. Whatever happens, a user never sees a traceback."""
    ended = subprocess.run(
        [*COMMAND, *map(str, words)],
        env=environment(**variables),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "Traceback" not in ended.stderr + ended.stdout
    return ended


def done(*words: object, **variables: str) -> str:
    """Run a command that must succeed, and return what it printed."""
    ended = cluster(*words, **variables)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(row) for row in text.splitlines()]


def state(address: str, way: Access = OPEN) -> dict[str, Any]:
    """What `status --json` tells, whether all is well or not; asked from here, since it is asked so often."""
    return as_json(view_cluster(way, parse_address(address)))


def is_well(address: str, count: int) -> bool:
    facts = state(address)
    return bool(facts["ok"]) and facts["answering"] == count


class Made:
    """A cluster that `penstock cluster create` has made."""

    def __init__(self, directory: Path, count: int) -> None:
        self.directory = directory
        said = events(done("create", count, "--dir", directory, "--base-port", free_port(count), "--json"))
        self.rows = [event for event in said if event["event"] == "node"]
        self.addresses = [str(row["address"]) for row in self.rows]

    def call(self, number: int, *words: Any) -> Any:
        """Run a command on a node, counted from 0."""
        return call(self.addresses[number], *words)

    def kill(self, number: int) -> None:
        """kill -9."""
        node = local.load(self.directory)[number]
        pid = node.pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not node.is_running())


def call(address: str, *words: Any) -> Any:
    host, _, port = address.rpartition(":")
    with Connection(host, int(port), timeout=60.0) as link:
        return link.execute(*words)


def leave(directory: Path) -> None:
    """End whatever still runs in a directory, and only what is really ours."""
    try:
        nodes = local.load(directory)
    except PenstockError:
        return
    for node in nodes:
        pid = node.holder()  # a test may have lost the pid file
        if node.is_running() and pid is not None and local.is_server(pid, node.config):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(node.is_running() for node in nodes))


def at(node: NodeProcess) -> str:
    return f"{node.host}:{node.port}"


def fetch_all(addresses: list[str], queue: str, expected: set[bytes]) -> set[bytes]:
    """Take and ack all jobs of a queue, wherever they are, until these have come; return what came."""
    found: set[bytes] = set()

    def take() -> bool:
        for address in addresses:
            for _, job_id, body in call(address, "GETJOB", "NOHANG", "COUNT", 100, "FROM", queue) or []:
                found.add(body)
                call(address, "ACKJOB", job_id)
        return found >= expected

    wait_until(take, PATIENCE_S, 0.05)
    return found
