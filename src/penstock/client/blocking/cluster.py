# Written by scripts/blocking from ../aio/cluster.py: change that, then run `make blocking`.
"""The cluster client: every command of a node as a method, with types.

    with ClusterClient("10.0.0.1:7711,10.0.0.2:7711") as client:
        client.add("mail", b"hello")
        for job in client.get("mail", timeout=5, lease=30):
            client.ack_lease(job)

All times are in seconds. What a node is told in milliseconds may be a fraction; delay, retry and ttl are whole numbers.
"""

import random
import ssl
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import NoReturn, Self

from penstock.client import requests
from penstock.client.addresses import parse_seeds
from penstock.client.blocking.looking import Looking
from penstock.client.blocking.router import Router
from penstock.client.connection import Word, refined, tls_context
from penstock.client.requests import AddTerms, Body, Fetch, JobOrId, Request, milliseconds
from penstock.client.settings import LinkSettings, Settings
from penstock.client.values import (
    Claim,
    Job,
    LeaseOutcome,
    Node,
    QueueName,
    claimed_jobs,
    jobs_of,
    text,
)
from penstock.errors import PartlyAdded, PenstockError, ReplyError

# How long an add may take to be on enough nodes, unless the caller says otherwise: a few times what a healthy cluster
# needs when it must find another node for a copy.
ADD_SECONDS = 5.0
LEASE_SECONDS = 120.0  # of a claim, as in the node
# Nodes that hold claims are remembered by key; forgotten ones are asked for at the node that the client is on.
CLAIMS_MAX = 10_000


