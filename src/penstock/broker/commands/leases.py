"""Commands of leases and claims: Penstock's own, for clients that want more than an ack by id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.clients import Client
from penstock.broker.commands.arguments import SYNTAX_ERROR, duration_argument, to_integer
from penstock.broker.commands.jobs import COUNTERS_AND_TRIES, shape_job
from penstock.broker.core import inputs, refusals
from penstock.broker.core.ids import is_job_id
from penstock.broker.core.jobs import Job
from penstock.broker.core.refusals import Refused
from penstock.broker.core.tokens import CLAIM_JOBS_MAX, CLAIM_KEY_BYTES_MAX, LEASE_MS_DEFAULT, LEASE_MS_MAX

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

BAD_TOKEN: Final = ("ERR", "each id must be followed by the token of its lease")


def _pairs(words: list[bytes]) -> list[tuple[bytes, int]]:
    """Read pairs of id and token; refuse the whole command if one of them is invalid."""
    if len(words) % 2:
        raise Refused(*BAD_TOKEN)
    pairs = []
    for at in range(0, len(words), 2):
        if not is_job_id(words[at]):
            raise Refused(*refusals.BAD_ID)
        token = to_integer(words[at + 1])
        if token is None or token <= 0:
            raise Refused(*BAD_TOKEN)
        pairs.append((words[at], token))
    return pairs


def _statuses(words: list[str]) -> bytes:
    return b"*%d\r\n%b" % (len(words), b"".join([b"+%b\r\n" % word.encode() for word in words]))


def acklease(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """ACKLEASE id token [id token ...] [BEGIN id token [id token ...]]."""
    node = broker.node
    end = args.index(b"BEGIN") if b"BEGIN" in args else len(args)
    ended, begun = _pairs(args[1:end]), _pairs(args[end + 1 :])
    for job_id, token in begun:
        inputs.begin_lease(node, job_id, token)
    return _statuses([inputs.ack_lease(node, job_id, token) for job_id, token in ended])


def begin(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """BEGIN id token [id token ...]."""
    node = broker.node
    return _statuses([inputs.begin_lease(node, job_id, token) for job_id, token in _pairs(args[1:])])


def nacklease(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """NACKLEASE ms id token [id token ...]."""
    after_ms = duration_argument(args[1], "the delay", LEASE_MS_MAX)
    node = broker.node
    return _statuses([inputs.nack_lease(node, job_id, token, after_ms) for job_id, token in _pairs(args[2:])])


def release(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """RELEASE id token [id token ...]."""
    node = broker.node
    return _statuses([inputs.release_lease(node, job_id, token) for job_id, token in _pairs(args[1:])])


def lease(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """LEASE ms id token [id token ...]."""
    lease_ms = max(1, duration_argument(args[1], "the lease", LEASE_MS_MAX))
    node = broker.node
    pairs = list(_pairs(args[2:]))
    # A client that held a job already keeps it: if this reply can't be sent, only jobs from the queue go back.
    waiting = {job_id for job_id, _ in pairs if inputs.is_waiting(node, job_id)}
    # An id that is named twice counts twice: tokens follow each other, so each may hold the lease of the one before.
    known = [job for job in map(node.jobs.get, [job_id for job_id, _ in pairs]) if job is not None]
    if len(pairs) > 1:
        node.memory.check_reply(sum([len(job.queue) + len(job.body) for job in known]))
    jobs = [inputs.lease_one(node, job_id, token, lease_ms) for job_id, token in pairs]
    client.hand([job for job in jobs if job is not None and job.id in waiting])
    rows = [client.null_array if job is None else shape_job(job, COUNTERS_AND_TRIES, lease_ms) for job in jobs]
    return b"*%d\r\n%b" % (len(rows), b"".join(rows))


def extend(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """EXTEND ms id token [id token ...]."""
    lease_ms = max(1, duration_argument(args[1], "the lease", LEASE_MS_MAX))
    node = broker.node
    return _statuses([inputs.extend_lease(node, job_id, token, lease_ms) for job_id, token in _pairs(args[2:])])


def claim(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """CLAIM key [COUNT n] [LEASE ms] FROM queue [queue ...]."""
    key = _key(args[1])
    count, lease_ms = 1, LEASE_MS_DEFAULT
    at = 2
    while at < len(args) and args[at].upper() != b"FROM":
        word = args[at].upper()
        if at + 1 == len(args) or word not in (b"COUNT", b"LEASE"):
            raise Refused(*SYNTAX_ERROR)
        if word == b"LEASE":
            lease_ms = max(1, duration_argument(args[at + 1], "LEASE", LEASE_MS_MAX))
        else:
            number = to_integer(args[at + 1])
            if number is None or not 0 <= number <= CLAIM_JOBS_MAX:
                raise Refused("ERR", f"COUNT must be a number between 0 and {CLAIM_JOBS_MAX}")
            count = number
        at += 2
    names = args[at + 1 :]
    if not names:
        raise Refused(*SYNTAX_ERROR)
    jobs = inputs.claim(broker.node, key, names, count, lease_ms)
    if count and not jobs:
        inputs.ask_others(broker.node, names)
    return b"".join([b"*%d\r\n" % len(jobs), *[_shape(job) for job in jobs]])


def _shape(job: Job) -> bytes:
    return b"*6\r\n$%d\r\n%b\r\n$40\r\n%b\r\n$%d\r\n%b\r\n:%d\r\n:%d\r\n:%d\r\n" % (
        len(job.queue), job.queue, job.id, len(job.body), job.body, job.nacks, job.deliveries, job.ctime,
    )  # fmt: skip


def _key(key: bytes) -> bytes:
    if not 0 < len(key) <= CLAIM_KEY_BYTES_MAX:
        raise Refused("ERR", f"the key of a claim must have 1 to {CLAIM_KEY_BYTES_MAX} bytes")
    return key


def ackclaim(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """ACKCLAIM key: how many jobs are finished with it."""
    return b":%d\r\n" % inputs.ack_claim(broker.node, _key(args[1]))


def nackclaim(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """NACKCLAIM key [ms]: how many jobs were returned."""
    if len(args) > 3:
        raise Refused(*SYNTAX_ERROR)
    after_ms = duration_argument(args[2], "the delay", LEASE_MS_MAX) if len(args) == 3 else 0
    return b":%d\r\n" % inputs.nack_claim(broker.node, _key(args[1]), after_ms)


def extendclaim(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """EXTENDCLAIM key ms: how many jobs are held for longer."""
    lease_ms = max(1, duration_argument(args[2], "the lease", LEASE_MS_MAX))
    return b":%d\r\n" % inputs.extend_claim(broker.node, _key(args[1]), lease_ms)
