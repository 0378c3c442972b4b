"""What is asked of a node: commands, how long their answer may take, and whether they may be asked again.

When a link breaks after a command was sent, nobody knows whether it was done. What happens then is a table,
REPEATS. Where nothing was sent for certain, or where the node answered that it didn't do it, everything is asked
again, of another node.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from penstock.client.connection import Command, Word
from penstock.client.values import Job, Lease, QueueName
from penstock.errors import CallerError

Body = str | bytes | bytearray | memoryview
JobOrId = Job | str

# A command with more would hold up all other clients of the node; and what is sent must fit into memory twice.
ADD_JOBS_MAX = 1000
ADD_BYTES_MAX = 1 << 20


class Repeat(Enum):
    """What to do when the link breaks after a command was sent."""

    ALWAYS = "ask again: done twice is as good as done once"
    FETCH = "ask again: jobs that were on their way come back after their lease or retry time (not with retry 0)"
    ALLOWED = "ask again only if the caller allows it: it may be done twice"
    NEVER = "tell the caller"


# Commands that are not listed, as one that `call` may be given: NEVER.
REPEATS = {
    "ACKCLAIM": Repeat.ALWAYS,  # the second time it gives 0
    "ACKJOB": Repeat.ALWAYS,  # the second time it gives 0; so do the others that count
    "ACKLEASE": Repeat.ALWAYS,  # the second time it gives NOJOB
    "ADDJOB": Repeat.ALLOWED,
    "ADDJOBS": Repeat.ALLOWED,
    "BEGIN": Repeat.ALWAYS,  # a lease is counted once
    "CLAIM": Repeat.ALWAYS,  # the same key gives the same jobs
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
    "NACK": Repeat.ALWAYS,  # a job that is queued already stays as it is
    "NACKCLAIM": Repeat.ALWAYS,
    "NACKLEASE": Repeat.ALWAYS,  # the second time it gives STALE
    "PAUSE": Repeat.ALWAYS,
    "PING": Repeat.ALWAYS,
    "QLEN": Repeat.ALWAYS,
    "QPEEK": Repeat.ALWAYS,
    "QSCAN": Repeat.ALWAYS,
    "QSTAT": Repeat.ALWAYS,
    "RELEASE": Repeat.ALWAYS,  # the second time it gives STALE
    "SHOW": Repeat.ALWAYS,
    "TIME": Repeat.ALWAYS,
    "WORKING": Repeat.ALWAYS,
}

# Answers by which a node says that it did nothing, and that another one may: the command goes there.
REFUSALS = frozenset({"LEAVING", "LOADING", "MISCONF"})

# Where an add has the time that it may take, in milliseconds; 0 is for ever.
ADD_TIMEOUT_AT = {"ADDJOB": 3, "ADDJOBS": 2}

# They would change what the replies of a shared connection mean, or end it.
NOT_SHARED = frozenset({"AUTH", "MONITOR", "QUIT"})


class Lane(Enum):
    """By which connection to a node a command goes: one that holds up others has its own."""

    QUICK = "answered at once"
    ADD = "answered when the job is on enough nodes"
    WAIT = "answered when there is a job"


class Request:
    """One command, or several of a kind in a row, each of which gets its own reply."""

    __slots__ = ("_commands", "lane", "name", "repeat", "wait")

    def __init__(self, *commands: Command, lane: Lane = Lane.QUICK, wait: float = 0.0) -> None:
        self._commands = commands
        self.name = _name(commands[0][0])
        self.repeat = REPEATS.get(self.name, Repeat.NEVER)
        self.lane = lane
        self.wait = wait  # seconds for which the node itself may hold each reply back; inf for ever

    @property
    def count(self) -> int:
        """How many replies there will be."""
        return len(self._commands)

    def wait_at(self, now: float) -> float:
        """How long the node may still hold the reply back."""
        return self.wait

    def commands_at(self, now: float) -> Sequence[Command]:
        """The words to send."""
        return self._commands

    def give_back(self, replies: Sequence[Any]) -> "Request | None":
        """What must be sent if replies come that nobody wants any more."""
        return None


class Fetch(Request):
    """GETJOB, which waits until a point in time, however often it has to be asked. Without one it doesn't wait."""

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
        super().__init__(("GETJOB",), lane=Lane.QUICK if until is None else Lane.WAIT)
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
        patience: list[Word] = ["TIMEOUT", left_ms] if left_ms else ["NOHANG"]
        return [("GETJOB", *patience, *self._options, "FROM", *self._queues)]

    def give_back(self, replies: Sequence[Any]) -> Request | None:
        return _nack(replies, leased=self.lease_ms is not None)


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
        super().__init__(words, lane=Lane.WAIT if waits else Lane.QUICK, wait=wait if waits else 0.0)
        self._leased = "LEASE" in options

    def give_back(self, replies: Sequence[Any]) -> Request | None:
        return _nack(replies, leased=self._leased)


def _nack(replies: Sequence[Any], *, leased: bool) -> Request | None:
    rows = replies[0] if replies else None
    if not isinstance(rows, list) or not rows:
        return None
    if leased:
        pairs = [word for row in rows for word in (row[1], row[3])]
        # Nobody has seen them, so nothing shall be counted. A node that doesn't know RELEASE refuses the first command,
        # to any other the second one is stale.
        return Request(("RELEASE", *pairs), ("NACKLEASE", 0, *pairs))
    return Request(("NACK", *(row[1] for row in rows)))


