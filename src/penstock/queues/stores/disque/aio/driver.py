"""`disque://host:port,host:port`: queues in a cluster of our nodes, or of the original Disque; `disques://` is TLS.

    what                        is
    queue NAME                  the queue of that name, in the cluster: each node has a part of it
    queue __value__:KEY         a text under a key, as one job with a TTL; see `aio/values.py`
    queue __claim__:NAME:KEY    what a claim holds, as one job; see `aio/claims.py`
    id of a job                 the node's: a job that goes to another queue is another job
    body                        the job's body; with headers or tries, in the frame of `penstock.codec`
    header x-penstock-tries     the tries that a job was pushed with; removed when it is read
    header x-penstock-created   when a job was pushed, if it was moved from another queue; removed when it is read
    RETRY, TTL, REPLICATE       of the push, or the options of the store (see `terms.py`)
    DELAY                       of the push, in whole seconds, rounded up
    tries                       `tries`; on an original, nacks + additional deliveries; see `jobs.py`
    lease                       GETJOB LEASE, with a token; on an original the job's retry time, restarted by WORKING
    pause                       PAUSE out, sent to all nodes

    method                      commands
    push, push_bodies           ADDJOBS (ADDJOB on an original)
    pop                         GETJOB, then ACKLEASE
    reserve                     GETJOB LEASE (on an original GETJOB, then WORKING)
    ack, nack, extend, release  ACKLEASE, NACKLEASE, EXTEND, RELEASE (ACKJOB, NACK, WORKING, ENQUEUE)
    move                        MOVEJOBS (on other nodes EXTEND or LEASE, then ADDJOBS, then ACKLEASE)
    remove, purge               SHOW or JSCAN, DEQUEUE, ACKJOB
    sizes, peek, scans          QLEN, QPEEK, SHOW, JSCAN; while a node can't be reached QSIZE, too

Jobs come in the order of their creation, also those that were delayed or came back. A waiting consumer waits on a node,
so there are no signals; statistics are those of this process. An original has no tokens and no claims, no nack with a
delay (the job is ready at once), no release (a delivery is counted) and no number of reserved jobs.

Each command is a step of its own. A pop is a fetch and then an ack, before the job is returned: if the process dies in
between, the job comes back. A move is one step, at the node that has the job: the new job is added, with its copies,
and the old one acknowledged, or neither. If that node crashes in the middle, the job may be in both queues. On nodes
that lack the command a job is added to its new queue first, then acknowledged in the old one: a process that dies in
between leaves it in both, and `atomic_move` is not among the capabilities. A job that waits is removed in two steps: it
is taken out of its queue, so that no worker can get it any more, and then acknowledged. If its retry time runs out in
between, within a millisecond or so, it may be delivered to a worker, and be gone when that one is done.

Only the node that gave a lease knows its token, so an ack, nack, extend or release goes there, in one command for all
jobs of one node. If that node can't be reached an ack may still be done: while the lease holds by this machine's clock,
nobody else has the job, so an ack by its id alone, at any node, is as good. A nack or an extension has to wait for its
node, and the job comes back by itself when its lease is over.
"""

import time
from collections.abc import Sequence
from typing import Any, ClassVar

from penstock.client.aio import ClusterClient
from penstock.client.connection import refined
from penstock.client.requests import ADD_BYTES_MAX
from penstock.client.values import text
from penstock.codec import MARK, frame
from penstock.errors import BadUrl, CallerError, ConnectionLost, OutcomeUnknown, PenstockError, ReplyError, Unreachable
from penstock.job import JobMove, JobState, Lease, Mark, NewJob, Sizes, StoredJob
from penstock.queues.aio.driver import Driver, NewValue, Page
from penstock.queues.aio.runtime import to_the_end
from penstock.queues.aio.signal import Signal, SilentSignal
from penstock.queues.capabilities import Capability
from penstock.queues.events import process_name
from penstock.queues.options import Options, StoreURL
from penstock.queues.scan import Part, Rows, Wanted
from penstock.queues.stores.disque.aio.claims import DisqueClaims
from penstock.queues.stores.disque.aio.link import DisqueLink
from penstock.queues.stores.disque.aio.marks import Marks
from penstock.queues.stores.disque.aio.moves import Lacking, Moves
from penstock.queues.stores.disque.aio.nodes import ALL, Nodes, values
from penstock.queues.stores.disque.aio.scan import Scan
from penstock.queues.stores.disque.aio.values import Values
from penstock.queues.stores.disque.jobs import (
    CLAIM_PREFIX,
    NO_NUMBER,
    NOT_LEASED,
    OK,
    VALUE_PREFIX,
    LeaseGroup,
    fetched_jobs,
    lease_groups,
    leased_jobs,
    stored_body,
    token,
)
from penstock.queues.stores.disque.terms import ADD_MS, OWN_OPTIONS, TIMEOUT_S, Terms, defaults, is_plain, read_options

