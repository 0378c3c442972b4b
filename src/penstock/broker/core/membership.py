"""The members of the cluster, as this node knows them.

Text form, used by CLUSTER NODES and nodes.conf alike, one line a node:
`<id> <ip>:<port> <flags> <ping sent ms> <pong received ms> connected|disconnected`
In nodes.conf a line `vars draining yes` may follow, which original nodes ignore.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

from penstock.broker.core import refusals
from penstock.broker.core.refusals import Refused
from penstock.errors import ConfigError

PFAIL: Final = 1
FAIL: Final = 2
MYSELF: Final = 4
HANDSHAKE: Final = 8
NOADDR: Final = 16
MEET: Final = 32  # the next PING to it is a MEET: CLUSTER MEET named it, or it doesn't know us
LEAVING: Final = 128
UNHEARD: Final = 256  # since the handshake it has only answered: it may not know us. Not sent to others
# In the order in which the text form lists them.
FLAG_NAMES: Final = (
    (MYSELF, "myself"),
    (PFAIL, "fail?"),
    (FAIL, "fail"),
    (HANDSHAKE, "handshake"),
    (NOADDR, "noaddr"),
    (LEAVING, "leaving"),
)
UNREACHABLE: Final = MYSELF | HANDSHAKE | LEAVING | PFAIL | FAIL
NODE_ID_BYTES: Final = 40
# ASCII only: int() doesn't read all that str.isdigit() takes for digits, nor thousands of them.
_NODE_ID: Final = re.compile(f"[0-9A-Za-z]{{{NODE_ID_BYTES}}}")
_ADDRESS: Final = re.compile(r"[^ ]*:[0-9]{1,5}")
BUS_PORT_OFFSET: Final = 10_000
DRAINING_LINE: Final = "vars draining yes"
PORT_MAX: Final = 65_535 - BUS_PORT_OFFSET
HANDSHAKES_MAX: Final = 1000  # at once: far more than anyone starts by hand
HANDSHAKE_MS_MIN: Final = 1000
BLACKLIST_MS: Final = 60_000  # a forgotten node isn't taken back by gossip for this long
HELLO_PRIORITY: Final = 1
HELLO_NO_LINK: Final = 5
HELLO_PFAIL: Final = 10
HELLO_GONE: Final = 100

PLACES_UNTOLD: Final = 0  # nothing was said on our link to it
PLACES_DUE: Final = 1  # it knows that all will be said
PLACES_UNDER_WAY: Final = 2
PLACES_TOLD: Final = 3

NO_LINK: Final = 0
CONNECTING: Final = 1
LINKED: Final = 2


def can_be_address(ip: str, port: int) -> bool:
    """Whether a node can have this address: an IP without a zone, and a port with room for the bus port above it."""
    try:
        return bool(ip_address(ip)) and "%" not in ip and 0 < port <= PORT_MAX
    except ValueError:
        return False


class Peer:
    """One node of the cluster, this one included. Times are monotonic milliseconds of this process; 0 means never."""

    __slots__ = (
        "abilities",
        "alone",
        "created_ms",
        "fail_reports",
        "flags",
        "handed_over",
        "id",
        "ip",
        "link",
        "linked_ms",
        "ping_sent",
        "places_asked_ms",
        "places_known",
        "places_told",
        "pong_received",
        "port",
        "speaks",
    )

    def __init__(self, peer_id: bytes, ip: str, port: int, flags: int, now_ms: int) -> None:
        self.rename(peer_id)
        self.ip = ip
        self.port = port
        self.flags = flags
        self.created_ms = now_ms
        self.ping_sent = 0  # of the ping that isn't answered yet
        self.pong_received = 0
        self.link = NO_LINK  # our link to it
        self.linked_ms = 0
        self.speaks = False  # it has a link to us, on which it can confirm copies
        self.abilities = 0  # what it can do beyond an original node (wire.bus)
        self.fail_reports: dict[bytes, int] = {}  # the nodes that report it as failing, and when
        self.places_known = False  # it has told us where its jobs are, and nothing of that was lost (core.places)
        self.places_asked_ms = 0
        self.places_told = PLACES_UNTOLD  # and we told it
        self.handed_over = 0  # sequence of its last message that gave us a job for good

    def hands_over(self, sequence: int) -> bool:
        """Whether a message that hands over a job is new; remembers its number. 0: it has none."""
        if sequence and sequence >> 32 == self.handed_over >> 32 and sequence <= self.handed_over:
            return False
        self.handed_over = sequence
        return True

    def rename(self, peer_id: bytes) -> None:
        """Set the id of a node."""
        self.id = peer_id
        self.alone = frozenset((peer_id,))

    @property
    def linked(self) -> bool:
        """Whether messages can be sent to it."""
        return self.link == LINKED

    def priority(self) -> int:
        """Return the priority that HELLO shows to clients; lower is better."""
        if self.flags & (FAIL | LEAVING):
            return HELLO_GONE
        if self.flags & PFAIL:
            return HELLO_PFAIL
        return HELLO_PRIORITY if self.link or self.flags & MYSELF else HELLO_NO_LINK

    def line(self, wall_offset_ms: int) -> str:
        """Return this node's line of the text form."""
        flags = ",".join(name for flag, name in FLAG_NAMES if self.flags & flag) or "noflags"
        link = "connected" if self.link or self.flags & MYSELF else "disconnected"
        ping, pong = (at + wall_offset_ms if at else 0 for at in (self.ping_sent, self.pong_received))
        return f"{self.id.decode('latin-1')} {self.ip}:{self.port} {flags} {ping} {pong} {link}\n"


