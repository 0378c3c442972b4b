"""How nodes find each other, and notice that one is gone.

handshake   Begins with CLUSTER MEET, a MEET message, or gossip about an unknown node: this node opens a link to a
            placeholder, which takes its id and address from the first PONG. That may work on one side only: a node that
            answers but never sends anything itself is sent a MEET again.
pings       Each second, of five random nodes the one with the oldest PONG; and every node without a PONG for half the
            node timeout. A ping carries gossip about some other nodes, failing ones first.
failure     A ping unanswered for the node timeout makes a node `fail?` here, and `fail` once most of the cluster
            agrees. Any PONG ends both.

Every node has one link to every other node and sends its messages there; on links that others opened, it only answers
with PONGs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

from penstock.broker.core import acks, federation, places, restoring, takeover
from penstock.broker.core.membership import (
    BLACKLIST_MS,
    CONNECTING,
    FAIL,
    HANDSHAKE,
    HANDSHAKE_MS_MIN,
    LEAVING,
    LINKED,
    MEET,
    MYSELF,
    NO_LINK,
    NOADDR,
    PFAIL,
    PLACES_UNTOLD,
    UNHEARD,
    Peer,
    can_be_address,
)
from penstock.broker.core.node import Node
from penstock.broker.core.refusals import Refused
from penstock.wire import bus
from penstock.wire.bus import BusMessage, Gossip

PING_EVERY_CRONS: Final = 10  # a second
SAMPLE: Final = 5
GOSSIP_MIN: Final = 3
REPORTS_TIMEOUTS: Final = 2  # a report of failure is valid for this many node timeouts
SILENT_MS: Final = 1000  # a node that lost its link to us has a new one by then, perhaps without a message on it
FLAGS_TOLD: Final = PFAIL | FAIL | NOADDR | LEAVING


class LinkInfo:
    """The link on which a message arrived: one that we opened to a peer, or one that another node opened to us."""

    def __init__(self, peer: Peer | None, ip: str, local_ip: str, reply: Callable[[bytes], None]) -> None:
        self.peer = peer  # None: opened by the other side
        self.ip = ip
        self.local_ip = local_ip
        self.reply = reply


# Links open and close.


def link_opened(node: Node, peer: Peer) -> None:
    """Our link to a node has opened."""
    peer.link = LINKED
    peer.linked_ms = node.now_ms
    pending = peer.ping_sent
    _ping(node, peer)
    if pending:
        peer.ping_sent = pending  # else a node that accepts links and answers nothing would never fail
    if peer.flags & FAIL and peer.abilities & bus.TAKES_OVER:
        node.outbox.send(peer, bus.FAIL, peer.id)  # it may not know
    peer.places_told = PLACES_UNTOLD
    places.linked(node, peer)
    node.cluster.recount()
    if not peer.flags & HANDSHAKE:
        _greet(node, peer)


def _greet(node: Node, peer: Peer) -> None:
    """Do what had to wait for a link to this node."""
    acks.collect_again(node)
    federation.linked(node, peer)
    restoring.announce_if_linked(node)


def link_lost(node: Node, peer: Peer) -> None:
    """Our link to a node has closed, or could not be opened."""
    peer.link = NO_LINK
    if peer.flags & HANDSHAKE:
        return
    peer.speaks = False  # it may be a new process, without a link to us yet
    peer.places_told = PLACES_UNTOLD
    federation.unlinked(node, peer)
    node.cluster.recount()


def _drop_link(node: Node, peer: Peer) -> None:
    if peer.link != NO_LINK:
        node.outbox.port.disconnect(peer)
        peer.link = NO_LINK
        peer.places_told = PLACES_UNTOLD
        federation.unlinked(node, peer)
        node.cluster.recount()


def forget_node(node: Node, peer_id: bytes) -> None:
    """Remove a node, and don't take it back from gossip for a minute."""
    cluster = node.cluster
    _remove(node, cluster.peers[peer_id])
    cluster.blacklist[peer_id] = node.now_ms + BLACKLIST_MS
    cluster.unsaved = True
    acks.collect_again(node)


def forget_all_nodes(node: Node) -> None:
    """Remove all other nodes."""
    for peer in list(node.cluster.peers.values()):
        if peer is not node.cluster.myself:
            _remove(node, peer)
    node.cluster.blacklist.clear()
    node.cluster.unsaved = True


def _remove(node: Node, peer: Peer) -> None:
    if peer.flags & HANDSHAKE:
        if peer.link != NO_LINK:
            node.outbox.port.disconnect(peer)
        node.cluster.end_handshake(peer)
        return
    _drop_link(node, peer)
    node.cluster.peers.pop(peer.id, None)
    for other in node.cluster.peers.values():
        other.fail_reports.pop(peer.id, None)
    node.cluster.recount()


# Ten times a second.


