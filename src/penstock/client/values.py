"""What calls of the cluster client return, and how it is made from replies.

Ids of jobs and nodes are `str`. A queue's name may be `str` (sent as UTF-8) or `bytes`; it comes back as `str` where it
is UTF-8, else as `bytes`, so that what came back can always be sent again. Bodies are `bytes`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from penstock.errors import BadReply

QueueName = str | bytes


class LeaseOutcome(StrEnum):
    """The outcome for one job of a command about leases."""

    OK = "OK"
    STALE = "STALE"  # the lease is over, or belongs to another worker: nothing was changed
    NOJOB = "NOJOB"  # the job was acknowledged, deleted, or is unknown


@dataclass(slots=True)
class Lease:
    """The lease of a job. Only the node that gave it knows the token."""

    token: int
    node: str
    deadline: float  # by time.monotonic(); `extend` moves it. Late by the time of the reply: don't wait for it


@dataclass(slots=True)
class Job:
    """A job that was fetched, claimed or peeked at."""

    queue: QueueName
    id: str
    body: bytes
    nacks: int | None = None  # this and the next are None unless `counters` was given
    additional_deliveries: int | None = None
    lease: Lease | None = None
    node: str | None = None  # that gave it
    created_ns: int | None = None  # unix time; of claimed jobs, and with `created`
    tries: int | None = None  # earlier leases under which work began; None without `begin`
    has_begun: bool = True  # under its lease


@dataclass(slots=True)
class Claim:
    """The jobs that are leased under a key, at one node."""

    key: str | bytes
    node: str
    jobs: list[Job]


@dataclass(slots=True, frozen=True)
class Node:
    """A node of the cluster, as another one sees it. The lower its priority, the better; 100 means: go elsewhere."""

    id: str
    host: str  # empty where the node doesn't know it, of itself
    port: int
    priority: int


@dataclass(slots=True, frozen=True)
class Hello:
    """A node's reply to HELLO: its own id, and all nodes that it knows."""

    node: str
    nodes: tuple[Node, ...]


@dataclass(slots=True)
class JobDetails:
    """All that a node knows of a job. Times are in seconds unless the name says otherwise."""

    id: str
    queue: QueueName | None  # this and the body are None if the node knows only that the job was acked
    state: str  # wait-repl, active, queued, acked
    replicate: int
    ttl: int  # left
    created_ns: int
    delay: int
    retry: int
    nacks: int
    additional_deliveries: int
    nodes_delivered: list[str]
    nodes_confirmed: list[str]
    next_requeue_ms: int | None  # from now; None for never
    next_awake_ms: int | None
    body: bytes | None
    tries: int | None = None  # earlier leases under which work began; None where the node doesn't know


@dataclass(slots=True)
class QueueDetails:
    """All that a node knows of its part of a queue. Times are in seconds."""

    name: QueueName
    length: int
    age: int
    idle: int
    blocked: int  # clients that wait
    import_from: list[str]
    import_rate: int  # jobs a second
    jobs_in: int
    jobs_out: int
    pause: str  # in, out, all, none
    expired: int | None = None  # None for a node of Disque, which doesn't count them


# Field of the dataclass -> name on the wire.
_JOB_FIELDS = {
    "id": "id",
    "queue": "queue",
    "state": "state",
    "replicate": "repl",
    "ttl": "ttl",
    "created_ns": "ctime",
    "delay": "delay",
    "retry": "retry",
    "nacks": "nacks",
    "additional_deliveries": "additional-deliveries",
    "nodes_delivered": "nodes-delivered",
    "nodes_confirmed": "nodes-confirmed",
    "next_requeue_ms": "next-requeue-within",
    "next_awake_ms": "next-awake-within",
    "body": "body",
    "tries": "tries",
}
_QUEUE_FIELDS = {
    "name": "name",
    "length": "len",
    "age": "age",
    "idle": "idle",
    "blocked": "blocked",
    "import_from": "import-from",
    "import_rate": "import-rate",
    "jobs_in": "jobs-in",
    "jobs_out": "jobs-out",
    "pause": "pause",
    "expired": "expired",
}


def queue_name(name: bytes) -> QueueName:
    """Return a queue's name as callers get it."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


def text(word: bytes) -> str:
    """Return an id or another word of the protocol as text."""
    return word.decode("utf-8", "replace")


def jobs_of(rows: Sequence[Sequence[Any]] | None, node: str, leased_until: float | None = None) -> list[Job]:
    """Return the jobs of a reply to GETJOB or QPEEK; with `leased_until`, each row has the token of a lease."""
    jobs = []
    for row in rows or ():
        name, job_id, body, *rest = row
        job = Job(queue_name(name), text(job_id), body, node=node)
        if leased_until is not None:
            job.lease = Lease(int(rest.pop(0)), node, leased_until)
        if rest:  # names and values alternate
            told = dict(zip(rest[::2], rest[1::2], strict=True))
            job.nacks, job.additional_deliveries = told.get(b"nacks"), told.get(b"additional-deliveries")
            job.created_ns = told.get(b"ctime")
            job.tries, job.has_begun = told.get(b"tries"), told.get(b"begun", 1) == 1
        jobs.append(job)
    return jobs


def claimed_jobs(rows: Sequence[Sequence[Any]], node: str) -> list[Job]:
    """Return the jobs of a reply to CLAIM."""
    return [
        Job(queue_name(name), text(job_id), body, nacks, deliveries, node=node, created_ns=created_ns)
        for name, job_id, body, nacks, deliveries, created_ns in rows
    ]


def hello_of(reply: Any) -> Hello:
    """Return a reply to HELLO. Raises BadReply for the reply of another kind of server."""
    try:
        version, node, *rows = reply
        if version != 1:
            raise ValueError
        nodes = [Node(text(row[0]), text(row[1]), int(row[2]), int(row[3])) for row in rows]
    except (TypeError, ValueError, IndexError, AttributeError):
        raise BadReply(f"its HELLO is not that of a Disque or Penstock node: {str(reply)[:100]}") from None
    return Hello(text(node), tuple(nodes))


def job_details(reply: Sequence[Any]) -> JobDetails:
    """Return the job of a reply to SHOW."""
    return JobDetails(**_named(reply, _JOB_FIELDS))


def queue_details(reply: Sequence[Any]) -> QueueDetails:
    """Return the queue of a reply to QSTAT."""
    return QueueDetails(**_named(reply, _QUEUE_FIELDS))


def _named(reply: Sequence[Any], fields: dict[str, str]) -> dict[str, Any]:
    """Return alternating names and values as fields of a dataclass; unknown names are left out."""
    by_name = {text(name): value for name, value in zip(reply[::2], reply[1::2], strict=False)}
    return {field: _value(field, by_name.get(name)) for field, name in fields.items()}


def _value(field: str, value: Any) -> Any:
    if isinstance(value, list):
        return [text(item) for item in value]
    if not isinstance(value, bytes) or field == "body":
        return value
    return queue_name(value) if field in ("queue", "name") else text(value)


def info_of(reply: bytes) -> dict[str, str]:
    """Return the values of a reply to INFO, by name."""
    lines = text(reply).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
