"""Jobs that go where they are wanted, among a real node and original ones: NEEDJOBS, YOURJOBS and PAUSE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.bus_cluster import BusCluster
from tests.bus_messages import DELIVERED, NOREPLY, JobCopy, Message
from tests.bus_peer import BusPeer
from tests.processes import wait_until

pytestmark = pytest.mark.system

StartCluster = Callable[..., BusCluster]

QUEUE = b"work"
PAUSES = {b"none": 0, b"in": 1, b"out": 2, b"all": 3}


@pytest.fixture
def cluster(start_cluster: StartCluster) -> BusCluster:
    """A node and one peer."""
    return start_cluster()


def queue_facts(cluster: BusCluster, queue: bytes = QUEUE) -> dict[str, Any]:
    reply = cluster.node.call("QSTAT", queue)
    return {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


def add_jobs(cluster: BusCluster, count: int, *options: str | int) -> list[bytes]:
    """Add jobs of which only the node has a copy."""
    return [cluster.node.call("ADDJOB", QUEUE, f"body {n}", 0, "REPLICATE", 1, *options) for n in range(count)]


def give(cluster: BusCluster, peer: BusPeer, jobs: tuple[JobCopy, ...]) -> None:
    """Have a peer give jobs away, and wait until the node has them."""
    peer.send("YOURJOBS", jobs=jobs)
    peer.fence()


def ask(peer: BusPeer, wanted: int) -> tuple[JobCopy, ...]:
    """Have a peer ask for jobs, and return what it gets."""
    peer.send("NEEDJOBS", wanted=wanted, queue=QUEUE)
    return peer.wait_for("YOURJOBS").jobs


def assert_nothing_given(cluster: BusCluster, wanted: int = 1) -> None:
    cluster.peer.send("NEEDJOBS", wanted=wanted, queue=QUEUE)
    cluster.flush(cluster.peer)
    assert not cluster.peer.seen("YOURJOBS")


# The node asks


def test_a_consumer_that_finds_nothing_makes_the_node_ask_everybody(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    cluster.link().post("GETJOB", "FROM", QUEUE)
    for peer in cluster.peers:
        asked = peer.wait_for("NEEDJOBS")
        expected = Message(
            kind="NEEDJOBS",
            sender=cluster.id,
            port=cluster.node.port,
            flags=asked.flags,
            unused=asked.unused,
            wanted=1,
            queue=QUEUE,
        )
        assert asked.raw == expected.encode()


def test_a_consumer_that_does_not_wait_makes_the_node_ask_too(cluster: BusCluster) -> None:
    assert cluster.fetch(QUEUE) == []
    assert cluster.peer.wait_for("NEEDJOBS").queue == QUEUE


def test_every_queue_of_a_consumer_is_asked_for(cluster: BusCluster) -> None:
    cluster.link().post("GETJOB", "FROM", b"one", b"two", b"")
    assert {cluster.peer.wait_for("NEEDJOBS").queue for _ in range(3)} == {b"one", b"two", b""}


def test_the_node_asks_again_while_a_consumer_waits(cluster: BusCluster) -> None:
    cluster.link().post("GETJOB", "FROM", QUEUE)
    for _ in range(2):
        assert cluster.peer.wait_for("NEEDJOBS").wanted == 1


def test_a_queue_that_has_jobs_is_not_asked_for(cluster: BusCluster) -> None:
    add_jobs(cluster, 2)
    assert cluster.fetch(QUEUE)
    cluster.flush(cluster.peer)
    assert not cluster.peer.seen("NEEDJOBS")


def test_a_queue_that_was_never_fed_by_others_is_not_asked_for_when_it_is_empty(cluster: BusCluster) -> None:
    add_jobs(cluster, 1)
    assert cluster.fetch(QUEUE, "COUNT", 1)
    cluster.flush(cluster.peer)
    assert not cluster.peer.seen("NEEDJOBS")


def test_a_leaving_node_asks_for_nothing(cluster: BusCluster) -> None:
    cluster.node.call("CLUSTER", "LEAVING", "yes")
    assert cluster.fetch(QUEUE) == []
    cluster.flush(cluster.peer)
    assert not cluster.peer.seen("NEEDJOBS")


def test_who_gave_jobs_is_asked_for_more_when_they_are_used_up(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    source, other = cluster.peers

    def asked() -> list[Message]:
        give(cluster, source, tuple(source.new_job(queue=QUEUE) for _ in range(3)))
        assert len(cluster.fetch(QUEUE, "COUNT", 3)) == 3
        cluster.flush(source)
        return source.seen("NEEDJOBS", where=lambda message: message.wanted > 1)

    # The rate of the imports is forgotten after a few seconds, which a busy machine may take.
    request = wait_until(asked)[0]
    assert request.queue == QUEUE
    assert 5 <= request.wanted <= 100
    cluster.flush(other)
    assert not other.seen("NEEDJOBS", where=lambda message: message.wanted > 1)


def test_never_more_than_a_hundred_jobs_are_asked_for(cluster: BusCluster) -> None:
    def asked() -> list[Message]:
        for _ in range(10):
            give(cluster, cluster.peer, tuple(cluster.peer.new_job(queue=QUEUE, body=b"") for _ in range(100)))
        assert len(cluster.fetch(QUEUE, "COUNT", 1000)) == 1000
        cluster.flush(cluster.peer)
        return cluster.peer.seen("NEEDJOBS", where=lambda message: message.wanted > 50)

    assert {message.wanted for message in wait_until(asked)} <= set(range(51, 101))


# The node is given jobs


def test_a_waiting_consumer_gets_a_job_that_a_peer_gives(cluster: BusCluster) -> None:
    link = cluster.link()
    link.post("GETJOB", "FROM", QUEUE)
    cluster.peer.wait_for("NEEDJOBS")
    job = cluster.peer.new_job(queue=QUEUE, body=b"given")
    cluster.peer.send("YOURJOBS", jobs=(job,))
    assert link.reply() == b"*1\r\n*3\r\n$4\r\nwork\r\n$40\r\n%b\r\n$5\r\ngiven\r\n" % job.id


def test_given_jobs_are_queued_with_all_their_fields(cluster: BusCluster) -> None:
    jobs = tuple(
        cluster.peer.new_job(
            queue=QUEUE,
            body=bytes([number]) * number,
            ctime=1_700_000_000_000_000_000 + number,
            replicate=1,
            expires=7200,
            retry=100 + number,
            nacks=number,
            deliveries=2 * number,
        )
        for number in range(5)
    )
    give(cluster, cluster.peer, jobs)
    assert cluster.node.call("QLEN", QUEUE) == 5
    for job in jobs:
        facts = cluster.show(job.id)
        assert facts is not None
        assert facts["state"] == b"queued"
        assert (facts["queue"], facts["body"], facts["ctime"]) == (job.queue, job.body, job.ctime)
        assert (facts["repl"], facts["retry"], facts["delay"]) == (job.replicate, job.retry, job.delay)
        assert (facts["nacks"], facts["additional-deliveries"]) == (job.nacks, job.deliveries)
        assert 7100 <= facts["ttl"] <= 7200
    assert [found[1] for found in cluster.fetch(QUEUE, "COUNT", 9)] == [job.id for job in jobs]


def test_a_given_job_is_held_by_its_giver_and_by_the_node(cluster: BusCluster) -> None:
    job = cluster.import_job(cluster.peer, queue=QUEUE)
    assert cluster.holders(job.id) == {cluster.id, cluster.peer.id}


def test_an_import_is_no_news_for_others(cluster: BusCluster) -> None:
    cluster.import_job(cluster.peer, queue=QUEUE)
    cluster.flush(cluster.peer)
    assert not cluster.peer.seen(("QUEUED", "WILLQUEUE", "GOTJOB"))


def test_where_jobs_come_from_is_shown(cluster: BusCluster) -> None:
    def shown() -> dict[str, Any] | None:
        cluster.import_job(cluster.peer, queue=QUEUE)
        facts = queue_facts(cluster)
        return facts if facts["import-rate"] > 0 and facts["import-from"] else None

    assert wait_until(shown)["import-from"] == [cluster.peer.id]


def test_a_job_that_the_node_has_already_is_queued_again(cluster: BusCluster) -> None:
    job = cluster.replicate(cluster.peer, queue=QUEUE, body=b"the body")
    give(cluster, cluster.peer, (cluster.peer.new_job(id=job.id, queue=QUEUE, body=b"another body"),))
    assert cluster.fetch(QUEUE) == [[QUEUE, job.id, b"the body"]]


def test_a_job_that_waits_already_is_queued_once(cluster: BusCluster) -> None:
    job = cluster.replicate_queued(cluster.peer, queue=QUEUE)
    give(cluster, cluster.peer, (job,))
    assert cluster.node.call("QLEN", QUEUE) == 1


def test_an_acked_job_is_not_queued_when_it_is_given(cluster: BusCluster) -> None:
    job = cluster.replicate(cluster.peer, queue=QUEUE)
    cluster.node.call("ACKJOB", job.id)
    give(cluster, cluster.peer, (job,))
    assert cluster.state(job.id) == "acked"
    assert cluster.fetch(QUEUE) == []


def test_whoever_offers_an_acked_job_hears_of_the_ack(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    holder, giver = cluster.peers
    job = cluster.replicate(holder, queue=QUEUE)
    cluster.node.call("ACKJOB", job.id)
    give(cluster, giver, (job,))
    giver.wait_for("SETACK", job_id=job.id)


def test_a_job_that_was_acked_before_it_came_is_not_queued(cluster: BusCluster) -> None:
    job = cluster.peer.new_job(queue=QUEUE)
    cluster.node.call("ACKJOB", job.id)
    give(cluster, cluster.peer, (job,))
    assert cluster.state(job.id) in {"acked", "unknown"}
    assert cluster.fetch(QUEUE) == []


def test_a_job_that_is_delivered_at_most_once_is_given_and_fetched_once(cluster: BusCluster) -> None:
    job = cluster.import_job(cluster.peer, queue=QUEUE, retry=0)
    assert cluster.fetch(QUEUE) == [[QUEUE, job.id, b"body"]]
    assert cluster.node.call("ENQUEUE", job.id) == 0
    assert cluster.fetch(QUEUE) == []


def test_given_jobs_do_not_mind_a_pause(cluster: BusCluster) -> None:
    cluster.node.call("PAUSE", QUEUE, "in")
    cluster.import_job(cluster.peer, queue=QUEUE)
    assert cluster.node.call("QLEN", QUEUE) == 1


def test_jobs_before_a_damaged_one_are_taken(cluster: BusCluster) -> None:
    good, bad, behind = (cluster.peer.new_job(queue=QUEUE) for _ in range(3))
    data = good.encode() + bad.encode().replace(b"D-", b"X-", 1) + behind.encode()
    cluster.peer.send("YOURJOBS", tail=data, number_of_jobs=3, bytes_of_jobs=len(data))
    cluster.peer.fence()
    assert cluster.state(good.id) == "queued"
    assert cluster.show(behind.id) is None
    assert cluster.node.call("QLEN", QUEUE) == 1


# The node is asked


@pytest.mark.parametrize(
    ("length", "wanted", "given"),
    [
        (1, 1, 1),
        (1, 100, 1),
        (2, 1, 1),
        (3, 100, 1),
        (10, 3, 3),
        (10, 5, 5),
        (10, 6, 5),
        (10, 100, 5),
        (300, 100, 100),
        (300, 5000, 100),
        (10, 0xFFFFFFFF, 5),
    ],
)
def test_half_of_a_queue_is_given_at_most(cluster: BusCluster, length: int, wanted: int, given: int) -> None:
    ids = add_jobs(cluster, length)
    jobs = ask(cluster.peer, wanted)
    assert [job.id for job in jobs] == ids[:given]
    assert cluster.node.call("QLEN", QUEUE) == length - given
    cluster.flush(cluster.peer)
    assert len(cluster.peer.seen("YOURJOBS")) == 1


def test_a_job_is_given_with_all_its_fields(cluster: BusCluster) -> None:
    body = bytes(range(256))
    job_id = cluster.node.call("ADDJOB", QUEUE, body, 0, "REPLICATE", 1, "RETRY", 77, "TTL", 7200)
    facts = cluster.show(job_id)
    assert facts is not None
    cluster.peer.send("NEEDJOBS", wanted=1, queue=QUEUE)
    message = cluster.peer.wait_for("YOURJOBS")
    (job,) = message.jobs
    assert (job.id, job.queue, job.body, job.ctime) == (job_id, QUEUE, body, facts["ctime"])
    assert (job.replicate, job.delay, job.retry, job.nacks, job.deliveries) == (1, 0, 77, 0, 0)
    assert job.flags & DELIVERED == 0
    assert 7000 <= job.expires <= 7201
    assert cluster.id in job.nodes
    assert set(job.nodes) <= {cluster.id, cluster.peer.id}  # whoever takes it may be named already
    expected = Message(
        kind="YOURJOBS",
        sender=cluster.id,
        port=cluster.node.port,
        flags=message.flags,
        unused=message.unused,
        jobs=(job,),
    )
    assert message.raw == expected.encode()


def test_the_counters_of_a_job_go_with_it(cluster: BusCluster) -> None:
    (job_id,) = add_jobs(cluster, 1)
    for command in ("NACK", "ENQUEUE", "ENQUEUE"):
        cluster.fetch(QUEUE)
        cluster.node.call(command, job_id)
    (job,) = ask(cluster.peer, 1)
    assert (job.nacks, job.deliveries) == (1, 2)


def test_the_holders_of_a_job_go_with_it(cluster: BusCluster) -> None:
    job_id = cluster.add(QUEUE)
    (job,) = ask(cluster.peer, 1)
    assert job.id == job_id
    assert set(job.nodes) == {cluster.id, cluster.peer.id}


def test_a_given_job_stays_as_a_copy(cluster: BusCluster) -> None:
    (job_id,) = add_jobs(cluster, 1)
    ask(cluster.peer, 1)
    assert cluster.state(job_id) == "active"
    assert cluster.fetch(QUEUE) == []
    assert queue_facts(cluster)["jobs-out"] == 1


def test_a_given_job_that_nobody_finishes_is_queued_here_again(cluster: BusCluster) -> None:
    (job_id,) = add_jobs(cluster, 1, "RETRY", 1)
    ask(cluster.peer, 1)
    cluster.wait_until_state(job_id, "queued")
    assert cluster.fact(job_id, "additional-deliveries") == 1


def test_a_job_that_is_delivered_at_most_once_is_given_for_good(cluster: BusCluster) -> None:
    (job_id,) = add_jobs(cluster, 1, "RETRY", 0)
    (job,) = ask(cluster.peer, 1)
    assert (job.id, job.retry) == (job_id, 0)
    assert cluster.show(job_id) is None


def test_a_missing_queue_returns_nothing_and_is_not_made(cluster: BusCluster) -> None:
    assert_nothing_given(cluster)
    assert cluster.node.call("QSTAT", QUEUE) is None


def test_an_empty_queue_returns_nothing(cluster: BusCluster) -> None:
    add_jobs(cluster, 1)
    assert cluster.fetch(QUEUE)
    assert_nothing_given(cluster)


@pytest.mark.parametrize("pause", ["out", "all"])
def test_a_queue_that_delivers_no_jobs_to_consumers_sends_none_to_nodes(cluster: BusCluster, pause: str) -> None:
    add_jobs(cluster, 3)
    cluster.node.call("PAUSE", QUEUE, pause)
    assert_nothing_given(cluster)
    cluster.node.call("PAUSE", QUEUE, "none")
    assert len(ask(cluster.peer, 1)) == 1


def test_a_queue_that_takes_no_jobs_delivers_some(cluster: BusCluster) -> None:
    add_jobs(cluster, 3)
    cluster.node.call("PAUSE", QUEUE, "in")
    assert len(ask(cluster.peer, 1)) == 1


def test_a_leaving_node_hands_out_jobs(cluster: BusCluster) -> None:
    add_jobs(cluster, 3)
    cluster.node.call("CLUSTER", "LEAVING", "yes")
    assert len(ask(cluster.peer, 1)) == 1


def test_a_queue_that_is_fed_by_others_returns_nothing(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    source, asking = cluster.peers
    while True:
        give(cluster, source, tuple(source.new_job(queue=QUEUE) for _ in range(3)))
        asking.forget()
        asking.send("NEEDJOBS", wanted=1, queue=QUEUE)
        cluster.flush(asking)
        if queue_facts(cluster)["import-rate"] > 0:  # still, so it was when the node was asked
            break
    assert not asking.hears("YOURJOBS")


# Pauses


@pytest.mark.parametrize("word", PAUSES)
def test_a_pause_is_sent_to_everybody(start_cluster: StartCluster, word: bytes) -> None:
    cluster = start_cluster(peers=2)
    assert cluster.node.call("PAUSE", QUEUE, word, "BCAST") == word
    for peer in cluster.peers:
        told = peer.wait_for("PAUSE")
        expected = Message(
            kind="PAUSE",
            sender=cluster.id,
            port=cluster.node.port,
            flags=told.flags,
            unused=told.unused,
            pause=PAUSES[word],
            queue=QUEUE,
        )
        assert told.raw == expected.encode()


def test_the_state_of_a_pause_can_be_sent_again(cluster: BusCluster) -> None:
    cluster.node.call("PAUSE", QUEUE, "out")
    assert cluster.node.call("PAUSE", QUEUE, "state", "bcast") == b"out"
    assert cluster.peer.wait_for("PAUSE", queue=QUEUE).pause == PAUSES[b"out"]


def test_a_pause_without_bcast_is_sent_to_nobody(cluster: BusCluster) -> None:
    cluster.node.call("PAUSE", QUEUE, "all")
    cluster.flush(cluster.peer)
    assert not cluster.peer.seen("PAUSE", queue=QUEUE)


@pytest.mark.parametrize("word", PAUSES)
def test_a_peer_pauses_a_queue_here_too(cluster: BusCluster, word: bytes) -> None:
    cluster.node.call("PAUSE", QUEUE, "in")
    cluster.peer.send("PAUSE", queue=QUEUE, pause=PAUSES[word])
    cluster.peer.fence()
    assert cluster.node.call("PAUSE", QUEUE, "state") == word
    cluster.flush(cluster.peer)
    assert not cluster.peer.seen("PAUSE", queue=QUEUE)


def test_a_pause_makes_a_queue_and_its_end_does_not(cluster: BusCluster) -> None:
    cluster.peer.send("PAUSE", queue=b"paused", pause=1)
    cluster.peer.send("PAUSE", queue=b"unknown", pause=0)
    cluster.peer.fence()
    assert queue_facts(cluster, b"paused")["pause"] == b"in"
    assert cluster.node.call("QSTAT", b"unknown") is None


def test_a_consumer_that_waits_is_served_when_a_peer_ends_a_pause(cluster: BusCluster) -> None:
    add_jobs(cluster, 1)
    cluster.node.call("PAUSE", QUEUE, "out")
    link = cluster.link()
    link.post("GETJOB", "FROM", QUEUE)
    wait_until(lambda: queue_facts(cluster)["blocked"] == 1)
    cluster.peer.send("PAUSE", queue=QUEUE, pause=0)
    assert link.reply().endswith(b"body 0\r\n")


def test_marks_that_a_message_has_no_use_for_are_ignored(cluster: BusCluster) -> None:
    add_jobs(cluster, 1)
    cluster.peer.send("NEEDJOBS", wanted=1, queue=QUEUE, marks=NOREPLY)
    assert len(cluster.peer.wait_for("YOURJOBS").jobs) == 1
