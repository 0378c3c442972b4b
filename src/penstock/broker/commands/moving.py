"""MOVEJOBS: jobs go to another queue in one step. Penstock's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.clients import Client
from penstock.broker.commands.arguments import SYNTAX_ERROR, to_integer
from penstock.broker.commands.jobs import shape_sources, terms_of, wait_for_copies
from penstock.broker.core import inputs, refusals
from penstock.broker.core.ids import is_job_id
from penstock.broker.core.moving import Moving
from penstock.broker.core.refusals import Refused
from penstock.broker.core.replication import Addition
from penstock.broker.core.sources import ANYBODY

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

# How many words there are for each job.
SHAPES: Final = {b"JOBS": 2, b"BODIES": 3}
# A row of the reply while its client waits for copies: the row itself, and an id and a token of its own.
SOURCE_BYTES: Final = 240
BAD_TOKEN: Final = ("ERR", "each id must be followed by the token of its lease, 0 or ANY")
BAD_BODIES: Final = ("ERR", "each id must be followed by a token and a body")
NOT_ASYNC: Final = ("ERR", "MOVEJOBS waits for the copies of the new jobs: ASYNC can't be given")


def movejobs(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """MOVEJOBS queue ms-timeout [options of ADDJOB] JOBS id token [id token ...] | BODIES id token body [...]."""
    at = next((at for at in range(3, len(args)) if args[at].upper() in SHAPES), 0)
    if not at or at + 1 == len(args):
        raise Refused(*SYNTAX_ERROR)
    wanted = _wanted(args[at + 1 :], SHAPES[args[at].upper()])
    terms = terms_of(broker, args[2:at])
    if terms.asynchronous:
        raise Refused(*NOT_ASYNC)
    moved = inputs.move(broker.node, args[1], wanted, terms)
    if isinstance(moved, Addition):
        wait_for_copies(client, moved, is_whole=True)
        client.moving_bytes = SOURCE_BYTES * len(wanted)
        return None
    return shape_sources(moved)


def _wanted(words: list[bytes], size: int) -> list[Moving]:
    if len(words) % size:
        raise Refused(*(BAD_TOKEN if size == SHAPES[b"JOBS"] else BAD_BODIES))
    wanted = []
    for at in range(0, len(words), size):
        if not is_job_id(words[at]):
            raise Refused(*refusals.BAD_ID)
        wanted.append(Moving(words[at], _token(words[at + 1]), words[at + 2] if size == SHAPES[b"BODIES"] else None))
    return wanted


def _token(word: bytes) -> int:
    if word.upper() == b"ANY":
        return ANYBODY
    token = to_integer(word) if word else None
    if token is None or token < 0:
        raise Refused(*BAD_TOKEN)
    return token
