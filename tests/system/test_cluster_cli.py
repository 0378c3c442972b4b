"""`penstock cluster` with real nodes: made, looked at, joined, emptied, removed and stopped, with jobs in them."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.cluster import local
from penstock.cli.cluster.access import access
from penstock.errors import PenstockError
from tests.bus_peer import BusPeer
from tests.certificates import Authority
from tests.cluster_cli import (
    COMMAND,
    PATIENCE_S,
    Made,
    at,
    call,
    cluster,
    done,
    environment,
    events,
    fetch_all,
    is_well,
    leave,
    state,
)
from tests.processes import NodeProcess, free_port, wait_until
from tests.unit.client.scripted_server import Scripted, always, server

# Each starts several processes on a machine that may be busy, and waits for what they do as long as that takes.
pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

StartNode = Callable[..., NodeProcess]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where a test makes its cluster; nothing runs there afterwards."""
    path = tmp_path / "penstock-cluster"
    yield path
    leave(path)


@pytest.fixture
def make(directory: Path) -> Callable[[int], Made]:
    return lambda count: Made(directory, count)


# From the first node to the last.


def test_nodes_come_and_go_and_no_job_is_lost(make: Callable[[int], Made], start_node: StartNode) -> None:
    made = make(3)
    first, _, third = made.addresses
    expected = set()
    for number in range(120):
        body = b"job %d" % number
        rules = ("REPLICATE", 1 + number % 3, "RETRY", (0, 60)[number % 3 != 0])
        made.call(number % 3, "ADDJOB", "work", body, 5000, *rules)
        expected.add(body)
    made.call(2, "ADDJOB", "work", b"later", 5000, "REPLICATE", 1, "RETRY", 60, "DELAY", 3)

    new = start_node()
    assert "4 nodes see each other" in done("add", at(new), "--to", first)
    assert is_well(at(new), 4)

    said = events(done("remove", third, "--shutdown", "--json"))
    steps = [event["event"] for event in said if event["event"] not in {"progress", "stalled"}]
    assert steps == ["draining", "drained", "forgotten", "reset", "removed"]
    with pytest.raises(PenstockError):
        call(third, "PING")
    left = [*made.addresses[:2], at(new)]
    assert all(is_well(address, 3) for address in left)
    assert fetch_all(left, "work", {*expected, b"later"}) == {*expected, b"later"}

    assert done("stop", "--dir", made.directory).splitlines() == [
        "node-3 was not running.",
        "node-1 stopped.",
        "node-2 stopped.",
    ]


def test_a_node_that_was_removed_stands_alone_and_can_join_again(make: Callable[[int], Made]) -> None:
    made = make(2)
    first, second = made.addresses
    done("remove", second)
    assert [state(address)["known"] for address in made.addresses] == [1, 1]
    assert call(second, "CLUSTER", "LEAVING") == b"no"
    # Within the minute in which the first one doesn't listen to gossip about it.
    done("add", second, "--to", first)
    assert is_well(first, 2)
    assert is_well(second, 2)
    assert "is in this cluster already" in done("add", second, "--to", first)


# Nodes for trying out.


def test_nodes_that_were_stopped_start_again_with_their_jobs(make: Callable[[int], Made]) -> None:
    made = make(2)
    made.call(0, "ADDJOB", "work", b"kept", 5000, "REPLICATE", 2)
    done("stop", "--dir", made.directory)
    assert all(not node.is_running() for node in local.load(made.directory))
    said = done("start", "--dir", made.directory)
    assert "2 nodes started." in said
    assert f"penstock cluster status {made.addresses[0]}" in said
    assert is_well(made.addresses[0], 2)
    assert state(made.addresses[0])["jobs"] == 2
    assert "0 nodes started." in done("start", "--dir", made.directory)


