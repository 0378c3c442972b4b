"""The links of the cluster bus: those that other nodes open to us, and those that we open to them.

    inbound     accepted on the client port + 10000; messages of others come in, and only PONGs go back
    outbound    one to each node, opened when the core asks for it; all we say goes there, and PONGs come back

Both live in the rounds of clients' links. Messages of one read are handed to the broker together. What it answers on
the link they came by is kept until the turn ends, when the journal has what the answer may tell.

With a cluster secret a link begins with a proof from both sides (wire.bus_auth), with `tls-cluster` with certificates.
Until then nothing of what arrives reaches the broker. A link that is no bus, or has no proof, is closed, and the log
tells of it once a minute for each address.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final

from penstock.broker.broker import Broker
from penstock.broker.core.gossip import Line
from penstock.broker.core.membership import BUS_PORT_OFFSET, HANDSHAKE, Peer
from penstock.broker.links import Link, Rounds
from penstock.wire.bus import BusError, BusReader, sender_of
from penstock.wire.bus_auth import MARK, NONCE_BYTES, Acceptor, AuthError, Connector

log = logging.getLogger("penstock")

# A peer that doesn't read loses its link when more than this waits for it. A busy node says some 20 MB a second: the
# peer may stand still for a few seconds, and memory isn't at stake. What is lost is said again, as after any loss.
UNSENT_BYTES_MAX: Final = 64 << 20
INBOUND_SPARE: Final = 64  # links from others beside two for each node we know: a node may be back before we notice
HANDSHAKES_MAX: Final = 64  # links opened at once to nodes that we don't know yet
# Of one message on a link that no node we know has spoken on: a MEET with gossip about ten thousand nodes.
STRANGER_BYTES_MAX: Final = 1 << 20
PROOF_SECONDS: Final = 10.0
FIRST_MESSAGE_SECONDS: Final = 30.0  # a node speaks as soon as it is let in
STALL_SECONDS: Final = 60.0  # the rest of a message may take this long to go on
COMPLAIN_SECONDS: Final = 60.0
COMPLAINTS_MAX: Final = 1000  # addresses remembered; then we begin anew


class BusLink:
    """One link, from its first byte to its loss. `peer` is the node we opened it to, None if it was opened to us."""

    def __init__(self, bus: BusLinks, peer: Peer | None) -> None:
        self._bus = bus
        self.peer = peer
        self.sender = b""  # of the last whole message
        self.deadline = 0.0  # for what it has to do next; 0 if there is nothing
        self.ip = peer.ip if peer is not None else ""
        self._link: Link | None = None
        self._line: Line | None = None
        self._reader = BusReader()
        self._proof: Acceptor | Connector | None = None
        self._is_open = False
        self._out: list[bytes] = []
        self._largest = 0  # of what was sent since the peer was last seen to have taken everything
        self._unsent = 0  # when this was last looked at

    # What the link tells (links.Handler).

    def arrived(self, link: Link) -> None:
        """Keep the link, if there is room for one more."""
        self._link = link
        if self.peer is None and not self._bus.admit(self):
            link.abort()

    def opened(self, link: Link) -> None:
        """Begin: with a proof if there is a secret, else with the bus itself."""
        bus = self._bus
        try:
            link.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.ip = link.socket.getpeername()[0]
            self._line = Line(self.peer, self.ip, link.socket.getsockname()[0], self._reply)
        except OSError:
            link.abort()  # it was gone before we looked
            return
        if not bus.secret:
            self._begin()
            return
        self.deadline = bus.clock() + PROOF_SECONDS
        nonce = os.urandom(NONCE_BYTES)
        side = Acceptor if self.peer is None else Connector
        self._proof = side(bus.secret, bus.broker.node.cluster.my_id, nonce)
        question = self._proof.begin()
        if question:
            link.write(question)

    def _begin(self) -> None:
        self._proof = None
        self._is_open = True
        if self.peer is None:
            self.deadline = self._bus.clock() + FIRST_MESSAGE_SECONDS
        else:
            self.deadline = 0.0
            self._bus.broker.link_opened(self.peer)

    def received(self, data: bytes) -> None:
        """Hand over the messages that are whole now."""
        if self._line is None or self._link is None or self._link.is_closing:
            return
        if self._proof is not None:
            self._prove(self._link, self._proof, data)
            return
        try:
            messages = self._reader.feed(data)
        except BusError as problem:
            asks = self.peer is not None and data.startswith(MARK)
            self.refuse("it asks for a cluster-secret, and we have none" if asks else str(problem))
            return
        if messages:
            self.sender = sender_of(messages[-1])
            self.deadline = 0.0
            self._bus.hand_over(self._line, messages)
        if self._reader.pending_bytes:
            self._wait_for_rest()

    def _wait_for_rest(self) -> None:
        if self._reader.pending_bytes > STRANGER_BYTES_MAX and not self._bus.knows(self.sender):
            self.refuse(f"a message of more than {STRANGER_BYTES_MAX} bytes from a node we don't know")
        elif self.sender:
            self.deadline = self._bus.clock() + STALL_SECONDS

    def _prove(self, link: Link, proof: Acceptor | Connector, data: bytes) -> None:
        try:
            answer = proof.feed(data)
        except AuthError as problem:
            self.refuse(str(problem))
            return
        if answer:
            link.write(answer)
        if proof.is_done:
            self._begin()

    def refuse(self, problem: str) -> None:
        """Close the link for what came, or didn't come, on it."""
        whose = "the link of" if self.peer is None else "our link to"
        self._bus.complain(self.ip, f"closing {whose} {self.ip} on the cluster bus: {problem}")
        self.close()

    def untrusted(self, problem: str) -> None:
        """Note why TLS failed."""
        if self._link is not None and not self.ip:
            try:
                self.ip = self._link.socket.getpeername()[0]
            except OSError:
                self.ip = "an address that is gone"
        self._bus.complain(self.ip, f"no link with {self.ip} on the cluster bus: TLS failed: {problem}")

    def overfull(self) -> None:
        """Drop a link on which the answers to its own messages aren't read; ours have a limit of their own."""
        if self.peer is None:
            self.refuse("it doesn't read our answers")

    def drained(self) -> None:
        """Go on: there was nothing that waited."""

    def sent(self) -> None:
        """Do nothing: what waits is looked at by the cron."""

    def lost(self) -> None:
        """Tell who has to know, and let go of everything: nothing collects what refers to itself."""
        if self._proof is not None and self.peer is not None:
            text = f"no link to {self.ip} on the cluster bus: it didn't take our cluster-secret, or has none"
            self._bus.complain(self.ip, text)
        self._link = None
        self._line = None
        self._proof = None
        self._out.clear()
        self._bus.ended(self)

    # What the bus does with it.

    def _reply(self, data: bytes) -> None:
        if not self._out:
            self._bus.answering.append(self)
        self._out.append(data)

    def flush(self) -> None:
        """Send the answers."""
        if self._link is not None and self._out:
            self._link.write(b"".join(self._out))
        self._out.clear()

    def send(self, data: bytes) -> None:
        """Send messages of ours, if the peer takes them."""
        link = self._link
        if link is None or not self._is_open:
            return
        unsent = link.unsent_bytes
        self._largest = max(self._largest if unsent else 0, len(data))
        if unsent > UNSENT_BYTES_MAX + self._largest:
            self.refuse(f"it has not read {unsent} bytes")
            return
        link.write(data)

    def moves(self) -> bool:
        """Tell whether the other side has taken some of what waits for it since this was last asked."""
        before, self._unsent = self._unsent, self._link.unsent_bytes if self._link is not None else 0
        return self._unsent > 0 and (not before or self._unsent < before)

    def held_bytes(self) -> int:
        """Tell how much has arrived of what isn't whole, and how much the other side has not taken yet."""
        unsent = self._link.unsent_bytes if self._link is not None else 0
        return unsent + self._reader.pending_bytes

    def close(self) -> None:
        """End at once; `lost` follows."""
        if self._link is not None:
            self._link.abort()


