"""Several redis-servers that work together: a master with a replica under Sentinel, and a Redis Cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from tests.processes import HOST, need_module, need_program, wait_until
from tests.servers import RedisServer

SLOTS = 16_384


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


class SentinelProcess(RedisServer):
    """One sentinel; it writes what it learns into its configuration file."""

    name = "redis-sentinel"

    def __init__(self, directory: Path, configuration: str) -> None:
        super().__init__(directory)
        self.file = directory / "sentinel.conf"
        self.file.write_text(f"bind {HOST}\nport {self.port}\ndir {directory}\n{configuration}")

    @property
    def argv(self) -> list[str]:
        return [need_program("redis-server"), str(self.file), "--sentinel"]


class RedisSentinel:
    """A master, its replica, and one sentinel that makes the replica master once the master is gone."""

    service = "penstock"

    def __init__(self, directory: Path, **directives: object) -> None:
        self.master = RedisServer(_folder(directory, "master"), **directives)
        replica_of = {"replicaof": f"{HOST} {self.master.port}", "repl_ping_replica_period": 1}
        # Both ways, as the two change places: a replica need not wait for others that want the same copy.
        at_once = {"repl_diskless_sync_delay": 0}
        self.master.directives |= at_once
        self.replica = RedisServer(_folder(directory, "replica"), **directives, **replica_of, **at_once)
        watched = f"sentinel %s {self.service} %s\n"
        self.sentinel = SentinelProcess(
            _folder(directory, "sentinel"),
            f"sentinel monitor {self.service} {HOST} {self.master.port} 1\n"
            + watched % ("down-after-milliseconds", 500)
            + watched % ("failover-timeout", 3000),
        )

    @property
    def servers(self) -> tuple[RedisServer, ...]:
        return (self.master, self.replica, self.sentinel)

    @property
    def address(self) -> tuple[str, int]:
        """Where clients ask for the master."""
        return self.sentinel.host, self.sentinel.port

    def start(self) -> RedisSentinel:
        for server in self.servers:
            server.start()
        wait_until(self._is_complete, every=0.05)
        return self

    def _is_complete(self) -> bool:
        """The replica follows, and the sentinel has heard of it."""
        with self.replica.client() as replica, self.sentinel.client() as sentinel:
            if replica.info("replication").get("master_link_status") != "up":
                return False
            known = sentinel.sentinel_master(self.service)
            (other,) = sentinel.sentinel_slaves(self.service) or [None]
            return known["num-slaves"] == 1 and other is not None and other["master-link-status"] == "ok"

    def client(self, **options: Any) -> Any:
        """Return a redis.Redis that asks the sentinel for the master at each new connection."""
        sentinel = need_module("redis.sentinel").Sentinel([self.address], socket_timeout=30)
        return sentinel.master_for(self.service, **options)

    def master_port(self) -> int:
        """Ask the sentinel who is master."""
        with self.sentinel.client() as sentinel:
            return int(sentinel.sentinel_get_master_addr_by_name(self.service)[1])

    def kill_master(self) -> None:
        """Kill -9 the first master, and wait until the replica has taken its place."""
        self.master.kill_hard()
        wait_until(lambda: self.master_port() == self.replica.port and self._takes_writes(self.replica), every=0.05)

    def _takes_writes(self, server: RedisServer) -> bool:
        with server.client() as client:
            return bool(client.info("replication")["role"] == "master")

    def kill_hard(self) -> None:
        """Kill -9 all of them."""
        for server in reversed(self.servers):
            server.kill_hard()


class RedisCluster:
    """A Redis Cluster of three masters, which share all slots."""

    def __init__(self, directory: Path, nodes: int = 3, **directives: object) -> None:
        own = {"cluster_enabled": "yes", "cluster_config_file": "nodes.conf", "cluster_node_timeout": 2000}
        self.nodes = [RedisServer(_folder(directory, f"node{n}"), **own, **directives) for n in range(nodes)]

    def start(self) -> RedisCluster:
        for node in self.nodes:
            node.start()
        words = [need_program("redis-cli"), "--cluster", "create", *(f"{HOST}:{node.port}" for node in self.nodes)]
        done = subprocess.run([*words, "--cluster-yes"], capture_output=True, text=True, timeout=50, check=False)
        if done.returncode:
            raise AssertionError(f"redis-cli --cluster create failed:\n{done.stdout}{done.stderr}")
        wait_until(self._is_complete, every=0.05)
        return self

    def _is_complete(self) -> bool:
        return all(self._sees_all(node) for node in self.nodes)

    def _sees_all(self, node: RedisServer) -> bool:
        with node.client() as client:
            info = client.execute_command("CLUSTER INFO")
            return info["cluster_state"] == "ok" and int(info["cluster_slots_ok"]) == SLOTS

    def client(self, **options: Any) -> Any:
        """Return a redis.RedisCluster."""
        return need_module("redis").RedisCluster(HOST, self.nodes[0].port, **options)

    def kill_hard(self) -> None:
        """Kill -9 all of them."""
        for node in self.nodes:
            node.kill_hard()
