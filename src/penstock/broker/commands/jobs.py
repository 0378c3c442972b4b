"""Commands that add, fetch and finish jobs: ADDJOB, ADDJOBS, GETJOB, ACKJOB, NACK and others.

ADDJOB, GETJOB and ACKJOB are the hot path. Options are parsed once and cached by their words; a reply is one format.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.broker.clients import Client
from penstock.broker.commands.arguments import SYNTAX_ERROR, duration_argument, timeout_argument, to_integer
from penstock.broker.core import inputs, refusals
from penstock.broker.core.adding import AddRules
from penstock.broker.core.delivery import ALL
from penstock.broker.core.inputs import ack, ack_unknown, add, ask_others, delete, fetch, fetch_many, wait
from penstock.broker.core.jobs import AHEAD, GONE, Job, tries_before
from penstock.broker.core.node import Node
from penstock.broker.core.queues import PAUSED_OUT
from penstock.broker.core.refusals import Refused
from penstock.broker.core.replication import Addition
from penstock.broker.core.sources import Sources
from penstock.broker.core.tokens import LEASE_MS_MAX
from penstock.broker.core.waiters import Waiter
from penstock.wire.replies import error

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

UINT16_MAX: Final = 2**16 - 1
UINT32_MAX: Final = 2**32 - 1
TTL_S_MAX: Final = 2**31 - 1  # 68 years: an expiry must fit into the 32-bit unix time of the stored form
TERMS_KEPT_MAX: Final = 1024  # parsed option lists kept; clients use a handful
TERMS_BYTES_MAX: Final = 256  # longer ones aren't kept: a number may carry up to half a gigabyte behind a NUL
RUN_MAX: Final = 100  # requests of a pipeline that are run as one: memory is checked between two of these runs
# Which counters a job is replied with: how many pairs of name and value.
COUNTERS: Final = 2
COUNTERS_AND_TRIES: Final = 4

# Option -> (attribute, least, most, what to say otherwise)
ADD_NUMBERS: Final = {
    b"REPLICATE": ("replicate", 1, UINT16_MAX, "REPLICATE must be between 1 and 65535"),
    b"TTL": ("ttl_s", 1, None, "TTL must be a number > 0"),
    b"RETRY": ("retry_s", 0, UINT32_MAX, "RETRY time must be a non negative number"),
    b"DELAY": ("delay_s", 0, UINT32_MAX, "DELAY time must be a non negative number"),
    b"MAXLEN": ("maxlen", 1, None, "MAXLEN must be a positive number"),
}


def _parse_terms(timeout: bytes, options: list[bytes]) -> AddRules:
    terms = AddRules()
    at = 0
    while at < len(options):
        word = options[at].upper()
        if word == b"ASYNC":
            terms.asynchronous = True
            at += 1
            continue
        row = ADD_NUMBERS.get(word)
        if row is None or at + 1 == len(options):
            raise Refused(*SYNTAX_ERROR)
        attribute, least, most, otherwise = row
        value = to_integer(options[at + 1])
        if value is None or value < least or (most is not None and value > most):
            raise Refused("ERR", otherwise)
        setattr(terms, attribute, value)
        at += 2
    terms.ttl_s = min(terms.ttl_s, TTL_S_MAX)
    terms.timeout_ms = timeout_argument(timeout)
    return terms


def _remember(broker: Broker, key: bytes | tuple[bytes, ...], terms: AddRules) -> AddRules:
    if (len(key) if isinstance(key, bytes) else sum(map(len, key))) > TERMS_BYTES_MAX:
        return terms
    if len(broker.terms) >= TERMS_KEPT_MAX:
        broker.terms.clear()
    broker.terms[key] = terms
    return terms


def addjob(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """ADDJOB queue body ms-timeout [options]."""
    key = args[3] if len(args) == 4 else tuple(args[3:])
    terms = broker.terms.get(key) or _remember(broker, key, _parse_terms(args[3], args[4:]))
    ids = add(broker.node, args[1], [args[2]], terms)
    if isinstance(ids, Addition):
        wait_for_copies(client, ids)
        return None
    return b"+%b\r\n" % ids[0]


def wait_for_copies(client: Client, addition: Addition, is_whole: bool = False) -> None:
    """Let a producer wait until other nodes hold its jobs."""
    addition.client = client
    addition.is_whole = is_whole
    client.waiter = addition


def shape_addition(addition: Addition) -> bytes:
    """Return the reply to a producer that waited: one for each job, or one for all if it wanted all or none."""
    refused = addition.refused
    if addition.is_whole and refused:
        return error(str(next(iter(refused.values()))))
    if addition.sources is not None:
        return shape_sources(addition.sources)
    replies = [error(str(refused[job.id])) if job.id in refused else b"+%b\r\n" % job.id for job in addition.jobs]
    return (b"*%d\r\n" % len(replies) if addition.is_whole else b"") + b"".join(replies)


def shape_sources(sources: Sources) -> bytes:
    """Return the reply to a client that moves jobs: for each the id of the new job, or why it was not moved."""
    rows = [b"+%b\r\n" % row.answer for row in sources.rows]
    return b"*%d\r\n%b" % (len(rows), b"".join(rows))


def terms_of(broker: Broker, words: list[bytes]) -> AddRules:
    """Return the options of an add: its timeout, and the words after that."""
    key = words[0] if len(words) == 1 else tuple(words)
    return broker.terms.get(key) or _remember(broker, key, _parse_terms(words[0], words[1:]))


def addjob_run(broker: Broker, client: Client, requests: list[list[bytes]], at: int) -> tuple[int, bytes | None]:
    """Run all ADDJOBs from a place of a pipeline on that differ only in their body, as one add of many."""
    first = requests[at]
    head, tail = first[:2], first[3:]
    bodies = []
    for request in islice(requests, at, at + RUN_MAX):
        if request[:2] != head or request[3:] != tail:
            break
        bodies.append(request[2])
    terms = broker.terms.get(tail[0] if len(tail) == 1 else tuple(tail))
    if terms is None or terms.maxlen is not None:
        return 0, b""
    ids = add(broker.node, head[1], bodies, terms)
    if isinstance(ids, Addition):
        wait_for_copies(client, ids)
        return len(bodies), None
    return len(bodies), b"+%b\r\n" % b"\r\n+".join(ids)


def addjobs(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """ADDJOBS queue ms-timeout [options] BODIES body [body ...]: all of them, or none."""
    at = next((at for at in range(3, len(args)) if args[at].upper() == b"BODIES"), 0)
    if not at or at + 1 == len(args):
        raise Refused(*SYNTAX_ERROR)
    ids = add(broker.node, args[1], args[at + 1 :], terms_of(broker, args[2:at]))
    if isinstance(ids, Addition):
        wait_for_copies(client, ids, is_whole=True)
        return None
    return b"*%d\r\n+%b\r\n" % (len(ids), b"\r\n+".join(ids))


def getjob(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """GETJOB [NOHANG] [TIMEOUT ms] [COUNT n] [WITHCOUNTERS] [WITHCTIME] [LEASE ms [BEGIN n]] FROM queue [queue ...]."""
    ran, reply = getjob_run(broker, client, [args], 0)
    if ran:
        return reply
    node = broker.node
    nohang, counters, ctime, timeout_ms, count, lease_ms, begin_max = False, 0, False, 0, 1, 0, ALL
    at = 1
    while True:
        word = args[at].upper() if at < len(args) else b""
        value = args[at + 1] if at + 1 < len(args) else None
        if word == b"FROM":
            break
        if word == b"NOHANG":
            nohang = True
        elif word == b"WITHCOUNTERS":
            counters = max(counters, COUNTERS)
        elif word == b"WITHCTIME":
            ctime = True
        elif word == b"TIMEOUT" and value is not None:
            timeout_ms = timeout_argument(value)
            at += 1
        elif word == b"COUNT" and value is not None:
            count = to_integer(value) or 0
            if count <= 0:
                raise Refused("ERR", "COUNT must be a number greater than zero")
            at += 1
        elif word == b"LEASE" and value is not None:
            lease_ms = max(1, duration_argument(value, "LEASE", LEASE_MS_MAX))
            at += 1
        elif word == b"BEGIN" and value is not None:
            begin_max = _begin_argument(value)
            counters = COUNTERS_AND_TRIES
            at += 1
        else:
            raise Refused(*SYNTAX_ERROR)
        at += 1
    names = args[at + 1 :]
    if not names or (counters == COUNTERS_AND_TRIES and not lease_ms):
        raise Refused(*SYNTAX_ERROR)
    jobs = fetch_many(node, names, count, lease_ms, begin_max)
    if jobs:
        client.hand(jobs)
        rows = [shape_job(job, counters, lease_ms, ctime) for job in jobs]
        return b"".join([b"*%d\r\n" % len(jobs), *rows])
    if nohang:
        ask_others(node, names)
        return client.null_array
    waiter = Waiter(client, counters, lease_ms, ctime, begin_max)
    wait(node, waiter, names, timeout_ms)
    client.waiter = waiter
    return None


def _begin_argument(value: bytes) -> int:
    if value.upper() == b"ALL":
        return ALL
    begin_max = to_integer(value)
    if begin_max is None or begin_max < 0:
        raise Refused("ERR", "BEGIN must be a number of jobs, or ALL")
    return begin_max


def getjob_run(broker: Broker, client: Client, requests: list[list[bytes]], at: int) -> tuple[int, bytes]:
    """Run all `GETJOB FROM queue` from a place of a pipeline on, as one fetch, as far as there are jobs."""
    first = requests[at]
    if len(first) != 3:
        return 0, b""
    queue = broker.node.queues.by_name.get(first[2])
    if queue is None or not queue.length or queue.pause & PAUSED_OUT or first[1].upper() != b"FROM":
        return 0, b""
    if broker.node.holds_until_ms:
        return 0, b""
    wanted = 0
    for request in islice(requests, at, at + RUN_MAX):
        if request != first:
            break
        wanted += 1
    jobs = fetch(broker.node, queue, wanted)
    client.hand(jobs)
    return len(jobs), b"".join([b"*1\r\n" + shape_job(job, 0, 0) for job in jobs])


def shape_job(job: Job, counters: int, lease_ms: int, ctime: bool = False) -> bytes:
    """Return a job as GETJOB replies it."""
    name, body = job.queue, job.body
    if not counters and not lease_ms and not ctime:
        return b"*3\r\n$%d\r\n%b\r\n$40\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, job.id, len(body), body)
    size = 3 + (1 if lease_ms else 0) + 2 * counters + (2 if ctime else 0)
    reply = b"*%d\r\n$%d\r\n%b\r\n$40\r\n%b\r\n$%d\r\n%b\r\n" % (size, len(name), name, job.id, len(body), body)
    if lease_ms:
        token = b"%d" % job.token
        reply += b"$%d\r\n%b\r\n" % (len(token), token)
    if counters:
        reply += b"$5\r\nnacks\r\n:%d\r\n$21\r\nadditional-deliveries\r\n:%d\r\n" % (job.nacks, job.deliveries)
    if counters == COUNTERS_AND_TRIES:
        reply += b"$5\r\ntries\r\n:%d\r\n$5\r\nbegun\r\n:%d\r\n" % (tries_before(job), not job.flags & AHEAD)
    if ctime:
        reply += b"$5\r\nctime\r\n:%d\r\n" % job.ctime
    return reply


def shape_outcome(client: Client, waiter: Waiter, outcome: Job | Refused | None) -> bytes:
    """Return the reply to a client that waited for a job."""
    if outcome is None:
        return client.null_array
    if isinstance(outcome, Refused):
        return error(str(outcome))
    return b"*1\r\n" + shape_job(outcome, waiter.counters, waiter.lease_ms, waiter.ctime)


def ackjob(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """ACKJOB id ...: how many were known here and not acked."""
    node = broker.node
    done = 0
    for job, job_id in zip(broker.node.jobs.find(args[1:]), args[1:], strict=True):
        if job is None:
            ack_unknown(node, job_id)
        # The same id may come twice: the second time its job is gone.
        elif job.state != GONE and ack(node, job):
            done += 1
    return b":%d\r\n" % done


def fastack(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """FASTACK id ...: delete jobs on all nodes, without confirmation; how many were here."""
    node = broker.node
    if node.cluster.size > 1:
        node.jobs.find(args[1:])  # refuses the command if one of them can't be an id
        for job_id in args[1:]:
            inputs.delete_elsewhere(node, job_id)
    return _delete(node, args[1:], is_ack=True)


def deljob(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """DELJOB id ...: delete jobs on this node; how many there were."""
    return _delete(broker.node, args[1:], is_ack=False)


def _delete(node: Node, ids: list[bytes], is_ack: bool) -> bytes:
    done = 0
    for job in node.jobs.find(ids):
        if job is not None and job.state != GONE:
            delete(node, job, is_ack)
            done += 1
    return b":%d\r\n" % done


def enqueue(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """ENQUEUE id ...: put active jobs into their queues; how many moved."""
    jobs = broker.node.jobs.find(args[1:])
    return b":%d\r\n" % sum(inputs.enqueue_now(broker.node, job) for job in jobs if job is not None)


def nack(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """NACK [AFTER ms] id ...: return jobs to their queues, now or after a delay; how many were returned."""
    after_ms, ids = 0, args[1:]
    if len(args) > 2 and args[1].upper() == b"AFTER":
        after_ms, ids = duration_argument(args[2], "AFTER", LEASE_MS_MAX), args[3:]
    jobs = broker.node.jobs.find(ids)
    return b":%d\r\n" % sum(inputs.nack_after(broker.node, job, after_ms) for job in jobs if job is not None)


def dequeue(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """DEQUEUE id ...: take queued jobs out of their queues; how many moved."""
    jobs = broker.node.jobs.find(args[1:])
    return b":%d\r\n" % sum(inputs.dequeue(broker.node, job) for job in jobs if job is not None)


def working(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """WORKING id: postpone the next delivery; the job's retry time in seconds."""
    (job,) = broker.node.jobs.find(args[1:])
    if job is None:
        raise Refused(*refusals.NO_JOB)
    return b":%d\r\n" % inputs.working(broker.node, job)


def loadjob(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """LOADJOB is for journals only."""
    raise Refused("ERR", "LOADJOB is a special command only processed from AOF")