def is_at_most_once(job_id: str | bytes) -> bool:
    """Whether a job has retry 0: it isn't delivered again, whatever happens. Its id says so, by an even last field."""
    return int(job_id[-4:], 16) % 2 == 0


def raw(words: Command) -> Request:
    """A command in the caller's own words."""
    if not words:
        raise CallerError("A command has at least one word.")
    name = _name(words[0])
    if name in NOT_SHARED or (name == "CLIENT" and len(words) > 1 and _name(words[1]) == "REPLY"):
        raise CallerError(f"{name} needs a connection of its own: use penstock.client.Connection.")
    if name == "HELLO" and len(words) > 1:
        raise CallerError("The client has chosen its protocol already: HELLO takes no version here.")
    return RawFetch(words) if name == "GETJOB" else Request(words)


def raw_many(commands: Iterable[Command]) -> Request | None:
    """Several commands of one name in the caller's own words; None if there are none."""
    asked = [tuple(command) for command in commands]
    if not asked:
        return None
    name, *others = sorted({raw(command).name for command in asked})
    if others or name == "GETJOB":
        raise CallerError(f"Commands that go together are of one name, and not GETJOB: {', '.join([name, *others])}.")
    at = ADD_TIMEOUT_AT.get(name)
    if at is None:
        return Request(*asked)
    waits_ms = [int(command[at]) for command in asked]
    return Request(*asked, lane=Lane.ADD, wait=math.inf if 0 in waits_ms else max(waits_ms) / 1000)


def _name(word: Word) -> str:
    plain = bytes(word).decode("utf-8", "replace") if isinstance(word, bytes | bytearray | memoryview) else str(word)
    return plain.upper()


@dataclass(slots=True)
class AddTerms:
    """The rules of an add, as words, checked as far as a node can't."""

    timeout_ms: int
    options: list[Word]
    lane: Lane

    @property
    def wait(self) -> float:
        """How long the node may take, in seconds."""
        return self.timeout_ms / 1000 or math.inf


def add_terms(
    timeout: float | None,
    replicate: int | None,
    delay: int | None,
    retry: int | None,
    ttl: int | None,
    maxlen: int | None,
    asynchronous: bool,
) -> AddTerms:
    """Arguments of `add` and `add_many` as options of ADDJOB."""
    if timeout is not None and timeout <= 0:
        raise CallerError("The timeout of an add is a number of seconds above 0, or None to wait forever.")
    timeout_ms = 0 if timeout is None else milliseconds(timeout, "timeout")
    options: list[Word] = []
    given = {"REPLICATE": replicate, "DELAY": delay, "RETRY": retry, "TTL": ttl, "MAXLEN": maxlen}
    for name, value in given.items():
        if value is not None:
            options += [name, whole(value, name.lower())]
    if asynchronous:
        options.append("ASYNC")
    # A node answers these at once.
    quick = asynchronous or replicate == 1
    return AddTerms(timeout_ms, options, Lane.QUICK if quick else Lane.ADD)


def add_one(queue: QueueName, body: Body, terms: AddTerms) -> Request:
    """ADDJOB."""
    words = ("ADDJOB", queue, body_bytes(body), terms.timeout_ms, *terms.options)
    return Request(words, lane=terms.lane, wait=terms.wait)


def add_all(queue: QueueName, bodies: Sequence[bytes], terms: AddTerms) -> Request:
    """ADDJOBS: all of them or none."""
    words = ("ADDJOBS", queue, terms.timeout_ms, *terms.options, "BODIES", *bodies)
    return Request(words, lane=terms.lane, wait=terms.wait)


def add_each(queue: QueueName, bodies: Sequence[bytes], terms: AddTerms) -> Request:
    """ADDJOB for each of them, in one go."""
    commands = [("ADDJOB", queue, body, terms.timeout_ms, *terms.options) for body in bodies]
    return Request(*commands, lane=terms.lane, wait=terms.wait)


def batches(bodies: Iterable[Body]) -> Iterator[list[bytes]]:
    """Bodies in groups that go into one command."""
    if isinstance(bodies, str):
        raise CallerError("One text is given for many bodies: give a list of them, or use add.")
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
    """A body as it is stored; a text as UTF-8."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise CallerError(f"A body is bytes or str, not {type(body).__name__}.")


def queue_names(queues: QueueName | Iterable[QueueName]) -> list[QueueName]:
    """One name or many, as a list."""
    names = [queues] if isinstance(queues, str | bytes) else list(queues)
    if not names:
        raise CallerError("At least one queue must be named.")
    return names


def lease_of(job: object) -> Lease:
    """The lease of a job. An id has none."""
    lease: Lease | None = getattr(job, "lease", None)
    if lease is None:
        problem = f"The job {job.id} was fetched without a lease" if isinstance(job, Job) else f"{job!r} is no Job"
        raise CallerError(f"{problem}: give a Job that was fetched with a lease.")
    return lease


def id_of(job: JobOrId) -> str:
    """The id of a job that may be given by it."""
    return job.id if isinstance(job, Job) else job


def milliseconds(seconds: float, name: str) -> int:
    """A duration for the wire, rounded up: nothing ends early."""
    try:
        if seconds >= 0:
            return math.ceil(seconds * 1000)
    except (TypeError, OverflowError):
        pass
    raise CallerError(f"{name} is a number of seconds, 0 or more: {seconds!r} can't be one.")


def whole(value: float, name: str) -> int:
    """A number that the wire has only as a whole one."""
    if value != int(value):
        raise CallerError(f"{name} is a whole number, in seconds where it is a time: {value!r} is none.")
    return int(value)