# Connections for calls that wait for a job. With more callers than these, the connections are shared.
WAITS_MAX = 64
POP_MS = 10_000  # of a lease that only lasts until the ack: long enough for a node that is slow to answer
MOVE_MS = 30_000  # of the lease of a job while it is moved to another queue
# What a lease must still have before its end for an ack by id: clocks differ in speed, and an ack takes its time.
MARGIN_MS = 1000
REMOVE_MAX = 1000  # jobs in one pipeline
# The state of PAUSE -> the state that stops delivery, and the one that resumes it.
STOPPED = {"none": "out", "in": "all", "out": "out", "all": "all"}
RESUMED = {"none": "none", "in": "in", "out": "none", "all": "in"}
PAUSED = frozenset({"out", "all"})
_NO_LEASE = Lease("", None)

OF_ORIGINALS = frozenset(
    {
        Capability.DELAY,
        Capability.RESERVE,
        Capability.EXTEND,
        Capability.PEEK,
        Capability.REMOVE,
        Capability.HEADERS,
        Capability.TTL,
        Capability.RETRY,
        Capability.REPLICATE,
        Capability.SHARED_PAUSE,
    }
)


class DisqueDriver(Driver):
    """Jobs of a cluster."""

    type: ClassVar[str] = "disque"
    capabilities: ClassVar[frozenset[Capability]] = OF_ORIGINALS | {
        Capability.TOKEN,
        Capability.CLAIM,
        Capability.VALUES,
        Capability.ATOMIC_MOVE,
    }
    can_wait: ClassVar[bool] = True
    pauses_itself: ClassVar[bool] = True
    takes_bodies: ClassVar[bool] = True
    keeps_ids: ClassVar[bool] = False
    own_options: ClassVar[frozenset[str] | None] = OWN_OPTIONS
    compares: ClassVar[frozenset[str]] = frozenset({"id"})
    claims_in_steps: ClassVar[bool] = True
    has_marks: ClassVar[bool] = True
    has_away: ClassVar[bool] = True
    puts_values_together: bool = True

    def __init__(self, address: StoreURL, options: Options, extra: dict[str, Any]) -> None:
        super().__init__(address, options, extra)
        if address.path.strip("/"):
            raise BadUrl(f"{address.url}: the URL of nodes must have no path, got {address.path}")
        self._own = read_options(address.rest, extra, address.url)
        self._defaults = defaults(self._own, options.lease)
        self._plain = self._defaults.plain()
        try:
            self._make_client()
        except CallerError as problem:
            raise BadUrl(f"{address.url}: {problem}") from problem
        self._link = DisqueLink(self._make_client, address.url)
        self._nodes = Nodes(address.url, lambda: self.shift_ms)
        self._scan = Scan(self._link, self._nodes)
        self._moves = Moves(self._link, self._nodes, self._defaults)
        self._claims = DisqueClaims(self._link, self._nodes, self._defaults, self.batch_max)
        self._marks = Marks(self._link, self._nodes, self.batch_max)
        self._values = Values(self, self._link, self._nodes, self._scan, self._defaults)

    def _make_client(self) -> ClusterClient:
        """Return a client, which connects on first use."""
        return ClusterClient(
            self.address.full,
            tls=self._own.get("tls", False),
            ca=self._own.get("ca"),
            cert=self._own.get("cert"),
            key=self._own.get("key"),
            # A node that records events calls this process as those do that the process records by itself.
            name=None if self.options.events is None else process_name(),
            timeout=self._own.get("timeout", TIMEOUT_S),
            waits_max=WAITS_MAX,
            translate=self._own.get("translate"),
        )

    async def open(self) -> None:
        with self._link.client() as client:
            try:
                await client.without_retry().call("PING")
            except Unreachable as problem:
                reason = f"Can't reach any node of {self.address.url}. Is `penstock server` running? {problem}"
                raise Unreachable(reason, problem.said) from problem
            await self._nodes.check(client)
        if not self._nodes.are_ours:
            vars(self)["capabilities"] = OF_ORIGINALS  # of this store alone
        elif not self._nodes.know_moves:
            self._move_in_steps()

    def _move_in_steps(self) -> None:
        """Move jobs in two steps from now on: a node is of an earlier version."""
        self._nodes.know_moves = False
        vars(self)["capabilities"] = self.capabilities - {Capability.ATOMIC_MOVE}

    async def close(self) -> None:
        await self._link.close()

    async def records_events(self) -> bool:
        with self._link.client() as client:
            try:
                reply = await client.call("CONFIG", "GET", "events-dir")
            except ReplyError:  # an original node, or one without this command
                return False
        return isinstance(reply, list) and len(reply) == 2 and bool(reply[1])

    def own_signal(self) -> Signal:
        return SilentSignal()

    @property
    def delays_by_id(self) -> bool:
        return self._nodes.are_ours  # Disque's NACK has no delay

    async def now_ms(self) -> int:
        with self._link.client() as client:
            return await self._nodes.time_ms(client)

    async def counters(self, queue: str) -> dict[str, int]:
        with self._link.client() as client:
            parts = [await view.qstat(queue) for view in await self._nodes.views(client)]
        if not self._nodes.are_ours:
            return {}
        return {"expired": sum(part.expired or 0 for part in parts if part is not None)}

    # Jobs in

    def prepare(self, job: NewJob) -> None:
        job.prepared = stored_body(job)

    async def push(self, queue: str, jobs: Sequence[NewJob], channel: str | None) -> list[str]:
        with self._link.client() as client:
            if all(map(is_plain, jobs)):
                return await self._add(client, queue, [job.prepared for job in jobs], self._plain)
            has_times = any(job.mature_ms is not None for job in jobs)
            now_ms = await self._nodes.time_ms(client) if has_times else None
            groups: dict[Terms, list[int]] = {}
            for at, job in enumerate(jobs):
                groups.setdefault(self._defaults.terms(job, now_ms), []).append(at)
            size = sum([len(job.prepared) for job in jobs])
            if len(groups) > 1 and self._nodes.are_ours and size <= ADD_BYTES_MAX:
                return await self._add_groups(client, queue, jobs, groups)
            ids = [""] * len(jobs)
            for terms, places in groups.items():
                bodies = [jobs[at].prepared for at in places]
                for at, job_id in zip(places, await self._add(client, queue, bodies, terms), strict=True):
                    ids[at] = job_id
            return ids

    async def push_bodies(self, queue: str, bodies: Sequence[bytes]) -> list[str]:
        framed = [frame(body, {}) if body.startswith(MARK) else body for body in bodies]
        with self._link.client() as client:
            return await self._add(client, queue, framed, self._plain)

    async def _add(self, client: ClusterClient, queue: str, bodies: list[bytes], terms: Terms) -> list[str]:
        copies = terms.copies(await self._nodes.size(client))
        while True:
            try:
                return await client.add_many(
                    queue,
                    bodies,
                    timeout=ADD_MS / 1000,
                    replicate=copies,
                    delay=terms.delay_s or None,
                    retry=terms.retry_s,
                    ttl=terms.ttl_s,
                )
            except ReplyError as problem:
                nodes, error = await self._nodes.too_few(client, problem, copies)
                fewer = terms.copies(nodes)
                if fewer >= copies or isinstance(error, OutcomeUnknown):
                    raise error from problem
            copies = fewer  # nodes were removed from the cluster

    async def _add_groups(
        self, client: ClusterClient, queue: str, jobs: Sequence[NewJob], groups: dict[Terms, list[int]]
    ) -> list[str]:
        """Add jobs with different terms: a command for each group, all in one pipeline."""
        ids = [""] * len(jobs)
        nodes = await self._nodes.size(client)
        while True:
            commands = [
                ("ADDJOBS", queue, ADD_MS, *terms.words(nodes), "BODIES", *[jobs[at].prepared for at in places])
                for terms, places in groups.items()
            ]
            refused: dict[Terms, ReplyError] = {}
            for (terms, places), reply in zip(groups.items(), await client.call_many(commands), strict=True):
                if isinstance(reply, ReplyError):
                    refused[terms] = refined(reply)
                    continue
                for at, job_id in zip(places, reply, strict=True):
                    ids[at] = text(job_id)
            if not refused:
                return ids
            known = nodes
            for terms, problem in refused.items():
                known, error = await self._nodes.too_few(client, problem, terms.copies(nodes))
                if terms.copies(known) >= terms.copies(nodes) or isinstance(error, OutcomeUnknown):
                    raise error from problem
            nodes = known  # some were removed from the cluster
            groups = {terms: groups[terms] for terms in refused}

    # Jobs out

    async def pop(self, queue: str, count: int, wait_ms: int = 0) -> list[StoredJob]:
        jobs = await self.reserve(queue, count, POP_MS, wait_ms)
        if not jobs:
            return []
        return await to_the_end(self._take_out(jobs), lambda popped: self.put_back(queue, popped))

    async def _take_out(self, jobs: list[StoredJob]) -> list[StoredJob]:
        """Acknowledge jobs before they are returned, without those that somebody else has by now."""
        is_mine = await self.ack("", [Lease(job.id, job.token) for job in jobs])
        popped = [job for job, is_one in zip(jobs, is_mine, strict=True) if is_one]
        for job in popped:
            job.token = None
        return popped

    async def put_back(self, queue: str, jobs: Sequence[StoredJob]) -> None:
        """As new jobs, behind the others: an ack can't be undone."""
        new = [NewJob(None, job.body or b"", job.headers, tries=job.tries) for job in jobs]
        for job in new:
            self.prepare(job)
        await self.push(queue, new, None)

    async def reserve(
        self, queue: str, count: int, lease_ms: int, wait_ms: int = 0, begin: int | None = None
    ) -> list[StoredJob]:
        with self._link.client() as client:
            # A caller that waits for jobs asks again, so a cluster that can't be reached isn't waited for here.
            view = client.without_retry()
            jobs = await self._nodes.fetch(view, queue, count, lease_ms, wait_ms, ALL if begin is None else begin)
        if not jobs:
            return []
        found = fetched_jobs(jobs, jobs[0].node or "", int(time.monotonic() * 1000) + lease_ms)
        if self._nodes.are_ours:
            return found
        # The retry time of an original runs since the job was queued, and may be nearly over.
        leases = [Lease(job.id, job.token) for job in found]
        await to_the_end(self.extend(queue, leases, [0] * len(leases)), lambda _: self.release(queue, leases))
        return found

    async def release(self, queue: str, leases: Sequence[Lease]) -> None:
        with self._link.client() as client:
            for group in lease_groups(leases):
                view = client.at(group.node)
                if group.has_numbers:
                    await view.call("RELEASE", *group.pairs())
                else:
                    # Disque can't undo a fetch: one more delivery is counted.
                    values(await view.call_many([("ENQUEUE", job_id) for job_id in group.ids]))

    # The ends of leases

    async def ack(self, queue: str, leases: Sequence[Lease], begun: Sequence[Lease] = ()) -> list[bool]:
        done = [False] * len(leases)
        with self._link.client() as client:
            begins = self._begins(begun) if begun else {}
            for group in lease_groups(leases):
                if group.has_numbers:
                    outcomes = await self._ack_by_token(client, group, begins.pop(group.node, ()))
                else:
                    # Of a node without tokens: the first ack of a job counts, whoever sends it.
                    acks = await client.at(group.node).call_many([("ACKJOB", job_id) for job_id in group.ids])
                    outcomes = [count == 1 for count in values(acks)]
                for place, is_done in zip(group.places, outcomes, strict=True):
                    done[place] = is_done
            for node, words in begins.items():
                await client.at(node).call(*words)
        return done

    def _begins(self, begun: Sequence[Lease]) -> dict[str, tuple[str, ...]]:
        """Return the commands by which nodes learn on which jobs work has begun."""
        if not self._nodes.know_begin:
            return {}
        words: dict[str, tuple[str, ...]] = {}
        for group in lease_groups(begun):
            words[group.node] = (*words.get(group.node, ("BEGIN",)), *group.pairs())
        return words

    async def _ack_by_token(self, client: ClusterClient, group: LeaseGroup, begin: tuple[str, ...]) -> list[bool]:
        words = ("ACKLEASE", *group.pairs(), *begin)
        view = client.at(group.node)
        try:
            statuses = await view.without_retry().call(*words)
        except ConnectionLost as problem:
            is_over = group.until_ms < time.monotonic() * 1000 + MARGIN_MS
            if not is_over and any(node.id != group.node for node in client.nodes):
                return await self._ack_elsewhere(client, group, problem)
            statuses = await view.call(*words)
        return [status == OK for status in statuses]

    @staticmethod
    async def _ack_elsewhere(client: ClusterClient, group: LeaseGroup, problem: ConnectionLost) -> list[bool]:
        """Acknowledge by ids alone, which any node takes and passes on. The outcome of each is not known."""
        try:
            await client.without_retry().call("ACKJOB", *group.ids)
        except ConnectionLost:
            raise problem from None
        return [True] * len(group.ids)

    async def nack(
        self, queue: str, leases: Sequence[Lease], delays_ms: Sequence[int], channel: str | None
    ) -> list[bool]:
        done = [False] * len(leases)
        with self._link.client() as client:
            for group in lease_groups(leases):
                for place, status in await self._nack_group(client.at(group.node), group, delays_ms):
                    done[place] = status in (OK, 1)
        return done

    async def _nack_group(
        self, view: ClusterClient, group: LeaseGroup, delays_ms: Sequence[int]
    ) -> list[tuple[int, Any]]:
        if group.has_numbers:
            return await self._by_time(view, "NACKLEASE", group, delays_ms)
        delays = [delays_ms[place] if self._nodes.are_ours else 0 for place in group.places]
        # Disque's NACK has no delay: the job is ready at once.
        commands = [
            ("NACK", "AFTER", delay_ms, job_id) if delay_ms else ("NACK", job_id)
            for job_id, delay_ms in zip(group.ids, delays, strict=True)
        ]
        return list(zip(group.places, values(await view.call_many(commands)), strict=True))

    async def extend(
        self, queue: str, leases: Sequence[Lease], leases_ms: Sequence[int], begun: Sequence[bool] = ()
    ) -> list[str | None]:
        tokens: list[str | None] = [None] * len(leases)
        working = [lease for lease, has_begun in zip(leases, begun, strict=True) if has_begun] if begun else []
        with self._link.client() as client:
            for node, words in self._begins(working).items():
                await client.at(node).call(*words)
            for group in lease_groups(leases):
                view = client.at(group.node)
                if not group.has_numbers:
                    # On a node without leases the retry time restarts. A number is the reply for a job that it
                    # knows, and that may be postponed: not after half of its life.
                    replies = await view.call_many([("WORKING", job_id) for job_id in group.ids])
                    for place, reply in zip(group.places, replies, strict=True):
                        tokens[place] = leases[place].token if isinstance(reply, int) else None
                    continue
                now_ms = int(time.monotonic() * 1000)
                numbers = dict(zip(group.places, group.numbers, strict=True))
                for place, status in await self._by_time(view, "EXTEND", group, leases_ms):
                    if status == OK:
                        tokens[place] = token(numbers[place], group.node, now_ms + leases_ms[place])
        return tokens

    @staticmethod
    async def _by_time(
        view: ClusterClient, name: str, group: LeaseGroup, times_ms: Sequence[int]
    ) -> list[tuple[int, Any]]:
        """Send a command for all leases that have the same time, in one pipeline. Return places and statuses."""
        rows_by_time: dict[int, list[int]] = {}
        for row, place in enumerate(group.places):
            rows_by_time.setdefault(times_ms[place], []).append(row)
        commands: list[tuple[Any, ...]] = [
            (name, time_ms, *group.pairs(rows)) for time_ms, rows in rows_by_time.items()
        ]
        replies = values(await view.call_many(commands))
        places = [group.places[row] for rows in rows_by_time.values() for row in rows]
        return list(zip(places, [status for reply in replies for status in reply], strict=True))

    # Jobs that are moved and removed

    async def move(
        self, queue: str, to: str, moves: Sequence[JobMove], channel: str | None, counter: str | None = None
    ) -> list[bool]:
        done: list[bool | None] = [None] * len(moves)
        if self._nodes.are_ours and self._nodes.know_moves:
            try:
                return await self._moves.move(queue, to, moves)
            except Lacking as problem:
                self._move_in_steps()
                done = problem.done
        left = [place for place, is_done in enumerate(done) if is_done is None]
        for place, is_done in zip(
            left, await self._move_in_two(queue, to, [moves[place] for place in left], channel), strict=True
        ):
            done[place] = is_done
        return [is_done is True for is_done in done]

    async def _move_in_two(self, queue: str, to: str, moves: Sequence[JobMove], channel: str | None) -> list[bool]:
        """Move jobs where a node lacks the command: the new ones are added, then the old ones acknowledged."""
        leases = await self._hold(queue, [move.lease for move in moves])
        held = [at for at, lease in enumerate(leases) if lease is not None]
        if not held:
            return [False] * len(moves)
        try:
            await self.push(to, [moves[at].job for at in held], channel)
        except PenstockError:
            # Those that waited wait again. The others are their workers'.
            await self.release(queue, [leases[at] or _NO_LEASE for at in held if moves[at].lease.token is None])
            raise
        done = [False] * len(moves)
        for at, is_done in zip(held, await self.ack(queue, [leases[at] or _NO_LEASE for at in held]), strict=True):
            done[at] = is_done
        return done

    async def _hold(self, queue: str, leases: Sequence[Lease]) -> list[Lease | None]:
        """Lease jobs for the time of a move; None for one that can't be leased."""
        until_ms = int(time.monotonic() * 1000) + MOVE_MS
        tokens = await self.extend(queue, leases, [MOVE_MS] * len(leases))
        free = [lease.id for lease in leases if lease.token is None]
        waiting = await self._hold_waiting(queue, free, until_ms) if free else {}
        return [
            Lease(lease.id, one)
            if (one := kept if lease.token is not None else waiting.pop(lease.id, None)) is not None
            else None
            for lease, kept in zip(leases, tokens, strict=True)
        ]

    async def _hold_waiting(self, queue: str, ids: Sequence[str], until_ms: int) -> dict[str, str]:
        """Return tokens for those of these jobs that are not reserved."""
        found: dict[str, str] = {}
        with self._link.client() as client:
            now_ms = await self._nodes.time_ms(client)
            for node, view in (await self._nodes.find(client)).views.items():
                known = await self._nodes.details(view, queue, [job_id for job_id in ids if job_id not in found])
                queued = [one.id for one in known if one.state == "queued"]
                if self._nodes.are_ours and queued:
                    words = [word for job_id in queued for word in (job_id, NOT_LEASED)]
                    for job in leased_jobs(await view.call("LEASE", MOVE_MS, *words), node):
                        if job is not None and job.lease is not None:
                            found[job.id] = token(job.lease.token, node, until_ms)
                else:
                    queued = await self._nodes.dequeue(view, queued)
                    found.update({job_id: token(NO_NUMBER, node, until_ms) for job_id in queued})
                active = [one for one in known if one.state == "active"]
                for job_id in await self._nodes.scheduled(view, queue, active, now_ms):
                    found[job_id] = token(NO_NUMBER, node, until_ms)
        return found

    async def remove(self, queue: str, ids: Sequence[str]) -> list[bool]:
        nodes = self._nodes
        removed: set[str] = set()
        with self._link.client() as client:
            views = await nodes.views(client)
            now_ms = await nodes.time_ms(client)
            for view in views:
                known = await nodes.details(view, queue, [job_id for job_id in ids if job_id not in removed])
                free = await nodes.dequeue(view, [one.id for one in known if one.state == "queued"])
                active = [one for one in known if one.state == "active"]
                free += await nodes.scheduled(view, queue, active, now_ms)
                removed.update(await nodes.end(view, free))
        done: list[bool] = []
        for job_id in ids:  # the same one twice is there once
            done.append(job_id in removed)
            removed.discard(job_id)
        return done

    async def purge(self, queue: str) -> int:
        nodes = self._nodes
        removed: set[str] = set()
        with self._link.client() as client:
            now_ms = await nodes.time_ms(client)
            for view in await nodes.views(client):
                for state in (JobState.READY, JobState.SCHEDULED):
                    found = await nodes.ids(view, queue, state, now_ms)
                    ids = [job_id for job_id in found if job_id not in removed]  # nodes may have copies of one
                    for begin in range(0, len(ids), REMOVE_MAX):
                        some = ids[begin : begin + REMOVE_MAX]
                        free = await nodes.dequeue(view, some) if state is JobState.READY else some
                        removed.update(await nodes.end(view, free))
        return len(removed)

    # What is in a queue. `ready` is cheap; the others go through all jobs of the nodes, for people and their tools.

    async def peek(self, queue: str, state: JobState | None, count: int, cursor: str | None = None) -> Page:
        return await self._scan.peek(queue, state, count, cursor)

    async def reserved(self, queue: str, ids: Sequence[str]) -> list[StoredJob | None]:
        return await self._marks.reserved(queue, ids)

    async def parts(self, queues: Sequence[str], wanted: Wanted) -> list[Part]:
        return await self._scan.parts(queues)

    async def scan_page(self, part: Part, wanted: Wanted, count: int, cursor: str | None = None) -> Rows:
        return await self._scan.scan_page(part, wanted, count, cursor)

    async def sizes(self, queue: str) -> Sizes:
        nodes = self._nodes
        scheduled: set[str] = set()
        reserved: set[str] = set()
        with self._link.client() as client:
            views = await nodes.views(client)
            now_ms = await nodes.time_ms(client)
            ready = await nodes.ready(client, queue)
            for view in views:
                scheduled.update(await nodes.ids(view, queue, JobState.SCHEDULED, now_ms))
                if nodes.are_ours:
                    reserved.update(await nodes.ids(view, queue, JobState.RESERVED, now_ms))
        scheduled -= reserved  # one that was delivered between the two scans
        total = ready + len(scheduled) + len(reserved)
        return Sizes(total, ready, len(scheduled), len(reserved) if nodes.are_ours else None)

    async def ready(self, queue: str) -> int:
        with self._link.client() as client:
            return await self._nodes.ready(client, queue)

    async def next_mature_ms(self, queue: str) -> int | None:
        if await self.ready(queue):
            return await self.now_ms()
        times: list[int] = []
        for state in (JobState.SCHEDULED, JobState.RESERVED):
            cursor = None
            while True:
                page = await self.peek(queue, state, REMOVE_MAX, cursor)
                times += [job.mature_ms for job in page.jobs if job.mature_ms is not None]
                cursor = page.cursor
                if cursor is None:
                    break
        return min(times, default=None)

    async def names_in_events(self) -> frozenset[str]:
        if not self._nodes.are_ours:
            raise CallerError(
                f"{self.address.url} has an original node, which does not show the jobs that workers have"
            )
        with self._link.client() as client:
            views, missing = await self._nodes.find(client)
        if missing:
            raise ConnectionLost(
                f"all nodes of {self.address.url} must answer, as each may have jobs that no other has; "
                f"{', '.join(missing)} did not"
            )
        return frozenset({self.place, *views})

    async def queues(self) -> list[str]:
        names: set[str] = set()
        with self._link.client() as client:
            for view in await self._nodes.views(client):
                # Names that are not UTF-8 can't be used through this library.
                names.update([name async for name in view.queues() if isinstance(name, str)])
        return sorted(name for name in names if not name.startswith((CLAIM_PREFIX, VALUE_PREFIX)))

    async def set_paused(self, queue: str, paused: bool) -> None:
        with self._link.client() as client:
            state = await client.pause(queue)
            await client.pause(queue, (STOPPED if paused else RESUMED)[state], broadcast=True)

    async def paused(self, queue: str) -> bool:
        with self._link.client() as client:
            return await client.pause(queue) in PAUSED

    # Claims, and jobs by their marks

    async def put_value(self, key: str, value: str, ttl_ms: int) -> None:
        await self._values.put([NewValue(key, value, ttl_ms)])

    async def put_values(self, values: Sequence[NewValue]) -> None:
        await self._values.put(values)

    async def value(self, key: str) -> str | None:
        return await self._values.get(key)

    async def remove_value(self, key: str) -> None:
        await self._values.remove(key)

    async def claim(self, queue: str, key: str, count: int, lease_ms: int) -> list[StoredJob]:
        return await self._claims.claim(queue, key, count, lease_ms)

    async def extend_claim(self, queue: str, key: str, lease_ms: int) -> int:
        return await self._claims.extend(queue, key, lease_ms)

    async def ack_claim(self, queue: str, key: str) -> int:
        return await self._claims.ack(queue, key)

    async def nack_claim(self, queue: str, key: str, delay_ms: int) -> int:
        return await self._claims.nack(queue, key, delay_ms)

    async def regain(self, queue: str, marks: Sequence[Mark]) -> list[StoredJob]:
        return await self._marks.regain(queue, marks)

    async def keep(self, queue: str, marks: Sequence[Mark]) -> float | None:
        return await self._marks.keep(marks)

    async def end(self, queue: str, marks: Sequence[Mark]) -> int:
        return await self._marks.end(marks)
