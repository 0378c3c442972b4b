"""Clusters of real nodes: they meet, share jobs, notice who is gone, and let no stranger in."""

from __future__ import annotations

import random
import signal
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.bus_sockets import UNSENT_BYTES_MAX
from penstock.wire import bus
from penstock.wire.bus_auth import ANSWER_BYTES, CHALLENGE_BYTES
from tests.certificates import Authority, Pair
from tests.conftest import StartNode
from tests.processes import (
    NodeProcess,
    free_port,
    meet,
    node_lines,
    resident_bytes,
    settled_bytes,
    wait_until,
    wait_until_met,
)

pytestmark = pytest.mark.system

SECRET = "the-secret-of-this-cluster"
QUEUE = b"work"
NODE_TIMEOUT_MS = 1000  # a handshake that leads to nothing is given up after as long


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "authority")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that the nodes have not heard of."""
    return Authority(tmp_path_factory.mktemp("certificates"), "stranger")


def tls_directives(authority: Authority, pair: Pair) -> dict[str, object]:
    files = {"tls_cert_file": pair.cert, "tls_key_file": pair.key, "tls_ca_cert_file": authority.cert}
    return {"tls_cluster": "yes", **files}


def start_cluster(start_node: StartNode, size: int = 3, **directives: object) -> list[NodeProcess]:
    nodes = [start_node(**{"cluster_node_timeout": NODE_TIMEOUT_MS, **directives}) for _ in range(size)]
    meet(*nodes)
    return nodes


def flags_of(node: NodeProcess, other_id: bytes) -> str:
    return next(line[2] for line in node_lines(node) if line[0] == other_id.decode())


def members(node: NodeProcess) -> int:
    """Return how many nodes a node believes to be in its cluster, handshakes included."""
    return len(node_lines(node))


def add_everywhere(nodes: list[NodeProcess]) -> bytes:
    job_id: bytes = nodes[0].call("ADDJOB", QUEUE, "body", 5000, "REPLICATE", len(nodes))
    return job_id


def assert_works(nodes: list[NodeProcess]) -> None:
    """A job is added to one node, fetched from another, and acked at a third."""
    job_id = add_everywhere(nodes)
    assert all(dict(zip(reply[::2], reply[1::2], strict=True))[b"body"] == b"body" for reply in _show(nodes, job_id))
    assert nodes[1].call("GETJOB", "TIMEOUT", 20_000, "FROM", QUEUE) == [[QUEUE, job_id, b"body"]]
    assert nodes[-1].call("ACKJOB", job_id) == 1
    wait_until(lambda: _show(nodes, job_id) == [None] * len(nodes))


def _show(nodes: list[NodeProcess], job_id: bytes) -> list[Any]:
    return [node.call("SHOW", job_id) for node in nodes]


def bus_socket(node: NodeProcess) -> socket.socket:
    return socket.create_connection((node.host, node.port + 10_000), 30)


def peer_ping() -> bytes:
    return bus.encode(bus.PING, b"5e4d" * 10, 7711, 0, 1, b"")


def rest_of(sock: socket.socket) -> bytes:
    """Read until the node closes the link."""
    data = b""
    with suppress(ConnectionResetError):
        while piece := sock.recv(65536):
            data += piece
    return data


# What a cluster does


def test_nodes_that_meet_in_a_chain_see_each_other_and_share_jobs(start_node: StartNode) -> None:
    nodes = start_cluster(start_node)
    assert_works(nodes)
    for node in nodes:
        known = {(entry[1], int(entry[2])) for entry in node.call("HELLO")[2:]}
        assert known == {(b"127.0.0.1", other.port) for other in nodes}


def test_a_waiting_consumer_gets_a_job_that_is_added_elsewhere(start_node: StartNode) -> None:
    nodes = start_cluster(start_node, 2)
    with nodes[1].connect() as waiting:
        waiting.send("GETJOB", "TIMEOUT", 30_000, "FROM", QUEUE)
        wait_until(lambda: nodes[1].info()["blocked_clients"] == "1")
        job_id = nodes[0].call("ADDJOB", QUEUE, "body", 0, "REPLICATE", 1)
        assert waiting.receive() == [[QUEUE, job_id, b"body"]]


def test_a_large_body_crosses_the_bus(start_node: StartNode) -> None:
    nodes = start_cluster(start_node, 2)
    body = bytes(range(256)) * 80_000
    job_id = nodes[0].call("ADDJOB", QUEUE, body, 30_000, "REPLICATE", 2)
    assert nodes[1].call("SHOW", job_id)[-3] == body


def test_a_killed_node_fails_and_comes_back_with_its_identity(start_node: StartNode) -> None:
    nodes = start_cluster(start_node)
    victim_id = nodes[2].call("CLUSTER", "MYID")
    job_id = add_everywhere(nodes)
    nodes[2].kill()
    wait_until(lambda: [flags_of(node, victim_id) for node in nodes[:2]] == ["fail", "fail"])
    nodes[2].start()
    assert nodes[2].call("CLUSTER", "MYID") == victim_id
    wait_until_met(*nodes)
    assert nodes[2].call("SHOW", job_id) is not None
    assert nodes[0].call("ACKJOB", job_id) == 1
    wait_until(lambda: _show(nodes, job_id) == [None, None, None])


def test_a_cluster_that_restarts_as_a_whole_finds_itself_again(start_node: StartNode) -> None:
    nodes = start_cluster(start_node, 2)
    for node in nodes:
        node.stop()
    for node in nodes:
        node.start()
    wait_until_met(*nodes)
    assert_works(nodes)


def test_a_forgotten_node_is_gone(start_node: StartNode) -> None:
    nodes = start_cluster(start_node, 2)
    nodes[0].call("CLUSTER", "FORGET", nodes[1].call("CLUSTER", "MYID"))
    assert members(nodes[0]) == 1
    assert nodes[0].call("PING") == b"PONG"


def test_a_node_on_tls_port_alone_has_its_bus_there(start_node: StartNode, authority: Authority) -> None:
    pair = authority.sign("client-port")
    node = start_node(cluster_node_timeout=NODE_TIMEOUT_MS)
    port = free_port()
    other = start_node(port=0, tls_port=port, tls_cert_file=pair.cert, tls_key_file=pair.key, wait=False)
    other.port = port
    other.options = {"tls": True, "ca": str(authority.cert)}
    other.wait_until_it_answers()
    meet(node, other)
    assert_works([node, other])


def test_a_node_with_a_unix_socket_alone_has_no_bus(start_node: StartNode, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    node = start_node(port=0, unixsocket=path, wait=False)
    wait_until(lambda: "ready to accept" in node.log.read_text())
    assert node.stop() == 0


# A peer that stands still


def test_a_peer_that_stands_still_costs_only_so_much_memory(start_node: StartNode) -> None:
    node, peer = start_cluster(start_node, 2, cluster_node_timeout=60_000, appendonly="no")
    assert peer.process is not None
    peer.process.send_signal(signal.SIGSTOP)
    try:
        before = resident_bytes(node)
        body = bytes(1 << 20)
        for _ in range(4 * (UNSENT_BYTES_MAX >> 20)):
            job_id = node.call("ADDJOB", QUEUE, body, 0, "REPLICATE", 2, "ASYNC")
            node.call("DELJOB", job_id)  # here; the copy for the other is on its way
            assert resident_bytes(node) - before < 2 * UNSENT_BYTES_MAX
        assert "has not read" in node.log.read_text()
    finally:
        peer.process.send_signal(signal.SIGCONT)
    wait_until_met(node, peer)
    assert node.call("ADDJOB", QUEUE, "body", 30_000, "REPLICATE", 2)


# Strangers


def assert_unharmed(node: NodeProcess, known: int = 1) -> None:
    """The node lives, and knows nobody new; a handshake that leads to nothing ends."""
    assert node.call("PING") == b"PONG"
    wait_until(lambda: members(node) == known)


@pytest.mark.parametrize(
    "data",
    [b"\0" * 200, b"GET / HTTP/1.1\r\n\r\n", b"DbuZ\xff\xff\xff\xff" + bytes(200), b"DbuZ\0\0\0\x08"],
    ids=["zeros", "http", "huge length", "tiny length"],
)
def test_garbage_is_refused(shared_node: NodeProcess, data: bytes) -> None:
    with bus_socket(shared_node) as sock:
        sock.sendall(data)
        assert rest_of(sock) == b""
    assert_unharmed(shared_node)


def test_a_flood_of_garbage_is_one_line_in_the_log(start_node: StartNode) -> None:
    node = start_node(appendonly="no")
    for _ in range(300):
        with bus_socket(node) as sock:
            sock.sendall(b"garbage!")
            assert rest_of(sock) == b""
    assert node.log.read_text().count("closing the link of 127.0.0.1") == 1
    assert_unharmed(node)


def test_links_that_do_nothing_take_no_room_from_clients(start_node: StartNode) -> None:
    node = start_node(appendonly="no", maxclients=10)
    idle = [bus_socket(node) for _ in range(200)]
    clients = [node.connect() for _ in range(9)]
    assert [client.execute("PING") for client in clients] == [b"PONG"] * 9
    other = start_node(appendonly="no")
    meet(node, other)
    for sock in idle:
        sock.close()
    for client in clients:
        client.close()


# Ports that leave no room for the bus, and what would break the lines of nodes.conf.
HOSTILE = [
    (bus.MEET, b"5e4d" * 10, 60_000, b""),
    (bus.MEET, b"5e4d" * 10, 0, b""),
    (bus.MEET, b"a b\nc d e f " * 3 + b"7777", 7711, b""),
    (bus.MEET, b"5e4d" * 10, 65_535, bus.GOSSIP.pack(b"6" * 40, 0, 0, b"127.0.0.1", 65_535, 0)),
    (bus.MEET, b"5e4d" * 10, 65_535, bus.GOSSIP.pack(b"6" * 40, 0, 0, b"fe80::1%\xff\n x", 7711, 0)),
    (bus.PING, b"5e4d" * 10, 60_000, bus.GOSSIP.pack(b"6" * 40, 0, 0, b"::1%\xc3", 1, 0xFFFF)),
]


def test_no_address_that_a_stranger_names_stops_the_node(start_node: StartNode) -> None:
    node, other = (start_node(cluster_node_timeout=NODE_TIMEOUT_MS) for _ in range(2))
    with bus_socket(node) as link:
        for number, (kind, sender, port, gossip) in enumerate(HOSTILE, 1):
            link.sendall(bus.encode(kind, sender, port, 0, number, gossip, count=len(gossip) // bus.GOSSIP_BYTES))
        wait_until(lambda: b"stats_messages_received:%d" % len(HOSTILE) in node.call("CLUSTER", "INFO"))
        meet(node, other)
    assert_works([node, other])
    assert "Traceback" not in node.log.read_text()
    assert "Error" not in node.log.read_text()
    node.kill()
    node.start()
    wait_until_met(node, other)


def test_unfinished_messages_of_strangers_take_no_memory_from_clients(start_node: StartNode) -> None:
    node = start_node(appendonly="no", maxmemory=32 << 20, maxmemory_unauthenticated=8 << 20)
    started = settled_bytes(node), resident_bytes(node)
    message = bytearray(bus.encode(bus.MEET, b"5e4d" * 10, 7711, 0, 1, b""))
    message[4:8] = (1 << 21).to_bytes(4, "big")
    links = [bus_socket(node) for _ in range(50)]
    try:
        for link in links:
            with suppress(OSError):  # closed: others hold as much
                link.sendall(message + bytes(1_000_000))
        wait_until(lambda: "must be at most 8388608 bytes" in node.log.read_text())
        wait_until(lambda: resident_bytes(node) - started[1] < 24 << 20)
        assert settled_bytes(node) - started[0] < 100_000
        assert node.call("ADDJOB", QUEUE, "body", 0)
    finally:
        for link in links:
            link.close()


def test_gossip_about_thousands_of_nodes_is_read_at_once(start_node: StartNode) -> None:
    node = start_node(appendonly="no")
    messages, names = 5, range(10_000)
    entries = b"".join(
        bus.GOSSIP.pack(b"%040d" % name, 0, 0, b"127.%d.%d.1" % (name >> 8, name & 255), 7711, 0) for name in names
    )
    with bus_socket(node) as link:
        for number in range(messages):
            link.sendall(bus.encode(bus.MEET, b"5e4d" * 10, 7711, 0, number + 1, entries, count=len(names)))
        # Where each entry looked at all handshakes, and the end of each at all nodes, a message took many seconds.
        wait_until(lambda: b"stats_messages_received:%d" % messages in node.call("CLUSTER", "INFO"))
    assert_unharmed(node)


def test_a_peer_that_claims_an_impossible_port_is_still_reached_where_it_was(start_node: StartNode) -> None:
    nodes = start_cluster(start_node, 2)
    with bus_socket(nodes[0]) as link:
        link.sendall(bus.encode(bus.PING, nodes[1].call("CLUSTER", "MYID"), 60_000, 0, 1, b""))
        assert link.recv(bus.HEADER_BYTES)
    assert_works(nodes)
    assert "Traceback" not in nodes[0].log.read_text()


def test_bytes_at_random_and_damaged_messages_harm_nobody(start_node: StartNode) -> None:
    node, other = (start_node(cluster_node_timeout=NODE_TIMEOUT_MS) for _ in range(2))
    chance = random.Random(11)
    ids = [peer.call("CLUSTER", "MYID") for peer in (node, other)]
    with suppress(OSError):
        for _ in range(20):
            with bus_socket(node) as link:
                for number in range(100):
                    size = chance.choice([0, 8, 40, 44, 52, 104, 208, 300])
                    sender = chance.choice([*ids, chance.randbytes(40)])
                    data = bytearray(
                        bus.encode(
                            chance.randrange(18),
                            sender,
                            chance.randrange(65_536),
                            chance.randrange(65_536),
                            number,
                            chance.randbytes(size),
                            chance.randrange(1 << 24),
                            chance.randrange(4),
                        )
                    )
                    if chance.random() < 0.3:
                        at = chance.randrange(8, len(data))
                        data[at] ^= 1 << chance.randrange(8)
                    link.sendall(bytes(data))
    meet(node, other)
    assert_works([node, other])
    assert "Traceback" not in node.log.read_text()


def test_an_open_bus_on_the_network_is_warned_of(start_node: StartNode) -> None:
    for bind, directives in (
        ("0.0.0.0", {}),
        ("127.0.0.1", {}),
        ("0.0.0.0", {"cluster_secret": SECRET}),
    ):
        node = start_node(bind=bind, appendonly="no", **directives)
        warns = "cluster-secret or tls-cluster" in node.log.read_text()
        assert warns == (bind == "0.0.0.0" and not directives)


# With a secret


def test_nodes_with_the_same_secret_form_a_cluster(start_node: StartNode) -> None:
    assert_works(start_cluster(start_node, cluster_secret=SECRET))


@pytest.mark.parametrize("other_secret", [SECRET + "!", ""], ids=["another secret", "no secret"])
def test_nodes_without_the_same_secret_dont_meet(start_node: StartNode, other_secret: str) -> None:
    nodes = start_cluster(start_node, 2, cluster_secret=SECRET)
    directives = {"cluster_secret": other_secret} if other_secret else {}
    other = start_node(cluster_node_timeout=NODE_TIMEOUT_MS, **directives)
    for node, to in ((other, nodes[0]), (nodes[0], other)):
        node.call("CLUSTER", "MEET", to.host, to.port)
        assert_unharmed(nodes[0], known=2)
        assert_unharmed(other)
    assert all("cluster-secret" in node.log.read_text() for node in (nodes[0], other))
    assert_works(nodes)


def test_a_stranger_without_the_secret_is_asked_for_it_and_heard_no_more(start_node: StartNode) -> None:
    node = start_node(cluster_secret=SECRET, appendonly="no")
    with bus_socket(node) as sock:
        assert len(sock.recv(CHALLENGE_BYTES)) == CHALLENGE_BYTES
        sock.sendall(bytes(ANSWER_BYTES))
        assert rest_of(sock) == b""
    with bus_socket(node) as sock:
        sock.sendall(bus.encode(bus.MEET, b"5e4d" * 10, 7711, 0, 1, b""))
        assert len(rest_of(sock)) == CHALLENGE_BYTES
    assert node.log.read_text().count("cluster-secret") == 1
    assert_unharmed(node)
    assert b"stats_messages_received:0" in node.call("CLUSTER", "INFO")


def test_a_node_can_not_be_made_to_answer_its_own_challenge(start_node: StartNode) -> None:
    node = start_node(cluster_secret=SECRET, appendonly="no", cluster_node_timeout=NODE_TIMEOUT_MS)
    port = free_port()
    with socket.create_server(("127.0.0.1", port + 10_000)) as server, bus_socket(node) as link:
        server.settimeout(30)
        challenge = link.recv(CHALLENGE_BYTES)
        node.call("CLUSTER", "MEET", "127.0.0.1", port)
        called, _ = server.accept()
        with called:
            called.settimeout(30)
            called.sendall(challenge)
            assert rest_of(called) == b"", "the node proved to a stranger that it knows the secret"
    assert "id of this node" in node.log.read_text()
    assert_unharmed(node)


def test_the_secret_is_not_to_be_had_from_the_node(start_node: StartNode) -> None:
    node = start_node(cluster_secret=SECRET, appendonly="no")
    assert SECRET.encode() not in b"".join(node.call("CONFIG", "GET", "*"))
    assert SECRET.encode() not in node.call("INFO", "all")
    assert SECRET not in node.log.read_text()


# With TLS


def test_nodes_with_certificates_of_one_authority_form_a_cluster(start_node: StartNode, authority: Authority) -> None:
    pairs = [authority.sign(f"member{number}") for number in range(3)]
    nodes = [start_node(cluster_node_timeout=NODE_TIMEOUT_MS, **tls_directives(authority, pair)) for pair in pairs]
    meet(*nodes)
    assert_works(nodes)
    body = bytes(range(256)) * 80_000
    job_id = nodes[0].call("ADDJOB", QUEUE, body, 30_000, "REPLICATE", 3)
    assert nodes[2].call("SHOW", job_id)[-3] == body


def test_a_secret_and_tls_work_together(start_node: StartNode, authority: Authority) -> None:
    directives = tls_directives(authority, authority.sign("both"))
    assert_works(start_cluster(start_node, 2, cluster_secret=SECRET, **directives))


def test_a_node_without_tls_or_of_another_authority_doesnt_meet_one_with_it(
    start_node: StartNode, authority: Authority, stranger: Authority
) -> None:
    directives = tls_directives(authority, authority.sign("secure"))
    node = start_node(cluster_node_timeout=NODE_TIMEOUT_MS, **directives)
    plain = start_node(cluster_node_timeout=NODE_TIMEOUT_MS)
    foreign = start_node(cluster_node_timeout=NODE_TIMEOUT_MS, **tls_directives(stranger, stranger.sign("foreign")))
    half = start_node(  # it would trust our node, but ours doesn't trust it
        cluster_node_timeout=NODE_TIMEOUT_MS, **tls_directives(authority, stranger.sign("half"))
    )
    for other in (plain, foreign, half):
        for caller, called in ((other, node), (node, other)):
            caller.call("CLUSTER", "MEET", called.host, called.port)
            wait_until(lambda: members(caller) == 2)  # noqa: B023 - called at once
            assert_unharmed(node)
            assert_unharmed(other)
    assert "TLS failed" in node.log.read_text()


def tls_client(authority: Authority, pair: Pair | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.cert))
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    return context


def test_without_a_certificate_nobody_is_heard(
    start_node: StartNode, authority: Authority, stranger: Authority
) -> None:
    node = start_node(appendonly="no", **tls_directives(authority, authority.sign("strict")))
    for pair in (None, stranger.sign("nobody")):
        # With TLS 1.3 a client hears only when it reads that its certificate is refused.
        with (
            bus_socket(node) as plain,
            suppress(ssl.SSLError, ConnectionError),
            tls_client(authority, pair).wrap_socket(plain, server_hostname=node.host) as secure,
        ):
            secure.sendall(peer_ping())
            assert secure.recv(1) == b""
    with bus_socket(node) as plain:
        plain.sendall(peer_ping())
        assert b"DbuZ" not in rest_of(plain)
    assert_unharmed(node)
    assert b"stats_messages_received:0" in node.call("CLUSTER", "INFO")


@pytest.mark.parametrize("missing", ["tls_cert_file", "tls_key_file", "tls_ca_cert_file"])
def test_tls_needs_all_its_files(start_node: StartNode, authority: Authority, missing: str) -> None:
    directives = tls_directives(authority, authority.sign("incomplete"))
    del directives[missing]
    node = start_node(wait=False, **directives)
    assert node.process is not None
    assert node.process.wait(30) == 1
    assert "tls-cluster needs tls-cert-file, tls-key-file and tls-ca-cert-file" in node.log.read_text()
