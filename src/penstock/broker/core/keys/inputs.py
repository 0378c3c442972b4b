"""Everything that can happen to a node's part in unique keys.

A shell calls one of the methods of `KeyNode`, each with the monotonic time in milliseconds. What follows collects in
the port until the turn ends, and leaves in the order of `penstock.broker.core.inputs`: what must be saved and the
journal, then messages, then answers. A message to the node itself goes the same way: it comes back as an input after
the journal is written, since a home's vote counts only then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from penstock.broker.core.keys.copies import Copies, KeyedJob
from penstock.broker.core.keys.homes import Homes
from penstock.broker.core.keys.members import KeyMembers, SavedMembers
from penstock.broker.core.keys.messages import (
    Ballot,
    CopyAnswer,
    CopyAsked,
    CopyConfirmed,
    CopyDropped,
    CopyEnded,
    CopyKept,
    CopySent,
    HandedOver,
    HandOver,
    KeyAccept,
    KeyAccepted,
    KeyCollect,
    KeyMessage,
    KeyPrepare,
    KeyPromise,
    KeyRecord,
    KeyRefusal,
    KeysSent,
    KeysWanted,
    KeyValue,
    MembersAccept,
    MembersAccepted,
    MembersPrepare,
    MembersPromise,
    MembersRefusal,
    MembersStatus,
)
from penstock.broker.core.keys.proposals import RELEASE, RESOLVE, SWEEP, Proposals


class KeysPort(Protocol):
    """How a node's keys reach disk, other nodes and clients."""

    def send(self, node_id: bytes, message: KeyMessage) -> None:
        """Send a message at the end of the turn, also to this node."""

    def save(self, saved: SavedMembers) -> None:
        """Write and sync, whatever `appendfsync` says."""

    def append_record(self, record: KeyRecord, left_ms: int) -> None:
        """Write what is known of a key."""

    def append_forgotten(self, key: bytes, floor: Ballot) -> None:
        """Write that a key is forgotten."""

    def append_copy(self, job: KeyedJob) -> None:
        """Write a job, or its new state."""

    def append_copy_gone(self, job_id: bytes, has_ended: bool) -> None:
        """Write that a job is no longer here."""

    def live(self, job: KeyedJob) -> None:
        """A job may be delivered from now on."""

    def answer(self, waiter: object, outcome: str, job_id: bytes) -> None:
        """Answer who adds."""

    def chance(self, choices: int) -> int:
        """Return a random number below `choices`."""