class ClusterClient(Looking):
    """Jobs of a cluster of nodes, by way of the best of them.

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
        links = LinkSettings(
            password=parsed.password if password is None else password,
            tls=context,
            connect_timeout=connect_timeout,
            waits_max=waits_max,
            clock=clock,
        )
        settings = Settings(
            links=links,
            timeout=timeout,
            answer_timeout=answer_timeout,
            hello_every=hello_every,
            sticky=sticky,
            retry_adds=retry_adds,
            follow_jobs=follow_jobs,
            follow_seconds=follow_seconds,
            translate=translate,
            chance=randomness or random.Random(),
        )
        super().__init__(Router(parsed, settings))
        self._claims: dict[bytes, str] = {}

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
        """The nodes of the cluster, as they were last heard of."""
        return self._router.members.nodes

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
        """Add a job, and give its id once it is on enough nodes (`timeout`: how long that may take).

        Raises OutcomeUnknown if the link broke after the job was sent, unless the client has `retry_adds`.
        """
        terms = requests.add_terms(timeout, replicate, delay, retry, ttl, maxlen, asynchronous)
        return text(self._ask(requests.add_one(queue, body, terms)))

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
        """Add many jobs, and give their ids in order.

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
        current = self._router.current
        if current is None or self._place is not None or not current.lacks_addjobs:
            route, (reply,) = self._run(requests.add_all(queue, bodies, terms))
            if not isinstance(reply, ReplyError):
                return [text(job_id) for job_id in reply], None
            if not reply.message.startswith("unknown command"):
                raise refined(reply)
            route.lacks_addjobs = True
        _, replies = self._run(requests.add_each(queue, bodies, terms))
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
        """Take up to `count` jobs, waiting for one if there is none: `timeout` seconds, or forever.

        With `lease` they are yours for so long, under a token. With `begin`, work on that many of them begins at once,
        or on all if it is below 0, and each has its `tries`; only our nodes know it. None in time: an empty list. If
        the link breaks the fetch is made again; a job that was on its way then comes back by itself after its lease or
        retry time. `counters` and `created` ask for more fields of each job.
        """
        names = requests.queue_names(queues)
        lease_ms = None if lease is None else milliseconds(lease, "lease")
        if timeout is not None:
            milliseconds(timeout, "timeout")
        clock, settings = self._router.settings.clock, self._router.settings
        end = float("inf") if timeout is None else clock() + timeout
        while True:
            now = clock()
            until = None if nohang or end <= now else min(end, now + settings.wait_round)
            fetch = Fetch(names, until, count, counters, lease_ms, created, begin)
            route, (reply,) = self._run(fetch)
            if isinstance(reply, ReplyError):
                raise refined(reply)
            if reply or until is None or until == end:
                break
        jobs = jobs_of(reply, route.id, None if lease is None else clock() + lease)
        self._router.fetched(route, jobs, lease)
        return jobs

    # Finishing

    def ack(self, *jobs: JobOrId) -> int:
        """The jobs are done: never deliver them again. How many were known and not acked yet."""
        return self._count("ACKJOB", jobs)

    def fast_ack(self, *jobs: JobOrId) -> int:
        """The same with one message between nodes in place of two: cheaper, more duplicates when nodes fail."""
        return self._count("FASTACK", jobs)

    def nack(self, *jobs: JobOrId, after: float | None = None) -> int:
        """Give jobs back as failed: queued again, at once or `after` so long (not on a node of Disque)."""
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
        """Still at it: put the next delivery off by the job's retry time, which is given in seconds."""
        request = Request(("WORKING", requests.id_of(job)))
        reply: int = self._ask(request, self._home(job), only_there=False)
        return reply

    def _count(self, name: str, jobs: tuple[JobOrId, ...], *options: Word) -> int:
        """Send ids to the nodes that gave the jobs, if they can be reached; the sum of the replies."""
        ids_by_node: dict[str | None, list[str]] = {}
        for job in jobs:
            ids_by_node.setdefault(self._home(job), []).append(requests.id_of(job))
        total = 0
        for node, ids in ids_by_node.items():
            total += self._ask(Request((name, *options, *ids)), node, only_there=False)
        return total

    # Leases

    def ack_lease(self, *jobs: Job) -> list[LeaseOutcome]:
        """The jobs are done; one that is no longer yours is left alone. What became of each."""
        return self._leased(("ACKLEASE",), jobs)

    def nack_lease(self, *jobs: Job, after: float = 0.0) -> list[LeaseOutcome]:
        """Give jobs back as failed, to be delivered again at once or `after` so long."""
        return self._leased(("NACKLEASE", milliseconds(after, "after")), jobs)

    def release(self, *jobs: Job) -> list[LeaseOutcome]:
        """Give jobs back that were not begun: queued again as if nobody had fetched them, and nothing is counted.

        A node that can't do this counts them as nacks.
        """
        try:
            return self._leased(("RELEASE",), jobs)
        except ReplyError as error:
            if not error.message.startswith("unknown command"):
                raise
            return self.nack_lease(*jobs)

    def extend(self, *jobs: Job, lease: float) -> list[LeaseOutcome]:
        """Make leases last so long from now."""
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
                replies[node] = list(reversed(self._ask(Request((*head, *words)), node)))
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
        """Lease up to `count` jobs under a key. The same key gives the same jobs again, with a fresh lease.

        One node holds a claim. This client remembers which; another one is told by `node`.
        """
        names = requests.queue_names(queues)
        words = ("CLAIM", key, "COUNT", count, "LEASE", milliseconds(lease, "lease"), "FROM", *names)
        holder = node or self._claims.get(_key(key))
        route, (reply,) = self._run(Request(words), holder)
        if isinstance(reply, ReplyError):
            raise refined(reply)
        jobs = claimed_jobs(reply, route.id)
        self._router.fetched(route, jobs, lease)
        if jobs:
            if len(self._claims) >= CLAIMS_MAX:
                del self._claims[next(iter(self._claims))]
            self._claims[_key(key)] = route.id
        return Claim(key, route.id, jobs)

    def ack_claim(self, claim: Claim | str | bytes, *, node: str | None = None) -> int:
        """All jobs of a claim are done, and it ends. How many they were."""
        reply = self._claimed("ACKCLAIM", claim, node)
        self._claims.pop(_key(claim), None)
        return reply

    def nack_claim(self, claim: Claim | str | bytes, *, after: float = 0.0, node: str | None = None) -> int:
        """Give all jobs of a claim back, at once or `after` so long, and end it. How many they were."""
        reply = self._claimed("NACKCLAIM", claim, node, milliseconds(after, "after"))
        self._claims.pop(_key(claim), None)
        return reply

    def extend_claim(self, claim: Claim | str | bytes, *, lease: float, node: str | None = None) -> int:
        """Make the leases of a claim last so long from now. How many they are."""
        return self._claimed("EXTENDCLAIM", claim, node, milliseconds(lease, "lease"))

    def _claimed(self, name: str, claim: Claim | str | bytes, node: str | None, *rest: Word) -> int:
        key = _key(claim)
        holder = node or (claim.node if isinstance(claim, Claim) else self._claims.get(key))
        reply: int = self._ask(Request((name, key, *rest)), holder)
        return reply


def _key(claim: Claim | str | bytes) -> bytes:
    key = claim.key if isinstance(claim, Claim) else claim
    return key.encode() if isinstance(key, str) else key


def _raise(problem: PenstockError, ids: list[str | None]) -> NoReturn:
    """Many adds failed, maybe after some that didn't."""
    added = sum(job_id is not None for job_id in ids)
    if not added:
        raise problem
    raise PartlyAdded(f"{added} of {len(ids)} jobs were added. {problem}", ids) from problem
