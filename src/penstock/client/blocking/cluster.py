# Written by scripts/blocking from ../aio/cluster.py: change that, then run `make blocking`.
"""The cluster client: every command of a node as a method, with types.

    with ClusterClient("10.0.0.1:7711,10.0.0.2:7711") as client:
        client.add("mail", b"hello")
        for job in client.get("mail", timeout=5, lease=30):
            client.ack_lease(job)

All times are in seconds. Times that a node takes in milliseconds may be fractions; delay, retry and ttl are whole
numbers.
"""

import random
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from penstock.client import requests
from penstock.client.addresses import parse_seeds
from penstock.client.blocking.router import NodeRoute, NodeRouter
from penstock.client.connection import Command, Word, refined, tls_context
from penstock.client.requests import AddTerms, Body, Fetch, JobOrId, Request, milliseconds
from penstock.client.settings import ClientSettings, ConnectionSettings
from penstock.client.values import (
    Claim,
    Hello,
    Job,
    JobDetails,
    LeaseOutcome,
    Node,
    QueueDetails,
    QueueName,
    claimed_jobs,
    hello_of,
    info_of,
    job_details,
    jobs_of,
    queue_details,
    queue_name,
    text,
)
from penstock.errors import PartlyAdded, PenstockError, ReplyError

# How long an add may take to be on enough nodes, unless the caller says otherwise: a few times what a healthy cluster
# needs when it must find another node for a copy.
ADD_SECONDS = 5.0
LEASE_SECONDS = 120.0  # of a claim, as in the node
# Nodes that hold claims are remembered by key; for a forgotten key the node that the client is on is asked.
CLAIMS_MAX = 10_000


