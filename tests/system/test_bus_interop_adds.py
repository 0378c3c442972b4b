"""Adds to a real node that has original ones keep copies: REPLJOB and GOTJOB, in time, late, or never."""

from __future__ import annotations

import re
import select
import time
from collections.abc import Callable

import pytest

from penstock.errors import ReplyError
from tests.bus_cluster import BusCluster
from tests.bus_messages import DELIVERED, NOREPLY, JobCopy, Message
from tests.bus_peer import BusPeer
from tests.processes import wait_until
from tests.raw_link import RawLink

pytestmark = pytest.mark.system

StartCluster = Callable[..., BusCluster]

QUEUE = b"work"
BODY = bytes(range(256))
NOT_ENOUGH = b"-NOREPL Not enough reachable nodes for the requested replication level"
TOO_LATE = b"-NOREPL Timeout reached before replicating to the requested number of nodes\r\n"
REMOVED = b"-NOREPL job removed (expired?) before the requested replication level was achieved\r\n"


@pytest.fixture
def cluster(start_cluster: StartCluster) -> BusCluster:
    """A node and one peer."""
    return start_cluster()


def has_reply(link: RawLink) -> bool:
    """Whether anything has come for a client."""
    return bool(select.select([link.socket], [], [], 0)[0])


def first_copy(peer: BusPeer) -> JobCopy:
    """Wait for the next job that the node wants a peer to keep."""
    return peer.wait_for("REPLJOB").jobs[0]


def add_without_confirmation(cluster: BusCluster, *options: str | int) -> tuple[RawLink, JobCopy]:
    """Add a job with two copies, of which the second is not confirmed."""
    link = cluster.link()
    link.post("ADDJOB", QUEUE, BODY, 0, "REPLICATE", 2, *options)
    return link, first_copy(cluster.peer)


# Copies that the node gives


def test_an_add_sends_its_copy_with_all_its_fields(cluster: BusCluster) -> None:
    began_ns = time.time_ns()
    link = cluster.link()
    link.post("ADDJOB", QUEUE, BODY, 0, "REPLICATE", 2, "DELAY", 5, "RETRY", 77, "TTL", 7200)
    message = cluster.peer.wait_for("REPLJOB")
    (job,) = message.jobs
    assert re.fullmatch(rb"D-%b-[A-Za-z0-9+/]{24}-0079" % cluster.id[:8], job.id)
    assert (job.queue, job.body, job.replicate, job.delay, job.retry) == (QUEUE, BODY, 2, 5, 77)
    assert (job.nacks, job.deliveries, job.gc_retry) == (0, 0, 0)
    assert job.flags & DELIVERED == 0
    assert 7000 <= job.expires <= 7201
    assert began_ns - 10**9 < job.ctime < time.time_ns() + 10**9
    assert set(job.nodes) == {cluster.id, cluster.peer.id}
    expected = Message(
        kind="REPLJOB",
        sender=cluster.id,
        port=cluster.node.port,
        flags=message.flags,
        unused=message.unused,
        jobs=(job,),
    )
    assert message.raw == expected.encode()
    cluster.peer.send("GOTJOB", job_id=job.id)
    assert link.reply() == b"+%b\r\n" % job.id
    assert cluster.fact(job.id, "ctime") == job.ctime


def test_a_producer_is_answered_when_the_copy_is_confirmed_and_not_before(cluster: BusCluster) -> None:
    link, job = add_without_confirmation(cluster)
    cluster.peer.fence()
    facts = cluster.show(job.id)
    assert facts is not None
    assert (facts["state"], facts["nodes-confirmed"]) == (b"wait-repl", [cluster.id])
    assert cluster.fetch(QUEUE) == []
    assert not has_reply(link)
    cluster.peer.send("GOTJOB", job_id=job.id)
    assert link.reply() == b"+%b\r\n" % job.id
    facts = cluster.show(job.id)
    assert facts is not None
    assert (facts["state"], facts["nodes-confirmed"]) == (b"queued", [])
    assert set(facts["nodes-delivered"]) == {cluster.id, cluster.peer.id}
    assert cluster.fetch(QUEUE) == [[QUEUE, job.id, BODY]]


def test_a_delayed_job_is_active_when_it_is_confirmed(cluster: BusCluster) -> None:
    job_id = cluster.add(QUEUE, "DELAY", 1000)
    assert cluster.state(job_id) == "active"
    assert cluster.fact(job_id, "next-requeue-within") > 900_000


