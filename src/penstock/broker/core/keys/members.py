"""How the next configuration is decided, and whether this node may vote on a key.

Configuration n + 1 is decided by a majority of the members of n, by the votes of Paxos: a promise, then a vote, both
saved before they are answered. Gossip never decides: what it says makes a node propose a change, and no more.

wish of a node                                          proposes
it is to be a member                                    itself, with a new incarnation
it has lost the end of its journal, or missed a change  itself, with a new incarnation in place of the old one
it leaves (drain)                                       the members without it
a member will never come back (forget)                  the members without that one, which is `gone`

A member is settled when it may vote on all of its keys. One that was settled before and stays may vote at once on the
keys that it had; for a key that has come to it, it first hears a majority of the key's former homes, each of which is
in the new configuration by then and votes in the old one no more. So nothing that was decided before is missing, and
nothing is decided behind it.

A change is proposed only when all members that stay are settled in the present configuration, or need a new incarnation
themselves. So no member misses one: a member that is not settled when the next configuration comes has to be renewed.

A former home's word about the former configuration is

INTACT    it was settled there: whatever was decided before is at a majority of such homes, or more
PARTIAL   it was not: it may have votes, but not all of what it should know
LOST      it has lost the end of its journal, or all of it, and was not settled since; or an operator has said that it
          will never come back

A new home has heard enough of a key when a majority of the former homes is INTACT and has sent it, or when all have
sent what they have. And when so many are LOST that the rest is no majority, nothing can be promised for that key any
more, and it goes on with what a majority has to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final, NamedTuple, Protocol

from penstock.broker.core.keys.configuration import HOMES, Configuration, homes_of, majority
from penstock.broker.core.keys.messages import (
    NO_BALLOT,
    Ballot,
    KeyMessage,
    KeysWanted,
    MembersAccept,
    MembersAccepted,
    MembersPrepare,
    MembersPromise,
    MembersRefusal,
    MembersStatus,
)

STATUS_MS: Final = 1000  # between two messages that tell others of the configuration
WANTED_MS: Final = 500  # between two questions for keys
ATTEMPT_MS: Final = 600  # without a majority for this time, and some chance, a proposal begins again
RETRY_MS_MAX: Final = 800  # the chance

# What the word of a former member is worth: see the table above.
NO_WORD: Final = 0
INTACT: Final = 1
PARTIAL: Final = 2
LOST: Final = 3
WORDS: Final = ("none", "intact", "partial", "lost")


class SavedMembers(NamedTuple):
    """What a node must never forget. It is synced before any message leaves, whatever `appendfsync` says."""

    current: Configuration | None
    incarnation: int
    standing: int
    is_carried: bool
    is_settled: bool
    is_out: bool
    has_lost: bool
    renewed: int
    promised: Ballot
    voted: Ballot
    proposed: Configuration | None


class MembersPort(Protocol):
    """How the members are reached."""

    def send(self, node_id: bytes, message: KeyMessage) -> None:
        """Send a message at the end of the turn."""

    def save(self, saved: SavedMembers) -> None:
        """Write and sync before the messages of the turn leave."""

    def chance(self, choices: int) -> int:
        """Return a random number below `choices`."""


class KeyMembers:
    """The configuration as one node knows it, its part in deciding the next one, and its right to vote on keys."""

    def __init__(self, my_id: bytes, port: MembersPort, process: int) -> None:
        self.my_id = my_id
        self.current: Configuration | None = None
        self.incarnation = 0  # under which this node is a member; 0: it is none
        self.standing = NO_WORD  # what its word about the former configuration is worth
        self.is_carried = False  # it was settled in the former configuration, and stays
        self.is_settled = False
        self.is_out = False  # it needs a new incarnation before it votes
        self.has_lost = False  # what it promised or voted; until it is settled again
        self.is_wanted = True  # it is to be a member
        self.unwanted: set[bytes] = set()  # members that will never come back
        self.contacts: list[bytes] = []  # whom to ask before there is a configuration
        self.settled: set[bytes] = set()  # members that are known to be settled in the current configuration
        self.out: set[bytes] = set()  # those known to need a new incarnation
        self.strangers: set[bytes] = set()  # of those, the ones without a vote on the next configuration
        self.heard: dict[bytes, int] = {}  # former members that have sent their keys, and what their word is worth
        self._port = port
        self._process = process
        self._renewed = 0
        self._promised = NO_BALLOT
        self._voted = NO_BALLOT
        self._proposed: Configuration | None = None
        self._round = 0
        self._ballot = NO_BALLOT  # of the proposal under way
        self._mine: Configuration | None = None
        self._promises: dict[bytes, MembersPromise] = {}
        self._accepted: set[bytes] = set()
        self._attempt_at = 0
        self._status_at = 0
        self._wanted_at = 0
        self._told = 0

    # The life of a process.

    def found(self, node_ids: list[bytes]) -> None:
        """Begin the first configuration: all of its nodes are given the same list."""
        self.current = Configuration(1, dict.fromkeys(sorted(node_ids), 1))
        self.incarnation = 1
        self.is_carried = self.is_settled = True
        self.settled = {self.my_id}
        self._save()

    def restore(self, saved: SavedMembers, is_lost: bool) -> None:
        """Take what was saved; `is_lost`: the journal may lack its end."""
        self.current = saved.current
        self.incarnation = saved.incarnation
        self.standing = saved.standing
        self.is_carried, self.is_settled = saved.is_carried, saved.is_settled
        self.is_out, self.has_lost = saved.is_out, saved.has_lost
        self._renewed = saved.renewed
        self._promised, self._voted, self._proposed = saved.promised, saved.voted, saved.proposed
        if is_lost:
            self.is_settled = False
            if self.incarnation:
                self.is_out = self.has_lost = True
            if self.standing in (INTACT, PARTIAL):
                self.standing = LOST
            self._save()
        self._note_myself()

    def _note_myself(self) -> None:
        if self.is_settled:
            self.settled.add(self.my_id)
        elif self.is_out:
            self.out.add(self.my_id)
            if not self.is_member:
                self.strangers.add(self.my_id)

    def _save(self) -> None:
        self._port.save(
            SavedMembers(
                self.current,
                self.incarnation,
                self.standing,
                self.is_carried,
                self.is_settled,
                self.is_out,
                self.has_lost,
                self._renewed,
                self._promised,
                self._voted,
                self._proposed,
            )
        )

    # The right to vote.

    @property
    def number(self) -> int:
        """The number of the configuration; 0 if there is none yet."""
        return 0 if self.current is None else self.current.number

    @property
    def is_member(self) -> bool:
        """Whether this node is a member under its own incarnation."""
        current = self.current
        return current is not None and self.incarnation > 0 and current.members.get(self.my_id) == self.incarnation

    @property
    def is_joining(self) -> bool:
        """Whether this node has proposed itself, which may be decided at any time: it can't leave before that."""
        return self._renewed > 0 and not self.is_member

    def may_vote(self, key: bytes) -> bool:
        """Whether this node is a home of a key, and has all that was decided about it."""
        current = self.current
        if current is None or self.is_out or not self.is_member or self.my_id not in current.homes(key):
            return False
        return self.is_settled or self._has_heard(current.former_homes(key))

    def is_known(self, key: bytes) -> bool:
        """Whether enough of a key's former homes that have lost nothing have sent its keys."""
        assert self.current is not None
        return _is_known([self._word(home) for home in self.current.former_homes(key)])

    def _has_heard(self, former: tuple[bytes, ...]) -> bool:
        if not former or (self.is_carried and self.my_id in former):
            return True
        words = [self._word(home) for home in former]
        if NO_WORD not in words or _is_known(words):
            return True
        least = majority(len(words))
        return words.count(LOST) > len(words) - least and len(words) - words.count(NO_WORD) >= least

    def _word(self, home: bytes) -> int:
        assert self.current is not None
        if home == self.my_id:
            return self.standing
        return LOST if home in self.current.gone else self.heard.get(home, NO_WORD)

    def hear(self, node_id: bytes, word: int) -> None:
        """A former member has sent its keys."""
        self.heard[node_id] = word
        self.settle()

    def settle(self) -> None:
        """Note whether this node may vote on all of its keys by now."""
        current = self.current
        if self.is_settled or self.is_out or current is None or not self.is_member:
            return
        stays = self.is_carried and current.former.keys() <= current.members.keys()
        if stays or all(self._has_heard(homes) for homes in self._sample(current)):
            self.is_settled = True
            self.has_lost = False
            self.settled.add(self.my_id)
            self._save()
            self._tell_all()

    def _sample(self, current: Configuration) -> Iterator[tuple[bytes, ...]]:
        """Return sets of former homes, one at least of each sort: what counts is how many have given which word."""
        by_word: dict[int, list[bytes]] = {word: [] for word in range(len(WORDS))}
        for node_id in sorted(current.former):
            if node_id != self.my_id:
                by_word[self._word(node_id)].append(node_id)
        sample = [node_id for alike in by_word.values() for node_id in alike[:HOMES]]
        if self.my_id in current.former:
            sample.append(self.my_id)
        return combinations(sample, homes_of(len(current.former)))

    # What others say of the configuration.

    def on_status(self, src: bytes, message: MembersStatus) -> None:
        """Another node says which configuration it is in."""
        if message.configuration.number > self.number:
            self._install(message.configuration)
        if message.configuration.number == self.number:
            self.settled |= message.settled
            self.out |= message.out
            self.strangers |= message.strangers
        more = self.settled - message.settled or self.out - message.out or self.strangers - message.strangers
        if message.configuration.number < self.number or more:
            self.tell(src)

    def tell(self, node_id: bytes) -> None:
        """Send the configuration to a node."""
        if self.current is not None:
            known = frozenset(self.settled), frozenset(self.out), frozenset(self.strangers)
            self._port.send(node_id, MembersStatus(self.current, *known))

    def _tell_all(self) -> None:
        if self.current is not None:
            for node_id in sorted(self.current.members.keys() | self.current.former.keys()):
                if node_id != self.my_id:
                    self.tell(node_id)

    def _install(self, configuration: Configuration) -> None:
        before = self.current
        follows = before is not None and before.number + 1 == configuration.number
        was_settled = follows and self.is_settled and self.is_member and not self.is_out
        mine = configuration.members.get(self.my_id, 0)
        if before is None and (mine or self.my_id in configuration.former):
            self.has_lost = True  # it was a member, and doesn't know
        self.standing = NO_WORD
        if self.my_id in configuration.former:
            self.standing = INTACT if was_settled else LOST if self.has_lost else PARTIAL
        self.is_carried = False
        if not mine:
            self.incarnation, self.is_out = 0, False
        elif self._renewed and mine == self._renewed:
            self.incarnation, self.is_out = mine, False
        elif mine == self.incarnation and was_settled:
            self.is_carried = True
        else:
            self.is_out = True
        self._renewed = 0
        self.current = configuration
        self.is_settled = False
        self.settled = set()
        self.out = set()
        self.strangers = set()
        self.heard = {}
        self.unwanted &= configuration.members.keys()
        self._promised = self._voted = NO_BALLOT
        self._proposed = None
        self._mine = None
        self._save()
        self._note_myself()
        self.settle()

    # Deciding the next one: as a member.

    def on_prepare(self, src: bytes, message: MembersPrepare) -> None:
        """Promise to take part in no lower ballot."""
        if not self._votes_on(src, message.number):
            return
        if message.ballot < self._promised:
            self._port.send(src, MembersRefusal(message.number, self._promised))
            return
        self._promised = message.ballot
        self._save()
        self._port.send(src, MembersPromise(message.number, message.ballot, self._voted, self._proposed))

    def on_accept(self, src: bytes, message: MembersAccept) -> None:
        """Vote."""
        if not self._votes_on(src, message.number):
            return
        if message.ballot < self._promised:
            self._port.send(src, MembersRefusal(message.number, self._promised))
            return
        self._promised = self._voted = message.ballot
        self._proposed = message.value
        self._save()
        self._port.send(src, MembersAccepted(message.number, message.ballot))

    def _votes_on(self, src: bytes, number: int) -> bool:
        if number <= self.number:
            self.tell(src)
        return number == self.number + 1 and self.is_member

    # As the one who proposes.

    def tick(self, now_ms: int) -> None:
        """Tell others of the configuration, ask for keys, and propose what this node wishes."""
        current = self.current
        if now_ms >= self._status_at:
            self._status_at = now_ms + STATUS_MS
            self._tell_one(current)
        if current is None:
            return
        if now_ms >= self._wanted_at and not self.is_settled and not self.is_out and self.is_member:
            self._wanted_at = now_ms + WANTED_MS
            for node_id in current.former:
                if node_id != self.my_id and node_id not in self.heard:
                    self._port.send(node_id, KeysWanted(current.number, self.incarnation))
        if now_ms >= self._attempt_at:
            self._attempt_at = now_ms + ATTEMPT_MS + self._port.chance(RETRY_MS_MAX)
            self._mine = self._wish(current)
            if self._mine is not None:
                self._begin(current)

    def _tell_one(self, current: Configuration | None) -> None:
        known = set(self.contacts)
        if current is not None:
            known |= current.members.keys() | current.former.keys()
        others = sorted(known - {self.my_id})
        if others:
            self._told += 1
            node_id = others[self._told % len(others)]
            # Without a configuration it asks for one: the answer to an empty one is the receiver's.
            nobody: frozenset[bytes] = frozenset()
            if current is None:
                self._port.send(node_id, MembersStatus(Configuration(0, {}), nobody, nobody, nobody))
            else:
                self.tell(node_id)

    def _wish(self, current: Configuration) -> Configuration | None:
        """Return the configuration that this node would like to be next, if it differs and may be proposed."""
        members = {node_id: life for node_id, life in current.members.items() if node_id not in self.unwanted}
        if not self.is_wanted and not self.is_joining:
            members.pop(self.my_id, None)
        elif self.is_out or not self.is_member:
            if not self._renewed:
                self._renewed = 1 + self._port.chance(1 << 30) + (self._port.chance(1 << 30) << 30)
                self._save()  # or it would not know itself after a crash
            members[self.my_id] = self._renewed
        if members == current.members or not current.may_become(members):
            return None
        stay = {node_id for node_id, life in members.items() if current.members.get(node_id) == life}
        ready = self.settled | self.out
        if not self.is_wanted:
            ready -= self.strangers  # this node's vote may be needed to renew them
        return current.next(members, frozenset(self.unwanted)) if stay <= ready else None

    def _begin(self, current: Configuration) -> None:
        self._round += 1
        self._ballot = (self._round, self._process)
        self._promises = {}
        self._accepted = set()
        for node_id in current.members:
            self._port.send(node_id, MembersPrepare(current.number + 1, self._ballot))

    def on_promise(self, src: bytes, message: MembersPromise) -> None:
        """Another majority: propose what it voted for last, or else this node's wish."""
        current = self.current
        if current is None or self._mine is None or message.ballot != self._ballot or message.number != self.number + 1:
            return
        self._promises[src] = message
        if len(self._promises) == majority(len(current.members)):
            last = max(self._promises.values(), key=_voted)
            if last.value is not None:
                self._mine = last.value
            for node_id in current.members:
                self._port.send(node_id, MembersAccept(message.number, self._ballot, self._mine))

    def on_accepted(self, src: bytes, message: MembersAccepted) -> None:
        """A majority has voted: the configuration is decided."""
        current, mine = self.current, self._mine
        if current is None or mine is None or message.ballot != self._ballot or message.number != self.number + 1:
            return
        self._accepted.add(src)
        if len(self._accepted) >= majority(len(current.members)):
            self._install(mine)
            self._tell_all()

    def on_refusal(self, message: MembersRefusal) -> None:
        """Begin above what others have promised, after a while."""
        self._round = max(self._round, message.promised[0])


def _is_known(words: list[int]) -> bool:
    return words.count(INTACT) >= majority(len(words))


def _voted(promise: MembersPromise) -> Ballot:
    return promise.voted
