"""Requeues among a real node and original ones: WILLQUEUE, QUEUED and WORKING in both directions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.bus_cluster import BusCluster
from tests.bus_messages import INCR_DELIV, INCR_NACKS, JobCopy, Message
from tests.bus_peer import BusPeer
from tests.processes import wait_until

pytestmark = pytest.mark.system

StartCluster = Callable[..., BusCluster]

QUEUE = b"work"
ANNOUNCEMENTS = ("WILLQUEUE", "QUEUED")
COUNTERS = {0: (0, 0), INCR_NACKS: (1, 0), INCR_DELIV: (0, 1)}


@pytest.fixture
def cluster(start_cluster: StartCluster) -> BusCluster:
    """A node and one peer."""
    return start_cluster()


def is_greater(sender: bytes, receiver: bytes, job_id: bytes) -> bool:
    """Return in whose queue a job stays that two nodes have queued: the greater's, by a measure of each job's own."""
    key = job_id[11:35]

    def measure(node: bytes) -> list[int]:
        return [byte ^ key[place % 24] for place, byte in enumerate(node)]

    return measure(sender) > measure(receiver)


def queued_job(cluster: BusCluster, peer: BusPeer, peer_is_greater: bool, **fields: int) -> JobCopy:
    """Have the node queue a copy of a peer's job for which the peer is the greater one, or isn't."""
    while True:
        job_id = peer.new_job().id
        if is_greater(peer.id, cluster.id, job_id) == peer_is_greater:
            return cluster.replicate_queued(peer, id=job_id, queue=QUEUE, **fields)


def counters(cluster: BusCluster, job_id: bytes) -> tuple[int, int]:
    """Return nacks and additional deliveries of a job."""
    return cluster.fact(job_id, "nacks"), cluster.fact(job_id, "additional-deliveries")


def acked_job(cluster: BusCluster) -> bytes:
    """Leave the node with an acked job whose other holder has not confirmed the ack."""
    holder = cluster.peer
    job = cluster.replicate(holder)
    assert cluster.node.call("ACKJOB", job.id) == 1
    holder.wait_for("SETACK", job_id=job.id)
    assert cluster.state(job.id) == "acked"
    return job.id


# What the node announces


def test_a_requeue_is_announced_and_sent(cluster: BusCluster) -> None:
    job_id = cluster.add_fetched(QUEUE, "RETRY", 1)
    first, second = (cluster.peer.wait_for(ANNOUNCEMENTS) for _ in range(2))
    assert [(message.kind, message.job_id, message.marks) for message in (first, second)] == [
        ("WILLQUEUE", job_id, 0),
        ("QUEUED", job_id, INCR_DELIV),
    ]
    for message in (first, second):
        expected = Message(
            kind=message.kind,
            sender=cluster.id,
            port=cluster.node.port,
            flags=message.flags,
            unused=message.unused,
            marks=message.marks,
            job_id=job_id,
        )
        assert message.raw == expected.encode()
    assert cluster.state(job_id) == "queued"
    assert counters(cluster, job_id) == (0, 1)


def test_a_copy_is_queued_when_nobody_else_does(cluster: BusCluster) -> None:
    job = cluster.replicate(cluster.peer, queue=QUEUE, retry=1)
    first, second = (cluster.peer.wait_for(ANNOUNCEMENTS) for _ in range(2))
    assert (first.kind, first.job_id) == ("WILLQUEUE", job.id)
    assert (second.kind, second.job_id, second.marks) == ("QUEUED", job.id, INCR_DELIV)
    wait_until(lambda: cluster.node.call("QLEN", QUEUE) == 1)


def test_every_requeue_is_sent_to_every_holder(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    job_id = cluster.add_fetched(QUEUE, "RETRY", 1)
    for number in (1, 2):
        for peer in cluster.peers:
            peer.wait_for("WILLQUEUE", job_id=job_id)
            peer.wait_for("QUEUED", job_id=job_id, marks=INCR_DELIV)
        (job,) = cluster.fetch(QUEUE, "WITHCOUNTERS")
        assert job[1:] == [job_id, b"body", b"nacks", 0, b"additional-deliveries", number]


def test_a_job_that_waits_in_its_queue_is_not_announced_again(cluster: BusCluster) -> None:
    waiting = cluster.add(b"waiting", "RETRY", 1)
    # Two requeues of another job take at least as long as one of this.
    clock = cluster.add_fetched(QUEUE, "RETRY", 1)
    for _ in range(2):
        cluster.peer.wait_for("QUEUED", job_id=clock)
        assert cluster.fetch(QUEUE)
    assert not cluster.peer.seen(ANNOUNCEMENTS, job_id=waiting)
    assert counters(cluster, waiting) == (0, 0)


def test_the_first_queueing_is_not_sent(cluster: BusCluster) -> None:
    cluster.add(QUEUE)
    cluster.flush(cluster.peer)
    assert not cluster.peer.seen(ANNOUNCEMENTS)


@pytest.mark.parametrize(("command", "mark"), [("NACK", INCR_NACKS), ("ENQUEUE", INCR_DELIV)])
def test_a_returned_job_is_sent_with_its_counters(cluster: BusCluster, command: str, mark: int) -> None:
    job_id = cluster.add_fetched(QUEUE)
    assert cluster.node.call(command, job_id) == 1
    told = cluster.peer.wait_for("QUEUED")
    assert (told.job_id, told.marks) == (job_id, mark)
    assert counters(cluster, job_id) == COUNTERS[mark]


def test_a_worker_that_needs_longer_is_announced(cluster: BusCluster) -> None:
    job_id = cluster.add_fetched(QUEUE, "RETRY", 60)
    assert cluster.node.call("WORKING", job_id) == 60
    assert cluster.peer.wait_for("WORKING").job_id == job_id


def test_a_job_that_only_this_node_holds_is_not_talked_about(cluster: BusCluster) -> None:
    alone = cluster.node.call("ADDJOB", b"alone", "body", 0, "REPLICATE", 1, "RETRY", 1)
    assert cluster.fetch(b"alone")
    wait_until(lambda: cluster.state(alone) == "queued")
    cluster.flush(cluster.peer)
    assert not cluster.peer.seen(ANNOUNCEMENTS)


# What it makes of a QUEUED


@pytest.mark.parametrize("mark", COUNTERS)
def test_a_node_gives_way_to_a_greater_one_that_has_queued_the_same_job(cluster: BusCluster, mark: int) -> None:
    job = queued_job(cluster, cluster.peer, peer_is_greater=True)
    cluster.peer.send("QUEUED", job_id=job.id, marks=mark)
    cluster.peer.fence()
    assert cluster.state(job.id) == "active"
    assert cluster.fetch(QUEUE) == []
    assert counters(cluster, job.id) == COUNTERS[mark]


@pytest.mark.parametrize("mark", COUNTERS)
def test_a_node_does_not_give_way_to_a_lesser_one(cluster: BusCluster, mark: int) -> None:
    job = queued_job(cluster, cluster.peer, peer_is_greater=False)
    cluster.peer.send("QUEUED", job_id=job.id, marks=mark)
    cluster.peer.fence()
    assert cluster.state(job.id) == "queued"
    assert counters(cluster, job.id) == COUNTERS[mark]
    assert [found[1] for found in cluster.fetch(QUEUE)] == [job.id]


def test_which_node_keeps_a_job_depends_on_the_job(cluster: BusCluster) -> None:
    jobs = [cluster.replicate_queued(cluster.peer, queue=QUEUE) for _ in range(100)]
    for job in jobs:
        cluster.peer.send("QUEUED", job_id=job.id)
    cluster.peer.fence()
    still_here = {job.id for job in jobs if cluster.state(job.id) == "queued"}
    assert still_here == {job.id for job in jobs if not is_greater(cluster.peer.id, cluster.id, job.id)}


@pytest.mark.parametrize("kind", ["QUEUED", "WORKING"])
def test_what_happens_to_a_job_elsewhere_postpones_its_requeue_here(cluster: BusCluster, kind: str) -> None:
    job = cluster.replicate(cluster.peer, retry=1000)
    cluster.peer.send("ENQUEUE", job_id=job.id, aux=500)
    cluster.peer.send(kind, job_id=job.id)
    cluster.peer.fence()
    assert cluster.state(job.id) == "active"
    assert 900_000 < cluster.fact(job.id, "next-requeue-within") <= 1_000_250
    assert counters(cluster, job.id) == (0, 0)


def test_an_active_job_that_is_queued_elsewhere_is_not_queued_here(cluster: BusCluster) -> None:
    job = cluster.replicate(cluster.peer, queue=QUEUE)
    cluster.peer.send("QUEUED", job_id=job.id, marks=INCR_DELIV)
    cluster.peer.fence()
    assert cluster.state(job.id) == "active"
    assert counters(cluster, job.id) == (0, 1)


def test_a_queued_job_that_is_worked_on_elsewhere_leaves_its_queue(cluster: BusCluster) -> None:
    for peer_is_greater in (False, True):
        job = queued_job(cluster, cluster.peer, peer_is_greater)
        cluster.peer.send("WORKING", job_id=job.id)
        cluster.peer.fence()
        assert cluster.state(job.id) == "active"
        assert counters(cluster, job.id) == (0, 0)
    assert cluster.fetch(QUEUE) == []


def test_a_postponed_job_is_announced_again_before_its_requeue(cluster: BusCluster) -> None:
    job = cluster.replicate(cluster.peer, queue=QUEUE, retry=2)
    cluster.peer.wait_for("WILLQUEUE", job_id=job.id)
    cluster.peer.send("WORKING", job_id=job.id)
    cluster.peer.wait_for("WILLQUEUE", job_id=job.id)
    cluster.peer.wait_for("QUEUED", job_id=job.id)


# What it makes of a WILLQUEUE


def test_a_node_that_has_a_job_queued_says_so_to_all_holders(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    asking, other = cluster.peers
    job = cluster.replicate_queued(asking, queue=QUEUE, nodes=(asking.id, other.id, cluster.id))
    asking.send("WILLQUEUE", job_id=job.id)
    for peer in cluster.peers:
        told = peer.wait_for("QUEUED")
        assert (told.job_id, told.marks) == (job.id, 0)
    assert counters(cluster, job.id) == (0, 0)
    assert cluster.state(job.id) == "queued"


def test_a_node_that_does_not_have_it_queued_says_nothing(cluster: BusCluster) -> None:
    job = cluster.replicate(cluster.peer)
    cluster.peer.send("WILLQUEUE", job_id=job.id)
    cluster.flush(cluster.peer)
    assert cluster.state(job.id) == "active"
    assert not cluster.peer.seen(ANNOUNCEMENTS)


@pytest.mark.parametrize("is_queued", [False, True])
def test_whoever_announces_a_job_holds_it(start_cluster: StartCluster, is_queued: bool) -> None:
    cluster = start_cluster(peers=2)
    holder, asking = cluster.peers
    job = cluster.replicate_queued(holder) if is_queued else cluster.replicate(holder)
    asking.send("WILLQUEUE", job_id=job.id)
    asking.fence()
    assert cluster.holders(job.id) == {cluster.id, holder.id, asking.id}


# Jobs that are finished or unknown here


@pytest.mark.parametrize("kind", ["WILLQUEUE", "QUEUED", "WORKING"])
def test_whoever_has_not_heard_of_an_ack_is_informed(start_cluster: StartCluster, kind: str) -> None:
    cluster = start_cluster(peers=2)
    job_id = acked_job(cluster)
    asking = cluster.peers[1]
    asking.send(kind, job_id=job_id)
    assert asking.wait_for("SETACK").job_id == job_id
    assert cluster.state(job_id) == "acked"


@pytest.mark.parametrize("kind", ["WILLQUEUE", "QUEUED", "WORKING", "GOTJOB", "ENQUEUE", "DELJOB"])
def test_messages_about_an_unknown_job_change_nothing(cluster: BusCluster, kind: str) -> None:
    job = cluster.peer.new_job()
    cluster.peer.send(kind, job_id=job.id)
    cluster.flush(cluster.peer)
    assert cluster.show(job.id) is None
    assert not cluster.peer.seen(("WILLQUEUE", "QUEUED", "WORKING", "SETACK", "GOTACK", "DELJOB"))