class BusLinks:
    """All links of the bus: the port of the core (outbox.BusPort), and who is let in."""

    def __init__(self, broker: Broker, rounds: Rounds, secret: bytes, tls: ssl.SSLContext | None) -> None:
        self.broker = broker
        self.secret = secret
        self.clock: Callable[[], float] = broker.clock
        self.answering: list[BusLink] = []
        self.sources: list[str] = []  # our addresses, from which we call others
        self._rounds = rounds
        self._tls = tls
        self._outbound: dict[Peer, BusLink] = {}
        self._inbound: dict[BusLink, None] = {}  # the oldest first
        self._complained: dict[str, float] = {}
        self._held_bytes = 0  # as accounted for

    # The port of the core.

    def connect(self, peer: Peer) -> None:
        """Begin to open our link to a node."""
        link = self._outbound[peer] = BusLink(self, peer)
        if peer.flags & HANDSHAKE and sum(bool(other.flags & HANDSHAKE) for other in self._outbound) > HANDSHAKES_MAX:
            self._rounds.end(link)  # it is tried again
            return
        is_v6 = ":" in peer.ip
        source = next((ours for ours in self.sources if (":" in ours) == is_v6), "")
        self._rounds.connect(peer.ip, peer.port + BUS_PORT_OFFSET, source, link, self._tls)

    def disconnect(self, peer: Peer) -> None:
        """Close our link to a node, or stop opening it."""
        link = self._outbound.pop(peer, None)
        if link is not None:
            link.close()

    def send(self, peer: Peer, data: bytes) -> None:
        """Send whole messages on our link to a node."""
        link = self._outbound.get(peer)
        if link is not None:
            link.send(data)

    def moves(self, peer: Peer) -> bool:
        """Tell whether a node has taken a part of what waits on our link to it since this was last asked."""
        link = self._outbound.get(peer)
        return link is not None and link.moves()

    # Links come and go.

    def accept(self) -> BusLink:
        """Take a link that another node opens."""
        return BusLink(self, None)

    def admit(self, link: BusLink) -> bool:
        """Tell whether there is room for a link; the oldest that no node we know has spoken on makes room."""
        inbound = self._inbound
        if len(inbound) >= INBOUND_SPARE + 2 * self.broker.node.cluster.size:
            oldest = next((other for other in inbound if not self.knows(other.sender)), None)
            if oldest is None:
                self.complain("", "no more links are let in on the cluster bus: every node has two already")
                return False
            del inbound[oldest]
            oldest.close()
        inbound[link] = None
        return True

    def ended(self, link: BusLink) -> None:
        """Forget a link that is gone, and tell the core if it still counts on it."""
        peer = link.peer
        if peer is None:
            self._inbound.pop(link, None)
        elif self._outbound.get(peer) is link:
            del self._outbound[peer]
            self.broker.link_lost(peer)

    def knows(self, node_id: bytes) -> bool:
        """Tell whether a node is one of the cluster."""
        return node_id in self.broker.node.cluster.ids

    def hand_over(self, line: Line, messages: list[bytes]) -> None:
        """Let the broker take messages. A defect of ours costs these, as if they were lost, but not the node."""
        try:
            self.broker.receive(line, messages)
        except Exception:
            log.exception("messages of %s failed", line.ip)

    # Time passes, and turns end.

    def flush(self) -> None:
        """Send what is answered on the links of others: the journal is safe now."""
        if self.answering:
            answering, self.answering = self.answering, []
            for link in answering:
                link.flush()

    def cron(self) -> None:
        """Close links that don't come to the point, and account for what is held for all of them."""
        now, held = self.clock(), 0
        for link in [*self._inbound, *self._outbound.values()]:
            if 0.0 < link.deadline < now:
                link.refuse("it doesn't go on")
            held += link.held_bytes()
        memory = self.broker.node.memory
        memory.used_bytes += held - self._held_bytes
        memory.base_bytes += held - self._held_bytes
        self._held_bytes = held

    def complain(self, address: str, text: str) -> None:
        """Log a warning, but not for the same address again within a minute."""
        now = self.clock()
        if now < self._complained.get(address, now):
            return
        if len(self._complained) >= COMPLAINTS_MAX:
            self._complained.clear()
        self._complained[address] = now + COMPLAIN_SECONDS
        log.warning("%s", text)
