"""What nodes say to each other about keys, and what a key can be.

A key is a register that a majority of its homes agrees on. Its states, and what leads from one to the next:

state   the key belongs to           becomes
FREE    nobody                       HELD, when a job takes it
HELD    a job                        KEPT, when the job ends; FREE, if the key isn't kept or no node has the job
KEPT    a job that has ended         FREE or HELD, when its keep time is over

A register that no home remembers is FREE. A `generation` tells who has the key, and where: it is the round in which a
job took it or moved to another node, so it grows even if the homes have forgotten the key meanwhile.

message             from, to                       means
KeyPrepare          proposer, homes                promise to take part in no lower ballot; what do you have?
KeyPromise          home, proposer                 promised; this is what I voted for last
KeyAccept           proposer, homes                vote for this value
KeyAccepted         home, proposer                 voted
KeyRefusal          home, proposer                 a higher ballot is promised
KeyCollect          proposer, homes                all homes have voted that the key is free: forget it
CopySent            proposer, holder               keep this job until the vote is known
CopyKept            holder, proposer               kept, for this ballot
CopyConfirmed       proposer, holders              the job has its key: deliver it
CopyDropped         proposer, holders              the job doesn't get its key: delete it
CopyEnded           holder, holders                the job is done
CopyAsked           home, holder                   do you have this job?
CopyAnswer          holder, home                   see COPY_STATES
HandOver            leaving holder, member         keep this job in my place
HandedOver          member, leaving holder         I do, and the key's homes know
MembersPrepare ...  proposer, members              the same votes about the next configuration
MembersStatus       everybody, everybody           the configuration, and which of its members are settled in it
KeysWanted          new home, former members       send me the keys that have come to me
KeysSent            former member, new home        here they are

All that concerns votes on keys has the number of the configuration in which it is meant: a node in another one doesn't
count it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.broker.core.keys.configuration import Configuration

Ballot = tuple[int, int]  # the round, and a number that is unique to the process that proposes
NO_BALLOT: Final[Ballot] = (0, 0)

FREE: Final = 0
HELD: Final = 1
KEPT: Final = 2

GONE: Final = 0  # never had it, or lost it
ENDED: Final = 1  # it was done
PRESENT: Final = 2
COPY_STATES: Final = ("gone", "ended", "present")


class KeyValue(NamedTuple):
    """What the homes of a key agree on."""

    state: int
    generation: int
    job_id: bytes
    keep_ms: int  # how long the key is kept after the end of the job
    left_ms: int  # KEPT: of that time, when this was written or sent
    nodes: tuple[bytes, ...]  # that have the job


FREE_VALUE: Final = KeyValue(FREE, 0, b"", 0, 0, ())


class KeyPrepare(NamedTuple):
    """Ask a home for its promise."""

    number: int
    key: bytes
    ballot: Ballot


class KeyPromise(NamedTuple):
    """A home's promise, and its last vote."""

    number: int
    ballot: Ballot
    voted: Ballot
    value: KeyValue


class KeyAccept(NamedTuple):
    """Ask a home for its vote."""

    number: int
    key: bytes
    ballot: Ballot
    value: KeyValue


class KeyAccepted(NamedTuple):
    """A home's vote."""

    number: int
    ballot: Ballot


class KeyRefusal(NamedTuple):
    """A home has promised a higher ballot."""

    ballot: Ballot
    promised: Ballot


class KeyCollect(NamedTuple):
    """All homes have voted that the key is free."""

    number: int
    key: bytes
    ballot: Ballot


class CopySent(NamedTuple):
    """A job that waits for the vote about its key."""

    key: bytes
    job_id: bytes
    body: bytes
    keep_ms: int
    ballot: Ballot


class CopyKept(NamedTuple):
    """A holder has the job, for a ballot; or knows that it is over."""

    job_id: bytes
    ballot: Ballot
    is_over: bool


class CopyConfirmed(NamedTuple):
    """The job has its key."""

    job_id: bytes


class CopyDropped(NamedTuple):
    """The job doesn't get its key."""

    job_id: bytes


class CopyEnded(NamedTuple):
    """The job is done."""

    job_id: bytes


class CopyAsked(NamedTuple):
    """Whether a node has a job."""

    key: bytes
    job_id: bytes


class CopyAnswer(NamedTuple):
    """What a node knows of a job: one of COPY_STATES."""

    key: bytes
    job_id: bytes
    state: int


class HandOver(NamedTuple):
    """A job of a node that leaves."""

    key: bytes
    job_id: bytes
    body: bytes
    keep_ms: int


class HandedOver(NamedTuple):
    """A job is at its new holder, and the key's homes know; or it has ended."""

    job_id: bytes
    has_ended: bool
    generation: int  # of the key since then: the job may have come back to the receiver meanwhile


class MembersPrepare(NamedTuple):
    """Ask a member for its promise about the configuration with this number."""

    number: int
    ballot: Ballot


class MembersPromise(NamedTuple):
    """A member's promise, and its last vote."""

    number: int
    ballot: Ballot
    voted: Ballot
    value: Configuration | None


class MembersAccept(NamedTuple):
    """Ask a member for its vote."""

    number: int
    ballot: Ballot
    value: Configuration


class MembersAccepted(NamedTuple):
    """A member's vote."""

    number: int
    ballot: Ballot


class MembersRefusal(NamedTuple):
    """A member has promised a higher ballot."""

    number: int
    promised: Ballot


class MembersStatus(NamedTuple):
    """The configuration that a node is in, and what is known of its members there."""

    configuration: Configuration
    settled: frozenset[bytes]
    out: frozenset[bytes]  # these need a new incarnation
    strangers: frozenset[bytes]  # and of those, these have lost their list of members and can't vote on the next one


class KeysWanted(NamedTuple):
    """A member asks for the keys that have come to it."""

    number: int
    incarnation: int


class KeyRecord(NamedTuple):
    """What a home knows of a key, as it is written and sent."""

    key: bytes
    promised: Ballot
    voted: Ballot
    value: KeyValue


class KeysSent(NamedTuple):
    """All keys of a former member that have come to the receiver."""

    number: int
    incarnation: int  # of the receiver
    word: int  # what the sender's word about the former configuration is worth (see `members`)
    floor: Ballot
    records: tuple[KeyRecord, ...]


KeyMessage = (
    KeyPrepare
    | KeyPromise
    | KeyAccept
    | KeyAccepted
    | KeyRefusal
    | KeyCollect
    | CopySent
    | CopyKept
    | CopyConfirmed
    | CopyDropped
    | CopyEnded
    | CopyAsked
    | CopyAnswer
    | HandOver
    | HandedOver
    | MembersPrepare
    | MembersPromise
    | MembersAccept
    | MembersAccepted
    | MembersRefusal
    | MembersStatus
    | KeysWanted
    | KeysSent
)