class Cluster:
    """All nodes that this one knows, and the lists derived from them."""

    def __init__(self, my_id: bytes) -> None:
        self.myself = Peer(my_id, "", 0, MYSELF, 0)
        self.peers: dict[bytes, Peer] = {my_id: self.myself}
        self.blacklist: dict[bytes, int] = {}
        self.epoch = 0  # grows with every change that matters to an add
        self.has_takers = False  # a node has been seen that takes jobs over
        self.unsaved = False  # nodes.conf must be written
        self.draining = False  # this node hands its jobs over (core.draining), also after a restart
        self.messages_sent = 0
        self.messages_received = 0
        self._handshakes: set[tuple[str, int]] = set()  # their addresses: one message may name ten thousand
        self.recount()

    @property
    def my_id(self) -> bytes:
        """This node's id."""
        return self.myself.id

    @my_id.setter
    def my_id(self, value: bytes) -> None:
        del self.peers[self.myself.id]
        self.myself.rename(value)
        self.peers[value] = self.myself
        self.recount()

    @property
    def leaving(self) -> bool:
        """Whether this node is about to leave."""
        return bool(self.myself.flags & LEAVING)

    @leaving.setter
    def leaving(self, value: bool) -> None:
        self.myself.flags = self.myself.flags | LEAVING if value else self.myself.flags & ~LEAVING
        self.recount()

    def recount(self) -> None:
        """Derive ids, size and lists from the peers and their flags again."""
        known = [peer for peer in self.peers.values() if not peer.flags & HANDSHAKE]
        self.ids = frozenset(peer.id for peer in known)  # of all members, without handshakes
        self.size = len(known)
        self.others = [peer for peer in known if peer is not self.myself]
        self.reachable = [peer for peer in self.others if not peer.flags & UNREACHABLE]
        self.ready = [peer for peer in self.reachable if peer.link == LINKED and peer.speaks]  # for copies of new jobs
        self.epoch += 1

    @property
    def has_room_for_handshake(self) -> bool:
        """Whether one more handshake may begin."""
        return len(self._handshakes) < HANDSHAKES_MAX

    def meet(self, ip: str, port: int, placeholder_id: bytes, now_ms: int, flags: int = MEET) -> None:
        """Begin a handshake with an address, unless one has begun."""
        if (ip, port) in self._handshakes:
            return
        if not self.has_room_for_handshake:
            raise Refused(*refusals.TOO_MANY_HANDSHAKES)
        self._handshakes.add((ip, port))
        self.peers[placeholder_id] = Peer(placeholder_id, ip, port, HANDSHAKE | flags, now_ms)

    def end_handshake(self, peer: Peer) -> None:
        """Remove a placeholder: the handshake led to a node, or to nothing. No list has it."""
        self.peers.pop(peer.id, None)
        self._handshakes.discard((peer.ip, peer.port))

    def text(self, with_handshakes: bool, wall_offset_ms: int = 0) -> str:
        """Return the text form; that of nodes.conf is without handshakes."""
        peers = self.peers.values()
        lines = [p.line(wall_offset_ms) for p in peers if with_handshakes or not p.flags & HANDSHAKE]
        if self.draining and not with_handshakes:
            lines.append(DRAINING_LINE + "\n")
        return "".join(lines)