def cron(node: Node, node_timeout_ms: int) -> None:
    """Open links, send pings, and detect nodes that fail."""
    cluster, now_ms = node.cluster, node.now_ms
    node.node_timeout_ms = node_timeout_ms
    for peer_id in [known for known, until in cluster.blacklist.items() if until <= now_ms]:
        del cluster.blacklist[peer_id]
    node.crons += 1
    takeover.end_hold(node)
    if len(cluster.peers) == 1:
        return
    shake_ms = max(node_timeout_ms, HANDSHAKE_MS_MIN)
    for peer in list(cluster.peers.values()):
        if peer.flags & MYSELF:
            continue
        if peer.flags & HANDSHAKE and now_ms - peer.created_ms > shake_ms:
            _remove(node, peer)
        elif not peer.flags & NOADDR:
            _watch(node, peer, node_timeout_ms)
    if node.crons % PING_EVERY_CRONS == 0:
        _ping_one(node)
    places.tell_all(node)
    places.ask(node)
    takeover.take_over(node)


def _watch(node: Node, peer: Peer, node_timeout_ms: int) -> None:
    """Check one node: open its link, ping it, or mark it as failing."""
    now_ms = node.now_ms
    if peer.link == NO_LINK:
        peer.link = CONNECTING
        peer.linked_ms = now_ms
        node.outbox.port.connect(peer)
    pending_ms = now_ms - peer.ping_sent if peer.ping_sent else 0
    if peer.link == CONNECTING:
        if now_ms - peer.linked_ms > node_timeout_ms:
            _drop_link(node, peer)  # no answer to the connection attempt: try again
        if not peer.ping_sent:
            peer.ping_sent = now_ms  # counts as an unanswered ping
    elif peer.link == LINKED:
        if not peer.speaks and now_ms - peer.linked_ms > SILENT_MS:
            _speaks(node, peer)
        if pending_ms > node_timeout_ms // 2 and now_ms - peer.linked_ms > node_timeout_ms:
            if not node.outbox.port.moves(peer):  # else it still reads something large that our ping is behind
                _drop_link(node, peer)
        elif not peer.ping_sent and now_ms - peer.pong_received > node_timeout_ms // 2:
            _ping(node, peer)
    if pending_ms > node_timeout_ms and not peer.flags & (PFAIL | FAIL | HANDSHAKE):
        peer.flags |= PFAIL
        node.cluster.recount()


def _speaks(node: Node, peer: Peer) -> None:
    """Count a node as able to confirm copies: it has a link to us, or our own link is not new any more."""
    peer.speaks = True
    node.cluster.recount()


def _ping_one(node: Node) -> None:
    """Ping, of a few random nodes, the one with the oldest PONG."""
    others = [p for p in node.cluster.others if p.link == LINKED and not p.ping_sent]
    if others:
        sample = [others[node.chance(len(others))] for _ in range(SAMPLE)]
        _ping(node, min(sample, key=lambda peer: peer.pong_received))


def _ping(node: Node, peer: Peer) -> None:
    if peer.flags & UNHEARD and node.now_ms - peer.created_ms > node.node_timeout_ms:
        peer.flags |= MEET
        peer.created_ms = node.now_ms  # once in a node timeout: it may know us, and be unable to reach us
    kind = bus.MEET if peer.flags & MEET else bus.PING
    peer.flags &= ~MEET
    if not peer.ping_sent:
        peer.ping_sent = node.now_ms
    entries = _some_gossip(node, peer.id)
    node.outbox.send(peer, kind, bus.encode_gossip(entries), count=len(entries))


