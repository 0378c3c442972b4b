"""Who is in the cluster, as this node knows it. With one node this is mostly itself.

Text form, used by CLUSTER NODES and nodes.conf alike, one line a node:
`<id> <ip>:<port> <flags> <ping sent ms> <pong received ms> connected|disconnected`
"""

from __future__ import annotations

from typing import Final

from penstock.broker.core import refusals
from penstock.broker.core.refusals import Refused
from penstock.errors import ConfigError

MYSELF: Final = 4
PFAIL: Final = 1
FAIL: Final = 2
HANDSHAKE: Final = 8
NOADDR: Final = 16
LEAVING: Final = 128
# In the order in which the text form lists them.
FLAG_NAMES: Final = (
    (MYSELF, "myself"),
    (PFAIL, "fail?"),
    (FAIL, "fail"),
    (HANDSHAKE, "handshake"),
    (NOADDR, "noaddr"),
    (LEAVING, "leaving"),
)
NODE_ID_BYTES: Final = 40
BUS_PORT_OFFSET: Final = 10_000
PORT_MAX: Final = 65_535 - BUS_PORT_OFFSET
HANDSHAKES_MAX: Final = 1000  # under way at once: far more than anybody introduces by hand
HANDSHAKE_MS_MIN: Final = 1000
BLACKLIST_MS: Final = 60_000  # a forgotten node isn't taken back by gossip for this long
HELLO_PRIORITY: Final = 1
HELLO_NO_LINK: Final = 5
HELLO_PFAIL: Final = 10
HELLO_GONE: Final = 100


class Peer:
    """One node of the cluster, this one included."""

    __slots__ = ("created_ms", "flags", "id", "ip", "linked", "ping_sent", "pong_received", "port")

    def __init__(self, peer_id: bytes, ip: str, port: int, flags: int, now_ms: int) -> None:
        self.id = peer_id
        self.ip = ip
        self.port = port
        self.flags = flags
        self.created_ms = now_ms
        self.ping_sent = 0
        self.pong_received = 0
        self.linked = False

    def priority(self) -> int:
        """Tell clients how good a choice this node is; the lower the better."""
        if self.flags & (FAIL | LEAVING):
            return HELLO_GONE
        if self.flags & PFAIL:
            return HELLO_PFAIL
        return HELLO_PRIORITY if self.linked or self.flags & MYSELF else HELLO_NO_LINK

    def line(self) -> str:
        """Give this node's line of the text form."""
        flags = ",".join(name for flag, name in FLAG_NAMES if self.flags & flag) or "noflags"
        link = "connected" if self.linked or self.flags & MYSELF else "disconnected"
        address = f"{self.ip}:{self.port}"
        return f"{self.id.decode('latin-1')} {address} {flags} {self.ping_sent} {self.pong_received} {link}\n"


class Cluster:
    """All nodes this one knows."""

    def __init__(self, my_id: bytes) -> None:
        self.myself = Peer(my_id, "", 0, MYSELF, 0)
        self.peers: dict[bytes, Peer] = {my_id: self.myself}
        self.blacklist: dict[bytes, int] = {}
        self.reachable: list[Peer] = []
        self.size = 1
        self.epoch = 0  # grows with every change that matters to an add
        self.messages_sent = 0
        self.messages_received = 0

    @property
    def my_id(self) -> bytes:
        """This node's id."""
        return self.myself.id

    @my_id.setter
    def my_id(self, value: bytes) -> None:
        del self.peers[self.myself.id]
        self.myself.id = value
        self.peers[value] = self.myself

    @property
    def leaving(self) -> bool:
        """Whether this node is about to leave."""
        return bool(self.myself.flags & LEAVING)

    @leaving.setter
    def leaving(self, value: bool) -> None:
        self.myself.flags = self.myself.flags | LEAVING if value else self.myself.flags & ~LEAVING
        self.epoch += 1

    def known_ids(self) -> frozenset[bytes]:
        """Give the ids of all nodes that are really part of the cluster."""
        return frozenset(peer.id for peer in self.peers.values() if not peer.flags & HANDSHAKE)

    def recount(self) -> None:
        """Bring `size` and `reachable` up to date after a change."""
        self.size = len(self.known_ids())
        self.epoch += 1
        out = MYSELF | HANDSHAKE | LEAVING | PFAIL | FAIL
        self.reachable = [peer for peer in self.peers.values() if not peer.flags & out and peer.linked]

    def meet(self, ip: str, port: int, placeholder_id: bytes, now_ms: int) -> None:
        """Begin a handshake with an address, unless one is under way."""
        handshakes = [peer for peer in self.peers.values() if peer.flags & HANDSHAKE]
        if any((peer.ip, peer.port) == (ip, port) for peer in handshakes):
            return
        if len(handshakes) >= HANDSHAKES_MAX:
            raise Refused(*refusals.TOO_MANY_HANDSHAKES)
        self.peers[placeholder_id] = Peer(placeholder_id, ip, port, HANDSHAKE, now_ms)

    def forget(self, peer_id: bytes, now_ms: int) -> None:
        """Drop a node, and don't take it back from gossip for a minute."""
        del self.peers[peer_id]
        self.blacklist[peer_id] = now_ms + BLACKLIST_MS
        self.recount()

    def forget_all(self) -> None:
        """Be alone."""
        self.peers = {self.myself.id: self.myself}
        self.blacklist.clear()
        self.recount()

    def cron(self, now_ms: int, node_timeout_ms: int) -> None:
        """Give up handshakes that nobody answered, and let old blacklist entries go."""
        limit_ms = max(node_timeout_ms, HANDSHAKE_MS_MIN)
        late = [p.id for p in self.peers.values() if p.flags & HANDSHAKE and now_ms - p.created_ms > limit_ms]
        for peer_id in late:
            del self.peers[peer_id]
        for peer_id in [known for known, until in self.blacklist.items() if until <= now_ms]:
            del self.blacklist[peer_id]

    def text(self, with_handshakes: bool) -> str:
        """Give the text form."""
        return "".join(p.line() for p in self.peers.values() if with_handshakes or not p.flags & HANDSHAKE)


def cluster_from_text(text: str, now_ms: int) -> Cluster:
    """Read nodes.conf; anything odd is refused, since a wrong identity does more harm than no start."""
    peers: list[Peer] = []
    flags_by_name = {name: flag for flag, name in FLAG_NAMES} | {"noflags": 0}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("vars "):
            continue
        fields = line.split(" ")
        problem = ""
        if len(fields) != 6:
            problem = "it should have six fields"
        elif len(fields[0]) != NODE_ID_BYTES:
            problem = "its first field should be a node id of 40 characters"
        elif ":" not in fields[1] or not fields[1].rpartition(":")[2].isdigit():
            problem = "its second field should be ip:port"
        elif any(name not in flags_by_name for name in fields[2].split(",")):
            problem = f"it has an unknown flag among {fields[2]!r}"
        if problem:
            raise ConfigError(f"nodes.conf line {number} can't be read: {problem}: {line!r}")
        ip, _, port = fields[1].rpartition(":")
        flags = 0
        for name in fields[2].split(","):
            flags |= flags_by_name[name]
        peers.append(Peer(fields[0].encode("latin-1"), ip, int(port), flags, now_ms))
    mine = [peer for peer in peers if peer.flags & MYSELF]
    if len(mine) != 1:
        raise ConfigError("nodes.conf must have exactly one line with the flag 'myself'")
    cluster = Cluster(mine[0].id)
    cluster.myself = mine[0]
    cluster.peers = {peer.id: peer for peer in peers}
    cluster.recount()
    return cluster
