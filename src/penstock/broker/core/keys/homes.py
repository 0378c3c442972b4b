"""What a home keeps of each key, and how it answers proposers.

Each record has the highest ballot that was promised and the last vote. Both are in the journal before the answer
leaves. A record without a vote may be forgotten if `floor`, which stands for every key that isn't there, is raised to
its promise; a record with a vote only when all homes have voted that the key is free.

A home that has a job's key asks the nodes that have the job whether they still do. When none of them does, the key is
freed: kept for its keep time, if one knows that the job was done.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock.broker.core.keys.members import INTACT, KeyMembers
from penstock.broker.core.keys.messages import (
    ENDED,
    FREE,
    FREE_VALUE,
    GONE,
    HELD,
    KEPT,
    NO_BALLOT,
    PRESENT,
    Ballot,
    CopyAnswer,
    CopyAsked,
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
)

LOOK_MS: Final = 1000  # between two looks at the records
ASK_MS: Final = 5000  # after a vote or an answer, a job is asked for again
STAGGER_MS: Final = 1500  # the second and the third home wait for the first
RECORD_BYTES: Final = 400  # of memory a record takes beside its key, at most (P7)


class HomesPort(Protocol):
    """How homes reach the world."""

    def send(self, node_id: bytes, message: KeyMessage) -> None:
        """Send a message at the end of the turn."""

    def append_record(self, record: KeyRecord, left_ms: int) -> None:
        """Write what is known of a key; `left_ms` is what is left of its keep time."""

    def append_forgotten(self, key: bytes, floor: Ballot) -> None:
        """Write that a key is forgotten, and what is promised for all that aren't there."""


class Look(Protocol):
    """What the looks at the records begin."""

    def reclaim(self, key: bytes, value: KeyValue, keep_ms: int) -> None:
        """None of the nodes that should have the job has it."""

    def sweep(self, key: bytes) -> None:
        """The key is free, or its keep time is over, and not all homes may know."""


class Kept:
    """What a home knows of one key."""

    __slots__ = ("answers", "look_at", "promised", "until_ms", "value", "voted")

    def __init__(self, promised: Ballot, look_at: int) -> None:
        self.promised = promised
        self.voted = NO_BALLOT
        self.value = FREE_VALUE
        self.until_ms = 0  # KEPT: the end of the keep time
        self.look_at = look_at
        self.answers: dict[bytes, int] = {}  # of nodes that were asked for the job


