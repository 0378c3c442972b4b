"""Acks among a real node and original ones: SETACK, GOTACK and DELJOB, with and without a copy of the job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.bus_cluster import BusCluster
from tests.bus_messages import Message
from tests.bus_peer import BusPeer
from tests.processes import wait_until

pytestmark = pytest.mark.system

StartCluster = Callable[..., BusCluster]

QUEUE = b"work"
UNKNOWN = b"D-01234567-abcdefghijklmnopqrstuvwx-05a1"
UNKNOWN_AT_MOST_ONCE = b"D-01234567-abcdefghijklmnopqrstuvwx-05a0"


@pytest.fixture
def cluster(start_cluster: StartCluster) -> BusCluster:
    """A node and one peer."""
    return start_cluster()


def registered(cluster: BusCluster) -> int:
    return int(cluster.node.info()["registered_jobs"])


def confirm(peer: BusPeer, job_id: bytes, known: int = 1) -> None:
    """Have a peer say that it has the ack, and wait until the node has heard."""
    peer.send("GOTACK", job_id=job_id, aux=known)
    peer.fence()


# Acks that come to the node


def test_an_ack_goes_to_the_other_holder_and_the_job_goes_when_that_has_it(cluster: BusCluster) -> None:
    job_id = cluster.add_fetched(QUEUE)
    assert cluster.node.call("ACKJOB", job_id) == 1
    told = cluster.peer.wait_for("SETACK")
    assert (told.job_id, told.aux) == (job_id, 2)
    assert cluster.state(job_id) == "acked"
    assert cluster.fact(job_id, "nodes-confirmed") == [cluster.id]
    cluster.peer.send("GOTACK", job_id=job_id, aux=1)
    assert cluster.peer.wait_for("DELJOB").job_id == job_id
    assert cluster.show(job_id) is None


def test_an_ack_has_the_bytes_of_an_original(cluster: BusCluster) -> None:
    job_id = cluster.add_fetched(QUEUE)
    cluster.node.call("ACKJOB", job_id)
    message = cluster.peer.wait_for("SETACK")
    expected = Message(
        kind="SETACK",
        sender=cluster.id,
        port=cluster.node.port,
        flags=message.flags,
        unused=message.unused,
        job_id=job_id,
        aux=2,
    )
    assert message.raw == expected.encode()


def test_a_job_stays_acked_until_its_last_holder_has_the_ack(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    first, second = cluster.peers
    job_id = cluster.add_fetched(QUEUE)
    cluster.node.call("ACKJOB", job_id)
    for peer in cluster.peers:
        assert peer.wait_for("SETACK", job_id=job_id).aux == 3
    confirm(first, job_id)
    assert cluster.state(job_id) == "acked"
    assert set(cluster.fact(job_id, "nodes-confirmed")) == {cluster.id, first.id}
    confirm(first, job_id)
    assert cluster.state(job_id) == "acked"
    confirm(second, job_id)
    assert cluster.show(job_id) is None
    for peer in cluster.peers:
        assert peer.wait_for("DELJOB").job_id == job_id


def test_a_holder_that_has_lost_the_job_has_the_ack_all_the_same(cluster: BusCluster) -> None:
    job_id = cluster.add_fetched(QUEUE)
    cluster.node.call("ACKJOB", job_id)
    confirm(cluster.peer, job_id, known=0)
    assert cluster.show(job_id) is None


def test_a_holder_that_nobody_knew_of_hears_of_the_end(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    holder, unexpected = cluster.peers
    job = cluster.replicate(holder)
    cluster.node.call("ACKJOB", job.id)
    confirm(unexpected, job.id)
    assert cluster.holders(job.id) == {cluster.id, holder.id, unexpected.id}
    confirm(holder, job.id)
    for peer in cluster.peers:
        assert peer.wait_for("DELJOB").job_id == job.id


def test_who_neither_holds_nor_knows_a_job_confirms_nothing(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    holder, other = cluster.peers
    job = cluster.replicate(holder)
    cluster.node.call("ACKJOB", job.id)
    confirm(other, job.id, known=0)
    assert cluster.state(job.id) == "acked"
    assert cluster.holders(job.id) == {cluster.id, holder.id}


def test_an_ack_that_is_not_confirmed_is_sent_again(cluster: BusCluster) -> None:
    job_id = cluster.add_fetched(QUEUE)
    cluster.node.call("ACKJOB", job_id)
    for _ in range(3):
        assert cluster.peer.wait_for("SETACK", job_id=job_id).aux == 2
    confirm(cluster.peer, job_id)
    assert cluster.show(job_id) is None


def test_a_second_ack_counts_nothing_and_asks_the_holders_at_once(cluster: BusCluster) -> None:
    job_id = cluster.add_fetched(QUEUE)
    assert cluster.node.call("ACKJOB", job_id) == 1
    for _ in range(10):
        assert cluster.node.call("ACKJOB", job_id) == 0
    cluster.flush(cluster.peer)
    assert len(cluster.peer.seen("SETACK", job_id=job_id)) >= 11


def test_an_ack_waits_for_a_holder_that_is_away(
    start_cluster: StartCluster, start_peer: Callable[..., BusPeer]
) -> None:
    cluster = start_cluster()
    job_id = cluster.add_fetched(QUEUE)
    cluster.peer.close()
    cluster.node.call("ACKJOB", job_id)
    assert cluster.state(job_id) == "acked"
    back = start_peer(port=cluster.peer.port, node_id=cluster.peer.id)
    back.join(cluster.node.host, cluster.node.port)
    back.wait_for("SETACK", job_id=job_id)
    confirm(back, job_id)
    assert cluster.show(job_id) is None


def test_an_ack_does_not_wait_for_a_holder_that_was_forgotten(cluster: BusCluster) -> None:
    job_id = cluster.add_fetched(QUEUE)
    cluster.node.call("ACKJOB", job_id)
    cluster.node.call("CLUSTER", "FORGET", cluster.peer.id)
    wait_until(lambda: cluster.show(job_id) is None)


def test_an_acked_job_is_not_fetched(cluster: BusCluster) -> None:
    job_id = cluster.add(QUEUE)
    cluster.node.call("ACKJOB", job_id)
    assert cluster.state(job_id) == "acked"
    assert cluster.fetch(QUEUE) == []


def test_an_ack_of_the_only_copy_is_nobody_elses_business(cluster: BusCluster) -> None:
    job_id = cluster.node.call("ADDJOB", QUEUE, "body", 0, "REPLICATE", 1)
    assert cluster.node.call("ACKJOB", job_id) == 1
    assert cluster.show(job_id) is None
    cluster.flush(cluster.peer)
    assert not cluster.peer.seen(("SETACK", "DELJOB"))


def test_a_confirmation_does_not_ack_a_job(cluster: BusCluster) -> None:
    job = cluster.replicate_queued(cluster.peer)
    confirm(cluster.peer, job.id)
    assert cluster.state(job.id) == "queued"


def test_a_job_that_is_deleted_on_one_node_is_kept_by_others(cluster: BusCluster) -> None:
    job_id = cluster.add_fetched(QUEUE)
    assert cluster.node.call("DELJOB", job_id) == 1
    cluster.flush(cluster.peer)
    assert not cluster.peer.seen("DELJOB")


# Acks that come to a peer


def test_a_peer_acks_a_job_here_too(cluster: BusCluster) -> None:
    job = cluster.replicate_queued(cluster.peer, queue=QUEUE)
    cluster.peer.send("SETACK", job_id=job.id, aux=2)
    told = cluster.peer.wait_for("GOTACK")
    assert (told.job_id, told.aux) == (job.id, 1)
    assert cluster.state(job.id) == "acked"
    assert cluster.fetch(QUEUE) == []
    cluster.peer.send("DELJOB", job_id=job.id)
    cluster.peer.fence()
    assert cluster.show(job.id) is None


def test_an_ack_of_an_unknown_job_is_answered(cluster: BusCluster) -> None:
    cluster.peer.send("SETACK", job_id=UNKNOWN, aux=2)
    told = cluster.peer.wait_for("GOTACK")
    assert (told.job_id, told.aux) == (UNKNOWN, 0)
    assert registered(cluster) == 0


def test_an_ack_by_somebody_who_knows_fewer_holders_is_taken_over(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    first, second = cluster.peers
    job = cluster.replicate(first, nodes=(first.id, second.id, cluster.id))
    first.send("SETACK", job_id=job.id, aux=2)
    assert second.wait_for("SETACK", job_id=job.id).aux == 3
    assert cluster.state(job.id) == "acked"
    cluster.flush(first)
    assert not first.seen("GOTACK")  # with which it would think that everybody has the ack
    for peer in cluster.peers:
        confirm(peer, job.id)
    assert cluster.show(job.id) is None
    for peer in cluster.peers:
        assert peer.wait_for("DELJOB").job_id == job.id


def test_an_ack_by_somebody_without_a_copy_is_answered_and_taken_over(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    holder, other = cluster.peers
    job = cluster.replicate(holder)
    other.send("SETACK", job_id=job.id, aux=0)
    assert other.wait_for("GOTACK", job_id=job.id).aux == 1
    assert holder.wait_for("SETACK", job_id=job.id).aux == 2
    confirm(holder, job.id)
    assert cluster.show(job.id) is None


def test_an_ack_that_comes_twice_is_answered_twice(cluster: BusCluster) -> None:
    job = cluster.replicate(cluster.peer)
    for _ in range(2):
        cluster.peer.send("SETACK", job_id=job.id, aux=2)
        assert cluster.peer.wait_for("GOTACK", job_id=job.id).aux == 1
    assert cluster.state(job.id) == "acked"


def test_an_ack_of_a_job_that_only_this_node_holds_ends_it(cluster: BusCluster) -> None:
    job_id = cluster.node.call("ADDJOB", QUEUE, "body", 0, "REPLICATE", 1)
    cluster.peer.send("SETACK", job_id=job_id, aux=1)
    assert cluster.peer.wait_for("GOTACK", job_id=job_id).aux == 1
    wait_until(lambda: cluster.show(job_id) is None)
    assert cluster.node.call("PING") == b"PONG"


def test_an_acked_copy_that_comes_again_stays_acked(cluster: BusCluster) -> None:
    job = cluster.replicate(cluster.peer, queue=QUEUE)
    cluster.peer.send("SETACK", job_id=job.id, aux=2)
    cluster.peer.send("REPLJOB", jobs=(job,))
    cluster.peer.send("ENQUEUE", job_id=job.id)
    cluster.peer.fence()
    assert cluster.state(job.id) == "acked"
    assert cluster.fetch(QUEUE) == []


def test_an_acked_job_stays_finished_after_a_restart(start_cluster: StartCluster) -> None:
    cluster = start_cluster(appendonly="yes", appendfsync="always")
    job = cluster.replicate(cluster.peer, queue=QUEUE, retry=1)
    cluster.peer.send("SETACK", job_id=job.id, aux=2)
    cluster.peer.wait_for("GOTACK", job_id=job.id)
    cluster.node.kill()
    cluster.node.start()
    assert cluster.state(job.id) in {"unknown", "acked"}


# Acks of jobs that the node doesn't have


def test_an_ack_of_an_unknown_job_is_kept_and_goes_to_everybody(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    assert cluster.node.call("ACKJOB", UNKNOWN) == 0
    for peer in cluster.peers:
        told = peer.wait_for("SETACK")
        assert (told.job_id, told.aux) == (UNKNOWN, 0)
    facts = cluster.show(UNKNOWN)
    assert facts is not None
    assert (facts["state"], facts["queue"], facts["body"]) == (b"acked", None, None)
    assert facts["nodes-delivered"] == []
    assert 0 < facts["ttl"] <= 0x05A1 * 60
    assert registered(cluster) == 1


def test_the_ack_of_an_unknown_job_goes_when_a_holder_has_it(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    cluster.node.call("ACKJOB", UNKNOWN)
    confirm(cluster.peer, UNKNOWN, known=1)
    assert cluster.show(UNKNOWN) is None
    assert registered(cluster) == 0


def test_the_ack_of_an_unknown_job_goes_when_nobody_knows_the_job(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    first, second = cluster.peers
    cluster.node.call("ACKJOB", UNKNOWN)
    confirm(first, UNKNOWN, known=0)
    assert cluster.state(UNKNOWN) == "acked"
    confirm(second, UNKNOWN, known=0)
    assert cluster.show(UNKNOWN) is None


def test_the_ack_of_an_unknown_job_is_sent_again(cluster: BusCluster) -> None:
    cluster.node.call("ACKJOB", UNKNOWN)
    for _ in range(2):
        assert cluster.peer.wait_for("SETACK", job_id=UNKNOWN).aux == 0


def test_a_copy_that_comes_after_its_ack_is_not_queued(cluster: BusCluster) -> None:
    job = cluster.peer.new_job(queue=QUEUE, nodes=(cluster.peer.id, cluster.id))
    cluster.node.call("ACKJOB", job.id)
    cluster.peer.send("REPLJOB", jobs=(job,))
    cluster.peer.send("ENQUEUE", job_id=job.id)
    cluster.peer.fence()
    assert cluster.state(job.id) == "acked"
    assert cluster.fetch(QUEUE) == []


def test_whoever_sends_a_copy_of_a_finished_job_hears_of_the_ack(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    holder, sender = cluster.peers
    job = cluster.replicate(holder)
    cluster.node.call("ACKJOB", job.id)
    sender.send("REPLJOB", jobs=(sender.new_job(id=job.id, nodes=(sender.id, cluster.id)),))
    sender.wait_for("SETACK", job_id=job.id)


def test_no_ack_is_kept_for_a_job_that_is_delivered_at_most_once(cluster: BusCluster) -> None:
    assert cluster.node.call("ACKJOB", UNKNOWN_AT_MOST_ONCE) == 0
    cluster.flush(cluster.peer)
    assert cluster.show(UNKNOWN_AT_MOST_ONCE) is None
    assert not cluster.peer.seen("SETACK")


def test_a_leaving_node_keeps_no_ack_of_an_unknown_job(cluster: BusCluster) -> None:
    cluster.node.call("CLUSTER", "LEAVING", "yes")
    assert cluster.node.call("ACKJOB", UNKNOWN) == 0
    cluster.flush(cluster.peer)
    assert cluster.show(UNKNOWN) is None
    assert not cluster.peer.seen("SETACK")


def test_an_ack_of_an_unknown_job_does_not_outlive_the_cluster(cluster: BusCluster) -> None:
    cluster.node.call("ACKJOB", UNKNOWN)
    cluster.node.call("CLUSTER", "FORGET", cluster.peer.id)
    wait_until(lambda: cluster.show(UNKNOWN) is None)
    assert cluster.node.call("PING") == b"PONG"


# Fast acks


def test_a_fast_ack_deletes_a_job_everywhere(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    holder, other = cluster.peers
    job = cluster.replicate(holder)
    assert cluster.node.call("FASTACK", job.id) == 1
    assert holder.wait_for("DELJOB").job_id == job.id
    assert cluster.show(job.id) is None
    cluster.flush(other)
    assert not other.seen("DELJOB")


def test_a_fast_ack_of_an_unknown_job_goes_to_everybody(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    assert cluster.node.call("FASTACK", UNKNOWN) == 0
    for peer in cluster.peers:
        assert peer.wait_for("DELJOB").job_id == UNKNOWN
    assert registered(cluster) == 0


# Acks of jobs that came from another node


def test_the_ack_of_an_imported_job_reaches_its_origin(cluster: BusCluster) -> None:
    origin = cluster.peer
    job = cluster.import_job(origin, queue=QUEUE, replicate=1)
    assert [found[1] for found in cluster.fetch(QUEUE)] == [job.id]
    assert cluster.holders(job.id) == {cluster.id, origin.id}
    assert cluster.node.call("ACKJOB", job.id) == 1
    told = origin.wait_for("SETACK")
    assert (told.job_id, told.aux) == (job.id, 2)
    assert cluster.state(job.id) == "acked"
    confirm(origin, job.id)
    assert cluster.show(job.id) is None


def test_the_ack_of_an_imported_job_with_copies_reaches_all_of_them(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    origin, holder = cluster.peers
    job = cluster.import_job(origin, queue=QUEUE, replicate=2, nodes=(origin.id, holder.id))
    cluster.node.call("ACKJOB", job.id)
    for peer in cluster.peers:
        assert peer.wait_for("SETACK", job_id=job.id).aux == 3
    confirm(origin, job.id)
    assert cluster.state(job.id) == "acked"
    confirm(holder, job.id)
    assert cluster.show(job.id) is None


def test_the_ack_of_a_job_that_was_given_away_ends_it_here(cluster: BusCluster) -> None:
    job_id = cluster.node.call("ADDJOB", QUEUE, "body", 0, "REPLICATE", 1)
    cluster.peer.send("NEEDJOBS", wanted=1, queue=QUEUE)
    cluster.peer.wait_for("YOURJOBS")
    assert cluster.state(job_id) == "active"
    cluster.peer.send("SETACK", job_id=job_id, aux=2)
    assert cluster.peer.wait_for("GOTACK", job_id=job_id).aux == 1
    cluster.peer.send("DELJOB", job_id=job_id)
    wait_until(lambda: cluster.show(job_id) is None)
