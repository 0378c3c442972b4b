"""A real node in a cluster of original ones: handshakes, gossip, failure detection, leaving.

The original nodes are `BusPeer`s. Files beside this one are about single messages, and about jobs: their copies, their
requeues, their acks, and their ways to other nodes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from penstock.errors import ReplyError
from tests.bus_cluster import BusCluster
from tests.bus_messages import (
    FAIL,
    HANDSHAKE,
    LEAVING,
    MYSELF,
    NOADDR,
    PFAIL,
    Gossip,
    Message,
)
from tests.bus_peer import BusPeer
from tests.processes import free_port, wait_until

pytestmark = pytest.mark.system

StartCluster = Callable[..., BusCluster]

QUEUE = b"work"
UNKNOWN_NODE = b"0123456789abcdef0123456789abcdef01234567"


def gossip_about(peer: BusPeer, flags: int = 0) -> Gossip:
    return Gossip(peer.id, peer.host, peer.port, flags)


def hello_priority(cluster: BusCluster, peer: BusPeer) -> int:
    """Return the priority that HELLO has for a peer."""
    nodes = {entry[0]: int(entry[3]) for entry in cluster.node.call("HELLO")[2:]}
    return nodes[peer.id]


def wait_for_silence(peer: BusPeer) -> None:
    """Silence a peer and wait for a PING that it leaves unanswered: no PONG of its is under way then."""
    peer.silence()
    before = len(peer.seen("PING"))
    wait_until(lambda: len(peer.seen("PING")) > before)


# Handshakes


def test_a_node_introduces_itself_with_a_meet(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=0)
    peer = cluster.bystander()
    assert cluster.node.call("CLUSTER", "MEET", peer.host, peer.port) == b"OK"
    meet = peer.wait_for("MEET")
    expected = Message(kind="MEET", sender=cluster.id, port=cluster.node.port, flags=meet.flags, unused=meet.unused)
    assert meet.raw == expected.encode()
    assert meet.flags & ~MYSELF == 0


def test_a_node_that_was_sent_to_meet_another_gets_to_know_it(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=0)
    peer = cluster.bystander()
    cluster.node.call("CLUSTER", "MEET", peer.host, peer.port)
    assert peer.wait_until_met() == cluster.id
    cluster.wait_until_known(peer)
    assert set(cluster.lines()) == {cluster.id, peer.id}


def test_a_node_that_is_met_answers_and_connects_back(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=0)
    peer = cluster.join()
    pong = peer.wait_for("PONG")
    ping = peer.wait_for("PING")
    assert (pong.sender, pong.port, pong.inbound) == (cluster.id, cluster.node.port, False)
    assert (ping.sender, ping.port, ping.inbound) == (cluster.id, cluster.node.port, True)
    assert set(cluster.lines()) == {cluster.id, peer.id}


def test_meeting_a_known_node_again_changes_nothing(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    cluster.node.call("CLUSTER", "MEET", cluster.peer.host, cluster.peer.port)
    cluster.peer.wait_for("MEET", sender=cluster.id)
    wait_until(lambda: set(cluster.lines()) == {cluster.id, cluster.peer.id})
    assert cluster.flags(cluster.peer) == {"noflags"}
    cluster.peer.fence()


def test_two_nodes_may_meet_each_other_at_the_same_time(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=0)
    peer = cluster.bystander()
    cluster.node.call("CLUSTER", "MEET", peer.host, peer.port)
    assert peer.join(cluster.node.host, cluster.node.port) == cluster.id
    cluster.wait_until_known(peer)
    wait_until(lambda: set(cluster.lines()) == {cluster.id, peer.id})


def test_a_handshake_that_nobody_answers_is_shown_and_runs_out(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=0, cluster_node_timeout=3000)
    peer = cluster.bystander()
    peer.silence()
    cluster.node.call("CLUSTER", "MEET", peer.host, peer.port)
    (line,) = [line for line in cluster.lines().values() if line.id != cluster.id]
    assert "handshake" in line.flags
    assert line.address == f"{peer.host}:{peer.port}"
    assert re.fullmatch(rb"[0-9a-f]{40}", line.id)
    assert line.id != peer.id
    assert cluster.info()["known_nodes"] == "2"
    assert cluster.info()["size"] == "1"
    wait_until(lambda: set(cluster.lines()) == {cluster.id})


def test_a_node_that_meets_itself_stays_alone(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=0)
    cluster.node.call("CLUSTER", "MEET", cluster.node.host, cluster.node.port)
    wait_until(lambda: set(cluster.lines()) == {cluster.id})
    assert cluster.lines()[cluster.id].flags == {"myself"}


def test_a_node_learns_its_own_address_from_a_meet(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    assert cluster.lines()[cluster.id].address == f"{cluster.node.host}:{cluster.node.port}"
    assert [entry[1] for entry in cluster.node.call("HELLO")[2:] if entry[0] == cluster.id] == [b"127.0.0.1"]


def test_a_met_node_is_known_at_the_address_that_it_came_from(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=0)
    peer = cluster.join(host="127.0.0.3")
    assert cluster.lines()[peer.id].address == f"127.0.0.3:{peer.port}"


def test_a_node_that_starts_again_goes_back_to_its_cluster(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    wait_until(lambda: cluster.peer.id in (cluster.node.directory / "nodes.conf").read_bytes())
    cluster.node.stop()
    pings = len(cluster.peer.seen("PING"))
    cluster.node.start()
    wait_until(lambda: len(cluster.peer.seen("PING", sender=cluster.id)) > pings)
    cluster.wait_until_known(cluster.peer)


def test_meeting_an_address_where_nobody_listens_does_no_harm(start_cluster: StartCluster) -> None:
    cluster = start_cluster(cluster_node_timeout=1000)
    cluster.node.call("CLUSTER", "MEET", "127.0.0.1", free_port())
    wait_until(lambda: set(cluster.lines()) == {cluster.id, cluster.peer.id})
    cluster.flush(cluster.peer)


# CLUSTER NODES and CLUSTER INFO


def test_the_text_of_the_nodes_is_the_original_one(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    text = cluster.node.call("CLUSTER", "NODES").decode()
    assert text.endswith("\n")
    lines = sorted(text.splitlines())
    assert len(lines) == 3
    patterns = [
        rf"{peer.id.decode()} 127\.0\.0\.1:{peer.port} noflags (0|\d{{13}}) \d{{13}} connected"
        for peer in cluster.peers
    ]
    patterns.append(rf"{cluster.id.decode()} 127\.0\.0\.1:{cluster.node.port} myself 0 0 connected")
    for line, pattern in zip(lines, sorted(patterns), strict=True):
        assert re.fullmatch(pattern, line)


def test_the_time_of_the_last_pong_is_a_time_of_day(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    assert abs(cluster.lines()[cluster.peer.id].pong_received / 1000 - time.time()) < 60


def test_the_counts_of_the_cluster_include_the_peers(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    info = cluster.info()
    assert (info["state"], info["known_nodes"], info["reachable_nodes"], info["size"]) == ("ok", "3", "2", "3")
    assert int(info["stats_messages_sent"]) >= 4
    assert int(info["stats_messages_received"]) >= 4


def test_hello_lists_the_peers_with_their_priority(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    peer = cluster.peer
    _, my_id, *nodes = cluster.node.call("HELLO")
    assert my_id == cluster.id
    assert [peer.id, b"127.0.0.1", b"%d" % peer.port, b"1"] in nodes
    assert len(nodes) == 2


# Gossip


@pytest.mark.parametrize("kind", ["PING", "MEET"])
def test_gossip_about_an_unknown_node_starts_a_handshake(start_cluster: StartCluster, kind: str) -> None:
    cluster = start_cluster()
    third = cluster.bystander()
    cluster.peer.send(kind, gossip=(gossip_about(third),))
    assert third.wait_for(("PING", "MEET")).sender == cluster.id
    wait_until(lambda: cluster.flags(third) == {"noflags"})


def test_gossip_in_a_pong_counts_too(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    third = cluster.bystander()
    cluster.peer.gossip = (gossip_about(third),)
    wait_until(lambda: cluster.flags(third) == {"noflags"})


def test_gossip_from_a_stranger_is_not_believed(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=0)
    stranger, third = cluster.stranger(), cluster.bystander()
    stranger.send("PING", gossip=(gossip_about(third),))
    stranger.fence()
    assert set(cluster.lines()) == {cluster.id}


def test_gossip_about_a_node_without_address_starts_nothing(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    third = cluster.bystander()
    cluster.peer.send("PING", gossip=(gossip_about(third, NOADDR),))
    cluster.peer.fence()
    assert set(cluster.lines()) == {cluster.id, cluster.peer.id}


def test_gossip_about_the_node_itself_changes_nothing(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    cluster.peer.send("PING", gossip=(Gossip(cluster.id, "127.0.0.9", 1, PFAIL | FAIL),))
    cluster.peer.fence()
    mine = cluster.lines()[cluster.id]
    assert mine.address == f"{cluster.node.host}:{cluster.node.port}"
    assert mine.flags == {"myself"}


def test_a_forgotten_node_is_not_taken_back_from_gossip(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    teller, gone = cluster.peers
    assert cluster.node.call("CLUSTER", "FORGET", gone.id) == b"OK"
    teller.send("PING", gossip=(gossip_about(gone),))
    teller.fence()
    assert set(cluster.lines()) == {cluster.id, teller.id}


def test_a_node_informs_its_peers_about_each_other(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    asking, other = cluster.peers

    def heard() -> list[Gossip]:
        asking.fence()
        return [entry for message in asking.seen("PONG") for entry in message.gossip if entry.id == other.id]

    entry = wait_until(heard)[0]
    assert (entry.ip, entry.port) == (other.host, other.port)
    assert entry.flags & (PFAIL | FAIL | MYSELF | HANDSHAKE | NOADDR) == 0


def test_a_node_with_one_neighbour_has_nothing_to_say(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    cluster.peer.fence()
    messages = cluster.peer.seen(("PING", "PONG"))
    assert messages
    assert {message.entries for message in messages} == {0}


def test_failures_are_gossiped(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=3)
    asking, failed, teller = cluster.peers
    wait_for_silence(failed)
    teller.send("FAIL", node=failed.id)
    teller.fence()

    def heard() -> bool:
        asking.fence()
        entries = [entry for message in asking.seen("PONG") for entry in message.gossip]
        return any(entry.id == failed.id and entry.flags & FAIL for entry in entries)

    wait_until(heard)


# Changes of address and of name


def test_a_known_node_may_come_from_another_port(
    start_cluster: StartCluster, start_peer: Callable[..., BusPeer]
) -> None:
    cluster = start_cluster()
    before = cluster.peer
    before.close()
    moved = start_peer(node_id=before.id)
    moved.connect(cluster.node.host, cluster.node.port)
    moved.send("PING")
    moved.wait_for("PING", sender=cluster.id)
    wait_until(lambda: cluster.lines()[moved.id].address == f"{moved.host}:{moved.port}")
    cluster.wait_until_known(moved)


def test_a_node_that_answers_with_another_id_has_lost_its_address(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    known = cluster.peer.id
    cluster.peer.id = UNKNOWN_NODE
    wait_until(lambda: "noaddr" in cluster.lines()[known].flags)
    assert not cluster.lines()[known].linked


def test_gossip_brings_a_failed_node_back_at_its_new_address(
    start_cluster: StartCluster, start_peer: Callable[..., BusPeer]
) -> None:
    cluster = start_cluster(peers=2, cluster_node_timeout=1000)
    teller, lost = cluster.peers
    lost.close()
    wait_until(lambda: cluster.flags(lost) & {"fail?", "fail"})
    moved = start_peer(node_id=lost.id)
    teller.send("PING", gossip=(gossip_about(moved),))
    wait_until(lambda: cluster.lines()[moved.id].address == f"{moved.host}:{moved.port}")
    wait_until(lambda: cluster.flags(moved) == {"noflags"})


# Failures


def test_a_node_pings_its_peers_again_and_again(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2, cluster_node_timeout=1000)
    for peer in cluster.peers:
        for _ in range(3):
            peer.wait_for("PING", sender=cluster.id)


def test_a_lost_link_is_opened_again(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    cluster.peer.drop_links()
    pings = len(cluster.peer.seen("PING"))
    wait_until(lambda: len(cluster.peer.seen("PING")) > pings)
    cluster.wait_until_known(cluster.peer)
    cluster.flush(cluster.peer)


def test_a_silent_node_is_suspected(start_cluster: StartCluster) -> None:
    cluster = start_cluster(cluster_node_timeout=1000)
    cluster.peer.silence()
    wait_until(lambda: cluster.flags(cluster.peer) == {"fail?"})
    wait_until(lambda: cluster.reachable() == 0)
    assert cluster.lines()[cluster.peer.id].ping_sent > 0
    assert hello_priority(cluster, cluster.peer) == 10
    assert cluster.info()["size"] == "2"


def test_a_vanished_node_is_suspected(start_cluster: StartCluster) -> None:
    cluster = start_cluster(cluster_node_timeout=1000)
    cluster.peer.close()
    wait_until(lambda: "fail?" in cluster.flags(cluster.peer))


def test_a_suspected_node_that_answers_is_fine_again(start_cluster: StartCluster) -> None:
    cluster = start_cluster(cluster_node_timeout=1000)
    cluster.peer.silence()
    wait_until(lambda: "fail?" in cluster.flags(cluster.peer))
    cluster.peer.speak()
    wait_until(lambda: cluster.flags(cluster.peer) == {"noflags"})
    wait_until(lambda: cluster.reachable() == 1)


def test_a_suspicion_that_most_nodes_share_is_a_failure_and_is_reported(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2, cluster_node_timeout=1000)
    failed, witness = cluster.peers
    failed.silence()
    wait_until(lambda: "fail?" in cluster.flags(failed))
    assert not witness.seen("FAIL")
    witness.send("PING", gossip=(gossip_about(failed, PFAIL),))
    told = witness.wait_for("FAIL", sender=cluster.id)
    assert told.node == failed.id
    assert "fail" in cluster.flags(failed)
    assert hello_priority(cluster, failed) == 100
    failed.speak()
    wait_until(lambda: cluster.flags(failed) == {"noflags"})


def test_a_report_alone_does_not_make_a_failure(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    healthy, witness = cluster.peers
    witness.send("PING", gossip=(gossip_about(healthy, PFAIL),))
    cluster.flush(witness)
    assert cluster.flags(healthy) == {"noflags"}
    assert not witness.seen("FAIL")


def test_one_report_of_many_nodes_does_not_make_a_failure(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=4, cluster_node_timeout=1000)
    failed, first, second, _ = cluster.peers
    failed.silence()
    wait_until(lambda: "fail?" in cluster.flags(failed))
    first.send("PING", gossip=(gossip_about(failed, PFAIL),))
    cluster.flush(first)
    assert cluster.flags(failed) == {"fail?"}

    def told() -> bool:
        # Reports grow old within two seconds, so both are sent again.
        for witness in (first, second):
            witness.send("PING", gossip=(gossip_about(failed, PFAIL),))
        return bool(second.seen("FAIL", node=failed.id))

    wait_until(told, every=0.1)
    first.wait_for("FAIL", node=failed.id)


def test_a_failure_that_is_reported_is_believed_until_the_node_answers(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    failed, teller = cluster.peers
    wait_for_silence(failed)
    teller.send("FAIL", node=failed.id)
    teller.fence()
    assert "fail" in cluster.flags(failed)
    wait_until(lambda: cluster.reachable() == 1)
    failed.speak()
    wait_until(lambda: cluster.flags(failed) == {"noflags"})
    wait_until(lambda: cluster.reachable() == 2)


def test_a_failure_of_an_unknown_node_changes_nothing(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    cluster.peer.send("FAIL", node=UNKNOWN_NODE)
    cluster.peer.fence()
    assert set(cluster.lines()) == {cluster.id, cluster.peer.id}


def test_an_add_is_refused_when_too_few_nodes_are_left(start_cluster: StartCluster) -> None:
    cluster = start_cluster(peers=2)
    failed, teller = cluster.peers
    wait_for_silence(failed)
    teller.send("FAIL", node=failed.id)
    wait_until(lambda: cluster.reachable() == 1)
    with pytest.raises(ReplyError, match=r"^NOREPL Not enough reachable nodes for the requested replication level$"):
        cluster.node.call("ADDJOB", QUEUE, "body", 0)


# Leaving


def test_a_leaving_peer_is_shown_and_not_used(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    cluster.peer.flags |= LEAVING
    cluster.peer.fence()
    assert cluster.flags(cluster.peer) == {"leaving"}
    wait_until(lambda: cluster.reachable() == 0)
    assert hello_priority(cluster, cluster.peer) == 100
    cluster.peer.flags &= ~LEAVING
    cluster.peer.fence()
    assert cluster.flags(cluster.peer) == {"noflags"}
    wait_until(lambda: cluster.reachable() == 1)


def test_leaving_is_learnt_from_a_pong_too(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    cluster.peer.flags |= LEAVING
    wait_until(lambda: cluster.flags(cluster.peer) == {"leaving"})


def test_leaving_is_not_learnt_from_a_message_about_a_job(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    job = cluster.peer.new_job(nodes=(cluster.peer.id, cluster.id))
    cluster.peer.send("REPLJOB", jobs=(job,), flags=MYSELF | LEAVING)
    cluster.peer.wait_for("GOTJOB")
    assert cluster.flags(cluster.peer) == {"noflags"}


def test_a_leaving_node_says_so_to_its_peers_until_it_stays(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    cluster.node.call("CLUSTER", "LEAVING", "yes")
    cluster.peer.wait_for("PING", where=lambda message: message.flags & LEAVING)
    cluster.peer.fence()
    assert cluster.peer.seen("PONG")[-1].flags & LEAVING
    cluster.node.call("CLUSTER", "LEAVING", "no")
    cluster.peer.fence()
    assert not cluster.peer.seen("PONG")[-1].flags & LEAVING