def cluster_from_text(text: str, now_ms: int, complain: Callable[[str], None] | None = None) -> Cluster:
    """Read nodes.conf. With `complain`, a line about another node that can't be read is named and left out.

    Gossip brings that node back. A line about this node is refused: a wrong identity does more harm than no start.
    """
    peers: list[Peer] = []
    ids: set[str] = set()
    draining = False
    flags_by_name = {name: flag for flag, name in FLAG_NAMES} | {"noflags": 0}
    for number, line in enumerate(text.split("\n"), 1):
        draining = draining or line == DRAINING_LINE
        if not line.strip() or line.startswith("vars "):
            continue
        fields = line.split(" ")
        problem = ""
        if len(fields) != 6:
            problem = "it should have six fields"
        elif not _NODE_ID.fullmatch(fields[0]):
            problem = f"its first field should be a node id of {NODE_ID_BYTES} letters and digits"
        elif not _ADDRESS.fullmatch(fields[1]):
            problem = "its second field should be ip:port"
        elif any(name not in flags_by_name for name in fields[2].split(",")):
            problem = f"it has an unknown flag among {fields[2]!r}"
        ip, _, port = fields[1].rpartition(":") if len(fields) > 1 else ("", "", "")
        is_mine = len(fields) > 2 and "myself" in fields[2].split(",")
        if not problem and not is_mine and "noaddr" not in fields[2] and not can_be_address(ip, int(port)):
            problem = f"its second field should be an IP address and a port from 1 to {PORT_MAX}"
        if not problem and not is_mine and fields[0] in ids:
            problem = "an earlier line has the same node id"
        if problem and (is_mine or complain is None):
            raise ConfigError(f"nodes.conf line {number} can't be read: {problem}: {line!r}")
        if problem and complain is not None:
            complain(f"nodes.conf line {number} is left out, as it can't be read: {problem}: {line!r}")
            continue
        flags = 0
        for name in fields[2].split(","):
            flags |= flags_by_name[name]
        ids.add(fields[0])
        peer = Peer(fields[0].encode("ascii"), ip, int(port), flags, now_ms)
        # Times of another process mean nothing here; what was pending is pending since now.
        peer.ping_sent, peer.pong_received = (now_ms if at not in ("", "0") else 0 for at in fields[3:5])
        peers.append(peer)
    mine = [peer for peer in peers if peer.flags & MYSELF]
    if len(mine) != 1:
        raise ConfigError("nodes.conf must have exactly one line with the flag 'myself'")
    cluster = Cluster(mine[0].id)
    cluster.myself = mine[0]
    cluster.peers = {peer.id: peer for peer in peers} | {cluster.my_id: cluster.myself}
    cluster.draining = draining
    cluster.recount()
    return cluster
