"""Messages to other nodes: collected during a turn, sent once the journal is written.

Messages about jobs are grouped by type, receivers and flags. At the end of the turn each group becomes one MANY for
the nodes that can read it, and one message a job for original nodes. Groups are sent in the order of `ORDER`, so that a
copy comes before any message about it, and its deletion last. If the journal fails, the messages about jobs of the
whole turn are discarded: to the other nodes they look like lost messages, which the protocol allows for.
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
    bus.YOURJOBS,  # after QUEUED: a job that was queued here and sent away in the same turn is queued there now
    bus.HAVEJOB,
    bus.WILLQUEUE,
    bus.GOTJOB,
    bus.SETACK,
    bus.GOTACK,
    bus.DELJOB,
)
RECORD_BYTES_A_MESSAGE: Final = 1 << 20  # of jobs in one message: a larger one would delay those behind it
REFERENCES_A_MESSAGE: Final = 10_000
NOBODY: Final[frozenset[bytes]] = frozenset()

# The receivers, the flags, and the holders of the jobs.
_Key = tuple[frozenset[bytes], int, frozenset[bytes]]


class BusPort(Protocol):
    """The links to other nodes, provided by the shell."""

    def connect(self, peer: Peer) -> None:
        """Begin to open our link to a node; the shell then calls `link_opened` or `link_lost`."""

    def disconnect(self, peer: Peer) -> None:
        """Close our link to a node, or stop opening it; `link_lost` is not called."""

    def send(self, peer: Peer, data: bytes) -> None:
        """Send whole messages on our link to a node."""

    def moves(self, peer: Peer) -> bool:
        """Whether a node has read some of what is unsent on our link to it since the last call."""


class NoBus:
    """For a node without a bus."""

    def connect(self, peer: Peer) -> None:
        """Do nothing."""

    def disconnect(self, peer: Peer) -> None:
        """Do nothing."""

    def send(self, peer: Peer, data: bytes) -> None:
        """Do nothing."""

    def moves(self, peer: Peer) -> bool:
        """Nothing is sent."""
        return False


class Outbox:
    """Messages to be sent at the end of the turn."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.port: BusPort = NoBus()
        self.sequence = 0  # of our messages (Node.renumber)
        self._groups: list[dict[_Key, list[bytes]]] = [{} for _ in range(bus.HAVEJOB + 1)]
        self._ready: dict[Peer, list[bytes]] = {}
        self.waiting = False
        self.discards = 0

    # About jobs.

    def add_reference(
        self,
        message_type: int,
        receivers: frozenset[bytes],
        job_id: bytes,
        value: int = 0,
        flags: int = 0,
        holders: frozenset[bytes] = NOBODY,
    ) -> None:
        """Add a message about a job; this node may be among the receivers, and is left out."""
        self._put(message_type, (receivers, flags, holders), bus.reference(job_id, value))

    def add_record(self, message_type: int, receivers: frozenset[bytes], record: bytes, flags: int = 0) -> None:
        """Add a message with a copy of a job."""
        self._put(message_type, (receivers, flags, NOBODY), record)

    def _put(self, message_type: int, key: _Key, item: bytes) -> None:
        group = self._groups[message_type].get(key)
        if group is None:
            group = self._groups[message_type][key] = []
            self.waiting = True
        group.append(item)

    # Everything else.

    def send(self, peer: Peer, message_type: int, payload: bytes, flags: int = 0, count: int = 0) -> None:
        """Add one message to one node, if there is a link to it."""
        if peer.link == LINKED:
            self._add_messages((peer,), [self.message(message_type, payload, flags, count)])

    def message(self, message_type: int, payload: bytes, flags: int = 0, count: int = 0) -> bytes:
        """Encode a message from this node."""
        self.sequence += 1
        myself = self.cluster.myself
        return bus.encode(message_type, myself.id, myself.port, myself.flags, self.sequence, payload, flags, count)

    def _add_messages(self, peers: Iterable[Peer], messages: list[bytes]) -> None:
        for peer in peers:
            self._ready.setdefault(peer, []).extend(messages)
            self.cluster.messages_sent += len(messages)
        self.waiting = True

    def unsent(self) -> list[tuple[frozenset[bytes], bytes]]:
        """Return the receivers and records of copies that are not sent yet: a crash would lose them."""
        groups = [item for message_type in bus.RECORD_TYPES for item in self._groups[message_type].items()]
        return [(key[0], record) for key, records in groups for record in records]

    # The end of the turn.

    def flush(self) -> None:
        """Send everything."""
        if not self.waiting:
            return
        for message_type in ORDER:
            groups = self._groups[message_type]
            if groups:
                for key, items in groups.items():
                    self._encode(message_type, key, items)
                groups.clear()
        ready, self._ready = self._ready, {}
        self.waiting = False
        for peer, messages in ready.items():
            self.port.send(peer, b"".join(messages) if len(messages) > 1 else messages[0])

    def discard(self) -> None:
        """Discard the messages about jobs."""
        for groups in self._groups:
            groups.clear()
        self.discards += 1
        self.waiting = bool(self._ready)

    def _encode(self, message_type: int, key: _Key, items: list[bytes]) -> None:
        receivers, flags, holders = key
        peers = self.cluster.peers
        needed = bus.TAKES_OVER if message_type == bus.HAVEJOB else bus.CAN_MANY
        able: list[Peer] = []
        plain: list[Peer] = []
        for node_id in sorted(receivers):  # the order of a set differs from process to process
            peer = peers.get(node_id)
            if peer is not None and peer.link == LINKED:
                (able if peer.abilities & needed else plain).append(peer)
        is_records = message_type in bus.RECORD_TYPES
        if plain and message_type != bus.HAVEJOB:  # original nodes read one job in a REPLJOB, many in a YOURJOBS
            single = [[item] for item in items] if message_type == bus.REPLJOB else [items]
            payloads = [bus.jobs(part) for part in single] if is_records else items
            if message_type == bus.QUEUED:
                payloads = [bus.reference(item[: bus.JOB_ID_BYTES]) for item in items]  # without our counters
            theirs = 0 if message_type == bus.YOURJOBS else flags & 0xFF
            self._add_messages(plain, [self.message(message_type, payload, theirs) for payload in payloads])
        if not able:
            return
        if is_records:
            payloads = [bus.jobs(part) for part in _parts(items)]
        elif len(items) == 1 and not holders:
            payloads = items
        else:
            nodes, size = sorted(holders), REFERENCES_A_MESSAGE
            payloads = [bus.many(message_type, nodes, items[at : at + size]) for at in range(0, len(items), size)]
            message_type = bus.MANY
        self._add_messages(able, [self.message(message_type, payload, flags) for payload in payloads])


def _parts(records: list[bytes]) -> list[list[bytes]]:
    """Split a list of records into messages of at most RECORD_BYTES_A_MESSAGE, or of one record."""
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
    node: Node, message_type: int, job_id: bytes, delivered: frozenset[bytes], flags: int = 0, value: int = 0
) -> None:
    """Add a message about a job to all its holders, which names them too."""
    if len(delivered) > 1:
        node.outbox.add_reference(message_type, delivered, job_id, value, flags, delivered)