def test_every_copy_must_be_confirmed_by_another_node(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    first, second = cluster.peers
    link = cluster.link()
    link.post("ADDJOB", QUEUE, BODY, 0, "REPLICATE", 3)
    job = first_copy(first)
    assert set(job.nodes) == {cluster.id, first.id, second.id}
    for _ in range(2):
        first.send("GOTJOB", job_id=job.id)
    first.fence()
    assert cluster.state(job.id) == "wait-repl"
    assert set(cluster.fact(job.id, "nodes-confirmed")) == {cluster.id, first.id}
    assert not has_reply(link)
    second.send("GOTJOB", job_id=job.id)
    assert link.reply() == b"+%b\r\n" % job.id


def test_a_stranger_confirms_nothing(cluster: BusCluster) -> None:
    link, job = add_without_confirmation(cluster)
    stranger = cluster.stranger()
    stranger.send("GOTJOB", job_id=job.id)
    stranger.fence()
    assert cluster.fact(job.id, "nodes-confirmed") == [cluster.id]
    assert not has_reply(link)
    cluster.peer.send("GOTJOB", job_id=job.id)
    assert link.reply() == b"+%b\r\n" % job.id


def test_a_late_confirmation_changes_nothing(cluster: BusCluster) -> None:
    job_id = cluster.add(QUEUE)
    cluster.peer.send("GOTJOB", job_id=job_id)
    cluster.peer.fence()
    assert cluster.fact(job_id, "nodes-confirmed") == []
    assert cluster.state(job_id) == "queued"


def test_three_copies_are_the_default_where_there_are_three_nodes(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=3)
    link = cluster.link()
    link.post("ADDJOB", QUEUE, BODY, 0)

    def asked() -> list[BusPeer]:
        return [peer for peer in cluster.peers if peer.seen("REPLJOB")]

    wait_until(lambda: len(asked()) >= 2)
    for peer in asked():
        job = first_copy(peer)
        assert job.replicate == 3
        peer.send("GOTJOB", job_id=job.id)
    assert link.reply().startswith(b"+D-")


def test_a_cluster_of_two_makes_two_copies(cluster: BusCluster) -> None:
    link = cluster.link()
    link.post("ADDJOB", QUEUE, BODY, 0)
    job = first_copy(cluster.peer)
    assert job.replicate == 2
    cluster.peer.send("GOTJOB", job_id=job.id)
    assert link.reply() == b"+%b\r\n" % job.id


def test_a_job_with_one_copy_is_nobody_elses_business(cluster: BusCluster) -> None:
    cluster.node.call("ADDJOB", QUEUE, BODY, 0, "REPLICATE", 1)
    cluster.flush(cluster.peer)
    assert not cluster.peer.seen("REPLJOB")


def test_more_copies_than_nodes_are_refused_at_once(cluster: BusCluster) -> None:
    link = cluster.link()
    assert link.ask("ADDJOB", QUEUE, BODY, 0, "REPLICATE", 3) == NOT_ENOUGH + b"\r\n"
    assert link.ask("ADDJOB", QUEUE, BODY, 0, "REPLICATE", 3, "ASYNC") == NOT_ENOUGH + b"\r\n"
    cluster.flush(cluster.peer)
    assert not cluster.peer.seen("REPLJOB")


def test_at_most_once_and_several_copies_contradict_each_other(cluster: BusCluster) -> None:
    with pytest.raises(ReplyError, match="With RETRY set to 0"):
        cluster.node.call("ADDJOB", QUEUE, BODY, 0, "RETRY", 0)


# Adds that fail


def test_an_add_that_nobody_confirms_in_time_fails_and_is_undone(cluster: BusCluster) -> None:
    link = cluster.link()
    link.post("ADDJOB", QUEUE, BODY, 300, "REPLICATE", 2)
    job = first_copy(cluster.peer)
    assert link.reply() == TOO_LATE
    assert cluster.peer.wait_for("DELJOB").job_id == job.id
    assert cluster.show(job.id) is None


def test_an_add_whose_producer_hangs_up_is_undone(cluster: BusCluster) -> None:
    link, job = add_without_confirmation(cluster)
    link.close()
    assert cluster.peer.wait_for("DELJOB").job_id == job.id
    wait_until(lambda: cluster.show(job.id) is None)


def test_an_add_that_expires_before_it_is_confirmed_fails(cluster: BusCluster) -> None:
    link, job = add_without_confirmation(cluster, "TTL", 1)
    assert link.reply() == REMOVED
    assert cluster.show(job.id) is None


@pytest.mark.parametrize("command", ["DELJOB", "FASTACK"])
def test_an_add_that_is_deleted_before_it_is_confirmed_fails(cluster: BusCluster, command: str) -> None:
    link, job = add_without_confirmation(cluster)
    cluster.node.call(command, job.id)
    assert link.reply() == REMOVED


def test_an_add_that_a_peer_deletes_before_it_is_confirmed_fails(cluster: BusCluster) -> None:
    link, job = add_without_confirmation(cluster)
    cluster.peer.send("DELJOB", job_id=job.id)
    assert link.reply() == REMOVED
    assert cluster.show(job.id) is None


def test_an_add_that_is_acked_elsewhere_before_it_is_confirmed_succeeds(cluster: BusCluster) -> None:
    link, job = add_without_confirmation(cluster)
    cluster.peer.send("SETACK", job_id=job.id, aux=2)
    assert link.reply() == b"+%b\r\n" % job.id
    assert cluster.peer.wait_for("GOTACK").aux == 1
    assert cluster.state(job.id) == "acked"


def test_an_add_that_is_acked_here_before_it_is_confirmed_is_answered(cluster: BusCluster) -> None:
    link, job = add_without_confirmation(cluster)
    assert cluster.node.call("ACKJOB", job.id) == 1
    cluster.peer.wait_for("SETACK", job_id=job.id)
    cluster.peer.send("GOTACK", job_id=job.id, aux=1)
    assert link.reply()[:1] in b"+-"
    wait_until(lambda: cluster.show(job.id) is None)


# Adds that take longer


def test_a_copy_that_is_not_confirmed_is_sent_again(cluster: BusCluster) -> None:
    link, job = add_without_confirmation(cluster)
    for _ in range(3):
        again = cluster.peer.wait_for("REPLJOB")
        assert (again.jobs[0].id, again.marks) == (job.id, 0)
    cluster.peer.send("GOTJOB", job_id=job.id)
    assert link.reply() == b"+%b\r\n" % job.id


def test_a_copy_reaches_a_peer_that_was_away(start_cluster: StartCluster, start_peer: Callable[..., BusPeer]) -> None:
    cluster = start_cluster()
    link, job = add_without_confirmation(cluster)
    cluster.peer.close()
    back = start_peer(port=cluster.peer.port, node_id=cluster.peer.id)
    assert back.wait_for("REPLJOB").jobs[0].id == job.id
    back.join(cluster.node.host, cluster.node.port)
    back.send("GOTJOB", job_id=job.id)
    assert link.reply() == b"+%b\r\n" % job.id


def test_another_node_is_asked_when_one_does_not_confirm(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=3)
    link = cluster.link()
    link.post("ADDJOB", QUEUE, BODY, 0, "REPLICATE", 2)
    wait_until(lambda: all(peer.seen("REPLJOB") for peer in cluster.peers))
    everybody = {cluster.id} | {peer.id for peer in cluster.peers}
    sizes = [len(message.jobs[0].nodes) for peer in cluster.peers for message in peer.seen("REPLJOB")]
    assert {2, 3, 4} <= set(sizes)  # one at a time
    for peer in cluster.peers:
        last = peer.wait_for("REPLJOB", where=lambda message: len(message.jobs[0].nodes) == 4)
        assert set(last.jobs[0].nodes) == everybody
        assert last.marks == 0
    job = cluster.peer.seen("REPLJOB")[0].jobs[0]
    cluster.peers[1].send("GOTJOB", job_id=job.id)
    assert link.reply() == b"+%b\r\n" % job.id
    assert cluster.holders(job.id) == everybody


def test_nodes_that_have_confirmed_hear_of_a_new_holder_and_need_not_reply(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=3)
    everybody = {cluster.id} | {peer.id for peer in cluster.peers}

    def told() -> list[Message]:
        """Add a job, have one peer confirm, and return what that one hears when the last is asked."""
        link = cluster.link()
        link.post("ADDJOB", QUEUE, BODY, 0, "REPLICATE", 3)
        willing: BusPeer = wait_until(lambda: next((one for one in cluster.peers if one.hears("REPLJOB")), None))
        job = first_copy(willing)
        willing.send("GOTJOB", job_id=job.id)
        others = [peer for peer in cluster.peers if peer is not willing]

        def asked_last() -> BusPeer | None:
            copies = [(peer, message) for peer in others for message in peer.seen("REPLJOB")]
            return next((peer for peer, message in copies if len(message.jobs[0].nodes) == 4), None)

        last: BusPeer = wait_until(asked_last)
        last.send("GOTJOB", job_id=job.id)
        assert link.reply() == b"+%b\r\n" % job.id
        cluster.flush(willing)
        for peer in cluster.peers:
            peer.forget()
        return willing.seen("REPLJOB", marks=NOREPLY)

    # A confirmation that takes more than 50 ms to arrive comes too late for this.
    message = wait_until(told)[0]
    assert set(message.jobs[0].nodes) == everybody


def test_an_asynchronous_add_is_answered_at_once_and_wants_no_confirmation(cluster: BusCluster) -> None:
    job_id = cluster.node.call("ADDJOB", QUEUE, BODY, 0, "REPLICATE", 2, "ASYNC")
    message = cluster.peer.wait_for("REPLJOB")
    assert message.marks == NOREPLY
    assert message.jobs[0].id == job_id
    assert set(message.jobs[0].nodes) == {cluster.id, cluster.peer.id}
    assert cluster.state(job_id) == "queued"
    assert cluster.holders(job_id) == {cluster.id, cluster.peer.id}
    assert cluster.fetch(QUEUE) == [[QUEUE, job_id, BODY]]
    cluster.flush(cluster.peer)
    assert len(cluster.peer.seen("REPLJOB")) == 1


# A node that keeps no copy itself


def test_a_leaving_node_has_others_keep_and_queue_a_job(cluster: BusCluster) -> None:
    cluster.node.call("CLUSTER", "LEAVING", "yes")
    link = cluster.link()
    link.post("ADDJOB", QUEUE, BODY, 0, "REPLICATE", 1, "DELAY", 7)
    job = first_copy(cluster.peer)
    assert job.nodes == (cluster.peer.id,)
    cluster.peer.send("GOTJOB", job_id=job.id)
    assert link.reply() == b"+%b\r\n" % job.id
    asked = cluster.peer.wait_for("ENQUEUE")
    assert (asked.job_id, asked.aux) == (job.id, 7)
    wait_until(lambda: cluster.show(job.id) is None)


def test_a_leaving_node_has_one_of_the_holders_queue_a_job(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    cluster.node.call("CLUSTER", "LEAVING", "yes")
    link = cluster.link()
    link.post("ADDJOB", QUEUE, BODY, 0, "REPLICATE", 2)
    for peer in cluster.peers:
        job = first_copy(peer)
        assert set(job.nodes) == {other.id for other in cluster.peers}
        peer.send("GOTJOB", job_id=job.id)
    job_id = link.reply()[1:-2]
    for peer in cluster.peers:
        cluster.flush(peer)
    asked = [message for peer in cluster.peers for message in peer.seen("ENQUEUE")]
    assert [(message.job_id, message.aux) for message in asked] == [(job_id, 0)]


def test_a_leaving_node_passes_an_asynchronous_add_on(cluster: BusCluster) -> None:
    cluster.node.call("CLUSTER", "LEAVING", "yes")
    job_id = cluster.node.call("ADDJOB", QUEUE, BODY, 0, "REPLICATE", 1, "ASYNC")
    message = cluster.peer.wait_for("REPLJOB")
    assert (message.marks, message.jobs[0].id, message.jobs[0].nodes) == (NOREPLY, job_id, (cluster.peer.id,))
    assert cluster.peer.wait_for("ENQUEUE").job_id == job_id
    assert cluster.show(job_id) is None


def test_a_leaving_node_does_not_lose_a_job_that_is_delivered_at_most_once(cluster: BusCluster) -> None:
    cluster.node.call("CLUSTER", "LEAVING", "yes")
    link = cluster.link()
    link.post("ADDJOB", QUEUE, BODY, 1000, "REPLICATE", 1, "RETRY", 0)
    wait_until(lambda: has_reply(link) or cluster.peer.hears("REPLJOB"))
    for message in cluster.peer.seen("REPLJOB"):
        cluster.peer.send("GOTJOB", job_id=message.jobs[0].id)
    # An original node confirms a copy of such a job and never delivers it; only a job that is given to it is queued.
    is_refused = link.reply().startswith(b"-NOREPL")
    cluster.flush(cluster.peer)
    assert is_refused or cluster.peer.seen("YOURJOBS")


def test_a_leaving_node_says_so_when_its_own_copy_would_have_been_enough(cluster: BusCluster) -> None:
    cluster.node.call("CLUSTER", "LEAVING", "yes")
    reply = cluster.link().ask("ADDJOB", QUEUE, BODY, 0, "REPLICATE", 2)
    assert reply.startswith(NOT_ENOUGH + b", since I'm unable")
    assert reply.endswith(b"following reason: I'm leaving the cluster\r\n")


def test_a_node_that_is_short_of_memory_has_others_keep_a_job(cluster: BusCluster) -> None:
    for _ in range(10):
        cluster.node.call("ADDJOB", b"ballast", bytes(1_000_000), 0, "REPLICATE", 1)
    cluster.node.call("CONFIG", "SET", "maxmemory", int(cluster.node.info()["used_memory"]) * 100 // 85)
    link = cluster.link()
    link.post("ADDJOB", QUEUE, BODY, 0, "REPLICATE", 1)
    job = first_copy(cluster.peer)
    assert job.nodes == (cluster.peer.id,)
    cluster.peer.send("GOTJOB", job_id=job.id)
    assert link.reply() == b"+%b\r\n" % job.id
    assert cluster.peer.wait_for("ENQUEUE").job_id == job.id