class Homes:
    """The keys of one node."""

    def __init__(self, members: KeyMembers, port: HomesPort) -> None:
        self.records: dict[bytes, Kept] = {}
        self.floor = NO_BALLOT
        self.used_bytes = 0
        self._members = members
        self._port = port
        self._set_aside: dict[bytes, list[KeyRecord]] = {}  # from nodes whose word is not INTACT, this one included
        # Of an earlier incarnation of this node: in the journal, and of use to others, until this one is settled.
        self._left_over: list[KeyRecord] = []
        self._look_at = 0

    # Records.

    def restore(self, record: KeyRecord, left_ms: int, now_ms: int) -> None:
        """Take a record from the journal; the last one of a key counts."""
        kept = self._record(record.key, now_ms)
        kept.promised, kept.voted, kept.value = record.promised, record.voted, record.value
        kept.until_ms = now_ms + left_ms

    def restore_forgotten(self, key: bytes, floor: Ballot) -> None:
        """Take a forgotten key from the journal."""
        self._drop(key)
        self.floor = max(self.floor, floor)

    def _record(self, key: bytes, now_ms: int) -> Kept:
        kept = self.records.get(key)
        if kept is None:
            kept = self.records[key] = Kept(self.floor, now_ms + ASK_MS)
            self.used_bytes += RECORD_BYTES + len(key)
        return kept

    def _drop(self, key: bytes) -> None:
        if self.records.pop(key, None) is not None:
            self.used_bytes -= RECORD_BYTES + len(key)

    def _write(self, key: bytes, kept: Kept, now_ms: int) -> None:
        record = KeyRecord(key, kept.promised, kept.voted, kept.value)
        self._port.append_record(record, max(0, kept.until_ms - now_ms))

    def _forget(self, key: bytes, kept: Kept) -> None:
        self.floor = max(self.floor, kept.promised)
        self._drop(key)
        self._port.append_forgotten(key, self.floor)

    def _shown(self, kept: Kept, now_ms: int) -> KeyValue:
        if kept.value.state == KEPT:
            return kept.value._replace(left_ms=max(0, kept.until_ms - now_ms))
        return kept.value

    # Votes.

    def _answers(self, src: bytes, number: int, key: bytes) -> bool:
        if number != self._members.number:
            self._members.tell(src)
            return False
        return self._members.may_vote(key)

    def on_prepare(self, src: bytes, message: KeyPrepare, now_ms: int) -> None:
        """Promise to take part in no lower ballot, and show the last vote."""
        if not self._answers(src, message.number, message.key):
            return
        kept = self.records.get(message.key)
        promised = self.floor if kept is None else kept.promised
        if message.ballot < promised:
            self._port.send(src, KeyRefusal(message.ballot, promised))
            return
        kept = self._record(message.key, now_ms)
        if message.ballot > kept.promised:
            kept.promised = message.ballot
            self._write(message.key, kept, now_ms)
        self._port.send(src, KeyPromise(message.number, message.ballot, kept.voted, self._shown(kept, now_ms)))

    def on_accept(self, src: bytes, message: KeyAccept, now_ms: int) -> None:
        """Vote."""
        if not self._answers(src, message.number, message.key):
            return
        kept = self.records.get(message.key)
        promised = self.floor if kept is None else kept.promised
        if message.ballot < promised:
            self._port.send(src, KeyRefusal(message.ballot, promised))
            return
        kept = self._record(message.key, now_ms)
        if message.ballot > kept.voted:
            kept.promised = kept.voted = message.ballot
            kept.value = message.value
            kept.until_ms = now_ms + message.value.left_ms
            kept.answers.clear()
            kept.look_at = self._next_look(message.key, now_ms)
            self._write(message.key, kept, now_ms)
        self._port.send(src, KeyAccepted(message.number, message.ballot))

    def on_collect(self, src: bytes, message: KeyCollect) -> None:
        """All homes have voted that a key is free: forget it, unless somebody takes it."""
        kept = self.records.get(message.key)
        if kept is None or not self._answers(src, message.number, message.key):
            return
        if kept.promised == kept.voted == message.ballot and kept.value.state == FREE:
            self._forget(message.key, kept)

    # A new configuration.

    def installed(self, now_ms: int) -> None:
        """The node is in a new configuration."""
        members = self._members
        assert members.current is not None
        self._set_aside = {}
        self._left_over = []
        if members.is_carried:
            for key in [key for key in self.records if members.my_id not in members.current.former_homes(key)]:
                self._forget(key, self.records[key])  # it is heard again, if this node is its home
        elif members.is_member and not members.is_out:  # again, or for the first time
            self._left_over = self._all_records()
            if members.standing:
                self._put_aside(self._left_over)
            for record in self._left_over:
                self._drop(record.key)
            self._look_aside(now_ms)

    def _all_records(self) -> list[KeyRecord]:
        return [KeyRecord(key, kept.promised, kept.voted, kept.value) for key, kept in self.records.items()]

    def _put_aside(self, records: list[KeyRecord]) -> None:
        for record in records:
            self._set_aside.setdefault(record.key, []).append(record)

    def on_wanted(self, src: bytes, message: KeysWanted, now_ms: int) -> None:
        """Send a member its keys."""
        members = self._members
        if message.number != members.number:
            members.tell(src)
            return
        assert members.current is not None
        if not members.standing or members.current.members.get(src) != message.incarnation:
            return
        records = [
            KeyRecord(key, kept.promised, kept.voted, self._shown(kept, now_ms))
            for key, kept in self.records.items()
            if src in members.current.homes(key)
        ]
        records += [record for record in self._left_over if src in members.current.homes(record.key)]
        self._port.send(
            src, KeysSent(message.number, message.incarnation, members.standing, self.floor, tuple(records))
        )

    def on_sent(self, src: bytes, message: KeysSent, now_ms: int) -> None:
        """Take the keys of a former member, but not those on which this node votes already."""
        members = self._members
        if message.number != members.number or message.incarnation != members.incarnation:
            return
        if members.is_settled or src in members.heard:
            return
        open_records = [record for record in message.records if not members.may_vote(record.key)]
        self.floor = max(self.floor, message.floor)
        if message.word == INTACT:
            for record in open_records:
                self._merge(record, now_ms)
        else:
            self._put_aside(open_records)
        members.hear(src, message.word)
        self._look_aside(now_ms)

    def _look_aside(self, now_ms: int) -> None:
        """Take what was set aside, of keys on which this node votes now and that nobody knows better."""
        members = self._members
        for key in [key for key in self._set_aside if members.may_vote(key)]:
            records = self._set_aside.pop(key)
            if not members.is_known(key):
                for record in records:
                    self._merge(record, now_ms)
        if members.is_settled:
            for record in self._left_over:
                if record.key not in self.records:
                    self._port.append_forgotten(record.key, self.floor)
            self._left_over = []

    def _merge(self, record: KeyRecord, now_ms: int) -> None:
        kept = self._record(record.key, now_ms)
        kept.promised = max(kept.promised, record.promised)
        if record.voted > kept.voted:
            kept.voted, kept.value = record.voted, record.value
            kept.until_ms = now_ms + record.value.left_ms
        self._write(record.key, kept, now_ms)

    # Looks at the records.

    def _next_look(self, key: bytes, now_ms: int) -> int:
        current = self._members.current
        homes = current.homes(key) if current is not None else ()
        rank = homes.index(self._members.my_id) if self._members.my_id in homes else 0
        return now_ms + ASK_MS + rank * STAGGER_MS

    def tick(self, look: Look, now_ms: int) -> None:
        """Ask for the jobs that have keys, and see to those that are free."""
        members = self._members
        if now_ms < self._look_at or members.current is None:
            return
        self._look_at = now_ms + LOOK_MS
        for key in list(self.records):
            kept = self.records[key]
            if kept.look_at > now_ms or not members.may_vote(key):
                continue
            kept.look_at = self._next_look(key, now_ms)
            if kept.value.state == HELD:
                self._ask(look, key, kept)
            elif kept.voted == NO_BALLOT:
                self._forget(key, kept)
            elif kept.value.state == FREE or kept.until_ms <= now_ms:
                look.sweep(key)

    def _ask(self, look: Look, key: bytes, kept: Kept) -> None:
        current = self._members.current
        assert current is not None
        answers = kept.answers
        for node_id in kept.value.nodes:
            if node_id not in current.members:
                answers[node_id] = GONE  # it has left, and its jobs were handed over; or it was given up
        if len(answers) == len(kept.value.nodes) and PRESENT not in answers.values():
            keep_ms = kept.value.keep_ms if ENDED in answers.values() else 0
            look.reclaim(key, kept.value, keep_ms)
        answers.clear()
        for node_id in kept.value.nodes:
            if node_id in current.members:
                self._port.send(node_id, CopyAsked(key, kept.value.job_id))

    def on_answer(self, src: bytes, message: CopyAnswer, now_ms: int) -> None:
        """A node says whether it has a job."""
        kept = self.records.get(message.key)
        if kept is not None and kept.value.job_id == message.job_id and src in kept.value.nodes:
            kept.answers[src] = message.state
            if len(kept.answers) == len(kept.value.nodes) and PRESENT not in kept.answers.values():
                kept.look_at = now_ms
