"""Copies of jobs that original nodes have a real one keep, queue and delete: REPLJOB, ENQUEUE and DELJOB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.bus_cluster import BusCluster
from tests.bus_messages import BCAST_QUEUED, BCAST_WILLQUEUE, LITTLE, NOREPLY, PAUSED_IN, QUEUED, Message

pytestmark = pytest.mark.system

StartCluster = Callable[..., BusCluster]

QUEUE = b"work"
BODY = bytes(range(256))
UNKNOWN_NODE = b"0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cluster(start_cluster: StartCluster) -> BusCluster:
    """A node and one peer."""
    return start_cluster()


# Copies that the node takes


def test_a_copy_is_confirmed_and_kept_with_all_its_fields(cluster: BusCluster) -> None:
    job = cluster.replicate(
        cluster.peer,
        queue=QUEUE,
        body=BODY,
        replicate=2,
        expires=7200,
        delay=600,
        retry=300,
        nacks=3,
        deliveries=4,
    )
    facts = cluster.show(job.id)
    assert facts is not None
    requeue_ms, awake_ms, ttl_s = (facts.pop(f) for f in ("next-requeue-within", "next-awake-within", "ttl"))
    holders = set(facts.pop("nodes-delivered"))
    assert facts == {
        "id": job.id,
        "queue": QUEUE,
        "state": b"active",
        "repl": 2,
        "ctime": job.ctime,
        "delay": 600,
        "retry": 300,
        "nacks": 3,
        "additional-deliveries": 4,
        "nodes-confirmed": [],
        "body": BODY,
        "tries": 3,
    }
    assert holders == {cluster.peer.id, cluster.id}
    assert 7100 <= ttl_s <= 7200
    assert 800_000 <= requeue_ms <= 900_250
    assert awake_ms <= requeue_ms
    assert cluster.node.call("QLEN", QUEUE) == 0


def test_a_confirmation_has_the_bytes_of_an_original(cluster: BusCluster) -> None:
    job = cluster.peer.new_job(nodes=(cluster.peer.id, cluster.id))
    cluster.peer.send("REPLJOB", jobs=(job,))
    message = cluster.peer.wait_for("GOTJOB")
    expected = Message(
        kind="GOTJOB",
        sender=cluster.id,
        port=cluster.node.port,
        flags=message.flags,
        unused=message.unused,
        job_id=job.id,
    )
    assert message.raw == expected.encode()


@pytest.mark.parametrize("state", range(4))
def test_a_copy_is_active_whatever_its_sender_did_with_it(cluster: BusCluster, state: int) -> None:
    job = cluster.replicate(cluster.peer, state=state, gc_retry=9, flags=BCAST_QUEUED | BCAST_WILLQUEUE)
    assert cluster.state(job.id) == "active"


def test_holders_that_the_node_does_not_know_are_dropped(cluster: BusCluster) -> None:
    job = cluster.replicate(cluster.peer, nodes=(cluster.peer.id, UNKNOWN_NODE, cluster.id))
    assert cluster.holders(job.id) == {cluster.peer.id, cluster.id}


def test_a_copy_that_comes_again_adds_its_holders_and_is_confirmed_again(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    first, second = cluster.peers
    job = cluster.replicate_queued(first, body=b"the body")
    again = first.new_job(id=job.id, body=b"another body", nodes=(first.id, second.id), nacks=9)
    first.send("REPLJOB", jobs=(again,))
    first.wait_for("GOTJOB", job_id=job.id)
    assert cluster.holders(job.id) == {cluster.id, first.id, second.id}
    assert cluster.state(job.id) == "queued"
    assert cluster.fact(job.id, "body") == b"the body"
    assert cluster.fact(job.id, "nacks") == 0


def test_a_copy_that_needs_no_reply_gets_none(cluster: BusCluster) -> None:
    quiet = cluster.peer.new_job(nodes=(cluster.peer.id, cluster.id))
    cluster.peer.send("REPLJOB", jobs=(quiet,), marks=NOREPLY)
    cluster.replicate(cluster.peer)
    assert cluster.state(quiet.id) == "active"
    assert not cluster.peer.seen("GOTJOB", job_id=quiet.id)


def test_an_empty_queue_name_and_an_empty_body_are_copied(cluster: BusCluster) -> None:
    job = cluster.replicate(cluster.peer, queue=b"", body=b"")
    assert (cluster.fact(job.id, "queue"), cluster.fact(job.id, "body")) == (b"", b"")


def test_a_copy_outlives_a_restart(start_cluster: StartCluster) -> None:
    cluster = start_cluster(appendonly="yes", appendfsync="always")
    job = cluster.replicate(cluster.peer, queue=QUEUE, body=BODY)
    cluster.node.kill()
    cluster.node.start()
    assert cluster.fact(job.id, "body") == BODY
    assert cluster.holders(job.id) == {cluster.id, cluster.peer.id}


# Copies that it refuses


def assert_refused(cluster: BusCluster, **fields: Any) -> None:
    """Send a REPLJOB and see that it is neither kept nor confirmed, and that the link outlives it."""
    peer = cluster.peer
    job = peer.new_job(nodes=(peer.id, cluster.id), queue=QUEUE)
    peer.send("REPLJOB", **{"jobs": (job,), **fields})
    cluster.flush(peer)
    assert cluster.show(job.id) is None
    assert not peer.seen("GOTJOB")
    assert peer.hangups == 0


@pytest.mark.parametrize("number", [0, 2, 0xFFFFFFFF])
def test_a_copy_is_refused_unless_it_comes_alone(cluster: BusCluster, number: int) -> None:
    assert_refused(cluster, number_of_jobs=number)


def test_two_copies_in_one_message_are_refused(cluster: BusCluster) -> None:
    jobs = tuple(cluster.peer.new_job(nodes=(cluster.peer.id, cluster.id)) for _ in range(2))
    assert_refused(cluster, jobs=jobs)
    assert [cluster.show(job.id) for job in jobs] == [None, None]


@pytest.mark.parametrize("place", [0, 4, 14, 39, 72, 81, 89])
def test_a_damaged_copy_is_refused(cluster: BusCluster, place: int) -> None:
    peer = cluster.peer
    job = peer.new_job(nodes=(peer.id, cluster.id), queue=b"queue", body=b"body")
    raw = bytearray(job.encode())
    assert LITTLE.unpack_from(raw, 81) == (4,)  # the body's length
    assert LITTLE.unpack_from(raw, 89) == (2,)  # the number of nodes
    raw[place] = 0xFE
    assert_refused(cluster, jobs=(), tail=bytes(raw), number_of_jobs=1, bytes_of_jobs=len(raw))
    assert cluster.show(job.id) is None


def test_a_copy_is_refused_while_its_queue_takes_no_jobs(cluster: BusCluster) -> None:
    cluster.node.call("PAUSE", QUEUE, "in")
    assert_refused(cluster)
    cluster.node.call("PAUSE", QUEUE, "none")
    cluster.replicate(cluster.peer, queue=QUEUE)


def test_a_copy_is_refused_by_a_node_that_leaves(cluster: BusCluster) -> None:
    cluster.node.call("CLUSTER", "LEAVING", "yes")
    assert_refused(cluster)
    cluster.node.call("CLUSTER", "LEAVING", "no")
    cluster.replicate(cluster.peer)


def test_a_copy_is_refused_by_a_node_that_is_short_of_memory(cluster: BusCluster) -> None:
    for _ in range(10):
        cluster.node.call("ADDJOB", b"ballast", bytes(1_000_000), 0, "REPLICATE", 1)
    used = int(cluster.node.info()["used_memory"])
    cluster.node.call("CONFIG", "SET", "maxmemory", used * 100 // 85)
    assert_refused(cluster)
    cluster.node.call("CONFIG", "SET", "maxmemory", used * 10)
    cluster.replicate(cluster.peer)


# ENQUEUE and DELJOB from a peer


def test_a_peer_has_the_node_queue_its_copy(cluster: BusCluster) -> None:
    job = cluster.replicate(cluster.peer, queue=QUEUE, body=BODY, flags=BCAST_QUEUED)
    cluster.peer.send("ENQUEUE", job_id=job.id)
    cluster.flush(cluster.peer)
    assert cluster.state(job.id) == "queued"
    assert not cluster.peer.seen("QUEUED")
    counters = [b"nacks", 0, b"additional-deliveries", 0]
    assert cluster.fetch(QUEUE, "WITHCOUNTERS") == [[QUEUE, job.id, BODY, *counters]]


def test_a_peer_has_the_node_queue_its_copy_later(cluster: BusCluster) -> None:
    job = cluster.replicate(cluster.peer, retry=1000)
    cluster.peer.send("ENQUEUE", job_id=job.id, aux=500)
    cluster.peer.fence()
    assert cluster.state(job.id) == "active"
    assert 400_000 < cluster.fact(job.id, "next-requeue-within") <= 500_001


def test_a_copy_is_not_queued_while_its_queue_takes_no_jobs(cluster: BusCluster) -> None:
    job = cluster.replicate(cluster.peer, queue=QUEUE)
    cluster.peer.send("PAUSE", queue=QUEUE, pause=PAUSED_IN)
    cluster.peer.send("ENQUEUE", job_id=job.id)
    cluster.peer.fence()
    assert cluster.state(job.id) == "active"


def test_an_unknown_job_is_not_queued(cluster: BusCluster) -> None:
    job = cluster.peer.new_job(state=QUEUED)
    cluster.peer.send("ENQUEUE", job_id=job.id)
    cluster.peer.fence()
    assert cluster.show(job.id) is None


def test_a_peer_deletes_a_copy(cluster: BusCluster) -> None:
    active = cluster.replicate(cluster.peer, queue=QUEUE)
    queued = cluster.replicate_queued(cluster.peer, queue=QUEUE)
    for job in (active, queued):
        cluster.peer.send("DELJOB", job_id=job.id)
    cluster.peer.fence()
    assert [cluster.show(job.id) for job in (active, queued)] == [None, None]
    assert cluster.node.call("QLEN", QUEUE) == 0
    assert cluster.node.info()["registered_jobs"] == "0"


def test_a_deleted_copy_stays_deleted_after_a_restart(start_cluster: StartCluster) -> None:
    cluster = start_cluster(appendonly="yes", appendfsync="always")
    job = cluster.replicate(cluster.peer)
    cluster.peer.send("DELJOB", job_id=job.id)
    cluster.peer.fence()
    cluster.node.kill()
    cluster.node.start()
    assert cluster.show(job.id) is None
