"""Real clusters in network namespaces, cut in halves, around one node, and in one direction only.

Each node has a namespace and an address of its own on a bridge; clients reach all of them. A cut is a route to nowhere
between two nodes. What a machine can't do is tried, and skipped with the reason.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.processes import NodeProcess, meet, wait_until_met
from tests.system.cluster_load import Load
from tests.system.test_cluster_faults import NODE_TIMEOUT_MS, finish

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

NODES = 5
NAMES = (f"ps{os.getpid() % 100_000}{letter}" for letter in "abcdefgh")  # of links: at most 15 characters
SUBNET = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Host(NodeProcess):
    """A node in a namespace of its own."""

    def __init__(self, directory: Path, name: str, number: int) -> None:
        super().__init__(directory, 7711, cluster_node_timeout=NODE_TIMEOUT_MS, protected_mode="no")
        self.namespace = f"{name}n{number}"
        self.outside = f"{name}v{number}"
        self.host = f"{SUBNET}.{number + 1}"
        self.directives["bind"] = self.host

    @property
    def argv(self) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *super().argv]

    def cut(self, others: Iterable[Host]) -> None:
        """Let nothing pass from here to others."""
        for other in others:
            ip("-n", self.namespace, "route", "add", "blackhole", f"{other.host}/32")

    def mend(self, others: Iterable[Host]) -> None:
        for other in others:
            ip("-n", self.namespace, "route", "del", "blackhole", f"{other.host}/32")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    made: list[Host] = []
    name = next(NAMES)
    try:
        try:
            ip("link", "add", name, "type", "bridge")
            ip("addr", "add", f"{SUBNET}.254/24", "dev", name)
            ip("link", "set", name, "up")
            for number in range(NODES):
                directory = tmp_path / f"node-{number}"
                directory.mkdir()
                made.append(Host(directory, name, number))
                _plug_in(made[-1], name)
        except (OSError, subprocess.CalledProcessError) as problem:
            pytest.skip(f"no network namespaces here: {getattr(problem, 'stderr', '') or problem}")
        for host in made:
            host.start()
        meet(*made)
        yield made
    finally:
        for host in made:
            host.kill()
            for words in (("link", "del", host.outside), ("netns", "del", host.namespace)):
                subprocess.run(["ip", *words], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)


def _plug_in(host: Host, bridge: str) -> None:
    ip("netns", "add", host.namespace)
    ip("link", "add", host.outside, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
    ip("link", "set", host.outside, "master", bridge, "up")
    ip("-n", host.namespace, "addr", "add", f"{host.host}/24", "dev", "eth0")
    ip("-n", host.namespace, "link", "set", "eth0", "up")
    ip("-n", host.namespace, "link", "set", "lo", "up")


def cuts(kind: str, hosts: list[Host]) -> list[tuple[Host, list[Host]]]:
    """Return which nodes can no longer reach each other."""
    few, many = hosts[:2], hosts[2:]
    if kind == "halves":
        return [(host, many) for host in few] + [(host, few) for host in many]
    if kind == "one node":
        return [(hosts[0], hosts[1:])] + [(host, hosts[:1]) for host in hosts[1:]]
    if kind == "one way":
        return [(hosts[0], hosts[1:])]
    bridge = hosts[2]
    return [(host, [o for o in many if o is not bridge]) for host in few] + [
        (host, few) for host in many if host is not bridge
    ]


@pytest.mark.parametrize("kind", ["halves", "one node", "one way", "bridge"])
def test_partitions_lose_nothing(hosts: list[Host], kind: str) -> None:
    load = Load(list(hosts), 2)
    try:
        time.sleep(0.5)
        for host, others in cuts(kind, hosts):
            host.cut(others)
        time.sleep(3 * NODE_TIMEOUT_MS / 1000)
        for host, others in cuts(kind, hosts):
            host.mend(others)
        wait_until_met(*hosts)
    except BaseException:
        load.stop()
        raise
    finish(load, list(hosts))
