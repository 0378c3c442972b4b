"""What is sent to a node: commands, how long their replies may take, and whether they may be sent again.

If a connection breaks after a command was sent, it is unknown whether the command was executed. What happens then is a
table, REPEATS. If nothing was sent, or the node answered that it did nothing, every command is sent again, to another
node.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from penstock.client.connection import Command, Word
from penstock.client.values import Job, Lease, QueueName
from penstock.errors import CallerError

Body = str | bytes | bytearray | memoryview
JobOrId = Job | str

# A larger command would delay all other clients of the node; and what is sent must fit into memory twice.
ADD_JOBS_MAX = 1000
ADD_BYTES_MAX = 1 << 20


class Repeat(Enum):
    """What to do when the connection breaks after a command was sent."""

    ALWAYS = "send again: executed twice is as good as executed once"
    FETCH = "send again: jobs that were on their way come back after their lease or retry time (not with retry 0)"
    ALLOWED = "send again only if the caller allows it: it may be executed twice"
    NEVER = "raise OutcomeUnknown"


# Commands that are not listed, which `call` may be given: NEVER.
REPEATS = {
    "ACKCLAIM": Repeat.ALWAYS,  # the second time it returns 0
    "ACKJOB": Repeat.ALWAYS,  # the second time it returns 0; so do the others that count
    "ACKLEASE": Repeat.ALWAYS,  # the second time it returns NOJOB
    "ADDJOB": Repeat.ALLOWED,
    "ADDJOBS": Repeat.ALLOWED,
    "BEGIN": Repeat.ALWAYS,  # a lease is counted once
    "CLAIM": Repeat.ALWAYS,  # the same key returns the same jobs
    "COMMAND": Repeat.ALWAYS,
    "DELJOB": Repeat.ALWAYS,
    "DEQUEUE": Repeat.ALWAYS,
    "ENQUEUE": Repeat.ALWAYS,
    "EXTEND": Repeat.ALWAYS,
    "EXTENDCLAIM": Repeat.ALWAYS,
    "FASTACK": Repeat.ALWAYS,
    "GETJOB": Repeat.FETCH,
    "HELLO": Repeat.ALWAYS,
    "INFO": Repeat.ALWAYS,
    "JSCAN": Repeat.ALWAYS,
    "LEASE": Repeat.FETCH,  # the second time the token is another, and only the node knows it
    "MOVEJOBS": Repeat.NEVER,  # the second time it returns NOJOB, as for a job that somebody else has moved
    "NACK": Repeat.ALWAYS,  # a job that is queued already stays as it is
    "NACKCLAIM": Repeat.ALWAYS,
    "NACKLEASE": Repeat.ALWAYS,  # the second time it returns STALE
    "PAUSE": Repeat.ALWAYS,
    "PING": Repeat.ALWAYS,
    "QLEN": Repeat.ALWAYS,
    "QPEEK": Repeat.ALWAYS,
    "QSCAN": Repeat.ALWAYS,
    "QSIZE": Repeat.ALWAYS,
    "QSTAT": Repeat.ALWAYS,
    "RELEASE": Repeat.ALWAYS,  # the second time it returns STALE
    "SHOW": Repeat.ALWAYS,
    "TIME": Repeat.ALWAYS,
    "WORKING": Repeat.ALWAYS,
}

# Error replies by which a node says that it did nothing, and that another one may: the command goes there.
REFUSALS = frozenset({"LEAVING", "LOADING", "MISCONF"})

# Commands for many jobs. Their callers have collected these, so they aren't held back to the end of the turn.
BATCHES = frozenset({"ACKLEASE", "ADDJOBS", "EXTEND", "MOVEJOBS", "NACKLEASE", "RELEASE"})

# The position of an add's timeout among its words, in milliseconds; 0: no timeout.
ADD_TIMEOUT_AT = {"ADDJOB": 3, "ADDJOBS": 2, "MOVEJOBS": 2}

# These would change the meaning of replies on a shared connection, or close it.
NOT_SHARED = frozenset({"AUTH", "MONITOR", "QUIT"})


class ConnectionUse(Enum):
    """Which connection to a node a command goes by: one whose reply is delayed has its own."""

    QUICK = "answered at once"
    ADD = "answered when the job is on enough nodes"
    WAIT = "answered when there is a job"


class Request:
    """One command, or several of one name, each of which gets its own reply."""

    __slots__ = ("_commands", "count", "is_batch", "name", "repeat", "use", "wait")

    def __init__(self, *commands: Command, use: ConnectionUse = ConnectionUse.QUICK, wait: float = 0.0) -> None:
        self._commands = commands
        self.count = len(commands)  # of replies
        word = commands[0][0]
        self.name = word if isinstance(word, str) and word in REPEATS else _name(word)
        self.repeat = REPEATS.get(self.name, Repeat.NEVER)
        self.is_batch = self.name in BATCHES
        self.use = use
        self.wait = wait  # seconds for which the node itself may delay each reply; inf: no limit

    def wait_at(self, now: float) -> float:
        """Return for how many seconds the node may still delay the reply."""
        return self.wait

    def commands_at(self, now: float) -> Sequence[Command]:
        """Return the commands to send."""
        return self._commands

    def undo(self, replies: Sequence[Any]) -> "Request | None":
        """Return the request that sends fetched jobs back to their queue, if there are any in the replies."""
        return None


class Fetch(Request):
    """GETJOB, which waits until a point in time, however often it has to be sent. Without one it doesn't wait."""

    __slots__ = ("_options", "_queues", "_until", "lease_ms")

    def __init__(
        self,
        queues: Sequence[QueueName],
        until: float | None,
        count: int,
        counters: bool,
        lease_ms: int | None,
        created: bool = False,
        begin: int | None = None,
    ) -> None:
        super().__init__(("GETJOB",), use=ConnectionUse.QUICK if until is None else ConnectionUse.WAIT)
        self._queues, self._until, self.lease_ms = queues, until, lease_ms
        self._options: list[Word] = ["COUNT", count]
        if counters:
            self._options.append("WITHCOUNTERS")
        if created:
            self._options.append("WITHCTIME")
        if lease_ms is not None:
            self._options += ["LEASE", lease_ms]
        if begin is not None:
            self._options += ["BEGIN", begin if begin >= 0 else "ALL"]

    def wait_at(self, now: float) -> float:
        return 0.0 if self._until is None else max(0.0, self._until - now)

    def commands_at(self, now: float) -> Sequence[Command]:
        left_ms = math.ceil(self.wait_at(now) * 1000)
        timeout: tuple[Word, ...] = ("TIMEOUT", left_ms) if left_ms else ("NOHANG",)
        return [("GETJOB", *timeout, *self._options, "FROM", *self._queues)]

    def undo(self, replies: Sequence[Any]) -> Request | None:
        return _returning(replies, leased=self.lease_ms is not None)


