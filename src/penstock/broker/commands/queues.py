"""Commands that look at queues and jobs, and pause queues: QLEN, QPEEK, QSTAT, PAUSE, QSCAN, JSCAN, SHOW."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.clients import Client
from penstock.broker.commands.arguments import SYNTAX_ERROR, cursor_argument, integer_argument
from penstock.broker.core import inputs
from penstock.broker.core.acks import is_dummy
from penstock.broker.core.jobs import ACTIVE, STATE_NAMES, Confirming, Job, is_out, tries_before
from penstock.broker.core.node import Node
from penstock.broker.core.queues import PAUSE_NAMES, PAUSED_IN, PAUSED_OUT, Queue
from penstock.broker.core.refusals import Refused
from penstock.wire.record import NODE_ID_BYTES
from penstock.wire.replies import EMPTY_ARRAY, Value, array, bulk, encode_value, simple

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

SCAN_COUNT_DEFAULT = 100
ROW_BYTES = 512  # at most, of a job in a reply without its queue and body
PAUSE_WORDS = {b"IN": PAUSED_IN, b"OUT": PAUSED_OUT, b"ALL": PAUSED_IN | PAUSED_OUT}
SHOW_FIELDS = (
    b"id",
    b"queue",
    b"state",
    b"repl",
    b"ttl",
    b"ctime",
    b"delay",
    b"retry",
    b"nacks",
    b"additional-deliveries",
    b"nodes-delivered",
    b"nodes-confirmed",
    b"next-requeue-within",
    b"next-awake-within",
    b"body",
    b"tries",
)


def qlen(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """QLEN queue."""
    queue = broker.node.queues.by_name.get(args[1])
    return b":%d\r\n" % (queue.length if queue is not None else 0)


def qpeek(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """QPEEK queue count: the oldest jobs, or with a negative count the newest ones."""
    count = integer_argument(args[2])
    queue = broker.node.queues.by_name.get(args[1])
    if queue is None or not queue.length or not count:
        return EMPTY_ARRAY
    jobs = list(queue.oldest(min(count, queue.length)) if count > 0 else queue.newest(min(-count, queue.length)))
    broker.node.memory.check_reply(sum(map(_row_bytes, jobs)))
    return array(array([bulk(job.queue), bulk(job.id), bulk(job.body)]) for job in jobs)


def qstat(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """QSTAT queue: what is known about it."""
    queue = broker.node.queues.by_name.get(args[1])
    if queue is None:
        return client.null_array
    now_ms, exchange = broker.node.now_ms, queue.exchange
    values: list[tuple[bytes, Value]] = [
        (b"name", queue.name),
        (b"len", queue.length),
        (b"age", (now_ms - queue.created_ms) // 1000),
        (b"idle", (now_ms - queue.accessed_ms) // 1000),
        (b"blocked", len(queue.waiters)),
        (b"import-from", list(exchange.fresh_sources(now_ms)) if exchange is not None else []),
        (b"import-rate", exchange.rate(now_ms) if exchange is not None else 0),
        (b"jobs-in", queue.jobs_in),
        (b"jobs-out", queue.jobs_out),
        (b"pause", PAUSE_NAMES[queue.pause]),
        (b"expired", queue.expired),
    ]
    return encode_value([item for pair in values for item in pair], client.protocol)


def pause(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """PAUSE queue option ...: the words given replace the state; `state` alone only shows it."""
    node = broker.node
    flags, given = 0, False
    for word in map(bytes.upper, args[2:]):
        if word in PAUSE_WORDS:
            flags |= PAUSE_WORDS[word]
            given = True
        elif word == b"NONE":
            flags = 0
            given = True
        elif word not in (b"STATE", b"BCAST"):
            raise Refused(*SYNTAX_ERROR)
    if given and broker.persistence.failure:
        raise Refused(*broker.persistence.refusal())
    queue = node.queues.by_name.get(args[1])
    if given:
        if queue is None and flags:
            (queue,) = inputs.need_queues(node, args[1:2])
        if queue is not None and queue.pause != flags:
            inputs.set_pause(node, queue, flags)
    state = queue.pause if queue is not None else 0
    if b"BCAST" in map(bytes.upper, args[2:]):
        inputs.send_pause(node, args[1], state)
    return simple(PAUSE_NAMES[state])


def show(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """SHOW id: all that is known about a job."""
    (job,) = broker.node.jobs.find(args[1:])
    return client.null if job is None else _show(broker.node, job, client.protocol)


def _facts(node: Node, job: Job) -> list[Value]:
    """Return a job's fields in the order of SHOW_FIELDS."""
    known = not is_dummy(job)
    return [
        job.id,
        job.queue if known else None,
        STATE_NAMES[job.state],
        job.rules.replicate,
        max(0, (job.expires_at - node.now_ms + 999) // 1000),
        job.ctime,
        job.rules.delay_s,
        job.rules.retry_s,
        job.nacks,
        job.deliveries,
        sorted(job.holders.delivered),
        sorted(job.holders.confirmed) if isinstance(job.holders, Confirming) else [],
        max(0, job.requeue_at - node.now_ms) if job.requeue_at else None,
        max(0, job.wake_at - node.now_ms) if job.wake_at else None,
        job.body if known else None,
        tries_before(job),
    ]


def _show(node: Node, job: Job, protocol: int) -> bytes:
    pairs = zip(SHOW_FIELDS, _facts(node, job), strict=True)
    return encode_value([item for name, value in pairs for item in (name, value)], protocol)


def _compact(node: Node, job: Job, protocol: int) -> bytes:
    """Return a job as a row: id, queue, state, body, ctime, ttl, delay, retry, replicate, nacks, deliveries, requeue.

    Of an active job the state says what for, where that is known.
    """
    state = STATE_NAMES[job.state]
    if job.state == ACTIVE:
        state = next((shade for shade, test in SHADES.items() if test(node, job)), state)
    requeue = b":%d\r\n" % max(0, job.requeue_at - node.now_ms) if job.requeue_at else encode_value(None, protocol)
    return b"*12\r\n$40\r\n%b\r\n%b%b%b:%d\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n%b" % (
        job.id,
        bulk(job.queue),
        bulk(state),
        bulk(job.body),
        job.ctime,
        max(0, (job.expires_at - node.now_ms + 999) // 1000),
        job.rules.delay_s,
        job.rules.retry_s,
        job.rules.replicate,
        job.nacks,
        job.deliveries,
        requeue,
    )


def _simple_id(node: Node, job: Job, protocol: int) -> bytes:
    return b"+%b\r\n" % job.id


def _row_bytes(job: Job) -> int:
    """About what a job's row takes in a reply."""
    return ROW_BYTES + len(job.queue) + len(job.body)


def _id_bytes(job: Job) -> int:
    """The same where the reply has its id only, whatever the size of its body."""
    return ROW_BYTES


JSCAN_REPLIES: dict[bytes, Callable[[Node, Job, int], bytes]] = {
    b"ID": _simple_id,
    b"ALL": _show,
    b"COMPACT": _compact,
}


def _is_reserved(node: Node, job: Job) -> bool:
    """Whether a client of this node has a job."""
    return is_out(job)


# What an active job is active for; these are ours.
SHADES: dict[bytes, Callable[[Node, Job], bool]] = {b"reserved": _is_reserved, b"scheduled": inputs.is_scheduled}
QSCAN_OPTIONS = (b"COUNT", b"MINLEN", b"MAXLEN", b"IMPORTRATE")
JSCAN_OPTIONS = (b"COUNT", b"QUEUE", b"STATE", b"REPLY", b"AWAY")


def _scan_arguments(words: list[bytes], options: tuple[bytes, ...]) -> tuple[int, bool, list[tuple[bytes, bytes]]]:
    """Sort a scan's arguments into cursor, BUSYLOOP and (option, value)."""
    cursor: int | None = None
    busy = False
    given: list[tuple[bytes, bytes]] = []
    at = 0
    while at < len(words):
        word = words[at].upper()
        if word in options and at + 1 < len(words):
            given.append((word, words[at + 1]))
            at += 1
        elif word == b"BUSYLOOP":
            busy = True
        elif cursor is None:
            cursor = cursor_argument(words[at])
        else:
            raise Refused(*SYNTAX_ERROR)
        at += 1
    return cursor or 0, busy, given


def _scan_reply(cursor: int, items: list[bytes]) -> bytes:
    return array([bulk(b"%d" % cursor), array(items)])


def qsize(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """QSIZE queue [node-id ...]: how many jobs wait here, and how many this node stands in for."""
    node = broker.node
    queue = node.queues.by_name.get(args[1])
    due, delayed = inputs.away(node, args[1], {_node_id(word) for word in args[2:]})
    return encode_value([queue.length if queue is not None else 0, due, delayed])


def _node_id(word: bytes) -> bytes:
    if len(word) != NODE_ID_BYTES:
        raise Refused("ERR", f"the id of a node must be {NODE_ID_BYTES} characters")
    return word


def qscan(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """QSCAN [cursor] [COUNT n] [BUSYLOOP] [MINLEN n] [MAXLEN n] [IMPORTRATE n]."""
    cursor, busy, given = _scan_arguments(args[1:], QSCAN_OPTIONS)
    numbers = {word: integer_argument(value) for word, value in given}
    count = numbers.get(b"COUNT", SCAN_COUNT_DEFAULT)
    least, most = numbers.get(b"MINLEN"), numbers.get(b"MAXLEN")
    rate = numbers.get(b"IMPORTRATE", 0)

    def wanted(queue: Queue) -> bool:
        if rate > 0 and (queue.exchange is None or queue.exchange.rate(broker.node.now_ms) < rate):
            return False
        return (least is None or queue.length >= least) and (most is None or queue.length <= most)

    cursor, found = broker.node.queues.scan(cursor, None if busy or count < 0 else count, wanted)
    if len(found) > 1:
        broker.node.memory.check_reply(sum([len(queue.name) for queue in found]))
    return _scan_reply(cursor, [bulk(queue.name) for queue in found])


def jscan(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """JSCAN [cursor] [COUNT n] [BUSYLOOP] [QUEUE q] [STATE s] ... [AWAY node-id] ... [REPLY all|id|compact].

    Several states are those of either. `scheduled` and `reserved` are parts of `active`. With AWAY also copies of jobs
    that these nodes have, of which this node is the first of the other holders.
    """
    cursor, busy, given = _scan_arguments(args[1:], JSCAN_OPTIONS)
    count = SCAN_COUNT_DEFAULT
    shape = JSCAN_REPLIES[b"ID"]
    name: bytes | None = None
    states: set[int] = set()
    shades: list[Callable[[Node, Job], bool]] = []
    missing: set[bytes] = set()
    for word, value in given:
        if word == b"COUNT":
            count = integer_argument(value)
        elif word == b"QUEUE":
            name = value
        elif word == b"STATE":
            if value.lower() in SHADES:
                shades.append(SHADES[value.lower()])
            elif value.lower() in STATE_NAMES:
                states.add(STATE_NAMES.index(value.lower()))
            else:
                raise Refused("ERR", "Invalid job state name")
        elif word == b"AWAY":
            missing.add(_node_id(value))
        elif value.upper() in JSCAN_REPLIES:
            shape = JSCAN_REPLIES[value.upper()]
        else:
            raise Refused("ERR", "Invalid REPLY type, try ID or ALL")

    node = broker.node

    def wanted(job: Job) -> bool:
        if (name is not None and job.queue != name) or is_dummy(job):
            return False
        if missing and inputs.is_away(node, job, missing):
            return True
        is_any = not states and not shades and not missing
        return is_any or job.state in states or any(shade(node, job) for shade in shades)

    size_of = _id_bytes if shape is _simple_id else _row_bytes
    cursor, found = node.jobs.scan(cursor, None if busy or count < 0 else count, wanted, size_of)
    if shape is not _simple_id:
        node.memory.check_reply(sum(map(_row_bytes, found)))
    return _scan_reply(cursor, [shape(node, job, client.protocol) for job in found])