class KeyNode:
    """One node's part in unique keys."""

    def __init__(self, my_id: bytes, port: KeysPort, process: int) -> None:
        self.my_id = my_id
        self.members = KeyMembers(my_id, port, process)
        self.homes = Homes(self.members, port)
        self.copies = Copies(port)
        self.proposals = Proposals(self.members, self.copies, port, process)
        self._port = port
        self._number = 0
        self._now_ms = 0
        self.is_leaving = False  # it hands its jobs over

    @property
    def used_bytes(self) -> int:
        """The memory that keys and their jobs take (P7)."""
        return self.homes.used_bytes + self.copies.used_bytes

    # Clients and operators.

    def add(self, job: CopySent, replicate: int, waiter: object, timeout_ms: int, now_ms: int) -> None:
        """Add a job with a key, on `replicate` nodes. The port answers."""
        self._now_ms = now_ms
        self.proposals.take(job, replicate, waiter, now_ms + timeout_ms, now_ms)

    def end(self, job_id: bytes, now_ms: int) -> None:
        """A job is done, has expired or was removed."""
        self._now_ms = now_ms
        job = self.copies.jobs.get(job_id)
        current = self.members.current
        if job is None or current is None:
            return
        self.copies.end(job_id)
        for node_id in sorted(current.members):
            if node_id != self.my_id:
                self._port.send(node_id, CopyEnded(job_id))
        self.proposals.start(RELEASE, job.key, job_id, job.keep_ms, now_ms)

    def meet(self, node_ids: list[bytes]) -> None:
        """Gossip knows these nodes: whom to ask while there is no configuration."""
        self.members.contacts = node_ids

    def forget(self, node_id: bytes) -> None:
        """An operator says that a member will never come back."""
        current = self.members.current
        if current is not None and node_id in current.members:
            self.members.unwanted.add(node_id)

    def leave(self) -> None:
        """This node hands its jobs over, then leaves."""
        self.is_leaving = True

    def stay(self) -> None:
        """This node leaves no more, or joins again."""
        self.is_leaving = False
        self.members.is_wanted = True

    @property
    def has_left(self) -> bool:
        """Whether the node can be taken away: it is no member, and all members have its keys."""
        current = self.members.current
        if current is None or self.copies.jobs or self.my_id in current.members or self.members.is_joining:
            return False
        return current.members.keys() <= self.members.settled

    # Time and messages.

    def tick(self, now_ms: int) -> None:
        """Time has passed; called at least every 200 ms."""
        self._now_ms = now_ms
        self.members.tick(now_ms)
        self._note_configuration(now_ms)
        self.homes.tick(self, now_ms)
        self.copies.tick(self, now_ms)
        self.proposals.tick(now_ms)
        if self.is_leaving:
            self._leave_on(now_ms)

    def _leave_on(self, now_ms: int) -> None:
        current = self.members.current
        if current is None:
            return
        if self.copies.jobs:
            self.copies.hand_over(sorted(current.members.keys() - {self.my_id}), now_ms)
        else:
            self.members.is_wanted = False

    def receive(self, src: bytes, message: KeyMessage, now_ms: int) -> None:
        """A message has come."""
        self._now_ms = now_ms
        _HANDLERS[type(message)](self, src, message, now_ms)
        self._note_configuration(now_ms)

    def _note_configuration(self, now_ms: int) -> None:
        if self.members.number != self._number:
            self._number = self.members.number
            self.homes.installed(now_ms)
            self.proposals.installed(now_ms)

    # A new process.

    def found(self, node_ids: list[bytes]) -> None:
        """Begin the first configuration."""
        self.members.found(node_ids)
        self._number = self.members.number

    def restore(self, saved: SavedMembers, is_lost: bool) -> None:
        """Take what was saved. `is_lost`: the journal may lack its end, or is gone."""
        self.members.restore(saved, is_lost)
        self._number = self.members.number

    # What looks at records and copies begin.

    def reclaim(self, key: bytes, value: KeyValue, keep_ms: int) -> None:
        """None of the nodes that should have the job has it."""
        self.proposals.reclaim(key, value, keep_ms, self._now_ms)

    def sweep(self, key: bytes) -> None:
        """The key is free, or its keep time is over, and not all homes may know."""
        self.proposals.start(SWEEP, key, b"", 0, self._now_ms)

    def resolve(self, key: bytes, job_id: bytes) -> None:
        """Find out whether a job has its key, with a ballot above that of its add."""
        job = self.copies.jobs.get(job_id)
        if job is not None:
            self.proposals.see(job.ballot)
        self.proposals.start(RESOLVE, key, job_id, 0, self._now_ms)

    # Messages that concern two parts.

    def prepare(self, src: bytes, message: KeyPrepare, now_ms: int) -> None:
        """A proposer asks for a promise: this node's own rounds begin above it from now on."""
        self.proposals.see(message.ballot)
        self.homes.on_prepare(src, message, now_ms)

    def take_over(self, src: bytes, message: HandOver, now_ms: int) -> None:
        """A node that leaves offers a job."""
        if self.copies.take_over(message, now_ms):
            self.proposals.rehold(message.key, message.job_id, src, now_ms)
        else:
            self._port.send(src, HandedOver(message.job_id, True, 0))

    def handed_over(self, src: bytes, message: HandedOver, now_ms: int) -> None:
        """Another member has the job of this node that leaves."""
        if message.has_ended:
            self.copies.end(message.job_id)
        else:
            self.copies.handed_over(message.job_id, message.generation)


_Handler = Callable[[KeyNode, bytes, Any, int], None]
_HANDLERS: Final[dict[type[Any], _Handler]] = {
    KeyPrepare: KeyNode.prepare,
    KeyPromise: lambda node, src, message, now_ms: node.proposals.on_promise(src, message, now_ms),
    KeyAccept: lambda node, src, message, now_ms: node.homes.on_accept(src, message, now_ms),
    KeyAccepted: lambda node, src, message, now_ms: node.proposals.on_accepted(src, message, now_ms),
    KeyRefusal: lambda node, src, message, now_ms: node.proposals.on_refusal(message, now_ms),
    KeyCollect: lambda node, src, message, now_ms: node.homes.on_collect(src, message),
    CopySent: lambda node, src, message, now_ms: node.copies.on_sent(src, message, now_ms),
    CopyKept: lambda node, src, message, now_ms: node.proposals.on_kept(src, message, now_ms),
    CopyConfirmed: lambda node, src, message, now_ms: node.copies.confirm(message.job_id),
    CopyDropped: lambda node, src, message, now_ms: node.copies.refuse(message.job_id),
    CopyEnded: lambda node, src, message, now_ms: node.copies.end(message.job_id),
    CopyAsked: lambda node, src, message, now_ms: node.copies.on_asked(src, message),
    CopyAnswer: lambda node, src, message, now_ms: node.homes.on_answer(src, message, now_ms),
    HandOver: KeyNode.take_over,
    HandedOver: KeyNode.handed_over,
    MembersPrepare: lambda node, src, message, now_ms: node.members.on_prepare(src, message),
    MembersPromise: lambda node, src, message, now_ms: node.members.on_promise(src, message),
    MembersAccept: lambda node, src, message, now_ms: node.members.on_accept(src, message),
    MembersAccepted: lambda node, src, message, now_ms: node.members.on_accepted(src, message),
    MembersRefusal: lambda node, src, message, now_ms: node.members.on_refusal(message),
    MembersStatus: lambda node, src, message, now_ms: node.members.on_status(src, message),
    KeysWanted: lambda node, src, message, now_ms: node.homes.on_wanted(src, message, now_ms),
    KeysSent: lambda node, src, message, now_ms: node.homes.on_sent(src, message, now_ms),
}
