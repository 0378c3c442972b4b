"""Single messages to a real node: from strangers, of wrong form, in pieces and in heaps.

One node with one peer serves all tests of this file, so each has jobs and queues of its own.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.bus_cluster import BusCluster
from tests.bus_messages import ABOUT_A_JOB, INCR_DELIV, TYPES, Gossip
from tests.bus_peer import BUS_PORT_OFFSET, BusPeer
from tests.processes import NodeProcess, resident_bytes

pytestmark = pytest.mark.system

JOB_TYPES = TYPES[3:]
ANNOUNCED_BYTES = 500_000_000


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BusCluster]:
    """A node and one peer for all tests of this file."""
    peers: list[BusPeer] = []

    def start_peer(**options: Any) -> BusPeer:
        peers.append(BusPeer(**options))
        return peers[-1]

    node = NodeProcess(tmp_path_factory.mktemp("node"), appendonly="no").start()
    cluster = BusCluster(node, start_peer)
    cluster.join()
    yield cluster
    cluster.close()
    node.kill()
    for peer in peers:
        peer.close()


@pytest.fixture
def cluster(shared_cluster: BusCluster) -> Iterator[BusCluster]:
    """The cluster of this file, which must be as well after a test as before."""
    yield shared_cluster
    shared_cluster.flush(shared_cluster.peer)
    assert shared_cluster.peer.violations == []
    assert shared_cluster.peer.hangups == 0
    assert set(shared_cluster.lines()) == {shared_cluster.id, shared_cluster.peer.id}
    assert shared_cluster.flags(shared_cluster.peer) == {"noflags"}
    assert "Traceback" not in shared_cluster.node.log.read_text()


def facts_of(cluster: BusCluster, job_id: bytes) -> dict[str, Any]:
    """Return what SHOW tells about a job, without what changes by itself."""
    facts = cluster.show(job_id)
    assert facts is not None
    requeue_ms = facts["next-requeue-within"]
    for name in ("ttl", "next-awake-within", "next-requeue-within"):
        del facts[name]
    return {**facts, "nodes-delivered": cluster.holders(job_id), "requeue in minutes": round(requeue_ms / 60_000)}


def samples_of(sender: BusPeer, cluster: BusCluster, queue: bytes) -> dict[str, dict[str, Any]]:
    """Return fields for messages that would change something; those about a job are left out."""
    third = Gossip(b"0123456789abcdef0123456789abcdef01234567", "127.0.0.1", 9)
    return {
        "PING": {"gossip": (third,)},
        "PONG": {"gossip": (third,)},
        "MEET": {"gossip": (third,)},
        "FAIL": {"node": cluster.peer.id},
        "REPLJOB": {"jobs": (sender.new_job(queue=queue, nodes=(sender.id, cluster.id)),)},
        "YOURJOBS": {"jobs": (sender.new_job(queue=queue),)},
        "NEEDJOBS": {"wanted": 1, "queue": queue},
        "PAUSE": {"pause": 3, "queue": queue},
    }


# Strangers


def test_a_stranger_is_answered_and_not_remembered(cluster: BusCluster) -> None:
    stranger = cluster.stranger()
    stranger.fence()
    assert stranger.wait_for("PONG").sender == cluster.id
    assert stranger.id not in cluster.lines()


@pytest.mark.parametrize("kind", JOB_TYPES)
def test_messages_from_unknown_senders_change_nothing(cluster: BusCluster, queue: bytes, kind: str) -> None:
    stranger = cluster.stranger()
    active = cluster.replicate(cluster.peer, queue=queue, retry=1000, delay=1000)
    queued = cluster.replicate_queued(cluster.peer, queue=queue, retry=1000)
    before = [facts_of(cluster, job.id) for job in (active, queued)]
    samples = samples_of(stranger, cluster, queue)
    if kind in ABOUT_A_JOB:
        aux = 3 if kind == "SETACK" else 0
        marks = INCR_DELIV if kind == "QUEUED" else 0
        for job in (active, queued):
            stranger.send(kind, job_id=job.id, aux=aux, marks=marks)
    else:
        stranger.send(kind, **samples[kind])
    stranger.fence()
    assert [facts_of(cluster, job.id) for job in (active, queued)] == before
    assert all(cluster.show(new.id) is None for new in samples.get(kind, {}).get("jobs", ()))
    assert cluster.node.call("PAUSE", queue, "state") == b"none"
    assert cluster.node.call("QLEN", queue) == 1
    assert stranger.seen(tuple(kind for kind in TYPES if kind != "PONG")) == []


# Bytes that make no sense


@pytest.mark.parametrize("wrong", [{"magic": b"DbuX"}, {"length": 143}, {"length": 0}])
def test_a_bad_frame_ends_its_link_and_no_other(cluster: BusCluster, wrong: dict[str, Any]) -> None:
    stranger = cluster.stranger()
    stranger.send("PING", **wrong)
    stranger.wait_for_hangup()
    stranger.fence()  # on a new link


def test_a_bad_frame_ends_the_link_of_a_known_node_too(cluster: BusCluster) -> None:
    cluster.peer.send("PING", magic=b"\0\0\0\0")
    cluster.peer.wait_for_hangup()
    cluster.peer.fence()


def test_a_client_that_took_the_wrong_port_is_hung_up_on(cluster: BusCluster) -> None:
    address = (cluster.node.host, cluster.node.port + BUS_PORT_OFFSET)
    with socket.create_connection(address, 30) as link, suppress(ConnectionResetError):
        link.sendall(b"*1\r\n$4\r\nPING\r\n" * 20)
        assert link.recv(1000) == b""


@pytest.mark.parametrize("version", [0, 2, 65_535])
def test_a_message_of_another_version_is_ignored(cluster: BusCluster, version: int) -> None:
    peer = cluster.peer
    job = peer.new_job(nodes=(peer.id, cluster.id))
    peer.send("REPLJOB", jobs=(job,), version=version)
    cluster.flush(peer)
    assert cluster.show(job.id) is None
    assert not peer.seen("GOTJOB", job_id=job.id)


@pytest.mark.parametrize("kind", ["TYPE16", "TYPE65535"])
def test_a_message_of_an_unknown_type_is_ignored(cluster: BusCluster, kind: str) -> None:
    cluster.peer.send(kind, tail=b"whatever this is")
    cluster.peer.fence()


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("kind", TYPES)
def test_a_message_with_a_wrong_length_is_ignored(cluster: BusCluster, queue: bytes, kind: str, change: int) -> None:
    peer = cluster.peer
    job = cluster.replicate_queued(peer, queue=queue, retry=1000)
    before = facts_of(cluster, job.id)
    samples = samples_of(peer, cluster, queue)
    raw = peer.message(kind, **samples.get(kind, {"job_id": job.id})).encode()
    rest = raw[8:] + b"!" if change > 0 else raw[8:-1]
    peer.send_raw(raw[:4] + (8 + len(rest)).to_bytes(4, "big") + rest)
    peer.fence()
    assert facts_of(cluster, job.id) == before
    assert all(cluster.show(new.id) is None for new in samples.get(kind, {}).get("jobs", ()))
    assert cluster.node.call("PAUSE", queue, "state") == b"none"


def test_zeros_of_the_header_may_be_anything(cluster: BusCluster) -> None:
    peer = cluster.peer
    job = peer.new_job(nodes=(peer.id, cluster.id))
    peer.send("REPLJOB", jobs=(job,), address=b"a" * 46, unused=b"u" * 34, reserved=7, state=1)
    peer.wait_for("GOTJOB", job_id=job.id)


# Pieces and heaps


def test_a_message_may_be_split_at_any_byte(cluster: BusCluster) -> None:
    peer = cluster.peer
    size = len(peer.message("REPLJOB", jobs=(peer.new_job(nodes=(peer.id, cluster.id)),)).encode())
    for cut in range(1, size):
        job = peer.new_job(nodes=(peer.id, cluster.id))
        raw = peer.message("REPLJOB", jobs=(job,)).encode()
        peer.send_raw(raw[:cut])
        cluster.node.call("PING")  # by now it has read the first part
        peer.send_raw(raw[cut:])
        peer.wait_for("GOTJOB", job_id=job.id)


def test_many_messages_may_come_at_once(cluster: BusCluster) -> None:
    peer = cluster.peer
    jobs = [peer.new_job(nodes=(peer.id, cluster.id), body=b"%d" % number) for number in range(500)]
    ids = {job.id for job in jobs}
    peer.send_raw(b"".join(peer.message("REPLJOB", jobs=(job,)).encode() for job in jobs))
    for job in jobs:
        assert peer.wait_for("GOTJOB", where=lambda message: message.job_id in ids).job_id == job.id
    assert cluster.fact(jobs[-1].id, "body") == b"499"


def test_a_large_message_arrives_whole(cluster: BusCluster) -> None:
    body = bytes(range(256)) * 40_000
    job = cluster.replicate(cluster.peer, body=body)
    assert cluster.fact(job.id, "body") == body


def test_a_length_that_is_only_announced_costs_nothing(cluster: BusCluster) -> None:
    before = resident_bytes(cluster.node)
    for _ in range(10):
        stranger = cluster.stranger()
        stranger.send("REPLJOB", length=ANNOUNCED_BYTES)
    cluster.peer.fence()
    assert resident_bytes(cluster.node) - before < ANNOUNCED_BYTES / 5


def test_a_node_does_not_mind_links_that_come_and_go(cluster: BusCluster) -> None:
    address = (cluster.node.host, cluster.node.port + BUS_PORT_OFFSET)
    whole = cluster.peer.message("PING").encode()
    for size in range(0, len(whole), 7):
        with socket.create_connection(address, 30) as link:
            link.sendall(whole[:size])
