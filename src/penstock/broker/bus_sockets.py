"""The links of the cluster bus: those that other nodes open to us, and those that we open to them.

    inbound     accepted on the client port + 10000; other nodes send their messages there, and only PONGs go back
    outbound    one to each node, opened when the core asks for it; all our messages go there, and PONGs come back

Both are served in the same rounds as clients. The messages of one read are passed to the broker together. Its answers
on the link they came by are kept until the turn ends, when the journal has what they may tell.

With a cluster secret both sides of a link first prove that they know it (wire.bus_auth); with `tls-cluster` both show
certificates. Until then nothing that arrives reaches the broker. A link that doesn't speak the bus protocol, or gives
no proof, is closed; the log says so once a minute for each address.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final

from penstock.broker.broker import Broker
from penstock.broker.core.gossip import LinkInfo
from penstock.broker.core.membership import BUS_PORT_OFFSET, HANDSHAKE, Peer
from penstock.broker.sockets import EpollSocket, SocketLoop
from penstock.wire.bus import BusError, BusReader, sender_of
from penstock.wire.bus_auth import MARK, NONCE_BYTES, Acceptor, AuthError, Connector

log = logging.getLogger("penstock")

# The link to a peer that doesn't read is closed when more than this is unsent. A busy node sends some 20 MB a second:
# the peer may stall for a few seconds, and memory stays bounded. Lost messages are repeated, as after any loss.
UNSENT_BYTES_MAX: Final = 64 << 20
INBOUND_SPARE: Final = 64  # inbound links beside two for each known node: a node may be back before we notice
HANDSHAKES_MAX: Final = 64  # links being opened at once to nodes that we don't know yet
# One message, on a link where no known node has sent one yet: a MEET with gossip about ten thousand nodes.
UNAUTHENTICATED_BYTES_MAX: Final = 1 << 20
PROOF_SECONDS: Final = 10.0
FIRST_MESSAGE_SECONDS: Final = 30.0  # a node sends its first message as soon as it is connected
STALL_SECONDS: Final = 60.0  # a message that is incomplete may pause this long
COMPLAIN_SECONDS: Final = 60.0
COMPLAINTS_MAX: Final = 1000  # addresses remembered; then the list is cleared


class BusLink:
    """One link, from opening to closing. `peer` is the node that we opened it to, None if another node opened it."""

    def __init__(self, bus: BusLinks, peer: Peer | None) -> None:
        self._bus = bus
        self.peer = peer
        self.sender = b""  # of the last complete message
        self.deadline = 0.0  # for its next step; 0 if nothing is expected
        self.ip = peer.ip if peer is not None else ""
        self._sock: EpollSocket | None = None
        self._info: LinkInfo | None = None
        self._reader = BusReader()
        self._proof: Acceptor | Connector | None = None
        self._is_open = False
        self._out: list[bytes] = []
        self._largest = 0  # message sent since nothing was unsent
        self._unsent = 0  # bytes, at the last call of `moves`

    # Events of the socket (sockets.Handler).

    def on_accept(self, sock: EpollSocket) -> None:
        """Keep the link, if the limit allows one more."""
        self._sock = sock
        if self.peer is None and not self._bus.admit(self):
            sock.abort()

    def on_open(self, sock: EpollSocket) -> None:
        """Begin with the proof if there is a secret, else with messages."""
        bus = self._bus
        try:
            sock.raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.ip = sock.raw.getpeername()[0]
            self._info = LinkInfo(self.peer, self.ip, sock.raw.getsockname()[0], self._reply)
        except OSError:
            sock.abort()  # it was gone before we looked
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
            sock.write(question)

    def _begin(self) -> None:
        self._proof = None
        self._is_open = True
        if self.peer is None:
            self.deadline = self._bus.clock() + FIRST_MESSAGE_SECONDS
        else:
            self.deadline = 0.0
            self._bus.broker.link_opened(self.peer)

    def on_data(self, data: bytes) -> None:
        """Pass on the messages that are complete now."""
        if self._info is None or self._sock is None or self._sock.is_closing:
            return
        if self._proof is not None:
            self._prove(self._sock, self._proof, data)
            return
        try:
            messages = self._reader.feed(data)
        except BusError as problem:
            asks = self.peer is not None and data.startswith(MARK)
            self.refuse("it requires a cluster-secret, and this node has none" if asks else str(problem))
            return
        if messages:
            self.sender = sender_of(messages[-1])
            self.deadline = 0.0
            self._bus.hand_over(self._info, messages)
        if self._reader.pending_bytes:
            self._wait_for_rest()

    def _wait_for_rest(self) -> None:
        if self._reader.pending_bytes > UNAUTHENTICATED_BYTES_MAX and not self._bus.knows(self.sender):
            self.refuse(f"a message from an unknown node must be at most {UNAUTHENTICATED_BYTES_MAX} bytes")
        elif self.sender:
            self.deadline = self._bus.clock() + STALL_SECONDS

    def _prove(self, sock: EpollSocket, proof: Acceptor | Connector, data: bytes) -> None:
        try:
            answer = proof.feed(data)
        except AuthError as problem:
            self.refuse(str(problem))
            return
        if answer:
            sock.write(answer)
        if proof.is_done:
            self._begin()

    def refuse(self, problem: str) -> None:
        """Close the link, and log why."""
        whose = "the link of" if self.peer is None else "our link to"
        self._bus.complain(self.ip, f"closing {whose} {self.ip} on the cluster bus: {problem}")
        self.close()

    def on_tls_error(self, problem: str) -> None:
        """Log why TLS failed."""
        if self._sock is not None and not self.ip:
            try:
                self.ip = self._sock.raw.getpeername()[0]
            except OSError:
                self.ip = "an unknown address"
        self._bus.complain(self.ip, f"no link with {self.ip} on the cluster bus: TLS failed: {problem}")

    def on_send_blocked(self) -> None:
        """Close an inbound link whose peer doesn't read our PONGs; outbound links have UNSENT_BYTES_MAX."""
        if self.peer is None:
            self.refuse("it doesn't read our answers")

    def on_send_resumed(self) -> None:
        """Nothing was held back."""

    def on_sent(self) -> None:
        """Nothing to do: the cron counts unsent bytes."""

    def on_close(self) -> None:
        """Report the end, and drop all references: the garbage collector is off, so cycles would stay."""
        if self._proof is not None and self.peer is not None:
            text = f"no link to {self.ip} on the cluster bus: it refused our cluster-secret, or has none"
            self._bus.complain(self.ip, text)
        self._sock = None
        self._info = None
        self._proof = None
        self._out.clear()
        self._bus.ended(self)

    # What BusLinks does with it.

    def _reply(self, data: bytes) -> None:
        if not self._out:
            self._bus.answering.append(self)
        self._out.append(data)

    def flush(self) -> None:
        """Send the collected answers."""
        if self._sock is not None and self._out:
            self._sock.write(b"".join(self._out))
        self._out.clear()

    def send(self, data: bytes) -> None:
        """Send messages, unless too much is unsent."""
        sock = self._sock
        if sock is None or not self._is_open:
            return
        unsent = sock.unsent_bytes
        self._largest = max(self._largest if unsent else 0, len(data))
        if unsent > UNSENT_BYTES_MAX + self._largest:
            self.refuse(f"it has not read {unsent} bytes")
            return
        sock.write(data)

    def moves(self) -> bool:
        """Whether the peer has read some of the unsent bytes since the last call."""
        before, self._unsent = self._unsent, self._sock.unsent_bytes if self._sock is not None else 0
        return self._unsent > 0 and (not before or self._unsent < before)

    def held_bytes(self) -> int:
        """Return the bytes of incomplete messages and of what is unsent."""
        unsent = self._sock.unsent_bytes if self._sock is not None else 0
        return unsent + self._reader.pending_bytes

    def close(self) -> None:
        """Close at once; `on_close` follows."""
        if self._sock is not None:
            self._sock.abort()


