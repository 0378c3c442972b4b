"""What a node says to others: collected while a turn lasts, sent once what it tells is safe.

Messages about jobs are gathered by what they say and to whom. At the end of the turn each group is one MANY to the
nodes that can take it, and as many messages as jobs to those that can't. Groups leave in the order of `ORDER`, so that
a copy comes before any word about it, and its end last. If the journal fails, the whole turn is unsaid: to the others
it looks like lost messages, which they can stand.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.core.membership import LINKED, Cluster, Peer
from penstock.wire import bus

if TYPE_CHECKING:
    from penstock.broker.core.node import Node

ORDER: Final = (
    bus.REPLJOB,
    bus.ENQUEUE,
    bus.QUEUED,
    bus.WORKING,
    bus.YOURJOBS,  # after QUEUED: what was queued here and is given away in the same turn is queued there now
    bus.WILLQUEUE,
    bus.GOTJOB,
    bus.SETACK,
    bus.GOTACK,
    bus.DELJOB,
)
RECORD_BYTES_A_MESSAGE: Final = 1 << 20  # of jobs in one message: a larger one would hold up what comes behind it
REFERENCES_A_MESSAGE: Final = 10_000
NOBODY: Final[frozenset[bytes]] = frozenset()

# To whom, with which flags, and which nodes hold the jobs.
_Key = tuple[frozenset[bytes], int, frozenset[bytes]]


class BusPort(Protocol):
    """The links to other nodes, as a shell provides them."""

    def connect(self, peer: Peer) -> None:
        """Begin to open our link to a node; `gossip.link_opened` or `gossip.link_lost` tells how that ended."""

    def disconnect(self, peer: Peer) -> None:
        """Close our link to a node, or stop opening it; nothing is told of it."""

    def send(self, peer: Peer, data: bytes) -> None:
        """Send whole messages on our link to a node."""

    def moves(self, peer: Peer) -> bool:
        """Tell whether a node has taken a part of what waits on our link to it since this was last asked."""


class NoBus:
    """For a node that nobody can reach."""

    def connect(self, peer: Peer) -> None:
        """Do nothing."""

    def disconnect(self, peer: Peer) -> None:
        """Do nothing."""

    def send(self, peer: Peer, data: bytes) -> None:
        """Do nothing."""

    def moves(self, peer: Peer) -> bool:
        """Nothing does."""
        return False


class Outbox:
    """Messages that wait for the end of the turn."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.port: BusPort = NoBus()
        self.sequence = 0  # of our messages (Node.renumber)
        self._groups: list[dict[_Key, list[bytes]]] = [{} for _ in range(bus.MANY)]
        self._ready: dict[Peer, list[bytes]] = {}
        self.waiting = False

    # About jobs.

    def tell(
        self,
        kind: int,
        whom: frozenset[bytes],
        job_id: bytes,
        value: int = 0,
        flags: int = 0,
        holders: frozenset[bytes] = NOBODY,
    ) -> None:
        """Say something about a job to nodes; this one may be among them."""
        self._put(kind, (whom, flags, holders), bus.reference(job_id, value))

    def give(self, kind: int, whom: frozenset[bytes], record: bytes, flags: int = 0) -> None:
        """Send a copy of a job."""
        self._put(kind, (whom, flags, NOBODY), record)

    def _put(self, kind: int, key: _Key, item: bytes) -> None:
        group = self._groups[kind].get(key)
        if group is None:
            group = self._groups[kind][key] = []
            self.waiting = True
        group.append(item)

    # Everything else.

    def say(self, peer: Peer, kind: int, payload: bytes, flags: int = 0, count: int = 0) -> None:
        """Send one message to one node."""
        if peer.link == LINKED:
            self._send((peer,), [self.message(kind, payload, flags, count)])

    def message(self, kind: int, payload: bytes, flags: int = 0, count: int = 0) -> bytes:
        """Make a message of this node."""
        self.sequence += 1
        myself = self.cluster.myself
        return bus.encode(kind, myself.id, myself.port, myself.flags, self.sequence, payload, flags, count)

    def _send(self, peers: Iterable[Peer], messages: list[bytes]) -> None:
        for peer in peers:
            self._ready.setdefault(peer, []).extend(messages)
            self.cluster.messages_sent += len(messages)
        self.waiting = True

    def unsent(self) -> list[tuple[frozenset[bytes], bytes]]:
        """Give the copies of jobs that wait, and for whom: they are lost if the process or the link ends now."""
        groups = [item for kind in bus.RECORD_TYPES for item in self._groups[kind].items()]
        return [(key[0], record) for key, records in groups for record in records]

    # The end of the turn.

    def flush(self) -> None:
        """Send everything."""
        if not self.waiting:
            return
        for kind in ORDER:
            groups = self._groups[kind]
            if groups:
                for key, items in groups.items():
                    self._encode(kind, key, items)
                groups.clear()
        ready, self._ready = self._ready, {}
        self.waiting = False
        for peer, messages in ready.items():
            self.port.send(peer, b"".join(messages) if len(messages) > 1 else messages[0])

    def unsay(self) -> None:
        """Forget what was to be said about jobs."""
        for groups in self._groups:
            groups.clear()
        self.waiting = bool(self._ready)

    def _encode(self, kind: int, key: _Key, items: list[bytes]) -> None:
        whom, flags, holders = key
        peers = self.cluster.peers
        able: list[Peer] = []
        plain: list[Peer] = []
        for node_id in sorted(whom):  # the order of a set differs from process to process
            peer = peers.get(node_id)
            if peer is not None and peer.link == LINKED:
                (able if peer.abilities & bus.CAN_MANY else plain).append(peer)
        is_records = kind in bus.RECORD_TYPES
        if plain:  # an original node takes copies one by one, and what it is given in one piece
            single = [[item] for item in items] if kind == bus.REPLJOB else [items]
            payloads = [bus.jobs(part) for part in single] if is_records else items
            self._send(plain, [self.message(kind, payload, flags & 0xFF) for payload in payloads])
        if not able:
            return
        if is_records:
            payloads = [bus.jobs(part) for part in _parts(items)]
        elif len(items) == 1 and not holders:
            payloads = items
        else:
            nodes, size = sorted(holders), REFERENCES_A_MESSAGE
            payloads = [bus.many(kind, nodes, items[at : at + size]) for at in range(0, len(items), size)]
            kind = bus.MANY
        self._send(able, [self.message(kind, payload, flags) for payload in payloads])


def _parts(records: list[bytes]) -> list[list[bytes]]:
    """Cut a list of records into messages of a fair size."""
    parts: list[list[bytes]] = []
    size = RECORD_BYTES_A_MESSAGE
    for record in records:
        if size + len(record) > RECORD_BYTES_A_MESSAGE:
            parts.append([])
            size = 0
        parts[-1].append(record)
        size += len(record)
    return parts


def tell_holders(
    node: Node, kind: int, job_id: bytes, delivered: frozenset[bytes], flags: int = 0, value: int = 0
) -> None:
    """Say something about a job to all who may hold it, and who they are."""
    if len(delivered) > 1:
        node.outbox.tell(kind, delivered, job_id, value, flags, delivered)