def test_status_without_an_address_asks_the_cluster_of_this_directory(
    make: Callable[[int], Made], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(2)
    monkeypatch.chdir(directory.parent)
    said = json.loads(done("status", "--json"))
    assert {node["address"] for node in said["nodes"]} == set(made.addresses)
    done("remove", made.addresses[0], "--shutdown")
    wait_until(lambda: not local.load(directory)[0].is_running())
    said = json.loads(done("status", "--json"))
    assert [node["address"] for node in said["nodes"]] == [made.addresses[1]]


def test_what_create_prints_can_be_typed(make: Callable[[int], Made], directory: Path) -> None:
    base = free_port(in_a_row=2)
    said = done("create", 2, "--dir", directory, "--base-port", base)
    assert said.splitlines()[0].split() == ["NAME", "ADDRESS", "NODE", "PROCESS", "DIRECTORY"]
    assert "2 nodes running; all of them see each other." in said
    commands = [row.partition("#")[0].split() for row in said.splitlines() if row.startswith("  penstock ")]
    assert len(commands) == 3
    for words in commands:
        subprocess.run(
            [sys.executable, "-m", *words], env=environment(), check=True, capture_output=True, timeout=PATIENCE_S
        )
    assert all(not node.is_running() for node in local.load(directory))


def test_a_port_that_is_taken_is_left_out(directory: Path) -> None:
    base = free_port(in_a_row=2)
    with socket.create_server(("127.0.0.1", base + 10_000)):
        said = events(done("create", 1, "--dir", directory, "--base-port", base, "--json"))
    assert int(said[0]["address"].rpartition(":")[2]) > base


def test_a_cluster_is_replaced_only_if_that_is_asked_for(make: Callable[[int], Made]) -> None:
    made = make(1)
    ended = cluster("create", 1, "--dir", made.directory)
    assert ended.returncode == 2
    assert "--replace" in ended.stderr
    assert is_well(made.addresses[0], 1)
    said = events(
        done(
            "create", 1, "--dir", made.directory, "--replace", "--json", "--base-port", made.addresses[0].split(":")[1]
        )
    )
    assert [event["event"] for event in said] == ["deleted", "node", "ready"]
    assert said[1]["address"] == made.addresses[0]
    assert said[1]["id"] != made.rows[0]["id"]


def test_a_node_that_can_not_start_is_reported_and_the_others_do_not_stay(make: Callable[[int], Made]) -> None:
    made = make(2)
    done("stop", "--dir", made.directory)
    broken = local.load(made.directory)[1].config
    broken.write_text(broken.read_text() + "appendfsync sometimes\n")
    ended = cluster("start", "--dir", made.directory)
    assert ended.returncode == 1
    assert "node-2 did not start" in ended.stderr
    assert "'sometimes' is not one of" in ended.stderr
    assert all(not node.is_running() for node in local.load(made.directory))


def test_a_node_that_ends_in_the_background_is_reported_with_the_end_of_its_log(make: Callable[[int], Made]) -> None:
    made = make(1)
    done("stop", "--dir", made.directory)
    (made.directory / "node-1" / "nodes.conf").write_text("nonsense\n")
    ended = cluster("start", "--dir", made.directory)
    assert ended.returncode == 1
    assert "node-1 did not start" in ended.stderr
    assert "nodes.conf must have exactly one line with the flag 'myself'" in ended.stderr


def test_a_node_that_somebody_else_started_is_left_alone(make: Callable[[int], Made]) -> None:
    made = make(1)
    node = local.load(made.directory)[0]
    pid = node.pid()
    node.pid_file.unlink()
    ended = cluster("stop", "--dir", made.directory)
    assert ended.returncode == 1
    assert f"in use by process {pid}" in ended.stderr
    assert made.call(0, "PING") == b"PONG"
    node.pid_file.write_text(f"{pid}\n")
    done("stop", "--dir", made.directory)


# What is shown.


def test_a_dead_node_is_shown_as_such_and_can_be_forgotten(make: Callable[[int], Made]) -> None:
    made = make(3)
    first, second, third = made.addresses
    alive = cluster("forget", second, "--from", first)
    assert alive.returncode == 1
    assert f"{second} is alive" in alive.stderr
    made.kill(1)
    ended = cluster("status", first)
    assert ended.returncode == 1
    assert f"{second} can't be asked: Could not connect to {second}: Connection refused" in ended.stdout
    assert "3 nodes, 2 answering." in ended.stdout
    row = next(row for row in state(first)["nodes"] if row["address"] == second)
    assert (row["answers"], row["problem"]) == (False, f"Could not connect to {second}: Connection refused")

    refused = cluster("remove", third)
    assert refused.returncode == 1
    assert f"penstock cluster forget {made.rows[1]['id'][:8]} --from {third}" in refused.stderr
    done("forget", made.rows[1]["id"][:8], "--from", third)
    assert is_well(first, 2)
    assert is_well(third, 2)

    # It comes back, and thinks that it is one of them: that is seen, and can be put right.
    done("start", "--dir", made.directory)
    assert any("the others see it as: unknown" in text for text in state(second)["warnings"])
    assert "--force" in cluster("add", second, "--to", first).stderr
    done("add", second, "--to", first, "--force")
    assert is_well(first, 3)


def test_a_node_with_another_password_is_distinguished_from_a_dead_one(start_node: StartNode) -> None:
    open_node, closed = start_node(), start_node(requirepass="right")
    closed.options["password"] = "right"
    open_node.call("CLUSTER", "MEET", "127.0.0.1", closed.port)
    wait_until(lambda: state(at(open_node))["known"] == 2)
    facts = state(at(open_node))
    assert facts["ok"] is False
    assert "NOAUTH" in facts["nodes"][1]["problem"]
    # The password goes to all nodes, and one that has none lets us in all the same.
    assert "2 nodes, all answering." in done("status", at(open_node), "-a", "right")


def test_a_password_that_is_missing_or_wrong_is_reported(start_node: StartNode) -> None:
    node = start_node(wait=False, requirepass="right")
    node.options["password"] = "right"
    node.wait_until_it_answers()
    for words in ((), ("--password", "wrong")):
        ended = cluster("status", at(node), *words)
        assert ended.returncode == 1
        assert at(node) in ended.stderr
        assert "Use --password or the variable PENSTOCK_PASSWORD." in ended.stderr
    assert "1 node, all answering." in done("status", at(node), "-a", "right")
    assert "1 node, all answering." in done("status", at(node), PENSTOCK_PASSWORD="right")


@pytest.mark.parametrize("command", ["status", "drain", "remove"])
def test_where_no_node_listens_that_is_reported(command: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    ended = cluster(command, address)
    assert ended.returncode == 1
    assert f"Could not connect to {address}: Connection refused\nIs a node running there?" in ended.stderr


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not answer like a Penstock node"),
        (b"-ERR unknown command 'CLUSTER'\r\n", "is not a Penstock or Disque node: it answered ERR unknown"),
        (b"+OK\r\n", "is not a Penstock or Disque node: it answered OK"),
        (b"", "No answer from"),
    ],
)
def test_what_is_not_a_node_at_all_is_reported(answer: bytes, hint: str) -> None:
    with server(always(answer)) as peer:
        ended = cluster("status", f"127.0.0.1:{peer.port}")
        assert ended.returncode == 1
        assert hint in ended.stderr