def _some_gossip(node: Node, receiver: bytes) -> list[Gossip]:
    """Return gossip about a few other nodes: failing ones first, then random ones."""
    cluster, offset = node.cluster, node.wall_offset_ms
    known = [
        p for p in cluster.others if p.id != receiver and not p.flags & NOADDR and (p.link or p.flags & (PFAIL | FAIL))
    ]
    wanted = min(max(GOSSIP_MIN, cluster.size // 10), len(known))
    failing = [peer for peer in known if peer.flags & (PFAIL | FAIL)]
    start = node.chance(len(known)) if known else 0
    chosen = dict.fromkeys(failing[:wanted] + known[start:] + known[:start])
    return [
        Gossip(
            p.id,
            p.ping_sent + offset if p.ping_sent else 0,
            p.pong_received + offset if p.pong_received else 0,
            p.ip,
            p.port,
            p.flags & FLAGS_TOLD,
        )
        for p in list(chosen)[:wanted]
    ]


# Messages of the cluster itself.


def on_gossip(node: Node, link: LinkInfo, message: BusMessage) -> None:
    """PING, PONG or MEET."""
    if not message.sender.isalnum():
        return  # any other id would break the lines of nodes.conf
    cluster = node.cluster
    sender = cluster.peers.get(message.sender)
    if sender is not None and sender.flags & (HANDSHAKE | MYSELF):
        sender = None
    if message.type != bus.PONG:
        if link.local_ip and (message.type == bus.MEET or not cluster.myself.ip) and cluster.myself.ip != link.local_ip:
            cluster.myself.ip = link.local_ip
            cluster.unsaved = True
        if message.type == bus.MEET and sender is None and message.sender != cluster.my_id:
            _shake(node, link.ip, message.port)
            _take_gossip(node, None, message)
        entries = _some_gossip(node, message.sender)
        link.reply(node.outbox.message(bus.PONG, bus.encode_gossip(entries), count=len(entries)))
        cluster.messages_sent += 1
    elif link.peer is not None:
        sender = _answered(node, link.peer, sender, message)
    if sender is None:
        return
    sender.abilities = message.abilities
    if message.abilities & bus.TAKES_OVER:
        cluster.has_takers = True
        places.linked(node, sender)
    if (sender.flags ^ message.node_flags) & LEAVING:
        sender.flags ^= LEAVING
        cluster.unsaved = True
        cluster.recount()
    if message.type != bus.PONG:
        sender.flags &= ~UNHEARD
        if not sender.speaks:
            _speaks(node, sender)
        _update_address(node, sender, link.ip, message.port)
    _take_gossip(node, sender, message)


def _answered(node: Node, peer: Peer, sender: Peer | None, message: BusMessage) -> Peer | None:
    """A PONG on our link to a node: return the node that it really is."""
    cluster = node.cluster
    if peer.flags & HANDSHAKE:
        if sender is not None or message.sender == cluster.my_id:
            _remove(node, peer)
            if sender is not None:
                _update_address(node, sender, peer.ip, message.port)
            return None
        cluster.end_handshake(peer)
        peer.rename(message.sender)
        peer.flags = peer.flags & ~(HANDSHAKE | MEET) | UNHEARD
        cluster.peers[peer.id] = peer
        cluster.blacklist.pop(peer.id, None)
        cluster.unsaved = True
        cluster.recount()
        peer.ping_sent, peer.pong_received = 0, node.now_ms
        peer.abilities = message.abilities
        _greet(node, peer)
        return peer
    if peer.id != message.sender:
        peer.flags |= NOADDR
        peer.ip, peer.port = "", 0
        _drop_link(node, peer)
        cluster.unsaved = True
        return None
    peer.ping_sent, peer.pong_received = 0, node.now_ms
    if peer.flags & (PFAIL | FAIL):
        if peer.flags & FAIL:
            cluster.unsaved = True
            federation.serve_wants(node, peer)
        peer.flags &= ~(PFAIL | FAIL)
        peer.fail_reports.clear()
        cluster.recount()
    return peer


def _update_address(node: Node, peer: Peer, ip: str, port: int) -> None:
    """Follow a node to its new address."""
    if (peer.ip, peer.port) == (ip, port) or not can_be_address(ip, port):
        return
    peer.ip, peer.port = ip, port
    peer.flags &= ~NOADDR
    _drop_link(node, peer)
    node.cluster.unsaved = True


def _shake(node: Node, ip: str, port: int) -> None:
    """Begin a handshake with an address from a message, if it is valid."""
    if not node.cluster.has_room_for_handshake or not can_be_address(ip, port):
        return
    with suppress(Refused):  # too many at once: gossip will name it again
        node.cluster.meet(str(ip_address(ip)), port, node.entropy(20).hex().encode(), node.now_ms, flags=0)


def _take_gossip(node: Node, sender: Peer | None, message: BusMessage) -> None:
    """Use gossip: from a member all of it, from an unknown node that sends MEET only that the others exist."""
    cluster = node.cluster
    for entry in bus.decode_gossip(message):
        peer = cluster.peers.get(entry.id)
        if peer is None:
            if not entry.flags & NOADDR and entry.id not in cluster.blacklist:
                _shake(node, entry.ip, entry.port)
        elif sender is not None and not peer.flags & (MYSELF | HANDSHAKE) and peer is not sender:
            if entry.flags & (PFAIL | FAIL):
                peer.fail_reports[sender.id] = node.now_ms
                _fail_if_most_say_so(node, peer)
            else:
                peer.fail_reports.pop(sender.id, None)
                moved = (entry.ip, entry.port) != (peer.ip, peer.port)
                if peer.flags & (PFAIL | FAIL | NOADDR) and moved and not entry.flags & NOADDR:
                    _shake(node, entry.ip, entry.port)


def _fail_if_most_say_so(node: Node, peer: Peer) -> None:
    if not peer.flags & PFAIL or peer.flags & FAIL:
        return
    since = node.now_ms - REPORTS_TIMEOUTS * node.node_timeout_ms
    peer.fail_reports = {who: at for who, at in peer.fail_reports.items() if at >= since}
    if len(peer.fail_reports) + 1 >= node.cluster.size // 2 + 1:
        _fail(node, peer)
        for other in node.cluster.others:
            node.outbox.send(other, bus.FAIL, peer.id)


def on_fail(node: Node, sender: Peer, message: BusMessage) -> None:
    """FAIL: most of the cluster agrees that a node fails."""
    peer = node.cluster.peers.get(message.payload)
    if peer is node.cluster.myself:
        takeover.hold(node)
    if peer is not None and not peer.flags & (MYSELF | HANDSHAKE | FAIL):
        _fail(node, peer)


def _fail(node: Node, peer: Peer) -> None:
    peer.flags = peer.flags & ~PFAIL | FAIL
    takeover.failed(node, peer)
    node.cluster.unsaved = True
    node.cluster.recount()
