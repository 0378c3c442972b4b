"""What arrives from other nodes, and who handles it. Messages of nodes that aren't in the cluster change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.broker.core import acks, blocking, federation, gossip, replication, requeueing
from penstock.broker.core.gossip import Line
from penstock.broker.core.membership import HANDSHAKE, MYSELF, Peer
from penstock.broker.core.node import Node
from penstock.wire import bus
from penstock.wire.bus import Message

References = list[tuple[bytes, int]]

# About jobs, one or many: the flags, the nodes that hold them if the sender says so, ids and values.
ABOUT_JOBS: Final[dict[int, Callable[[Node, Peer, int, list[bytes] | None, References], None]]] = {
    bus.GOTJOB: replication.heard_gotjob,
    bus.ENQUEUE: replication.heard_enqueue,
    bus.DELJOB: replication.heard_deljob,
    bus.SETACK: acks.heard_setack,
    bus.GOTACK: acks.heard_gotack,
    bus.WILLQUEUE: requeueing.heard_willqueue,
    bus.QUEUED: requeueing.heard_queued,
    bus.WORKING: requeueing.heard_working,
}
OTHERS: Final[dict[int, Callable[[Node, Peer, Message], None]]] = {
    bus.FAIL: gossip.heard_fail,
    bus.REPLJOB: replication.heard_repljob,
    bus.NEEDJOBS: federation.heard_needjobs,
    bus.YOURJOBS: federation.heard_yourjobs,
    bus.PAUSE: blocking.heard_pause,
}


def receive(node: Node, line: Line, data: bytes) -> None:
    """Take one whole message."""
    message = bus.decode(data)
    if message is None:
        return
    node.cluster.messages_received += 1
    if message.type in bus.GOSSIP_TYPES:
        gossip.heard(node, line, message)
        return
    peer = node.cluster.peers.get(message.sender)
    if peer is None or peer.flags & (HANDSHAKE | MYSELF):
        return
    if message.type in OTHERS:
        OTHERS[message.type](node, peer, message)
        return
    kind, nodes, refs = bus.references(message)
    ABOUT_JOBS[kind](node, peer, message.flags, nodes, refs)