def test_a_cluster_that_speaks_tls_is_reached_through_its_tls_ports(start_node: StartNode, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    pair = authority.sign("node")
    shift, ports = 3000, []
    while len(ports) < 2:
        port = free_port()
        if local.is_free(port + shift) and port + shift < 22_000:
            ports.append(port)
    nodes = [
        start_node(port=port, tls_port=port + shift, tls_cert_file=pair.cert, tls_key_file=pair.key) for port in ports
    ]
    nodes[0].call("CLUSTER", "MEET", "127.0.0.1", nodes[1].port)
    address = f"127.0.0.1:{ports[0] + shift}"
    way = access(None, False, str(authority.cert), None, None)
    wait_until(lambda: state(address, way)["answering"] == 2)
    assert "2 nodes, all answering." in done("status", address, "--cacert", authority.cert)
    plain = cluster("status", address)
    assert plain.returncode == 1
    assert "--tls" in plain.stderr


def test_the_table_is_shown_again_until_it_is_interrupted(node: NodeProcess) -> None:
    words = [*COMMAND, "status", at(node), "--watch", "0.1", "--json"]
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["ok"] is True
        assert json.loads(process.stdout.readline())["ok"] is True
        node.kill()
        while "problem" not in (said := json.loads(process.stdout.readline())):
            pass
        assert "Connection refused" in said["problem"]
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(PATIENCE_S) == 0


# Who may join.


def test_a_node_that_has_jobs_or_a_cluster_joins_only_by_force(
    make: Callable[[int], Made], start_node: StartNode
) -> None:
    made = make(2)
    first = made.addresses[0]
    alone = start_node()
    alone.call("ADDJOB", "work", b"brought along", 0)
    refused = cluster("add", at(alone), "--to", first)
    assert refused.returncode == 1
    assert "has 1 job" in refused.stderr
    assert "--force" in refused.stderr
    assert state(first)["known"] == 2

    married = cluster("add", first, "--to", at(alone))
    assert married.returncode == 1
    assert "is in a cluster of 2 already" in married.stderr
    assert state(at(alone))["known"] == 1

    same = cluster("add", first, "--to", first)
    assert same.returncode == 2
    assert "the same node" in same.stderr

    done("add", at(alone), "--to", first, "--force")
    assert is_well(first, 3)
    assert fetch_all([at(alone)], "work", {b"brought along"}) == {b"brought along"}


def test_a_node_that_is_leaving_is_not_added(start_node: StartNode) -> None:
    staying, leaving = start_node(), start_node()
    leaving.call("CLUSTER", "LEAVING", "yes")
    ended = cluster("add", at(leaving), "--to", at(staying))
    assert ended.returncode == 1
    assert f"penstock cli -p {leaving.port} CLUSTER LEAVING no" in ended.stderr


def test_a_node_that_the_others_can_not_reach_is_reported(start_node: StartNode) -> None:
    staying = start_node()

    def answer(request: list[bytes]) -> bytes:
        """Speak as a node does whose bus is behind a wall."""
        text = {
            b"NODES": f"{'a' * 40} :{peer.port} myself 0 0 connected\n",
            b"INFO": "cluster_size:1\r\nregistered_jobs:0\r\n",
        }.get(request[-1], "")
        return b"$%d\r\n%b\r\n" % (len(text), text.encode())

    with server(answer) as peer:
        ended = cluster("add", f"127.0.0.1:{peer.port}", "--to", at(staying), "--timeout", "1")
        assert ended.returncode == 1
        assert f"{at(staying)} doesn't see 127.0.0.1:{peer.port}" in ended.stderr
        assert f"port {peer.port + 10_000} of the new one" in ended.stderr


def test_an_add_that_failed_leaves_a_cluster_that_takes_jobs(start_node: StartNode) -> None:
    staying = start_node()

    def answer(request: list[bytes]) -> bytes:
        """Speak as a node does that doesn't get to know anybody."""
        text = {
            b"NODES": f"{peer.id.decode()} :{peer.port} myself 0 0 connected\n",
            b"INFO": "cluster_size:1\r\nregistered_jobs:0\r\n",
        }.get(request[-1], "")
        return b"$%d\r\n%b\r\n" % (len(text), text.encode())

    with BusPeer() as peer:
        scripted = Scripted(answer, socket.create_server(("127.0.0.1", peer.port)))
        try:
            ended = cluster("add", f"127.0.0.1:{peer.port}", "--to", at(staying), "--timeout", "3")
        finally:
            scripted.close()
        assert peer.seen("MEET")
        assert ended.returncode == 1
        assert "the cluster is as it was before" in ended.stderr
        assert len(staying.call("CLUSTER", "NODES").splitlines()) == 1
        assert staying.call("ADDJOB", "work", "body", 0)


# Emptying a node.


def watch(address: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "drain", address, "--json"], env=environment(), stdout=subprocess.PIPE, text=True
    )