class BusLinks:
    """All links of the bus: the port of the core (outbox.BusPort), and the limit on inbound links."""

    def __init__(self, broker: Broker, loop: SocketLoop, secret: bytes, tls: ssl.SSLContext | None) -> None:
        self.broker = broker
        self.secret = secret
        self.clock: Callable[[], float] = broker.clock
        self.answering: list[BusLink] = []
        self.sources: list[str] = []  # our addresses, from which we connect to others
        self._loop = loop
        self._tls = tls
        self._outbound: dict[Peer, BusLink] = {}
        self._inbound: dict[BusLink, None] = {}  # the oldest first
        self._complained: dict[str, float] = {}
        self._held_bytes = 0  # as accounted in the node's memory

    # The port of the core.

    def connect(self, peer: Peer) -> None:
        """Begin to open our link to a node."""
        link = self._outbound[peer] = BusLink(self, peer)
        if peer.flags & HANDSHAKE and self._too_many_handshakes():
            self._loop.end(link)  # it is tried again
            return
        is_v6 = ":" in peer.ip
        source = next((ours for ours in self.sources if (":" in ours) == is_v6), "")
        self._loop.connect(peer.ip, peer.port + BUS_PORT_OFFSET, source, link, self._tls)

    def _too_many_handshakes(self) -> bool:
        # There is one link to each member. Links that are refused here stay until they end: don't walk over those.
        if len(self._outbound) > self.broker.node.cluster.size + HANDSHAKES_MAX:
            return True
        return sum(bool(other.flags & HANDSHAKE) for other in self._outbound) > HANDSHAKES_MAX

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
        """Whether a node has read some of what is unsent on our link to it since the last call."""
        link = self._outbound.get(peer)
        return link is not None and link.moves()

    # Links open and close.

    def accept(self) -> BusLink:
        """Make the handler of a link that another node opens."""
        return BusLink(self, None)

    def admit(self, link: BusLink) -> bool:
        """Whether one more inbound link is allowed. At the limit, the oldest of unknown senders is closed."""
        inbound = self._inbound
        if len(inbound) >= INBOUND_SPARE + 2 * self.broker.node.cluster.size:
            oldest = next((other for other in inbound if not self.knows(other.sender)), None)
            if oldest is None:
                self.complain("", "refusing links on the cluster bus: every known node has two already")
                return False
            del inbound[oldest]
            oldest.close()
        inbound[link] = None
        return True

    def ended(self, link: BusLink) -> None:
        """Remove a closed link, and tell the core if it is the one in use."""
        peer = link.peer
        if peer is None:
            self._inbound.pop(link, None)
        elif self._outbound.get(peer) is link:
            del self._outbound[peer]
            self.broker.link_lost(peer)

    def knows(self, node_id: bytes) -> bool:
        """Whether a node is a member of the cluster."""
        return node_id in self.broker.node.cluster.ids

    def hand_over(self, link: LinkInfo, messages: list[bytes]) -> None:
        """Pass messages to the broker. If a bug in it raises, these messages are lost, and the node runs on."""
        try:
            self.broker.receive(link, messages)
        except Exception:
            log.exception("messages from %s failed", link.ip)

    # Time passes, and turns end.

    def flush(self) -> None:
        """Send the answers on inbound links, now that the journal is written."""
        if self.answering:
            answering, self.answering = self.answering, []
            for link in answering:
                link.flush()

    def cron(self) -> None:
        """Close links that miss their deadline, and account for the buffers of links with members.

        What unknown senders hold is not accounted, so that they can't take memory from clients: it has a limit.
        """
        now, held = self.clock(), 0
        unknown: list[tuple[int, BusLink]] = []
        for link in [*self._inbound, *self._outbound.values()]:
            if 0.0 < link.deadline < now:
                link.refuse("it sent nothing more in time")
            if link.peer is not None or self.knows(link.sender):
                held += link.held_bytes()
            elif size := link.held_bytes():
                unknown.append((size, link))
        self.broker.node.memory.add_base(held - self._held_bytes)
        self._held_bytes = held
        self._limit_unknown(unknown)

    def _limit_unknown(self, unknown: list[tuple[int, BusLink]]) -> None:
        most = self.broker.node.memory.unauthenticated.max_bytes
        size = sum([size for size, _ in unknown])
        for one, link in sorted(unknown, key=lambda row: row[0], reverse=True):
            if size <= most:
                return
            size -= one
            link.refuse(f"the messages of all unknown nodes together must be at most {most} bytes")

    def complain(self, address: str, text: str) -> None:
        """Log a warning, but not for the same address again within a minute."""
        now = self.clock()
        if now < self._complained.get(address, now):
            return
        if len(self._complained) >= COMPLAINTS_MAX:
            self._complained.clear()
        self._complained[address] = now + COMPLAIN_SECONDS
        log.warning("%s", text)
