"""The demo's cluster: `penstock cluster create`, a node that is killed, and `penstock cluster start`."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from parts import Parts

NODES = 3
# A job is on two nodes before its producer hears of it: one may die, and pushes go on without it.
# What nobody answers for comes back after the lease; the default of two minutes is longer than the whole demo.
TERMS = "replicate=2&lease=20"
CONNECT_S_MAX = 0.5
GONE_S_MAX = 5.0  # the system takes a moment to close what a killed process had open


class Node(NamedTuple):
    """A node that has answered."""

    name: str
    address: str
    pid: int

    def is_up(self) -> bool:
        """Whether somebody listens there."""
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), CONNECT_S_MAX).close()
        except OSError:
            return False
        return True


class Cluster:
    """Three nodes on this machine."""

    def __init__(self, parts: Parts, base_port: int, events: Path) -> None:
        self._parts = parts
        self._where = ("--dir", str(parts.folder / "cluster"), "--json")
        options = ("--base-port", str(base_port), "--events", str(events))
        said = parts.call("cluster", "create", str(NODES), *options, *self._where)
        self.nodes = _nodes(said)

    @property
    def url(self) -> str:
        """The store that they are."""
        return f"disque://{','.join(node.address for node in self.nodes)}?{TERMS}"

    def busiest(self) -> Node:
        """The node that most clients are on."""
        # 1: something is worth a warning, as a node that was slow to answer.
        (line,) = _lines(self._parts.call("cluster", "status", self.nodes[0].address, "--json", codes=(0, 1)))
        clients = {row["address"]: row["clients"] for row in line["nodes"]}
        return max(self.nodes, key=lambda node: clients.get(node.address) or 0)

    def kill(self, node: Node) -> None:
        """End it as a power switch would: no chance to save anything, or to say goodbye."""
        os.kill(node.pid, signal.SIGKILL)
        until = time.monotonic() + GONE_S_MAX
        while node.is_up() and time.monotonic() < until:
            time.sleep(0.01)

    def start(self, meanwhile: Callable[[], object]) -> None:
        """Start the node that is missing, with its journal, and wait until all see each other."""
        self.nodes = _nodes(self._parts.call("cluster", "start", *self._where, meanwhile=meanwhile))


def _lines(said: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def _nodes(said: str) -> list[Node]:
    rows = [line for line in _lines(said) if line["event"] == "node"]
    return [Node(row["name"], row["address"], row["pid"]) for row in rows]
