"""What a node does to take, free or look up a key: rounds of promises and votes.

A proposal has rounds, each with a ballot of its own. In a round it asks all homes for their promises. From the answers
of a majority it knows the present value: the one with the highest vote. What it proposes then is a row of this table,
and the homes vote on it. A round without a majority is followed by another one, with a higher ballot.

kind      if the key is free            if it belongs to this job               if it belongs to another job
TAKE      HELD by the job, once all     as it is: the job is added              as it is: that job has the key
          copies are kept
RESOLVE   as it is: the job is refused  as it is: the job is live               as it is: the job is refused
RELEASE   as it is                      KEPT, or FREE                           as it is
RECLAIM   as it is                      the same, if nothing has changed        as it is
REHOLD    as it is                      HELD, with this node among its holders  as it is
SWEEP     FREE                          (it has no job)                         as it is

A key whose keep time is over counts as free. "As it is" is proposed, too: what only a minority has voted for might be
lost, or might come back, and nobody may be told of it; and a home that missed a vote learns of it so. It isn't proposed
where an add or a look-up finds that a majority has voted for it in one and the same ballot. That isn't enough where the
answer is that a job never gets its key: then only a vote with a higher ballot is one.

An add that has asked for votes can't be refused any more, since a home that voted can pass its job on. It ends as
added, as a duplicate, or, at its deadline, as unsure; it goes on as a look-up then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from penstock.broker.core.keys.configuration import majority
from penstock.broker.core.keys.copies import Copies
from penstock.broker.core.keys.members import KeyMembers
from penstock.broker.core.keys.messages import (
    FREE,
    FREE_VALUE,
    HELD,
    KEPT,
    NO_BALLOT,
    Ballot,
    CopyConfirmed,
    CopyDropped,
    CopyKept,
    CopySent,
    HandedOver,
    KeyAccept,
    KeyAccepted,
    KeyCollect,
    KeyMessage,
    KeyPrepare,
    KeyPromise,
    KeyRefusal,
    KeyValue,
)

TAKE, RESOLVE, RELEASE, RECLAIM, REHOLD, SWEEP = range(6)
ROUND_MS: Final = 300  # without a majority for this time, and some chance, another round begins
ROUND_MS_MAX: Final = 1500  # and the times between grow up to this
OPEN_MAX: Final = 10_000  # proposals at once; adds beyond are refused, and all else comes again by itself

ADDED: Final = "ADDED"
DUPLICATE: Final = "DUPLICATE"  # another job has the key
REFUSED: Final = "REFUSED"  # nothing is added
UNSURE: Final = "UNSURE"  # the job may be added: add it again, and the key tells
OUTCOMES: Final = (ADDED, DUPLICATE, REFUSED, UNSURE)


class ProposalsPort(Protocol):
    """How proposals reach the world."""

    def send(self, node_id: bytes, message: KeyMessage) -> None:
        """Send a message at the end of the turn."""

    def answer(self, waiter: object, outcome: str, job_id: bytes) -> None:
        """Answer who adds: one of OUTCOMES, and the job that has the key."""

    def chance(self, choices: int) -> int:
        """Return a random number below `choices`."""


class Proposal:
    """One attempt to change or to read what has a key."""

    __slots__ = (
        "accepted",
        "ballot",
        "copies",
        "deadline_ms",
        "found",
        "from_node",
        "is_at_risk",
        "job_id",
        "keep_ms",
        "key",
        "kind",
        "number",
        "pause_ms",
        "promises",
        "replicate",
        "retry_at",
        "tried",
        "value",
        "waiter",
    )

    def __init__(self, kind: int, key: bytes, job_id: bytes, keep_ms: int) -> None:
        self.kind = kind
        self.key = key
        self.job_id = job_id
        self.keep_ms = keep_ms
        self.ballot = NO_BALLOT
        self.number = 0  # of the configuration of this round
        self.promises: dict[bytes, KeyPromise] = {}
        self.accepted: set[bytes] = set()
        self.value: KeyValue | None = None  # that homes are asked to vote for in this round
        self.retry_at = 0
        self.pause_ms = ROUND_MS
        self.deadline_ms = 0
        self.waiter: object = None
        self.replicate = 0  # TAKE: copies that are wanted, with the one of this node
        self.copies: set[bytes] = set()  # TAKE: nodes that have kept one for the ballot of this round
        self.tried: list[bytes] = []  # TAKE: nodes that were ever sent one
        self.is_at_risk = False  # TAKE: homes were asked to vote for the job
        self.found: KeyValue | None = None  # RECLAIM: what the home has, whose nodes were asked
        self.from_node = b""  # REHOLD: the node that leaves


class Proposals:
    """The proposals of one node."""

    def __init__(self, members: KeyMembers, copies: Copies, port: ProposalsPort, process: int) -> None:
        self.open: dict[tuple[int, bytes, bytes], Proposal] = {}
        self._members = members
        self._copies = copies
        self._port = port
        self._process = process  # no other process has it: ballots are never used twice
        self._round = 0
        self._by_ballot: dict[Ballot, Proposal] = {}

    def installed(self, now_ms: int) -> None:
        """There is a new configuration: rounds of the former one lead nowhere."""
        for proposal in self.open.values():
            proposal.retry_at = now_ms

    def see(self, ballot: Ballot) -> None:
        """Begin the next round above a ballot."""
        self._round = max(self._round, ballot[0])

    # Beginnings.

    def take(self, job: CopySent, replicate: int, waiter: object, deadline_ms: int, now_ms: int) -> None:
        """Add a job with a key."""
        members = self._members
        if not members.is_member or members.is_out or len(self.open) >= OPEN_MAX:
            self._port.answer(waiter, REFUSED, b"")
            return
        proposal = Proposal(TAKE, job.key, job.job_id, job.keep_ms)
        proposal.waiter, proposal.deadline_ms, proposal.replicate = waiter, deadline_ms, replicate
        self._copies.adding.add(job.job_id)
        self._copies.keep(job, now_ms)
        self._begin(proposal, now_ms)

    def start(self, kind: int, key: bytes, job_id: bytes, keep_ms: int, now_ms: int) -> None:
        """Begin any other proposal, unless it is under way."""
        self._start(Proposal(kind, key, job_id, keep_ms), now_ms)

    def reclaim(self, key: bytes, found: KeyValue, keep_ms: int, now_ms: int) -> None:
        """Free the key of a job that no node has, unless the homes know of other nodes by now."""
        proposal = Proposal(RECLAIM, key, found.job_id, keep_ms)
        proposal.found = found
        self._start(proposal, now_ms)

    def rehold(self, key: bytes, job_id: bytes, from_node: bytes, now_ms: int) -> None:
        """Let the homes know that this node has a job in place of another one."""
        proposal = Proposal(REHOLD, key, job_id, 0)
        proposal.from_node = from_node
        self._start(proposal, now_ms)
        if (REHOLD, key, job_id) in self.open:
            self._copies.adding.add(job_id)

    def _start(self, proposal: Proposal, now_ms: int) -> None:
        if (proposal.kind, proposal.key, proposal.job_id) not in self.open and len(self.open) < OPEN_MAX:
            self._begin(proposal, now_ms)

    def _begin(self, proposal: Proposal, now_ms: int) -> None:
        self.open[proposal.kind, proposal.key, proposal.job_id] = proposal
        self._next_round(proposal, now_ms)

    # Rounds.

    def _next_round(self, proposal: Proposal, now_ms: int) -> None:
        members = self._members
        self._by_ballot.pop(proposal.ballot, None)
        proposal.retry_at = now_ms + proposal.pause_ms + self._port.chance(proposal.pause_ms)
        proposal.pause_ms = min(proposal.pause_ms * 3 // 2, ROUND_MS_MAX)
        if members.current is None:
            return
        self._round += 1
        proposal.ballot = (self._round, self._process)
        proposal.number = members.number
        proposal.promises = {}
        proposal.accepted = set()
        proposal.value = None
        self._by_ballot[proposal.ballot] = proposal
        homes = members.current.homes(proposal.key)
        for home in homes:
            self._port.send(home, KeyPrepare(proposal.number, proposal.key, proposal.ballot))
        if proposal.kind == TAKE:
            self._send_copies(proposal, homes, now_ms)

    def _send_copies(self, proposal: Proposal, homes: tuple[bytes, ...], now_ms: int) -> None:
        """Let homes keep the copies, so that they travel with the questions; in later rounds others as well."""
        members = self._members
        assert members.current is not None
        job = self._copies.jobs.get(proposal.job_id)
        proposal.copies = set()
        if job is None:
            return  # it has ended already
        message = CopySent(job.key, job.id, job.body, job.keep_ms, proposal.ballot)
        self._copies.keep(message, now_ms)
        proposal.copies.add(members.my_id)
        others = [home for home in homes if home != members.my_id]
        others += [node_id for node_id in sorted(members.current.members) if node_id not in (members.my_id, *homes)]
        wanted = proposal.replicate - 1
        for node_id in others:
            if node_id in proposal.tried:
                self._port.send(node_id, message)
        for node_id in [node_id for node_id in others if node_id not in proposal.tried][: max(wanted, 0)]:
            proposal.tried.append(node_id)
            self._port.send(node_id, message)

    def _find(self, src: bytes, ballot: Ballot, number: int) -> Proposal | None:
        proposal = self._by_ballot.get(ballot)
        if proposal is None or proposal.number != number or number != self._members.number:
            return None
        assert self._members.current is not None
        return proposal if src in self._members.current.homes(proposal.key) else None

    def on_promise(self, src: bytes, message: KeyPromise, now_ms: int) -> None:
        """A home has promised."""
        proposal = self._find(src, message.ballot, message.number)
        if proposal is not None and proposal.value is None:
            proposal.promises[src] = message
            self._go_on(proposal, now_ms)

    def on_kept(self, src: bytes, message: CopyKept, now_ms: int) -> None:
        """A holder has kept a copy, or knows that the job is over."""
        proposal = self._by_ballot.get(message.ballot)
        if proposal is None or proposal.kind != TAKE or proposal.job_id != message.job_id or message.is_over:
            return
        proposal.copies.add(src)
        if proposal.value is None:
            self._go_on(proposal, now_ms)

    def _go_on(self, proposal: Proposal, now_ms: int) -> None:
        """With the promises of a majority: propose what follows from them, or end."""
        members = self._members
        assert members.current is not None
        least = majority(len(members.current.homes(proposal.key)))
        if len(proposal.promises) < least:
            return
        voted = max(promise.voted for promise in proposal.promises.values())
        last = [promise.value for promise in proposal.promises.values() if promise.voted == voted]
        value = last[0]._replace(left_ms=max(one.left_ms for one in last))
        is_decided = voted > NO_BALLOT and len(last) >= least
        if proposal.kind == TAKE and not proposal.is_at_risk and is_free(value):
            if len(proposal.copies) < proposal.replicate:
                return  # the rest may still come, in this round or the next
        wanted = _WANTED[proposal.kind](self, proposal, value)
        if is_decided and wanted == value and _needs_no_vote(proposal, value, members.my_id):
            self._end(proposal, value, now_ms)
            return
        if wanted.state == HELD and wanted.job_id == proposal.job_id and proposal.kind == TAKE:
            proposal.is_at_risk = True
        proposal.value = wanted
        for home in members.current.homes(proposal.key):
            self._port.send(home, KeyAccept(proposal.number, proposal.key, proposal.ballot, wanted))

    def on_accepted(self, src: bytes, message: KeyAccepted, now_ms: int) -> None:
        """A home has voted."""
        proposal = self._find(src, message.ballot, message.number)
        if proposal is None or proposal.value is None:
            return
        proposal.accepted.add(src)
        assert self._members.current is not None
        homes = self._members.current.homes(proposal.key)
        is_free_again = proposal.value.state == FREE
        if is_free_again and len(proposal.accepted) == len(homes):
            for home in homes:
                self._port.send(home, KeyCollect(proposal.number, proposal.key, proposal.ballot))
            self._end(proposal, proposal.value, now_ms)
        elif len(proposal.accepted) >= majority(len(homes)) and (not is_free_again or proposal.kind in (TAKE, RESOLVE)):
            self._end(proposal, proposal.value, now_ms)  # else the last home may still answer

    def on_refusal(self, message: KeyRefusal, now_ms: int) -> None:
        """A home has promised a higher ballot: the next round begins above it, soon."""
        self.see(message.promised)
        proposal = self._by_ballot.get(message.ballot)
        if proposal is not None:
            proposal.retry_at = min(proposal.retry_at, now_ms + self._port.chance(proposal.pause_ms))

    def tick(self, now_ms: int) -> None:
        """Begin rounds again, and end what is over."""
        for proposal in list(self.open.values()):
            if proposal.deadline_ms and proposal.deadline_ms <= now_ms:
                self._give_up(proposal, now_ms)
            elif proposal.retry_at <= now_ms:
                if proposal.value is not None and self._has_majority(proposal):
                    self._end(proposal, proposal.value, now_ms)  # the rest will be swept
                else:
                    self._next_round(proposal, now_ms)

    def _has_majority(self, proposal: Proposal) -> bool:
        current = self._members.current
        if current is None or proposal.number != current.number:
            return False
        return len(proposal.accepted) >= majority(len(current.homes(proposal.key)))

    # Ends.

    def _close(self, proposal: Proposal) -> None:
        self._by_ballot.pop(proposal.ballot, None)
        self.open.pop((proposal.kind, proposal.key, proposal.job_id), None)

    def _give_up(self, proposal: Proposal, now_ms: int) -> None:
        """The deadline of an add is there."""
        self._close(proposal)
        self._copies.adding.discard(proposal.job_id)
        if proposal.is_at_risk:
            self._port.answer(proposal.waiter, UNSURE, proposal.job_id)
            self.start(RESOLVE, proposal.key, proposal.job_id, 0, now_ms)
            return
        self._drop_copies(proposal)
        self._port.answer(proposal.waiter, REFUSED, b"")

    def _drop_copies(self, proposal: Proposal) -> None:
        self._copies.refuse(proposal.job_id)
        for node_id in proposal.tried:
            self._port.send(node_id, CopyDropped(proposal.job_id))

    def _end(self, proposal: Proposal, value: KeyValue, now_ms: int) -> None:
        self._close(proposal)
        _ENDS[proposal.kind](self, proposal, value)

    def end_take(self, proposal: Proposal, value: KeyValue) -> None:
        """The key belongs to the job, or to another."""
        self._copies.adding.discard(proposal.job_id)
        if value.job_id == proposal.job_id and value.state != FREE:
            if value.state == HELD:
                self._confirm(value)
            else:
                self._copies.end(proposal.job_id)
            self._port.answer(proposal.waiter, ADDED, proposal.job_id)
            return
        self._drop_copies(proposal)
        if value.state == FREE:  # it was asked for, and is free again
            self._port.answer(proposal.waiter, UNSURE, proposal.job_id)
        else:
            self._port.answer(proposal.waiter, DUPLICATE, value.job_id)

    def end_resolve(self, proposal: Proposal, value: KeyValue) -> None:
        """The job has its key, or never gets it."""
        if value.state == HELD and value.job_id == proposal.job_id:
            self._confirm(value)
        else:
            self._copies.refuse(proposal.job_id, proposal.ballot)

    def _confirm(self, value: KeyValue) -> None:
        if self._members.my_id in value.nodes:
            self._copies.confirm(value.job_id)
        else:  # the homes would not ask this node whether the job is there
            self._copies.refuse(value.job_id)
        for node_id in value.nodes:
            if node_id != self._members.my_id:
                self._port.send(node_id, CopyConfirmed(value.job_id))

    def end_rehold(self, proposal: Proposal, value: KeyValue) -> None:
        """The homes know the new holder; or the job is over."""
        self._copies.adding.discard(proposal.job_id)
        has_key = value.state == HELD and value.job_id == proposal.job_id
        if has_key:
            self._copies.hold(proposal.job_id, value.generation)
        else:
            self._copies.end(proposal.job_id)
        if not has_key or proposal.job_id in self._copies.jobs:
            self._port.send(proposal.from_node, HandedOver(proposal.job_id, not has_key, value.generation))

    def end_nothing(self, proposal: Proposal, value: KeyValue) -> None:
        """Nobody waits."""

    # What is proposed.

    def want_take(self, proposal: Proposal, value: KeyValue) -> KeyValue:
        """See the table."""
        if proposal.is_at_risk or not is_free(value):
            return value  # also if it is free: nobody may ask for the job a second time, which may have ended
        nodes = tuple(sorted(proposal.copies))
        return KeyValue(HELD, _next(proposal, value), proposal.job_id, proposal.keep_ms, 0, nodes)

    def want_resolve(self, proposal: Proposal, value: KeyValue) -> KeyValue:
        """See the table."""
        return value

    def want_release(self, proposal: Proposal, value: KeyValue) -> KeyValue:
        """See the table."""
        if value.job_id != proposal.job_id or value.state != HELD:
            return value
        if not proposal.keep_ms:
            return FREE_VALUE._replace(generation=value.generation)
        return value._replace(state=KEPT, left_ms=proposal.keep_ms, nodes=())

    def want_reclaim(self, proposal: Proposal, value: KeyValue) -> KeyValue:
        """See the table. The job may have been handed over while its former nodes were asked."""
        return self.want_release(proposal, value) if value == proposal.found else value

    def want_rehold(self, proposal: Proposal, value: KeyValue) -> KeyValue:
        """See the table."""
        if value.job_id != proposal.job_id or value.state != HELD:
            return value
        current = self._members.current
        assert current is not None
        # The node that leaves is asked, too, until it is no member any more: it may not know yet that it is relieved.
        nodes = {self._members.my_id, *(node_id for node_id in value.nodes if node_id in current.members)}
        return value._replace(generation=_next(proposal, value), nodes=tuple(sorted(nodes)))

    def want_sweep(self, proposal: Proposal, value: KeyValue) -> KeyValue:
        """See the table."""
        return FREE_VALUE._replace(generation=value.generation) if is_free(value) else value


def is_free(value: KeyValue) -> bool:
    """Whether a key can be taken."""
    return value.state == FREE or (value.state == KEPT and value.left_ms <= 0)


def _next(proposal: Proposal, value: KeyValue) -> int:
    """Return the generation that follows: two proposers may have the same round."""
    return max(proposal.ballot[0], value.generation + 1)


def _needs_no_vote(proposal: Proposal, value: KeyValue, my_id: bytes) -> bool:
    """Whether a value that is decided is an answer as it is."""
    if value.state == FREE or proposal.kind not in (TAKE, RESOLVE):
        return False
    if proposal.kind == RESOLVE:
        return value.job_id == proposal.job_id and my_id in value.nodes
    return value.job_id == proposal.job_id or not proposal.is_at_risk


_Want = Callable[[Proposals, Proposal, KeyValue], KeyValue]
_WANTED: Final[dict[int, _Want]] = {
    TAKE: Proposals.want_take,
    RESOLVE: Proposals.want_resolve,
    RELEASE: Proposals.want_release,
    RECLAIM: Proposals.want_reclaim,
    REHOLD: Proposals.want_rehold,
    SWEEP: Proposals.want_sweep,
}
_ENDS: Final[dict[int, Callable[[Proposals, Proposal, KeyValue], None]]] = {
    TAKE: Proposals.end_take,
    RESOLVE: Proposals.end_resolve,
    RELEASE: Proposals.end_nothing,
    RECLAIM: Proposals.end_nothing,
    REHOLD: Proposals.end_rehold,
    SWEEP: Proposals.end_nothing,
}