class RawFetch(Request):
    """A GETJOB in the caller's own words."""

    __slots__ = ("_leased",)

    def __init__(self, words: Command) -> None:
        options = [_name(word) for word in words]
        if "FROM" in options:
            options = options[: options.index("FROM")]
        wait = math.inf
        if "TIMEOUT" in options[:-1] and options[options.index("TIMEOUT") + 1].isdigit():
            wait = int(options[options.index("TIMEOUT") + 1]) / 1000 or math.inf
        waits = "NOHANG" not in options
        super().__init__(words, use=ConnectionUse.WAIT if waits else ConnectionUse.QUICK, wait=wait if waits else 0.0)
        self._leased = "LEASE" in options

    def undo(self, replies: Sequence[Any]) -> Request | None:
        return _returning(replies, leased=self._leased)


def _returning(replies: Sequence[Any], *, leased: bool) -> Request | None:
    rows = replies[0] if replies else None
    if not isinstance(rows, list) or not rows:
        return None
    if leased:
        pairs = [word for row in rows for word in (row[1], row[3])]
        # Nobody has seen them, so no delivery is counted. A node that doesn't know RELEASE refuses the first command;
        # for any other node the second one is stale.
        return Request(("RELEASE", *pairs), ("NACKLEASE", 0, *pairs))
    return Request(("NACK", *(row[1] for row in rows)))


def is_at_most_once(job_id: str | bytes) -> bool:
    """Whether a job has retry 0, so that it isn't delivered again: the last field of its id is even."""
    return int(job_id[-4:], 16) % 2 == 0


def raw(words: Command) -> Request:
    """Return a command in the caller's own words."""
    if not words:
        raise CallerError("a command must have at least one word, got none")
    first = words[0]
    name = first if isinstance(first, str) and first in REPEATS else _name(first)
    if name in NOT_SHARED or (name == "CLIENT" and len(words) > 1 and _name(words[1]) == "REPLY"):
        raise CallerError(f"{name} needs a connection of its own: use penstock.client.Connection.")
    if name == "HELLO" and len(words) > 1:
        raise CallerError("HELLO must be sent without a version here: the client has chosen its protocol already.")
    return RawFetch(words) if name == "GETJOB" else Request(words)


def raw_many(commands: Iterable[Command]) -> Request | None:
    """Return several commands of one name in the caller's own words; None for an empty list."""
    asked = [tuple(command) for command in commands]
    if not asked:
        return None
    name, *others = sorted({raw(command).name for command in asked})
    if others or name == "GETJOB":
        raise CallerError(
            f"the commands of one call must have the same name, and not GETJOB, got {', '.join([name, *others])}"
        )
    at = ADD_TIMEOUT_AT.get(name)
    if at is None:
        return Request(*asked)
    waits_ms = [int(command[at]) for command in asked]
    return Request(*asked, use=ConnectionUse.ADD, wait=math.inf if 0 in waits_ms else max(waits_ms) / 1000)