def read_until(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    assert process.stdout is not None
    for row in process.stdout:
        event: dict[str, Any] = json.loads(row)
        if event["event"] == name:
            return event
    raise AssertionError(f"it ended before {name}")


def test_a_drain_that_waits_for_a_lease_says_so_and_goes_on_when_that_ends(make: Callable[[int], Made]) -> None:
    made = make(2)
    second = made.addresses[1]
    made.call(1, "ADDJOB", "work", b"in good hands", 5000, "REPLICATE", 1)
    ((_, job_id, _, token),) = made.call(1, "GETJOB", "LEASE", 600_000, "FROM", "work")
    with watch(second) as process:
        assert "1 job leased by workers" in read_until(process, "stalled")["reason"]
        assert f"{second} is draining: it still has 1 job." in cluster("status", second).stdout
        assert made.call(1, "ACKLEASE", job_id, token) == [b"OK"]
        read_until(process, "drained")
        assert process.wait(PATIENCE_S) == 0


def test_a_drain_goes_on_without_us_and_can_be_cancelled(make: Callable[[int], Made]) -> None:
    made = make(2)
    second = made.addresses[1]
    made.call(1, "ADDJOB", "work", b"in good hands", 5000, "REPLICATE", 1)
    made.call(1, "GETJOB", "LEASE", 600_000, "FROM", "work")
    with watch(second) as process:
        read_until(process, "progress")
        process.send_signal(signal.SIGINT)
        read_until(process, "interrupted")
        assert process.wait(PATIENCE_S) == 130
    late = cluster("drain", second, "--timeout", "0.5")
    assert late.returncode == 1
    assert "1 job left after 0.5 s." in late.stderr
    assert f"penstock cli -p {second.split(':')[1]} CLUSTER LEAVING no" in late.stderr
    assert b"cluster_draining:yes" in made.call(1, "CLUSTER", "INFO")
    with watch(second) as process:
        read_until(process, "progress")
        made.call(1, "CLUSTER", "LEAVING", "no")
        assert process.wait(PATIENCE_S) == 1
    assert made.call(1, "CLUSTER", "LEAVING") == b"no"


def test_an_acked_job_that_waits_for_a_dead_node_is_reported_and_forgetting_helps(make: Callable[[int], Made]) -> None:
    made = make(3)
    second, third = made.addresses[1:]
    job_id = made.call(1, "ADDJOB", "work", b"everywhere", 5000, "REPLICATE", 3)
    made.kill(2)
    made.call(1, "ACKJOB", job_id)
    with watch(second) as process:
        assert f"1 job acked, and kept until {third}" in read_until(process, "stalled")["reason"]
        done("forget", third, "--from", made.addresses[0])
        read_until(process, "drained")
        assert process.wait(PATIENCE_S) == 0


def test_a_node_that_is_alone_can_be_neither_drained_nor_removed(node: NodeProcess) -> None:
    for command in ("drain", "remove"):
        ended = cluster(command, at(node))
        assert ended.returncode == 1
        assert f"{at(node)} is not in a cluster" in ended.stderr
    assert node.call("CLUSTER", "LEAVING") == b"no"