class ClusterClient:
    """Jobs of a cluster of nodes, through the best of them.

    `seeds` are the first nodes to ask: "host:port,host:port", a list, or a URL `disque://:password@host,host`
    (`disques://` for TLS). The settings are explained in docs/reference/client.md.
    """

    def __init__(
        self,
        seeds: str | Iterable[str | tuple[str, int]] = "127.0.0.1:7711",
        *,
        password: str | bytes | None = None,
        tls: bool | ssl.SSLContext = False,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        name: str | None = None,
        timeout: float = 30.0,
        answer_timeout: float = 10.0,
        connect_timeout: float = 5.0,
        hello_every: float = 30.0,
        sticky: bool = True,
        retry_adds: bool = False,
        follow_jobs: int | None = 1000,
        follow_seconds: float = 10.0,
        waits_max: int = 16,
        translate: Callable[[str, int], tuple[str, int]] | None = None,
        randomness: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parsed = parse_seeds(seeds)
        context = tls if isinstance(tls, ssl.SSLContext) else None
        if context is None and (tls or parsed.tls):
            context = tls_context(ca, cert, key)
        connections = ConnectionSettings(
            password=parsed.password if password is None else password,
            tls=context,
            name=name,
            connect_timeout=connect_timeout,
            waits_max=waits_max,
            clock=clock,
        )
        settings = ClientSettings(
            connections=connections,
            timeout=timeout,
            answer_timeout=answer_timeout,
            hello_every=hello_every,
            sticky=sticky,
            retry_adds=retry_adds,
            follow_jobs=follow_jobs,
            follow_seconds=follow_seconds,
            translate=translate,
            randomness=randomness or random.Random(),
        )
        self._router = NodeRouter(parsed, settings)
        self._claims: dict[bytes, str] = {}  # the node of each key
        self._only: str | None = None  # the one node that is asked, if it is only one
        self._retries = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Calls that are under way fail, and so do later ones."""
        self._router.close()

    @property
    def node(self) -> str | None:
        """The id of the node that the client is on, if it is on one."""
        current = self._router.current
        return current.id if current is not None else None

    @property
    def nodes(self) -> list[Node]:
        """The nodes of the cluster, by the last HELLO."""
        return self._router.members.nodes

    # The same client with other rules

    def at(self, node: str | None) -> Self:
        """Return a client with the same connections that asks only this node; with None, any node."""
        return self._view(node, self._retries)

    def without_retry(self) -> Self:
        """Return a client with the same connections that tries each node once.

        If no node can be reached now it raises at once, and not when `timeout` is over.
        """
        return self._view(self._only, False)

    def _view(self, node: str | None, retries: bool) -> Self:
        view = object.__new__(type(self))
        view._router, view._claims, view._only, view._retries = self._router, self._claims, node, retries
        return view

    if not TYPE_CHECKING:  # or every name would be an attribute for a type checker

        def __getattr__(self, name: str) -> Any:
            if name == "asking":
                raise AttributeError("asking(node=...) is now at(node), and asking(patient=False) is without_retry()")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # Any command

    def call(self, *words: Word) -> Any:
        """Send any command, and return its reply: int, bytes, None or list. An error reply is raised."""
        return (self._execute(requests.raw(words)))[1]

    def call_many(self, commands: Iterable[Command]) -> list[Any]:
        """Send several commands of one name in one pipeline, and return their replies, error replies as values."""
        request = requests.raw_many(commands)
        return [] if request is None else (self._router.run(request, self._only, retries=self._retries))[1]

    def _execute(self, request: Request, node: str | None = None, *, is_required: bool = True) -> tuple[NodeRoute, Any]:
        """Have one command executed, and return the route to the node that did, and its reply.

        The client's own node goes before the given one. An error reply is raised.
        """
        if self._only is not None:
            node, is_required = self._only, True
        route, (reply,) = self._router.run(request, node, is_required=is_required, retries=self._retries)
        if isinstance(reply, ReplyError):
            raise refined(reply)
        return route, reply

    def _home(self, job: JobOrId) -> str | None:
        """Return the node that gave a job, if there is still a connection to it; any other will do as well."""
        return self._router.connected(job.node) if isinstance(job, Job) else None

    # Adding

    def add(
        self,
        queue: QueueName,
        body: Body,
        *,
        timeout: float | None = ADD_SECONDS,
        replicate: int | None = None,
        delay: int | None = None,
        retry: int | None = None,
        ttl: int | None = None,
        maxlen: int | None = None,
        asynchronous: bool = False,
    ) -> str:
        """Add a job, and return its id once it is on enough nodes (`timeout`: how long that may take).

        Raises OutcomeUnknown if the connection broke after the job was sent, unless the client has `retry_adds`.
        """
        terms = requests.add_terms(timeout, replicate, delay, retry, ttl, maxlen, asynchronous)
        return text((self._execute(requests.add_one(queue, body, terms)))[1])

    def add_many(
        self,
        queue: QueueName,
        bodies: Iterable[Body],
        *,
        timeout: float | None = ADD_SECONDS,
        replicate: int | None = None,
        delay: int | None = None,
        retry: int | None = None,
        ttl: int | None = None,
        maxlen: int | None = None,
        asynchronous: bool = False,
    ) -> list[str]:
        """Add many jobs, and return their ids in order.

        Up to 1,000 bodies or 1 MB are added together or not at all; more of them, and any number on a node of Disque,
        may be added in part: that raises PartlyAdded.
        """
        terms = requests.add_terms(timeout, replicate, delay, retry, ttl, maxlen, asynchronous)
        batches = list(requests.batches(bodies))
        ids: list[str | None] = []
        for batch in batches:
            try:
                found, problem = self._add_batch(queue, batch, terms)
            except PenstockError as error:
                found, problem = [None] * len(batch), error
            ids += found
            if problem is not None:
                missing = [None] * (sum(map(len, batches)) - len(ids))
                _raise(problem, [*ids, *missing])
        return [job_id for job_id in ids if job_id is not None]

    def _add_batch(
        self, queue: QueueName, bodies: list[bytes], terms: AddTerms
    ) -> tuple[list[str | None], PenstockError | None]:
        """Add jobs with one command, or with one for each where the node doesn't know ADDJOBS."""
        run, current = self._router.run, self._router.current
        if current is None or self._only is not None or not current.lacks_addjobs:
            route, (reply,) = run(requests.add_all(queue, bodies, terms), self._only, retries=self._retries)
            if not isinstance(reply, ReplyError):
                return [text(job_id) for job_id in reply], None
            if not reply.message.startswith("unknown command"):
                raise refined(reply)
            route.lacks_addjobs = True
        _, replies = run(requests.add_each(queue, bodies, terms), self._only, retries=self._retries)
        problems = [reply for reply in replies if isinstance(reply, ReplyError)]
        ids = [None if isinstance(reply, ReplyError) else text(reply) for reply in replies]
        return ids, refined(problems[0]) if problems else None

    # Fetching

    def get(
        self,
        queues: QueueName | Iterable[QueueName],
        *,
        timeout: float | None = None,
        count: int = 1,
        nohang: bool = False,
        counters: bool = False,
        lease: float | None = None,
        created: bool = False,
        begin: int | None = None,
    ) -> list[Job]:
        """Take up to `count` jobs. If the queues are empty, wait for one: `timeout` seconds, or forever.

        With `lease` they are leased for that many seconds, under a token. With `begin`, work on that many of them
        begins at once, or on all if it is below 0, and each has its `tries`; only our nodes know it. Returns an empty
        list if no job came in time. If the connection breaks, the fetch is repeated; a job that was on its way then
        comes back by itself after its lease or retry time. `counters` and `created` ask for more fields of each job.
        """
        names = requests.queue_names(queues)
        lease_ms = None if lease is None else milliseconds(lease, "lease")
        if timeout is not None:
            milliseconds(timeout, "timeout")
        settings = self._router.settings
        clock = settings.clock
        end = float("inf") if timeout is None else clock() + timeout
        while True:
            now = clock()
            until = None if nohang or end <= now else min(end, now + settings.wait_round)
            fetch = Fetch(names, until, count, counters, lease_ms, created, begin)
            route, reply = self._execute(fetch)
            if reply or until is None or until == end:
                break
        jobs = jobs_of(reply, route.id, None if lease is None else clock() + lease)
        self._router.fetched(route, jobs, lease)
        return jobs

    # Finishing

    def ack(self, *jobs: JobOrId) -> int:
        """Acknowledge jobs: they are never delivered again. Return how many were known and not acknowledged yet."""
        return self._count("ACKJOB", jobs)

    def fast_ack(self, *jobs: JobOrId) -> int:
        """The same with one message between nodes in place of two: cheaper, more duplicates when nodes fail."""
        return self._count("FASTACK", jobs)

    def nack(self, *jobs: JobOrId, after: float | None = None) -> int:
        """Return failed jobs to their queue, at once or `after` that many seconds (not on a node of Disque)."""
        options = () if after is None else ("AFTER", milliseconds(after, "after"))
        return self._count("NACK", jobs, *options)

    def enqueue(self, *jobs: JobOrId) -> int:
        """Put jobs that are being worked on back into their queues."""
        return self._count("ENQUEUE", jobs)

    def dequeue(self, *jobs: JobOrId) -> int:
        """Take jobs out of their queues without delivering them; they come back after their retry time."""
        return self._count("DEQUEUE", jobs)

    def delete(self, *jobs: JobOrId) -> int:
        """Delete jobs from the node only."""
        return self._count("DELJOB", jobs)

    def working(self, job: JobOrId) -> int:
        """Postpone the next delivery of a job by its retry time, which is returned in seconds."""
        request = Request(("WORKING", requests.id_of(job)))
        reply: int = (self._execute(request, self._home(job), is_required=False))[1]
        return reply

    def _count(self, name: str, jobs: tuple[JobOrId, ...], *options: Word) -> int:
        """Send ids to the nodes that gave the jobs, if they can be reached. Return the sum of the replies."""
        ids_by_node: dict[str | None, list[str]] = {}
        for job in jobs:
            ids_by_node.setdefault(self._home(job), []).append(requests.id_of(job))
        total = 0
        for node, ids in ids_by_node.items():
            total += (self._execute(Request((name, *options, *ids)), node, is_required=False))[1]
        return total

    # Leases

    def ack_lease(self, *jobs: Job) -> list[LeaseOutcome]:
        """Acknowledge leased jobs; one whose lease is over is not changed. Return the outcome of each."""
        return self._leased(("ACKLEASE",), jobs)

    def nack_lease(self, *jobs: Job, after: float = 0.0) -> list[LeaseOutcome]:
        """Return failed jobs to their queue, to be delivered again at once or `after` that many seconds."""
        return self._leased(("NACKLEASE", milliseconds(after, "after")), jobs)

    def release(self, *jobs: Job) -> list[LeaseOutcome]:
        """Return jobs that were not begun to their queue, as if nobody had fetched them: no delivery is counted.

        A node that can't do this counts them as nacks.
        """
        try:
            return self._leased(("RELEASE",), jobs)
        except ReplyError as error:
            if not error.message.startswith("unknown command"):
                raise
            return self.nack_lease(*jobs)

    def extend(self, *jobs: Job, lease: float) -> list[LeaseOutcome]:
        """Let leases end `lease` seconds from now."""
        outcomes = self._leased(("EXTEND", milliseconds(lease, "lease")), jobs)
        deadline = self._router.settings.clock() + lease
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome is LeaseOutcome.OK and job.lease is not None:
                job.lease.deadline = deadline
                self._router.hold(job.lease.node, deadline)
        return outcomes

    def _leased(self, head: tuple[Word, ...], jobs: tuple[Job, ...]) -> list[LeaseOutcome]:
        """Send ids and tokens to the nodes that gave them. All nodes are asked before a failure is raised."""
        words_by_node: dict[str, list[Word]] = {}
        for job in jobs:
            lease = requests.lease_of(job)
            words_by_node.setdefault(lease.node, []).extend((job.id, lease.token))
        replies: dict[str, list[bytes]] = {}
        problem: PenstockError | None = None
        for node, words in words_by_node.items():
            try:
                replies[node] = list(reversed((self._execute(Request((*head, *words)), node))[1]))
            except PenstockError as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return [LeaseOutcome(text(replies[job.lease.node].pop())) for job in jobs if job.lease is not None]

    # Claims

    def claim(
        self,
        key: str | bytes,
        queues: QueueName | Iterable[QueueName],
        *,
        count: int = 1,
        lease: float = LEASE_SECONDS,
        node: str | None = None,
    ) -> Claim:
        """Lease up to `count` jobs under a key. The same key returns the same jobs again, with a fresh lease.

        One node holds a claim. This client remembers which; another one needs `node`.
        """
        names = requests.queue_names(queues)
        words = ("CLAIM", key, "COUNT", count, "LEASE", milliseconds(lease, "lease"), "FROM", *names)
        route, reply = self._execute(Request(words), node or self._claims.get(_key(key)))
        jobs = claimed_jobs(reply, route.id)
        self._router.fetched(route, jobs, lease)
        if jobs:
            if len(self._claims) >= CLAIMS_MAX:
                del self._claims[next(iter(self._claims))]
            self._claims[_key(key)] = route.id
        return Claim(key, route.id, jobs)

    def ack_claim(self, claim: Claim | str | bytes, *, node: str | None = None) -> int:
        """Acknowledge all jobs of a claim, and end it. Return how many they were."""
        reply = self._claimed("ACKCLAIM", claim, node)
        self._claims.pop(_key(claim), None)
        return reply

    def nack_claim(self, claim: Claim | str | bytes, *, after: float = 0.0, node: str | None = None) -> int:
        """Return all jobs of a claim to their queues, at once or `after` that many seconds, and end it.

        Return how many they were.
        """
        reply = self._claimed("NACKCLAIM", claim, node, milliseconds(after, "after"))
        self._claims.pop(_key(claim), None)
        return reply

    def extend_claim(self, claim: Claim | str | bytes, *, lease: float, node: str | None = None) -> int:
        """Let the leases of a claim end `lease` seconds from now. Return how many they are."""
        return self._claimed("EXTENDCLAIM", claim, node, milliseconds(lease, "lease"))

    def _claimed(self, name: str, claim: Claim | str | bytes, node: str | None, *rest: Word) -> int:
        key = _key(claim)
        holder = node or (claim.node if isinstance(claim, Claim) else self._claims.get(key))
        reply: int = (self._execute(Request((name, key, *rest)), holder))[1]
        return reply

    # What a node knows: its queues, its jobs, and itself

    def show(self, job: JobOrId) -> JobDetails | None:
        """Return all that the node knows of a job; None if it doesn't know it."""
        request = Request(("SHOW", requests.id_of(job)))
        _, reply = self._execute(request, self._home(job), is_required=False)
        return None if reply is None else job_details(reply)

    def peek(self, queue: QueueName, count: int = 1) -> list[Job]:
        """Return waiting jobs without taking them: oldest first, newest first for a negative count."""
        route, reply = self._execute(Request(("QPEEK", queue, count)))
        return jobs_of(reply, route.id)

    def qlen(self, queue: QueueName) -> int:
        """Return how many jobs wait in the node's part of a queue."""
        reply: int = (self._execute(Request(("QLEN", queue))))[1]
        return reply

    def qstat(self, queue: QueueName) -> QueueDetails | None:
        """Return all that the node knows of a queue; None if it doesn't know it."""
        _, reply = self._execute(Request(("QSTAT", queue)))
        return None if reply is None else queue_details(reply)

    def pause(self, queue: QueueName, state: str = "state", *, broadcast: bool = False) -> str:
        """Pause a queue: in, out, all or none. Return the state after it."""
        options = ("BCAST",) if broadcast else ()
        return text((self._execute(Request(("PAUSE", queue, state, *options))))[1])

    def queues(self, *, minlen: int | None = None, maxlen: int | None = None) -> Iterator[QueueName]:
        """Iterate over the names of the node's queues; a name may come twice."""
        options: list[Word] = []
        for option, value in (("MINLEN", minlen), ("MAXLEN", maxlen)):
            options += [option, value] if value is not None else []
        for page in self._scan("QSCAN", options):
            for name in page:
                yield queue_name(name)

    def jobs(self, *, queue: QueueName | None = None, states: Iterable[str] = ()) -> Iterator[JobDetails]:
        """Iterate over the node's jobs, of one queue or in some states, with all that it knows of each."""
        for page in self._scan("JSCAN", [*_job_options(queue, states), "REPLY", "all"]):
            for row in page:
                yield job_details(row)

    def job_ids(self, *, queue: QueueName | None = None, states: Iterable[str] = ()) -> Iterator[str]:
        """Iterate over the ids of the node's jobs, of one queue or in some states."""
        for page in self._scan("JSCAN", _job_options(queue, states)):
            for job_id in page:
                yield text(job_id)

    def _scan(self, name: str, options: list[Word]) -> Iterator[list[Any]]:
        """Iterate over the pages of a scan, all from the same node: no other one knows the cursor."""
        cursor: Word = 0
        node: str | None = None
        while True:
            route, reply = self._execute(Request((name, cursor, *options)), node)
            node = route.id
            cursor, page = reply
            yield page
            if cursor == b"0":
                return

    def info(self, section: str | None = None) -> dict[str, str]:
        """Return facts and counters of the node."""
        return info_of((self._execute(Request(("INFO", *([section] if section else [])))))[1])

    def hello(self) -> Hello:
        """Return the nodes of the cluster, as the node sees them now."""
        route, reply = self._execute(Request(("HELLO",)))
        hello = hello_of(reply)
        self._router.members.learn(hello, route.address)
        return hello


def _key(claim: Claim | str | bytes) -> bytes:
    key = claim.key if isinstance(claim, Claim) else claim
    return key.encode() if isinstance(key, str) else key


def _raise(problem: PenstockError, ids: list[str | None]) -> NoReturn:
    """Raise the error of many adds: another one if some jobs were added."""
    added = sum(job_id is not None for job_id in ids)
    if not added:
        raise problem
    raise PartlyAdded(f"{added} of {len(ids)} jobs were added. {problem}", ids) from problem


def _job_options(queue: QueueName | None, states: Iterable[str]) -> list[Word]:
    options: list[Word] = [] if queue is None else ["QUEUE", queue]
    for state in states:
        options += ["STATE", state]
    return options