def _name(word: Word) -> str:
    plain = bytes(word).decode("utf-8", "replace") if isinstance(word, bytes | bytearray | memoryview) else str(word)
    return plain.upper()


@dataclass(slots=True, frozen=True)
class AddTerms:
    """The options of an add, as words, checked as far as a node doesn't."""

    timeout_ms: int
    options: tuple[Word, ...]
    use: ConnectionUse
    wait: float  # for how many seconds the node may delay the reply


@lru_cache(64)  # a program adds most of its jobs with the same options
def add_terms(
    timeout: float | None,
    replicate: int | None,
    delay: int | None,
    retry: int | None,
    ttl: int | None,
    maxlen: int | None,
    asynchronous: bool,
) -> AddTerms:
    """Return arguments of `add` and `add_many` as options of ADDJOB."""
    if timeout is not None and timeout <= 0:
        raise CallerError(f"timeout must be a number of seconds above 0, or None to wait forever, got {timeout!r}")
    timeout_ms = 0 if timeout is None else milliseconds(timeout, "timeout")
    options: list[Word] = []
    given = {"REPLICATE": replicate, "DELAY": delay, "RETRY": retry, "TTL": ttl, "MAXLEN": maxlen}
    for name, value in given.items():
        if value is not None:
            options += [name, whole(value, name.lower())]
    if asynchronous:
        options.append("ASYNC")
    # A node answers these at once.
    is_quick = asynchronous or replicate == 1
    use = ConnectionUse.QUICK if is_quick else ConnectionUse.ADD
    return AddTerms(timeout_ms, tuple(options), use, timeout_ms / 1000 or math.inf)


def add_one(queue: QueueName, body: Body, terms: AddTerms) -> Request:
    """ADDJOB."""
    words = ("ADDJOB", queue, body_bytes(body), terms.timeout_ms, *terms.options)
    return Request(words, use=terms.use, wait=terms.wait)


def add_all(queue: QueueName, bodies: Sequence[bytes], terms: AddTerms) -> Request:
    """ADDJOBS: all of them or none."""
    words = ("ADDJOBS", queue, terms.timeout_ms, *terms.options, "BODIES", *bodies)
    return Request(words, use=terms.use, wait=terms.wait)


def add_each(queue: QueueName, bodies: Sequence[bytes], terms: AddTerms) -> Request:
    """ADDJOB for each of them, in one pipeline."""
    commands = [("ADDJOB", queue, body, terms.timeout_ms, *terms.options) for body in bodies]
    return Request(*commands, use=terms.use, wait=terms.wait)


def batches(bodies: Iterable[Body]) -> Iterator[list[bytes]]:
    """Yield bodies in groups that go into one command."""
    if isinstance(bodies, str):
        raise CallerError("bodies must be a list, got one text; use add for one body")
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        data = body_bytes(body)
        if batch and (len(batch) == ADD_JOBS_MAX or size + len(data) > ADD_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(data)
        size += len(data)
    if batch:
        yield batch


def body_bytes(body: Body) -> bytes:
    """Return a body as it is stored; a text as UTF-8."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise CallerError(f"a body must be bytes or str, got {type(body).__name__}")


def queue_names(queues: QueueName | Iterable[QueueName]) -> list[QueueName]:
    """Return one name or many as a list."""
    names = [queues] if isinstance(queues, str | bytes) else list(queues)
    if not names:
        raise CallerError("queues must have at least one name, got none")
    return names


def lease_of(job: object) -> Lease:
    """Return the lease of a job. An id has none."""
    lease: Lease | None = getattr(job, "lease", None)
    if lease is None:
        what = f"the job {job.id}, fetched without one" if isinstance(job, Job) else repr(job)
        raise CallerError(f"a Job that was fetched with a lease is needed, got {what}")
    return lease


def id_of(job: JobOrId) -> str:
    """Return the id of a job, which may be given by it."""
    return job.id if isinstance(job, Job) else job


def milliseconds(seconds: float, name: str) -> int:
    """Return a duration for the wire, rounded up: nothing ends early."""
    try:
        if seconds >= 0:
            return math.ceil(seconds * 1000)
    except (TypeError, OverflowError):
        pass
    raise CallerError(f"{name} must be a finite number of seconds, 0 or more, got {seconds!r}")


def whole(value: float, name: str) -> int:
    """Return a number that the wire has only as a whole one."""
    if value != int(value):
        raise CallerError(f"{name} must be a whole number, in seconds where it is a time, got {value!r}")
    return int(value)
